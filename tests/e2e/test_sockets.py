# SPDX-License-Identifier: Apache-2.0
"""The Unix socket: who may connect, what is in the way of it, both sockets at once, the clients people use; and what a
supervisor hands over and is told."""
import fcntl
import grp
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

import httpx2 as httpx  # what the official client stands on
import openai

from http_cases import CASES
from http_rig import verdict
from serving import BUILD, Server, check, read_response, run_cases

KEY = "alice-0123456789abcdef"
MOED = BUILD / "moed"


class Place:
    """A directory of its own, and a path for a socket in it."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="moed-")
        return os.path.join(self.dir, "s")

    def __exit__(self, *_):
        shutil.rmtree(self.dir)


def only_unix(path, *flags, **own):
    return Server.fake("--host", "", "--unix-socket", path, *flags, **own)


def client(path, **kw):
    return openai.OpenAI(base_url="http://moed/v1", api_key=kw.pop("api_key", "-"), max_retries=0,
                         http_client=httpx.Client(transport=httpx.HTTPTransport(uds=path)), **kw)


def refused(says, code, *flags):
    """moed serve with these flags ends at once, with one line."""
    r = subprocess.run([MOED, "serve", "--model", "/nonexistent", "--port", "0", *flags], capture_output=True, text=True, timeout=20, env={})
    check(r.returncode == code and says in r.stderr and r.stderr.count("\n") == 1, (flags, r.returncode, r.stderr))


def official_client():
    with Place() as path, only_unix(path) as s:
        check(s.port is None and s.unix == path, s.unix)
        c = client(path)
        whole = c.completions.create(model="", prompt="a b", max_tokens=20, temperature=0)
        parts = list(c.completions.create(model="", prompt="a b", max_tokens=20, temperature=0, stream=True))
        check("".join(p.choices[0].text for p in parts) == whole.choices[0].text, "the stream differs")
        chat = c.chat.completions.create(model="", messages=[{"role": "user", "content": "\u00abhi\u00bb"}])
        check(chat.choices[0].message.content == "hi", chat)
    check(not os.path.exists(path), "the socket file is still there")


def curl_and_healthcheck():
    with Place() as path, only_unix(path):
        curl = ["curl", "-sS", "--max-time", "10", "--unix-socket", path]
        for host in ("localhost", "moed", "evil.example"):  # no browser comes this way: any name
            r = subprocess.run([*curl, f"http://{host}/v1/models"], capture_output=True, text=True)
            check(r.returncode == 0 and json.loads(r.stdout)["object"] == "list", (r.stdout, r.stderr))
        r = subprocess.run([*curl, "-N", "http://localhost/v1/completions", "-H", "Content-Type: application/json",
                            "-d", '{"prompt": "a", "max_tokens": 3, "stream": true}'], capture_output=True, text=True)
        check(r.stdout.endswith("data: [DONE]\n\n"), (r.stdout[-200:], r.stderr))
        ask = lambda p: subprocess.run([MOED, "healthcheck", "--unix-socket", p], capture_output=True, text=True, env={})
        check(ask(path).returncode == 0, ask(path).stderr)
        check(ask(path + "x").returncode == 1 and path + "x" in ask(path + "x").stderr, ask(path + "x"))


def two_sockets_at_once():
    with Place() as path, Server.fake("--unix-socket", path, "--host", "127.0.0.1") as s:
        check(s.process.stdout.readline().strip() == f"listening on unix:{path}", "the second address is not printed")
        a = client(path).completions.create(model="", prompt="a b", max_tokens=9, temperature=0)
        b = json.loads(s.post({"prompt": "a b", "max_tokens": 9, "temperature": 0})[2])
        check(a.choices[0].text == b["choices"][0]["text"], "the answers differ")
        with socket.socket(socket.AF_UNIX) as u, s.connect() as t:
            u.connect(path)
            for sock, want in ((u, 200), (t, 403)):  # only TCP on loopback is where a page may have sent us
                sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
                check(read_response(sock)[0] == want, want)


def connection_limit_is_shared():
    """Sockets take turns at the limit; nobody is refused."""
    with Place() as path, Server.fake("--unix-socket", path, "--max-connections", "4") as s:
        held = []
        for i in range(24):
            if i % 2:
                held.append(s.connect())
            else:
                held.append(socket.socket(socket.AF_UNIX))
                held[-1].connect(path)
        check(client(path).models.list().data[0].id == "fake", "over the Unix socket")
        check(s.request("GET", "/health")[0] == 200, "over TCP")
        for h in held:
            h.close()


def keys_and_admin():
    with Place() as path, tempfile.NamedTemporaryFile("w") as keys:
        keys.write(KEY + "\n")
        keys.flush()
        with only_unix(path, "--api-key-file", keys.name):
            try:
                client(path).models.list()
                check(False, "no key is asked for")
            except openai.AuthenticationError:
                pass
            check(client(path, api_key=KEY).models.list().data, "the key is not taken")
        # Admin routes: over the Unix socket, not from the network.
        with Server.fake("--unix-socket", path, "--host", "0.0.0.0") as s:
            check(s.request("GET", "/admin/offload")[0] == 403, "admin from the network")
            over = httpx.Client(transport=httpx.HTTPTransport(uds=path)).get("http://x/admin/offload")
            check(over.json() == {"experts": "resident"}, over.text)


def mode_and_owner():
    with Place() as path:
        for flags, want in (((), 0o660), (("--unix-mode", "600"), 0o600), (("--unix-mode", "666"), 0o666)):
            with only_unix(path, *flags):
                check(stat.S_IMODE(os.stat(path).st_mode) == want, (flags, oct(os.stat(path).st_mode)))
        me, mine = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
        for owner in (me, f"{me}:{mine}", f":{mine}"):
            with only_unix(path, "--unix-owner", owner):
                st = os.stat(path)
                check((st.st_uid, st.st_gid) == (os.getuid(), os.getgid()), st)
        if os.getuid() == 0:
            with only_unix(path, "--unix-owner", "nobody:nogroup"):
                check(pwd.getpwuid(os.stat(path).st_uid).pw_name == "nobody", os.stat(path))
        refused("no user \"no-such-user\"", 78, "--unix-socket", path, "--unix-owner", "no-such-user")
        refused("no group \"no-such-group\"", 78, "--unix-socket", path, "--unix-owner", ":no-such-group")
        refused("expected one of 600|660|666", 78, "--unix-socket", path, "--unix-mode", "777")


def what_is_in_the_way():
    with Place() as path:
        with only_unix(path) as s:  # a live one is taken, and stays
            refused("another program answers there", 75, "--unix-socket", path)
            check(s.request("GET", "/health")[0] == 200, "the first server lost its socket")
        left = socket.socket(socket.AF_UNIX)
        left.bind(path)
        left.close()  # what a killed server leaves behind
        with only_unix(path) as s:
            check(s.request("GET", "/health")[0] == 200, "a stale socket is not replaced")
            check("nobody answers there" in s.stderr(), s.stderr())
        with open(path, "w") as f:
            f.write("precious")
        refused("is no socket", 78, "--unix-socket", path)
        check(open(path).read() == "precious", "somebody's file is gone")
        os.unlink(path)
        os.symlink("/nowhere", path)
        refused("is no socket", 78, "--unix-socket", path)
        refused("the path has 120 bytes", 78, "--unix-socket", "/" + "x" * 119)
        refused("nobody could connect", 78, "--host", "")
        try:
            only_unix(path + "/x/y").kill()
            check(False, "a directory that is not there")
        except RuntimeError as e:
            check("unix" in str(e), e)


def somebody_elses_file_stays():
    """The path was given to another while the server ran: it is not removed at the end."""
    with Place() as path:
        with only_unix(path):
            os.rename(path, path + ".old")
            other = socket.socket(socket.AF_UNIX)
            other.bind(path)
        check(os.path.exists(path), "another server's socket is gone")
        other.close()


def framing_over_unix():
    """The cases of the framing test, whole: what a payload means does not depend on the socket."""
    with Place() as path, only_unix(path, "--allowed-hosts", "*") as s:
        wrong = []
        for name, data, want in CASES:
            got = [r[0] for r in verdict(s, [data], want)]
            if got != [abs(status) for status in want]:
                wrong.append(f"{name}: {got} instead of {want}")
        check(not wrong, "\n".join(wrong))


# ---- supervisors ----

def activated(sockets, *flags, pid="$$"):
    """The server as systemd starts it: listening sockets from descriptor 3 on."""
    fds = " ".join(f"{3 + i}<&{s.fileno()}" for i, s in enumerate(sockets))
    shell = f'LISTEN_PID={pid} LISTEN_FDS={len(sockets)} exec "$@" {fds}'
    return Server(["bash", "-c", shell, "bash", BUILD / "helpers/server_fake", "--", "--model", "none", *flags], pass_fds=[s.fileno() for s in sockets])


def socket_activation():
    with Place() as path:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path)
            unix.listen()
            port = tcp.getsockname()[1]
            high = [socket.socket(fileno=fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, 20)) for s in (tcp, unix)]  # clear of 3 and 4
            waiting = socket.create_connection(("127.0.0.1", port))  # before the server is there
            waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with activated(high, "--port", "1", "--unix-socket", "/nonexistent/x") as s:
                check(s.port == port, s.port)
                check(s.process.stdout.readline().strip() == f"listening on unix:{path}", "the second address is not printed")
                check(read_response(waiting)[0] == 200, "who came before the server is not served")
                check(client(path).models.list().data[0].id == "fake", "over the Unix socket")
                with s.connect() as sock:
                    sock.sendall(b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n")
                    check(read_response(sock)[0] == 403, "the loopback address of the socket is not known")
            check(os.path.exists(path), "somebody else's socket is removed")
            with activated(high, "--port", "0", pid="1") as s:  # meant for another process
                check(s.port != port, "sockets of another process are taken")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            high = socket.socket(fileno=fcntl.fcntl(datagram.fileno(), fcntl.F_DUPFD, 20))
            try:
                activated([high]).kill()
                check(False, "a datagram socket is taken")
            except RuntimeError as e:
                check("no stream socket" in str(e), e)


def supervisor_is_told():
    """READY, RELOADING with its time, READY, STOPPING, to a path and to an abstract name."""
    with Place() as path:
        for where in (path, "@moed-test-%d" % os.getpid()):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
                listener.bind(where.replace("@", "\0"))
                listener.settimeout(20)
                s = Server([BUILD / "helpers/server_fake", "--", "--model", "none", "--port", "0"], env={"NOTIFY_SOCKET": where})
                check(listener.recv(200) == b"READY=1", "READY")
                s.process.send_signal(signal.SIGHUP)
                said = listener.recv(200)
                check(re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", said), said)
                check(abs(int(said.split(b"=")[2]) / 1e6 - time.monotonic()) < 20, "the time is not CLOCK_MONOTONIC")
                check(listener.recv(200) == b"READY=1", "READY again")
                s.stop()
                check(listener.recv(200) == b"STOPPING=1", "STOPPING")
    for where in ("/nonexistent/x", "relative", "", "/" + "x" * 200):
        with Server([BUILD / "helpers/server_fake", "--", "--model", "none", "--port", "0"], env={"NOTIFY_SOCKET": where}) as s:
            check(s.request("GET", "/health")[0] == 200, where)


if __name__ == "__main__":
    sys.exit(run_cases(official_client, curl_and_healthcheck, two_sockets_at_once, connection_limit_is_shared, keys_and_admin, mode_and_owner,
                       what_is_in_the_way, somebody_elses_file_stays, framing_over_unix, socket_activation, supervisor_is_told))
