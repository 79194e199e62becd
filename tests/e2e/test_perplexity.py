#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the engine predicts English prose: against a peer on the same file, across instruction sets, and rounded against
unrounded activations. The whole text, all formats: tools/make_formats.py and tests/fixtures/make_perplexity.py.

All levels do the same operations in the same order, so theirs must be equal to the last bit. The peer's order is another, and
rounding activations is chaotic (a last bit moves an 8-bit code): two orders of float sums differ by some 0.3 % per window of
512 tokens, without a sign, and by 0.03 % over eight windows. Unrounded they agree to 0.01 % at once, so the peer is met
there, and rounded it is held to a bound over four windows."""
import functools
import json
import math
import subprocess
import sys

from serving import BUILD, DEMO, ROOT, SANITIZED, Skip, check, run_cases

DENSE = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW, WINDOWS, SHORT, SHORTER = 512, 2, 128, 32
PEER = json.loads((ROOT / "tests/data/perplexity_peer.json").read_text())


@functools.cache
def perplexity(model, windows, *flags, window=WINDOW):
    """(nll of each window, the whole result). Instrumented builds look for bad accesses, not at statistics."""
    if not model.exists():
        raise AssertionError(f"no {model.relative_to(ROOT)}; tools/make_demo.py makes it")
    cmd = [BUILD / "moed", "perplexity", model, ROOT / "tests/data/prose.txt", "--tokens", windows * window,
           "--context", window, "--json", "-", *flags]
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, check=False, timeout=300)
    check(r.returncode == 0, r.stderr[-2000:])
    out = json.loads(r.stdout)
    check(out["counted"] == windows * (window - 1) and len(out["window_nll"]) == windows, r.stdout)
    check(abs(math.log(out["perplexity"]) - out["mean_nll"]) < 1e-5, r.stdout)
    return out["window_nll"], out


def close(what, a, b, bound, window=WINDOW):
    """a and b: sums over the same windows."""
    got = math.exp((sum(a) - sum(b)) / (len(a) * (window - 1)))
    print(f"# {what}: perplexity ratio {got:.5f}")
    check(abs(got - 1) <= bound, f"{what}: perplexity ratio {got:.5f}, expected 1 +- {bound}")


@functools.cache
def level_names():
    names = []
    for level in ("avx2", "avxvnni", "avx512", "avx512bf16", "neon"):
        r = subprocess.run([BUILD / "moed", "perplexity", DENSE, ROOT / "tests/data/english.txt", "--tokens", "2", "--cpu-level", level],
                           capture_output=True, check=False, timeout=60)
        if r.returncode == 0:
            names.append(level)
    return names


def only_release():
    if SANITIZED:
        raise Skip("statistics need an uninstrumented build")


def without_rounding_equals_the_peer_without_rounding():
    """Both compute in float from the same weights: only the order of sums and the f16 KV differ."""
    only_release()
    peer = PEER[DENSE.name]["window_nll_f32"]
    ours, _ = perplexity(DENSE, len(peer), "--activations", "f32")
    close("moed f32 over llama.cpp F32", ours, peer, 5e-4)


def rounded_is_as_good_as_the_peer_rounded():
    only_release()
    peer = PEER[DENSE.name]["window_nll"][:4]
    ours, _ = perplexity(DENSE, len(peer))
    close("moed over llama.cpp, the file as it is", ours, peer, 5e-3)


def rounding_costs_little():
    only_release()
    ours, _ = perplexity(DENSE, 4)
    exact, _ = perplexity(DENSE, 4, "--activations", "f32")
    close("rounded over unrounded activations", ours, exact, 1.5e-2)


def moe_equals_the_dense_model_it_was_cut_from():
    only_release()
    dense, _ = perplexity(DENSE, WINDOWS, "--activations", "f32")
    moe, _ = perplexity(DEMO, WINDOWS, "--activations", "f32")
    close("MoE over dense, unrounded", moe, dense, 5e-4)


def equal_levels(model, windows, levels, *flags, window=WINDOW):
    """Every level against the first, to the last bit."""
    want = None
    for level in levels:
        ours, out = perplexity(model, windows, *flags, "--cpu-level", level, window=window)
        check(out["cpu_level"] == level, out)
        want = want or ours
        check(ours == want, f"{level}: {ours}, {levels[0]}: {want}")


def levels_agree_unrounded():
    """Scalar is slow, so the text is short; that it suffices, see bit equality of logits in tests/unit/engine_levels.c."""
    only_release()
    equal_levels(DENSE, 1, ["scalar", *level_names()], "--activations", "f32", window=SHORTER)


def levels_agree_rounded():
    only_release()
    equal_levels(DENSE, 1, ["scalar", *level_names()], window=SHORT)
    equal_levels(DEMO, 4, level_names())


def bad_input_is_refused():
    text, empty = ROOT / "tests/data/english.txt", "/dev/null"
    for code, *args in ((2,), (2, DEMO), (2, DEMO, text, "--context", "1"), (2, DEMO, text, "--activations", "q4"), (2, DEMO, text, text),
                        (2, DEMO, text, "--tokens"), (1, "/nonexistent", text), (1, text, text)):
        r = subprocess.run([BUILD / "moed", "perplexity", *map(str, args)], capture_output=True, text=True, check=False, timeout=60)
        check(r.returncode == code and "moed" in r.stderr and not r.stdout, f"{args}: {r.returncode} {r.stderr[:300]}")
    if DEMO.exists():
        for args in ((DEMO, empty), (DEMO, "/nonexistent"), (DEMO, text, "--cpu-level", "avx9"), (DEMO, text, "--kv-type", "f8")):
            r = subprocess.run([BUILD / "moed", "perplexity", *map(str, args)], capture_output=True, text=True, check=False, timeout=60)
            check(r.returncode == 1 and r.stderr.count("\n") == 1, f"{args}: {r.returncode} {r.stderr[:300]}")


sys.exit(run_cases(bad_input_is_refused, without_rounding_equals_the_peer_without_rounding, rounded_is_as_good_as_the_peer_rounded,
                   rounding_costs_little, moe_equals_the_dense_model_it_was_cut_from, levels_agree_unrounded,
                   levels_agree_rounded))
