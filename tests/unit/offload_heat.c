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

/* The last generation that was told, after a kill at some moment. */
static uint64_t run_and_kill(const char *test_name_, const char *path, struct policy *p, uint64_t generation, useconds_t after_us) {
    int ends[2];
    uint64_t told = 0, next;
    int status;
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        save_for_ever(path, p, generation, ends[1]);
    }
    close(ends[1]);
    usleep(after_us);
    CHECK(child > 0 && kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
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
        const uint64_t told = run_and_kill(test_name_, path, &p, newest + 1, 200 + i * 7919 % 6000);
        uint64_t now = 0;
        n_cut += access(tmp, F_OK) == 0;
        const bool there = offload__heat_load(path, IDENTITY, N_KEYS, entries, &now);
        CHECKF(there || access(path, F_OK), "kill %u: there is a file, and it cannot be read", i);
        CHECKF(now >= told && (now >= newest || !there), "kill %u: generation %llu, %llu was saved", i, (unsigned long long)now, (unsigned long long)told);
        for (uint32_t k = 0; there && k < N_KEYS; k++) {
            CHECK(entries[k].last == now && entries[k].uses == (float)now);
        }
        newest = there ? now : newest;
    }
    CHECKF(n_cut > 0 && newest > 0, "%u saves were cut off, %llu came to their end", n_cut, (unsigned long long)newest);
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
