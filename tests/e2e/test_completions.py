# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions over the fake engine: what is refused and how, and what every accepted request must keep:
stream == whole response, text == Python's decoding of the tokens, stop strings cut exactly, failures with a status."""
import json
import random
import signal
import socket
import sys
import threading
import time

from completion_cases import BODIES, FIELDS, P
from serving import Server, check, head, join_stream, parse_events, read_response, run_cases

SHARED = {}


def server():
    """One server for the cases that only ask questions."""
    if "s" not in SHARED:
        SHARED["s"] = Server.fake("--max-n", "8", "--max-prompts", "16")
    return SHARED["s"]


def check_reply(what, status, headers, body, want, param, code):
    check(status == want, lambda: f"{what}: {status}, expected {want}: {body[:300]!r}")
    if want == 200:
        return
    check(headers["content-type"].startswith("application/json"), f"{what}: {headers}")
    error = json.loads(body)["error"]
    check(set(error) >= {"message", "type", "param", "code"}, f"{what}: {error}")
    check((error["param"], error["code"]) == (param, code), f"{what}: {error}")
    check(error["type"] == "invalid_request_error" and error["message"], f"{what}: {error}")


def refused_bodies():
    for body, *want in BODIES:
        check_reply(repr(body[:60]), *server().post(body), *want)
        check(server().complete(**P)["object"] == "text_completion", "the next request")


def refused_fields():
    for fields, *want in FIELDS:
        for stream in (False, True):
            f = {**fields} if "stream" in fields else {**fields, "stream": stream}
            check_reply(str(f)[:90], *server().post(f), *want)


def context_error_has_both_numbers():
    _, _, body = server().post({"prompt": [5] * 900, "max_tokens": 200})
    message = json.loads(body)["error"]["message"]
    check("900" in message and "200" in message and "1024" in message, message)


def content_types():
    body = b'{"prompt":"a"}'
    for value, want in [("application/json", 200), ("application/json; charset=utf-8", 200), ("Application/JSON", 200), (None, 200), ("text/plain", 415),
                        ("application/jsonx", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415)]:
        status, _, reply = server().request("POST", "/v1/completions", body, [("Content-Type", value)] if value else [])
        check(status == want, f"{value}: {status} {reply[:200]!r}")


def shape_of_a_response():
    r = server().complete(**P, max_tokens=5, temperature=0, ignore_eos=True)
    check(r["id"].startswith("cmpl-") and r["object"] == "text_completion" and r["model"] == "fake", r)
    check(abs(r["created"] - time.time()) < 100 and r["system_fingerprint"].startswith("moed-"), r)
    c = r["choices"][0]
    check(len(r["choices"]) == 1 and c["index"] == 0 and c["finish_reason"] == "length" and c["logprobs"] is None, r)
    u = r["usage"]
    check((u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) == (3, 5, 8) and u["prompt_tokens_details"]["cached_tokens"] == 0, u)
    t = r["timings"]
    check(t["prompt_n"] == 3 and t["predicted_n"] == 5 and t["predicted_ms"] >= 0 and t["prompt_ms"] > 0, t)


def token_bytes(token):
    if token in ("<bos>", "<eos>", "<|im|>"):
        return b""
    if token.startswith("bytes:"):
        return bytes.fromhex(token[6:].replace("\\x", ""))
    return token.encode()


def text_is_the_decoded_tokens():
    for seed in range(40):
        r = server().complete(**P, max_tokens=60, seed=seed, logprobs=0)
        c = r["choices"][0]
        lp = c["logprobs"]
        raw = b"".join(map(token_bytes, lp["tokens"]))
        check(c["text"] == raw.decode("utf-8", "replace"), f"seed {seed}: {c['text']!r}, tokens give {raw!r}")
        check(len(lp["tokens"]) == r["usage"]["completion_tokens"] == len(lp["token_logprobs"]) == len(lp["top_logprobs"]), lp)
        check(all(t in top and top[t] == v for t, top, v in zip(lp["tokens"], lp["top_logprobs"], lp["token_logprobs"])), lp)
        check((lp["tokens"][-1] == "<eos>") == (c["finish_reason"] == "stop"), c)
        check(lp["text_offset"] == sorted(lp["text_offset"]) and lp["text_offset"][0] == 0, lp)
        for token, at in zip(lp["tokens"], lp["text_offset"]):
            b = token_bytes(token)
            if b and all(x < 128 for x in b):
                check(c["text"][at:at + len(b)] == b.decode(), f"seed {seed}: {token!r} is not at {at} of {c['text']!r}")


def first_stop(text, stops):
    """First end of any stop, the longest of those ending there."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            return text[:end - max(map(len, hits))]
    return None


def stop_strings_cut_exactly():
    rng = random.Random(5)
    cut = 0
    for seed in range(60):
        fields = {**P, "max_tokens": 50, "seed": seed, "ignore_eos": True}
        full = server().complete(**fields)["choices"][0]["text"]
        stops = []
        for _ in range(rng.randrange(1, 5)):
            at, n = rng.randrange(len(full)), rng.randrange(1, 6)
            s = full[at:at + n]
            s = s.replace("\0", "?")  # JSON with NUL is refused
            stops.append(s if rng.random() < 0.7 else s + "~" if rng.random() < 0.5 else s[::-1])
        want = first_stop(full, stops)
        for got in (server().complete(**fields, stop=stops)["choices"][0], join_stream(server().stream(**fields, stop=stops))[0]):
            check(got["text"] == (full if want is None else want), f"seed {seed}, {stops}: {got['text']!r} of {full!r}")
            check(got["finish_reason"] == ("length" if want is None else "stop"), f"seed {seed}: {got['finish_reason']}")
        cut += want is not None
    check(20 < cut < 60, f"{cut} of 60 cases were cut: they do not cover both")


def random_fields(rng):
    f = {"max_tokens": rng.randrange(0, 40), "seed": rng.randrange(1 << 63)}
    f["prompt"] = rng.choice(["hi", "", "h\u00e9llo \U0001f600 w<|im|>", ["a", "b", "hello"], [104, 259, 240, 159], [[1, 2], [263, 264]], "a" * 300])
    f["temperature"] = rng.choice([0, 1, 0.5])
    for key, values in {"n": [2, 3], "echo": [True], "logprobs": [0, 3], "stop": ["e", ["\ufffd\ufffd", "he"], ["lo", "w", "\u00e9"]], "ignore_eos": [True],
                        "min_tokens": [1], "logit_bias": [{"257": -100}], "stop_token_ids": [[104, 261], [240]], "cache_prompt": [False]}.items():
        if rng.random() < 0.35:
            f[key] = rng.choice(values)
    if "min_tokens" in f:
        f["max_tokens"] += 1
    return f


def stream_equals_whole():
    rng = random.Random(11)
    for i in range(200):
        f = random_fields(rng)
        whole = server().complete(**f)
        options = rng.choice([None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
        events = server().stream(**f, stream_options=options)
        got = join_stream(events)
        check(sorted(got) == list(range(len(whole["choices"]))), f"{f}: choices {sorted(got)}")
        for c in whole["choices"]:
            check({k: c[k] for k in ("text", "finish_reason", "logprobs")} == got[c["index"]], lambda c=c: f"round {i}, {f}:\nwhole  {c}\nstream {got[c['index']]}")
        check(len({e["id"] for e in events}) == 1 and all(e["object"] == "text_completion" for e in events), f)
        if options:
            check(events[-1]["choices"] == [] and "timings" in events[-1], f"{f}: {events[-1]}")
            same = ("prompt_tokens", "completion_tokens", "total_tokens")
            check(all(events[-1]["usage"][k] == whole["usage"][k] for k in same), f"{f}: {events[-1]['usage']} {whole['usage']}")
            continuous = "continuous_usage_stats" in options
            check(all(bool(e["usage"]) == continuous for e in events[:-1]), f)
        else:
            check("usage" not in events[-1] and "timings" in events[-1], f"{f}: {events[-1]}")


def choices_follow_the_seed():
    f = {"prompt": ["hi", "you"], "max_tokens": 12, "temperature": 1}
    r = server().complete(**f, n=3, seed=40)
    check([c["index"] for c in r["choices"]] == list(range(6)), r)
    for c in r["choices"]:
        i, j = divmod(c["index"], 3)
        alone = server().complete(**{**f, "prompt": f["prompt"][i]}, seed=40 + j)["choices"][0]
        check(alone["text"] == c["text"], f"choice {c['index']}: {c['text']!r}, alone {alone['text']!r}")
    check(len({c["text"] for c in r["choices"]}) == 6, "choices are equal")
    texts = {server().complete(**P, max_tokens=12, ignore_eos=True)["choices"][0]["text"] for _ in range(5)}
    check(len(texts) == 5, "requests without a seed are equal")


def echo_forms():
    for prompt, text in [("he\u00e9 w<|im|>!", "he\u00e9 w<|im|>!"), ("", ""), ([104, 240, 159, 152, 128, 258, 33], "h\U0001f600!"), ([240, 159], "\ufffd")]:
        r = server().complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        c = r["choices"][0]
        check(c["text"] == text and c["finish_reason"] == "length", c)
        lp = c["logprobs"]
        check(len(lp["tokens"]) == r["usage"]["prompt_tokens"] and r["usage"]["completion_tokens"] == 0, r)
        check(lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None and None not in lp["token_logprobs"][1:], lp)
    check(r["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xf0", "bytes:\\x9f"], r)
    lp = server().complete(prompt="a\u00e9 w<eos>b", max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]
    check(lp["tokens"] == ["<bos>", "a", "bytes:\\xc3", "bytes:\\xa9", " w", "<eos>", "b"] and lp["text_offset"] == [0, 0, 1, 1, 2, 4, 9], lp)
    r = server().complete(prompt="hi", max_tokens=6, echo=True, seed=1, ignore_eos=True)
    alone = server().complete(prompt="hi", max_tokens=6, seed=1, ignore_eos=True)
    check(r["choices"][0]["text"] == "hi" + alone["choices"][0]["text"], r)
    # A character that begins in the prompt and ends in the completion is one character of the echoed text.
    bias = {str(i): -100 for i in range(266) if i != 264}
    r = server().complete(prompt=[104, 263], max_tokens=1, echo=True, logit_bias=bias)
    check(r["choices"][0]["text"] == "h\U0001f600", r)


def end_tokens():
    f = {"prompt": "hi", "max_tokens": 3}
    only = lambda *ids: {str(i): -100 for i in range(266) if i not in ids}
    c = server().complete(**f, logit_bias=only(257))["choices"][0]
    check(c["text"] == "" and c["finish_reason"] == "stop", c)
    c = server().complete(**f, logit_bias=only(257, 97), min_tokens=3, logprobs=0)["choices"][0]
    check(c["text"] == "aaa" and c["finish_reason"] == "length", c)
    c = server().complete(**f, logit_bias=only(97, 257), ignore_eos=True)["choices"][0]
    check(c["text"] == "aaa" and c["finish_reason"] == "length", c)
    r = server().complete(**f, logit_bias=only(97), stop_token_ids=[97])
    check(r["choices"][0]["text"] == "" and r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 1, r)
    c = server().complete(**f, logit_bias=only(97, 257), ignore_eos=True, stop_token_ids=[97])["choices"][0]
    check(c["text"] == "" and c["finish_reason"] == "stop", c)
    c = server().complete(**f, logit_bias=only(97), stop="aa", min_tokens=2)["choices"][0]
    check(c["text"] == "aaa" and c["finish_reason"] == "length", c)


def big_bodies_take_the_worker():
    for size in (16 * 1024 - 40, 16 * 1024, 300000, 3000000):
        r = server().complete(**P, max_tokens=3, temperature=0, ignore_eos=True, metadata="x" * size)
        check(r["usage"]["completion_tokens"] == 3, r)
    status, _, body = server().post(b'{"prompt":"a","n":0,"metadata":"' + b"x" * 100000 + b'"}')
    check(status == 400 and json.loads(body)["error"]["param"] == "n", body)


def cached_tokens_are_reported():
    f = {"prompt": [7] * 200, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    first, second = server().complete(**f), server().complete(**f)
    check(first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, first)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(100 <= cached < 200 and second["timings"]["prompt_n"] == 200 - cached and second["timings"]["cache_n"] == cached, second)
    check(first["choices"][0]["text"] == second["choices"][0]["text"], "reuse changed the text")
    r = server().complete(**f, cache_prompt=False)
    check(r["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, r)


def histograms_add_up():
    before = server().metrics()
    for _ in range(5):
        server().complete(**P, max_tokens=4, ignore_eos=True)
    after = server().metrics()
    for name, more in [("time_to_first_token_seconds", 5), ("inter_token_latency_seconds", 15), ("e2e_request_latency_seconds", 5), ("request_prompt_tokens", 5), ("request_output_tokens", 5)]:
        got = after[f"moed_{name}_count"] - before[f"moed_{name}_count"]
        check(got == more, f"{name}: {got} more, expected {more}")
        check(after[f"moed_{name}_count"] == after[f'moed_{name}_bucket{{le="+Inf"}}'], name)
    check(after["moed_request_output_tokens_sum"] - before["moed_request_output_tokens_sum"] == 20, "sum of output tokens")
    server().wait_idle()
    SHARED.pop("s").stop()


# ---- servers of their own ----

def background(fn, n):
    out = [None] * n

    def one(i):
        out[i] = fn(i)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    return threads, out


def full_queue_is_429():
    with Server.fake("--max-running", "1", "--max-queued", "2", step_us=20000) as s:
        threads, out = background(lambda i: s.post({**P, "max_tokens": 10, "ignore_eos": True, "stream": i % 2 == 0}), 12)
        for t in threads:
            t.join()
        refused = [r for r in out if r[0] == 429]
        check(all(r[0] in (200, 429) for r in out) and 1 <= len(refused) <= 11, [r[0] for r in out])
        for _, headers, body in refused:
            check(1 <= int(headers["retry-after"]) <= 120, headers)
            error = json.loads(body)["error"]
            check(error["type"] == "rate_limit_error" and error["code"] == "queue_full", error)
        status, _, body = s.post({**P, "n": 3})
        check(status == 400 and json.loads(body)["error"]["param"] == "n", f"more choices than the queue ever holds: {status} {body}")
        s.wait_idle()


def choices_are_all_or_none():
    with Server.fake("--max-running", "1", "--max-queued", "4", step_us=5000) as s:
        threads, out = background(lambda i: s.post({**P, "n": 3, "max_tokens": 5, "ignore_eos": True}), 8)
        for t in threads:
            t.join()
        check({r[0] for r in out} <= {200, 429} and any(r[0] == 429 for r in out), [r[0] for r in out])
        check(all(len(json.loads(r[2])["choices"]) == 3 for r in out if r[0] == 200), "a partial answer")
        m = s.wait_idle()
        check(m["moed_requests_submitted_total"] == sum(m[f'moed_requests_finished_total{{reason="{r}"}}'] for r in ("stop", "length", "cancelled", "error")), m)


def drain_finishes_streams():
    s = Server.fake(step_us=20000)
    sock = s.connect()
    asked = json.dumps({**P, "stream": True, "max_tokens": 40, "ignore_eos": True}).encode()
    sock.sendall(head("POST", "/v1/completions", asked) + asked)
    kept = s.connect()
    check(s.request("GET", "/health", sock=kept)[0] == 200, "health before the drain")
    first = sock.recv(1, socket.MSG_PEEK)
    check(first, "no first byte")
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    status, _, body = read_response(sock)
    check(status == 200 and len(parse_events(body)) >= 1, body[-200:])
    check(join_stream(parse_events(body))[0]["finish_reason"] == "length", "the stream was cut")
    s.stop(signalled=True)


def engine_failure_before_the_first_token():
    for stream in (False, True):
        s = Server.fake(fail_at=1)
        status, headers, body = s.post({**P, "stream": stream})
        error = json.loads(body)["error"]
        check(status == 500 and error["type"] == "server_error" and error["message"], f"{status} {body}")
        s.stop(want=1, signalled=True)  # it ends by itself


def engine_failure_in_a_stream():
    s = Server.fake(fail_at=6)
    status, _, body = s.post({**P, "stream": True, "max_tokens": 50, "ignore_eos": True})
    events = parse_events(body)
    check(status == 200 and events[-1]["error"]["type"] == "server_error" and events[-1]["error"]["message"], events[-1])
    check(1 <= len(events) - 1 <= 5, f"{len(events)} events")
    s.stop(want=1, signalled=True)


def disconnect_in_every_phase():
    """Queued, in prefill, before the headers, in decode, in the worker, with several choices: all is freed."""
    with Server.fake("--max-running", "4", "--batch-tokens", "64", step_us=2000, ctx=4096) as s:
        start = s.wait_idle()
        rng = random.Random(3)
        for i in range(150):
            kind = i % 5
            f = {"prompt": [rng.randrange(256) for _ in range((10, 2000, 10, 10, 300)[kind])], "max_tokens": 400, "ignore_eos": True, "stream": bool(i & 1),
                 "n": 3 if kind == 3 else 1, "cache_prompt": False, **({"metadata": "x" * 200000} if kind == 2 else {})}
            body = json.dumps(f).encode()
            sock = s.connect()
            sock.sendall(head("POST", "/v1/completions", body) + (body if rng.random() < 0.9 else body[:len(body) // 2]))
            time.sleep(rng.choice([0, 0, 0.001, 0.005, 0.02]))
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST instead of FIN
            sock.close()
        m = s.wait_idle()
        check(m["moed_kv_pages_free"] == start["moed_kv_pages_free"], lambda: f"KV pages: {m['moed_kv_pages_free']} of {start['moed_kv_pages_free']}")
        check(m['moed_requests_finished_total{reason="cancelled"}'] > 50, lambda: f"{m}")
        check(s.complete(**P, max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3, "afterwards")


def disconnect_cancels_only_its_own():
    with Server.fake(step_us=3000) as s:
        f = {**P, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        want = s.complete(**f)["choices"][0]["text"]
        threads, out = background(lambda i: s.complete(**f), 4)
        for _ in range(10):
            body = json.dumps({**f, "stream": True}).encode()
            sock = s.connect()
            sock.sendall(head("POST", "/v1/completions", body) + body)
            sock.recv(100)
            sock.close()
        for t in threads:
            t.join()
        check(all(r and r["choices"][0]["text"] == want for r in out), out)
        s.wait_idle()


def second_signal_cuts_short():
    s = Server.fake(step_us=50000)
    threads, out = background(lambda i: s.post({**P, "max_tokens": 900, "ignore_eos": True, "stream": i == 1}), 2)
    time.sleep(0.5)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    s.process.send_signal(signal.SIGTERM)
    for t in threads:
        t.join()
    check(out[0] and out[0][0] == 503 and json.loads(out[0][2])["error"]["code"] == "shutting_down", out[0])
    check(out[1] and out[1][0] == 200 and parse_events(out[1][2])[-1]["error"]["code"] == "shutting_down", out[1])
    s.stop(want=1, signalled=True)


sys.exit(run_cases(
    refused_bodies, refused_fields, context_error_has_both_numbers, content_types, shape_of_a_response, text_is_the_decoded_tokens, stop_strings_cut_exactly,
    stream_equals_whole, choices_follow_the_seed, echo_forms, end_tokens, big_bodies_take_the_worker, cached_tokens_are_reported, histograms_add_up,
    full_queue_is_429, choices_are_all_or_none, drain_finishes_streams, engine_failure_before_the_first_token, engine_failure_in_a_stream,
    disconnect_in_every_phase, disconnect_cancels_only_its_own, second_signal_cuts_short))
