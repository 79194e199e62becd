#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP transport over real sockets: the server with a fake engine (helpers/server_fake). Framing cases come from
http_cases.py; here is also everything that needs a connection: time, order, disconnects, limits, shutdown."""
import contextlib
import json
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from http_cases import BODY, CASES, GET, H, J, TAIL, chunked, chunks, get, post

BUILD = os.environ.get("TEST_BUILD", os.path.join(ROOT, "build/release"))
HELPER = os.path.join(BUILD, "helpers/server_fake")
SLOW = 4 if "address" in BUILD or "thread" in BUILD else 1  # sanitizers
SEED = 20261130


# ---- the server ----

class Server:
    """server_fake with options; `own` are the fake engine's (step-us=1000), `flags` those of moed serve."""

    def __init__(self, *flags, own=(), limits=None, leak_check=True):
        self.leak_check = leak_check
        env = {k: v for k, v in os.environ.items() if not k.startswith("MOED_")}
        pre = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)) if limits else None
        self.child = subprocess.Popen([HELPER, *own, "--", "--model", "fake", "--port", "0", "--allowed-hosts", "*", *flags], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env=env, preexec_fn=pre)
        line = self.child.stdout.readline().decode()
        match = re.search(r":(\d+)$", line.strip())
        if not match:
            raise AssertionError(f"no port in {line!r}: {self.child.stderr.read().decode()}")
        self.port = int(match.group(1))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            self.code, self.out, self.err = self.finish(20 * SLOW)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            if kind is None:
                raise AssertionError("the server did not end after SIGTERM")
            return
        if kind is None:
            if re.search("Sanitizer|violations of", self.err):
                raise AssertionError(self.err[-3000:])
            if self.leak_check and "at the end: 0 pages in use, 0 blocks live" not in self.out:
                raise AssertionError(f"leak: {self.out!r} {self.err[-500:]!r}")

    def finish(self, timeout):
        out, err = self.child.communicate(timeout=timeout)
        return self.child.returncode, out.decode(), err.decode()

    def connect(self, timeout=10.0, rcvbuf=None):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(timeout * SLOW)
        s.connect(("127.0.0.1", self.port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def metric(self, name):
        """Sum of all samples of a metric whose line starts with `name`."""
        body = one(self, get(b"Connection: close\r\n", target=b"/metrics"))[2].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in body.splitlines() if re.match(re.escape(name) + r"[ {]", line)
                   or line.startswith(name) and "{" in name)

    def wait_metric(self, name, want, seconds=5.0):
        deadline = time.monotonic() + seconds * SLOW
        while True:
            value = self.metric(name)
            if want(value):
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} stayed {value}")
            time.sleep(0.02)


# ---- responses ----

def read_all(s):
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            raise AssertionError(f"reset after {data[:200]!r}")
        if not piece:
            return data
        data += piece


def split_responses(data, heads=()):
    """[(status, headers, body, framing)] of a complete stream. Framing is checked strictly on the way."""
    out = []
    while data:
        head, sep, rest = data.partition(b"\r\n\r\n")
        assert sep, f"cut head {data[:200]!r}"
        lines = head.decode("ascii").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Za-z ]+", lines[0])
        assert match, f"status line {lines[0]!r}"
        status = int(match.group(1))
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(": ")
            assert colon and re.fullmatch(r"[A-Za-z-]+", name), f"header {line!r}"
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        data = rest
        if status == 100:
            out.append((status, headers, b"", None))
            continue
        assert re.fullmatch(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", headers.get("date", "")), headers
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", headers.get("x-request-id", "")), headers
        if "content-length" in headers:
            assert "transfer-encoding" not in headers
            n = 0 if len(out) in heads else int(headers["content-length"])
            assert len(data) >= n, f"body of {n} cut at {len(data)}"
            out.append((status, headers, data[:n], "length"))
            data = data[n:]
        elif "transfer-encoding" in headers:
            assert headers["transfer-encoding"] == "chunked"
            body = b""
            while True:
                size, sep, data = data.partition(b"\r\n")
                assert sep and re.fullmatch(rb"[0-9a-f]+", size), f"chunk size {size[:40]!r}"
                n = int(size, 16)
                assert data[n:n + 2] == b"\r\n", "chunk end"
                body += data[:n]
                data = data[n + 2:]
                if n == 0:
                    break
            out.append((status, headers, body, "chunked"))
        else:
            assert headers.get("connection") == "close", "neither length nor chunked nor close"
            out.append((status, headers, data, "close"))
            data = b""
    return out


def exchange(server, pieces, half_close=True, heads=()):
    """Sends the pieces, half-closes, and returns all responses up to the server's FIN."""
    with server.connect() as s:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                s.sendall(piece)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        return split_responses(read_all(s), heads)


def complete_prefix(data):
    """The longest prefix of data that is whole responses, parsed."""
    out = []
    while data:
        head, sep, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        n = len(head) + 4 + (int(length.group(1)) if length else 0)
        if not sep or len(data) < n:
            break
        out += split_responses(data[:n])
        data = data[n:]
    return out


def verdict(server, pieces, want):
    """The responses to a payload of http_cases.py: those it calls for, then whatever comes after a half-close."""
    n = sum(status > 0 for status in want)
    with server.connect() as s:
        data = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                s.sendall(piece)
        while len(complete_prefix(data)) < n:
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_WR)
        return split_responses(data + read_all(s))


def one(server, payload, **kw):
    responses = exchange(server, [payload], half_close=False, **kw)
    assert len(responses) == 1, responses
    return responses[0]


def read_one(s):
    """One response with a Content-Length from a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = s.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    n = int(re.search(rb"Content-Length: (\d+)", data).group(1))
    while len(data) < data.index(b"\r\n\r\n") + 4 + n:
        data += s.recv(65536)
    return split_responses(data)[0]


def read_until(s, mark):
    data = b""
    while mark not in data:
        piece = s.recv(65536)
        assert piece, f"closed before {mark!r}: {data[-300:]!r}"
        data += piece
    return data


def completion(version=b"HTTP/1.1", head=b"", **fields):
    body = json.dumps({"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}).encode()
    return post(b"Content-Length: %d\r\n" % len(body) + head, body, version=version)


def check_error(response, status):
    got, headers, body, _ = response
    assert got == status, f"{got} instead of {status}: {body!r}"
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], error


# ---- framing ----

def deliveries(data, rng):
    yield "whole", [data]
    if len(data) <= 4000:
        yield "bytes", [data[i:i + 1] for i in range(len(data))]
    for k in range(3):
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 8)))
        yield f"cut {cuts}", [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


def test_framing(server):
    rng = random.Random(SEED)
    wrong = []
    for name, data, want in CASES:
        for how, pieces in deliveries(data, rng):
            try:
                responses = verdict(server, pieces, want)
                got = [r[0] for r in responses]
                assert got == [abs(status) for status in want], f"{got} instead of {want}"
                for r in responses:
                    if r[0] >= 400:
                        check_error(r, r[0])
                if want and abs(want[-1]) in (400, 413, 414, 417, 431, 501, 505) and name != "chat_place":
                    assert responses[-1][1].get("connection") == "close", "no Connection: close after a refusal"
            except (AssertionError, OSError) as e:
                wrong.append(f"{name} ({how[:60]}): {e}")
                break
    assert not wrong, f"{len(wrong)} of {len(CASES)}:\n  " + "\n  ".join(wrong)


def test_same_body_for_every_cut(server):
    """The body a handler sees does not depend on framing or on the cut of the stream."""
    rng = random.Random(SEED)
    body = json.dumps({"prompt": "".join(rng.choice("abc \\\"") for _ in range(300)), "max_tokens": 6, "temperature": 0}).encode()
    texts = set()
    for how in range(12):
        cuts = sorted(rng.randrange(1, len(body)) for _ in range(how))
        parts = [p for p in (body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)])) if p]
        payload = chunked(chunks(*parts), b"Connection: close\r\n") if how % 2 else \
            post(b"Connection: close\r\nContent-Length: %d\r\n" % len(body), body)
        for _, pieces in deliveries(payload, rng):
            (status, _, answer, _), = exchange(server, pieces, half_close=False)
            assert status == 200, answer
            texts.add(json.loads(answer)["choices"][0]["text"])
    assert len(texts) == 1, f"{len(texts)} different answers"


# ---- responses ----

def test_request_id(server):
    for sent, kept in ((b"abc.DEF_1-2", True), (b"a" * 128, True), (b"a" * 129, False), (b"a b", False), (b"a\xffb", False), (b"", False)):
        got = one(server, get(b"Connection: close\r\nX-Request-Id: " + sent + b"\r\n"))[1]["x-request-id"]
        assert (got.encode() == sent) == kept, (sent, got)
    ids = {one(server, get(b"Connection: close\r\n"))[1]["x-request-id"] for _ in range(20)}
    assert len(ids) == 20, "generated ids repeat"


def test_head_request(server):
    for path in (b"/health", b"/v1/models"):
        full = one(server, get(b"Connection: close\r\n", target=path))
        head = one(server, b"HEAD " + path + b" HTTP/1.1\r\n" + H + b"Connection: close\r\n\r\n", heads={0})
        assert head[0] == full[0] and head[1]["content-length"] == full[1]["content-length"] and head[2] == b"", head
    got = exchange(server, [b"HEAD /nope HTTP/1.1\r\n" + H + b"\r\n" + TAIL], heads={0})
    assert [r[0] for r in got] == [404, 200] and got[0][2] == b"", got


def test_allow(server):
    assert one(server, get(b"Connection: close\r\n", target=b"/v1/completions"))[1]["allow"] == "POST, OPTIONS"
    assert one(server, b"DELETE /health HTTP/1.1\r\n" + H + b"Connection: close\r\n\r\n")[1]["allow"] == "GET, HEAD, OPTIONS"
    assert one(server, b"OPTIONS * HTTP/1.1\r\n" + H + b"Connection: close\r\n\r\n")[1]["allow"] == "GET, HEAD, POST, OPTIONS"
    assert "allow" in one(server, b"CONNECT x:1 HTTP/1.1\r\n" + H + b"\r\n")[1]


def test_models(server):
    status, headers, body, _ = one(server, get(b"Connection: close\r\n", target=b"/v1/models"))
    listed = json.loads(body)
    assert status == 200 and headers["content-type"] == "application/json" and listed["object"] == "list"
    model, = listed["data"]
    assert model["object"] == "model" and isinstance(model["created"], int) and model["owned_by"] == "moed"
    assert json.loads(one(server, get(b"Connection: close\r\n", target=b"/v1/models/" + model["id"].encode()))[2]) == model
    missing = one(server, get(b"Connection: close\r\n", target=b"/v1/models/gpt-9"))
    check_error(missing, 404)
    assert json.loads(missing[2])["error"]["code"] == "model_not_found"


def test_metrics(server):
    """The exposition follows the text format: one HELP and TYPE per family before its samples, cumulative buckets, and
    counters that never fall."""
    sample = re.compile(r'([a-z_][a-z0-9_]*)(\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})? (\+Inf|-?[0-9.e+-]+)$')
    before = {}
    for _ in range(2):
        body = one(server, get(b"Connection: close\r\n", target=b"/metrics"))[2].decode()
        types, now = {}, {}
        for line in body.splitlines():
            if line.startswith("# HELP "):
                continue
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                assert name not in types, f"{name} typed twice"
                types[name] = kind
                continue
            match = sample.match(line)
            assert match, f"not a sample: {line!r}"
            family = re.sub("_(bucket|sum|count)$", "", match.group(1))
            family = family if types.get(family) == "histogram" else match.group(1)
            assert family in types, f"{line!r} has no TYPE"
            key = match.group(1) + (match.group(2) or "")
            assert key not in now, f"{key} twice"
            now[key] = float(match.group(3))
            if types[family] == "counter":
                assert family.endswith("_total"), family
                assert now[key] >= before.get(key, 0), f"{key} fell"
        for name in (n for n, kind in types.items() if kind == "histogram"):
            buckets = [v for k, v in now.items() if k.startswith(name + "_bucket")]
            assert buckets == sorted(buckets) and buckets[-1] == now[name + "_count"], name
        before = now
    for name in ("moed_requests_running", "moed_requests_queued", "moed_kv_usage_ratio", "moed_generation_tokens_total",
                 "process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"):
        assert name in before, name
    assert any(k.startswith("moed_build_info{version=") for k in before)


# ---- connections ----

def test_keep_alive(server):
    with server.connect() as s:
        for i in range(50):
            s.sendall(GET if i % 2 else completion())
            assert read_one(s)[0] == 200
        s.sendall(get(target=b"/nope"))
        assert read_one(s)[0] == 404
        s.sendall(get(b"Connection: close\r\n"))
        assert read_one(s)[1]["connection"] == "close" and s.recv(1) == b""


def test_http_10(server):
    status, headers, body, framing = one(server, get(version=b"HTTP/1.0"))
    assert status == 200 and framing == "length" and headers["connection"] == "close"
    with server.connect() as s:
        for _ in range(3):
            s.sendall(get(b"Connection: keep-alive\r\n", version=b"HTTP/1.0"))
            assert read_one(s)[1]["connection"] == "keep-alive"
    status, headers, body, framing = one(server, completion(version=b"HTTP/1.0", head=b"Connection: keep-alive\r\n", stream=True))
    assert status == 200 and framing == "close" and body.endswith(b"data: [DONE]\n\n"), (headers, body[-100:])
    assert body.startswith(b"data: {")


def test_stream(server):
    status, headers, body, framing = one(server, completion(head=b"Connection: close\r\n", stream=True, max_tokens=20))
    assert status == 200 and framing == "chunked"
    assert headers["content-type"] == "text/event-stream; charset=utf-8" and headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    events = body.decode().split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    text = "".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-2])
    whole = json.loads(one(server, completion(head=b"Connection: close\r\n", max_tokens=20))[2])["choices"][0]["text"]
    assert text == whole, (text, whole)


def test_done_and_last_chunk_together(server):
    """Clients close at [DONE]; the end of the body must be in the same segment for the connection to be reused."""
    with server.connect() as s:
        s.sendall(completion(stream=True))
        pieces = []
        while not pieces or b"[DONE]" not in pieces[-1]:
            pieces.append(s.recv(65536))
        assert pieces[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), pieces[-1][-60:]
        s.sendall(GET)
        assert read_one(s)[0] == 200


def test_pipelining_order(server):
    """Answers come in order, a stream is not interleaved, and what follows waits."""
    ids = [b"a", b"b", b"c", b"d", b"e"]
    parts = [get(b"X-Request-Id: a\r\n"), completion(head=b"X-Request-Id: b\r\n", stream=True, max_tokens=10),
             completion(head=b"X-Request-Id: c\r\n"), get(b"X-Request-Id: d\r\n", target=b"/nope"),
             get(b"X-Request-Id: e\r\nConnection: close\r\n")]
    for pieces in ([b"".join(parts)], parts):
        got = exchange(server, pieces, half_close=False)
        assert [r[1]["x-request-id"].encode() for r in got] == ids and [r[0] for r in got] == [200, 200, 200, 404, 200]
        assert got[1][2].endswith(b"data: [DONE]\n\n")


def test_pipelining_bounded(server):
    """A client that pipelines without end while a response is pending is not read without end; all is answered later."""
    n = 5000
    with server.connect(timeout=30) as s:
        s.sendall(completion(max_tokens=400))
        s.setblocking(False)
        data, sent = GET * n, 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(data):
                sent += s.send(data[sent:])
        s.settimeout(30 * SLOW)
        received = b""
        writer = threading.Thread(target=lambda: s.sendall(data[sent:] + get(b"Connection: close\r\n")))
        writer.start()
        received = read_all(s)
        writer.join()
    assert len(split_responses(received)) == n + 2


def test_slow_pipelined_reader(server):
    """Synchronous answers nobody reads do not pile up in memory without bound."""
    rss = server.metric("process_resident_memory_bytes")
    with server.connect(rcvbuf=4096) as s:
        s.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(400):
                s.sendall(get(target=b"/metrics") * 200)
        time.sleep(0.5)
        grown = server.metric("process_resident_memory_bytes") - rss
        assert grown < 24e6 * SLOW, f"{grown / 1e6:.1f} MB more resident"


def test_early_refusal_keeps_answer(server):
    """A body that is refused before it is read: the client gets the answer, the body is never parsed."""
    big = GET * 1500  # would be answered if it were parsed
    with server.connect() as s:
        s.sendall(post(b"Content-Length: 999999999\r\n"))
        time.sleep(0.05)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendall(big)
        got = split_responses(read_all(s))
    assert [r[0] for r in got] == [413], [r[0] for r in got]


def test_linger_is_bounded(server):
    """A refused client that goes on sending, or stays silent, is cut off after a moment."""
    with server.connect() as s:
        s.sendall(b"NONSENSE\r\n\r\n")
        start = time.monotonic()
        check_error(split_responses(read_all(s))[0], 400)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < start + 10:
                s.sendall(b"x" * 1000)
                time.sleep(0.001)
        assert time.monotonic() - start < 3 * SLOW, "the server kept reading"
    with server.connect() as s:
        s.sendall(b"NONSENSE\r\n\r\n")
        start = time.monotonic()
        read_all(s)
        server.wait_metric('moed_http_connections{state="closing"}', lambda v: v == 0)
        assert 1 < time.monotonic() - start < 4 * SLOW


def test_expect_continue_once(server):
    with server.connect() as s:
        s.sendall(post(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(BODY)))
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(BODY)
        assert read_one(s)[0] == 200


# ---- disconnects ----

def run_and_leave(server, how, payload, wait):
    s = server.connect()
    s.sendall(payload)
    wait(s)
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        s.shutdown(socket.SHUT_WR)
    else:
        s.close()
    return s


def test_disconnect_cancels(server):
    """FIN, RST and half-close, streaming or not, queued or running: the generation is cancelled, nobody else's is."""
    streams = lambda s: read_until(s, b"data: {")
    pause = lambda s: time.sleep(0.1)
    with server.connect(timeout=30) as other:
        other.sendall(completion(stream=True, max_tokens=900))
        read_until(other, b"data: {")
        for how in ("close", "reset", "half"):
            for stream, wait in ((True, streams), (True, lambda s: None), (False, pause)):
                gone = server.metric("moed_http_clients_gone_total")
                left = run_and_leave(server, how, completion(stream=stream, max_tokens=1000), wait)
                server.wait_metric("moed_http_clients_gone_total", lambda v: v == gone + 1)
                server.wait_metric("moed_requests_running", lambda v: v <= 1)
                left.close()
        read_until(other, b"[DONE]")
    server.wait_metric("moed_generations_live", lambda v: v == 0)
    assert server.metric('moed_requests_finished_total{reason="cancelled"}') == 9


def test_disconnect_with_read_ahead(server):
    """The client leaves while so much is pipelined that reading has stopped."""
    cancelled = 'moed_requests_finished_total{reason="cancelled"}'
    before = server.metric(cancelled)
    s = server.connect()
    s.sendall(completion(max_tokens=1000))
    s.sendall(GET * 2500)
    time.sleep(0.2)
    s.close()
    server.wait_metric(cancelled, lambda v: v == before + 1, 1.5)


def test_fin_after_done_is_no_cancel(server):
    gone = server.metric("moed_http_clients_gone_total")
    for _ in range(10):
        with server.connect() as s:
            s.sendall(completion(stream=True))
            read_until(s, b"[DONE]")
    time.sleep(0.1)
    assert server.metric("moed_http_clients_gone_total") == gone


def test_connect_and_close_flood(server):
    for i in range(500):
        with server.connect() as s:
            if i % 3 == 0:
                s.sendall(b"GET /hea")
            if i % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert one(server, get(b"Connection: close\r\n"))[0] == 200
    server.wait_metric("process_open_fds", lambda v: v < 40)


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

SHARED = [test_framing, test_same_body_for_every_cut, test_request_id, test_head_request, test_allow, test_models, test_metrics,
          test_keep_alive, test_http_10, test_stream, test_done_and_last_chunk_together, test_pipelining_order, test_pipelining_bounded,
          test_slow_pipelined_reader, test_early_refusal_keeps_answer, test_linger_is_bounded, test_expect_continue_once,
          test_fin_after_done_is_no_cancel, test_connect_and_close_flood]
ALONE = [test_timeouts, test_silent_stream_is_pinged, test_slow_reader_is_cancelled, test_write_stall, test_connection_limit,
         test_descriptor_limit, test_bodies_share_a_limit, test_drain, test_drain_when_idle, test_drain_timeout, test_second_signal,
         test_engine_failure, test_port_taken, test_commands]


def run(test, *args):
    start = time.monotonic()
    try:
        test(*args)
    except Exception as e:  # one line per case, whatever happened
        print(f"FAIL {test.__name__}: {type(e).__name__}: {e}".replace("\n", " | "), flush=True)
        return False
    print(f"PASS {test.__name__} {time.monotonic() - start:.1f} s", flush=True)
    return True


def on_shared_server(tests, *flags, own=()):
    ok = True
    with Server(*flags, own=own) as server:
        for test in tests:
            ok &= run(test, server)
    return ok


def main():
    only = sys.argv[1:]
    pick = lambda tests: [t for t in tests if not only or t.__name__ in only]
    ok = True
    groups = ((pick(SHARED), ("step-us=200",)), (pick([test_disconnect_cancels, test_disconnect_with_read_ahead]), ("step-us=2000",)))
    for tests, own in groups:
        if tests:
            def clean_end(tests=tests, own=own):
                nonlocal ok
                ok &= on_shared_server(tests, own=own)
            clean_end.__name__ = "clean_end_after_" + tests[-1].__name__
            ok &= run(clean_end)
    for test in pick(ALONE):
        ok &= run(test)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
