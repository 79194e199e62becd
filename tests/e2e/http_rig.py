#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the HTTP transport share: the server with a fake engine (helpers/server_fake), raw sockets, responses
read strictly. Not a test itself."""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from http_cases import chunked, get, post

BUILD = os.environ.get("TEST_BUILD", os.path.join(ROOT, "build/release"))
HELPER = os.path.join(BUILD, "helpers/server_fake")
SLOW = 4 if "address" in BUILD or "thread" in BUILD else 1  # sanitizers
SEED = 20261130


# ---- the server ----

class Server:
    """server_fake with options; `own` are the fake engine's (step-us=1000), `flags` those of moed serve."""

    def __init__(self, *flags, own=(), limits=None, leak_check=True, tls=None):
        self.leak_check, self.tls = leak_check, tls
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
        return over_tls(s, self.tls) if self.tls else s

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


class TlsSocket(ssl.SSLSocket):
    """Half-closes as a plain socket does: FIN without close_notify, and reading goes on."""

    def shutdown(self, how):
        socket.socket.shutdown(self, how)


def over_tls(s, context):
    context.sslsocket_class = TlsSocket
    # An end without close_notify is an error: the server always says it.
    return context.wrap_socket(s, suppress_ragged_eofs=False)


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


# ---- run ----

def slow_pipelined_reader(server):
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


def run(test, *args):
    start = time.monotonic()
    try:
        test(*args)
    except Exception as e:  # one line per case, whatever happened
        print(f"FAIL {test.__name__}: {type(e).__name__}: {e}".replace("\n", " | "), flush=True)
        return False
    print(f"PASS {test.__name__} {time.monotonic() - start:.1f} s", flush=True)
    return True


def on_shared_server(tests, *flags, own=(), tls=None):
    ok = True
    with Server(*flags, own=own, tls=tls) as server:
        for test in tests:
            ok &= run(test, server)
    return ok
