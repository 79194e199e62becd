/* SPDX-License-Identifier: Apache-2.0
 *
 * What /proc says about this process, compared with what the process knows itself. */
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "server/sysinfo.h"
#include "tests/unit/test.h"

TEST(process_numbers) {
    struct sys_process a, b;
    struct rusage u;
    sys_process(&a);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    sys_process(&b);
    close(fd);
    CHECKF(b.open_fds == a.open_fds + 1, "%llu then %llu", (unsigned long long)a.open_fds, (unsigned long long)b.open_fds);
    CHECK(a.open_fds >= 3 && a.max_fds >= a.open_fds && a.n_threads >= 1 && a.n_threads <= 4);
    CHECK(getrusage(RUSAGE_SELF, &u) == 0);
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    CHECKF(a.cpu_s <= cpu + 0.05 && a.cpu_s > cpu - 0.5, "%f and %f", a.cpu_s, cpu);
    CHECKF(a.minor_faults > 0 && a.minor_faults <= (uint64_t)u.ru_minflt, "%llu", (unsigned long long)a.minor_faults);
    double age = (double)time(NULL) - a.start_unix_s;
    CHECKF(age > -3 && age < 120, "started %f s ago", age);
}

TEST(resident_memory_grows_with_touched_pages) {
    enum { BYTES = 32 << 20 };
    struct sys_process a, b;
    sys_process(&a);
    char *p = mem_map(BYTES);
    CHECK(p != NULL);
    memset(p, 1, BYTES);
    sys_process(&b);
    mem_unmap(p, BYTES);
    CHECKF(b.rss_bytes >= a.rss_bytes + BYTES / 2 && b.rss_bytes < a.rss_bytes + 4ull * BYTES, "%llu then %llu",
           (unsigned long long)a.rss_bytes, (unsigned long long)b.rss_bytes);
    CHECK(b.virtual_bytes > b.rss_bytes);
}

TEST(available_memory_is_plausible) {
    uint64_t left = sys_ram_available();
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    CHECKF(left > 0 && left < all, "%llu of %llu", (unsigned long long)left, (unsigned long long)all);
}

int main(void) {
    RUN(process_numbers);
    RUN(resident_memory_grows_with_touched_pages);
    RUN(available_memory_is_plausible);
    return test_failed_;
}
