#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the Dockerfile and try the image, without a Docker engine: debootstrap makes the base image, buildah builds
# and runs. Needs root and the packages buildah and debootstrap. Everything lies in one directory, removed with it.
#
# Usage: tools/image_check.sh [WORK_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-$(mktemp -d)}
mkdir -p "$work"
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
b() { buildah --root "$work/storage" --runroot "$work/run" "$@"; }
fail() { echo "image_check: $*" >&2; exit 1; }

[ -e "$work/trixie/bin/sh" ] || debootstrap --variant=minbase trixie "$work/trixie" >"$work/debootstrap.log"
if ! b inspect --type image debian:trixie-slim >/dev/null 2>&1; then
    base=$(b from scratch)
    b add -q "$base" "$work/trixie" / >/dev/null
    b commit -q "$base" docker.io/library/debian:trixie-slim >/dev/null
    b rm "$base" >/dev/null
fi

# .git and models stay out through .dockerignore.
b bud --pull-never --isolation chroot --format docker -t moed . >"$work/build.log" 2>&1 || { tail -30 "$work/build.log"; fail "build failed"; }
config=$(b inspect --type image moed)
grep -q '"User": "moed"' <<<"$config" || fail "the image does not run as user moed"
grep -q 'healthcheck' <<<"$config" || fail "the image has no HEALTHCHECK"

python3 tools/make_demo.py >/dev/null
c=$(b from --pull-never moed)
b run "$c" -- moed version
b run -v "$PWD/models:/models:ro" "$c" -- moed serve --port 18080 --model /models/demo-moe.gguf >"$work/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; b rm "$c" >/dev/null 2>&1 || true' EXIT
for _ in $(seq 100); do
    if b run "$c" -- moed healthcheck --port 18080 >/dev/null 2>&1; then healthy=1; break; fi
    sleep 0.3
done
[ "${healthy:-}" ] || { tail "$work/serve.log"; fail "the server did not become healthy"; }
answer=$(curl -sf http://127.0.0.1:18080/v1/completions -H 'Content-Type: application/json' \
    -d '{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}')
grep -q Paris <<<"$answer" || fail "unexpected answer: $answer"
echo "image ok: $(du -sh --apparent-size "$(b mount "$c")" 2>/dev/null | cut -f1) root file system, answer: $answer"
