#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run every test program and end with "N passed, N failed, N skipped".
#
# A test program prints one line per case: "PASS name", "FAIL name: why", "SKIP name: why". A program that dies,
# hangs or prints no case is a failure. A skip must be listed in tests/expected-skips, else it fails the run.
#
# Usage: run.sh BUILD_DIR [NAME...]    NAME: a program, e.g. base_units or test_openai; default: all
# TEST_RUNNER: a command that runs the C programs, such as an emulator.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
export TEST_BUILD=$build
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
limit_s=${TEST_LIMIT_S:-600}
python=.venv/bin/python
pass=0 fail=0 skip=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_one() {
    local name=$1 t0=$SECONDS rc p f s
    shift
    timeout -k 10 "$limit_s" "$@" >"$log" 2>&1
    rc=$?
    p=$(grep -c '^PASS ' "$log")
    f=$(grep -c '^FAIL ' "$log")
    s=$(grep -c '^SKIP ' "$log")
    while read -r _ skipped _; do
        if ! grep -qxF "$name ${skipped%:}" tests/expected-skips; then
            echo "  FAIL ${skipped%:}: unexpected skip"
            f=$((f + 1)) s=$((s - 1))
        fi
    done < <(grep '^SKIP ' "$log")
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        echo "  FAIL $name: exit status $rc$([ $rc -eq 124 ] && echo " (over $limit_s s)")"
    elif [ $((p + f + s)) -eq 0 ]; then
        f=1
        echo "  FAIL $name: printed no test case"
    fi
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + s))
    printf '%-32s %4d passed %3d failed %3d skipped  %4d s\n' "$name" "$p" "$f" "$s" $((SECONDS - t0))
    grep -E '^(FAIL|SKIP) ' "$log" | sed 's/^/  /'
    if [ "$f" -gt 0 ]; then tail -60 "$log" | sed 's/^/  | /'; fi
}

wanted() {
    local name=$1 other
    shift
    [ $# -eq 0 ] && return 0
    for other; do
        [ "$other" = "$name" ] && return 0
    done
    return 1
}

for t in tests/unit/*.c; do
    name=$(basename "$t" .c)
    # shellcheck disable=SC2086
    if wanted "$name" "$@"; then run_one "$name" ${TEST_RUNNER:-} "$build/tests/$name"; fi
done
for t in "$build"/tests/cuda_*; do
    name=$(basename "$t")
    if [ -x "$t" ] && wanted "$name" "$@"; then run_one "$name" "$t"; fi
done
for t in tests/e2e/test_*.py; do
    name=$(basename "$t" .py)
    if [ -e "$t" ] && wanted "$name" "$@"; then run_one "$name" "$python" "$t"; fi
done

echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
