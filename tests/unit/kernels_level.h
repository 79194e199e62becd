/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel test cases that run once per level (instruction set). A level that this CPU lacks gives one SKIP line per
 * program, named after the level, and tests/expected-skips lists these for every level but scalar. */
#ifndef MOED_TESTS_KERNELS_LEVEL_H
#define MOED_TESTS_KERNELS_LEVEL_H

#include "kernels/kernels.h"
#include "tests/unit/test.h"

static inline bool level_runs(enum kern_level level) {
    bool runs = kern_cpu_ops(level) != NULL;
    if (!runs) printf("SKIP %s: this CPU cannot run it\n", kern_level_name(level));
    return runs;
}

/* One case at one level, named <what>_<level>. */
static inline void run_level(const char *what, void (*fn)(const char *test_name_, const struct kern_ops *ops), enum kern_level level) {
    char name[64];
    snprintf(name, sizeof name, "%s_%s", what, kern_level_name(level));
    int jumped = setjmp(test_jump_);
    if (jumped == 0) {
        fn(name, kern_cpu_ops(level));
        printf("PASS %s\n", name);
    } else if (jumped == 1) {
        test_failed_ = 1;
    }
    fflush(stdout);
}

#endif
