#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `moed bench` and llama.cpp (through llama-cpp-python's low-level API) side by side on the same file.

Both sides run as fresh processes, alternating A B A B; medians count. Same threads, lengths and widths, f16 KV, random
tokens. moed samples every token it decodes, the peer does not sample at all: the difference is in the peer's favour.

  tools/compare.py build/release/moed model.gguf --threads 2 --repeat 3 --json out.json
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("moed", help="the moed binary")
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--batch", default="1,8,32")
    p.add_argument("--gen", type=int, default=32)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--json")
    p.add_argument("--peer-run", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def name_of(r):
    return f"prefill {r['tokens']}" if r["test"] == "prefill" else f"decode {r['sequences']}"


def run_moed(a):
    cmd = [a.moed, "bench", a.model, "--threads", str(a.threads), "--prompt", str(a.prompt), "--batch", a.batch, "--gen",
           str(a.gen), "--context", str(a.context), "--repeat", "1", "--json", "-"]
    out = json.loads(subprocess.run(cmd, check=True, stdout=subprocess.PIPE).stdout)
    return {name_of(r): r["median_tps"] for r in out["results"]} | {"peak RSS": out["peak_rss_bytes"]}


def run_peer(a):
    cmd = [sys.executable, __file__, a.moed, a.model, "--threads", str(a.threads), "--prompt", str(a.prompt), "--batch", a.batch,
           "--gen", str(a.gen), "--context", str(a.context), "--peer-run"]
    return json.loads(subprocess.run(cmd, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


class Peer:
    def __init__(self, a):
        import llama_cpp as lc
        import numpy as np
        self.lc, self.rng = lc, np.random.default_rng(1)
        widest = max(map(int, a.batch.split(",")))
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(a.model.encode(), lc.llama_model_default_params())
        p = lc.llama_context_default_params()
        p.n_ctx = max(a.prompt, widest * (a.context + a.gen)) + 64
        p.n_batch = p.n_ubatch = 512
        p.n_seq_max = widest
        p.kv_unified = True
        p.n_threads = p.n_threads_batch = a.threads
        self.ctx = lc.llama_init_from_model(self.model, p)
        if not self.model or not self.ctx:
            sys.exit("the peer cannot load this file")
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(512, 0, 1)

    def step(self, rows):
        """rows: (sequence, position, wants logits)"""
        b = self.batch
        b.n_tokens = len(rows)
        for i, ((seq, pos, logits), token) in enumerate(zip(rows, self.rng.integers(0, self.n_vocab, len(rows)))):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = int(token), pos, 1, seq, logits
        if self.lc.llama_decode(self.ctx, b):
            sys.exit("llama_decode failed")
        self.lc.llama_synchronize(self.ctx)

    def prefill(self, seq, n):
        for at in range(0, n, 512):
            end = min(n, at + 512)
            self.step([(seq, pos, pos == n - 1) for pos in range(at, end)])

    def clear(self):
        self.lc.llama_memory_clear(self.lc.llama_get_memory(self.ctx), True)


def peer_main(a):
    peer, out = Peer(a), {}
    peer.prefill(0, a.prompt)
    peer.clear()
    start = time.perf_counter()
    peer.prefill(0, a.prompt)
    out[f"prefill {a.prompt}"] = a.prompt / (time.perf_counter() - start)
    for width in map(int, a.batch.split(",")):
        peer.clear()
        for seq in range(width):
            peer.prefill(seq, a.context)
        start = time.perf_counter()
        for i in range(a.gen):
            peer.step([(seq, a.context + i, True) for seq in range(width)])
        out[f"decode {width}"] = width * a.gen / (time.perf_counter() - start)
    out["peak RSS"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    json.dump(out, sys.stdout)


def main():
    a = parse_args()
    if a.peer_run:
        peer_main(a)
        return
    runs = {"moed": [], "llama.cpp": []}
    for _ in range(a.repeat):
        runs["moed"].append(run_moed(a))
        runs["llama.cpp"].append(run_peer(a))
    print(f"{a.model}, {a.threads} threads, {a.repeat} repeats, tokens/s (median, min..max)")
    print(f"{'test':14} {'moed':>30} {'llama.cpp':>30} {'ratio':>7}")
    rows = []
    for test in runs["moed"][0]:
        unit = 1e9 if test == "peak RSS" else 1
        sides = {s: [r[test] / unit for r in rs] for s, rs in runs.items()}
        mid = {s: statistics.median(v) for s, v in sides.items()}
        cell = lambda s: f"{mid[s]:10.2f} ({min(sides[s]):.2f}..{max(sides[s]):.2f})"
        print(f"{test + (' (GB)' if unit > 1 else ''):14} {cell('moed'):>30} {cell('llama.cpp'):>30} {mid['moed'] / mid['llama.cpp']:7.2f}")
        rows.append({"test": test, "moed": sides["moed"], "llama.cpp": sides["llama.cpp"], "ratio": mid["moed"] / mid["llama.cpp"]})
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"model": a.model, "threads": a.threads, "argv": sys.argv[1:], "results": rows}, f, indent=1)


main()
