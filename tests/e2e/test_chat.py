# SPDX-License-Identifier: Apache-2.0
"""Chat completions with the official openai client: the demo model answers sensibly, whole and streamed; the fake engine says
whatever «...» in a message tells it to, which gives reasoning and tool calls of every family."""
import asyncio
import json
import subprocess
import sys

import openai

from serving import ROOT, Server, check, run_cases

SHARED = {}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}
         for name in ("get_weather", "now")]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


def client(s, kind=openai.OpenAI):
    return kind(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0, timeout=60)


def demo():
    if "demo" not in SHARED:
        SHARED["demo"] = Server.demo("--context", "2048", "--max-running", "8")
    return SHARED["demo"]


def fake(*flags):
    if flags not in SHARED:
        SHARED[flags] = Server.fake(*flags, ctx=16384, pages=8192)
    return SHARED[flags]


def said(text):
    return [{"role": "user", "content": f"«{text}»"}]


def ask(s, messages, **fields):
    return client(s).chat.completions.create(model="", messages=messages, **{"temperature": 0, "max_tokens": 2000, **fields})


def joined(stream):
    """A stream as the message it adds up to."""
    out = {"role": None, "content": "", "reasoning_content": "", "calls": [], "finish": None, "usage": None, "logprobs": [], "n": 0, "pieces": []}
    for chunk in stream:
        out["usage"] = chunk.usage or out["usage"]
        check(chunk.object == "chat.completion.chunk", chunk.object)
        for c in chunk.choices:
            out["n"] += 1
            check(out["finish"] is None, "a chunk after the finish")
            out["role"] = c.delta.role or out["role"]
            out["content"] += c.delta.content or ""
            out["reasoning_content"] += getattr(c.delta, "reasoning_content", None) or ""
            out["logprobs"] += c.logprobs.content if c.logprobs else []
            for call in c.delta.tool_calls or []:
                if call.id:
                    check(call.index == len(out["calls"]) and call.type == "function" and call.function.name, call)
                    out["calls"].append([call.id, call.function.name, ""])
                    out["pieces"].append(0)
                check(call.index == len(out["calls"]) - 1, call)
                out["calls"][-1][2] += call.function.arguments
                out["pieces"][-1] += 1
            out["finish"] = c.finish_reason
    return out


def calls_of(message):
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]


# ---- the demo model ----

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def demo_answers():
    r = ask(demo(), FRANCE, max_tokens=60)
    check(r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.choices[0].message.role == "assistant", r)
    check("Paris" in r.choices[0].message.content and r.choices[0].finish_reason == "stop", r.choices[0])
    check(r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.usage.completion_tokens_details.reasoning_tokens == 0, r.usage)


def demo_stream_equals_whole():
    for i, text in enumerate(["Name three colours.", "Say something about \u00dcber \U0001f600.", "Write one short sentence."]):
        f = {"max_tokens": 40, "temperature": i % 2, "seed": i, "logprobs": True, "top_logprobs": 2, "stop": ["\n\n", " and"]}
        messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": [{"type": "text", "text": text}]}]
        whole = ask(demo(), messages, **f).choices[0]
        got = joined(ask(demo(), messages, **f, stream=True, stream_options={"include_usage": True}))
        check((got["role"], got["content"], got["finish"]) == ("assistant", whole.message.content, whole.finish_reason), f"{got} {whole}")
        check(got["usage"].completion_tokens > 0, got["usage"])
        tokens = [(t.token, t.logprob, t.bytes, [(a.token, a.logprob) for a in t.top_logprobs]) for t in got["logprobs"]]
        check(tokens == [(t.token, t.logprob, t.bytes, [(a.token, a.logprob) for a in t.top_logprobs]) for t in whole.logprobs.content], "logprobs differ")
        check(bytes(b for t in got["logprobs"] for b in t.bytes).decode("utf-8", "replace").startswith(whole.message.content), "bytes")


def demo_async():
    async def go():
        c = client(demo(), openai.AsyncOpenAI)
        one = c.chat.completions.create(model="", messages=FRANCE, temperature=0, max_tokens=30)
        stream = await c.chat.completions.create(model="", messages=FRANCE, temperature=0, max_tokens=30, stream=True)
        text = "".join([x.choices[0].delta.content or "" async for x in stream if x.choices])
        whole = (await one).choices[0].message.content
        check(text == whole and "Paris" in whole, f"{text!r} {whole!r}")
        await c.close()
    asyncio.run(go())


def demo_turns_are_cached():
    start = [{"role": "system", "content": "You are a friendly assistant who knows the world well. " * 12}] + FRANCE
    first = ask(demo(), start, max_tokens=40)
    more = start + [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And of Italy?"}]
    r = ask(demo(), more, max_tokens=40)
    check(r.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 2, r.usage)


def demo_continues_a_prefill():
    r = ask(demo(), FRANCE + [{"role": "assistant", "content": "The capital of France is"}], max_tokens=8)
    check(r.choices[0].message.content.startswith(" Paris"), r.choices[0].message.content)
    new = ask(demo(), FRANCE + [{"role": "assistant", "content": "The capital of France is"}], max_tokens=8, extra_body={"add_generation_prompt": True})
    check(new.usage.prompt_tokens > r.usage.prompt_tokens, "a new turn is longer than a continued one")


def demo_choices():
    r = ask(demo(), FRANCE, n=3, temperature=1, seed=5, max_tokens=12)
    again = ask(demo(), FRANCE, n=3, temperature=1, seed=5, max_tokens=12)
    check([c.index for c in r.choices] == [0, 1, 2] and len({c.message.content for c in r.choices}) > 1, r)
    check([c.message.content for c in r.choices] == [c.message.content for c in again.choices], "the seed does not repeat")
    SHARED.pop("demo").stop()


# ---- reasoning ----

def reasoning_is_split():
    for text, opened in (("<think>\nI see.\n</think>\n\nYes <b>", False), ("I see.\n</think>\n\nYes <b>", True)):
        f = {"extra_body": {"enable_thinking": opened}}
        whole = ask(fake(), said(text), **f)
        m = whole.choices[0].message
        check((m.reasoning_content, m.content) == ("I see.", "Yes <b>"), m)
        check(whole.usage.completion_tokens_details.reasoning_tokens > 5, whole.usage)
        got = joined(ask(fake(), said(text), stream=True, **f))
        check((got["reasoning_content"], got["content"], got["finish"]) == ("I see.", "Yes <b>", "stop"), got)
        check(got["n"] > 8, "it streams in small pieces")
    m = ask(fake(), said("<think>a</think>b"), extra_body={"include_reasoning": False}).choices[0].message
    check(m.content == "b" and getattr(m, "reasoning_content", None) is None, m)
    m = ask(fake(), said("<think>a</think>b"), extra_body={"reasoning_format": "none"}).choices[0].message
    check(m.content == "<think>a</think>b", m)


def stops_are_for_the_answer():
    for stream in (False, True):
        r = ask(fake(), said("<think>END of thought</think>the END here"), stop="END", stream=stream)
        got = joined(r) if stream else None
        parts = (got["reasoning_content"], got["content"], got["finish"]) if stream else (r.choices[0].message.reasoning_content, r.choices[0].message.content, r.choices[0].finish_reason)
        check(parts == ("END of thought", "the ", "stop"), parts)


def reasoning_goes_back_in():
    r = client(fake()).post("/../apply-template", cast_to=object, body={"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "why"}, {"role": "user", "content": "r"}],
                                                                        "chat_template_kwargs": {"enable_thinking": True}})
    check(r["prompt"] == "<|im|>user\nq\n<|im|>assistant\n<think>why</think>a\n<|im|>user\nr\n<|im|>assistant\n<think>\n", r)


# ---- tools ----

FAMILIES = {
    "hermes": CALL + "\n" + CALL.replace("Oslo", "Rome"),
    "qwen-xml": "".join(f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{c}\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n" for c in ("Oslo", "Rome")),
    "glm": "".join(f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{c}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>" for c in ("Oslo", "Rome")),
    "mistral": "".join(f'[TOOL_CALLS]get_weather[ARGS]{{"city": "{c}", "days": 2}}' for c in ("Oslo", "Rome")),
    "kimi": "".join(f'<|tool_call_begin|>functions.get_weather:{i}<|tool_call_argument_begin|>{{"city": "{c}", "days": 2}}<|tool_call_end|>' for i, c in enumerate(("Oslo", "Rome"))),
    "invoke": "<minimax:tool_call>" + "".join(f'<invoke name="get_weather"><parameter name="city">{c}</parameter><parameter name="days">2</parameter></invoke>' for c in ("Oslo", "Rome")) + "</minimax:tool_call>",
    "llama3": '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}; {"name": "get_weather", "parameters": {"city": "Rome", "days": 2}}',
    "deepseek": "<\uff5ctool\u2581calls\u2581begin\uff5c>" + "".join(f'<\uff5ctool\u2581call\u2581begin\uff5c>get_weather<\uff5ctool\u2581sep\uff5c>{{"city": "{c}", "days": 2}}<\uff5ctool\u2581call\u2581end\uff5c>' for c in ("Oslo", "Rome")) + "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "harmony": "<|channel|>analysis<|message|>hm<|end|>" + "".join(f'<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{"city": "{c}", "days": 2}}<|call|>' for c in ("Oslo", "Rome")),
}
TAGS = ("qwen-xml", "glm", "invoke")  # whose arguments come one parameter at a time
WANT = [("get_weather", {"city": "Oslo", "days": 2}), ("get_weather", {"city": "Rome", "days": 2})]


def tools_of_every_family():
    for family, text in FAMILIES.items():
        s = fake("--tool-syntax", family)
        r = ask(s, said(text), tools=TOOLS).choices[0]
        check(calls_of(r.message) == WANT and r.finish_reason == "tool_calls" and r.message.content is None, f"{family}: {r}")
        got = joined(ask(s, said(text), tools=TOOLS, stream=True))
        check([(n, a) for _, n, a in got["calls"]] == [(c.function.name, c.function.arguments) for c in r.message.tool_calls], f"{family}: {got}")
        check(got["finish"] == "tool_calls" and got["content"] == "", f"{family}: {got}")
        check(got["pieces"][0] > (1 if family in TAGS else 10), f"{family}: arguments in {got['pieces']} pieces")
        check(len({i for i, _, _ in got["calls"]}) == 2 and all(len(i) == 9 for i, _, _ in got["calls"]) == (family == "mistral"), got)
        one = ask(s, said(text), tools=TOOLS, parallel_tool_calls=False).choices[0]
        check(calls_of(one.message) == WANT[:1] and one.finish_reason == "tool_calls", f"{family}: {one}")
        plain = ask(s, said(text)).choices[0]
        check(not plain.message.tool_calls and plain.finish_reason == "stop" and "Oslo" in plain.message.content, f"{family}: {plain}")
        if s is not fake():
            SHARED.pop(("--tool-syntax", family)).stop()


def text_around_calls():
    r = ask(fake(), said("Let me look.\n\n" + CALL), tools=TOOLS).choices[0]
    check(r.message.content == "Let me look." and calls_of(r.message) == WANT[:1], r)


def malformed_calls_are_content():
    for text in (CALL.replace("}}", "}"), CALL.replace("arguments", "args").replace("name", "nom"), CALL[:-20], CALL.replace("2", "two")):
        for stream in (False, True):
            r = ask(fake(), said(text), tools=TOOLS, stream=stream)
            content, finish = ((lambda j: (j["content"], j["finish"]))(joined(r))) if stream else (r.choices[0].message.content, r.choices[0].finish_reason)
            check((content, finish) == (text, "stop"), f"{text!r}: {content!r} {finish}")


def a_cut_call_is_length():
    for n in (40, 70):
        r = ask(fake(), said(CALL), tools=TOOLS, max_tokens=n).choices[0]
        check(r.finish_reason == "length" and r.message.content == CALL[:n] and not r.message.tool_calls, r)
        got = joined(ask(fake(), said(CALL), tools=TOOLS, max_tokens=n, stream=True))
        check((got["content"], got["finish"]) == (CALL[:n], "length"), got)
        shown = [(name, args) for _, name, args in got["calls"]]
        check(shown == ([] if n == 40 else [("get_weather", CALL[CALL.index('{"city'):n])]), "what was shown of it cannot be taken back: " + str(shown))


def tool_results_go_back():
    messages = said("fine") + [{"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{\"a\": 1.0}"}}]},
                               {"role": "tool", "tool_call_id": "c1", "content": "12:00"}]
    check(ask(fake(), messages, tools=TOOLS).choices[0].message.content == "fine", "answer")
    text = client(fake()).post("/../apply-template", cast_to=object, body={"messages": messages})["prompt"]
    check('"arguments": {"a": 1.0}' in text and "<|im|>tool\n12:00\n" in text, text)


def tool_choice_none_shows_no_tools():
    for choice, shown in (("none", False), ("auto", True)):
        text = client(fake()).post("/../apply-template", cast_to=object, body={"messages": said("x"), "tools": TOOLS, "tool_choice": choice})["prompt"]
        check(("get_weather" in text) == shown, text)
    r = ask(fake(), said(CALL), tools=TOOLS, tool_choice="none").choices[0]
    check(r.message.content == CALL and r.finish_reason == "stop", r)


# ---- errors ----

def raises(kind, param, messages=None, **fields):
    try:
        ask(fake(), said("x") if messages is None else messages, **fields)
    except openai.APIStatusError as e:
        check(type(e) is kind and e.param == param and e.request_id, f"{fields}: {type(e).__name__} {e.body}")
        return e
    raise AssertionError(f"{fields} {messages} is accepted")


def exceptions():
    for stream in (False, True):
        raises(openai.BadRequestError, "temperature", temperature=3, stream=stream)
        raises(openai.BadRequestError, "messages", [], stream=stream)
        raises(openai.BadRequestError, "messages[0].content[1].type", [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}], stream=stream)
        raises(openai.BadRequestError, "top_logprobs", top_logprobs=3, stream=stream)
        raises(openai.BadRequestError, "tool_choice", tool_choice="required", stream=stream)
        raises(openai.BadRequestError, "tools", tools=TOOLS + TOOLS, stream=stream)
        e = raises(openai.BadRequestError, "messages", stream=stream, extra_body={"chat_template_kwargs": {"fail_with": "no such luck"}})
        check("no such luck" in e.message and e.code == "chat_template_error", e.body)
        e = raises(openai.BadRequestError, "messages", [{"role": "user", "content": "a b" * 20000}], stream=stream)
        check(e.code == "context_length_exceeded", e.body)


FIELDS = {  # what is right besides null
    "model": str, "messages": list, "max_tokens": int, "max_completion_tokens": int, "min_tokens": int, "temperature": (int, float), "top_p": (int, float), "top_k": int, "min_p": (int, float),
    "repetition_penalty": (int, float), "frequency_penalty": (int, float), "presence_penalty": (int, float), "seed": int, "stop": (str, list), "stop_token_ids": list, "logit_bias": dict,
    "logprobs": bool, "top_logprobs": int, "n": int, "ignore_eos": bool, "stream": bool, "stream_options": dict, "cache_prompt": bool, "tools": list, "tool_choice": (str, dict),
    "parallel_tool_calls": bool, "add_generation_prompt": bool, "continue_final_message": bool, "chat_template_kwargs": dict, "reasoning_effort": str, "enable_thinking": bool,
    "thinking": (bool, dict), "thinking_token_budget": int, "reasoning_format": str, "include_reasoning": bool, "response_format": dict, "grammar": str, "regex": str, "choice": list,
    "guided_json": (dict, bool), "structured_outputs": dict,
}


def every_field_of_every_type():
    s = fake()
    for field, right in FIELDS.items():
        right = right if isinstance(right, tuple) else (right,)
        for value in ("\u00e4", 1.5, True, ["\u00e4"], {"\u00e4": 1}, None):
            status, _, body = s.post({"messages": said("x"), "max_tokens": 4, field: value}, "/v1/chat/completions")
            check(status in (200, 400, 404), f"{field}={value}: {status}")
            if status != 200:
                e = json.loads(body)["error"]
                check(e["param"] and e["param"].split("[")[0] in (field, "messages", "tool_choice") and e["message"] and e["type"] == "invalid_request_error", f"{field}={value}: {e}")
            if value is None and field != "messages":
                check(status == 200, f"{field}=null: {body}")
            if type(value) not in right and value is not None:
                check(status == 400, f"{field}={value!r} is accepted")
    check(s.post({"messages": said("x"), "user": 5, "metadata": [], "store": {}, "service_tier": 1, "functions": 7, "Model": 3, "audio": "x"}, "/v1/chat/completions")[0] == 200, "harmless fields")


def bodies_that_are_no_request():
    m = b'"messages":[{"role":"user","content":"%s"}]'
    for body in (b"", b"{", b"[]", b'"x"', b"null", b"{}", b"\xef\xbb\xbf{" + m % b"x" + b"}", b"{" + m % b"x" + b"}x", "{}".encode("utf-16"), b"{" + m % b"\xff" + b"}", b"{" + m % b"\0" + b"}",
                 b"{" + m % b"\\u0000" + b"}", b"{" + m % b"\\ud800" + b"}", b'{"model":"a","model":"b",' + m % b"x" + b"}", b'{"model":"other",' + m % b"x" + b"}"):
        status, _, answer = fake().post(body, "/v1/chat/completions")
        check(status == (404 if b"other" in body else 400) and set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}, f"{body}: {status} {answer}")
    check(fake().post({"messages": said("fine")}, "/v1/chat/completions")[0] == 200, "the next request")


def a_lost_client_cancels():
    stream = ask(fake(), [{"role": "user", "content": "hi"}], stream=True, max_tokens=15000, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    m = fake().wait_idle(10)
    check(m["moed_generations_live"] == 0, m)


def text_endpoints():
    post = lambda path, body: client(fake()).post("/.." + path, cast_to=object, body=body)
    t = post("/tokenize", {"content": "hello <|im|>", "add_special": True})
    check(t["tokens"] == [256, 259, 260, 111, 32, 258] and t["count"] == 6 and t["max_model_len"] == 16384, t)
    check(post("/tokenize", {"content": "<|im|>", "parse_special": False})["count"] == 6, "no special")
    check(post("/tokenize", {"content": "he", "with_pieces": True})["tokens"] == [{"id": 259, "piece": "he"}], "pieces")
    check(post("/detokenize", {"tokens": t["tokens"][1:]})["content"] == "hello <|im|>", "detokenize")
    messages = [{"role": "user", "content": "hi <|im|>"}]
    text = post("/apply-template", {"messages": messages})["prompt"]
    check(text == "<|im|>user\nhi <|im|>\n<|im|>assistant\n", text)
    n = post("/tokenize", {"messages": messages})
    check(n["tokens"].count(258) == 2, "text of a message became a control token")
    check(ask(fake(), messages, max_tokens=1).usage.prompt_tokens == n["count"], "count")
    check(client(fake()).models.retrieve("fake").id == "fake", "model")
    big = post("/tokenize", {"content": "x" * 200000})
    check(big["count"] == 200000, big["count"])
    SHARED.pop(()).stop()


def what_make_run_prints_works():
    """Both commands, copied as they are; python3 is the one that has the client."""
    with Server.demo("--context", "512", "--kv-tokens", "1024") as s:
        text = subprocess.run(["make", "-s", "run-hint", f"PORT={s.port}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        curl, python = (text[text.index(start):].split("\n\n")[0] for start in ("  curl", "  python3"))
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True).stdout
        check("Paris" in json.loads(answer)["choices"][0]["message"]["content"], answer)
        done = subprocess.run(python.replace("python3", sys.executable, 1), shell=True, capture_output=True, text=True)
        check(done.returncode == 0 and len(done.stdout) > 20, done.stderr)


sys.exit(run_cases(demo_answers, what_make_run_prints_works, demo_stream_equals_whole, demo_async, demo_turns_are_cached, demo_continues_a_prefill, demo_choices, reasoning_is_split, stops_are_for_the_answer,
                   reasoning_goes_back_in, tools_of_every_family, text_around_calls, malformed_calls_are_content, a_cut_call_is_length, tool_results_go_back, tool_choice_none_shows_no_tools,
                   exceptions, every_field_of_every_type, bodies_that_are_no_request, a_lost_client_cancels, text_endpoints))
