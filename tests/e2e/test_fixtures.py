# SPDX-License-Identifier: Apache-2.0
"""Requests that real and hostile clients send, with the one right answer each: bodies of chat and completions, headers. Every one
is delivered whole, byte by byte and cut in two at every position (long ones at some), on connections that stay open: the same
verdict each time, a full error object, and the next request on the connection is answered."""
import json
import random
import socket
import sys
import tempfile

from serving import SANITIZED, Server, check, head, read_response, run_cases
from completion_cases import BODIES, FIELDS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
J = [("Content-Type", "application/json")]
EVERY_POSITION = 1200 if not SANITIZED else 300  # bytes of a request; of a longer one MANY positions are tried
MANY = 40
HI = [{"role": "user", "content": "hi"}]
BAD = "invalid_value"


def chat(status, param=None, code=BAD, messages=HI, **fields):
    return json.dumps({"messages": messages, "max_tokens": 1, **fields}).encode(), status, param, code if status == 400 else None


def message(status, param=None, **fields):
    return chat(status, param, messages=[fields])


def tool(name="f", **function):
    return {"type": "function", "function": {"name": name, **function}}


def call(**function):
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


ASKED = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1%s}'
CHAT_CASES = [
    # ---- bodies ----
    *[(body, 400, None, "invalid_json") for body in (b"", b"{", b"[]", b'"x"', b"null", ("\ufeff" + ASKED % "").encode(), (ASKED % "" + "x").encode(), (ASKED % "").encode("utf-16"),
      (ASKED % "").encode().replace(b"hi", b"\xff"), (ASKED % "").encode().replace(b"hi", b"\0"), (ASKED % "").encode().replace(b"hi", b"\\u0000"),
      (ASKED % "").encode().replace(b"hi", b"\\ud83d"), (ASKED % ',"seed":01').encode(), (ASKED % ',"seed":1.').encode(), (ASKED % ',"a":NaN').encode())],
    (b"{}", 400, "messages", BAD), ((ASKED % ',"model":"fake","model":"fake"').encode(), 400, "model", BAD), ((ASKED % ',"Model":"other"').encode(), 200, None, None),
    ((ASKED % ',"model":""').encode(), 200, None, None), ((ASKED % ',"model":"gpt-9"').encode(), 404, "model", "model_not_found"), ((ASKED % ',"no_such_field":[{}]').encode(), 200, None, None),
    # ---- messages ----
    chat(400, "messages", messages=[]), chat(400, "messages[0].role", messages=[{}]), chat(400, "messages[0]", messages=[None]), chat(400, "messages[0]", messages=[123]), chat(400, "messages", messages="hi"),
    message(400, "messages[0].role", content="x"), message(400, "messages[0].role", role="bot", content="x"), message(400, "messages[0].role", role=123, content="x"),
    message(400, "messages[0].content", role="user"), message(400, "messages[0].content", role="user", content=123), message(400, "messages[0].content", role="user", content=[]),
    message(400, "messages[0].content[0].type", role="user", content=[{}]), message(400, "messages[0].content[0].type", role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
    message(200, role="system", content="only"), message(200, role="user", content=""), chat(400, "messages", messages=[*HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
    chat(400, "messages[1].tool_call_id", messages=[*HI, {"role": "tool", "content": "x"}]), chat(200, messages=[*HI, {"role": "assistant", "content": "a", "tool_calls": None}, *HI]),
    chat(400, "messages[1].tool_calls", messages=[*HI, call(name="f", arguments="no JSON"), *HI]), chat(200, messages=[*HI, call(name="f", arguments={"a": 1}), *HI]),
    chat(400, "messages[1].tool_calls", messages=[*HI, call(arguments="{}"), *HI]),
    # ---- lengths ----
    *[chat(400, "max_tokens", max_tokens=v) for v in (-1, 1 << 31, 1 << 53, 1.5, "1", True)], chat(200, max_tokens=None, max_completion_tokens=1), chat(200, max_tokens=1, max_completion_tokens=1),
    chat(400, "max_completion_tokens", max_completion_tokens=2), chat(400, "max_tokens", "context_length_exceeded", max_tokens=1024), chat(400, "messages", "context_length_exceeded", messages=[{"role": "user", "content": "x" * 2000}]),
    chat(200, max_tokens=0),
    # ---- stops ----
    chat(400, "stop", stop=""), chat(400, "stop", stop=[""]), chat(200, stop=["a", "a"]), chat(400, "stop", stop=[None]), chat(200, stop=list("abcde")), chat(200, stop=["ab", "abc"]),
    chat(200, stop="\u20ac"), chat(200, stop="<|im|>"), chat(400, "stop", stop="x" * (1 << 20)),
    # ---- tools ----
    chat(200, tools=[]), chat(400, "tools", tools=[tool(), tool()]), chat(400, "tools", tools=[tool("a\r\nb")]), chat(400, "tools", tools=[tool("a" * 10000)]), chat(400, "tools", tools=[tool(parameters=[])]),
    chat(400, "tool_choice", tools=[tool()], tool_choice=tool("g")), chat(400, "tool_choice", tool_choice="required"), chat(400, "tool_choice", tools=[], tool_choice="required"),
    chat(200, tools=[tool()], parallel_tool_calls=False), chat(200, tools=None, tool_choice=None, parallel_tool_calls=None),
    # ---- null is absent ----
    chat(200, **dict.fromkeys("model temperature top_p top_k min_p n seed stop logit_bias logprobs top_logprobs stream stream_options response_format user metadata store service_tier".split())),
]


class Client:
    """One connection, opened again when the server has closed it."""

    def __init__(self, port):
        self.port, self.s = port, None

    def ask(self, pieces):
        if self.s is None:
            self.s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
            self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for p in pieces:
                self.s.sendall(p)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the end; the answer is there
        status, headers, body = read_response(self.s)
        if headers.get("connection") == "close":
            self.s.close()
            self.s = None
        return status, headers, body


def deliveries(data, rng):
    yield [data]
    if len(data) <= EVERY_POSITION:
        yield [data[i:i + 1] for i in range(len(data))]
    positions = range(1, len(data)) if len(data) <= EVERY_POSITION else rng.sample(range(1, len(data)), MANY if len(data) < 1 << 17 else 3)
    for i in positions:
        yield [data[:i], data[i:]]


def judge(client, name, data, status, param, code, rng):
    n = 0
    for pieces in deliveries(data, rng):
        got, headers, body = client.ask(pieces)
        how = f"{name}, cut at {len(pieces[0])}"
        check(got == status, lambda: f"{how}: {got}, expected {status}: {body[:300]!r}")
        if status >= 400:
            error = json.loads(body)["error"]
            check(set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], lambda: f"{how}: {error}")
            check((error["param"], error["code"]) == (param, code), lambda: f"{how}: {error}")
        else:
            check(json.loads(body)["usage"]["total_tokens"] >= 0, how)
        n += 1
    return n


def judge_all(path, cases, headers=J):
    rng, n = random.Random(5), 0
    with Server.fake("--max-n", "8", "--max-prompts", "16") as s:
        client = Client(s.port)
        for body, *want in cases:
            n += judge(client, f"{path} {body[:70]!r}", head("POST", path, body, headers) + body, *want, rng)
            check(client.ask([head("GET", "/health")])[0] == 200, "the next request")
        m = s.wait_idle()
        check(m["moed_kv_pages_free"] == m["moed_kv_pages"] or m["moed_generations_live"] == 0, m)
    print(f"# {len(cases)} requests to {path} in {n} deliveries", flush=True)


def chat_requests():
    judge_all(CHAT, CHAT_CASES)


def completion_requests():
    bodies = [(body, *want) for body, *want in BODIES if len(body) < 1 << 20]
    judge_all(COMPLETIONS, bodies + [(json.dumps(f).encode(), *want) for f, *want in FIELDS if len(str(f)) < 1 << 20])


BODY = (ASKED % "").encode()
HEADERS = [  # header lines, status, code
    ([("Authorization", "Bearer a-key-for-the-tests")], 200, None), ([("Authorization", "bearer a-key-for-the-tests")], 200, None), ([("Authorization", "Bearer a-key-for-the-tests ")], 200, None),
    ([("X-Api-Key", "a-key-for-the-tests")], 200, None), ([("Authorization", "Bearer other")], 401, "invalid_api_key"), ([("Authorization", "Bearer a-key-for-the-test")], 401, "invalid_api_key"),
    ([], 401, None), ([("Authorization", "Bearer a-key-for-the-tests"), ("Authorization", "Bearer b")], 400, None), ([("Authorization", "Bearer " + "k" * 100000)], 431, None),
    ([("Authorization", "Bearer a-key-for-the-tests"), ("X-Request-Id", "a\x01b")], 400, None), ([("Authorization", "Bearer a-key-for-the-tests"), ("X-Request-Id", "a b")], 200, None),
    ([("Authorization", "Bearer a-key-for-the-tests"), ("Origin", "https://evil.example")], 403, None), ([("Authorization", "Bearer a-key-for-the-tests"), ("Accept-Encoding", "gzip")], 200, None),
]


def header_matrix():
    rng, n = random.Random(6), 0
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("a-key-for-the-tests\n")
        f.flush()
        with Server.fake("--api-key-file", f.name) as s:
            client = Client(s.port)
            for lines, status, _ in HEADERS:
                data = head("POST", CHAT, BODY, [*J, *lines]) + BODY
                for pieces in deliveries(data, rng):
                    got, headers, body = client.ask(pieces)
                    check(got == status, lambda: f"{str(lines)[:90]} cut at {len(pieces[0])}: {got}, expected {status}: {body[:200]!r}")
                    check("content-encoding" not in headers and ("www-authenticate" in headers) == (got == 401), headers)
                    check(set(json.loads(body)["error"]) == {"message", "type", "param", "code"} if got >= 400 else True, body)
                    check("a-key-for" not in body.decode(), "an error shows the key")
                    n += 1
            status, _, body = client.ask([head("POST", CHAT, BODY, [*J, ("Host", "evil.example"), ("Authorization", "Bearer a-key-for-the-tests")]).replace(b"Host: 127.0.0.1\r\n", b"") + BODY])
            check(status == 403, body)
            check("a-key-for" not in s.stderr(), "the log shows the key")
    print(f"# {len(HEADERS)} header sets in {n} deliveries", flush=True)


if __name__ == "__main__":
    sys.exit(run_cases(chat_requests, completion_requests, header_matrix))
