# SPDX-License-Identifier: Apache-2.0
"""/v1/messages and count_tokens through the official `anthropic` client. What a reply is made of is scripted: the fake engine
answers a prompt that holds «TEXT» with TEXT (see helpers/server_fake.c)."""
import asyncio
import json
import sys
import tempfile
import threading
import time

import anthropic

from serving import Server, check, run_cases

SHARED = {}
TOOLS = [{"name": "get_weather", "description": "the weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def fake(*flags):
    if flags not in SHARED:
        SHARED[flags] = Server.fake("--tool-syntax", "hermes", *flags, ctx=16384)
    return SHARED[flags]


def demo():
    if "demo" not in SHARED:
        SHARED["demo"] = Server.demo("--context", "1024")
    return SHARED["demo"]


def client(s, kind=anthropic.Anthropic, **options):
    return kind(base_url=f"http://127.0.0.1:{s.port}", **{"api_key": "a-key-of-the-tests", "max_retries": 0, **options})


def said(text):
    return [{"role": "user", "content": f"\u00ab{text}\u00bb"}]


def arguments(messages, temperature=None, extra_body=None, **fields):
    """Of create and stream, which do not know the temperature."""
    extra = {**({} if temperature is None else {"temperature": temperature}), **(extra_body or {})}
    return {"model": "", "messages": messages, "max_tokens": 2000, "extra_body": extra, **fields}


def ask(s, messages, **fields):
    return client(s).messages.create(**arguments(messages, **fields))


def streamed(s, messages, **fields):
    """The message a stream adds up to, put together by the client; and its raw events."""
    raw = []
    with client(s).messages.stream(**arguments(messages, **fields)) as stream:
        for event in stream:
            raw.append(event)
        return stream.get_final_message(), raw


def plain(message):
    """What must be the same of a whole response and of a stream."""
    d = message.model_dump(exclude_none=True)
    return d["content"], d["stop_reason"], d.get("stop_sequence"), {k: v for k, v in d["usage"].items() if "input" not in k}


def blocks(message):
    return [(b.type, {"text": lambda: b.text, "thinking": lambda: b.thinking, "tool_use": lambda: (b.name, b.input)}[b.type]()) for b in message.content]


# ---- the demo model ----

def demo_answers():
    r = ask(demo(), FRANCE, max_tokens=60, temperature=0)
    check(r.type == "message" and r.role == "assistant" and r.id.startswith("msg_") and r.stop_reason == "end_turn" and r.stop_sequence is None, r)
    check(len(r.content) == 1 and "Paris" in r.content[0].text, r)
    n = client(demo()).messages.count_tokens(model="", messages=FRANCE).input_tokens
    check(r.usage.input_tokens + r.usage.cache_read_input_tokens == n and 0 < r.usage.output_tokens <= 60, f"{r.usage} {n}")
    cut = ask(demo(), FRANCE, max_tokens=2, temperature=0)
    check(cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2, cut)


def demo_stream_equals_whole():
    for i, text in enumerate(["Name three colours.", "Say something about \u00dcber \U0001f600."]):
        f = {"max_tokens": 40, "temperature": i, "stop_sequences": ["\n\n", " and"], "system": [{"type": "text", "text": "You are terse."}], "extra_body": {"seed": 7}}
        messages = [{"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}]
        whole, (got, _) = ask(demo(), messages, **f), streamed(demo(), messages, **f)
        check(plain(whole) == plain(got), f"{plain(whole)} {plain(got)}")


def demo_async():
    async def go():
        async with client(demo(), anthropic.AsyncAnthropic) as c:
            whole = await c.messages.create(**arguments(FRANCE, temperature=0, max_tokens=30))
            async with c.messages.stream(**arguments(FRANCE, temperature=0, max_tokens=30)) as stream:
                text = "".join([t async for t in stream.text_stream])
            check(text == whole.content[0].text and "Paris" in text, f"{text!r} {whole}")
    asyncio.run(go())


def demo_continues_a_prefill():
    r = ask(demo(), FRANCE + [{"role": "assistant", "content": "The capital of France is"}], max_tokens=8, temperature=0)
    check(r.content[0].text.startswith(" Paris"), r)
    SHARED.pop("demo").stop()


# ---- the shape of a stream ----

def events_in_order():
    text = "<think>\nWhy.\n</think>\n\nYes.\n" + CALL
    status, headers, body = fake().post({"model": "", "max_tokens": 500, "stream": True, "messages": said(text), "tools": TOOLS}, "/v1/messages")
    check(status == 200 and headers["content-type"].startswith("text/event-stream"), headers)
    events = []
    for e in body.decode().split("\n\n")[:-1]:
        if e.startswith(":"):
            continue
        name, data = e.split("\n")
        check(name.startswith("event: ") and data.startswith("data: "), e)
        data = json.loads(data[6:])
        check(data["type"] == name[7:], e)
        events.append(data)
    kinds = [e["type"] for e in events]
    check(kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"], kinds)
    check(b"[DONE]" not in body, "no [DONE] here")
    start = events[0]["message"]
    check(start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] > 0 and start["usage"]["output_tokens"] == 0, start)
    pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta"]
    check(len(pieces) > 10 and json.loads("".join(pieces)) == {"city": "Oslo", "days": 2}, pieces)
    types, open_at = [], None
    for e in events[2:-2]:
        if e["type"] == "content_block_start":
            check(open_at is None and e["index"] == len(types), e)
            open_at = e["index"]
            types.append(e["content_block"]["type"])
        else:
            check(e["index"] == open_at, e)
            if e["type"] == "content_block_stop":
                open_at = None
    check(types == ["thinking", "text", "tool_use"] and open_at is None, types)
    check(events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and events[-2]["usage"]["output_tokens"] > 0, events[-2])


def a_broken_call_in_a_stream():
    text = CALL.replace("2}", "two}")
    whole, (got, _) = ask(fake(), said(text), tools=TOOLS), streamed(fake(), said(text), tools=TOOLS)
    check(blocks(whole) == [("text", text)] and whole.stop_reason == got.stop_reason == "end_turn", whole)
    check([b.type for b in got.content] == ["tool_use", "text"] and got.content[1].text == text, got)


def thinking_text_and_calls():
    text = "<think>\nI see.\n</think>\n\nLook:\n" + CALL + "\n" + CALL.replace("Oslo", "Rome")
    whole, (got, _) = ask(fake(), said(text), tools=TOOLS), streamed(fake(), said(text), tools=TOOLS)
    for r in (whole, got):
        check(blocks(r) == [("thinking", "I see."), ("text", "Look:"), ("tool_use", ("get_weather", {"city": "Oslo", "days": 2})), ("tool_use", ("get_weather", {"city": "Rome", "days": 2}))], r)
        check(r.stop_reason == "tool_use" and len({b.id for b in r.content if b.type == "tool_use"}) == 2, r)
        check(r.usage.output_tokens_details.thinking_tokens > 5, r.usage)
    one = ask(fake(), said(text), tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    check(len([b for b in one.content if b.type == "tool_use"]) == 1, one)
    none = ask(fake(), said(CALL), tools=TOOLS, tool_choice={"type": "none"})
    check(blocks(none) == [("text", CALL)] and none.stop_reason == "end_turn", none)
    empty = ask(fake(), said(""))
    check(empty.content == [] and empty.stop_reason == "end_turn", empty)


def stop_sequences():
    for f in ({"stop_sequences": ["nope", "END"]}, {"stop_sequences": ["ENDx", "END", "E-"]}):
        for r in (ask(fake(), said("the END here"), **f), streamed(fake(), said("the END here"), **f)[0]):
            check((blocks(r), r.stop_reason, r.stop_sequence) == ([("text", "the ")], "stop_sequence", "END"), r)


# ---- what goes in ----

def history_is_a_chat():
    turn = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo", "n": 1.0}}]
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}]},
               {"type": "tool_result", "tool_use_id": "t2", "is_error": True}, {"type": "text", "text": "\u00abok\u00bb"}]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}, {"role": "assistant", "content": turn}, {"role": "user", "content": results}]
    chat = [{"role": "system", "content": "S\nT"}, {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "Looking.", "reasoning_content": "hm", "tool_calls": [{"type": "function", "id": "t1", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "n": 1.0}}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain\nwind"}, {"role": "tool", "tool_call_id": "t2", "content": ""}, {"role": "user", "content": "\u00abok\u00bb"}]
    tools = [{"type": "function", "function": {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]}} for t in TOOLS]
    system = [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]
    n = client(fake()).messages.count_tokens(model="", messages=messages, system=system, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}).input_tokens
    status, _, body = fake().post({"messages": chat, "tools": tools, "enable_thinking": True}, "/tokenize")
    check(status == 200 and json.loads(body)["count"] == n, f"{n} {body[:300]}")
    r = ask(fake(), messages, system=system, tools=TOOLS)
    check(blocks(r) == [("text", "ok")], r)


def thinking_can_be_switched():
    r = ask(fake(), said("so\n</think>\n\nyes"), thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
    check(blocks(r) == [("thinking", "so"), ("text", "yes")], r)
    r = ask(fake(), said("yes"), thinking={"type": "disabled"})
    check(blocks(r) == [("text", "yes")], r)


def json_output():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    r = ask(fake(), said("not JSON"), max_tokens=400, output_config={"format": {"type": "json_schema", "schema": schema}})
    check(r.content[0].text.startswith("{"), r)
    if r.stop_reason == "end_turn":
        check(isinstance(json.loads(r.content[0].text)["a"], int), r)


# ---- errors ----

def raises(kind, error, says, messages=None, **fields):
    try:
        ask(fake(), said("x") if messages is None else messages, **fields)
    except anthropic.APIStatusError as e:
        check(type(e) is kind and e.body["type"] == "error" and e.body["error"]["type"] == error and says in e.body["error"]["message"] and e.request_id == e.body["request_id"],
              f"{fields} {messages}: {type(e).__name__} {e.body}")
        return
    raise AssertionError(f"{fields} {messages} is accepted")


def exceptions():
    bad = lambda says, messages=None, **f: [raises(anthropic.BadRequestError, "invalid_request_error", says, messages, stream=s, **f) for s in (False, True)]
    block = lambda b, role="user": [{"role": role, "content": [b]}]
    bad("temperature: ", temperature=3)
    bad("messages: must not be empty", [])
    bad("messages.0: its role", [{"role": "tool", "content": "x"}])
    bad("messages.0: its content", [{"role": "user", "content": 1}])
    bad('messages.0.content.0: a block of type "image"', block({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}))
    bad("messages.0.content.0: a text block", block({"type": "text", "text": 1}))
    bad("messages.0.content.0: needs a type", block({}))
    bad("messages.0.content.0: a tool_result needs", block({"type": "tool_result", "content": "x"}))
    bad("messages.0.content.0.content: ", block({"type": "tool_result", "tool_use_id": "a", "content": 1}))
    bad("messages.0.content.0: the input of", block({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}, "assistant"))
    bad("system: ", system=1)
    bad("stop_sequences: must be a list", extra_body={"stop_sequences": "x"})
    bad("stop_sequences: a stop string must not be empty", stop_sequences=[""])
    bad("tool_choice: ", tool_choice={"type": "any"})
    bad("tool_choice: ", tools=TOOLS, tool_choice={"type": "tool", "name": "other"})
    bad("tools: item 1 has type \"bash_20250124\"", tools=TOOLS + [{"type": "bash_20250124", "name": "bash"}])
    bad("tools: item 0 needs an input_schema", tools=[{"name": "f"}])
    bad("tools: two of them", tools=TOOLS + TOOLS)
    bad("no such luck", extra_body={"chat_template_kwargs": {"fail_with": "no such luck"}})
    bad("context", [{"role": "user", "content": "a b" * 20000}])
    raises(anthropic.NotFoundError, "not_found_error", "no model of that name", extra_body={"model": "other"})
    for body, says in ((b'{"messages":[]', "JSON"), (b'{"messages":[{"role":"user","content":"x"}]}', "max_tokens: is required"), (b'[]', "object"),
                       (b'{"max_tokens":1,"max_tokens":2,"messages":[{"role":"user","content":"x"}]}', "max_tokens: is given twice")):
        status, _, answer = fake().post(body, "/v1/messages")
        e = json.loads(answer)
        check(status == 400 and e["type"] == "error" and e["error"]["type"] == "invalid_request_error" and says in e["error"]["message"], answer)
    status, _, answer = fake().post({"messages": said("x"), "output_config": {"format": {"type": "json_schema", "schema": 0.5}}}, "/v1/messages/count_tokens")
    check(status == 400 and "output_config.format: " in json.loads(answer)["error"]["message"], answer)
    for method, path, headers, want, kind in (("GET", "/v1/messages", [], 405, "invalid_request_error"), ("POST", "/v1/messages", [("Content-Type", "text/plain")], 415, "invalid_request_error")):
        status, _, answer = fake().request(method, path, b"{}" if method == "POST" else None, headers)
        check(status == want and json.loads(answer)["error"]["type"] == kind, answer)


def every_field_with_every_type():
    fields = ["model", "messages", "system", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream", "tools", "tool_choice", "thinking", "output_config", "output_format", "metadata"]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for name in fields:
            for value in (None, True, 5, -1, 1.5, 1e99, "x", "", [], [None], [[]], [{}], ["x"], {}, {"type": "x"}, {"type": None}, {"format": 1}):
                body = {"messages": said("x"), "max_tokens": 2, **{name: value}}
                status, _, answer = fake().post(body, path)
                check(status in (200, 400, 404), lambda: f"{name} = {value!r}: {status} {answer[:300]}")
                if status != 200:
                    e = json.loads(answer)
                    check(e["type"] == "error" and e["error"]["message"] and e["error"]["type"] in ("invalid_request_error", "not_found_error"), answer)
    fake().wait_idle()


def engine_failures():
    with Server.fake("--max-queued", "1", "--max-running", "1", step_us=20000) as s:
        slow = client(s).messages.create(model="", max_tokens=500, messages=FRANCE, stream=True, extra_body={"ignore_eos": True})
        next(iter(slow))
        t = threading.Thread(target=lambda: client(s).messages.create(model="", max_tokens=1, messages=FRANCE))
        t.start()
        try:
            while s.metrics()["moed_requests_queued"] == 0:
                time.sleep(0.01)
            try:
                client(s).messages.create(model="", max_tokens=1, messages=FRANCE)
                raise AssertionError("a full queue takes more")
            except anthropic.RateLimitError as e:
                check(e.body["error"]["type"] == "rate_limit_error" and int(e.response.headers["retry-after"]) > 0, e.body)
        finally:
            slow.close()
            t.join()
    with Server.fake(unreadable_at=5) as s:
        long = [{"role": "user", "content": "x" * 80}]
        try:
            for _ in client(s).messages.create(model="", max_tokens=50, messages=long, stream=True, extra_body={"ignore_eos": True}):
                pass
            raise AssertionError("the failure is not told")
        except anthropic.APIError as e:
            check(e.body["type"] == "error" and e.body["error"]["type"] == "api_error" and "expert" in e.body["error"]["message"], e.body)


def keys():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("a-key-of-the-tests\n")
        f.flush()
        with Server.fake("--api-key-file", f.name, ctx=16384) as s:
            check(blocks(ask(s, said("in"))) == [("text", "in")], "the client's x-api-key")
            try:
                client(s, api_key="other").messages.create(**arguments(said("in")))
                raise AssertionError("any key is taken")
            except anthropic.AuthenticationError as e:
                check(e.body["type"] == "error" and e.body["error"]["type"] == "authentication_error", e.body)


def a_lost_client_cancels():
    stream = ask(fake(), FRANCE, stream=True, max_tokens=15000, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    check(fake().wait_idle(10)["moed_generations_live"] == 0, "still running")
    SHARED.pop(()).stop()


sys.exit(run_cases(demo_answers, demo_stream_equals_whole, demo_async, demo_continues_a_prefill, events_in_order, a_broken_call_in_a_stream, thinking_text_and_calls, stop_sequences, history_is_a_chat,
                   thinking_can_be_switched, json_output, exceptions, every_field_with_every_type, engine_failures, keys, a_lost_client_cancels))
