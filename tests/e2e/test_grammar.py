#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output against other implementations: JSON schemas against `jsonschema`, regular expressions against `re`,
grammars against recognisers written here. Both ways: texts generated at random under the mask of a real vocabulary must
be valid, and texts known to be valid or not must be judged so. The child process also compares masks with what it takes."""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

import jsonschema

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "bench")]
import grammar_cases
import grammar_vocab

HELPER = os.path.join(os.environ.get("TEST_BUILD", os.path.join(ROOT, "build/release")), "helpers/grammar_gen")
GBNF, REGEX, JSON, SCHEMA = 1, 2, 3, 4
NO, PREFIX, COMPLETE = 0, 1, 2
CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


class Moed:
    def __init__(self, vocabulary):
        self.child = subprocess.Popen([HELPER, vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self.child.stdin.close()
        assert self.child.wait() == 0

    def ask(self, data):
        self.child.stdin.write(data)
        self.child.stdin.flush()
        got = self.child.stdout.read(4)
        assert len(got) == 4, "the child died"
        return struct.unpack("<i", got)[0]

    def text(self):
        return self.child.stdout.read(struct.unpack("<I", self.child.stdout.read(4))[0])

    def compile(self, kind, text, closed=False):
        """(status, message)"""
        data = text.encode()
        status = self.ask(b"C" + struct.pack("<III", kind, closed, len(data)) + data)
        return status, self.text().decode()

    def use(self, kind, text, closed=False):
        status, message = self.compile(kind, text, closed)
        assert status == 0, f"{text}: {message}"

    def match(self, text):
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return self.ask(b"M" + struct.pack("<I", len(data)) + data)

    def generate(self, seed, max_tokens=150):
        """(complete, text)"""
        complete = self.ask(b"G" + struct.pack("<II", seed, max_tokens))
        return bool(complete), self.text()


def validator(schema):
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return cls(schema, format_checker=CHECKER)


def spellings(value):
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, indent=2)
    yield json.dumps(value, ensure_ascii=False, indent="\t")


def escaped(value):
    """Strings of a value may be escaped in any way; keys and the values of enum and const may not."""
    return json.dumps(value) if not isinstance(value, (dict, list)) else None


def check_instances(moed, name, schema, valid, invalid):
    v = validator(schema)
    free = not (isinstance(schema, dict) and ("enum" in schema or "const" in schema))
    for x in valid:
        assert v.is_valid(x), f"{name}: jsonschema refuses {x!r}"
        for text in spellings(x):
            assert moed.match(text) == COMPLETE, f"{name}: {text} is valid"
        if free and escaped(x):
            assert moed.match(escaped(x)) == COMPLETE, f"{name}: {escaped(x)} is valid"
    for x in invalid:
        if not (name in ("date", "date_time", "time", "ipv6", "uuid", "email")):  # jsonschema is laxer, or lacks the checker
            assert not v.is_valid(x), f"{name}: jsonschema takes {x!r}"
        for text in spellings(x):
            assert moed.match(text) != COMPLETE, f"{name}: {text} is not valid"


def check_generated(moed, name, schema, n):
    v, done = validator(schema), 0
    for seed in range(n):
        complete, text = moed.generate(seed)
        assert moed.match(text) == (COMPLETE if complete else moed.match(text)) != NO, f"{name}: {text}"
        if not complete:
            continue
        done += 1
        value = json.loads(text.decode())
        error = jsonschema.exceptions.best_match(v.iter_errors(value))
        assert error is None, f"{name}: {text.decode()}: {error.message}"
    return done


# Random texts rarely find their way to an end.
LONG = {"pattern_properties", "pattern_unanchored", "pattern_end", "pattern_escapes", "email", "pattern_and_properties"}


def test_schemas(moed):
    for name, schema, valid, invalid in grammar_cases.CASES:
        def case(name=name, schema=schema, valid=valid, invalid=invalid):
            moed.use(SCHEMA, json.dumps(schema))
            check_instances(moed, name, schema, valid, invalid)
            assert check_generated(moed, name, schema, 8) >= (0 if name in LONG else 4)
        yield "schema_" + name, case


def test_refused(moed):
    def case():
        for schema, status, part in grammar_cases.REFUSED:
            got, message = moed.compile(SCHEMA, json.dumps(schema))
            assert got == status and part in message, f"{schema}: {got} {message}"
    yield "refused_schemas", case


# ---- schemas made at random ----

def random_schema(rng, depth, defs):
    kinds = ["integer", "number", "string", "enum", "boolean", "null", "pattern", "ref"]
    if depth > 0:
        kinds += ["object", "array", "any_of", "all_of", "map", "tuple"] * 2
    kind = rng.choice(kinds)
    sub = lambda: random_schema(rng, depth - 1, defs)  # noqa: E731
    if kind in ("integer", "number"):
        lo = rng.choice([rng.randint(-2000, 2000), round(rng.uniform(-50, 50), rng.randint(0, 4))])
        hi = lo + rng.choice([1, 3, 50, 10000, 0.75])
        keys = {rng.choice(["minimum", "exclusiveMinimum"]): lo, rng.choice(["maximum", "exclusiveMaximum"]): hi}
        return {"type": kind, **{k: x for k, x in keys.items() if rng.random() < 0.8}}
    if kind == "string":
        lo = rng.randint(0, 5)
        return {"type": "string", "minLength": lo, "maxLength": lo + rng.randint(0, 20)}
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\"", "ü", 1, -2.5, None, True, [1], {"k": "v"}, "", "日"], rng.randint(1, 5))}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-c]+$", "\\d", "^x.{0,3}y", "(ab|cd){2}", "^$", "[^a-z]$", "^\\S+ \\S+$"])}
    if kind == "ref" and defs:
        return {"$ref": "#/$defs/" + rng.choice(defs)}
    if kind == "object":
        names = rng.sample(["a", "b", "cc", "d e", "é", "x1", "_"], rng.randint(0, 5))
        out = {"type": "object", "properties": {n: sub() for n in names}}
        out["required"] = [n for n in names if rng.random() < 0.5]
        if rng.random() < 0.7:
            out["additionalProperties"] = rng.choice([False, False, sub()])
        if rng.random() < 0.3:
            out["patternProperties"] = {rng.choice(["^a", "[0-9]", "^x_"]): {}}
        return out
    if kind == "map":
        return {"type": "object", "additionalProperties": sub()}
    if kind == "array":
        lo = rng.randint(0, 3)
        return {"type": "array", "items": sub(), "minItems": lo, "maxItems": lo + rng.randint(0, 3)}
    if kind == "tuple":
        return {"type": "array", "prefixItems": [sub() for _ in range(rng.randint(1, 3))], "items": rng.choice([False, sub()])}
    if kind == "any_of":
        return {"anyOf": [sub() for _ in range(rng.randint(1, 3))]}
    if kind == "all_of":
        return {"allOf": [{"type": ["integer", "string", "object"]}, sub()]}
    return {"type": rng.choice(["boolean", "null", ["string", "null"]])}


def mutate(rng, value):
    """A value with one place changed."""
    others = [None, True, 0, -1, 7, 1000, 2.5, "", "a", "zz9", "é" * 9, [], [1], {}, {"a": 1}]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.3:
            return {k: x for k, x in value.items() if k != key}
        return {k: mutate(rng, x) if k == key else x for k, x in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return value[:i] + ([mutate(rng, value[i])] if rng.random() < 0.7 else []) + value[i + 1:]
    return rng.choice(others)


def test_random_schemas(moed):
    def case():
        n_used = n_texts = n_taken = n_missed = 0
        for seed in range(160):
            rng = random.Random(seed)
            defs = ["p", "q"]
            schema = {**random_schema(rng, 3, defs), "$defs": {d: random_schema(rng, 2, defs) for d in defs}}
            status, message = moed.compile(SCHEMA, json.dumps(schema))
            if status:
                assert "no text satisfies it" in message or "not supported together" in message, f"{json.dumps(schema)}: {message}"
                continue
            n_used += 1
            try:
                n_texts += check_generated(moed, f"seed {seed} {json.dumps(schema)}", schema, 5)
            except RecursionError:  # a definition that is nothing but itself: moed sees an empty choice, jsonschema never ends
                continue
            v = validator(schema)
            for k in range(3):
                complete, text = moed.generate(k)
                if not complete:
                    continue
                for _ in range(10):
                    x = mutate(rng, json.loads(text))
                    taken, valid = moed.match(json.dumps(x, ensure_ascii=False)) == COMPLETE, v.is_valid(x)
                    assert valid or not taken, f"{json.dumps(schema)} takes {x!r}"
                    n_taken += taken
                    n_missed += valid and not taken
        print(f"# {n_used} schemas, {n_texts} texts, of valid mutations {n_taken} taken, {n_missed} not (order of keys, form of numbers)")
        assert n_used > 100 and n_texts > 300 and n_missed < n_taken / 10
    yield "random_schemas", case


# ---- plain JSON, closed schemas ----

def test_json(moed):
    def case():
        moed.use(JSON, "")
        done = 0
        for seed in range(30):
            complete, text = moed.generate(seed)
            if complete:
                assert isinstance(json.loads(text), dict), text
                done += 1
        assert done > 15
        for x in ({}, {"a": [1, {"b": None}], "é\u0001\"": "\\/😀"}, {"a": {"a": {"a": {"a": [[[[]]]]}}}}):
            for text in [*spellings(x), json.dumps(x)]:
                assert moed.match(text) == COMPLETE, text
        for text in ("", "[]", "1", "{\"a\"}", "{\"a\":1,}", "{a:1}", "{'a':1}", "{\"a\":01}", "{\"a\":1.}", "{\"a\":\"\t\"}", "{\"a\":\"\\x\"}",
                     "{\"a\":\"\\ud800\"}", "{\"a\":NaN}", "{} ", "{\"a\":\"\x80\"}".encode("latin-1")):
            assert moed.match(text) != COMPLETE, text
        assert moed.match('{"a":"\\ud83d\\ude00"}') == COMPLETE
        assert moed.match("{" + " " * 100) == NO and moed.match("{\n" + " " * 100) == NO
    yield "json_object", case

    def closed():
        schema = json.dumps({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}})
        moed.use(SCHEMA, schema)
        assert moed.match('{"x":1}') == COMPLETE
        moed.use(SCHEMA, schema, closed=True)
        assert moed.match('{"a":{"b":1}}') == COMPLETE and moed.match('{"x":1}') == NO and moed.match('{"a":{"x":1}}') == NO
    yield "closed", closed


# ---- regular expressions ----

EXPRESSIONS = [
    "", "a", "abc", "a|b|", "(a|b)*abb", "[a-c]{2,4}", "[^a]*", "\\d+(?:\\.\\d+)?", "\\w+@\\w+", "(?:ab)+c?", "a{3}", "a{2,}b", "x?y?z?", ".+", "\\s*\\S\\s*", "é+ü?",
    "[\\w-]+", "[a\\]b]+", "[-a]+", "[a-]+", "a.c", "\\.\\*\\+\\?", "(a(b(c)?)?)?", "(?:a|ab)(?:c|bcd)", "[^\\d\\s]{1,3}", "\\x41\\u0042", "(?P<year>\\d{4})-(?P<m>\\d\\d)",
    "a*?b+?", "^abc$", "^(?:a|b)$", "\\D\\W", "[\\t\\n ]", "日本?", "[😀-😂]+", "a{0}b", "(a*)*", "(a*)+b", "((a|b)(c|d)){1,2}", "[a-z]+[0-9]*[a-z]", "\\/\\-",
]
ALPHABET = "ab cd01_-.@é\nzA日😀\t"


def random_expression(rng, depth):
    kind = rng.randrange(8) if depth else 0
    if kind == 1:
        return "(?:" + "|".join(random_expression(rng, depth - 1) for _ in range(rng.randint(1, 3))) + ")"
    if kind in (2, 3):
        return "".join(random_expression(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind == 4:
        return "(" + random_expression(rng, depth - 1) + ")" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}"])
    return rng.choice(["a", "b", "c", "0", "é", ".", "\\d", "\\w", "\\s", "[ab]", "[^a]", "[a-c0]", "\\.", "日", "[^\\w]", "_"])


def check_expression(moed, rng, expression, n_generated):
    moed.use(REGEX, expression)
    reference = re.compile(expression, re.ASCII)
    texts = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 6))) for _ in range(60)]
    for seed in range(n_generated):
        complete, text = moed.generate(seed, 40)
        if not complete:
            continue
        text = text.decode()
        assert reference.fullmatch(text), f"{expression}: generated {text!r}"
        texts += [text[:-1], text + "a", text[1:]]
        if text:
            i = rng.randrange(len(text))
            texts.append(text[:i] + rng.choice(ALPHABET) + text[i + 1:])
    for text in texts:
        want = reference.fullmatch(text) and not (expression.endswith("$") and text.endswith("\n"))
        assert (moed.match(text) == COMPLETE) == bool(want), f"{expression} on {text!r}: {moed.match(text)}"


def test_regex(moed):
    def known():
        rng = random.Random(1)
        for expression in EXPRESSIONS:
            check_expression(moed, rng, expression, 6)
    yield "regex_known", known

    def made():
        rng = random.Random(2)
        for _ in range(150):
            check_expression(moed, rng, random_expression(rng, 3), 3)
    yield "regex_random", made


# ---- grammars ----

def balanced(text):
    stack = []
    for c in text:
        if c in "([":
            stack.append(c)
        elif not stack or stack.pop() + c not in ("()", "[]"):
            return False
    return not stack


def same_count(text):
    return bool(re.fullmatch("a*b*", text)) and 2 * text.count("a") == len(text)


GRAMMARS = [
    ("balanced", 'root ::= ("(" root ")" | "[" root "]")*', "()[]", balanced),
    ("left_recursive_balanced", 'root ::= root root | "(" root ")" | "[" root "]" | ""', "()[]", balanced),
    ("same_count", 'root ::= ab\nab ::= "a" ab "b" | ""', "ab", same_count),
    ("palindromes", 'root ::= "a" root "a" | "b" root "b" | "a"? | "b"', "ab", lambda t: t == t[::-1]),
    ("sums", 'root ::= sum\nsum ::= sum [+-] num | num\nnum ::= [0-9]+ # digits', "0+-9", lambda t: bool(re.fullmatch(r"\d+([+-]\d+)*", t))),
    ("right_recursive", 'root ::= "a" root | "b"', "ab", lambda t: bool(re.fullmatch("a*b", t))),
    ("counted", 'root ::= item{2,3} ("," item){,2}'.replace("{,2}", "{0,2}") + '\nitem ::= [xy] | "z"{2}', "xyz,", lambda t: bool(re.fullmatch("(?:[xy]|zz){2,3}(?:,(?:[xy]|zz)){0,2}", t))),
    ("ambiguous", 'root ::= x\nx ::= x x x | x x | "a" | "b"', "ab", lambda t: bool(re.fullmatch("[ab]+", t))),
    ("mixed_returns", 'root ::= x "!"\nx ::= "a" x "a" | "a" x "b" | ""', "ab!", lambda t: bool(re.fullmatch("[ab]*!", t)) and len(t) % 2 == 1 and set(t[:len(t) // 2]) <= {"a"}),
    ("hidden_left", 'root ::= n root "b" | "a"\nn ::= "" | "c"', "abc", lambda t: bool(re.fullmatch("c*ab*", t)) and t.count("c") <= t.count("b")),
]


def test_gbnf(moed):
    for name, grammar, alphabet, truth in GRAMMARS:
        def case(name=name, grammar=grammar, alphabet=alphabet, truth=truth):
            rng = random.Random(5)
            moed.use(GBNF, grammar)
            done = 0
            for seed in range(12):
                complete, text = moed.generate(seed, 40)
                done += complete
                assert not complete or truth(text.decode()), text
            assert done > 3
            for _ in range(1500):
                text = "".join(rng.choices(alphabet, k=rng.randint(0, 9)))
                assert (moed.match(text) == COMPLETE) == truth(text), f"{text!r}: {moed.match(text)}, want {truth(text)}"
        yield "gbnf_" + name, case

    def long_texts():
        """More derivations than atoms in the universe, in polynomial time."""
        for name, text in (("ambiguous", "ab" * 40), ("left_recursive_balanced", "()" * 100 + "[" * 300 + "]" * 300), ("palindromes", "ab" * 150 + "ba" * 150)):
            moed.use(GBNF, next(g[1] for g in GRAMMARS if g[0] == name))
            t0 = time.time()
            assert moed.match(text) == COMPLETE, name
            assert time.time() - t0 < 20, name
    yield "gbnf_long_texts", long_texts


def main():
    failed = False
    with tempfile.TemporaryDirectory() as tmp:
        moed = Moed(grammar_vocab.write(os.path.join(tmp, "vocabulary"), grammar_vocab.qwen()))
        for group in (test_json, test_schemas, test_refused, test_random_schemas, test_regex, test_gbnf):
            for name, case in group(moed):
                if len(sys.argv) > 1 and sys.argv[1] not in name:
                    continue
                try:
                    case()
                    print(f"PASS {name}", flush=True)
                except Exception as e:  # noqa: BLE001: one broken case must not hide the others
                    failed = True
                    print(f"FAIL {name}: {type(e).__name__}: {e}"[:2000], flush=True)
                    if moed.child.poll() is not None:
                        moed = Moed(os.path.join(tmp, "vocabulary"))
        moed.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
