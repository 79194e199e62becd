/* SPDX-License-Identifier: Apache-2.0
 *
 * Which CPUs this process may use and how they hang together: SMT siblings and NUMA nodes, as the kernel tells under
 * /sys/devices/system. A file that is missing or odd means "one thread per core, one node". Any thread. */
#ifndef MOED_BASE_TOPOLOGY_H
#define MOED_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { TOPOLOGY_MAX_CPUS = 1024 };

#define TOPOLOGY_ROOT "/sys/devices/system"

struct topology {
    int n_allowed;                  /* CPUs this process may run on, siblings included                  */
    int n_cores;                    /* physical cores among them, >= 1                                  */
    int n_nodes;                    /* NUMA nodes with an allowed CPU, >= 1                             */
    int cores[TOPOLOGY_MAX_CPUS];   /* [n_cores] the lowest allowed CPU of each core, ascending         */
};

/* allowed [TOPOLOGY_MAX_CPUS], borrowed; NULL = the affinity mask of the calling thread. */
void topology_read(struct topology *out, const char *root, const bool *allowed);

/* CPU quota of the container (cgroup v2) in `path`, rounded down, at least 1; 0 = none. */
int topology_cgroup_quota(const char *path);

/* "0-3,8" -> 0 1 2 3 8; "" -> none. Returns the count, or ST_INVALID. A CPU twice is an error. */
int topology_parse_list(const char *text, int *cpus, int cap, struct err *e);

#endif
