/* SPDX-License-Identifier: Apache-2.0
 *
 * Heat files and processes that are killed while they save: whatever the moment, the next start reads a whole file, and none
 * older than the last save that came to its end. */
#include "test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "offload/internal.h"

enum { N_KEYS = 1 << 16, N_KILLS = 150, IDENTITY = 7 };

/* Saves generation after generation and says so, until it is killed. */
static void save_for_ever(const char *path, struct policy *p, uint64_t generation, int tell) {
    for (;; generation++) {
        struct err e;
        p->now = generation;
        for (uint32_t k = 0; k < N_KEYS; k++) {
            p->entries[k] = (struct policy_entry){ .uses = (float)generation, .last = generation };
        }
        if (offload__heat_save(path, IDENTITY, p, &e) || write(tell, &generation, sizeof generation) != sizeof generation) {
            _exit(1);
        }
    }
}

/* The last generation that was told. The kill comes after the first of them, at a part of the time that took: a slow machine has
 * saved by then too, and is in the next save. part: 0 .. 99 %. */
static uint64_t run_and_kill(const char *test_name_, const char *path, struct policy *p, uint64_t generation, uint32_t part) {
    int ends[2];
    const uint64_t start_ns = clock_mono_ns();
    uint64_t told = 0, next = 0;
    int status;
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        save_for_ever(path, p, generation, ends[1]);
    }
    close(ends[1]);
    CHECK(child > 0 && read(ends[0], &told, sizeof told) == sizeof told);
    usleep((useconds_t)((clock_mono_ns() - start_ns) / 1000 * part / 100));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while (read(ends[0], &next, sizeof next) == sizeof next) {
        told = next;
    }
    close(ends[0]);
    return told;
}

TEST(killed_while_saving) {
    struct policy p;
    char folder[] = "/tmp/moed-heat-XXXXXX", path[64], tmp[72];
    struct policy_entry *entries = mem_zalloc(N_KEYS, sizeof *entries);
    uint64_t newest = 0;
    uint32_t n_cut = 0;
    CHECK(entries && mkdtemp(folder));
    snprintf(path, sizeof path, "%s/heat", folder);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    policy_init(&p, OFFLOAD_LRU, entries, N_KEYS, 1);
    for (uint32_t i = 0; i < N_KILLS; i++) {
        const uint64_t told = run_and_kill(test_name_, path, &p, newest + 1, i * 37 % 100);
        uint64_t now = 0;
        n_cut += access(tmp, F_OK) == 0;
        CHECKF(offload__heat_load(path, IDENTITY, N_KEYS, entries, &now), "kill %u: the file cannot be read", i);
        CHECKF(told > newest && now >= told, "kill %u: generation %llu, %llu was saved", i, (unsigned long long)now, (unsigned long long)told);
        for (uint32_t k = 0; k < N_KEYS; k++) {
            CHECK(entries[k].last == now && entries[k].uses == (float)now);
        }
        newest = now;
    }
    CHECKF(n_cut > 0, "of %u kills none cut a save off", N_KILLS);
    unlink(path);
    unlink(tmp);
    CHECK(rmdir(folder) == 0);
    mem_free(entries);
}

int main(void) {
    alarm(120); /* a hang is a failure */
    log_setup(LOG_ERROR, LOG_TEXT);
    RUN(killed_while_saving);
    return test_failed_;
}
