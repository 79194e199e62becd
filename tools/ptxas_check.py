#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ptxas says of every kernel and card (logs of `nvcc -Xptxas -v`): no spill, no stack, registers within the limit
written here. Prints one line per kernel and exits 1 on any finding.

A limit is what the kernel needs on the worst card and a little more: it is there to notice growth, and with the block size
it says how many warps a multiprocessor holds (65,536 registers)."""
import re
import subprocess
import sys

LIMIT = {"route_kernel": 176, "group_small_kernel": 64, "group_count_kernel": 64, "group_scan_kernel": 48,
         "group_scatter_kernel": 64, "rms_norm_kernel": 48, "gemm_few_kernel": 64, "swiglu_q8_kernel": 32, "combine_kernel": 40}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def kernels(text):
    """(mangled name, card, stack and spill bytes, registers) of every kernel in a log."""
    for part in re.split(r"(?=ptxas info\s+: Compiling entry)", text)[1:]:
        entry, spill, used = ENTRY.search(part), SPILL.search(part), USED.search(part)
        yield entry[1], entry[2], sum(map(int, spill.groups())), int(used[1])


def main():
    seen, bad = {}, []
    for path in sys.argv[1:]:
        found = list(kernels(open(path).read()))
        if not found:
            bad.append(f"{path}: no kernel in it")
        for name, card, spilt, registers in found:
            seen.setdefault(name, {})[card] = (spilt, registers)
    plain = subprocess.run(["c++filt"], input="\n".join(seen), capture_output=True, text=True, check=True).stdout.split("\n")
    for name, pretty in zip(seen, plain):
        pretty = re.sub(r"^void |\(.*", "", re.sub(r"\(int\)|\(unsigned int\)", "", pretty))
        base = re.sub(r".*::|<.*", "", pretty)
        most = max(r for _, r in seen[name].values())
        print(f"{pretty:32s} {most:4d} registers of {LIMIT.get(base, 0):4d}   {' '.join(sorted(seen[name]))}")
        if base not in LIMIT:
            bad.append(f"{pretty}: no limit written in {sys.argv[0]}")
        elif most > LIMIT[base]:
            bad.append(f"{pretty}: {most} registers, limit {LIMIT[base]}")
        bad += [f"{pretty} for {c}: {s} bytes of stack and spills" for c, (s, _) in seen[name].items() if s]
    print("\n".join(bad) or f"{len(seen)} kernels within their limits")
    return bool(bad)


sys.exit(main())
