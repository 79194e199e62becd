#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schemathesis on /openapi.json: valid and broken requests of every route, made from the document; no 5xx, no answer that the
document does not describe, no broken request accepted, no valid one refused without a reason.

Usage: tests/schemathesis.py [--cases 20000] [--seed 1] [--server fake|demo] [--phases coverage,fuzzing]
Needs build/release/helpers/server_fake, or moed and the demo model; puts schemathesis into a virtual environment under build/.
Not part of the suite: it takes minutes and thirty packages. tests/e2e/test_openapi.py is its smoke test."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "e2e"))
from serving import ROOT, Server  # noqa: E402

VERSION = "4.32.5"
ENV = ROOT / "build/schemathesis"
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,"
          "negative_data_rejection,missing_required_header,unsupported_method,allow_header_conformance,refused_for_a_reason")
GENERATING_ROUTES = 9  # the rest take no body: a case or two each


def set_up():
    if not (ENV / VERSION).exists():
        venv.create(ENV, with_pip=True)
        subprocess.run([ENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", f"schemathesis=={VERSION}"], check=True)
        (ENV / VERSION).touch()


def start(kind):
    if kind == "demo":
        return Server.demo("--context", "1024", "--admin", "on")
    return Server.fake("--admin", "on", ctx=4096)


def run(port, args, log):
    """The exit status of schemathesis and the number of cases it made."""
    argv = [ENV / "bin/schemathesis", "run", f"http://127.0.0.1:{port}/openapi.json", "--phases", args.phases, "--checks", CHECKS, "--continue-on-failure",
            "--max-examples", str(args.cases // GENERATING_ROUTES + 1), "--seed", str(args.seed), "--generation-database", "none", "--no-color", "--request-timeout", "60"]
    env = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE / "e2e"), "CASES_LOG": log}
    with tempfile.TemporaryDirectory() as cwd:
        return subprocess.run(argv, env=env, cwd=cwd).returncode


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cases", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--server", choices=("fake", "demo"), default="fake")
    p.add_argument("--phases", default="coverage,fuzzing", help="coverage: every field with every kind of value; fuzzing: random requests")
    args = p.parse_args()
    set_up()
    server = start(args.server)
    with tempfile.NamedTemporaryFile() as log:
        rc = run(server.port, args, log.name)
        counts = json.load(open(log.name))
    server.wait_idle()
    server.stop()
    total = sum(n for _, _, n in counts)
    print("\n".join(f"{mode:9} {status} {n:6}" for mode, status, n in counts))
    print(f"{'PASS' if rc == 0 and total >= args.cases else 'FAIL'} schemathesis_{args.server}: {total} cases of {args.cases}, exit status {rc}")
    sys.exit(rc != 0 or total < args.cases)


if __name__ == "__main__":
    main()
