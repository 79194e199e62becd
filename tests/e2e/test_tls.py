#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS: the HTTP transport's tests over it, what a handshake may not do, certificates that change, clients people use."""
import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import warnings

import httpx2 as httpx  # what the official client stands on
import openai

import test_http
from http_cases import CASES, GET, TAIL, get, post
from http_rig import BUILD, SEED, SLOW, Server, check_error, completion, complete_prefix, one, over_tls, read_all, read_one, read_until, run, slow_pipelined_reader, split_responses

MOED = os.path.join(BUILD, "moed")
DIR = tempfile.mkdtemp(prefix="moed-tls-")


def path(name):
    return os.path.join(DIR, name)


def openssl(*args):
    r = subprocess.run(["openssl", *args], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def make_certificate(name, *more, key=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
    openssl("req", "-x509", "-newkey", *key, "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", path(name + ".key"), "-out", path(name + ".pem"), *more)


def context(name="one", **kw):
    c = ssl.create_default_context(cafile=path(name + ".pem"))
    for k, v in kw.items():
        setattr(c, k, v)
    return c


def trusting():
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    return c


def serve(*flags, name="one", tls=True, **kw):
    return Server("--tls-cert", path(name + ".pem"), "--tls-key", path(name + ".key"), *flags, tls=trusting() if tls else None, **kw)


def plain(server):
    return Server.connect(type("Plain", (), {"port": server.port, "tls": None}))


# ---- bytes ----

def test_records_cut_anywhere(server):
    """Records that arrive byte by byte, and records of one byte each, mean the same."""
    rng = random.Random(SEED)
    for name, data, want in rng.sample([c for c in CASES if len(c[1]) < 1500 and c[2] and min(c[2]) > 0], 12) + [("get", GET + TAIL, [200, 200])]:
        out, into = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting().wrap_bio(into, out)
        with plain(server) as s:
            def flush(step):
                sent = out.read()
                for i in range(0, len(sent), step):
                    s.sendall(sent[i:i + step])
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    flush(1)
                    into.write(s.recv(65536))
            flush(1)
            client.write(data)
            flush(1)
            got = b""
            while len(complete_prefix(got)) < len(want):
                try:
                    got += client.read(65536)
                except ssl.SSLWantReadError:
                    more = s.recv(65536)
                    assert more, f"{name}: closed after {got!r}"
                    into.write(more)
            assert [r[0] for r in complete_prefix(got)] == want, f"{name}: {got[:200]!r}"


def test_pipelined_beyond_read_ahead(server):
    """More requests than are kept while a response is pending; all are answered, in order."""
    n = 3000
    with server.connect(timeout=30) as s:
        s.sendall(completion(max_tokens=200))
        data = GET * n + get(b"Connection: close\r\n")
        received, s_timeout = b"", time.monotonic() + 30 * SLOW
        s.setblocking(False)
        while time.monotonic() < s_timeout:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if data:
                    data = data[s.send(data[:16000]):]
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                piece = s.recv(65536)
                received += piece
                if not piece:
                    break
            select.select([s], [s] if data else [], [], 0.2)
    assert len(split_responses(received)) == n + 2


def test_close_notify(server):
    """The server says it, whoever ends the connection; a client that says it first gets one back."""
    with server.connect() as s:
        s.sendall(get(b"Connection: close\r\n"))
        read_all(s)  # an end without it raises here
    with server.connect() as s:
        s.sendall(GET)
        read_one(s)
        s.unwrap()  # raises unless the server answers it


def test_protocol(server):
    """TLS 1.2 and 1.3, HTTP/1.1 by ALPN, tickets resume a session, and no renegotiation."""
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        c = trusting()
        c.minimum_version = c.maximum_version = version
        with over_tls(plain(server), c) as s:
            s.sendall(GET)
            read_one(s)
            assert s.version() == name and s.compression() is None, (s.version(), s.compression())
            kept = s.session
        with plain(server) as raw, c.wrap_socket(raw, session=kept) as s:
            assert s.session_reused, f"{name}: a ticket is not taken"
    old = trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    weak = trusting()
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("AES128-SHA:AES256-SHA:ECDHE-ECDSA-AES128-SHA@SECLEVEL=0")
    h2 = trusting()
    h2.set_alpn_protocols(["h2"])
    for c, alert in ((old, "protocol version"), (weak, "handshake failure"), (h2, "no application protocol")):
        with plain(server) as raw:
            try:
                c.wrap_socket(raw).close()
                raise AssertionError(f"{alert}: a handshake that may not be")
            except ssl.SSLError as e:
                assert alert in str(e).lower().replace("_", " "), e
    both = trusting()
    both.set_alpn_protocols(["h2", "http/1.1"])
    with over_tls(plain(server), both) as s:
        assert s.selected_alpn_protocol() == "http/1.1"


def test_keys_within_a_connection(server):
    """A renegotiation is refused and ends nothing but its own connection; TLS 1.3's key updates are answered."""
    def s_client(version, *steps):
        """Sends each line once its mark has been seen; s_client takes a letter for a command only when it comes alone."""
        client = subprocess.Popen(["openssl", "s_client", version, "-connect", f"127.0.0.1:{server.port}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        out = b""
        for mark, line in steps:
            seen = b""
            while mark not in seen:
                piece = os.read(client.stdout.fileno(), 65536)
                assert piece, f"s_client ended before {mark!r}: {out[-300:]!r}"
                seen += piece
                out += piece
            if line:
                client.stdin.write(line)
                client.stdin.flush()
        return out + client.communicate(timeout=20)[0]
    out = s_client("-tls1_2", (b"Verify return code", b"R\n"), (b"no renegotiation", b""))
    assert b"RENEGOTIATING" in out, out[-500:]
    s_client("-tls1_3", (b"Verify return code", b"K\n"), (b"KEYUPDATE", b"K\n"), (b"KEYUPDATE", b"K\n"), (b"KEYUPDATE", get(b"Connection: close\r\n")), (b"HTTP/1.1 200 OK", b""))


def test_plain_http_is_told(server):
    failed = server.metric("moed_tls_handshakes_failed_total")
    for data in (GET, post(b"Content-Length: 2\r\n", b"{}"), b"OPTIONS * HTTP/1.1\r\n\r\n", b"get / http/1.1\r\n"):
        for step in (len(data), 1):
            with plain(server) as s:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    for i in range(0, len(data), step):
                        s.sendall(data[i:i + step])
                answer, = split_responses(read_all(s))
                check_error(answer, 400)
                assert "TLS" in json.loads(answer[2])["error"]["message"] and answer[1]["connection"] == "close", answer
    assert server.metric("moed_tls_handshakes_failed_total") == failed + 8


def test_garbage_handshakes(server):
    """Bytes that are no handshake, and handshakes cut or changed anywhere: an alert or an end, never a hang, never a crash."""
    rng = random.Random(SEED)
    out = ssl.MemoryBIO()
    client = trusting().wrap_bio(ssl.MemoryBIO(), out)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = out.read()
    payloads = [rng.randbytes(n) for n in (1, 5, 100, 3000)] + [b"\x00" * 100, b"\x80\x2e\x01\x00\x02" + b"\x00" * 60, b"\x16\x03\x01\xff\xff" + b"x" * 70000,
                b"\x16\x03\x01\x00\x00" * 2000, b"\x15\x03\x01\x00\x02\x01\x5a" * 2000, b"\x14\x03\x03\x00\x01\x01" * 2000, hello * 3, hello + GET]
    for _ in range(60):
        changed = bytearray(hello)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        payloads.append(bytes(changed) if rng.random() < 0.7 else hello[:rng.randrange(1, len(hello))])
    for data in payloads:
        with plain(server) as s:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
    assert one(server, get(b"Connection: close\r\n"))[0] == 200
    server.wait_metric('moed_http_connections{state="idle"}', lambda v: v == 0)


def test_disconnect_cancels(server):
    """FIN, RST, close_notify: the generation is cancelled; somebody else's stream goes on."""
    def leave(s, how):
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            s.shutdown(socket.SHUT_WR)
        elif how == "notify":
            s.setblocking(False)
            with contextlib.suppress(ssl.SSLError):
                s.unwrap()
        else:
            s.close()
    with server.connect(timeout=30) as other:
        other.sendall(completion(stream=True, max_tokens=900))
        read_until(other, b"data: {")
        for how in ("close", "reset", "half", "notify"):
            for stream in (True, False):
                gone = server.metric("moed_http_clients_gone_total")
                s = server.connect()
                s.sendall(completion(stream=stream, max_tokens=1000))
                if stream:
                    read_until(s, b"data: {")
                else:
                    time.sleep(0.1)
                leave(s, how)
                server.wait_metric("moed_http_clients_gone_total", lambda v: v == gone + 1)
                server.wait_metric("moed_requests_running", lambda v: v <= 1)
                s.close()
        read_until(other, b"[DONE]")


# ---- time and limits ----

def test_stalled_handshake():
    """Silence, half a hello, or a hello and then nothing: closed at the header timeout; others are served meanwhile."""
    with serve("--header-timeout", "400ms", own=("step-us=1000",)) as server:
        out = ssl.MemoryBIO()
        client = trusting().wrap_bio(ssl.MemoryBIO(), out)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = out.read()
        held = [plain(server) for _ in range(4)]
        held[1].sendall(hello[:20])
        held[2].sendall(hello)
        start = time.monotonic()
        assert one(server, get(b"Connection: close\r\n"))[0] == 200
        for s in held[:3]:
            while s.recv(65536):
                pass
            assert 0.3 <= time.monotonic() - start <= 1.5 * SLOW, time.monotonic() - start
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for i in range(len(hello)):  # trickling does not renew the time
                held[3].sendall(hello[i:i + 1])
                time.sleep(0.02)
            while held[3].recv(65536):
                pass
        assert time.monotonic() - start <= 8 * SLOW
        assert server.metric('moed_http_timeouts_total{phase="tls"}') == 4
        # After the handshake the time of the first head goes on.
        with server.connect() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHo")
            check_error(split_responses(read_all(s))[0], 408)


def test_slow_readers():
    """max-output and write-timeout hold over TLS, and memory with them."""
    with serve("--max-output", "64kb", own=("step-us=0", "ctx=8192")) as server:
        s = server.connect(rcvbuf=4096)
        s.sendall(completion(stream=True, max_tokens=8000, n=8))
        server.wait_metric("moed_http_slow_readers_total", lambda v: v == 1, 20)
        server.wait_metric("moed_requests_running", lambda v: v == 0)
        s.close()
    with serve("--max-output", "1gb", "--write-timeout", "500ms", own=("step-us=0", "ctx=8192")) as server:
        s = server.connect(rcvbuf=4096)
        s.sendall(completion(stream=True, max_tokens=8000, n=8))
        server.wait_metric('moed_http_timeouts_total{phase="write"}', lambda v: v == 1, 20)
        server.wait_metric("moed_requests_running", lambda v: v == 0)
        s.close()
    with serve(own=("step-us=1000",)) as server:
        slow_pipelined_reader(server)


def test_idle_end_and_drain():
    """keepalive-timeout and a drain end idle connections with close_notify; streams finish."""
    with serve("--keepalive-timeout", "300ms", own=("step-us=10000",)) as server:
        with server.connect() as s:
            s.sendall(GET)
            read_one(s)
            assert s.recv(10) == b""
        with server.connect(timeout=20) as stream, server.connect() as idle:
            stream.sendall(completion(stream=True, max_tokens=60))
            read_until(stream, b"data: {")
            idle.sendall(GET)
            read_one(idle)
            server.child.send_signal(signal.SIGTERM)
            assert idle.recv(10) == b""
            assert read_all(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "the stream was cut"
    assert server.code == 0, (server.code, server.err)


# ---- certificates ----

def common_name(server):
    with server.connect() as s:
        der = s.getpeercert(binary_form=True)
    return next(n for n in ("one", "two", "rsa") if der == ssl.PEM_cert_to_DER_cert(open(path(n + ".pem")).read()))


def replace(name, to="live", key=True):
    shutil.copy(path(name + ".pem"), path(to + ".pem"))
    if key:
        shutil.copy(path(name + ".key"), path(to + ".key"))


def wait_for(server, want):
    deadline = time.monotonic() + 5 * SLOW
    while common_name(server) != want:
        assert time.monotonic() < deadline, f"the certificate stayed {common_name(server)}"
        time.sleep(0.02)


def test_reload():
    """SIGHUP: later connections get the new certificate, a stream and a kept connection go on, bad files change nothing."""
    replace("one")
    with serve(name="live", own=("step-us=5000",)) as server:
        with server.connect(timeout=20) as stream, server.connect() as kept:
            kept.sendall(GET)
            read_one(kept)
            stream.sendall(completion(stream=True, max_tokens=200))
            begun = read_until(stream, b"data: {")
            for name in ("two", "rsa", "one"):
                replace(name)
                server.child.send_signal(signal.SIGHUP)
                wait_for(server, name)
            replace("two", key=False)  # a certificate whose key has not come yet
            server.child.send_signal(signal.SIGHUP)
            time.sleep(0.1)
            assert common_name(server) == "one"
            os.unlink(path("live.pem"))
            server.child.send_signal(signal.SIGHUP)
            time.sleep(0.1)
            assert common_name(server) == "one"
            kept.sendall(GET)
            assert read_one(kept)[0] == 200
            text = begun + read_until(stream, b"[DONE]")
            assert text.count(b"data: {") > 100
    assert server.err.count("certificate and key: read again") == 3, server.err
    assert "does not belong to the certificate" in server.err and "cannot read" in server.err and "the old ones stay" in server.err, server.err
    for name in ("one", "two", "rsa"):
        secret = open(path(name + ".key")).read().splitlines()[1]
        assert secret not in server.err + server.out, "a key in the log"


def test_bad_files():
    """Refused before a model is loaded, with one line that says what to do."""
    openssl("ec", "-in", path("one.key"), "-aes256", "-passout", "pass:x", "-out", path("old-style.key"))
    openssl("pkcs8", "-topk8", "-in", path("one.key"), "-passout", "pass:x", "-out", path("pkcs8.key"))
    for name, text in (("empty", ""), ("junk", "hello\n"), ("cut", open(path("one.pem")).read()[:200])):
        with open(path(name), "w") as f:
            f.write(text)
    cases = [("one.pem", "old-style.key", "is encrypted"), ("one.pem", "pkcs8.key", "openssl pkey"), ("one.pem", "two.key", "does not belong"),
             ("one.pem", "rsa.key", "does not belong"), ("one.pem", "junk", "expected a PEM private key"), ("one.pem", "empty", "expected a PEM private key"),
             ("junk", "one.key", "expected a PEM certificate"), ("empty", "one.key", "expected a PEM certificate"), ("cut", "one.key", "expected a PEM certificate"),
             ("none", "one.key", "cannot read"), ("one.pem", "none", "cannot read"), ("one.pem", "", "expected a PEM private key")]
    for cert, key, says in cases:
        r = subprocess.run([MOED, "serve", "--model", "/nonexistent", "--port", "0", "--tls-cert", path(cert), "--tls-key", key and path(key)],
                           capture_output=True, text=True, timeout=20, env={})
        assert r.returncode == 78 and says in r.stderr and r.stderr.count("\n") == 1, (cert, key, r.returncode, r.stderr)
        assert path(cert) in r.stderr or path(key) in r.stderr, r.stderr
    r = subprocess.run([MOED, "serve", "--model", "/nonexistent", "--port", "0", "--tls-key", path("one.key")], capture_output=True, text=True, env={})
    assert r.returncode == 78 and "tls-key without tls-cert" in r.stderr, r.stderr


def test_one_file_and_warnings():
    with open(path("both.pem"), "w") as f:
        f.write(open(path("one.pem")).read() + open(path("one.key")).read())
    os.chmod(path("both.pem"), 0o644)
    with Server("--tls-cert", path("both.pem"), tls=trusting()) as server:
        assert common_name(server) == "one"
    assert "chmod 640" in server.err and "mode 644" in server.err, server.err
    os.chmod(path("both.pem"), 0o640)
    with Server("--tls-cert", path("both.pem"), tls=trusting()) as server:
        assert one(server, get(b"Connection: close\r\n"))[0] == 200
    assert "chmod" not in server.err and "/CN=one, valid until" in server.err, server.err


# ---- clients ----

def test_clients():
    """The official client and curl, checking the certificate; the health check; the Unix socket beside it stays plain."""
    unix = path("socket")
    with serve("--unix-socket", unix, "--api-key-file", path("keys"), own=("step-us=500",)) as server:
        key = "alice-0123456789abcdef"
        client = openai.OpenAI(base_url=f"https://localhost:{server.port}/v1", api_key=key, max_retries=0, http_client=httpx.Client(verify=context()))
        whole = client.completions.create(model="", prompt="a b", max_tokens=40, temperature=0)
        parts = list(client.completions.create(model="", prompt="a b", max_tokens=40, temperature=0, stream=True))
        assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
        chat = client.chat.completions.create(model="", messages=[{"role": "user", "content": "\u00abhi\u00bb"}])
        assert chat.choices[0].message.content == "hi", chat
        try:
            openai.OpenAI(base_url=f"https://localhost:{server.port}/v1", api_key="nobody", max_retries=0, http_client=httpx.Client(verify=context())).models.list()
            raise AssertionError("a wrong key is let in")
        except openai.AuthenticationError:
            pass
        curl = ["curl", "-sS", "--max-time", "10", "-H", f"Authorization: Bearer {key}"]
        r = subprocess.run([*curl, "--cacert", path("one.pem"), "-N", f"https://localhost:{server.port}/v1/completions", "-H", "Content-Type: application/json",
                            "-d", '{"prompt": "a", "max_tokens": 3, "stream": true}'], capture_output=True, text=True)
        assert r.stdout.endswith("data: [DONE]\n\n"), (r.stdout[-200:], r.stderr)
        r = subprocess.run([*curl, "--unix-socket", unix, "http://localhost/v1/models"], capture_output=True, text=True)
        assert json.loads(r.stdout)["object"] == "list", (r.stdout, r.stderr)
        for flags, code in ((("--port", str(server.port), "--tls-cert", path("one.pem")), 0), (("--unix-socket", unix, "--tls-cert", path("one.pem")), 0),
                            (("--port", str(server.port)), 1)):
            r = subprocess.run([MOED, "healthcheck", *flags], capture_output=True, text=True, env={})
            assert r.returncode == code, (flags, r)


# ---- run ----

# What reads and writes one connection from two threads, or counts on plain sockets' errors, has its own form above.
TRANSPORT = [test_http.test_framing, test_http.test_same_body_for_every_cut, test_http.test_head_request, test_http.test_metrics, test_http.test_keep_alive,
             test_http.test_http_10, test_http.test_stream, test_http.test_done_and_last_chunk_together, test_http.test_pipelining_order,
             test_http.test_expect_continue_once, test_http.test_fin_after_done_is_no_cancel]
SHARED = [test_records_cut_anywhere, test_pipelined_beyond_read_ahead, test_close_notify, test_protocol, test_keys_within_a_connection, test_plain_http_is_told, test_garbage_handshakes]
ALONE = [test_stalled_handshake, test_slow_readers, test_idle_end_and_drain, test_reload, test_bad_files, test_one_file_and_warnings, test_clients]


def main():
    only = sys.argv[1:]
    pick = lambda tests: [t for t in tests if not only or t.__name__ in only]
    make_certificate("one")
    make_certificate("two")
    make_certificate("rsa", key=("rsa:2048",))
    with open(path("keys"), "w") as f:
        f.write("alice-0123456789abcdef\n")
    ok = True
    for tests, step in ((pick(TRANSPORT + SHARED), 200), (pick([test_disconnect_cancels]), 2000)):
        def clean_end(tests=tests, step=step):
            nonlocal ok
            with serve(own=(f"step-us={step}",)) as server:
                for test in tests:
                    ok &= run(test, server)
        if tests:
            clean_end.__name__ = "clean_end_after_" + tests[-1].__name__
            ok &= run(clean_end)
    ok &= all([run(t) for t in pick(ALONE)])
    shutil.rmtree(DIR)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
