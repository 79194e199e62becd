#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The SIMD path must be far ahead of the scalar one: a build or dispatch mistake shows as a factor, not as a time. No
absolute times are checked, machines differ."""
import subprocess
import sys

from serving import BUILD, DEMO, ROOT, SANITIZED, Skip, check, run_cases


def simd_is_five_times_scalar():
    if SANITIZED:
        raise Skip("speed of an instrumented build says nothing")
    if not DEMO.exists():
        raise AssertionError(f"no {DEMO.relative_to(ROOT)}; tools/make_demo.py makes it")
    r = subprocess.run([sys.executable, ROOT / "bench/compare.py", "--smoke", "--build", BUILD, DEMO], capture_output=True, text=True,
                       check=False, timeout=300)
    if r.returncode == 77:
        raise Skip("this CPU has no SIMD level")
    print(f"# {r.stdout.strip()}")
    check(r.returncode == 0, r.stdout + r.stderr[-2000:])


sys.exit(run_cases(simd_is_five_times_scalar))
