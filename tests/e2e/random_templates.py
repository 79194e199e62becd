# SPDX-License-Identifier: Apache-2.0
"""Small random templates: typed expressions, now and then of the wrong type, in random statements."""
import random

VARIABLES = {
    "s": "Hello <|im_end|> Wörld", "t": "  a,b;c  d\n e ", "e": "", "u": "ÀßΣς😀\u00a0x", "n": 7, "z": 0, "neg": -3, "f": 2.5, "g": 0.1, "b": True, "no": None,
    "xs": [3, 1, 2], "ys": ["b", "A", "c", "a"], "mix": [1, "x", None, 2.5, [1], {"k": "v"}], "empty": [], "d": {"b": 2, "a": "x", "items": [1]}, "ed": {},
    "rows": [{"name": "x", "n": 2, "tags": ["p"]}, {"name": "Y", "n": 1}, {"name": "y", "n": 2, "tags": []}],
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"q": 1.0}}}]}],
}
NAMES = {"str": ["s", "t", "e", "u"], "num": ["n", "z", "neg", "f", "g", "b"], "list": ["xs", "ys", "mix", "empty", "rows", "messages"], "dict": ["d", "ed", "rows[0]", "messages[1]"],
         "any": [*VARIABLES, "missing", "d.a", "d.zz", "mix[5].k", "rows[1].tags", "loop.index", "ns.x", "ns.y"]}
STRINGS = ["'a'", "', '", "''", "'x%sy'", "'<|im_start|>'", "\"it's\"", "'\\n'", "'ß'", "'%d|%s'", "'{}-{}'", "'a b  c'", "'12'", "'3.7'", "' pad '", "'Σ'", "'A'", "'name'", "'k'"]
STR_TO_STR = [".upper()", ".lower()", ".title()", ".capitalize()", ".strip()", ".lstrip()", ".rstrip()", ".swapcase()", "|upper", "|lower", "|trim", "|title", "|capitalize",
              "|reverse", "|string", "|e", "|safe", "|tojson", "|indent", "|urlencode", "[1:]", "[:-1]", "[::-1]", "[::2]", "[0]", "[-1]", "[2:5]", "[5:2:-1]", "|default('q')", "|indent(2, true)", "|truncate(5)",
              "|truncate(6, true, '!')", "|center(11)", "|forceescape"]
STR_TO_ANY = [".split()", ".split(',')", ".split(' ', 1)", ".rsplit(' ', 1)", ".split('l')", ".splitlines()", "|list", "|length", "|first", "|last", "|wordcount", ".isdigit()", ".isalpha()",
              ".isspace()", ".isupper()", ".islower()", "|int", "|float", ".partition('l')", ".rpartition(' ')", "|join('-')", "|unique|list", "|sort|join", ".istitle()", ".isalnum()"]
STR_ARG = [".startswith({})", ".endswith({})", ".replace({}, {})", ".find({})", ".count({})", ".strip({})", ".lstrip({})", ".rstrip({})", ".split({})", ".rsplit({}, 1)", "|replace({}, {})",
           "|trim({})", ".join(ys)", ".removeprefix({})", ".rfind({})", ".index({})", ".partition({})"]
LIST_TO_ANY = ["|length", "|first", "|last", "|join", "|join(', ')", "|list", "|sort", "|sort(reverse=true)", "|reverse|list", "|unique|list", "|sum", "|min", "|max", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]",
               "|map('string')|list", "|map('upper')|join", "|select('string')|list", "|reject('none')|list", "|select|list", "|map(attribute='name')|list", "|selectattr('name')|list",
               "|selectattr('n', '>', 1)|map(attribute='name')|join(',')", "|rejectattr('tags')|list", "|groupby('n')|list", "|batch(2)|list", "|slice(2)|list", "|tojson", "|tojson(indent=2)", "|string",
               "|sort(attribute='n')", "|map(attribute='n', default=9)|sum", ".index(1)", ".count('a')", "|map('default', 'z')|list", "|sort(case_sensitive=true)", "|batch(2, 'f')|list", "|map('length')|list",
               "|select('in', [1, 'a'])|list", "|max(attribute='n')", "|selectattr('role', 'equalto', 'user')|list", "|first|string"]
DICT_TO_ANY = ["|length", ".items()|list", ".keys()|list", ".values()|list", "|items|list", "|dictsort", "|tojson", "|tojson(indent=4)", "|string", ".get('a')", ".get('zz', 5)", ".a", "['b']", ".items", ".b|string",
               "|list", "|first", "|dictsort(by='value')", "|dictsort(reverse=true)", ".keys()", ".items()", "|join('+')", ".update", ".pop is defined", ".copy()", "|tojson(sort_keys=true)", ".name|upper", "|last"]
NUM_TO_ANY = ["|string", "|int", "|float", "|round", "|round(1)", "|abs", "|tojson", "|round(1, 'floor')", "|round(0, 'ceil')", "|string|length", "|filesizeformat", "|default(3)", "|round|int"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "integer", "float", "true", "false", "odd", "even", "in xs", "in d", "eq 1", "divisibleby 3",
         "lower", "upper", "callable", "ne 'a'", "gt 2", "escaped", "not none", "not string", "not defined", "in [1, 'a', none]", "in 'Hello'"]
ARITH = ["+", "-", "*", "/", "//", "%", "~", "**"]
COMPARE = ["==", "!=", "<", "<=", ">", ">=", "in", "not in"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, xs):
        return self.r.choice(xs)

    def text(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.25:
            return self.pick([*NAMES["str"], *STRINGS])
        if kind < 0.55:
            return f"({self.text(depth - 1)}{self.pick(STR_TO_STR)})"
        if kind < 0.65:
            return f"({self.text(depth - 1)} {self.pick(['+', '~'])} {self.text(depth - 1)})"
        if kind < 0.7:
            return f"({self.any(depth - 1)}|string)"
        if kind < 0.75:
            return f"({self.pick(STRINGS)} % {self.pick([self.any(depth - 1), '(n, s)', '(s,)', 'd', 'f', 'xs'])})"
        if kind < 0.8:
            return f"({self.text(depth - 1)} * {self.pick(['2', '0', 'n'])})"
        if kind < 0.85:
            return f"{self.pick(STRINGS)}.format({self.any(depth - 1)}, {self.any(depth - 1)})"
        return f"({self.text(depth - 1)} if {self.any(depth - 1)} else {self.text(depth - 1)})"

    def number(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.4:
            return self.pick([*NAMES["num"], "1", "2", "0", "10", "1.5", "3", "-1"])
        if kind < 0.8:
            return f"({self.number(depth - 1)} {self.pick(ARITH[:6])} {self.number(depth - 1)})"
        if kind < 0.9:
            return f"({self.any(depth - 1)}|length)"
        return f"(-{self.number(depth - 1)})"

    def list(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.5:
            return self.pick([*NAMES["list"], "[]", "[1, 2]", "['x', 'y']", "(1, 'a')", "range(4)"])
        if kind < 0.7:
            return "[" + ", ".join(self.any(depth - 1) for _ in range(self.r.randrange(4))) + "]"
        if kind < 0.85:
            return f"({self.list(depth - 1)} + {self.list(depth - 1)})"
        return "(" + self.list(depth - 1) + self.pick(["|list", "|sort", "[1:]", "[::-1]", "|reverse|list", "|unique|list", "|map('string')|list", "|select('defined')|list", "|batch(2)|list"]) + ")"

    def dict(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.6:
            return self.pick(NAMES["dict"])
        return "{" + ", ".join(f"{self.pick(STRINGS)}: {self.any(depth - 1)}" for _ in range(self.r.randrange(3))) + "}"

    def any(self, depth):
        kind = self.r.random()
        if depth <= 0:
            return self.pick(NAMES["any"])
        if kind < 0.15:
            return self.text(depth)
        if kind < 0.25:
            return self.number(depth)
        if kind < 0.35:
            return f"({self.text(depth - 1)}{self.pick(STR_TO_ANY)})"
        if kind < 0.42:
            return self.with_args(depth)
        if kind < 0.57:
            return f"({self.list(depth - 1)}{self.pick(LIST_TO_ANY)})"
        if kind < 0.66:
            return f"({self.dict(depth - 1)}{self.pick(DICT_TO_ANY)})"
        if kind < 0.71:
            return f"(({self.number(depth - 1)}){self.pick(NUM_TO_ANY)})"
        if kind < 0.78:
            return f"({self.any(depth - 1)} is {self.pick(TESTS)})"
        if kind < 0.85:
            return f"({self.any(depth - 1)} {self.pick(COMPARE)} {self.any(depth - 1)})"
        if kind < 0.9:
            return f"({self.any(depth - 1)} {self.pick(['and', 'or'])} {self.any(depth - 1)})"
        if kind < 0.92:
            return f"(not {self.any(depth - 1)})"
        if kind < 0.94:
            return f"({self.any(depth - 1)} {self.pick(ARITH)} {self.any(depth - 1)})"
        return self.pick(NAMES["any"])

    def with_args(self, depth):
        method = self.pick(STR_ARG)
        while "{}" in method:
            method = method.replace("{}", self.text(0), 1)
        return f"({self.text(depth - 1)}{method})"

    def blank(self):
        return self.pick(["", "", " ", "\n", "  \n", "\n\n  ", " x ", "\t"])

    def tag(self, code):
        return "{%" + self.pick(["", "", "-", "+"]) + " " + code + " " + self.pick(["", "", "-", "+"]) + "%}"

    def show(self, depth):
        return "{{" + self.pick(["", "-"]) + " " + self.any(depth) + " " + self.pick(["", "-"]) + "}}"

    def body(self, depth):
        return "".join(self.blank() + self.statement(depth) for _ in range(self.r.randrange(1, 4))) + self.blank()

    def statement(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.4:
            return self.show(3)
        if kind < 0.52:
            middle = self.pick(["", self.tag(f"elif {self.any(1)}") + self.body(depth - 1)]) + self.pick(["", self.tag("else") + self.body(depth - 1)])
            return self.tag(f"if {self.any(2)}") + self.body(depth - 1) + middle + self.tag("endif")
        if kind < 0.7:
            return self.loop(depth)
        if kind < 0.82:
            target = self.pick(["v", "w", "s", "n", "ns.x", "ns.y", "xs", "v, w"])
            value = f"{self.any(1)}, {self.any(1)}" if "," in target else self.any(2)
            return self.tag(f"set {target} = {value}")
        if kind < 0.86:
            return self.tag(self.pick(["set v", "set v | upper", "set w | replace('a', 'x')"])) + self.body(depth - 1) + self.tag("endset")
        if kind < 0.9:
            name = self.pick("fgh")
            macro = self.tag(f"macro {name}_(p, q={self.any(1)}, r='R')") + self.pick(["{{ p }}", "{{ q }}{{ r }}", "{{ varargs }}{{ kwargs|length }}"]) + self.body(depth - 1) + self.tag("endmacro")
            calls = "{{ %s_(%s) }}" % (name, self.pick([self.any(1), f"{self.any(1)}, {self.any(1)}", f"r={self.any(1)}", f"1, q={self.any(1)}, z=2", "1, 2, 3, 4"]))
            return macro + calls
        if kind < 0.93:
            return self.tag(f"with v = {self.any(2)}, w = s") + self.body(depth - 1) + self.tag("endwith")
        if kind < 0.95:
            return self.tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'replace(s, n)', 'tojson'])}") + self.body(depth - 1) + self.tag("endfilter")
        if kind < 0.97:
            return "{#" + self.pick(["", "-"]) + " comment {{ " + self.pick(["", "-", "+"]) + "#}"
        return self.tag("macro c_(p)") + "<{{ caller(p) }}>" + self.tag("endmacro") + self.tag(f"call(x) c_({self.any(1)})") + "{{ x }}" + self.body(depth - 1) + self.tag("endcall")

    def loop(self, depth):
        target, source = self.pick([("x", self.list(2)), ("x", self.list(2)), ("k, v", self.dict(1) + ".items()"), ("x", self.any(1)), ("x", self.text(1)), ("k", self.dict(1)), ("k, v", self.dict(1) + "|dictsort")])
        test = self.pick(["", "", f" if {self.any(1)}", " if x", " if x is string"])
        inside = self.pick(["{{ loop.index }}", "{{ loop.last }}", "{{ loop.previtem }}{{ loop.nextitem }}", "{{ loop.length }}{{ loop.revindex }}", "{{ loop.cycle('a', 'b') }}", "{{ x }}", "", "{{ loop.first }}",
                            "{% set ns.x = loop.index %}", "{% if loop.index > 1 %}{% break %}{% endif %}", "{% if x == 1 %}{% continue %}{% endif %}", "{{ loop.changed(x) }}", "{% set v = x %}{{ v }}"])
        otherwise = self.pick(["", "", self.tag("else") + self.body(depth - 1)])
        return self.tag(f"for {target} in {source}{test}") + inside + self.body(depth - 1) + otherwise + self.tag("endfor")

    def template(self):
        return "{% set ns = namespace(x=1) %}" + self.body(self.r.randrange(1, 4)) + self.pick(["", "\n", "\n\n"])
