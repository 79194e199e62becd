/* SPDX-License-Identifier: Apache-2.0
 *
 * Bugs that end the program, on purpose: each runs in a child of its own, and what it said is looked at. */
#ifndef MOED_TESTS_CUDA_DEAD_H
#define MOED_TESTS_CUDA_DEAD_H

#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

/* Runs bug() in a child; its stderr, cut to `size`, into said. false: it ended well. */
static inline bool dies(void (*bug)(), char *said, size_t size) {
    int fds[2], status = 0;
    if (pipe(fds)) return false;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        bug();
        _exit(0);
    }
    close(fds[1]);
    size_t n = 0;
    char rest[4096];
    for (;;) {
        const bool room = n + 1 < size;
        const ssize_t got = read(fds[0], room ? said + n : rest, room ? size - 1 - n : sizeof rest);
        if (got <= 0) break;
        if (room) n += (size_t)got;
    }
    said[n] = 0;
    close(fds[0]);
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

#define DIES_SAYING(bug, ...)                                                                                  \
    do {                                                                                                       \
        static char said_[16384];                                                                              \
        const char *const words_[] = { __VA_ARGS__ };                                                          \
        CHECKF(dies(bug, said_, sizeof said_), "%s was not found; said: %s", #bug, said_);                     \
        for (const char *w_ : words_) CHECKF(strstr(said_, w_) != nullptr, "no \"%s\" in: %s", w_, said_);     \
    } while (0)

#endif
