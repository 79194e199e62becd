#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a compiler does not check. Prints file:line: rule, exits 1 on any finding.

Needs pmccabe for function length and complexity. Run from the project root.
"""
import pathlib
import re
import subprocess
import sys

# folder -> what it may include besides itself; entries with '/' allow single headers. The map of docs/ARCHITECTURE.md.
DAG = {
    "base": set(),
    "config": {"base"},
    "model": {"base"},
    "chat": {"base", "model/tokenizer.h"},
    "kernels": {"base", "model/quant_fmt.h"},
    "offload": {"base", "kernels", "model"},
    "engine": {"base", "model", "kernels", "offload"},
    "grammar": {"base"},
    "scheduler": {"base", "engine/engine.h", "kernels/sample.h", "grammar/token_filter.h"},
    "server": {"base", "chat", "config", "model/tokenizer.h", "scheduler", "grammar", "engine/engine.h",
               "kernels/sample.h"},
}
COMPOSITION_ROOT = re.compile(r"server/(main|cmd_\w+)\.[ch]$")
MAX_FILE, MAX_FUNCTION, MAX_KERNEL, MAX_COMPLEXITY = 800, 100, 150, 25
BANNED = re.compile(r"(?<![\w.>])(sprintf|vsprintf|strcpy|strcat|strtok|atoi|atol|atof|gets|getenv|exit|_exit|abort|malloc|calloc|"
                    r"realloc|free)\s*\(")
MAY_EXIT = COMPOSITION_ROOT
MAY_MALLOC = re.compile(r"base/alloc\.c$")
MUTABLE_STATIC = re.compile(r"^static (?!const\b|inline\b|_Thread_local\b)[^()]*?(=|;)\s*")
MAY_HOLD_STATE = re.compile(r"base/(alloc|log)\.c$")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

found = []


def report(path, line, what):
    found.append(f"{path}:{line}: {what}")


def strip_comments(text):
    keep_lines = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', keep_lines, text, flags=re.S)


def check_includes(path, lines):
    folder = path.parts[0]
    if folder not in DAG or COMPOSITION_ROOT.search(path.as_posix()):
        return
    for n, line in enumerate(lines, 1):
        m = re.match(r'#include "([^"]+)"', line)
        if not m:
            continue
        target = m.group(1)
        top = target.split("/")[0]
        if top != folder and top not in DAG[folder] and target not in DAG[folder]:
            report(path, n, f"{folder}/ may not include {target} (docs/ARCHITECTURE.md)")
        elif top != folder and target.endswith("internal.h"):
            report(path, n, f"{target} is private to {top}/")


def check_text(path, text):
    posix, lines = path.as_posix(), text.split("\n")
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        report(path, 1, "no SPDX line in the first three lines")
    if len(lines) > MAX_FILE + 1:
        report(path, len(lines), f"{len(lines) - 1} lines, at most {MAX_FILE}: is it two things?")
    for n, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            report(path, n, "unfinished mark")
        if line.rstrip() != line or "\t" in line:
            report(path, n, "trailing blank or tab")
    check_includes(path, lines)
    if path.parts[0] not in DAG:
        return
    for n, line in enumerate(strip_comments(text).split("\n"), 1):
        for m in BANNED.finditer(line):
            call = m.group(1)
            allowed = MAY_MALLOC if call in ("malloc", "calloc", "realloc", "free") else MAY_EXIT
            if not allowed.search(posix):
                report(path, n, f"banned call {call}()")
        if "uv_async_send" in line and posix != "server/wake.c":
            report(path, n, "uv_async_send loses wake-ups, see server/wake.c")
        if MUTABLE_STATIC.match(line) and not re.search(r"\bconst\b", line) and not MAY_HOLD_STATE.search(posix):
            report(path, n, "mutable file-scope static")


def check_functions(files):
    out = subprocess.run(["pmccabe", *map(str, files)], capture_output=True, text=True, check=False).stdout
    for row in out.splitlines():
        parts = row.split(None, 5)
        if len(parts) < 6:
            continue
        complexity, _, _, first, length, where = parts
        path, name = where.split("(")[0], where.rsplit(":", 1)[-1].strip()
        limit = MAX_KERNEL if path.startswith("kernels/") else MAX_FUNCTION
        if int(length) > limit:
            report(path, first, f"{name}: {length} lines, at most {limit}")
        if int(complexity) > MAX_COMPLEXITY:
            report(path, first, f"{name}: complexity {complexity}, at most {MAX_COMPLEXITY}")


def check_shell_and_python():
    for p in [*pathlib.Path("tests").rglob("*.py"), *pathlib.Path("tools").rglob("*.py"), *pathlib.Path("bench").rglob("*.py")]:
        try:
            compile(p.read_text(), str(p), "exec")
        except SyntaxError as e:
            report(p, e.lineno, f"Python: {e.msg}")
        if "SPDX-License-Identifier" not in p.read_text()[:200]:
            report(p, 1, "no SPDX line")
    for p in [*pathlib.Path(".").glob("t*/**/*.sh"), *pathlib.Path("bench").rglob("*.sh"), pathlib.Path(".ci/run")]:
        r = subprocess.run(["bash", "-n", str(p)], capture_output=True, text=True, check=False)
        if r.returncode:
            report(p, 1, r.stderr.strip())


def main():
    code = [p for d in [*DAG, "tests", "bench", "tools"] for p in sorted(pathlib.Path(d).rglob("*"))
            if p.suffix in (".c", ".h", ".cc", ".cu", ".cuh")]
    for path in code:
        check_text(path, path.read_text())
    check_functions([p for p in code if p.suffix in (".c", ".cc", ".cu")])
    check_shell_and_python()
    print("\n".join(found) or f"lint: {len(code)} files, nothing found")
    sys.exit(1 if found else 0)


main()
