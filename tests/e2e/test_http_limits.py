#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP transport where time and limits count, each on a server of its own: timeouts, slow readers, full tables, shutdown."""
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from http_cases import GET, chunked, get, post
from http_rig import BUILD, SLOW, Server, check_error, completion, one, read_all, read_one, read_until, run, split_responses


# ---- time ----

def test_timeouts():
    flags = ("--header-timeout", "300ms", "--body-timeout", "400ms", "--keepalive-timeout", "500ms")
    with Server(*flags, own=("step-us=1000",)) as server:
        def closes(s, low, high):
            start = time.monotonic()
            data = read_all(s)
            assert low <= time.monotonic() - start <= high * SLOW, f"closed after {time.monotonic() - start:.2f} s"
            return split_responses(data)
        def trickle(s, data, limit):
            start = time.monotonic()
            for i in range(len(data)):
                s.sendall(data[i:i + 1])
                if select.select([s], [], [], 0.05)[0]:
                    break
            assert time.monotonic() - start < limit * SLOW, "a slow request was let through"
            check_error(split_responses(read_all(s))[0], 408)
        with server.connect() as s:  # nothing at all: closed without a word
            assert closes(s, 0.25, 1) == []
        with server.connect() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHo")
            check_error(closes(s, 0.25, 1)[0], 408)
        with server.connect() as s:  # trickling the head does not renew the time
            trickle(s, GET[:-1], 2)
        with server.connect() as s:  # second head on the same connection
            s.sendall(GET)
            read_one(s)
            time.sleep(0.2)
            s.sendall(b"GET /he")
            check_error(closes(s, 0.25, 1)[0], 408)
        with server.connect() as s:  # idle keep-alive
            s.sendall(GET)
            read_one(s)
            assert closes(s, 0.4, 1.2) == []
        with server.connect() as s:  # body stops
            s.sendall(post(b"Content-Length: 100\r\n", b"{"))
            check_error(closes(s, 0.35, 1.2)[0], 408)
        with server.connect() as s:  # chunked body stops
            s.sendall(chunked(b"5\r\nhe"))
            check_error(closes(s, 0.35, 1.2)[0], 408)
        with server.connect() as s:  # body trickles: never idle, but under the minimum rate
            s.sendall(post(b"Content-Length: 1000\r\n"))
            trickle(s, b" " * 100, 2)
        for phase, at_least in (("head", 3), ("body", 3), ("idle", 2)):
            assert server.metric('moed_http_timeouts_total{phase="%s"}' % phase) >= at_least, phase


def test_silent_stream_is_pinged():
    """A long prefill or a slow step: comments keep proxies from cutting the stream."""
    with Server("--sse-ping", "100ms", own=("step-us=700000",)) as server:
        for version in (b"HTTP/1.1", b"HTTP/1.0"):
            _, _, body, framing = one(server, completion(version=version, head=b"Connection: close\r\n", stream=True, max_tokens=2))
            assert body.count(b": ping\n\n") >= 3, body
            events = [e for e in body.split(b"\n\n") if e and not e.startswith(b":")]
            assert all(e.startswith(b"data: ") for e in events) and events[-1] == b"data: [DONE]", body


def test_waiting_streams_are_pinged():
    """300 streams queued behind a long step begin and are kept alive in time; what fails by then is an event; a whole response still waits for its status."""
    n, flags = 300, ("--sse-ping", "200ms", "--max-connections", "400", "--drain-timeout", "100ms")
    with Server(*flags, own=("step-us=2500000",)) as server, contextlib.ExitStack() as stack:
        open_ = [stack.enter_context(server.connect(timeout=20)) for _ in range(n)]
        for s in open_:
            s.sendall(completion(stream=True, max_tokens=5))
        whole = stack.enter_context(server.connect(timeout=20))
        whole.sendall(completion(max_tokens=5))
        start, gaps = time.monotonic(), []
        for s in open_[::10]:
            read_until(s, b": ping")
        for _ in range(4):
            last = time.monotonic()
            read_until(open_[-1], b": ping")
            gaps.append(time.monotonic() - last)
        assert time.monotonic() - start < 2.2 * SLOW and 0.1 < max(gaps) < 0.5 * SLOW, gaps
        assert one(server, get(b"Connection: close\r\n"))[0] == 200
        assert not select.select([whole], [], [], 0)[0], "a response began without its status"
        server.child.send_signal(signal.SIGTERM)
        tail = read_all(open_[-1])
        assert b'"error"' in tail and tail.endswith(b"0\r\n\r\n"), tail[-300:]
        check_error(split_responses(read_all(whole))[0], 503)
    assert server.code == 1, server.code


def test_slow_reader_is_cancelled():
    """A client that stops reading: over max-output its request is cancelled, everybody else goes on."""
    with Server("--max-output", "64kb", own=("step-us=0", "ctx=8192")) as server:
        s = server.connect(rcvbuf=4096)
        s.sendall(completion(stream=True, max_tokens=8000, n=8))
        server.wait_metric("moed_http_slow_readers_total", lambda v: v == 1, 20)
        server.wait_metric("moed_requests_running", lambda v: v == 0)
        assert one(server, completion(head=b"Connection: close\r\n"))[0] == 200
        s.close()


def test_write_stall():
    """Output waits but stays under the cap: the write timeout ends it."""
    with Server("--max-output", "1gb", "--write-timeout", "500ms", own=("step-us=0", "ctx=8192")) as server:
        s = server.connect(rcvbuf=4096)
        s.sendall(completion(stream=True, max_tokens=8000, n=8))
        server.wait_metric('moed_http_timeouts_total{phase="write"}', lambda v: v == 1, 20)
        server.wait_metric("moed_requests_running", lambda v: v == 0)
        s.close()


# ---- limits ----

def test_connection_limit():
    """At the limit: idle connections make room, busy ones do not, nobody is refused, nothing spins."""
    with Server("--max-connections", "8", own=("step-us=20000",)) as server:
        idle = [server.connect() for _ in range(20)]  # more than fit: the oldest idle ones go
        assert one(server, get(b"Connection: close\r\n"))[0] == 200
        assert server.metric("moed_http_connections_evicted_total") >= 12
        for s in idle:
            s.close()
        busy = []
        for _ in range(8):
            s = server.connect()
            s.sendall(completion(stream=True, max_tokens=60))
            busy.append(s)
        for s in busy:
            read_until(s, b"data: {")
        waiting = server.connect()
        waiting.sendall(get(b"Connection: close\r\n"))
        waiting.settimeout(0.3)
        try:
            assert waiting.recv(1) == b"never", "a ninth connection was served"
        except TimeoutError:
            pass
        def cpu():
            with open(f"/proc/{server.child.pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        start = cpu()
        time.sleep(0.5)
        assert cpu() - start < 0.25, "busy waiting at the connection limit"
        waiting.settimeout(20)
        assert split_responses(read_all(waiting))[0][0] == 200, "served once a place is free"
        waiting.close()
        for s in busy:
            s.close()


def test_descriptor_limit():
    """A small RLIMIT_NOFILE lowers the limit instead of failing accepts."""
    with Server(own=("step-us=1000",), limits=(64, 64)) as server:
        held = [server.connect() for _ in range(80)]
        assert one(server, get(b"Connection: close\r\n"))[0] == 200
        assert 0 < server.metric("moed_http_connections_max") < 64
        for s in held:
            s.close()
    assert "max-connections lowered" in server.err


def test_bodies_share_a_limit():
    """Many half-sent bodies cannot take all memory."""
    with Server("--max-body", "64kb", own=("step-us=1000",)) as server:
        open_ = []
        statuses = []
        for _ in range(40):
            s = server.connect(timeout=5)
            s.sendall(post(b"Content-Length: 65536\r\n", b" " * 60000))
            open_.append(s)
        server.wait_metric('moed_http_requests_total{route="/v1/completions",code="503"}', lambda v: v >= 20)
        for s in open_:
            s.settimeout(0.02 * SLOW)
            with contextlib.suppress(TimeoutError):
                statuses.append(int(s.recv(4096).split(b" ")[1]))
        assert 10 <= len(statuses) <= 30 and set(statuses) == {503}, statuses
        for s in open_:
            s.close()
        server.wait_metric('moed_http_connections{state="body"}', lambda v: v == 0)
        assert one(server, completion(head=b"Connection: close\r\n"))[0] == 200


# ---- shutdown ----

def test_drain():
    """SIGTERM: running requests finish, /health says 503, new work is refused, idle connections close, exit 0."""
    with Server(own=("step-us=20000",)) as server:
        idle = server.connect()
        idle.sendall(GET)
        read_one(idle)
        with server.connect(timeout=20) as stream, server.connect(timeout=20) as whole:
            stream.sendall(completion(stream=True, max_tokens=60))
            whole.sendall(completion(max_tokens=60))
            read_until(stream, b"data: {")
            server.child.send_signal(signal.SIGTERM)
            assert idle.recv(100) == b"", "an idle connection stayed open"
            time.sleep(0.1)
            status, headers, body, _ = one(server, GET)
            assert status == 503 and json.loads(body) == {"status": "draining"} and headers["connection"] == "close"
            refused = one(server, completion())
            check_error(refused, 503)
            assert int(refused[1]["retry-after"]) > 0 and refused[1]["connection"] == "close"
            tail = read_all(stream)
            assert tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "the stream was cut"
            answer = split_responses(read_all(whole))[0]
            assert answer[0] == 200 and answer[1].get("connection") is None or answer[1]["connection"] == "close"
        idle.close()
    assert server.code == 0, (server.code, server.err)


def test_drain_in_every_phase():
    """SIGTERM finds connections in every phase: what was asked completely is answered, half a request is not waited for longer than its
    time, and the process ends by itself with 0."""
    flags = ("--max-running", "2", "--header-timeout", "1s", "--body-timeout", "1s", "--prefix-cache", "off", "--batch-tokens", "16")
    with Server(*flags, own=("step-us=10000",)) as server, contextlib.ExitStack() as stack:
        def start(data, mark=None):
            s = stack.enter_context(server.connect(timeout=20))
            s.sendall(data)
            if mark:
                read_until(s, mark)
            return s
        body = completion(max_tokens=3)
        connected, half_head, half_body = start(b""), start(body[:20]), start(body[:-5])
        streaming = start(completion(stream=True, max_tokens=60), b"data: {")
        prefill = start(completion(prompt="p" * 600, max_tokens=5))
        server.wait_metric("moed_requests_running", lambda v: v == 2)
        queued, queued_stream = start(completion(max_tokens=5)), start(completion(stream=True, max_tokens=5))
        server.wait_metric("moed_requests_queued", lambda v: v == 2)
        server.child.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            late = start(completion(max_tokens=3))  # while draining: refused, or no longer accepted
            check_error(split_responses(read_all(late))[0], 503)
        assert read_all(connected) == b"", "a connection without a request was answered"
        for s in (half_head, half_body):
            half = split_responses(read_all(s))
            assert [r[0] for r in half] in ([], [408], [503]), half
        for s in (streaming, queued_stream):
            assert read_all(s).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "a stream was cut"
        for s in (prefill, queued):
            assert split_responses(read_all(s))[0][0] == 200
        server.child.wait(10 * SLOW)
    assert server.code == 0, (server.code, server.err)


def test_drain_when_idle():
    with Server() as server:
        start = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        server.child.wait(10 * SLOW)
        assert time.monotonic() - start < 1 * SLOW
    assert server.code == 0


def test_drain_timeout():
    """What does not finish in time is cancelled and told so; the exit code says that it was cut."""
    with Server("--drain-timeout", "300ms", own=("step-us=20000",)) as server:
        with server.connect() as stream, server.connect() as whole:
            stream.sendall(completion(stream=True, max_tokens=1000))
            whole.sendall(completion(max_tokens=1000))
            read_until(stream, b"data: {")
            start = time.monotonic()
            server.child.send_signal(signal.SIGTERM)
            tail = read_all(stream)
            assert b'"error"' in tail and tail.endswith(b"0\r\n\r\n"), tail[-300:]
            check_error(split_responses(read_all(whole))[0], 503)
            assert 0.25 < time.monotonic() - start < 2 * SLOW
    assert server.code == 1, server.code


def test_second_signal():
    with Server("--drain-timeout", "30s", own=("step-us=20000",)) as server:
        with server.connect() as stream:
            stream.sendall(completion(stream=True, max_tokens=1000))
            read_until(stream, b"data: {")
            server.child.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            start = time.monotonic()
            server.child.send_signal(signal.SIGINT)
            server.child.wait(10 * SLOW)
            assert time.monotonic() - start < 1 * SLOW
    assert server.code == 1, server.code


def test_engine_failure():
    """The engine fails: requests in flight get 500, the process ends non-zero for its supervisor."""
    with Server(own=("step-us=5000", "fail-at=20"), leak_check=False) as server:
        with server.connect() as stream, server.connect() as whole:
            stream.sendall(completion(stream=True, max_tokens=1000))
            whole.sendall(completion(max_tokens=1000))
            tail = read_all(stream)
            assert b'"error"' in tail and tail.endswith(b"0\r\n\r\n"), tail[-300:]
            check_error(split_responses(read_all(whole))[0], 500)
        server.child.wait(10 * SLOW)
    assert server.code == 1, server.code


def test_port_taken():
    moed = os.path.join(BUILD, "moed")
    if not os.path.exists(moed):
        raise AssertionError(f"{moed} is not built")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        run = subprocess.run([moed, "serve", "--model", "/nonexistent.gguf", "--port", str(port)], capture_output=True, timeout=20)
        assert run.returncode == 75, (run.returncode, run.stderr)
        assert b"--port" in run.stderr and str(port).encode() in run.stderr and run.stderr.count(b"\n") == 1, run.stderr


def test_commands():
    """Every mistake is one line on stderr and its documented exit code."""
    moed = os.path.join(BUILD, "moed")

    def run(*args, code, text=b""):
        r = subprocess.run([moed, *args], capture_output=True, timeout=20, env={})
        assert r.returncode == code and text in r.stdout + r.stderr, (args, r.returncode, r.stdout[-300:], r.stderr[-300:])
        if code:
            assert r.stderr.startswith(b"moed: ") and r.stderr.count(b"\n") == 1, r.stderr
    run("version", code=0, text=b"moed ")
    run("help", code=0, text=b"Exit codes")
    run("--help", code=0, text=b"--port")
    run("dance", code=2, text=b"dance")
    run("inspect", code=2)
    run("inspect", "/nonexistent", code=1, text=b"/nonexistent")
    run("serve", code=78, text=b"model")
    run("serve", "--prot", "1", code=78, text=b"port")
    run("--model", "/nonexistent", "--port", "0", code=1, text=b"/nonexistent")
    run("--model", "/nonexistent", "--host", "999.1.1.1", code=78, text=b"999.1.1.1")
    run("--model", "/nonexistent", "--cpus", "3-1", code=78, text=b"cpus")
    run("--model", "/nonexistent", "--port", "0", "--cpus", "0,2-3", code=1, text=b"/nonexistent")
    run("healthcheck", "--port", "1", code=1, text=b"port 1")
    with Server() as server:
        run("healthcheck", "--port", str(server.port), code=0)
        run("healthcheck", "--host", "0.0.0.0", "--port", str(server.port), code=0)


# ---- run ----

ALONE = [test_timeouts, test_silent_stream_is_pinged, test_waiting_streams_are_pinged, test_slow_reader_is_cancelled, test_write_stall, test_connection_limit,
         test_descriptor_limit, test_bodies_share_a_limit, test_drain, test_drain_in_every_phase, test_drain_when_idle, test_drain_timeout, test_second_signal,
         test_engine_failure, test_port_taken, test_commands]

if __name__ == "__main__":
    only = sys.argv[1:]
    sys.exit(0 if all([run(test) for test in ALONE if not only or test.__name__ in only]) else 1)
