#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moed pack with the real binary: a packed model answers as its source does, a run that is killed goes on and ends in the
same bytes, and what is broken is told before an expert is used."""
import functools
import importlib.util
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from serving import BUILD, DEMO, ROOT, Server, Skip, check, run_cases

MOED = BUILD / "moed"
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="moed-pack-"))
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village by the sea,", "1, 2, 3, 4,"]


def moed(*args, rc=0, **more):
    r = subprocess.run([str(MOED), *map(str, args)], capture_output=True, text=True, check=False, timeout=300, **more)
    check(r.returncode == rc, lambda: f"{args}: exit status {r.returncode}, expected {rc}: {r.stderr[-600:]}")
    check(rc == 0 or r.stderr.strip(), lambda: f"{args}: failed without a word")
    return r


def demo():
    check(DEMO.exists(), f"no {DEMO.relative_to(ROOT)}; tools/make_demo.py makes it")
    return DEMO


@functools.cache
def packed():
    """The demo model, packed in one go; nothing else is left."""
    out = FOLDER / "packed.gguf"
    moed("pack", demo(), out)
    check(sorted(p.name for p in FOLDER.glob("packed*")) == ["packed.gguf"], "something is left beside the packed model")
    return out


def same(a, b):
    return subprocess.run(["cmp", "-s", a, b], check=False).returncode == 0


def answers(model):
    with Server([MOED, "serve", "--port", "0", "--model", model], wait_s=180) as s:
        return [s.complete(prompt=p, max_tokens=24, temperature=0, logprobs=3)["choices"] for p in PROMPTS]


def same_answers():
    want, got = answers(demo()), answers(packed())
    check(json.dumps(want) == json.dumps(got), lambda: f"{want}\n{got}")
    text = ROOT / "tests/data/english.txt"
    both = [json.loads(moed("perplexity", m, text, "--tokens", 96, "--json", "-").stdout)["window_nll"] for m in (demo(), packed())]
    check(both[0] == both[1], str(both))


def inspect_and_bench_read_it():
    text = moed("inspect", packed()).stdout
    check("can serve it" in text and re.search(r"^packed +960 records from offset \d+", text, re.M), text[:2000])
    check(re.search(r"^packed from +demo-moe\.gguf, 238\.3 MiB", text, re.M), text[:2000])
    out = [json.loads(moed("bench", m, "--prompt", "32", "--batch", "1", "--gen", "4", "--repeat", "1", "--json", "-").stdout)
           for m in (demo(), packed())]
    costs = [(o["ops_per_token"], o["kv_bytes_per_token"], o["results"][1]["weight_bytes_per_step"]) for o in out]
    check(costs[0] == costs[1], str(costs))


def verify_is_content():
    check("every checksum is right" in moed("pack", "--verify", packed()).stdout, "no word of success")


def refusals():
    dense = DEMO.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    out = FOLDER / "refused.gguf"
    check("no experts to pack" in moed("pack", dense, out, rc=1).stderr, "dense")
    check("packed already" in moed("pack", packed(), out, rc=1).stderr, "packed")
    check("not a packed model" in moed("pack", "--verify", demo(), rc=1).stderr, "verify of a GGUF")
    out.write_bytes(b"mine")
    check("--force" in moed("pack", demo(), out, rc=1).stderr and out.read_bytes() == b"mine", "exists")
    moed("pack", demo(), out, "--force")
    check(same(out, packed()), "--force")
    check("model itself" in moed("pack", demo(), demo(), "--force", rc=1).stderr, "itself")
    for args in ((), ("a",), ("a", "b", "c"), ("a", "b", "--threads", "0"), ("--verify", "a", "b"), ("--verify", "a", "--force")):
        check("usage: moed pack" in moed("pack", *args, rc=2).stderr, str(args))
    check(not list(FOLDER.glob("refused.gguf.*")), "leftovers")
    out.unlink()


def kill_and_resume():
    """Killed as soon as the journal has grown, again and again; then at moments nobody chose."""
    out = FOLDER / "resumed.gguf"
    journal = FOLDER / "resumed.gguf.partial.journal"
    command = [MOED, "pack", demo(), out, "--threads", "1"]
    kills = 0
    for delay in (None, None, None, 0.0, 0.01, 0.03, None):
        before = journal.stat().st_size if journal.exists() else 24
        p = subprocess.Popen([str(a) for a in command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while delay is None and p.poll() is None and not (journal.exists() and journal.stat().st_size > before):
            check(time.monotonic() < deadline, "the journal does not grow")
        time.sleep(delay or 0)
        p.kill()
        kills += p.wait() == -9
        if out.exists():
            break
    check(kills >= 2, f"only {kills} runs were killed")
    if not out.exists():
        text = moed(*command[1:]).stderr
        check(re.search(r"resumed at (?!0\.0)", text), text)
    check(same(out, packed()), "the resumed file differs")
    check(sorted(p.name for p in FOLDER.glob("resumed*")) == ["resumed.gguf"], "leftovers")
    out.unlink()


def killed_at_any_moment():
    """One kill in each run, at moments spread over a whole one: OUT is there and right or not there, and the next run ends well."""
    out = FOLDER / "killed.gguf"
    command = [str(MOED), "pack", str(demo()), str(out), "--threads", "1"]
    start = time.monotonic()
    moed(*command[1:])
    took = time.monotonic() - start
    out.unlink()
    kills = 0
    for i in range(5):
        p = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(took * (i + 0.5) / 5)
        p.kill()
        kills += p.wait() == -9
        check(not out.exists() or same(out, packed()), f"kill {i}: a torn file has the name of a whole one")
        if not out.exists():
            moed(*command[1:])
        check(same(out, packed()) and len(list(FOLDER.glob("killed*"))) == 1, f"kill {i}: the run after it")
        out.unlink()
    check(kills >= 2, f"only {kills} runs were killed")


def two_at_once():
    out = FOLDER / "twice.gguf"
    first = subprocess.Popen([str(MOED), "pack", str(demo()), str(out), "--threads", "1"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while first.poll() is None and not (FOLDER / "twice.gguf.partial.journal").exists():
        pass
    second = subprocess.run([str(MOED), "pack", str(demo()), str(out)], capture_output=True, text=True, check=False, timeout=300)
    check(first.wait() == 0 and same(out, packed()), "the first run")
    check(second.returncode == 1 and ("another process" in second.stderr or "exists already" in second.stderr), second.stderr)
    out.unlink()


def changed(name, at, xor=0x20, keep=None):
    """A copy of the packed model with one byte changed, or cut to `keep` bytes."""
    path = FOLDER / name
    shutil.copyfile(packed(), path)
    with open(path, "r+b") as f:
        if keep is not None:
            f.truncate(keep)
        else:
            f.seek(at)
            b = f.read(1)[0]
            f.seek(at)
            f.write(bytes([b ^ xor]))
    return path


def serve_fails(path, text):
    r = subprocess.run([str(MOED), "serve", "--port", "0", "--model", str(path)], capture_output=True, text=True, check=False, timeout=120)
    check(r.returncode == 1 and text in r.stderr and "listening" not in r.stdout, lambda: f"{r.returncode} {r.stderr[-600:]}")


def corrupt_files_are_told():
    size = packed().stat().st_size
    records_at = int(re.search(r"records from offset (\d+)", moed("inspect", packed()).stdout)[1])
    record = changed("record.gguf", records_at + 208896 * 33 + 5000)  # layer 1, expert 1
    where = f"layer 1, expert 1 at offset {records_at + 208896 * 33} is corrupt"
    check(where in moed("pack", "--verify", record, rc=1).stderr, "verify")
    serve_fails(record, where)
    record.unlink()

    index = changed("index.gguf", packed().read_bytes()[:1 << 24].index(b"moed.pack.checksums") + 400)
    serve_fails(index, "head of the file is corrupt")
    check("head of the file is corrupt" in moed("pack", "--verify", index, rc=1).stderr, "verify")
    index.unlink()

    dense = changed("dense.gguf", records_at - 8192)
    check("dense tensors are corrupt" in moed("pack", "--verify", dense, rc=1).stderr, "dense")
    dense.unlink()

    for keep in (size - 1, size - 4096, records_at + 17, records_at // 2, 1000):
        short = changed("short.gguf", 0, keep=keep)
        serve_fails(short, "truncated")
        short.unlink()


def no_space():
    """A file system that is too small: told before a byte is written, with the bytes that are needed."""
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
        raise Skip("no right to mount a small file system")
    r = subprocess.run(["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=100m none /mnt && "$0" pack "$1" /mnt/out.gguf; rc=$?; ls /mnt; exit $rc',
                        str(MOED), str(demo())], capture_output=True, text=True, check=False, timeout=120)
    check(r.returncode == 1 and r.stdout == "", f"{r.returncode} {r.stdout} {r.stderr}")
    need = re.search(r"no space: (\d+) more bytes are needed", r.stderr)
    check(need and int(need[1]) == packed().stat().st_size, r.stderr)


def file_size_limit():
    """Stands for a disk that fills up: an error, no signal, and with the limit gone the same command ends well."""
    out = FOLDER / "limited.gguf"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, resource.RLIM_INFINITY))  # noqa: E731
    r = moed("pack", demo(), out, rc=1, preexec_fn=limit)
    check("File too large" in r.stderr and not out.exists(), r.stderr)
    moed("pack", demo(), out)
    check(same(out, packed()), "differs")
    out.unlink()


def split_source():
    """Two files in, one file out, which holds what the one of the whole model holds."""
    spec = importlib.util.spec_from_file_location("make_demo", ROOT / "tools/make_demo.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    src = tool.Gguf(str(demo()))
    names = list(src.tensors)
    parts = [FOLDER / f"split-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, mine in enumerate((names[:150], names[150:])):
        keys = [("split.no", i), ("split.count", 2), ("split.tensors.count", len(names))]
        kv = {k: struct.pack("<II", tool.U32, v) for k, v in keys} | ({} if i else src.kv)
        write_part(parts[i], src, mine, kv)
    out = FOLDER / "from-split.gguf"
    moed("pack", parts[0], out)
    moed("pack", "--verify", out)
    a, b = (moed("inspect", f).stdout.split(" tensors\n")[1] for f in (packed(), out))
    check(a == b, "other tensors")
    records = [re.search(r"records from offset (\d+)", moed("inspect", f).stdout)[1] for f in (packed(), out)]
    with open(packed(), "rb") as f, open(out, "rb") as g:
        f.seek(int(records[0]))
        g.seek(int(records[1]))
        check(f.read() == g.read(), "other records")
    check("\n  split." not in moed("inspect", out).stdout, "split keys are left")
    for f in (*parts, out):
        f.unlink()


def write_part(path, src, names, kv):
    info, data, at = b"", [], 0
    for name in names:
        ne, dtype, _ = src.tensors[name]
        raw = bytes(src.bytes_of(name))
        info += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne)
        info += struct.pack("<IQ", dtype, at)
        data.append(raw + bytes(-len(raw) % 32))
        at += len(data[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(kv))
    head += b"".join(struct.pack("<Q", len(k)) + k.encode() + v for k, v in kv.items()) + info
    path.write_bytes(head + bytes(-len(head) % 32) + b"".join(data))


try:
    STATUS = run_cases(same_answers, inspect_and_bench_read_it, verify_is_content, refusals, kill_and_resume, killed_at_any_moment, two_at_once,
                       corrupt_files_are_told, no_space, file_size_limit, split_source)
finally:
    shutil.rmtree(FOLDER)
sys.exit(STATUS)
