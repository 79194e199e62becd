# SPDX-License-Identifier: Apache-2.0
"""API keys, Host and Origin on a running server: who gets in, what a browser is told, what the official client raises."""
import json
import os
import signal
import sys
import tempfile
import threading
import time

import openai

from serving import Server, check, head, more, run_cases

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
BODY = json.dumps({"prompt": "a b", "max_tokens": 4}).encode()
JSON = ("Content-Type", "application/json")


def ask(s, *headers, method="POST", path="/v1/completions", body=BODY):
    status, got, answer = s.request(method, path, body if method == "POST" else None, [JSON, *headers])
    return status, got, json.loads(answer) if answer[:1] == b"{" else answer


class Keys:
    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".keys")
        self.file.write(f"# who may\n{ALICE} name=alice concurrent=2\n{BOB} per-minute=2\n")
        self.file.flush()
        return self.file.name

    def __exit__(self, *_):
        self.file.close()


def keys_are_asked_for():
    with Keys() as keys, Server.fake("--api-key-file", keys) as s:
        status, headers, answer = ask(s)
        check(status == 401 and answer["error"]["type"] == "authentication_error", answer)
        check(headers.get("www-authenticate") == "Bearer", headers)
        check(ask(s, ("Authorization", "Bearer wrong-0123456789abcdef"))[0] == 401, "a wrong key")
        check(ask(s, ("Authorization", f"Bearer {ALICE}"))[0] == 200, "a right key")
        check(ask(s, ("X-Api-Key", ALICE))[0] == 200, "a right key in X-Api-Key")
        check(ask(s, ("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {BOB}"))[0] == 400, "two keys")
        for path, want in (("/health", 200), ("/", 200), ("/v1/models", 401), ("/metrics", 401), ("/admin/offload", 401), ("/nothing", 401)):
            check(ask(s, method="GET", path=path)[0] == want, path)
        check(not any(k in s.stderr() for k in (ALICE, BOB)), "a key in the log")


def official_client_raises():
    with Keys() as keys, Server.fake("--api-key-file", keys) as s:
        url = f"http://127.0.0.1:{s.port}/v1"
        openai.OpenAI(base_url=url, api_key=ALICE, max_retries=0).completions.create(model="", prompt="a", max_tokens=2)
        try:
            openai.OpenAI(base_url=url, api_key="nobody", max_retries=0).models.list()
            check(False, "a wrong key is let in")
        except openai.AuthenticationError as e:
            check(e.code == "invalid_api_key", e)
        bob = openai.OpenAI(base_url=url, api_key=BOB, max_retries=0)
        for _ in range(2):
            bob.completions.create(model="", prompt="a", max_tokens=2)
        try:
            bob.completions.create(model="", prompt="a", max_tokens=2)
            check(False, "the rate is not limited")
        except openai.RateLimitError as e:
            check(e.code == "key_rate" and int(e.response.headers["retry-after"]) >= 1, e)


def concurrency_is_given_back():
    with Keys() as keys, Server.fake("--api-key-file", keys, step_us=20000) as s:
        who = ("Authorization", f"Bearer {ALICE}")
        slow = json.dumps({"prompt": "a b", "max_tokens": 50, "ignore_eos": True}).encode()
        statuses = []
        threads = [threading.Thread(target=lambda: statuses.append(ask(s, who, body=slow)[0])) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(sorted(statuses) == [200, 200, 429, 429, 429, 429], statuses)
        check(ask(s, who)[0] == 200, "a place is not given back")


def keys_share_the_server():
    """One key has all places it can get and as much waiting: another's requests are let in, and hardly wait."""
    work = json.dumps({"prompt": "a b", "max_tokens": 40, "ignore_eos": True, "cache_prompt": False}).encode()
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(f"{ALICE} weight=1\n{BOB} weight=2\n")
        f.flush()
        with Server.fake("--api-key-file", f.name, "--max-running", "2", "--max-queued", "40", step_us=3000) as s:
            alice = []
            threads = [threading.Thread(target=lambda: alice.append((ask(s, ("X-Api-Key", ALICE), body=work)[:2], time.monotonic()))) for _ in range(60)]
            for t in threads:
                t.start()
            while not any(status == 429 for (status, _), _ in alice):
                time.sleep(0.01)
            start = time.monotonic()
            status, _, answer = ask(s, ("X-Api-Key", BOB), body=work)
            bob = time.monotonic() - start
            for t in threads:
                t.join()
        served = [end - start for (status, _), end in alice if status == 200]
        check(status == 200, answer)
        check(20 <= len(served) <= 29 and all(int(h["retry-after"]) >= 1 for (code, h), _ in alice if code == 429), [code for (code, _), _ in alice])
        check(bob < max(served) / 3, f"bob waited {bob:.2f} s, alice's last {max(served):.2f} s")


def foreign_hosts_are_refused():
    with Server.fake() as s:
        for host, want in ((f"127.0.0.1:{s.port}", 200), (f"localhost:{s.port}", 200), ("evil.example", 403)):
            with s.connect() as sock:
                sock.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = sock.makefile("rb").read()
            check(answer.startswith(f"HTTP/1.1 {want}".encode()), answer[:200])
            check(want == 200 or b"permission_error" in answer, answer)


def browsers_are_told():
    site = ("Origin", "https://chat.example")
    with Server.fake("--allowed-origins", "https://chat.example") as s:
        status, headers, _ = ask(s, site, ("Access-Control-Request-Method", "POST"), method="OPTIONS", path="/v1/chat/completions")
        check(status == 200 and headers["access-control-allow-origin"] == "https://chat.example" and "POST" in headers["access-control-allow-methods"]
              and "Authorization" in headers["access-control-allow-headers"], headers)
        status, headers, _ = ask(s, site)
        check(status == 200 and headers["access-control-allow-origin"] == "https://chat.example" and headers["vary"] == "Origin", headers)
        status, headers, _ = ask(s, site, body=b"{")
        check(status == 400 and "access-control-allow-origin" in headers, "an error the page cannot read")
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{s.port + 1}"):
            status, headers, answer = ask(s, ("Origin", origin))
            check(status == 403 and answer["error"]["code"] == "origin_not_allowed", origin)
            check("access-control-allow-origin" not in headers, origin)
        check(ask(s)[0] == 200, "a client that is no browser")


def keys_are_read_again():
    """SIGHUP: a new key is let in, one that is gone is not, its stream goes on; a bad file changes nothing."""
    with Keys() as keys, Server.fake("--api-key-file", keys, step_us=5000) as s:
        status = lambda key: ask(s, ("Authorization", f"Bearer {key}"), method="GET", path="/v1/models")[0]

        def becomes(key, want):
            s.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            while status(key) != want:
                check(time.monotonic() < deadline, f"{want} for {key} never came")
                time.sleep(0.02)

        with s.connect() as stream:
            body = json.dumps({"prompt": "a b", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
            stream.sendall(head("POST", "/v1/completions", body, [JSON, ("X-Api-Key", ALICE)]) + body)
            check(stream.recv(4096).startswith(b"HTTP/1.1 200"), "no stream")
            with open(keys, "w") as f:
                f.write("carol-0123456789abcdef\n")
            becomes("carol-0123456789abcdef", 200)
            check(status(ALICE) == status(BOB) == 401, "a key that is gone")
            with open(keys, "w") as f:
                f.write("carol\n")
            s.process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            check(status("carol-0123456789abcdef") == 200, "a bad file changed something")
            text = b""
            while b"[DONE]" not in text:
                text = more(stream, text)
        log = s.stderr()
        check("API keys: read again" in log and "the old ones stay in force" in log and "0123456789" not in log, log)


def bad_files_stop_the_start():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("short\n")
        f.flush()
        for path, says in ((f.name, ":1: a key has 16 to 256"), (f.name + "x", "cannot open")):
            try:
                Server.fake("--api-key-file", path).kill()
                check(False, "it started")
            except RuntimeError as e:
                check(says in str(e), e)


if __name__ == "__main__":
    sys.exit(run_cases(keys_are_asked_for, official_client_raises, concurrency_is_given_back, keys_share_the_server, foreign_hosts_are_refused, browsers_are_told,
                       keys_are_read_again, bad_files_stop_the_start))
