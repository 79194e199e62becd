#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Small requests per second of one loop thread beside nginx with one worker that sends a static file of the same size, in
# the same run: server on the first CPU, wrk on the second, keep-alive connections. The engine is a fake that answers at once. CPU time of
# the serving thread per request says the same on a busy machine.
#
# Usage: bench/http_peer.sh [BUILD_DIR]   needs nginx, wrk and helpers/server_fake of that build; SECONDS_EACH=5 CONNECTIONS=64 ROUNDS=3
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
seconds=${SECONDS_EACH:-5} connections=${CONNECTIONS:-64} rounds=${ROUNDS:-3}
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$dir"' EXIT

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

nginx_port=$(port)
chmod 755 "$dir" # its worker is another user
mkdir "$dir/www"
printf '{"status":"ok"}' > "$dir/www/health"
cat > "$dir/nginx.conf" <<END
daemon off; worker_processes 1; pid $dir/pid; error_log $dir/error.log;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; default_type application/json; open_file_cache max=10; sendfile off;
       client_body_temp_path $dir/a; proxy_temp_path $dir/b; fastcgi_temp_path $dir/c; uwsgi_temp_path $dir/d; scgi_temp_path $dir/e;
       server { listen 127.0.0.1:$nginx_port reuseport; root $dir/www; } }
END
taskset -c 0 nginx -p "$dir" -c "$dir/nginx.conf" -e "$dir/error.log" & pids+=($!)
taskset -c 0 "$build/helpers/server_fake" -- --port 0 --model none --max-connections 1024 --max-running 64 > "$dir/moed.out" 2> "$dir/moed.err" & pids+=($!)
for _ in $(seq 50); do grep -q listening "$dir/moed.out" && break; sleep 0.1; done
url=$(sed -n 's/^listening on //p' "$dir/moed.out" | head -1)

cat > "$dir/post.lua" <<'END'
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"prompt":"hi","max_tokens":1}'
END

# rate NAME THREAD URL...: appends requests per second and CPU microseconds of that thread per request to $dir/NAME. An answer that
# is not 200 ends the run.
rate() {
    local name=$1 stat=/proc/$2/schedstat before after
    before=$(cut -d' ' -f1 "$stat")
    taskset -c 1 wrk -t 1 -c "$connections" -d "${seconds}s" "${@:3}" > "$dir/wrk"
    after=$(cut -d' ' -f1 "$stat")
    if grep -q 'Non-2xx\|Socket errors' "$dir/wrk"; then cat "$dir/wrk" >&2; exit 1; fi
    awk -v ns=$((after - before)) '/requests in/ {n = $1} /^Requests\/sec/ {print $2, ns / n / 1000}' "$dir/wrk" >> "$dir/$name"
}

best() { awk -v f="$2" 'NR == 1 || (f == 1 ? $f > b : $f < b) {b = $f} END {print b}' "$dir/$1"; }

worker=$(pgrep -P "${pids[0]}")
for _ in $(seq "$rounds"); do # interleaved, so that a slow moment of the machine meets all
    rate nginx "$worker" "http://127.0.0.1:$nginx_port/health"
    rate health "${pids[1]}" "${url%/}/health"
    rate models "${pids[1]}" "${url%/}/v1/models"
    rate completions "${pids[1]}" "${url%/}/v1/completions" -s "$dir/post.lua"
done
printf 'best of %d rounds              requests/s   nginx/x   us of the thread   x/nginx\n' "$rounds"
for what in nginx health models completions; do
    awk -v n="$what" -v r="$(best $what 1)" -v u="$(best $what 2)" -v r0="$(best nginx 1)" -v u0="$(best nginx 2)" \
        'BEGIN {printf "%-24s %16.0f %9.2f %18.1f %9.2f\n", n, r, r0 / r, u, u / u0}'
done
