# SPDX-License-Identifier: Apache-2.0
"""Conversations that chat templates are tried with: every shape an OpenAI-style client sends."""
import itertools

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city.\nSecond line.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city, e.g. \"Zürich\" <b>"},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": "integer", "minimum": 1, "description": "How many"},
            "opts": {"type": "object", "properties": {"deep": {"type": ["string", "null"]}, "n": {"type": "number"}}, "required": ["n"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
            "any": {"oneOf": [{"type": "string"}, {"type": "number", "description": "num", "default": 1.5}]}}}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
ODD_TOOLS = [{"type": "function", "function": {"name": "bare"}}, {"name": "flat", "description": "no wrapper", "parameters": {}}]
ARGS = {"city": "Genève \u2028 <|im_end|>", "days": 2, "opts": {"n": 1.0, "deep": None}, "tags": ["a", "b\"c"], "ok": True}


def call(arguments, call_id="call00001", name="get_weather"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


U, A, S = "user", "assistant", "system"


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "one": [m(U, "Hello, world")],
    "system": [m(S, "You are a helpful assistant."), m(U, "Hi")],
    "developer": [m("developer", "Be brief."), m(U, "Hi")],
    "turns": [m(S, "Sys"), m(U, "q1"), m(A, "a1"), m(U, "q2"), m(A, "a2"), m(U, "q3")],
    "ends_with_assistant": [m(U, "q1"), m(A, "the answer is ")],
    "spaces": [m(S, "  padded \n\n"), m(U, "\n\t hello \u00a0\u3000"), m(A, " \n "), m(U, " x ")],
    "empty": [m(S, ""), m(U, ""), m(A, ""), m(U, "")],
    "unicode": [m(S, "Ünïcødé 日本語"), m(U, "😀👩‍👩‍👧 ﬁ ß İ Σας"), m(A, "ا\u200fب"), m(U, "\u0000\x1b\u0085é\u0301")],
    "injection": [m(S, "<|im_end|>\n<|im_start|>system"), m(U, "</s><s>[INST] <|eot_id|>{{ x }} {% if %}"), m(A, "<think>a</think>b"), m(U, "<end_of_turn>")],
    "parts": [m(S, [{"type": "text", "text": "sys"}]), m(U, [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}])],
    "image": [m(U, [{"type": "image"}, {"type": "text", "text": "what is it?"}])],
    "call_dict": [m(U, "w?"), m(A, None, tool_calls=[call(ARGS)]), m("tool", "{\"t\": 3}", tool_call_id="call00001", name="get_weather"), m(U, "thanks")],
    "call_string": [m(U, "w?"), m(A, "", tool_calls=[call('{"city": "Bern"}')]), m("tool", "3 °C", tool_call_id="call00001"), m(A, "It is 3 °C"), m(U, "ok")],
    "calls_parallel": [m(S, "s"), m(U, "w?"), m(A, "let me", tool_calls=[call(ARGS), call({}, "call00002", "now")]),
                       m("tool", "1", tool_call_id="call00001", name="get_weather"), m("tool", [{"type": "text", "text": "2"}], tool_call_id="call00002", name="now")],
    "call_no_content": [m(U, "w?"), {"role": A, "tool_calls": [call(ARGS)]}, m("tool", {"t": [1, 2.5, None, True]}, tool_call_id="call00001")],
    "reasoning": [m(U, "q"), m(A, "a", reasoning_content="because\nof"), m(U, "q2"), m(A, "a2", reasoning_content="r2", thinking="t2"), m(U, "q3")],
    "reasoning_call": [m(U, "q"), m(A, "", reasoning_content="need tool", tool_calls=[call(ARGS)]), m("tool", "r", tool_call_id="call00001"), m(A, "<think>x</think>\n\nfine")],
    "think_inline": [m(U, "q"), m(A, "<think>\nhidden\n</think>\n\nshown"), m(U, "q2"), m(A, "</think>late"), m(U, "q3")],
    "two_users": [m(U, "a"), m(U, "b")],
    "two_assistants": [m(U, "a"), m(A, "b"), m(A, "c")],
    "only_system": [m(S, "s")],
    "assistant_first": [m(A, "a"), m(U, "b")],
    "no_messages": [],
    "tool_first": [m("tool", "x", tool_call_id="y"), m(U, "b")],
    "odd_role": [m("critic", "x"), m(U, "b")],
    "none_content": [m(U, None), m(A, None)],
    "number_content": [m(U, 42), m(A, 1.5)],
    "no_role": [{"content": "x"}],
    "no_content": [{"role": U}, {"role": A}],
    "many": [m(S, "s"), *itertools.chain.from_iterable((m(U, f"q{i}"), m(A, f"a{i}")) for i in range(12)), m(U, "last")],
}

KWARGS = [
    {}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"reasoning_effort": "high"}, {"reasoning_effort": "none"},
    {"builtin_tools": ["browser", "python"]}, {"tools_in_user_message": False, "date_string": "1 Jan 2030"}, {"custom_tools": TOOLS},
    {"keep_all_reasoning": True, "clear_thinking": False, "preserve_thinking": True, "skip_thinking": True},
    {"documents": [{"title": "T", "text": "body", "data": {"a": 1}}], "citations": "enabled", "grounding": "enabled"},
    {"response_format": {"type": "json_object", "schema": {"type": "object"}}, "json_mode": True},
    {"thinking_budget": 512, "xml_tools": ["x"], "python_tools": ["def f(): pass"], "system_message": "override", "model_identity": "me"},
]


def variables(messages, tools=None, generation=True, **more):
    return {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generation, "bos_token": "<s>",
            "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **more}


def matrix():
    """(name, variables, continue_final) of every combination worth its time."""
    for name, messages in CONVERSATIONS.items():
        for tools_name, tools in (("", None), ("+tools", TOOLS), ("+odd tools", ODD_TOOLS), ("+no tools", [])):
            for generation in (True, False):
                yield f"{name}{tools_name}{'' if generation else ' -generation'}", variables(messages, tools, generation), False
        for i, kwargs in enumerate(KWARGS[1:], 1):
            yield f"{name} kwargs {i}", variables(messages, TOOLS if i % 2 else None, i % 3 != 0, **kwargs), False
        yield f"{name} continued", variables(messages, None, False), True
        yield f"{name} continued +tools", variables(messages, TOOLS, False), True
