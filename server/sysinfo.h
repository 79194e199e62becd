/* SPDX-License-Identifier: Apache-2.0
 *
 * What the operating system says about this process and its memory: for /metrics and for the memory ceiling.
 * Reads /proc and the cgroup files; a value that cannot be read is 0. Any thread. */
#ifndef MOED_SERVER_SYSINFO_H
#define MOED_SERVER_SYSINFO_H

#include <stdint.h>

struct sys_process {
    uint64_t rss_bytes, virtual_bytes, open_fds, max_fds, n_threads;
    uint64_t major_faults, minor_faults;
    double cpu_s, start_unix_s;
};
void sys_process(struct sys_process *out);

/* Bytes this process may still take: MemAvailable, or what is left below the cgroup limit when that is less. */
uint64_t sys_ram_available(void);

#endif
