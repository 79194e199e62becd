/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads CPU lists of /sys/devices/system. The files are short lists such as "0-3,8". */
#include "base/topology.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Adds the CPUs of one list to set[]; false at the first thing that is not a list. */
static bool list_read(const char *s, bool *set) {
    do {
        char *end;
        long first = strtol(s, &end, 10), last = first;
        if (end == s || *s < '0' || *s > '9' || first >= TOPOLOGY_MAX_CPUS) return false;
        if (*end == '-') {
            s = end + 1;
            last = strtol(s, &end, 10);
            if (end == s || *s < '0' || *s > '9' || last < first || last >= TOPOLOGY_MAX_CPUS) return false;
        }
        for (long cpu = first; cpu <= last; cpu++) set[cpu] = true;
        s = end + 1;
        if (*end == '\0' || *end == '\n') return true;
        if (*end != ',') return false;
    } while (true);
}

static bool file_read(const char *root, const char *dir, int index, const char *leaf, bool *set) {
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/%s%d/%s", root, dir, index, leaf);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    memset(set, 0, TOPOLOGY_MAX_CPUS * sizeof *set);
    return ok && list_read(text, set);
}

static void affinity(bool *allowed) {
    cpu_set_t set;
    bool ok = sched_getaffinity(0, sizeof set, &set) == 0;
    for (size_t cpu = 0; cpu < TOPOLOGY_MAX_CPUS; cpu++) allowed[cpu] = ok && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set);
}

/* Is `cpu` the lowest allowed one of its core? */
static bool leads_core(const char *root, int cpu, const bool *allowed) {
    bool siblings[TOPOLOGY_MAX_CPUS];
    if (!file_read(root, "cpu/cpu", cpu, "topology/thread_siblings_list", siblings) || !siblings[cpu]) return true;
    for (int other = 0; other < cpu; other++)
        if (siblings[other] && allowed[other]) return false;
    return true;
}

static int count_nodes(const char *root, const bool *allowed) {
    int n = 0;
    for (int node = 0; node < TOPOLOGY_MAX_CPUS; node++) {
        bool cpus[TOPOLOGY_MAX_CPUS], used = false;
        if (!file_read(root, "node/node", node, "cpulist", cpus)) continue; /* numbers may have gaps; memory-only nodes are empty */
        for (int cpu = 0; cpu < TOPOLOGY_MAX_CPUS; cpu++) used |= cpus[cpu] && allowed[cpu];
        n += used;
    }
    return n > 0 ? n : 1;
}

void topology_read(struct topology *out, const char *root, const bool *allowed) {
    bool own[TOPOLOGY_MAX_CPUS];
    if (!allowed) {
        affinity(own);
        allowed = own;
    }
    memset(out, 0, sizeof *out);
    for (int cpu = 0; cpu < TOPOLOGY_MAX_CPUS; cpu++) {
        if (!allowed[cpu]) continue;
        out->n_allowed++;
        if (leads_core(root, cpu, allowed)) out->cores[out->n_cores++] = cpu;
    }
    if (out->n_cores == 0) out->n_allowed = out->n_cores = 1; /* the mask could not be read: CPU 0 */
    out->n_nodes = count_nodes(root, allowed);
}

int topology_cgroup_quota(const char *path) {
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    long quota = 0, period = 0;
    int got = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    if (got != 2 || quota <= 0 || period <= 0) return 0;
    long n = quota / period;
    return n < 1 ? 1 : n > TOPOLOGY_MAX_CPUS ? TOPOLOGY_MAX_CPUS : (int)n;
}

int topology_parse_list(const char *text, int *cpus, int cap, struct err *e) {
    int n = 0;
    for (const char *s = text; *s != '\0';) {
        char *end;
        bool digit = *s >= '0' && *s <= '9';
        long first = strtol(s, &end, 10), last = first;
        bool ok = digit && first < TOPOLOGY_MAX_CPUS;
        if (ok && *end == '-') {
            s = end + 1;
            digit = *s >= '0' && *s <= '9';
            last = strtol(s, &end, 10);
            ok = digit && last >= first && last < TOPOLOGY_MAX_CPUS;
        }
        if (!ok || (*end != '\0' && *end != ',') || (*end == ',' && end[1] == '\0') || n + (last - first) >= cap)
            return err_set(e, ST_INVALID, "cpus: \"%.60s\" is not a list like 0-3,8 of CPU numbers below %d", text, TOPOLOGY_MAX_CPUS);
        for (long cpu = first; cpu <= last; cpu++) {
            for (int i = 0; i < n; i++)
                if (cpus[i] == cpu) return err_set(e, ST_INVALID, "cpus: \"%.60s\" names CPU %ld twice", text, cpu);
            cpus[n++] = (int)cpu;
        }
        s = *end == ',' ? end + 1 : end;
    }
    return n;
}
