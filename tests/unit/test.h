/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny test harness: one program per unit, one line per case on stdout:
 *   PASS name | FAIL name: why | SKIP name: why
 * tests/run.sh counts these lines. A failed CHECK ends its case, not the program. */
#ifndef MOED_TESTS_TEST_H
#define MOED_TESTS_TEST_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

static jmp_buf test_jump_;
static int test_failed_;

#define CHECK(cond)                                                                                  \
    do {                                                                                             \
        if (!(cond)) {                                                                               \
            printf("FAIL %s: %s:%d: %s\n", test_name_, __FILE__, __LINE__, #cond);                   \
            longjmp(test_jump_, 1);                                                                  \
        }                                                                                            \
    } while (0)

#define CHECKF(cond, ...)                                                                            \
    do {                                                                                             \
        if (!(cond)) {                                                                               \
            printf("FAIL %s: %s:%d: %s: ", test_name_, __FILE__, __LINE__, #cond);                   \
            printf(__VA_ARGS__);                                                                     \
            printf("\n");                                                                            \
            longjmp(test_jump_, 1);                                                                  \
        }                                                                                            \
    } while (0)

#define SKIP(...)                                                                                    \
    do {                                                                                             \
        printf("SKIP %s: ", test_name_);                                                             \
        printf(__VA_ARGS__);                                                                         \
        printf("\n");                                                                                \
        longjmp(test_jump_, 2);                                                                      \
    } while (0)

#define TEST(name) static void name(const char *test_name_)

/* RUN(case) in main; return test_failed_ from main. */
#define RUN(name)                                                                                    \
    do {                                                                                             \
        int jumped_ = setjmp(test_jump_);                                                            \
        if (jumped_ == 0) {                                                                          \
            name(#name);                                                                             \
            printf("PASS %s\n", #name);                                                              \
        } else if (jumped_ == 1) {                                                                   \
            test_failed_ = 1;                                                                        \
        }                                                                                            \
        fflush(stdout);                                                                              \
    } while (0)

#endif
