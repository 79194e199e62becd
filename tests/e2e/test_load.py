# SPDX-License-Identifier: Apache-2.0
"""500 streaming clients at once, a third of which hang up at a random moment: every stream that stays gets its whole
text, /health keeps answering in time, and afterwards nothing is left: heap blocks, descriptors, KV pages, memory.

The first wave brings the process to its working size; the waves after it must not add to that."""
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time

from serving import SANITIZED, Server, Skip, check, head, join_stream, parse_events, run_cases

N_CLIENTS = 500
RAMP_S = 0.5
RSS_SLACK = 8 << 20  # malloc keeps what it got in other shapes; a leak of one stream in a wave of 500 is more
HEALTH_P99_S = 0.010
FOREIGN_SHARE = 0.25  # above it a missed deadline says nothing about this server


async def one_client(port, fields, hang_up_after):
    """The parsed events, or None when this client hangs up after that many bytes of response (-1: before any)."""
    await asyncio.sleep(random.uniform(0, RAMP_S))
    body = json.dumps({**fields, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head("POST", "/v1/completions", body, [("Connection", "close")]) + body)
        await writer.drain()
        data = b""
        while hang_up_after is None or len(data) <= hang_up_after:
            got = await reader.read(1 << 16)
            data += got
            if not got:
                return events_of(data)
        return None
    finally:
        writer.close()


def events_of(data):
    top, _, rest = data.partition(b"\r\n\r\n")
    check(top.startswith(b"HTTP/1.1 200 "), lambda: data[:400])
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        body, rest = body + rest[:n], rest[n + 2:]
    return parse_events(body)


def text_of(events):
    check(events and "error" not in events[-1], lambda: events[-1:])
    return [c["text"] for _, c in sorted(join_stream(events).items())]


async def wave(port, jobs, want, rng):
    """All clients at once; returns how many finished."""
    chosen = [rng.randrange(len(jobs)) for _ in range(N_CLIENTS)]
    cut = [rng.choice([-1, 0, rng.randrange(4000)]) if rng.random() < 0.35 else None for _ in chosen]
    results = await asyncio.gather(*(one_client(port, jobs[k], c) for k, c in zip(chosen, cut)), return_exceptions=True)
    done = 0
    for k, c, r in zip(chosen, cut, results):
        check(not isinstance(r, Exception) or c is not None, lambda r=r: f"a client that stayed: {r!r}")
        if isinstance(r, list):
            check(text_of(r) == want[k], lambda k=k, r=r: f"text in the crowd {text_of(r)!r}, alone {want[k]!r}")
            done += 1
    return done


# A process of its own, so that the load's event loop does not add to what it measures.
PROBE = r"""
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("ready", flush=True)
while True:
    t = time.perf_counter()
    s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    print(time.perf_counter() - t, flush=True)
    time.sleep(0.005)
"""


def busy_s():
    """CPU seconds this machine has spent working, on all CPUs."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def p99(values):
    return sorted(values)[int(len(values) * 0.99)]


def crowd(s, jobs, waves):
    """The load, a process that asks /health meanwhile, and what is left afterwards."""
    rng = random.Random(1)
    want = [[c["text"] for c in s.complete(**f)["choices"]] for f in jobs]
    asyncio.run(wave(s.port, jobs, want, rng))
    before = s.wait_idle(120)
    probe = subprocess.Popen([sys.executable, "-c", PROBE, str(s.port)], stdout=subprocess.PIPE, text=True)
    probe.stdout.readline()
    pids = [s.process.pid, probe.pid, os.getpid()]
    t0, done, busy0, ours0 = time.monotonic(), 0, busy_s(), sum(map(process_s, pids))
    for _ in range(waves):
        done += asyncio.run(wave(s.port, jobs, want, rng))
        s.wait_idle(120)
    seconds = time.monotonic() - t0
    foreign = (busy_s() - busy0 - sum(map(process_s, pids)) + ours0) / seconds / os.cpu_count()
    probe.terminate()
    took = [float(x) for x in probe.stdout.read().splitlines() if x[:2] in ("0.", "1.")]
    time.sleep(0.3)  # closed connections leave with the loop's next round
    after = s.wait_idle(120)
    check(done > waves * N_CLIENTS // 2, f"{done} streams finished")
    print(f"# {done} of {waves * N_CLIENTS} streams finished in {seconds:.1f} s; /health asked {len(took)} times: median {1e3 * statistics.median(took):.2f} ms, "
          f"p99 {1e3 * p99(took):.2f} ms, max {1e3 * max(took):.2f} ms; other processes took {100 * foreign:.0f} % of the CPUs; RSS "
          f"{before['process_resident_memory_bytes'] / 2**20:.1f} -> {after['process_resident_memory_bytes'] / 2**20:.1f} MiB, "
          f"heap blocks {before['moed_memory_blocks']:.0f} -> {after['moed_memory_blocks']:.0f}")
    nothing_is_left(before, after)
    return p99(took), foreign


def nothing_is_left(before, after):
    check(after["process_open_fds"] == before["process_open_fds"], lambda: f"descriptors: {before['process_open_fds']} before, {after['process_open_fds']} after")
    check(after["moed_kv_pages_free"] == before["moed_kv_pages_free"] == after["moed_kv_pages"], lambda: f"KV pages: {after['moed_kv_pages_free']} free of {after['moed_kv_pages']}")
    check(after["moed_memory_blocks"] <= before["moed_memory_blocks"], lambda: f"heap blocks: {before['moed_memory_blocks']} before, {after['moed_memory_blocks']} after")
    grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    check(SANITIZED or grown <= RSS_SLACK, f"resident memory grew by {grown / 2**20:.1f} MiB")
    n = sum(after[f'moed_requests_finished_total{{reason="{r}"}}'] for r in ("stop", "length", "cancelled", "error"))
    check(n == after["moed_requests_submitted_total"], "a request without an end")


P99 = {}


def fake_engine_crowd():
    jobs = [{"prompt": f"prompt {i} " * (1 + 5 * i), "max_tokens": 10 + 10 * i, "temperature": 0, "stop": ["~~", "zz"], "n": 1 + i % 2} for i in range(8)]
    with Server.fake("--prefix-cache", "off", "--max-queued", "1024", "--max-running", "64", step_us=2000, pages=2048) as s:
        P99["fake"] = crowd(s, jobs, 1 if SANITIZED else 6)


def demo_crowd():
    jobs = [{"prompt": p, "max_tokens": 4, "temperature": 0} for p in ("The capital of France is", "Once upon a time", "2 + 2 =", "def main():", "Dear Sir,", "In 1969")]
    with Server.demo("--prefix-cache", "off", "--context", "256", "--kv-tokens", "8192", "--max-queued", "1024") as s:
        P99["demo"] = crowd(s, jobs, 1 if SANITIZED else 2)


def in_time(name):
    if name not in P99:
        raise Skip("no measurement")
    health, foreign = P99[name]
    if SANITIZED:
        raise Skip("an instrumented build is not timed")
    if health >= HEALTH_P99_S and foreign > FOREIGN_SHARE:
        raise Skip(f"other processes took {100 * foreign:.0f} % of the CPUs meanwhile; /health p99 was {1e3 * health:.1f} ms")
    check(health < HEALTH_P99_S, f"/health p99 {1e3 * health:.2f} ms")


def fake_engine_health_in_time():
    in_time("fake")


def demo_health_in_time():
    in_time("demo")


sys.exit(run_cases(fake_engine_crowd, fake_engine_health_in_time, demo_crowd, demo_health_in_time))
