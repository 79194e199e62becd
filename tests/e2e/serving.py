# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: start a server of this build, talk HTTP to it on a raw socket, report cases.

Not a test itself. A case is a function; it fails by raising, and skips by raising Skip."""
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TEST_BUILD", ROOT / "build/release")).resolve()
DEMO = ROOT / "models/demo-moe.gguf"
SANITIZED = BUILD.name != "release"


class Skip(Exception):
    pass


def run_cases(*cases):
    """PASS/FAIL/SKIP line per case; the exit status of the program."""
    failed = False
    for case in cases:
        try:
            case()
            print(f"PASS {case.__name__}", flush=True)
        except Skip as why:
            print(f"SKIP {case.__name__}: {why}", flush=True)
        except Exception as why:
            failed = True
            print(f"FAIL {case.__name__}: {type(why).__name__}: {str(why)[:600]}", flush=True)
            traceback.print_exc()
    return 1 if failed else 0


def check(ok, why=""):
    if not ok:
        raise AssertionError(why() if callable(why) else why)


class Server:
    """A server process of this build. stop() sends SIGTERM, unless told it was, and checks the exit status."""

    def __init__(self, argv, wait_s=60, env=None, **kw):
        self.log = open(os.path.join("/tmp", f"moed-test-{os.getpid()}-{random.randrange(1 << 30)}.log"), "w+")
        env = {k: v for k, v in os.environ.items() if not k.startswith("MOED_")} | (env or {})
        self.process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=self.log, text=True, env=env, **kw)
        self.port = self.unix = None
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            m = re.search(r"listening on (?:http://[^ ]*:(\d+)|unix:(.+))", line)
            if m:
                self.port, self.unix = m.group(1) and int(m.group(1)), m.group(2)
                break
            if not line:
                break
        if self.port is None and self.unix is None:
            self.process.kill()
            raise RuntimeError(f"{argv[0]} did not start: {self.stderr()[-2000:]}")

    @staticmethod
    def fake(*flags, **own):
        """The fake engine: own options as step_us=..., flags as of moed serve."""
        args = [f"{k.replace('_', '-')}={v}" for k, v in own.items()]
        return Server([BUILD / "helpers/server_fake", *args, "--", "--port", "0", "--model", "none", *flags])

    @staticmethod
    def demo(*flags):
        if not DEMO.exists():
            raise Skip(f"no {DEMO.relative_to(ROOT)}; tools/make_demo.py makes it")
        return Server([BUILD / "moed", "serve", "--port", "0", "--model", DEMO, *flags], wait_s=180)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()

    def stderr(self):
        self.log.seek(0)
        return self.log.read()

    def kill(self):
        self.process.kill()
        self.process.wait()
        sys.stderr.write(self.stderr()[-4000:])
        self.cleanup()

    def stop(self, want=0, wait_s=60, signalled=False):
        if not signalled and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            rc = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the server did not stop on SIGTERM") from None
        text = self.stderr()
        self.cleanup()
        check(rc == want, lambda: f"exit status {rc}, expected {want}: {text[-2000:]}")

    def cleanup(self):
        self.process.stdout.close()
        self.log.close()
        os.unlink(self.log.name)

    # ---- HTTP ----

    def connect(self, timeout=60):
        if self.port is None:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(timeout)
            s.connect(self.unix)
            return s
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def request(self, method, path, body=None, headers=(), sock=None):
        """(status, headers, body bytes) of one request on a connection of its own (or on sock)."""
        s = sock or self.connect()
        try:
            s.sendall(head(method, path, body, headers) + (body or b""))
            return read_response(s)
        finally:
            if not sock:
                s.close()

    def complete(self, **fields):
        """The parsed response, which must be 200."""
        status, _, body = self.post(fields)
        check(status == 200, lambda: f"status {status}: {body[:500]!r} for {str(fields)[:300]}")
        return json.loads(body)

    def post(self, fields, path="/v1/completions"):
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        return self.request("POST", path, body, [("Content-Type", "application/json")])

    def stream(self, **fields):
        """The events of a stream, parsed; the last one must be [DONE]."""
        status, headers, body = self.post({**fields, "stream": True})
        check(status == 200, lambda: f"status {status}: {body[:500]!r}")
        check(headers["content-type"].startswith("text/event-stream"), headers["content-type"])
        return parse_events(body)

    def metrics(self, headers=()):
        """{name with labels: value} without the histogram buckets."""
        status, _, body = self.request("GET", "/metrics", None, headers)
        check(status == 200, f"/metrics: {status}")
        lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in lines}

    def wait_idle(self, wait_s=30):
        """Until nothing runs, waits or is held for a client; the metrics then."""
        deadline = time.monotonic() + wait_s
        while True:
            m = self.metrics()
            if m["moed_requests_running"] == m["moed_requests_queued"] == m["moed_generations_live"] == 0:
                return m
            check(time.monotonic() < deadline, lambda: f"not idle after {wait_s} s: {m}")
            time.sleep(0.02)


def head(method, path, body=None, headers=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"] + [f"{k}: {v}" for k, v in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_response(s):
    data = b""
    while b"\r\n\r\n" not in data:
        data = more(s, data)
    top, data = data.split(b"\r\n\r\n", 1)
    lines = top.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body, done = b"", False
        while not done:
            while b"\r\n" not in data:
                data = more(s, data)
            size, data = data.split(b"\r\n", 1)
            size = int(size, 16)
            while len(data) < size + 2:
                data = more(s, data)
            check(data[size:size + 2] == b"\r\n", "chunk without its end")
            body, data, done = body + data[:size], data[size + 2:], size == 0
    else:
        size = int(headers.get("content-length", 0))
        while len(data) < size:
            data = more(s, data)
        body = data[:size]
    return int(lines[0].split()[1]), headers, body


def more(s, data):
    got = s.recv(1 << 16)
    check(got, lambda: f"connection closed after {data[-300:]!r}")
    return data + got


def parse_events(body):
    text = body.decode()  # every event must be UTF-8
    events = text.split("\n\n")
    check(events.pop() == "", "the stream does not end with a blank line")
    events = [e for e in events if not e.startswith(":")]
    check(all(e.startswith("data: ") and "\n" not in e for e in events), lambda: f"odd event in {text[-500:]!r}")
    check(events and events[-1] == "data: [DONE]", lambda: f"no [DONE]: {text[-500:]!r}")
    return [json.loads(e[6:]) for e in events[:-1]]


def join_stream(events):
    """The choices of a stream as a whole response would have them: {index: {text, finish_reason, logprobs}}."""
    out = {}
    for event in events:
        for c in event["choices"]:
            have = out.setdefault(c["index"], {"text": "", "finish_reason": None, "logprobs": None})
            check(have["finish_reason"] is None, "a chunk after the finish")
            have["text"] += c["text"]
            have["finish_reason"] = c["finish_reason"]
            if c["logprobs"]:
                if have["logprobs"] is None:
                    have["logprobs"] = {k: [] for k in c["logprobs"]}
                for k, v in c["logprobs"].items():
                    have["logprobs"][k] += v
    return out
