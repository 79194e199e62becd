#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What TLS costs: the server over a fake engine (helpers/server_fake), plain and TLS, and nginx as the peer where it is installed.

  bench/tls.py [--seconds 3] [--repeat 3]

wrk on one thread asks over kept connections, sides in turn A B C A B C, medians count; `openssl s_time` makes handshakes; memory is
what 500 idle connections add to the server. Needs wrk and openssl; make check-build first.
"""
import argparse
import os
import re
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from http_rig import Server, over_tls

STREAM = '''
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"prompt": "a b", "max_tokens": 200, "ignore_eos": true, "stream": true}'
'''


def trusting():
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    return c


class Nginx:
    """One worker, a static answer of the same size, the same certificate, plain and TLS."""

    def __init__(self, place):
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0)), b.bind(("127.0.0.1", 0))
            self.plain, self.tls = a.getsockname()[1], b.getsockname()[1]
        conf = os.path.join(place, "nginx.conf")
        with open(conf, "w") as f:
            f.write(f"""worker_processes 1; daemon off; pid {place}/nginx.pid; error_log {place}/error.log;
                events {{ worker_connections 1024; }}
                http {{ access_log off; keepalive_requests 100000000; ssl_certificate {place}/c.pem; ssl_certificate_key {place}/k.pem; ssl_protocols TLSv1.2 TLSv1.3;
                server {{ listen 127.0.0.1:{self.plain}; listen 127.0.0.1:{self.tls} ssl;
                location / {{ default_type application/json; return 200 '{{"status":"ok"}}'; }} }} }}""")
        self.child = subprocess.Popen(["nginx", "-c", conf], stderr=subprocess.DEVNULL)
        time.sleep(0.5)

    def stop(self):
        self.child.terminate()
        self.child.wait()


def wrk(url, seconds, script=None):
    r = subprocess.run(["wrk", "-t1", "-c32", f"-d{seconds}s", *(["-s", script] if script else []), url], capture_output=True, text=True)
    assert "Requests/sec" in r.stdout and "Non-2xx" not in r.stdout and "Socket errors" not in r.stdout, r.stdout + r.stderr
    return float(re.search(r"Requests/sec:\s+([\d.]+)", r.stdout).group(1))


def handshakes(port, seconds, how):
    start = time.monotonic()  # s_time itself counts whole seconds
    r = subprocess.run(["openssl", "s_time", "-connect", f"127.0.0.1:{port}", how, "-time", str(seconds)], capture_output=True, text=True)
    return int(re.findall(r"(\d+) connections in \d+ real seconds", r.stdout)[-1]) / (time.monotonic() - start)


def idle_kib(server, tls, n=500):
    rss = lambda: int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{server.child.pid}/status").read()).group(1))
    connect = lambda: over_tls(server.connect(), tls) if tls else server.connect()
    with connect() as first:
        first.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        first.recv(4096)
        before, held = rss(), []
        for _ in range(n):
            held.append(connect())
            held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            held[-1].recv(4096)
        used = (rss() - before) / n
    for s in held:
        s.close()
    return used


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=int, default=3)
    p.add_argument("--repeat", type=int, default=3)
    a = p.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    with tempfile.TemporaryDirectory() as place:
        c, k, script = (os.path.join(place, n) for n in ("c.pem", "k.pem", "stream.lua"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", k, "-out", c], check=True, capture_output=True)
        with open(script, "w") as f:
            f.write(STREAM)
        nginx = Nginx(place) if subprocess.run(["which", "nginx"], capture_output=True).returncode == 0 else None
        own = ("step-us=0",)
        with Server(own=own) as plain, Server("--tls-cert", c, "--tls-key", k, own=own) as tls:
            print(f"{'KiB per idle connection':26} {'moed, plain':14} {idle_kib(plain, None):10.1f}")
            print(f"{'KiB per idle connection':26} {'moed, TLS':14} {idle_kib(tls, trusting()):10.1f}", flush=True)
            small = [("moed, plain", f"http://127.0.0.1:{plain.port}/health"), ("moed, TLS", f"https://127.0.0.1:{tls.port}/health")]
            if nginx:
                small += [("nginx, plain", f"http://127.0.0.1:{nginx.plain}/"), ("nginx, TLS", f"https://127.0.0.1:{nginx.tls}/")]
            streams = [("moed, plain", f"http://127.0.0.1:{plain.port}/v1/completions"), ("moed, TLS", f"https://127.0.0.1:{tls.port}/v1/completions")]
            for what, sides, lua in (("small requests/s", small, None), ("streams of 200 events/s", streams, script)):
                rates = {name: [] for name, _ in sides}
                for _ in range(a.repeat):
                    for name, url in sides:
                        rates[name].append(wrk(url, a.seconds, lua))
                for name, _ in sides:
                    print(f"{what:26} {name:14} {statistics.median(rates[name]):10.0f}   {min(rates[name]):.0f} to {max(rates[name]):.0f}")
            ports = [("moed", tls.port)] + ([("nginx", nginx.tls)] if nginx else [])
            for how, name in (("-new", "full handshakes/s"), ("-reuse", "resumed handshakes/s")):
                for side, port in ports:
                    print(f"{name:26} {side:14} {handshakes(port, a.seconds, how):10.0f}")
        if nginx:
            nginx.stop()


if __name__ == "__main__":
    main()
