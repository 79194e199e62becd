# SPDX-License-Identifier: Apache-2.0
"""A short run of bench/goodput.py on the fake engine: at twice the rate the server can do, it goes on doing it."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import goodput
from serving import check, run_cases

LOAD = goodput.Load(places=8, n_prompt=100, n_output=16, ttft_s=1.0, tpot_s=0.1)


def overload_costs_little():
    saturating, (full, double) = goodput.measure("fake", LOAD, 4, 400, (1.0, 2.0))
    print(f"# saturating rate {saturating:.1f}/s; goodput {full['goodput']:.1f}/s at it, {double['goodput']:.1f}/s at twice of it: {double}")
    check(double["refused"] > double["arrived"] / 4, "the server was not overloaded")
    check(double["goodput"] > 0.8 * full["goodput"] and double["good"] > 0.85 * double["served"], double)


if __name__ == "__main__":
    sys.exit(run_cases(overload_costs_little))
