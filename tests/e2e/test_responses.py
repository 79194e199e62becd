# SPDX-License-Identifier: Apache-2.0
"""/v1/responses through the official `openai` client. The fake engine answers a prompt that holds «TEXT» with TEXT (see
helpers/server_fake.c), which gives reasoning and calls."""
import asyncio
import json
import sys

import openai

from serving import Server, check, run_cases

SHARED = {}
TOOLS = [{"type": "function", "name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, "strict": False}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
FRANCE = "What is the capital of France?"


def fake():
    if "fake" not in SHARED:
        SHARED["fake"] = Server.fake("--tool-syntax", "hermes", ctx=16384)
    return SHARED["fake"]


def demo():
    if "demo" not in SHARED:
        SHARED["demo"] = Server.demo("--context", "1024")
    return SHARED["demo"]


def client(s, kind=openai.OpenAI):
    return kind(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0, timeout=60)


def said(text):
    return f"\u00ab{text}\u00bb"


def ask(s, given, **fields):
    return client(s).responses.create(model="", input=given, **fields)


def streamed(s, given, **fields):
    """(the response at the end, all events); the client's own accumulation has to agree."""
    with client(s).responses.stream(model="", input=given, **fields) as stream:
        events = list(stream)
        check([e.sequence_number for e in events] == list(range(len(events))), "sequence numbers")
        last = events[-1].response
        if last.status == "completed":
            check(items(stream.get_final_response()) == items(last), "accumulated")
        return last, events


def items(r):
    out = []
    for i in r.output:
        if i.type == "message":
            out.append(("message", i.content[0].text, i.status))
        elif i.type == "reasoning":
            out.append(("reasoning", i.content[0].text, i.status))
        else:
            out.append((i.type, i.name, json.loads(i.arguments) if i.status == "completed" else i.arguments, i.status))
    return out


# ---- the demo model ----

def demo_answers():
    r = ask(demo(), FRANCE, temperature=0, max_output_tokens=60, metadata={"k": "v"})
    check(r.object == "response" and r.id.startswith("resp_") and r.status == "completed" and r.error is None and "Paris" in r.output_text, r)
    check(r.instructions is None and r.metadata == {"k": "v"} and r.temperature == 0 and r.max_output_tokens == 60 and r.tools == [] and r.tool_choice == "auto" and r.store is False, r)
    check(r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens and r.usage.output_tokens > 0, r.usage)
    cut = ask(demo(), FRANCE, temperature=0, max_output_tokens=2)
    check(cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens" and cut.output[0].status == "incomplete", cut)


def demo_stream_equals_whole():
    for i, text in enumerate(["Name three colours.", "Say something about \u00dcber \U0001f600."]):
        f = {"max_output_tokens": 40, "temperature": i, "extra_body": {"seed": 5, "stop": [" and"]}}
        whole, (got, events) = ask(demo(), text, **f), streamed(demo(), text, **f)
        check(items(whole) == items(got) and whole.status == got.status, f"{whole} {got}")
        check("".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text, "deltas")


def demo_async():
    async def go():
        async with client(demo(), openai.AsyncOpenAI) as c:
            whole = await c.responses.create(model="", input=FRANCE, temperature=0, max_output_tokens=30)
            stream = await c.responses.create(model="", input=FRANCE, temperature=0, max_output_tokens=30, stream=True)
            text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            check(text == whole.output_text and "Paris" in text, f"{text!r} {whole}")
    asyncio.run(go())
    SHARED.pop("demo").stop()


# ---- items ----

def reasoning_text_and_calls():
    text = said("<think>\nI see.\n</think>\n\nLook:\n" + CALL + "\n" + CALL.replace("Oslo", "Rome"))
    whole, (got, events) = ask(fake(), text, tools=TOOLS), streamed(fake(), text, tools=TOOLS)
    call = lambda city: ("function_call", "get_weather", {"city": city, "days": 2}, "completed")
    for r in (whole, got):
        check(items(r) == [("reasoning", "I see.", "completed"), ("message", "Look:", "completed"), call("Oslo"), call("Rome")], r)
        check(len({i.id for i in r.output}) == 4 and r.usage.output_tokens_details.reasoning_tokens > 5 and r.tools[0].name == "get_weather", r)
    kinds = [e.type for e in events]
    check(kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds)
    check(kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4 and kinds.count("response.content_part.added") == kinds.count("response.content_part.done") == 2, kinds)
    pieces = {}
    for e in events:
        if e.type == "response.output_item.done":
            check(e.item.id == got.output[e.output_index].id, e)
        if e.type == "response.function_call_arguments.delta":
            pieces.setdefault(e.output_index, []).append(e.delta)
    check({i: "".join(p) for i, p in pieces.items()} == {i: o.arguments for i, o in enumerate(whole.output) if o.type == "function_call"}, pieces)
    check(all(len(p) > 10 for p in pieces.values()), "arguments in few pieces")
    one = ask(fake(), text, tools=TOOLS, parallel_tool_calls=False)
    check([i.type for i in one.output].count("function_call") == 1 and one.parallel_tool_calls is False, one)
    none = ask(fake(), said(CALL), tools=TOOLS, tool_choice="none")
    check(none.output_text == CALL, none)
    check(ask(fake(), said("")).output == [], "nothing")


def a_broken_call_in_a_stream():
    text = CALL.replace("2}", "two}")
    whole, (got, _) = ask(fake(), said(text), tools=TOOLS), streamed(fake(), said(text), tools=TOOLS)
    check(items(whole) == [("message", text, "completed")], whole)
    check([(o.type, o.status) for o in got.output] == [("function_call", "incomplete"), ("message", "completed")] and got.output_text == text, got)


def history_is_a_chat():
    given = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
             {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "short"}], "content": [{"type": "reasoning_text", "text": "hm"}]},
             {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
             {"type": "function_call", "call_id": "t1", "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"},
             {"type": "function_call_output", "call_id": "t1", "output": "rain"}, {"role": "developer", "content": "D"}, {"role": "user", "content": said("ok")}]
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b\nc"},
            {"role": "assistant", "content": "Looking.", "reasoning_content": "hm", "tool_calls": [{"type": "function", "id": "t1", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain"}, {"role": "developer", "content": "D"}, {"role": "user", "content": said("ok")}]
    r = ask(fake(), given, instructions="S")
    check(r.instructions == "S", r)
    status, _, body = fake().post({"messages": chat}, "/tokenize")
    check(status == 200 and r.output_text == "ok" and json.loads(body)["count"] == r.usage.input_tokens, f"{r.usage} {body[:300]}")
    again = ask(fake(), [{"role": "user", "content": "x"}, *[i.model_dump(exclude_none=True) for i in ask(fake(), said("<think>a</think>b\n" + CALL), tools=TOOLS).output],
                         {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": said("fine")}]}])
    check(again.output_text, again)
    new = ask(fake(), [{"role": "user", "content": said("new")}, {"role": "assistant", "content": "old"}])
    check(new.output_text == "new", "an answer is not continued")


def json_output():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    r = ask(fake(), said("not JSON"), max_output_tokens=400, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    check(r.output_text.startswith("{") and r.text.format.name == "x", r)
    r = ask(fake(), said("not JSON"), max_output_tokens=50, text={"format": {"type": "json_object"}})
    check(r.output_text.startswith("{"), r)


# ---- errors ----

def raises(param, given="x", **fields):
    for stream in (False, True):
        try:
            ask(fake(), given, stream=stream, **fields)
        except openai.BadRequestError as e:
            check(e.param == param and e.body["message"].startswith(param + ": ") and e.request_id, f"{fields} {given}: {e.body}")
            continue
        raise AssertionError(f"{fields} {given} is accepted")


def exceptions():
    raises("store", store=True)
    raises("previous_response_id", previous_response_id="resp_1")
    raises("conversation", conversation="conv_1")
    raises("background", background=True)
    raises("truncation", truncation="auto")
    raises("prompt", prompt={"id": "p"})
    raises("top_logprobs", top_logprobs=3)
    raises("include", include=["message.output_text.logprobs"])
    raises("temperature", temperature=3)
    raises("max_output_tokens", max_output_tokens=-1)
    raises("input", [])
    raises("input[0]", [{"role": "tool", "content": "x"}])
    raises("input[0]", [{"type": "item_reference", "id": "x"}])
    raises("input[1]", [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
    raises("input[0]", [{"type": "function_call", "call_id": "c", "name": "f"}])
    raises("input", [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}])
    raises("tools", tools=[{"type": "web_search"}])
    raises("tools", tools=TOOLS + TOOLS)
    raises("tool_choice", tool_choice="required")
    raises("tool_choice", tools=TOOLS, tool_choice={"type": "function", "name": "other"})
    raises("text.format", text={"format": {"type": "grammar"}})
    raises("reasoning", extra_body={"reasoning": "x"})
    raises("instructions", extra_body={"instructions": ["x"]})
    raises("input", "a b" * 20000)
    try:
        client(fake()).responses.create(model="other", input="x")
        raise AssertionError("another model is served")
    except openai.NotFoundError as e:
        check(e.code == "model_not_found", e.body)
    ask(fake(), said("x"), store=False, include=["reasoning.encrypted_content"], truncation="disabled", background=False, reasoning={"effort": "low", "summary": "auto"})


def every_field_with_every_type():
    fields = ["model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stop", "stream", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "metadata",
              "user", "include", "store", "previous_response_id", "conversation", "prompt", "background", "truncation", "top_logprobs"]
    for name in fields:
        for value in (None, True, 5, -1, 1.5, 1e99, "x", "", [], [None], [[]], [{}], ["x"], {}, {"type": "x"}, {"format": 1}, {"effort": 1}):
            status, _, answer = fake().post({"input": said("x"), "max_output_tokens": 2, **{name: value}}, "/v1/responses")
            check(status in (200, 400, 404), lambda: f"{name} = {value!r}: {status} {answer[:300]}")
            if status != 200:
                check(json.loads(answer)["error"]["message"], answer)
    spaced = json.dumps({"input": said("x"), "metadata": {"a": "b"}, "stream": True}, indent=2).replace("\n", "\r\n").encode()
    status, _, answer = fake().post(spaced, "/v1/responses")
    check(status == 200 and answer.count(b"\nevent: ") + 1 == answer.count(b"\ndata: "), answer[:500])
    fake().wait_idle()


def a_failure_is_told():
    with Server.fake(unreadable_at=5) as s:
        events = list(client(s).responses.create(model="", input="x" * 80, max_output_tokens=50, stream=True, extra_body={"ignore_eos": True}))
        check(events[-1].type == "response.failed" and events[-1].response.status == "failed" and events[-1].response.error.code == "server_error" and "expert" in events[-1].response.error.message, events[-1])
        try:
            ask(s, "x" * 80, max_output_tokens=50, extra_body={"ignore_eos": True})
            raise AssertionError("the failure is not told")
        except openai.InternalServerError as e:
            check(e.code == "expert_unreadable", e.body)


def a_lost_client_cancels():
    stream = ask(fake(), "hi", stream=True, max_output_tokens=15000, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    check(fake().wait_idle(10)["moed_generations_live"] == 0, "still running")
    SHARED.pop("fake").stop()


sys.exit(run_cases(demo_answers, demo_stream_equals_whole, demo_async, reasoning_text_and_calls, a_broken_call_in_a_stream, history_is_a_chat, json_output, exceptions, every_field_with_every_type, a_failure_is_told,
                   a_lost_client_cancels))
