#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model larger than memory, moed and llama.cpp (llama-cpp-python, mapped file) side by side: both in a memory cgroup of a
share of the file, page cache dropped before each run, random tokens, alternating A B A B; medians count. Needs root.

  bench/offload_peer.py --share 50 --json out.json model.gguf

moed is told the same limit (--ram). The peer computes from the mapped file (its copy into another layout would not fit and
the kernel would end it). --packed FILE measures a packed copy of the model as a third side. The peer gives up a
run after --limit seconds and counts the tokens it had by then.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--packed", help="the same model after moed pack")
    p.add_argument("--build", default="build/release", help="where moed is")
    p.add_argument("--share", type=int, default=50, metavar="PERCENT", help="of the file, as the memory limit of both")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--gen", type=int, default=32)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--limit", type=float, default=60, metavar="SECONDS")
    p.add_argument("--json")
    p.add_argument("--peer-run", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


class Cgroup:
    """A memory limit for child processes, in either version of the interface."""

    def __init__(self, limit):
        self.v1 = os.path.exists(f"{V1}/memory.limit_in_bytes")
        self.path = f"{V1 if self.v1 else V2}/moed-bench-{os.getpid()}"
        if not self.v1:
            self.write(f"{V2}/cgroup.subtree_control", "+memory")
        os.mkdir(self.path)
        self.write(f"{self.path}/{'memory.limit_in_bytes' if self.v1 else 'memory.max'}", str(limit))
        if not self.v1 and os.path.exists(f"{self.path}/memory.swap.max"):
            self.write(f"{self.path}/memory.swap.max", "0")

    @staticmethod
    def write(path, text):
        with open(path, "w") as f:
            f.write(text)

    def enter(self):
        self.write(f"{self.path}/cgroup.procs", str(os.getpid()))

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.v1 else "memory.peak"
        try:
            with open(f"{self.path}/{name}") as f:
                return int(f.read())
        except OSError:
            return 0

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)  # pages are still being given back


def drop_cache(*paths):
    os.sync()
    for path in filter(None, paths):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def run(cmd, limit):
    """The JSON a command prints, run alone below the limit, and the most memory its group took."""
    group = Cgroup(limit)
    try:
        out = subprocess.run(cmd, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=group.enter).stdout
        return json.loads(out) | {"cgroup_peak": group.peak()}
    finally:
        group.remove()


def run_moed(a, model, limit):
    out = run([os.path.join(a.build, "moed"), "bench", "--offload", model, "--ram", str(limit), "--threads", str(a.threads), "--prompt",
               str(a.context), "--context", str(a.context), "--gen", str(a.gen), "--repeat", "1", "--resident", "off", "--json", "-"], limit)
    decode = out["results"][1]
    return {"tokens_per_s": 1e3 / decode["ms"], "read_bytes_per_token": decode["read_bytes"], "memory": out["cgroup_peak"],
            "disk_bytes_per_s": statistics.mean(out["disk_bytes_per_s"])}


def run_peer(a, limit):
    out = run([sys.executable, __file__, a.model, "--threads", str(a.threads), "--context", str(a.context), "--gen", str(a.gen),
               "--limit", str(a.limit), "--peer-run"], limit)
    return {"tokens_per_s": out["tokens_per_s"], "tokens": out["tokens"], "memory": out["cgroup_peak"]}


def peer_main(a):
    from compare import Peer
    peer = Peer(a.model, {"prompt": 0, "widths": [1], "context": a.context, "threads": a.threads, "mapped": True}, a.gen)
    peer.prefill(0, a.context)
    start, n = time.perf_counter(), 0
    while n < a.gen and (n == 0 or time.perf_counter() - start < a.limit):
        peer.step([(0, a.context + n, True)])
        n += 1
    print(json.dumps({"tokens_per_s": n / (time.perf_counter() - start), "tokens": n}))


def main():
    a = parse_args()
    if a.peer_run:
        peer_main(a)
        return
    limit = os.path.getsize(a.model) * a.share // 100
    sides = {"moed": lambda: run_moed(a, a.model, limit), "llama.cpp": lambda: run_peer(a, limit)}
    if a.packed:
        sides["moed, packed"] = lambda: run_moed(a, a.packed, limit)
    results = {name: [] for name in sides}
    for _ in range(a.repeat):
        for name, side in sides.items():
            drop_cache(a.model, a.packed)
            results[name].append(side())
    peer = statistics.median(r["tokens_per_s"] for r in results["llama.cpp"])
    print(f"{a.model}: {os.path.getsize(a.model) / 1e9:.2f} GB, memory limit {limit / 1e9:.2f} GB ({a.share} %), {a.threads} threads, decode of 1 sequence")
    for name, runs in results.items():
        tps = sorted(r["tokens_per_s"] for r in runs)
        median = statistics.median(tps)
        print(f"{name:14} {median:8.2f} tokens/s (min {tps[0]:.2f}, max {tps[-1]:.2f}), {median / peer:6.2f} x llama.cpp, "
              f"peak memory {max(r['memory'] for r in runs) / 1e9:.2f} GB")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"model": a.model, "limit": limit, "threads": a.threads, "gen": a.gen, "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
