#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moed trace, simulate and plan: a recorded run of the demo model replayed, made-up routing with published statistics, plans
that add up, and what cannot be is refused with the reason."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from serving import BUILD, DEMO, ROOT, SANITIZED, Server, check, run_cases

PROSE = ROOT / "tests/data/prose.txt"
TMP = pathlib.Path(tempfile.mkdtemp(prefix="moed-test-trace-"))


def moed(*args, want=0):
    r = subprocess.run([BUILD / "moed", *map(str, args)], capture_output=True, text=True, check=False, timeout=300)
    check(r.returncode == want, lambda: f"{args}: exit status {r.returncode}, expected {want}: {r.stdout[-1000:]}{r.stderr[-2000:]}")
    return r.stdout if want == 0 else r.stderr


def simulate(trace, *flags):
    """{(budget in percent, policy): row} and the whole result."""
    out = json.loads(moed("simulate", trace, "--json", "-", *flags))
    return {(round(100 * r["budget"]), r["policy"]): r for r in out["results"]}, out


def need_demo():
    if not DEMO.exists():
        raise AssertionError(f"no {DEMO.relative_to(ROOT)}; tools/make_demo.py makes it")


def recorded(tokens=200, seed=1, name="demo.trace"):
    need_demo()
    path = TMP / name
    tokens = 20 if SANITIZED else tokens
    moed("trace", "record", DEMO, "-o", path, "--prompt-file", PROSE, "--prompt-tokens", 64, "--tokens", tokens, "--seed", seed)
    return path, tokens


def a_recording_is_shown_and_the_same_every_time():
    path, tokens = recorded()
    text = moed("trace", "show", path)
    check(f"decode: {tokens} steps, {tokens} tokens; 8.00 experts" in text and "prefill: 1 steps, 64 tokens" in text, text)
    check("dropped while recording: 0" in text and "8 of 32 experts in 30 of 30 layers" in text, text)
    again, _ = recorded(name="again.trace")
    check(path.read_bytes() == again.read_bytes(), "two runs over the same text chose other experts")


def the_demo_model_replayed():
    """The shipped policy against LRU and the bound, on routing that is coarse: experts come in groups of eight."""
    path, tokens = recorded()
    rows, out = simulate(path, "--budget", "10,25,38,50,60,100", "--policy", "lru,lfru,auto,belady")
    check(out["decode_steps"] == tokens and out["experts"] == 960, out)
    for percent in (10, 25, 38, 50, 60):
        lru, auto, best = (rows[percent, p]["hit_rate"] for p in ("lru", "auto", "belady"))
        print(f"# {percent} %: lru {lru:.3f}, auto {auto:.3f}, belady {best:.3f}")
        check(lru + (0.02 if tokens > 100 else 0) <= auto <= best, f"{percent} %: lru {lru}, auto {auto}, belady {best}")
        check(rows[percent, "lfru"] == {**rows[percent, "auto"], "policy": "lfru"}, "auto is lfru")
        row = rows[percent, "auto"]
        check(abs(row["bytes_per_token"] / out["expert_bytes"] - row["misses_per_token"]) < 1e-3, row)


def the_bound_without_knowledge_of_the_future():
    """Above the shipped policy, below Belady's where memory is short, and at 100 % everything that was there before."""
    path = TMP / "bound.trace"
    moed("trace", "make", "-o", path, "--layers", 4, "--experts", 32, "--used", 4, "--tokens", 400)
    rows, _ = simulate(path, "--budget", "25,50,100", "--policy", "auto,belady")
    r = subprocess.run([sys.executable, ROOT / "bench/cache_bound.py", path, "--budget", "25,50,100"], capture_output=True, text=True, check=False)
    bounds = {int(percent): float(age) for percent, age in re.findall(r"(\d+) %: age ([0-9.]+) %, markov -", r.stdout)}
    print("#", r.stdout.replace("\n", "; "))
    check(r.returncode == 0 and list(bounds) == [25, 50, 100], r.stdout + r.stderr)
    for percent in (25, 50):
        auto, best = (100 * rows[percent, p]["hit_rate"] for p in ("auto", "belady"))
        check(auto <= bounds[percent] + 0.05, f"{percent} %: auto {auto}, bound {bounds[percent]}")
        check(percent > 25 or bounds[percent] < best, f"{percent} %: bound {bounds[percent]}, belady {best}")
    check(abs(bounds[100] - 100 * rows[100, "auto"]["hit_rate"]) < 0.051, bounds)


def made_up_routing_has_the_published_statistics():
    path = TMP / "made.trace"
    moed("trace", "make", "-o", path, "--layers", 12, "--tokens", 1200)
    rows, out = simulate(path, "--budget", "19,25,38", "--policy", "lru,auto,belady")
    hit = lambda percent, policy: 100 * rows[percent, policy]["hit_rate"]
    print(f"# reuse {out['reuse_next']:.3f} {out['reuse_8']:.3f}, lru {hit(19, 'lru'):.1f} {hit(38, 'lru'):.1f}, auto {hit(25, 'auto'):.1f}, "
          f"belady {hit(25, 'belady'):.1f}")
    check(abs(100 * out["reuse_next"] - 45) <= 3 and abs(100 * out["reuse_8"] - 80) <= 3, out["reuse_next"])
    check(abs(hit(19, "lru") - 74.1) <= 3 and abs(hit(38, "lru") - 89.4) <= 3, rows)
    check(hit(25, "auto") >= hit(25, "belady") - 10, rows)


def budgets_links_and_times_hang_together():
    path = TMP / "small.trace"
    moed("trace", "make", "-o", path, "--layers", 4, "--experts", 32, "--used", 4, "--tokens", 200, "--expert-bytes", "1m", "--dense-bytes", "8m")
    _, out = simulate(path, "--ram", "32m,64m,1g", "--policy", "auto", "--link", "1,4", "--dram", "10")
    rows = out["results"]
    check([r["slots"] for r in rows] == [32, 32, 64, 64, 128, 128], rows)
    check(all(a["hit_rate"] == b["hit_rate"] and a["tokens_per_s"] <= b["tokens_per_s"] for a, b in zip(rows[::2], rows[1::2])), rows)
    last = rows[-1]
    check(last["stall_ms_per_token"] < 0.5 and abs(last["tokens_per_s"] / (10e9 / (24 * 2**20)) - 1) < 0.1, last)
    text = moed("simulate", path)
    check(text.count("%") >= 9 and "belady" in text, text)


def a_server_records_too():
    need_demo()
    path = TMP / "served.trace"
    with Server.demo("--trace", path, "--context", "256", "--max-running", "2") as s:
        s.complete(prompt="The capital of France is", max_tokens=16, temperature=0, ignore_eos=True)
    text = moed("trace", "show", path)
    m = re.search(r"decode: (\d+) steps", text)
    check(m and 12 <= int(m.group(1)) <= 17 and "dropped while recording: 0" in text, text)


def plans_add_up():
    need_demo()
    plan = json.loads(moed("plan", DEMO, "--ram", "1g", "--context", 512, "--max-running", 2, "--json", "-"))
    check(plan["experts"] == plan["experts_in_memory"] == 960 and plan["store_bytes"] == 0, plan)
    before = None
    for ram in ("160m", "200m", "240m"):
        plan = json.loads(moed("plan", DEMO, "--ram", ram, "--context", 512, "--max-running", 1, "--json", "-"))
        check(plan["total_bytes"] <= plan["ram_bytes"] == int(ram[:-1]) << 20 and 0 < plan["experts_in_memory"] < 960, plan)
        check(plan["random"]["tokens_per_s"] <= plan["reuse"]["tokens_per_s"] <= plan["resident_tokens_per_s"], plan)
        check(not before or plan["experts_in_memory"] > before["experts_in_memory"] and plan["reuse"]["hit_rate"] > before["reuse"]["hit_rate"], plan)
        before = plan
    text = moed("plan", DEMO, "--ram", "200m", "--context", 512, "--max-running", 1)
    check("stay in memory" in text and "the floor" in text, text)


def what_cannot_be_is_refused():
    need_demo()
    check(re.search(r"\d+ bytes of memory are missing", moed("plan", DEMO, "--ram", "50m", want=1)), "no bytes named")
    broken = TMP / "broken.trace"
    broken.write_bytes(b"MOEDTRC1" + bytes(20))
    for args in (("trace", "show", broken), ("trace", "show", DEMO), ("trace", "show", "/nonexistent"), ("simulate", broken), ("plan", PROSE),
                 ("trace", "record", PROSE, "-o", TMP / "x"), ("trace", "record", DEMO, "-o", "/nonexistent/x"),
                 ("trace", "record", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf", "-o", TMP / "x"), ("trace", "make", "-o", "/dev/full"),
                 ("trace", "make", "-o", TMP / "x", "--used", 9, "--experts", 8), ("plan", DEMO, "--kv-type", "f8")):
        err = moed(*args, want=1)
        check(err.startswith("moed ") and err.count("\n") == 1, err)
    for args in (("trace",), ("trace", "show"), ("trace", "record", DEMO), ("trace", "make"), ("simulate",), ("simulate", broken, "--budget", "0"),
                 ("simulate", broken, "--policy", "mru"), ("plan",), ("plan", DEMO, "--ram", "x"), ("plan", DEMO, "--experts", "both")):
        check("usage" in moed(*args, want=2), args)


sys.exit(run_cases(a_recording_is_shown_and_the_same_every_time, the_demo_model_replayed, the_bound_without_knowledge_of_the_future,
                   made_up_routing_has_the_published_statistics, budgets_links_and_times_hang_together, a_server_records_too, plans_add_up,
                   what_cannot_be_is_refused))
