#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF with the exact layer shapes of a real Mixture-of-Experts model and random weights.

Same bytes and operations as the real model, so the same speed, without a download; the text is noise. There is
no tokenizer in it ("none"): for `moed bench` and for peers' benchmarks.

  tools/synthetic_gguf.py /tmp/qwen3-12l.gguf --arch qwen3moe --format q4_0 --layers 12
"""
import argparse
import struct
import sys

import numpy as np

F32, Q4_0, Q8_0, Q4_K, Q6_K, MXFP4 = 0, 2, 8, 12, 14, 39
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210), MXFP4: (32, 17)}

# Shapes of Qwen3-30B-A3B and OLMoE-1B-7B as their GGUF files state them.
SHAPES = {
    "qwen3moe": dict(embd=2048, experts=128, used=8, ff=768, heads=32, kv_heads=4, head=128, vocab=151936, layers=48,
                     eps=1e-6, theta=1e6, per_head_norm=True),
    "olmoe": dict(embd=2048, experts=64, used=8, ff=1024, heads=16, kv_heads=16, head=128, vocab=50304, layers=16,
                  eps=1e-5, theta=1e4, per_head_norm=False),
}

# format -> (embedding, head, attention, experts' gate and up, experts' down, attn_v); "more" = Q6_K where the usual
# mixed recipe spends more bits: the first and last eighth of the layers and every third between them.
FORMATS = {
    "q4_0": (Q4_0, Q6_K, Q4_0, Q4_0, Q4_0, Q4_0),
    "q4_k": (Q4_K, Q4_K, Q4_K, Q4_K, Q4_K, Q4_K),
    "q4_k_m": (Q4_K, Q6_K, Q4_K, Q4_K, "more", "more"),
    "q6_k": (Q6_K,) * 6,
    "q8_0": (Q8_0,) * 6,
    "mxfp4": (Q8_0, Q8_0, Q8_0, MXFP4, MXFP4, Q8_0),
}


# What the embeddings are multiplied with. As small as other weights they drown in what attention adds, which is nearly the same for
# neighbouring tokens: those choose the same experts ("narrow"). "wide" gives each token a part of its own that is large
# enough for the reuse of experts published for Qwen3-30B-A3B: 45 % in the next token, 80 % within 8.
EMBEDDING_SCALE = {"narrow": 1, "wide": 14}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--arch", choices=SHAPES, default="qwen3moe")
    p.add_argument("--format", choices=FORMATS, default="q4_0")
    p.add_argument("--layers", type=int, help="default: the real model's")
    p.add_argument("--vocab", type=int, help="default: the real model's")
    p.add_argument("--context", type=int, default=4096)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--routing", choices=EMBEDDING_SCALE, default="narrow")
    return p.parse_args()


def more_bits(layer, n):
    return layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2


def tensors(s, fmt, layers, vocab):
    """(name, shape with the contiguous dimension first, type) in file order."""
    embd, head, attn, gate_up, down, attn_v = FORMATS[fmt]
    d, q, kv = s["embd"], s["heads"] * s["head"], s["kv_heads"] * s["head"]
    q_norm, k_norm = (s["head"], s["head"]) if s["per_head_norm"] else (q, kv)
    yield "token_embd.weight", (d, vocab), embd
    yield "output_norm.weight", (d,), F32
    yield "output.weight", (d, vocab), head
    for i in range(layers):
        pick = lambda t: (Q6_K if more_bits(i, layers) else Q4_K) if t == "more" else t
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (d,), F32
        yield b + "attn_q.weight", (d, q), attn
        yield b + "attn_k.weight", (d, kv), attn
        yield b + "attn_v.weight", (d, kv), pick(attn_v)
        yield b + "attn_output.weight", (q, d), attn
        yield b + "attn_q_norm.weight", (q_norm,), F32
        yield b + "attn_k_norm.weight", (k_norm,), F32
        yield b + "ffn_norm.weight", (d,), F32
        yield b + "ffn_gate_inp.weight", (d, s["experts"]), F32
        yield b + "ffn_gate_exps.weight", (d, s["ff"], s["experts"]), gate_up
        yield b + "ffn_up_exps.weight", (d, s["ff"], s["experts"]), gate_up
        yield b + "ffn_down_exps.weight", (s["ff"], d, s["experts"]), pick(down)


def random_blocks(rng, kind, n, scale):
    """n blocks of random codes: weights of mean 0 and variance about 1 / 2048. A mean, even a small one, would grow from
    layer to layer until all tokens look alike and choose the same few experts."""
    size = BLOCK[kind][1]
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    half = lambda x: np.frombuffer(np.float16(scale * x).tobytes(), np.uint8)
    if kind == Q4_0:
        b = (rng.integers(1, 16, (n, size), dtype=np.uint8) | rng.integers(1, 16, (n, size), dtype=np.uint8) << 4)
        b[:, :2] = half(0.0048)
    elif kind == Q8_0:
        b[:, :2] = half(0.0003)
    elif kind == Q4_K:
        b[:, :2], b[:, 2:4] = half(0.000073), half(0.00055)
    elif kind == Q6_K:
        b[:, 192:208] = rng.integers(1, 64, (n, 16)) * rng.choice([-1, 1], (n, 16)) & 255
        b[:, 208:] = half(0.000033)
    elif kind == MXFP4:
        b[:, 0] = 120
    return b.tobytes()


class Filler:
    """Endless weights from one random pattern per type, of a length that no row length divides, so the rows of a
    matrix differ; each tensor starts elsewhere in it. Drawing gigabytes at random would only take minutes."""

    def __init__(self, seed):
        self.rng, self.pattern = np.random.default_rng(seed), {}

    def write(self, f, kind, shape, scale=1):
        n = int(np.prod(shape, dtype=np.int64))
        if kind == F32:
            f.write(self.f32(shape, n))
            return
        elems, size = BLOCK[kind]
        assert shape[0] % elems == 0, (shape, kind)
        if (kind, scale) not in self.pattern:
            self.pattern[kind, scale] = random_blocks(self.rng, kind, 100003, scale) * 8
        left, p = n // elems * size, self.pattern[kind, scale]
        start = int(self.rng.integers(100003)) * size
        left -= f.write(p[start:start + left])
        while left:
            left -= f.write(p[:left])

    def f32(self, shape, n):
        if len(shape) == 1:
            return (1 + 0.1 * self.rng.standard_normal(n, dtype=np.float32)).tobytes()
        return (self.rng.standard_normal(n, dtype=np.float32) / np.float32(np.sqrt(shape[0]))).tobytes()


def string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, value):
    if isinstance(value, str):
        return string(name) + struct.pack("<I", 8) + string(value)
    kind, code = ("f", 6) if isinstance(value, float) else ("I", 4)
    return string(name) + struct.pack("<I" + kind, code, value)


def keys(arch, s, layers, vocab, context):
    meta = {
        "block_count": layers, "context_length": context, "embedding_length": s["embd"], "feed_forward_length": s["ff"],
        "attention.head_count": s["heads"], "attention.head_count_kv": s["kv_heads"], "attention.key_length": s["head"],
        "attention.value_length": s["head"], "attention.layer_norm_rms_epsilon": s["eps"], "rope.freq_base": s["theta"],
        "expert_count": s["experts"], "expert_used_count": s["used"], "expert_feed_forward_length": s["ff"],
        "vocab_size": vocab,
    }
    out = [key("general.architecture", arch), key("general.name", f"synthetic {arch}, {layers} layers"),
           key("tokenizer.ggml.model", "none")]
    return out + [key(f"{arch}.{k}", v) for k, v in meta.items()]


def pad(f):
    f.write(b"\0" * (-f.tell() % 32))


def main():
    a = parse_args()
    s = SHAPES[a.arch]
    layers, vocab = a.layers or s["layers"], a.vocab or s["vocab"]
    rows, offset, info = list(tensors(s, a.format, layers, vocab)), 0, []
    for name, shape, kind in rows:
        elems, size = BLOCK[kind]
        info.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += (int(np.prod(shape, dtype=np.int64)) // elems * size + 31) // 32 * 32
    meta = keys(a.arch, s, layers, vocab, a.context)
    with open(a.out, "wb") as f:
        f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(rows), len(meta)) + b"".join(meta) + b"".join(info))
        pad(f)
        filler = Filler(a.seed)
        for name, shape, kind in rows:
            filler.write(f, kind, shape, EMBEDDING_SCALE[a.routing] if name == "token_embd.weight" else 1)
            pad(f)
        print(f"{a.out}: {len(rows)} tensors, {f.tell() / 1e9:.2f} GB", file=sys.stderr)


main()
