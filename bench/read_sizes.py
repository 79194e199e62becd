#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What joining reads of neighbours can gain at most: one range of a file, read past the page cache in requests of several
sizes at the same depth, alternating. Prints speed and CPU time of each size."""
import argparse
import itertools
import mmap
import os
import resource
import statistics
import threading
import time


def cpu_s():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def read_range(fd, n_bytes, size, depth):
    """(seconds, CPU seconds) of reading [0, n_bytes) in order, depth requests at a time."""
    turn = itertools.count()  # its next() is atomic
    buffers = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE) for _ in range(depth)]

    def work(buffer):
        while (at := next(turn) * size) + size <= n_bytes:
            if os.preadv(fd, [buffer], at) != size:
                raise OSError("short read")

    threads = [threading.Thread(target=work, args=(b,)) for b in buffers]
    start, cpu = time.monotonic(), cpu_s()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.monotonic() - start, cpu_s() - cpu


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("file")
    p.add_argument("--kib", type=int, nargs="+", default=[68, 204, 864, 2592, 5184, 10368], help="request sizes, multiples of 4")
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--mib", type=int, default=512, help="of the file's begin")
    a = p.parse_args()
    fd = os.open(a.file, os.O_RDONLY | os.O_DIRECT)
    n_bytes = min(a.mib << 20, os.fstat(fd).st_size)
    got = {k: [] for k in a.kib}
    for _ in range(a.rounds):
        for k in a.kib:
            size = k << 10
            s, cpu = read_range(fd, n_bytes, size, a.depth)
            used = n_bytes // size * size
            got[k].append((used / s / 1e6, cpu / used * 1e12))
    print("KiB a request | MB/s, median (least..most) | CPU ms a GB")
    for k, v in got.items():
        rates = [x[0] for x in v]
        print(f"{k:6} | {statistics.median(rates):6.0f} ({min(rates):.0f}..{max(rates):.0f}) | {statistics.median(x[1] for x in v):5.0f}")


main()
