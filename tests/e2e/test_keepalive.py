# SPDX-License-Identifier: Apache-2.0
"""A stream is never silent for longer than sse-ping, by the clock, whatever the server is busy with; and what comes between the
comments is what would have come without them."""
import json
import sys
import time

from http_rig import SLOW, Server, post, run

PING_S, SLACK_S = 0.2, 0.4  # the tick is 0.1 s


def request(path=b"/v1/completions", **fields):
    body = json.dumps({"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True, **fields}).encode()
    return post(b"Content-Length: %d\r\nConnection: close\r\n" % len(body), body, target=path)


def listen(server, payload):
    """(all bytes, longest silence, bytes before the first event)"""
    with server.connect(timeout=20) as s:
        s.sendall(payload)
        data, longest, last = b"", 0, time.monotonic()
        while piece := s.recv(65536):
            now = time.monotonic()
            data, longest, last = data + piece, max(longest, now - last), now
    assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1") == 1, data[:300]
    return data, longest


def check(data, longest, pings):
    assert longest <= (PING_S + SLACK_S) * SLOW, f"silent for {longest:.2f} s"
    assert data.count(b": ping\n\n") >= pings, data
    assert b'"error"' not in data and data.endswith(b"0\r\n\r\n"), data[-300:]


def keepalive_server(*flags, own=()):
    return Server("--sse-ping", f"{int(PING_S * 1000)}ms", *flags, own=own)


def test_queued():
    with keepalive_server("--max-running", "1", own=("step-us=20000",)) as server:
        with server.connect(timeout=20) as first:
            first.sendall(request(max_tokens=70))
            first.recv(10)
            data, longest = listen(server, request())
            check(data, longest, 3)
            assert data.index(b": ping") < data.index(b"data: {"), data


def test_queued_and_refused():
    """What goes wrong after the headers went out is an event."""
    for path, mark in ((b"/v1/completions", b'"deadline_exceeded"'), (b"/v1/messages", b"event: error\n"), (b"/v1/responses", b"event: response.failed\n")):
        with keepalive_server("--max-running", "1", own=("step-us=20000",)) as server, server.connect(timeout=20) as first:
            first.sendall(request(max_tokens=50))
            first.recv(10)
            data, _ = listen(server, request(path, prompt="hello" if path == b"/v1/completions" else None, timeout=0.7, messages=[{"role": "user", "content": "hi"}], input="hi"))
            assert data.count(b": ping\n\n") >= 1 and mark in data and data.endswith(b"0\r\n\r\n"), data


def test_long_prefill():
    with keepalive_server("--batch-tokens", "16", "--max-running", "4", own=("step-us=30000",)) as server:
        data, longest = listen(server, request(prompt="word " * 150))
        check(data, longest, 3)
        assert data.index(b": ping") < data.index(b"data: {"), data


def test_stalled_step():
    """As when experts are read from a slow disk: the engine is inside one step."""
    with keepalive_server(own=("step-us=900000",)) as server:
        check(*listen(server, request(max_tokens=2)), 5)


def test_hidden_reasoning():
    text = "<think>\n" + "x" * 60 + "</think>yes"
    fields = {"messages": [{"role": "user", "content": f"«{text}»"}], "max_tokens": 200, "ignore_eos": False, "include_reasoning": False}
    with keepalive_server(own=("step-us=20000",)) as server:
        data, longest = listen(server, request(b"/v1/chat/completions", **fields))
        check(data, longest, 3)
        assert b"xx" not in data and b"s" in data, data


def test_tool_call():
    call = '<tool_call>\n{"name": "f", "arguments": {"city": "%s"}}\n</tool_call>' % ("x" * 50)
    fields = {"messages": [{"role": "user", "content": f"«{call}»"}], "max_tokens": 200, "ignore_eos": False,
              "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}
    with keepalive_server("--tool-syntax", "hermes", own=("step-us=20000",)) as server:
        data, longest = listen(server, request(b"/v1/chat/completions", **fields))
        check(data, longest, 0)
        assert b'"tool_calls"' in data, data


def test_held_back_text():
    """Text that may become a stop string is not shown until it is known."""
    with keepalive_server(own=("step-us=20000",)) as server:
        data, longest = listen(server, request(prompt="«" + "a" * 60 + "b»", max_tokens=100, ignore_eos=False, stop=["a" * 60 + "c"]))
        check(data, longest, 3)
        assert b"a" * 60 in data, data


def test_structured_output():
    with keepalive_server(own=("step-us=20000",)) as server:
        data, longest = listen(server, request(prompt="x", max_tokens=80, ignore_eos=False, regex="a{60}b", stop=["a" * 60 + "c"]))
        check(data, longest, 3)


if __name__ == "__main__":
    only = sys.argv[1:]
    tests = [test_queued, test_queued_and_refused, test_long_prefill, test_stalled_step, test_hidden_reasoning, test_tool_call, test_held_back_text,
             test_structured_output]
    sys.exit(0 if all([run(t) for t in tests if not only or t.__name__ in only]) else 1)
