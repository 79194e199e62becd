#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload: what share of the work that is done is still of use to somebody when more is asked for than can be done.

First a closed loop, with as many clients as the server has places, measures the saturating rate. Then an open loop: requests
arrive as a Poisson process at fractions of that rate, whatever becomes of those before them, and nobody comes back. A
request is good when it was answered whole, its first token came within --ttft and the others followed within --tpot on average; the
goodput of a rate is good requests per second of arrivals. Lengths are fixed, prompts differ, the prefix cache is off.

Both rows of the table are the same server but for its option max-wait: half of --ttft, and off (the queue is bounded by count).

  bench/goodput.py [--engine fake|demo] [--seconds 20] [--ttft 0.5] [--tpot 0.05] [--json FILE]

fake is helpers/server_fake with steps of 8 ms + 0.15 ms per token, near a 30B-A3B model on a large CPU: it takes no CPU, so the
client may share the machine. demo is the demo model."""
import argparse
import asyncio
import dataclasses
import json
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
from serving import Server, head  # noqa: E402

PARTS = (0.5, 0.8, 1.0, 1.5, 2.0)


@dataclasses.dataclass
class Load:
    places: int
    n_prompt: int
    n_output: int
    ttft_s: float
    tpot_s: float


async def call(port, load, seed):
    """(status, seconds to the first token, seconds per token after it) of one streamed request."""
    ids = random.Random(seed).choices(range(100, 200), k=load.n_prompt)
    body = json.dumps({"prompt": ids, "max_tokens": load.n_output, "ignore_eos": True, "stream": True, "temperature": 0, "cache_prompt": False,
                       "stream_options": {"include_usage": True}}).encode()
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head("POST", "/v1/completions", body, [("Connection", "close")]) + body)
        status = int((await reader.readline()).split()[1])
        first, last, whole = 0.0, 0.0, False
        while line := await reader.readline():
            if line.startswith(b"data: {") and b'"choices":[{' in line:
                last = time.monotonic()
                first = first or last
            whole |= line.startswith(b"data: [DONE]")
    finally:
        writer.close()
    if status != 200 or not whole:
        return (status if status != 200 else 0), 0.0, 0.0
    return status, first - start, (last - first) / max(load.n_output - 1, 1)


async def closed_loop(port, load, seconds):
    """Requests per second with every place taken; the first and the last round do not count."""
    ends, stop = [], time.monotonic() + seconds

    async def client(k):
        n = 0
        while time.monotonic() < stop:
            status, _, _ = await call(port, load, k * 100003 + n)
            assert status == 200, status
            ends.append(time.monotonic())
            n += 1

    await asyncio.gather(*(client(k) for k in range(load.places)))
    ends = sorted(ends)[load.places - 1:-load.places]
    return (len(ends) - 1) / (ends[-1] - ends[0])


async def open_loop(port, load, rate, seconds, seed):
    """The results of all that arrived."""
    rng, calls, start, at = random.Random(seed), [], time.monotonic(), 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0, start + at - time.monotonic()))
        calls.append(asyncio.create_task(call(port, load, seed * 1000003 + len(calls))))
    return await asyncio.gather(*calls)


def percentile(values, p):
    return sorted(values)[min(int(len(values) * p), len(values) - 1)] if values else float("nan")


def judge(results, load, rate, seconds):
    served = [(ttft, tpot) for status, ttft, tpot in results if status == 200]
    good = sum(ttft <= load.ttft_s and tpot <= load.tpot_s for ttft, tpot in served)
    return {"rate": rate, "arrived": len(results), "served": len(served), "refused": sum(status == 429 for status, _, _ in results), "good": good,
            "goodput": good / seconds, "ttft_p50": percentile([a for a, _ in served], 0.5), "ttft_p99": percentile([a for a, _ in served], 0.99),
            "tpot_p99": percentile([b for _, b in served], 0.99)}


def start(engine, load, max_wait_ms):
    flags = ["--max-running", str(load.places), "--prefix-cache", "off", "--batch-tokens", "256", "--max-wait", f"{max_wait_ms}ms", "--max-queued", "512"]
    if engine == "demo":
        return Server.demo(*flags, "--context", "512", "--kv-tokens", str(512 * load.places))
    return Server.fake(*flags, step_us=8000, token_us=150)


def measure(engine, load, seconds, max_wait_ms, parts, saturating=None):
    """A server from its start: (saturating rate, a row per part of it)."""
    rows = []
    with start(engine, load, max_wait_ms) as s:
        measured = asyncio.run(closed_loop(s.port, load, max(seconds / 2, 2)))
        saturating = saturating or measured
        for k, part in enumerate(parts):
            rows.append(judge(asyncio.run(open_loop(s.port, load, part * saturating, seconds, k + 1)), load, part * saturating, seconds))
            s.wait_idle(120)
    return saturating, rows


def ratio(rows):
    return rows[-1]["goodput"] / max(r["goodput"] for r in rows)


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--engine", choices=("fake", "demo"), default="fake")
    a.add_argument("--seconds", type=float, default=20, help="of arrivals, for each rate")
    a.add_argument("--places", type=int, default=16)
    a.add_argument("--ttft", type=float, default=0.5)
    a.add_argument("--tpot", type=float, default=0.05)
    a.add_argument("--prompt", type=int, default=100)
    a.add_argument("--output", type=int, default=32)
    a.add_argument("--json")
    o = a.parse_args()
    load, report, saturating = Load(o.places, o.prompt, o.output, o.ttft, o.tpot), {}, None
    print(f"{o.engine}: {o.prompt} + {o.output} tokens, {o.places} places; good: first token within {o.ttft:g} s, then {o.tpot * 1000:g} ms per token")
    for name, wait_ms in (("max-wait " + f"{o.ttft / 2:g} s", int(o.ttft * 500)), ("max-wait off", 86400000)):
        saturating, rows = measure(o.engine, load, o.seconds, wait_ms, PARTS, saturating)
        print(f"\n{name}; saturating rate {saturating:.2f} requests/s\n\n| rate | of saturating | arrived | refused | good | goodput /s | TTFT p50 | TTFT p99 | TPOT p99 |\n"
              "|---|---|---|---|---|---|---|---|---|")
        for part, r in zip(PARTS, rows):
            print(f"| {r['rate']:.1f} | {part:g} | {r['arrived']} | {r['refused']} | {r['good']} | {r['goodput']:.2f} | {r['ttft_p50']:.2f} s | "
                  f"{r['ttft_p99']:.2f} s | {1e3 * r['tpot_p99']:.0f} ms |")
        print(f"\nat twice the saturating rate {100 * ratio(rows):.0f} % of the peak")
        report[name] = {"saturating": saturating, "rows": rows, "ratio": ratio(rows)}
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
