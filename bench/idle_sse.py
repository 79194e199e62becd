#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Thousands of streams that wait behind one long prefill: memory of the server per stream, punctuality of its keep-alive comments,
and how long /health takes meanwhile, asked by a process of its own.

Usage: bench/idle_sse.py [--streams 10000] [--seconds 20] [--ping 5] [--server fake|demo]
fake: an engine that sits in one step. demo: the demo model computes a long prompt on every CPU. Needs two descriptors' worth of
ulimit -n, one here and one in the server. Prints one line per number and PASS or FAIL for the three promises."""
import argparse
import json
import pathlib
import resource
import select
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
from serving import Server, head  # noqa: E402

MAX_BYTES, MAX_HEALTH_S = 16 * 1024, 0.005
LATE_S = 0.5  # a comment may be this much after its time: ticks of 100 ms and a busy machine
HEALTH_GAP_S = 0.005

PROBE = r"""
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("ready", flush=True)
end = time.perf_counter() + float(sys.argv[2])
took = []
while time.perf_counter() < end:
    t = time.perf_counter()
    s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    took.append(time.perf_counter() - t)
    time.sleep(float(sys.argv[3]))
print(*took)
"""


def post(fields, path="/v1/chat/completions"):
    body = json.dumps(fields).encode()
    return head("POST", path, body, [("Content-Type", "application/json")]) + body


def rss(pid):
    return next(int(line.split()[1]) * 1024 for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))


class Streams:
    """Open streams and when each was last heard of."""

    def __init__(self, port):
        self.port, self.poll, self.by_fd, self.heard = port, select.epoll(), {}, {}
        self.n_comments, self.gaps, self.lost = 0, [], 0

    def open(self, n, request, per_s):
        t0 = time.monotonic()
        for i in range(n):
            s = socket.create_connection(("127.0.0.1", self.port))
            s.sendall(request)
            s.setblocking(False)
            self.by_fd[s.fileno()] = s
            self.poll.register(s.fileno(), select.EPOLLIN)
            if i % 64 == 63:
                self.read(max(0, t0 + i / per_s - time.monotonic()))
        return self

    def read(self, seconds):
        end = time.monotonic() + seconds
        while True:
            for fd, _ in self.poll.poll(max(0, end - time.monotonic()), 1024):
                data = self.by_fd[fd].recv(65536)
                now = time.monotonic()
                if not data or b'"error"' in data or b" 200 OK" not in data and b": ping" not in data:
                    self.lost += 1
                    self.poll.unregister(fd)
                    continue
                if fd in self.heard:
                    self.gaps.append(now - self.heard[fd])
                self.n_comments += data.count(b": ping\n\n")
                self.heard[fd] = now
            if time.monotonic() >= end:
                return


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def start(args):
    flags = ("--max-connections", args.streams + 64, "--max-queued", args.streams + 64, "--sse-ping", f"{args.ping}s", "--prefix-cache", "off")
    if args.server == "fake":
        return Server.fake(*flags, step_us=10**9, pages=65536), {"messages": [{"role": "user", "content": "wait"}], "max_tokens": 8}
    words = "The quick brown fox jumps over the lazy dog. " * 2600
    return Server.demo(*flags, "--context", "32768", "--kv-tokens", "40000", "--max-running", "2"), {"messages": [{"role": "user", "content": words}], "max_tokens": 8}


def measure(args, server, long):
    blocker = Streams(server.port).open(1, post({**long, "stream": True}), 1)
    time.sleep(1)
    before = rss(server.process.pid)
    idle = Streams(server.port).open(args.streams, post({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True}), args.streams / args.ping / 0.8)
    idle.read(1.5 * args.ping)  # every stream has begun
    begun, per_stream = len(idle.heard), (rss(server.process.pid) - before) / args.streams
    idle.gaps, idle.n_comments = [], 0
    probe = subprocess.Popen([sys.executable, "-c", PROBE, str(server.port), str(args.seconds), str(HEALTH_GAP_S)], stdout=subprocess.PIPE, text=True)
    probe.stdout.readline()
    idle.read(args.seconds + 0.5)
    took = [float(x) for x in probe.stdout.read().split()]
    waiting = server.metrics()
    return begun, per_stream, idle, took, waiting["moed_requests_queued"] + waiting["moed_requests_running"], blocker


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--streams", type=int, default=10000)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--ping", type=int, default=5)
    p.add_argument("--server", choices=("fake", "demo"), default="fake")
    args = p.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server, long = start(args)
    try:
        begun, per_stream, idle, took, waiting, _ = measure(args, server, long)
    finally:
        server.process.kill()  # a blocked engine does not drain
        server.process.wait()
        server.cleanup()
    late = [g - args.ping for g in idle.gaps]
    print(f"streams begun               {begun} of {args.streams}; lost {idle.lost}; requests waiting or running at the end {waiting:.0f}")
    print(f"server memory per stream    {per_stream:.0f} bytes")
    print(f"/health, {len(took)} times        median {1e3 * at(took, 0.5):.2f} ms, p99 {1e3 * at(took, 0.99):.2f} ms, max {1e3 * max(took):.2f} ms")
    print(f"comments, {len(late)}           lateness median {at(late, 0.5):.3f} s, p99 {at(late, 0.99):.3f} s, max {max(late):.3f} s")
    ok = True
    for name, good in (("all_streams_wait", begun == args.streams and idle.lost == 0 and waiting >= args.streams), ("memory", per_stream < MAX_BYTES),
                       ("health", at(took, 0.99) < MAX_HEALTH_S), ("keep_alives", -0.2 < min(late) and at(late, 0.999) < LATE_S)):
        print(f"{'PASS' if good else 'FAIL'} {name}")
        ok &= good
    sys.exit(not ok)


if __name__ == "__main__":
    main()
