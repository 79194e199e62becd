#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make sure the Debian/Ubuntu packages that a target needs are installed.
# Root: installs them. Others: prints the one command to run and exits 1.
#
# Usage: setup.sh build|test|fuzz|arm
set -euo pipefail

what=${1:?usage: setup.sh build|test|fuzz|arm}

# No grep -q behind a pipe: it leaves early, the writer dies of SIGPIPE, and pipefail turns a match into a miss.

has_candidate() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; }

# llhttp is a library package on newer systems; Debian 12 ships its C sources in node-llhttp. On a machine whose
# package lists were never fetched only the release name can tell.
llhttp() {
    if [ -e /usr/include/llhttp.h ] || has_candidate libllhttp-dev; then
        echo libllhttp-dev
    elif has_candidate node-llhttp || grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
        echo node-llhttp
    else
        echo libllhttp-dev
    fi
}

packages() {
    if [ "$what" = arm ]; then
        echo make gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
        return
    fi
    echo gcc make pkg-config libc6-dev libuv1-dev libcjson-dev libpcre2-dev liburing-dev libxxhash-dev libssl-dev python3 python3-pip ca-certificates
    llhttp
    case $what in
    test)
        echo g++ python3-venv curl openssl pmccabe clang
        # Ubuntu's chromium is a snap, which containers cannot run: the test of the page is skipped there.
        if grep -q '^ID=debian' /etc/os-release; then echo chromium; fi
        ;;
    fuzz) echo clang "$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -1)" ;;
    esac
}

missing() {
    for p in $(packages); do
        [ "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || echo "$p"
    done
}

if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install the equivalents of: $(packages | tr '\n' ' ')" >&2
    exit 0
fi
lacking=$(missing | tr '\n' ' ')
if [ -z "$lacking" ]; then exit 0; fi
if [ "$(id -u)" != 0 ]; then
    echo "setup: packages are missing; run:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $lacking" >&2
    exit 1
fi
apt-get update -qq
lacking=$(missing | tr '\n' ' ') # again: on a bare machine the names depend on the fresh lists
echo "setup: installing $lacking"
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacking >/dev/null
