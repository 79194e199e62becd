# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings through the official `openai` client. The fake engine makes vectors that depend on every token; the demo model's
are compared with those llama.cpp makes of the dense model it was grown from (tests/fixtures/make_embeddings.py)."""
import base64
import json
import math
import struct
import sys
import threading
import time

import openai

from serving import DEMO, ROOT, Server, Skip, check, run_cases

PEER = json.loads((ROOT / "tests/data/embeddings_peer.json").read_text())
FAKE = {}


def fake():
    if "server" not in FAKE:
        FAKE["server"] = Server.fake("--max-running", "4", "--batch-tokens", "64")
    return FAKE["server"]


def client(s):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0, timeout=60)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def embed(s, given, **more):
    r = client(s).embeddings.create(model="", input=given, **more)
    check([d.index for d in r.data] == list(range(len(r.data))) and r.object == "list" and all(d.object == "embedding" for d in r.data), r)
    return r


def forms_of_input():
    s = fake()
    text = "several \u00fcber words"
    ids = json.loads(s.post({"prompt": text}, "/tokenize")[2])["tokens"]
    one = embed(s, text).data[0].embedding
    check(len(one) == 20 and abs(sum(x * x for x in one) - 1) < 1e-6, one)
    for given in ([text], ids, [ids], [text, "x"], [ids, [70]]):
        r = embed(s, given)
        check(r.data[0].embedding == one, given)
    check(r.usage.prompt_tokens == r.usage.total_tokens == len(ids) + 1, r.usage)
    check(embed(s, ["x", text]).data[1].embedding == one, "another place, another vector")
    check(embed(s, "several \u00fcber wordz").data[0].embedding != one, "another text, the same vector")


def base64_and_float_agree():
    s = fake()
    for user in ("someone", openai.omit):
        floats = embed(s, ["a", "bc", "def"], encoding_format="float", dimensions=20, user=user).data
        coded = json.loads(s.post({"input": ["a", "bc", "def"], "encoding_format": "base64"}, "/v1/embeddings")[2])["data"]
        for a, b in zip(floats, coded):
            check(list(struct.unpack("<20f", base64.b64decode(b["embedding"], validate=True))) == [f32(x) for x in a.embedding], b)
    check(embed(s, "def").data[0].embedding == [f32(x) for x in floats[2].embedding], "the client's default")


def many_inputs_beside_a_chat():
    """More than the queue holds: they go in a few at a time, and a chat beside them gets its turn."""
    with Server.fake("--max-running", "4", "--max-queued", "8", step_us=2000) as s:
        texts = [f"text number {i}" for i in range(600)]
        want = {i: embed(s, texts[i]).data[0].embedding for i in (0, 299, 599)}
        done = []
        t = threading.Thread(target=lambda: done.append(embed(s, texts)))
        t.start()
        for _ in range(5):
            s.complete(prompt="beside", max_tokens=8)
        early = not done
        t.join()
        check(early and len(done) == 1 and len(done[0].data) == 600, "the chat waited for all embeddings")
        check(all(done[0].data[i].embedding == v for i, v in want.items()), "wrong place")
        gone, deadline = s.connect(), time.monotonic() + 20
        body = json.dumps({"input": texts}).encode()
        gone.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while s.metrics()["moed_generations_live"] == 0:
            check(time.monotonic() < deadline, "it never ran")
        before = s.metrics()["moed_engine_tokens_total"]
        gone.close()
        after = s.wait_idle()["moed_engine_tokens_total"]
        check(after - before < 4000, f"{after - before} tokens computed for a client that went away")


def refusals():
    s = fake()
    for fields, param in [({}, "input"), ({"input": None}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"), ({"input": ["a", ""]}, "input"),
                          ({"input": ["a", 1]}, "input"), ({"input": [1, "a"]}, "input"), ({"input": [-1]}, "input"), ({"input": [1.5]}, "input"), ({"input": {"a": 1}}, "input"),
                          ({"input": [10 ** 6]}, "input"), ({"input": ["a"] * 2049}, "input"), ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
                          ({"input": "x", "encoding_format": 1}, "encoding_format"), ({"input": "x", "dimensions": 8}, "dimensions"), ({"input": "x", "dimensions": "20"}, "dimensions")]:
        status, _, body = s.post(fields, "/v1/embeddings")
        e = json.loads(body)["error"]
        check(status == 400 and e["param"] == param, lambda: f"{str(fields)[:80]}: {status} {e}")
    status, _, body = s.post({"input": "x" * 5000}, "/v1/embeddings")
    check(status == 400 and json.loads(body)["error"]["code"] == "context_length_exceeded", body)
    check(len(embed(s, [[65] * 1024]).data) == 1, "a text as long as the context")
    status, _, body = s.post({"input": "x", "model": "another"}, "/v1/embeddings")
    check(status == 404 and json.loads(body)["error"]["code"] == "model_not_found", body)
    check(s.request("GET", "/v1/embeddings")[0] == 405, "GET")


def failing_engine():
    s = Server.fake(fail_at=3)
    try:
        embed(s, [[65] * 1000] * 20)
        raise AssertionError("answered")
    except openai.InternalServerError as e:
        check(e.status_code == 500, e)
    s.stop(want=1, signalled=True)


def demo_equals_llama_cpp():
    if not DEMO.exists():
        raise Skip(f"no {DEMO.relative_to(ROOT)}; tools/make_demo.py makes it")
    for pooling in ("mean", "last"):
        with Server.demo("--context", "256", "--activations", "f32", "--embedding-pooling", pooling) as s:
            r = embed(s, PEER["texts"])
            for text, d, coded in zip(PEER["texts"], r.data, PEER[pooling]):
                want = struct.unpack(f"<{len(d.embedding)}f", base64.b64decode(coded))
                check(cosine(d.embedding, want) >= 0.999, f"{pooling}: {cosine(d.embedding, want)} for {text!r}")
                print(f"# {pooling} {cosine(d.embedding, want):.6f}")
            alone = embed(s, PEER["texts"][2]).data[0].embedding
            check(alone == r.data[2].embedding, "beside others it is another vector")


rc = run_cases(forms_of_input, base64_and_float_agree, many_inputs_beside_a_chat, refusals, failing_engine, demo_equals_llama_cpp)
if "server" in FAKE:
    FAKE["server"].stop()
sys.exit(rc)
