# SPDX-License-Identifier: Apache-2.0
"""Chat templates rendered twice: by jinja2 in the sandbox settings `transformers` uses, and by helpers/chat_render.

compare(peer, template, variables) tells how the two differ, or None. Errors are equal when their kinds are.
"""
import datetime
import functools
import json
import struct
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1764547200  # 2025-12-01 00:00:00 UTC; the peer runs with TZ=UTC
OK, SYNTAX, RAISED, UNDEFINED, SECURITY, RUNTIME, CONTINUE, LIMIT, MEMORY = range(9)
KINDS = ["ok", "syntax", "raised", "undefined", "security", "runtime", "continue", "limit", "memory"]
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Raised(jinja2.TemplateError):
    """raise_exception of a template; transformers raises the base class, which other errors share."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: a block of its own, otherwise as if it were not there."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):  # noqa: N805 - so that namespace(self=...) works
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(f)
    env.globals["namespace"] = Namespace
    return env


ENV = environment()


def kind_of(error):
    if isinstance(error, Raised):
        return RAISED
    if isinstance(error, jinja2.exceptions.SecurityError):
        return SECURITY
    if isinstance(error, jinja2.UndefinedError):
        return UNDEFINED
    if isinstance(error, (jinja2.TemplateSyntaxError, SyntaxError)):
        return SYNTAX
    return RUNTIME


def with_tag(messages):
    """The messages with the final text tagged, and that text."""
    if not messages or messages[-1].get("content") is None:
        raise ValueError("nothing to continue")
    *before, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + TAG}], content
    for i in range(len(content) - 1, -1, -1) if isinstance(content, list) else ():
        if "text" in content[i]:
            part = {**content[i], "text": content[i]["text"] + TAG}
            return [*before, {**last, "content": [*content[:i], part, *content[i + 1:]]}], content[i]["text"]
    raise ValueError("nothing to continue")


@functools.lru_cache(4)
def compiled_by_jinja(template):
    try:
        return ENV.from_string(template), None
    except Exception as e:  # noqa: BLE001 - every kind of failure is compared
        return None, str(e)


def expected(template, variables, continue_final=False):
    """(kind, text): what jinja2 makes of it."""
    compiled, error = compiled_by_jinja(template)
    if error is not None:
        return SYNTAX, error
    try:
        if continue_final:
            try:
                messages, final = with_tag(variables["messages"])
            except ValueError as e:
                return CONTINUE, str(e)
            text = compiled.render(**{**variables, "messages": messages})
            if final.strip() not in text or TAG.strip() not in text:
                return CONTINUE, "dropped"
            at = text.rindex(TAG.strip())
            text = text[:at] if text[at:at + len(TAG)] == TAG else text[:at].rstrip()
        else:
            text = compiled.render(**variables)
        text.encode()
        return OK, text
    except RecursionError as e:
        return LIMIT, str(e)
    except Exception as e:  # noqa: BLE001
        return kind_of(e), str(e)


def pack(v, trusted=False):
    if v is None:
        return b"N"
    if isinstance(v, bool):
        return b"T" if v else b"F"
    if isinstance(v, int):
        return b"i" + struct.pack("<q", v)
    if isinstance(v, float):
        return b"f" + struct.pack("<d", v)
    if isinstance(v, str):
        b = v.encode()
        return (b"S" if trusted else b"s") + struct.pack("<I", len(b)) + b
    if isinstance(v, (list, tuple)):
        return b"l" + struct.pack("<I", len(v)) + b"".join(pack(x) for x in v)
    return b"d" + struct.pack("<I", len(v)) + b"".join(pack(k) + pack(x, k in ("bos_token", "eos_token", "role")) for k, x in v.items())


class Peer:
    def __init__(self, program, *vocabulary):
        self.process = subprocess.Popen([program, *vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"TZ": "UTC"})
        self.spans = []  # of the last output: what the request wrote
        self.ids = []    # of the last output, (id, is a control token); with a vocabulary
        self.has_ids = bool(vocabulary)
        self.template = None

    def ask(self, record):
        self.process.stdin.write(record)
        self.process.stdin.flush()
        out = self.process.stdout
        head = out.read(16)
        if len(head) != 16:
            raise RuntimeError(f"the helper ended with {self.process.wait()}")
        _, kind, line, n = struct.unpack("<iiiI", head)
        self.output = out.read(n)
        text = self.output.decode(errors="replace")
        n_spans, = struct.unpack("<I", out.read(4))
        spans = struct.unpack(f"<{2 * n_spans}I", out.read(8 * n_spans))
        self.spans = list(zip(spans[::2], spans[1::2]))
        if self.has_ids:
            n, = struct.unpack("<q", out.read(8))
            assert n >= 0, f"encoding: status {n}"
            flat = struct.unpack(f"<{2 * n}i", out.read(8 * n))
            self.ids = list(zip(flat[::2], flat[1::2]))
        return kind, text, line

    def compile(self, template):
        b = template if isinstance(template, bytes) else template.encode()
        return self.ask(b"T" + struct.pack("<I", len(b)) + b)

    def render(self, variables, continue_final=False, max_steps=0):
        return self.ask(b"R" + struct.pack("<BqI", continue_final, NOW, max_steps) + pack(variables))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def actual(peer, template, variables, continue_final=False):
    if peer.template != template:
        peer.template = None
        kind, text, line = peer.compile(template)
        if kind != OK:
            return kind, text, line
        peer.template = template
    return peer.render(variables, continue_final)


def differ(want, got):
    """None, or a line that says how jinja2's answer and ours differ."""
    if want[0] != got[0]:
        return f"kind {KINDS[got[0]]} ({got[1][-160:]!r}), jinja2: {KINDS[want[0]]} ({want[1][-160:]!r})"
    if want[0] == RAISED and want[1][:900] != got[1][:900]:
        return f"message {got[1]!r}, jinja2: {want[1]!r}"
    if want[0] == OK and want[1] != got[1]:
        at = next((i for i, (a, b) in enumerate(zip(want[1], got[1])) if a != b), min(len(want[1]), len(got[1])))
        return f"at {at}: {got[1][max(0, at - 40):at + 60]!r}, jinja2: {want[1][max(0, at - 40):at + 60]!r}"
    return None


def compare(peer, template, variables, continue_final=False):
    return differ(expected(template, variables, continue_final), actual(peer, template, variables, continue_final))
