# SPDX-License-Identifier: Apache-2.0
"""Structured output and forced tool calls with the official openai client: whatever the demo model would say, the answer has
the form that was asked for; what the engine of grammars does not cover is 400 that names it."""
import json
import re
import sys

import openai

from serving import Server, check, run_cases

SHARED = {}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "kind": {"enum": ["cat", "dog"]}},
          "required": ["name", "age", "kind"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                                                                                 "required": ["city", "days"]}}},
         {"type": "function", "function": {"name": "now"}}]
ASK = [{"role": "user", "content": "Tell me about a pet."}]


def server(kind, *flags, **own):
    key = (kind, flags)
    if key not in SHARED:
        SHARED[key] = Server.demo("--context", "2048", "--max-running", "8", *flags) if kind == "demo" else Server.fake(*flags, ctx=16384, pages=8192)
    return SHARED[key]


def ask(s=None, messages=ASK, **fields):
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{(s or server('demo')).port}/v1", api_key="none", max_retries=0, timeout=60)
    return c.chat.completions.create(model="", messages=messages, **{"temperature": 1, "seed": 3, "max_tokens": 200, **fields})


def said(text):
    return [{"role": "user", "content": f"\u00ab{text}\u00bb"}]


def check_pet(v):
    check(set(v) == {"name", "age", "kind"} and isinstance(v["name"], str) and len(v["name"]) <= 12 and isinstance(v["age"], int) and 0 <= v["age"] <= 150 and v["kind"] in ("cat", "dog"), v)


def json_schema():
    for seed in range(4):
        forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}}, {"extra_body": {"guided_json": SCHEMA}},
                 {"extra_body": {"json_schema": SCHEMA}}, {"extra_body": {"structured_outputs": {"json": SCHEMA}}}]
        r = ask(seed=seed, **forms[seed]).choices[0]
        check(r.finish_reason == "stop", r)
        check_pet(json.loads(r.message.content))
    text = "".join(x.choices[0].delta.content or "" for x in ask(seed=0, stream=True, **forms[0]))
    check(text == ask(seed=0, **forms[0]).choices[0].message.content, text)


def json_object():
    check(isinstance(json.loads(ask(response_format={"type": "json_object"}, max_tokens=400, temperature=0).choices[0].message.content), dict), "no object")


def grammar_regex_choice():
    check(re.fullmatch(r"[A-Z][a-z]{2,5}-\d\d", ask(extra_body={"guided_regex": "[A-Z][a-z]{2,5}-[0-9][0-9]"}).choices[0].message.content), "regex")
    check(ask(extra_body={"guided_choice": ["yes, surely", "no"]}).choices[0].message.content in ("yes, surely", "no"), "choice")
    check(re.fullmatch(r"(ab){1,4}c", ask(extra_body={"grammar": 'root ::= ("ab"){1,4} "c"'}, max_tokens=100).choices[0].message.content), "grammar")
    s = server("demo")
    check(s.complete(prompt="Q: Is water wet? A:", regex=" (yes|no)", max_tokens=20, temperature=0)["choices"][0]["text"] in (" yes", " no"), "completions")


def tool_choice_is_enforced():
    for syntax in ("hermes", "mistral", "llama3", "deepseek"):
        s = server("demo", "--tool-syntax", syntax)
        for seed in range(2):
            r = ask(s, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}, parallel_tool_calls=False, seed=seed).choices[0]
            check(r.finish_reason == "tool_calls" and len(r.message.tool_calls) == 1 and r.message.tool_calls[0].function.name == "get_weather", f"{syntax}: {r}")
            args = json.loads(r.message.tool_calls[0].function.arguments)
            check(set(args) == {"city", "days"} and isinstance(args["city"], str) and args["days"] in range(1, 10), f"{syntax}: {args}")
        r = ask(s, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=400, temperature=0).choices[0]
        check(r.message.tool_calls and r.message.tool_calls[0].function.name in ("get_weather", "now") and r.message.content is None, f"{syntax}: {r}")
        SHARED.pop(("demo", ("--tool-syntax", syntax))).stop()


def refused():
    cases = [("response_format", {"response_format": {"type": "xml"}}), ("response_format", {"response_format": {"type": "json_schema"}}),
             ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "dependentSchemas": {"a": {}}}}}}),
             ("guided_regex", {"extra_body": {"guided_regex": "(?=a)b"}}), ("grammar", {"extra_body": {"grammar": "root ::= missing"}}), ("guided_choice", {"extra_body": {"guided_choice": []}}),
             ("regex", {"extra_body": {"regex": "a", "grammar": 'root ::= "a"'}}), ("tool_choice", {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}})]
    for param, fields in cases:
        for stream in (False, True):
            try:
                ask(**fields, stream=stream)
            except openai.BadRequestError as e:
                check(e.param == param and param in e.message, f"{fields}: {e.body}")
            else:
                raise AssertionError(f"{fields} is accepted")
    check(ask(max_tokens=5, response_format={"type": "text"}).choices[0].message.content, "text")
    SHARED.pop(("demo", ())).stop()


def a_grammar_begins_behind_the_reasoning():
    s = server("fake")
    for text in ("I think.</think>\n\nno", "I think.</think>maybe"):
        r = ask(s, said(text), temperature=0, extra_body={"enable_thinking": True, "guided_choice": ["no", "nothing"]}).choices[0]
        check(r.message.reasoning_content == "I think." and r.message.content in ("no", "nothing") and r.finish_reason == "stop", r)


def reasoning_has_a_budget():
    s = server("fake")
    text = "abcdefghijklmnopqrstuvwxyz"
    for stream in (False, True):
        r = ask(s, said(text), temperature=0, stream=stream, extra_body={"enable_thinking": True, "thinking_token_budget": 5})
        m = [x.choices[0].delta for x in r] if stream else [r.choices[0].message]
        got = tuple("".join(getattr(d, k, None) or "" for d in m) for k in ("reasoning_content", "content"))
        check(got == ("abcde", text[13:]), got)
    r = ask(s, said("<think>" + text), temperature=0, extra_body={"thinking": {"type": "enabled", "budget_tokens": 3}, "chat_template_kwargs": {"enable_thinking": False}})
    check((r.choices[0].message.reasoning_content, r.choices[0].message.content) == ("abc", text[11:]), r)
    r = ask(s, said(text), temperature=0, extra_body={"enable_thinking": True, "thinking_token_budget": 0})
    check(r.choices[0].message.content == text[8:] and getattr(r.choices[0].message, "reasoning_content", None) is None, r)
    r = ask(s, said("plain " + text), temperature=0, extra_body={"thinking_token_budget": 2})
    check(r.choices[0].message.content == "plain " + text, r)
    both = ask(s, said(text), temperature=0, extra_body={"enable_thinking": True, "thinking_token_budget": 5, "guided_choice": ["yes", "no"]}).choices[0].message
    check(both.reasoning_content == "abcde" and both.content in ("yes", "no"), both)
    SHARED.pop(("fake", ())).stop()


sys.exit(run_cases(json_schema, json_object, grammar_regex_choice, tool_choice_is_enforced, refused, a_grammar_begins_behind_the_reasoning, reasoning_has_a_budget))
