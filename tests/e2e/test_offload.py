# SPDX-License-Identifier: Apache-2.0
"""A model served with a part of its experts in memory: the same answers as with all of them, whatever the budget and
whoever else is served, live resizes in between; memory stays below the plan, the page cache holds no experts; a failing
read ends the requests that needed it and no other."""
import ctypes
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from serving import BUILD, DEMO, Server, Skip, check, run_cases

PROMPTS = ["The capital of France is", "Once upon a time, in a small village,", "def fibonacci(n):\n", "Water boils at",
           "List three colours: red,", "In 1969, humans first", "A good recipe for bread needs", "My favourite animal is the"]
SMALL = ["--context", "512", "--kv-tokens", "4096", "--max-running", "8", "--experts", "stream"]


def texts(server, prompts, **fields):
    """Answers to prompts asked all at once."""
    out = [None] * len(prompts)

    def ask(i):
        out[i] = server.complete(prompt=prompts[i], max_tokens=24, temperature=0, logprobs=2, **fields)["choices"][0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(all(out), "an answer is missing")
    return [(c["text"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]) for c in out]


def reference():
    if not hasattr(reference, "answers"):
        with Server.demo("--context", "512", "--kv-tokens", "4096", "--experts", "resident") as s:
            reference.answers = texts(s, PROMPTS)
            t = s.complete(prompt=PROMPTS[0], max_tokens=4)["timings"]
            check("experts" not in t, t)
            check(not any(name.startswith("moed_expert_hits") for name in s.metrics()), "metrics of a store that is not there")
            status, _, body = s.post({"ram": "1g"}, "/admin/offload")
            check(status == 409 and json.loads(body)["error"]["code"] == "not_streamed", body)
            check(json.loads(s.request("GET", "/admin/offload")[2]) == {"experts": "resident"}, "GET of a resident server")
    return reference.answers


def peak_rss(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) * 1024


def planned(server):
    """Bytes of the plan as logged: the sum, and of it the experts."""
    m = re.search(r"streamed experts ([\d.]+) \+ program [\d.]+ = ([\d.]+) MiB", server.stderr())
    return float(m.group(2)) * 2**20, float(m.group(1)) * 2**20


def same_text_at_every_budget():
    want = reference()
    for mib, flags in ((20, []), (48, ["--expert-policy", "lru"]), (96, ["--expert-prefetch", "off", "--expert-io", "threads"]),
                       (208, ["--repack", "off"])):
        with Server.demo(*SMALL, "--expert-ram", f"{mib}m", *flags) as s:
            check(texts(s, PROMPTS) == want, f"{mib} MiB of experts change an answer")
            check(texts(s, PROMPTS[:1], cache_prompt=False) == want[:1], f"{mib} MiB of experts change an answer alone")
            total, _ = planned(s)
            check(peak_rss(s) <= total, f"peak RSS {peak_rss(s)} of {total:.0f} planned bytes, {mib} MiB of experts")


def resize_while_serving():
    want = reference()
    with Server.demo(*SMALL, "--expert-ram", "100m") as s:
        total, experts = planned(s)
        stop = threading.Event()
        sizes = []

        def resize():
            while not stop.wait(0.05):
                mib = (8, 150, 30, 200)[len(sizes) % 4]
                ram = int(total - experts) + mib * 2**20 + 2**20
                status, _, body = s.post({"ram": ram}, "/admin/offload")
                check(status == 200, body)
                sizes.append(json.loads(body))

        t = threading.Thread(target=resize)
        t.start()
        got = [texts(s, PROMPTS, cache_prompt=False) for _ in range(2)]
        stop.set()
        t.join()
        check(got == [want, want], "a resize changes an answer")
        check(len(sizes) >= 4 and len({x["budget_bytes"] for x in sizes}) >= 2, f"{len(sizes)} resizes")
        status, _, body = s.post({"ram": "64m"}, "/admin/offload")
        check(status == 400 and "expected at least" in json.loads(body)["error"]["message"], body)
        state = json.loads(s.request("GET", "/admin/offload")[2])
        check(sum(row.count("1") for row in state["map"]) == state["resident"], state)


def lossy_only_for_those_who_ask():
    want = reference()
    with Server.demo(*SMALL, "--expert-ram", "48m", "--lossy-experts", "both", "--lossy-share", "50", "--lossy-margin", "30") as s:
        asked = []
        t = threading.Thread(target=lambda: asked.extend(texts(s, PROMPTS, lossy_experts="both")))
        t.start()
        check(texts(s, PROMPTS) == want, "a lossy request beside an exact one changes it")
        t.join()
        check(len(asked) == len(want) and asked != want, "half the experts give the answers of all")
        check(texts(s, PROMPTS) == want, "a lossy request left something behind that changes an exact one")
        for mode in ("fewer", "cached", "both"):
            t = s.complete(prompt="Hi", max_tokens=4, lossy_experts=mode)["timings"]
            check(t["lossy_experts"] == mode, t)
        check("lossy_experts" not in s.complete(prompt="Hi", max_tokens=4, lossy_experts="off")["timings"], "named without being asked for")
    with Server.demo(*SMALL, "--expert-ram", "48m") as s:
        status, _, body = s.post({"prompt": "Hi", "lossy_experts": "fewer"})
        check(status == 400 and json.loads(body)["error"]["param"] == "lossy_experts", body)


def counted_where_it_is_seen():
    with Server.demo(*SMALL, "--expert-ram", "30m") as s:
        before = s.wait_idle()
        x = s.complete(prompt=PROMPTS[1], max_tokens=20, temperature=0)["timings"]["experts"]
        m = s.wait_idle()
        for field, name in (("hits", "hits_total"), ("misses", "misses_total"), ("bytes", "load_bytes_total")):
            key = f'moed_expert_{name}{{tier="ram"}}'
            check(x[field] == m[key] - before[key], f"{field}: {x[field]} in the response, {m[key] - before[key]} in /metrics")
        check(x["misses"] > 0 and x["bytes"] > 0 and x["stall_ms"] > 0, x)
        check(m['moed_expert_plan_error{tier="ram"}'] > 0 and m['moed_expert_plan_falls_total{tier="ram"}'] >= 0, "the planner")
        check(m['moed_expert_slots{tier="ram"}'] >= m['moed_expert_resident{tier="ram"}'] > 0, "residency")
        check(m["moed_expert_guesses_right_total"] > 0.3 * m["moed_expert_guesses_total"] > 0, "the next layer's router guesses badly")


def share_in_page_cache(path):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    size = os.path.getsize(path)
    pages = (size + 4095) // 4096
    with open(path, "rb") as f:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), 0)
        seen = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), seen) != 0:
            raise Skip("mincore is refused")
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(b & 1 for b in seen) / pages


def page_cache_holds_no_experts():
    copy = f"/tmp/moed-offload-{os.getpid()}.gguf"
    try:
        with open(DEMO, "rb") as a, open(copy, "wb") as b:
            b.write(a.read())
            b.flush()
            os.fsync(b.fileno())
            os.posix_fadvise(b.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if share_in_page_cache(copy) > 0.05:
            raise Skip("this file system keeps a file in the page cache")
        with Server.demo("--model", copy, *SMALL, "--expert-ram", "30m") as s:
            texts(s, PROMPTS)
            share = share_in_page_cache(copy)
            check(share < 0.35, f"{share:.0%} of the file in the page cache; experts are 80 % of it")
    finally:
        os.unlink(copy)


def unreadable_expert_ends_one_request():
    with Server.fake(unreadable_at=3) as s:
        long, short = "x" * 100, "y" * 10
        for stream in (False, True):
            status, _, body = s.post({"prompt": long, "max_tokens": 10, "stream": stream, "ignore_eos": True})
            text = body.decode()
            check("expert 7 of layer 3 cannot be read" in text and "expert_unreadable" in text, text)
            check(status == (200 if stream else 500), f"{status}: {text}")
        check(len(s.complete(prompt=short, max_tokens=10, ignore_eos=True)["choices"]) == 1, "another request")
        check(s.request("GET", "/health")[0] == 200, "/health after a failed read")


def wait_for_save(path, since_ns):
    deadline = time.monotonic() + 20
    while not (os.path.exists(path) and os.stat(path).st_mtime_ns > since_ns):
        check(time.monotonic() < deadline, "heat is not saved while the server runs")
        time.sleep(0.01)


def heat_survives_kill():
    """Killed again and again; the next start says what it found, and its memory is filled with that."""
    want = reference()[0]
    folder = tempfile.mkdtemp(prefix="moed-heat-")
    heat = os.path.join(folder, "heat")
    flags = [*SMALL, "--expert-ram", "48m", "--expert-heat", heat, "--expert-heat-every", "1"]
    try:
        for run in range(3):
            s = Server.demo(*flags)
            try:
                check(("heat of an earlier run" in s.stderr()) == (run > 0), s.stderr())
                before = os.stat(heat).st_mtime_ns if run else 0
                check(texts(s, PROMPTS[:1]) == [want], f"run {run} changes an answer")
                wait_for_save(heat, before)
            except BaseException:
                s.kill()
                raise
            s.process.kill()
            s.stop(want=-9, signalled=True)
        with open(heat + ".tmp", "wb") as f:
            f.write(open(heat, "rb").read()[:1000])
        with Server.demo(*flags) as s:
            check("heat.tmp: left by a run that ended while it saved" in s.stderr() and "heat of an earlier run" in s.stderr(), s.stderr())
        os.truncate(heat, 1000)
        with Server.demo(*flags) as s:
            check("starting without heat" in s.stderr() and texts(s, PROMPTS[:1]) == [want], s.stderr())
    finally:
        shutil.rmtree(folder)


def bench_reports_against_the_limit():
    if not DEMO.exists():
        raise Skip("no demo model")
    out = subprocess.run([BUILD / "moed", "bench", "--offload", DEMO, "--expert-budget", "25%", "--prompt", "64", "--gen", "4", "--repeat", "1",
                          "--json", "-"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    r = json.loads(out)
    check(r["resident"] and 0.2 < r["budget_bytes"] / r["expert_bytes"] < 0.3 and min(r["disk_bytes_per_s"]) > 1e6, r)
    check([x["test"] for x in r["results"]] == ["prefill", "decode"], r)
    for x in r["results"]:
        check(x["read_bytes"] > 0 and x["misses"] > 0, x)
        limit = max(x["read_bytes"] / (sum(r["disk_bytes_per_s"]) / 2) * 1e3, x["compute_ms"])
        check(abs(x["times_limit"] - x["ms"] / limit) < 0.01 * x["times_limit"], x)


def admin_is_off_unless_asked_for():
    with Server.fake("--admin", "off") as s:
        check(s.request("GET", "/admin/offload")[0] == 403 and s.post({"ram": "1g"}, "/admin/offload")[0] == 403, "admin off")
    with Server.fake("--host", "0.0.0.0") as s:
        check(s.request("GET", "/admin/offload")[0] == 403, "admin open to the network by itself")
    with Server.fake("--host", "0.0.0.0", "--admin", "on") as s:
        check(s.request("GET", "/admin/offload")[0] == 200, "admin on")
        for body in (b"", b"{}", b"[]", b'{"ram": "many"}', b'{"ram": -1}', b'{"ram": 1.5}', b'{"ram": null}', b"{" * 100):
            status, _, answer = s.post(body, "/admin/offload")
            check(status == 400, f"{body}: {status} {answer}")
        status, _, _ = s.request("POST", "/admin/offload", b'{"ram": "1g"}', [])
        check(status == 415, f"no content type: {status}")
        check(s.request("DELETE", "/admin/offload")[0] == 405, "DELETE")


if __name__ == "__main__":
    sys.exit(run_cases(same_text_at_every_budget, resize_while_serving, lossy_only_for_those_who_ask, counted_where_it_is_seen, page_cache_holds_no_experts,
                       unreadable_expert_ends_one_request, heat_survives_kill, bench_reports_against_the_limit, admin_is_off_unless_asked_for))
