# SPDX-License-Identifier: Apache-2.0
"""The official openai and anthropic clients, sync and async, whole and streamed, as one matrix: text and tool calls, the exception of
every status, retries after a full queue, and across a restart of the server on its port. The fake engine answers «TEXT» with TEXT."""
import asyncio
import json
import socket
import sys
import tempfile
import threading
import time

import anthropic
import openai

from serving import Server, check, head, run_cases

KEY = "a-key-for-the-tests"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
KINDS = [openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic, anthropic.AsyncAnthropic]


def is_openai(kind):
    return kind in KINDS[:2]


def said(text):
    return [{"role": "user", "content": f"\u00ab{text}\u00bb"}]


def fields_of(kind, messages, tools=False, **more):
    f = {"model": "", "messages": messages, "max_tokens": 500, **more}
    if tools and is_openai(kind):
        f["tools"] = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    elif tools:
        f["tools"] = [{"name": "get_weather", "input_schema": SCHEMA}]
    return f


def reply_of(kind, m):
    """(text, calls, reason) of a whole response."""
    if is_openai(kind):
        c = m.choices[0]
        return c.message.content or "", [(t.function.name, json.loads(t.function.arguments)) for t in c.message.tool_calls or []], c.finish_reason
    return "".join(b.text for b in m.content if b.type == "text"), [(b.name, b.input) for b in m.content if b.type == "tool_use"], m.stop_reason


class Joined:
    """The same of a stream."""

    def __init__(self, kind):
        self.kind, self.text, self.calls, self.reason = kind, "", [], None

    def add(self, e):
        if is_openai(self.kind):
            for c in e.choices:
                self.text += c.delta.content or ""
                for t in c.delta.tool_calls or []:
                    if t.index == len(self.calls):
                        self.calls.append([t.function.name, ""])
                    self.calls[t.index][1] += t.function.arguments or ""
                self.reason = c.finish_reason or self.reason
        elif e.type == "content_block_start" and e.content_block.type == "tool_use":
            self.calls.append([e.content_block.name, ""])
        elif e.type == "content_block_delta" and e.delta.type == "input_json_delta":
            self.calls[-1][1] += e.delta.partial_json
        elif e.type == "content_block_delta" and e.delta.type == "text_delta":
            self.text += e.delta.text
        elif e.type == "message_delta":
            self.reason = e.delta.stop_reason

    def reply(self):
        return self.text, [(n, json.loads(a)) for n, a in self.calls], self.reason


def ask(kind, port, stream=False, retries=0, key=KEY, **fields):
    """A call in any of the eight ways; the same triple."""
    base = f"http://127.0.0.1:{port}" + ("/v1" if is_openai(kind) else "")
    options = {"base_url": base, "api_key": key, "max_retries": retries, "timeout": 60}

    def create(c):
        return (c.chat.completions if is_openai(kind) else c.messages).create(**fields_of(kind, **fields), stream=stream)

    async def go():
        async with kind(**options) as c:
            got = await create(c)
            if not stream:
                return reply_of(kind, got)
            joined = Joined(kind)
            async for e in got:
                joined.add(e)
            return joined.reply()
    if "Async" in kind.__name__:
        return asyncio.run(go())
    with kind(**options) as c:
        got = create(c)
        if not stream:
            return reply_of(kind, got)
        joined = Joined(kind)
        for e in got:
            joined.add(e)
        return joined.reply()


def every_way():
    for kind in KINDS:
        for stream in (False, True):
            yield kind, stream, f"{kind.__name__}, stream={stream}"


def text_and_tools():
    with Server.fake("--tool-syntax", "hermes", ctx=16384) as s:
        for kind, stream, way in every_way():
            got = ask(kind, s.port, stream, messages=said("Gr\u00fc\u00dfe \U0001f600"))
            check(got == ("Gr\u00fc\u00dfe \U0001f600", [], "stop" if is_openai(kind) else "end_turn"), f"{way}: {got}")
            got = ask(kind, s.port, stream, messages=said(f"Wait.{CALL}"), tools=True)
            check(got == ("Wait.", [("get_weather", {"city": "Oslo"})], "tool_calls" if is_openai(kind) else "tool_use"), f"{way}: {got}")


def raises(kind, stream, way, port, name, **fields):
    module = openai if is_openai(kind) else anthropic
    try:
        ask(kind, port, stream, **{"messages": said("x"), **fields})
    except module.APIStatusError as e:
        check(type(e) is getattr(module, name), f"{way}: {type(e).__name__}, expected {name}: {e}")
        check(e.request_id and e.response.headers["x-request-id"], f"{way}: no request id")
        return e
    raise AssertionError(f"{way}: {fields} is accepted")


def exceptions_of_every_status():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(KEY + "\n")
        f.flush()
        with Server.fake("--api-key-file", f.name, unreadable_at=0) as s:
            for kind, stream, way in every_way():
                raises(kind, stream, way, s.port, "BadRequestError", extra_body={"temperature": 3})
                raises(kind, stream, way, s.port, "AuthenticationError", key="other")
                raises(kind, stream, way, s.port, "PermissionDeniedError", extra_headers={"Origin": "https://evil.example"})
                raises(kind, stream, way, s.port, "NotFoundError", extra_body={"model": "other"})
                raises(kind, stream, way, s.port, "InternalServerError", messages=[{"role": "user", "content": "x" * 80}], extra_body={"ignore_eos": True})


def occupy(s):
    """A stream that runs for long; a function ends it."""
    sock = s.connect()
    body = json.dumps({"prompt": "x", "max_tokens": 900, "stream": True, "ignore_eos": True}).encode()
    sock.sendall(head("POST", "/v1/completions", body, [("Content-Type", "application/json")]) + body)
    return sock.close


def at_once(kinds, port, results):
    threads = [threading.Thread(target=lambda kind=kind: results.update({kind: ask(kind, port, retries=8, messages=said("again"))[0]})) for kind in kinds]
    for t in threads:
        t.start()
    return threads


def a_full_queue_is_429_and_retried():
    with Server.fake("--max-running", "1", "--max-queued", "1", step_us=50000) as s:
        ends = [occupy(s)]
        while s.metrics()["moed_requests_running"] == 0:
            time.sleep(0.01)
        ends.append(occupy(s))
        while s.metrics()["moed_requests_queued"] == 0:
            time.sleep(0.01)
        for kind, stream, way in every_way():
            e = raises(kind, stream, way, s.port, "RateLimitError")
            check(float(e.response.headers["retry-after"]) >= 1, f"{way}: {e.response.headers}")
        results = {}
        threads = at_once([openai.OpenAI, anthropic.AsyncAnthropic], s.port, results)
        time.sleep(0.3)
        for end in ends:
            end()
        for t in threads:
            t.join()
        check(list(results.values()) == ["again"] * 2, results)


def a_restart_is_survived():
    """503 while it drains, then nobody listens, then a new server on the same port: the clients' own retries get through."""
    with socket.socket() as p:
        p.bind(("127.0.0.1", 0))
        port = p.getsockname()[1]
    flags = ("--port", str(port))
    old = Server.fake(*flags, step_us=20000)
    end = occupy(old)
    while old.metrics()["moed_requests_running"] == 0:
        time.sleep(0.01)
    old.process.terminate()
    time.sleep(0.1)
    for kind, stream, way in every_way():
        e = raises(kind, stream, way, port, "InternalServerError" if is_openai(kind) else "ServiceUnavailableError")
        check(e.status_code == 503 and float(e.response.headers["retry-after"]) > 0, f"{way}: {e}")
    results = {}
    threads = at_once(KINDS, port, results)
    end()
    old.stop(signalled=True)
    with Server.fake(*flags):
        for t in threads:
            t.join()
    check(list(results.values()) == ["again"] * 4, results)


sys.exit(run_cases(text_and_tools, exceptions_of_every_status, a_full_queue_is_429_and_retried, a_restart_is_survived))
