# SPDX-License-Identifier: Apache-2.0
"""The official openai client against the demo model and against the fake engine: it completes, streams, and raises the
exception its users catch."""
import sys
import threading
import time

import openai

from serving import Server, check, run_cases

SHARED = {}


def client(s, retries=0):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=retries, timeout=60)


def demo():
    if "demo" not in SHARED:
        SHARED["demo"] = Server.demo("--context", "1024", "--max-running", "8")
    return SHARED["demo"]


def fake():
    if "fake" not in SHARED:
        SHARED["fake"] = Server.fake()
    return SHARED["fake"]


FRANCE = {"model": "demo-moe", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}


def demo_completes():
    r = client(demo()).completions.create(**FRANCE)
    check(r.object == "text_completion" and r.model == "demo-moe" and r.choices[0].finish_reason == "length", r)
    check("Paris" in r.choices[0].text, r.choices[0].text)
    check(r.usage.completion_tokens == 8 and r.usage.total_tokens == r.usage.prompt_tokens + 8 and r.usage.prompt_tokens_details.cached_tokens >= 0, r.usage)
    check(r._request_id and r.system_fingerprint.startswith("moed-"), r)


def demo_stream_equals_whole():
    prompts = ["The capital of France is", "Once upon a time", "def add(a, b):\n", "\u00dcber die Br\u00fccke \u2014 ", "\U0001f600 is an emoji that"]
    for i, prompt in enumerate(prompts):
        f = {"model": "demo-moe", "prompt": prompt, "max_tokens": 24, "temperature": i % 2, "seed": i, "logprobs": 2, "stop": ["\n\n", " and"], "echo": i == 3}
        whole = client(demo()).completions.create(**f).choices[0]
        text, lp, finish = "", {"tokens": [], "token_logprobs": [], "text_offset": []}, None
        for chunk in client(demo()).completions.create(**f, stream=True, stream_options={"include_usage": True}):
            for c in chunk.choices:
                text += c.text
                finish = c.finish_reason or finish
                for k in lp:
                    lp[k] += getattr(c.logprobs, k) if c.logprobs else []
        check(chunk.usage.total_tokens > 0 and chunk.choices == [], chunk)
        check((text, finish) == (whole.text, whole.finish_reason), f"{prompt!r}: {text!r} {finish}, whole {whole.text!r} {whole.finish_reason}")
        check("\n\n" not in text.removeprefix(prompt) and " and" not in text.removeprefix(prompt), text)
        for k in lp:
            check(lp[k] == getattr(whole.logprobs, k), f"{prompt!r}: {k} {lp[k]}, whole {getattr(whole.logprobs, k)}")


def demo_choices_and_prompts():
    r = client(demo()).completions.create(model="demo-moe", prompt=["One two three", "A B C"], n=3, max_tokens=6, seed=7, temperature=1)
    check([c.index for c in r.choices] == list(range(6)), r)
    check(len({c.text for c in r.choices[:3]}) > 1, [c.text for c in r.choices])
    again = client(demo()).completions.create(model="demo-moe", prompt=["One two three", "A B C"], n=3, max_tokens=6, seed=7, temperature=1)
    check([c.text for c in r.choices] == [c.text for c in again.choices], "the seed does not repeat")


def demo_echo_scores_a_text():
    lp = client(demo()).completions.create(model="demo-moe", prompt="The capital of France is Paris.", max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    check("".join(lp.tokens) == "The capital of France is Paris.", lp.tokens)
    paris = lp.tokens.index(" Paris")
    check(lp.token_logprobs[0] is None and -1 < lp.token_logprobs[paris] < 0 and lp.top_logprobs[paris] == {" Paris": lp.token_logprobs[paris]}, lp)


def demo_stop():
    r = client(demo()).completions.create(**{**FRANCE, "max_tokens": 20}, stop="Paris")
    check(r.choices[0].finish_reason == "stop" and "Par" not in r.choices[0].text and r.choices[0].text == " ", r.choices[0])


def demo_is_listed():
    check([m.id for m in client(demo()).models.list()] == ["demo-moe"], "models")
    check(client(demo()).models.retrieve("demo-moe").id == "demo-moe", "model")


def demo_same_alone_and_in_a_crowd():
    alone = client(demo()).completions.create(**FRANCE).choices[0].text
    out = [None] * 8

    def one(i):
        out[i] = client(demo()).completions.create(**FRANCE if i % 2 else {**FRANCE, "prompt": "x " * (20 * i + 1)}).choices[0].text
    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(all(out[i] == alone for i in range(1, 8, 2)), f"{alone!r} {out}")
    SHARED.pop("demo").stop()


def raises(kind, **fields):
    try:
        client(fake()).completions.create(**{"model": "fake", "prompt": "hi", **fields})
    except openai.APIStatusError as e:
        check(type(e) is kind, f"{fields}: {type(e).__name__}, expected {kind.__name__}")
        return e
    raise AssertionError(f"{fields} is accepted")


def exceptions():
    for stream in (False, True):
        e = raises(openai.BadRequestError, temperature=3, stream=stream)
        check(e.param == "temperature" and e.code == "invalid_value" and e.type == "invalid_request_error" and "temperature" in e.message and e.request_id, e.body)
        e = raises(openai.NotFoundError, model="gpt-4", stream=stream)
        check(e.param == "model" and e.code == "model_not_found", e.body)
        e = raises(openai.BadRequestError, prompt=[5] * 2000, stream=stream)
        check(e.code == "context_length_exceeded", e.body)


def full_queue_raises_then_retries():
    with Server.fake("--max-running", "1", "--max-queued", "1", step_us=20000) as s:
        results = []

        def one(retries):
            try:
                results.append(client(s, retries).completions.create(model="fake", prompt="hi", max_tokens=8, extra_body={"ignore_eos": True}).usage.completion_tokens)
            except openai.RateLimitError as e:
                check(e.code == "queue_full" and float(e.response.headers["retry-after"]) >= 1, e)
                results.append("429")
        threads = [threading.Thread(target=one, args=(0,)) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(len(results) == 6 and set(results) == {8, "429"}, results)
        results.clear()
        threads = [threading.Thread(target=one, args=(5,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(results == [8] * 4, f"with retries: {results}")


def engine_failure_raises():
    s = Server.fake(fail_at=1)
    try:
        client(s).completions.create(model="fake", prompt="hi")
        raise AssertionError("no exception")
    except openai.InternalServerError as e:
        check(e.status_code == 500 and e.type == "server_error", e.body)
    s.stop(want=1, signalled=True)  # it ends by itself
    s = Server.fake(fail_at=5)
    got = 0
    try:
        for chunk in client(s).completions.create(model="fake", prompt="hi", max_tokens=50, stream=True, extra_body={"ignore_eos": True}):
            got += 1
        raise AssertionError("the stream ended without an exception")
    except openai.APIError as e:
        check(got >= 1 and "engine" in e.message, f"{got} chunks, {e}")
    s.stop(want=1, signalled=True)


def draining_raises_503():
    s = Server.fake(step_us=50000)
    c = client(s)
    c.models.list()  # its connection is kept
    stream = client(s).completions.create(model="fake", prompt="hi", max_tokens=30, stream=True, extra_body={"ignore_eos": True})
    stream = iter(stream)
    next(stream)
    s.process.terminate()
    time.sleep(0.1)
    try:
        c.completions.create(model="fake", prompt="hi")
        raise AssertionError("accepted while draining")
    except (openai.InternalServerError, openai.APIConnectionError) as e:
        check(isinstance(e, openai.APIConnectionError) or e.status_code == 503, e)
    check([x.choices[0].finish_reason for x in stream][-1] == "length", "the stream was cut")
    s.stop(signalled=True)


def closing_a_stream_cancels():
    s = Server.fake(step_us=2000)
    stream = client(s).completions.create(model="fake", prompt="hi", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    m = s.wait_idle(10)
    check(m['moed_requests_finished_total{reason="cancelled"}'] == 1 and m["moed_generation_tokens_total"] < 800, m)
    s.stop()
    SHARED.pop("fake").stop()


sys.exit(run_cases(demo_completes, demo_stream_equals_whole, demo_choices_and_prompts, demo_echo_scores_a_text, demo_stop, demo_is_listed, demo_same_alone_and_in_a_crowd,
                   exceptions, full_queue_raises_then_retries, engine_failure_raises, draining_raises_503, closing_a_stream_cancels))
