#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moed's chat templates give the bytes jinja2 gives in the settings of `transformers`, and fail where it fails:
over every feature (template_features.txt, a template a line), whitespace control, random templates, and the templates
vendors publish times a matrix of conversations where the data folder exists. What the request wrote is marked as
such, and never becomes a control token of a real vocabulary."""
import collections
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import conversations
import jinja_peer as jp
import random_templates

HELPER = pathlib.Path(os.environ.get("TEST_BUILD", ROOT / "build/release")) / "helpers/chat_render"
DATA = pathlib.Path(os.environ.get("TEST_SHARED_DATA", ROOT / "../shared/data"))
N_RANDOM = int(os.environ.get("TEST_RANDOM_TEMPLATES", 1500))
UNPRINTABLE = (" at 0x", "<function", "<built-in", "<bound")  # Python prints addresses here


class Skip(Exception):
    pass


def check(differences, n):
    if differences:
        raise AssertionError(f"{len(differences)} of {n} differ; first: {differences[0]}")


def features(peer):
    """Each expression of the file by itself, and each line with statements as a whole."""
    wrong, n, kinds = [], 0, collections.Counter()
    for line in (ROOT / "tests/e2e/template_features.txt").read_text().splitlines():
        for piece in [line] if "{%" in line else re.findall(r"\{\{.*?\}\}(?!\})", line):
            n += 1
            want = jp.expected(piece, {})
            kinds[jp.KINDS[want[0]]] += 1
            d = jp.differ(want, jp.actual(peer, piece, {}))
            if d:
                wrong.append(f"{piece!r}: {d}")
    assert n > 240 and kinds["ok"] > 0.95 * n, kinds
    check(wrong, n)
    return f"{n} templates"


def whitespace(peer):
    """Every combination of a tag's signs with blanks and newlines around it, for each sort of tag."""
    wrong, n = [], 0
    tags = ["{%{} if true {}%}", "{{{} 1 {}}}", "{#{} c {}#}", "{%{} raw {}%}{{ r }}{%{} endraw {}%}", "{%{} set x = 1 {}%}"]
    for tag in tags:
        for left in ("", "-", "+"):
            for right in ("", "-") if "{{{}" in tag else ("", "-", "+"):
                for around in ("a{}b", "a {} b", "a\n {} \nb", "\n{}\n", " {} ", "a\n\n  {}\n\n b", "{}", "\t{}\r\n x", "{}{}", "{} {}", "{}\n{}", "\u3000{}\u2028"):
                    code = tag.replace("{}", "\x01", 1).replace("{}", "\x02", 1)
                    code = code.replace("{}", "\x01", 1).replace("{}", "\x02", 1).replace("\x01", left).replace("\x02", right)
                    if "if true" in code:
                        code += "y" + code.replace("if true", "endif")
                    template = around.replace("{}", code)
                    n += 1
                    d = jp.compare(peer, template, {})
                    if d:
                        wrong.append(f"{template!r}: {d}")
    check(wrong, n)
    return f"{n} templates"


def errors(peer):
    """Templates that do not compile, or fail: for the same reason as in jinja2."""
    bad = ["{{", "{%", "{{ }}", "{% %}", "{{ 1 + }}", "{{ (1, }}", "{{ 'a }}", "{{ a b }}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% else %}", "{% for x in %}{% endfor %}",
           "{% for 1 in x %}{% endfor %}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% macro %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ x | nope }}",
           "{{ x is nope }}", "{% if false %}{{ x | nope }}{% endif %}", "{{ (x | nope) if false }}", "{% if true %}{{ x | nope }}{% endif %}", "{% call 1 %}{% endcall %}", "{# x", "{% raw %}x",
           "{{ 1 is odd is even }}", "{{ a.1.b }}", "{{ a. }}", "{{ ] }}", "{{ {1: } }}", "{% break %}", "{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{{ '\\x4' }}",
           "{% for loop in [1] %}{% endfor %}", "{% do x %}", "{% trans %}{% endtrans %}", "{{ 1 if }}", "{{ not }}", "{{ a not b }}", "{{ * }}", "{{ a ! b }}", "{{ @ }}", "{{ a if b else }}",
           "{{ x.y }}", "{{ x[0] }}", "{{ x() }}", "{{ x + 1 }}", "{{ 1 < x }}", "{{ -x }}", "{{ none + 1 }}", "{{ none() }}", "{{ 'a' < 1 }}", "{{ 1 in 1 }}", "{{ 1 in 'a' }}", "{{ [] | sum(start='') }}",
           "{{ {}[[]] }}", "{{ {[]: 1} }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 1.5 // 0 }}", "{{ 0 ** -1 }}", "{{ range(0, 5, 0) }}", "{{ range(200000) }}", "{{ range(1.5) }}", "{{ 'a'.split('') }}",
           "{{ 'abc'.index('z') }}", "{{ 'x'.nope() }}", "{{ [].append(1) }}", "{{ {}.update({}) }}", "{{ ''.__class__ }}", "{{ ''.__class__.x }}", "{{ ''['__class__']() }}", "{% for x in 1 %}{% endfor %}",
           "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% set a, b = 1 %}",
           "{% set x.y = 1 %}", "{% set d = {} %}{% set d.y = 1 %}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{{ loop.index }}", "{{ 1 | length }}", "{{ none | length }}",
           "{{ [1, 'a'] | sort }}", "{{ {'a': 1, 1: 2} | dictsort }}", "{{ [{}] | join(attribute='a.b') }}", "{{ 'a' | round }}", "{{ 'a' | abs }}", "{{ none | tojson }}", "{{ x | tojson }}",
           "{{ range | tojson }}", "{{ {(1,): 1} | tojson }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 1 }}", "{{ '%s' % (1, 2) }}", "{{ '%(a)s' % {} }}", "{{ '%y' % 1 }}", "{{ '{' .format() }}", "{{ '}'.format() }}",
           "{{ '{}'.format() }}", "{{ '{a}'.format() }}", "{{ '{:d}'.format('a') }}", "{{ '{:d}'.format(none) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
           "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}", "{{ raise_exception('own message ü') }}", "{{ raise_exception() }}", "{{ raise_exception(none) }}", "{{ dict(1) }}", "{{ strftime_now() }}",
           "{{ strftime_now(1) }}", "{% include 'a' %}", "{% extends 'a' %}", "{% import 'a' as b %}", "{% from 'a' import b %}", "{{ cycler() }}", "{{ x | indent }}", "{{ 1 | indent }}", "{{ 'abc' | truncate(1) }}",
           "{{ x | int }}", "{{ x | items }}", "{{ 1 | items | list }}", "{{ 1 | list }}", "{{ 1 | first }}", "{{ 1 | last }}", "{{ x | map('nope') | list }}", "{{ [1] | map('nope') | list }}", "{{ [1] | map | list }}",
           "{{ [1] | select('nope') | list }}", "{{ [1] | selectattr | list }}", "{{ 'a'.replace('a') }}", "{{ 'a'.join(1) }}", "{{ 'a'.join([1]) }}", "{{ 'a'.startswith(1) }}", "{{ 'a' * 1.5 }}",
           "{% set v = [1] %}{{ v[1:'a'] }}", "{{ 'abc'[::0] }}", "{% set v = none %}{{ v[1:] }}", "{% set v = {} %}{{ v[1:] }}", "{% call range(3) %}{% endcall %}", "{% filter length %}x{% endfilter %}", "{{ 3 | groupby('a') }}", "{{ joiner(1, 2) }}"]
    wrong, kinds = [], collections.Counter()
    for template in bad:
        want = jp.expected(template, {})
        kinds[jp.KINDS[want[0]]] += 1
        if want[0] == jp.OK and any(x in want[1] for x in UNPRINTABLE):
            continue
        d = jp.differ(want, jp.actual(peer, template, {}))
        if d:
            wrong.append(f"{template!r}: {d}")
    assert all(kinds[k] >= 2 for k in ("syntax", "undefined", "runtime", "security", "raised")), kinds
    check(wrong, len(bad))
    return f"{len(bad)} templates: {dict(kinds)}"


def random_ones(peer):
    wrong, kinds = [], collections.Counter()
    for seed in range(N_RANDOM):
        template = random_templates.Maker(seed).template()
        want = jp.expected(template, random_templates.VARIABLES)
        kinds[jp.KINDS[want[0]]] += 1
        if want[0] == jp.OK and any(x in want[1] for x in UNPRINTABLE):
            continue
        d = jp.differ(want, jp.actual(peer, template, random_templates.VARIABLES))
        if d:
            wrong.append(f"seed {seed}: {d}\n{template}")
    assert kinds["ok"] > 0.3 * N_RANDOM, kinds
    check(wrong, N_RANDOM)
    return f"{N_RANDOM} templates: {dict(kinds)}"


def private(value):
    """Letters and brackets of every string moved to where no template has characters of its own."""
    if isinstance(value, str):
        return "".join(chr(0xE000 + ord(c)) if c.isascii() and not c.isspace() else c for c in value)
    if isinstance(value, list):
        return [private(v) for v in value]
    if isinstance(value, dict):
        return {k: v if k == "role" else private(v) for k, v in value.items()}  # a role is trusted
    return value


def marks(peer):
    """Of the output of random templates each character of the request is marked, whatever was done to it."""
    variables = {k: private(v) for k, v in random_templates.VARIABLES.items()}
    n = n_chars = 0
    for seed in range(2 * N_RANDOM):
        maker = random_templates.Maker(seed)
        template = maker.template() if seed % 4 == 0 else "{{ " + maker.text(4) + " }}"
        kind, _, _ = jp.actual(peer, template, variables)
        if kind != jp.OK:
            continue
        n += 1
        covered = bytearray(len(peer.output))
        for start, end in peer.spans:
            covered[start:end] = b"\x01" * (end - start)
        for m in re.finditer(rb"\xee[\x80-\x81][\x80-\xbf]", peer.output):
            n_chars += 1
            assert all(covered[m.start():m.end()]), f"seed {seed}: byte {m.start()} of {peer.output[max(0, m.start() - 20):m.end() + 20]}\n{template}"
    assert n > N_RANDOM / 2 and n_chars > 2 * N_RANDOM, (n, n_chars)
    return f"{n} outputs, {n_chars} characters of the request"


def published():
    folder = DATA / "chat_templates"
    if not folder.is_dir():
        raise Skip("no folder of published templates")
    return sorted(folder.glob("*.jinja"))


def real_templates(peer):
    wrong, n, kinds = [], 0, collections.Counter()
    for path in published():
        template = path.read_text()
        for name, variables, continue_final in conversations.matrix():
            want = jp.expected(template, variables, continue_final)
            kinds[jp.KINDS[want[0]]] += 1
            n += 1
            d = jp.differ(want, jp.actual(peer, template, variables, continue_final))
            if d:
                wrong.append(f"{path.name}, {name}: {d}")
    check(wrong, n)
    return f"{n} renderings: {dict(kinds)}"


def injection(_):
    """Messages made of all control tokens of a vocabulary: the prompt has the control tokens it has without them."""
    vocabularies = sorted((DATA / "tokenizers").glob("ggml-vocab-*.gguf")) if (DATA / "tokenizers").is_dir() else []
    if not vocabularies:
        raise Skip("no folder of vocabularies")
    own = "{% for m in messages %}<|im_start|><s>[INST]<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}<|eot_id|></s>{% endfor %}{{ messages | tojson }}"
    n = 0
    for vocabulary in vocabularies:
        peer = jp.Peer(HELPER, str(vocabulary))
        if peer.process.poll() is not None:
            continue
        try:
            peer.compile("{{ x }}")
        except (RuntimeError, BrokenPipeError):
            continue  # a vocabulary of a kind that moed does not read
        names = special_names(vocabulary)
        hostile = " ".join(names) + "".join(names)
        peer.compile("{% raw %}" + hostile + "{% endraw %}")
        peer.render({})
        assert sum(c for _, c in peer.ids), f"{vocabulary.name}: no control token in {names[:9]}"  # a template may write them
        for template in [own, *(p.read_text() for p in published())]:
            if peer.compile(template)[0] != jp.OK:
                continue
            counts = []
            for content in ("harmless", hostile, hostile[:len(hostile) // 2]):
                messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}, {"role": "user", "content": content}]
                kind, _, _ = peer.render(conversations.variables(messages))
                counts.append(sum(c for _, c in peer.ids) if kind == jp.OK else None)
                n += 1
            given = [c for c in counts if c is not None]
            assert len(set(given)) <= 1, f"{vocabulary.name}: {counts} control tokens"
        peer.close()
    assert n >= 9, n
    return f"{n} prompts, {len(vocabularies)} vocabularies"


def special_names(vocabulary):
    """What looks like a control token in the file, by its bytes."""
    found = set(re.findall(rb"<\|?[A-Za-z_/\xef\xe2][^<>\s\x00]{0,40}?\|?>|\[/?[A-Z_]{2,20}\]", vocabulary.read_bytes()))
    return sorted(f.decode(errors="ignore") for f in found)[:400] + ["<s>", "</s>", "<unk>"]


def bounds(peer):
    """The default limits stop a template that would run for ever, within seconds."""
    for template in ("{% for a in range(99999) %}{% for b in range(99999) %}{{ 1 }}{% endfor %}{% endfor %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                     "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "{% for a in range(99999) %}{{ 'abcdefgh' * 100000 }}{% endfor %}"):
        t0 = time.time()
        kind, text, _ = jp.actual(peer, template, {})
        assert kind == jp.LIMIT, (template, kind, text)
        assert time.time() - t0 < 60, template
    return ""


def main():
    failed = False
    for case in (features, whitespace, errors, random_ones, marks, bounds, real_templates, injection):
        peer, t0 = jp.Peer(HELPER), time.time()
        try:
            note = case(peer)
            print(f"PASS {case.__name__}", flush=True)
            print(f"# {case.__name__}: {note}, {time.time() - t0:.1f} s", flush=True)
        except Skip as e:
            print(f"SKIP {case.__name__}: {e}", flush=True)
        except Exception as e:  # noqa: BLE001 - one broken case must not hide the others
            failed = True
            print(f"FAIL {case.__name__}: {type(e).__name__}: {e}", flush=True)
        finally:
            peer.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
