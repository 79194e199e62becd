#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP transport over real sockets: framing (cases in http_cases.py), responses, order on a connection, disconnects."""
import contextlib
import json
import random
import re
import socket
import struct
import sys
import threading
import time

from http_cases import BODY, CASES, GET, H, TAIL, chunked, chunks, get, post
from http_rig import SEED, SLOW, check_error, completion, exchange, on_shared_server, one, read_all, read_one, read_until, run, slow_pipelined_reader, split_responses, verdict


# ---- framing ----

EVERY_POSITION = "--every-position" in sys.argv  # half a minute instead of three random cuts per case


def deliveries(data, rng):
    yield "whole", [data]
    for i in range(1, len(data) if EVERY_POSITION and len(data) < 1000 else 0):
        yield f"at {i}", [data[:i], data[i:]]
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
    slow_pipelined_reader(server)


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


# ---- run ----

SHARED = [test_framing, test_same_body_for_every_cut, test_request_id, test_head_request, test_allow, test_models, test_metrics,
          test_keep_alive, test_http_10, test_stream, test_done_and_last_chunk_together, test_pipelining_order, test_pipelining_bounded,
          test_slow_pipelined_reader, test_early_refusal_keeps_answer, test_linger_is_bounded, test_expect_continue_once,
          test_fin_after_done_is_no_cancel, test_connect_and_close_flood]


def main():
    only = [name for name in sys.argv[1:] if name != "--every-position"]
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
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
