#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moed and llama.cpp (llama-cpp-python's low-level API) side by side on the same files, and both against the machine.

Both sides run as fresh processes, alternating A B A B; medians count. Same threads, lengths and widths, f16 KV, random
tokens. moed samples every token it decodes, the peer does not sample at all: the difference is in the peer's favour.
Shares are of what bench/calibrate measures before and after: int8 dot products, DRAM reads, all threads at once.

  make bench && bench/compare.py --build build/release --threads 2 --markdown out.md --json out.json a.gguf b.gguf

Parts: prefill, decode (all widths of --batch), long (decode at --long tokens of context), scaling (prefill with one thread
and with all, moed only). Peak RSS is that of the process that did prefill and decode. --budget stops repeating, and then
starting parts, when the next one would pass that many seconds; what was left out is said.

--smoke compares moed's best instruction set with its scalar path on one file and fails below 5x.
"""
import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

PARTS = ["prefill", "decode", "long", "scaling"]
SMOKE_RATIO, SMOKE_TOKENS = 5, 32


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="FILE")
    p.add_argument("--build", default="build/release", help="where moed and bench/calibrate are")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--batch", default="1,8,32")
    p.add_argument("--gen", type=int, default=32)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--long", type=int, default=4096)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--budget", type=float, default=3600, metavar="SECONDS", help="for each file")
    p.add_argument("--no-peer", action="store_true")
    p.add_argument("--json")
    p.add_argument("--markdown")
    p.add_argument("--smoke", action="store_true")
    p.add_argument("--peer-run", help=argparse.SUPPRESS)
    a = p.parse_args()
    unknown = set(a.parts.split(",")) - set(PARTS)
    if unknown:
        p.error(f"--parts: no {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    return a


# ---- one run of one side; a run is (prompt or 0, widths, context, threads) and gives {test: value} ----

def moed_bench(build, model, *flags):
    out = subprocess.run([os.path.join(build, "moed"), "bench", model, *map(str, flags), "--json", "-"], check=True,
                         stdout=subprocess.PIPE).stdout
    return json.loads(out)


def run_moed(a, model, run):
    widths = run["widths"] or [1]
    gen = a.gen if run["widths"] else 1
    out = moed_bench(a.build, model, "--threads", run["threads"], "--prompt", run["prompt"] or 1, "--batch",
                     ",".join(map(str, widths)), "--gen", gen, "--context", run["context"], "--repeat", 1)
    tests = {"peak RSS": out["peak_rss_bytes"]}
    for r in out["results"]:
        if r["test"] == "prefill" and run["prompt"]:
            tests[f"prefill {r['tokens']}"] = r["median_tps"]
        elif r["test"] == "decode" and run["widths"]:
            tests[f"decode {r['sequences']}"] = r["median_tps"]
            tests[f"weights/s {r['sequences']}"] = r["gb_per_s"]
    return tests | {"ops_per_token": out["ops_per_token"], "kv_bytes_per_token": out["kv_bytes_per_token"]}


def run_peer(a, model, run):
    cmd = [sys.executable, __file__, model, "--gen", str(a.gen), "--peer-run", json.dumps(run)]
    return json.loads(subprocess.run(cmd, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


class Peer:
    def __init__(self, model, run, gen):
        import llama_cpp as lc
        import numpy as np
        self.lc, self.rng = lc, np.random.default_rng(1)
        widest = max(run["widths"], default=1)
        lc.llama_backend_init()
        m = lc.llama_model_default_params()
        m.use_extra_bufts = not run.get("mapped")  # else it copies weights into a layout of its own
        self.model = lc.llama_model_load_from_file(model.encode(), m)
        p = lc.llama_context_default_params()
        p.n_ctx = max(run["prompt"], widest * (run["context"] + gen) if run["widths"] else 0) + 64
        p.n_batch = p.n_ubatch = 512
        p.n_seq_max = widest
        p.kv_unified = True
        p.n_threads = p.n_threads_batch = run["threads"]
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
    run = json.loads(a.peer_run)
    peer, out = Peer(a.models[0], run, a.gen), {}
    peer.prefill(0, run["prompt"] or 64)  # warm-up
    if run["prompt"]:
        peer.clear()
        start = time.perf_counter()
        peer.prefill(0, run["prompt"])
        out[f"prefill {run['prompt']}"] = run["prompt"] / (time.perf_counter() - start)
    for width in run["widths"]:
        peer.clear()
        for seq in range(width):
            peer.prefill(seq, run["context"])
        start = time.perf_counter()
        for i in range(a.gen):
            peer.step([(seq, run["context"] + i, True) for seq in range(width)])
        out[f"decode {width}"] = width * a.gen / (time.perf_counter() - start)
    out["peak RSS"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    json.dump(out, sys.stdout)


# ---- the table of one file ----

def planned(a):
    """(name, run, sides): what one repeat does."""
    parts, widths = a.parts.split(","), list(map(int, a.batch.split(",")))
    both = ["moed"] if a.no_peer else ["moed", "llama.cpp"]
    base = {"prompt": a.prompt if "prefill" in parts else 0, "widths": widths if "decode" in parts else [], "context": a.context,
            "threads": a.threads}
    plan = []
    if base["prompt"] or base["widths"]:
        plan.append(("base", base, both))
    if "long" in parts:
        plan.append(("long", {"prompt": 0, "widths": [1], "context": a.long, "threads": a.threads}, both))
    if "scaling" in parts and a.threads > 1:
        for n in (1, a.threads):
            plan.append((f"scaling {n}", {"prompt": a.prompt, "widths": [], "context": 1, "threads": n}, ["moed"]))
    return plan


def measure(a, model):
    """{name: {side: [tests of each repeat]}}, and what the budget left out. Repeats are the outer loop, so that all parts
    see the machine's slow and fast moments alike."""
    done, took, left_out, start = {}, {}, [], time.monotonic()
    for repeat in range(a.repeat):
        for name, run, sides in planned(a):
            if time.monotonic() - start + took.get(name, 0) > a.budget:
                left_out.append(f"{name}, repeat {repeat + 1}")
                continue
            began = time.monotonic()
            for side in sides:
                runner = run_moed if side == "moed" else run_peer
                done.setdefault(name, {}).setdefault(side, []).append(runner(a, model, run))
            took[name] = time.monotonic() - began
    return done, left_out


def row(test, sides, unit=1.0):
    out = {"test": test}
    for side, values in sides.items():
        values = [v / unit for v in values]
        out[side] = {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}
    if "llama.cpp" in out:
        out["ratio"] = out["moed"]["median"] / out["llama.cpp"]["median"]
    return out


def rows_of(a, done, peak):
    rows = []
    pick = lambda name, test: {side: [r[test] for r in rs] for side, rs in done[name].items() if test in rs[0]}
    for test in done.get("base", {}).get("moed", [{}])[0]:
        if not test.startswith(("prefill", "decode")):
            continue
        r = row(test, pick("base", test))
        first, (kind, n) = done["base"]["moed"][0], test.split()
        if kind == "prefill" and peak["int8_gops"]:
            r["share"] = r["moed"]["median"] * first["ops_per_token"] / 1e9 / peak["int8_gops"]
            r["share_of"] = "int8 peak"
        elif kind == "decode":
            r["share"] = statistics.median(pick("base", f"weights/s {n}")["moed"]) / peak["dram_gb_s"]
            r["share_of"] = "DRAM"
        rows.append(r)
    if "base" in done:
        rows.append(row("peak RSS (GB)", pick("base", "peak RSS"), 1e9))
    if "long" in done:
        r = row(f"decode 1 at {a.long}", pick("long", "decode 1"))
        if any(x["test"] == "decode 1" for x in rows):
            r |= kv_stream(a, done, r, next(x for x in rows if x["test"] == "decode 1"))
        rows.append(r)
    one, many = done.get("scaling 1"), done.get(f"scaling {a.threads}")
    if one and many:
        test = f"prefill {a.prompt}"
        ratios = [m[test] / o[test] for o, m in zip(one["moed"], many["moed"])]
        rows.append(row(f"{a.threads} threads over 1, {test}", {"moed": ratios}))
    return rows


def kv_stream(a, done, far, near):
    """GB/s of KV per thread, from how much longer a token takes with the long context than with the short one."""
    more = 1 / far["moed"]["median"] - 1 / near["moed"]["median"]
    n_bytes = done["long"]["moed"][0]["kv_bytes_per_token"] * (a.long - a.context)
    return {"kv_gb_s_per_thread": n_bytes / more / a.threads / 1e9} if more > 0 else {}


# ---- output ----

def cell(r, side):
    return "{median:.2f} ({min:.2f}..{max:.2f})".format(**r[side]) if side in r else ""


def own_limit(r):
    if "share" in r:
        return f"{r['share']:.0%} of {r['share_of']}"
    return f"KV {r['kv_gb_s_per_thread']:.1f} GB/s per thread" if "kv_gb_s_per_thread" in r else ""


def markdown(a, record):
    lines = [f"## {record['date']}, {record['cpu']}, {a.threads} threads", "", f"`{record['command']}`", "",
             f"moed {record['version']}; {record['peer']}. Medians of up to {a.repeat} alternating runs (min..max), tokens/s."]
    for f in record["files"]:
        p = f["peak"]
        int8 = f"{p['int8_gops']:.0f} int8 Gop/s" if p["int8_gops"] else "no int8 peak"
        lines += ["", f"### {os.path.basename(f['model'])} ({f['bytes'] / 1e9:.2f} GB)", "",
                  f"The machine, in the same run: {int8}, DRAM {p['dram_gb_s']:.1f} GB/s.", "",
                  "| test | moed | llama.cpp | ratio | own limit |", "|---|---|---|---|---|"]
        lines += [f"| {r['test']} | {cell(r, 'moed')} | {cell(r, 'llama.cpp')} | {'%.2f' % r['ratio'] if 'ratio' in r else ''} | {own_limit(r)} |"
                  for r in f["rows"]]
        if f["left_out"]:
            lines += ["", f"Left out for the time budget of {a.budget:.0f} s: {'; '.join(f['left_out'])}."]
    return "\n".join(lines) + "\n"


def calibrate(a):
    out = subprocess.run([os.path.join(a.build, "bench/calibrate"), str(a.threads)], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)


def best_of(one, other):
    return {k: max(v, other[k]) if v is not None and other[k] is not None else v for k, v in one.items()}


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def peer_name(a):
    if a.no_peer:
        return "no peer"
    import importlib.metadata
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"


def smoke(a):
    best = {}
    for _ in range(2):
        for level in ("auto", "scalar"):
            out = moed_bench(a.build, a.models[0], "--threads", a.threads, "--prompt", SMOKE_TOKENS, "--batch", 1, "--gen", 1,
                             "--context", 1, "--repeat", 1, "--cpu-level", level)
            name = level if level == "scalar" else out["cpu_level"]
            best[name] = max(best.get(name, 0), out["results"][0]["median_tps"])
    simd = next((n for n in best if n != "scalar"), None)
    if simd is None:
        print("smoke: this CPU has no SIMD level")
        return 77
    ratio = best[simd] / best["scalar"]
    print(f"smoke: prefill {SMOKE_TOKENS}: {simd} is {ratio:.1f}x scalar, expected at least {SMOKE_RATIO}x")
    return 0 if ratio >= SMOKE_RATIO else 1


def main():
    a = parse_args()
    if a.peer_run:
        peer_main(a)
        return 0
    if a.smoke:
        return smoke(a)
    version = subprocess.run([os.path.join(a.build, "moed"), "version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    record = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "version": version.split()[-1], "peer": peer_name(a),
              "command": "bench/compare.py " + " ".join(sys.argv[1:]), "threads": a.threads, "files": []}
    for model in a.models:
        before = calibrate(a)
        done, left_out = measure(a, model)
        peak = best_of(before, calibrate(a))
        record["files"].append({"model": model, "bytes": os.path.getsize(model), "peak": peak, "rows": rows_of(a, done, peak),
                                "left_out": left_out, "runs": done})
        for path, text in ((a.json, json.dumps(record, indent=1)), (a.markdown, markdown(a, record))):
            if path:  # after each file: a run that is cut short keeps what it has
                with open(path, "w") as f:
                    f.write(text)
    print(markdown(a, record), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
