/* SPDX-License-Identifier: Apache-2.0
 *
 * See sysinfo.h. Formats: proc(5) and the kernel's cgroup-v1/v2 memory documentation. */
#include "server/sysinfo.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t read_number(const char *path) {
    char text[64] = "";
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    if (fgets(text, sizeof text, f) == NULL) text[0] = '\0';
    fclose(f);
    return strtoull(text, NULL, 10); /* "max" reads as 0: no limit */
}

/* Value of "key:   123 kB" in bytes, or "key 123" as it is. */
static uint64_t read_field(const char *path, const char *key) {
    char line[256];
    uint64_t value = 0;
    size_t n = strlen(key);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, n) != 0 || (line[n] != ':' && line[n] != ' ')) continue;
        value = strtoull(line + n + 1, NULL, 10) * (strstr(line, " kB") != NULL ? 1024 : 1);
        break;
    }
    fclose(f);
    return value;
}

/* ---- this process ---- */

/* Fields of /proc/self/stat after the command name, which may itself hold spaces and parentheses. */
static void read_stat(struct sys_process *out) {
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    if (f == NULL) return;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')');
    uint64_t minor, major, user, system, threads, start, size;
    int64_t rss;
    if (p == NULL || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64 " %" SCNu64
                            " %*d %*d %*d %*d %" SCNu64 " %*d %" SCNu64 " %" SCNu64 " %" SCNd64,
                            &minor, &major, &user, &system, &threads, &start, &size, &rss) != 8)
        return;
    double hz = (double)sysconf(_SC_CLK_TCK);
    out->minor_faults = minor;
    out->major_faults = major;
    out->cpu_s = (double)(user + system) / hz;
    out->n_threads = threads;
    out->start_unix_s = (double)read_field("/proc/stat", "btime") + (double)start / hz;
    out->virtual_bytes = size;
    out->rss_bytes = (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

void sys_process(struct sys_process *out) {
    struct rlimit lim;
    memset(out, 0, sizeof *out);
    read_stat(out);
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0) out->max_fds = lim.rlim_cur;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) return;
    while (readdir(dir) != NULL) out->open_fds++;
    closedir(dir);
    out->open_fds -= out->open_fds >= 3 ? 3 : out->open_fds; /* ".", ".." and the directory itself */
}

/* ---- memory ---- */

static uint64_t min_left(uint64_t left, uint64_t limit, uint64_t used) {
    uint64_t here = limit > used ? limit - used : 0;
    return limit != 0 && here < left ? here : left;
}

/* Page cache counts as used in a cgroup but gives way, so inactive files are added back. */
static uint64_t below_limit(uint64_t left, const char *dir, const char *limit_file, const char *used_file, const char *inactive) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", dir, limit_file);
    uint64_t limit = read_number(path);
    snprintf(path, sizeof path, "%s/%s", dir, used_file);
    uint64_t used = read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t cache = read_field(path, inactive);
    return min_left(left, limit, used > cache ? used - cache : 0);
}

uint64_t sys_ram_available(void) {
    uint64_t left = read_field("/proc/meminfo", "MemAvailable");
    char line[512], dir[600];
    if (left == 0) return 0;
    left = below_limit(left, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
    /* v2: every level from our own up to the root may hold a limit. Inside a container ours is the root. */
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return left;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        for (char *end = line + strlen(line); end > line + 3;) {
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
            left = below_limit(left, dir, "memory.max", "memory.current", "inactive_file");
            while (end > line + 3 && *--end != '/') continue;
            *end = '\0';
        }
    }
    fclose(f);
    return below_limit(left, "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file");
}
