#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the demo models in other block formats, for comparisons of quality: models/formats/<format>.gguf.

llama.cpp's own quantiser does it (llama-cpp-python==0.3.36), from the dense demo model, so every file is what a user would
get. 576 columns are no multiple of 256: K-quant and IQ4_XS files hold those blocks in the FFN's down projection, and what
the quantiser falls back to elsewhere. MXFP4 exists for experts only and comes from the MoE.

Usage: tools/make_formats.py [--dir models] [FORMAT...]     default: all
"""
import argparse
import os
import sys

import llama_cpp as lc

DENSE, MOE = "SmolLM2-135M-Instruct.Q4_1.gguf", "demo-moe.gguf"
FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "BF16", "F16"]


@lc.llama_log_callback
def be_quiet(level, text, data):
    pass


def quantise(src, dst, kind):
    p = lc.llama_model_quantize_default_params()
    p.ftype = getattr(lc, f"LLAMA_FTYPE_MOSTLY_{kind}")
    p.nthread = len(os.sched_getaffinity(0))
    p.allow_requantize = True
    if lc.llama_model_quantize(src.encode(), (dst + ".part").encode(), p):
        sys.exit(f"{dst}: the quantiser failed")
    os.replace(dst + ".part", dst)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", default="models")
    p.add_argument("formats", nargs="*", metavar="FORMAT", help=" ".join(FORMATS))
    a = p.parse_args()
    os.makedirs(os.path.join(a.dir, "formats"), exist_ok=True)
    lc.llama_backend_init()
    lc.llama_log_set(be_quiet, None)
    for kind in a.formats or FORMATS:
        if kind not in FORMATS:
            sys.exit(f"unknown format {kind}; expected one of {' '.join(FORMATS)}")
        dst = os.path.join(a.dir, "formats", kind + ".gguf")
        quantise(os.path.join(a.dir, MOE if kind == "MXFP4_MOE" else DENSE), dst, kind)
        print(f"{dst}: {os.path.getsize(dst) / 1e6:.0f} MB", flush=True)


main()
