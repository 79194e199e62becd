#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Small requests per second of one loop thread beside nginx with one worker that sends a static file of the same size, in
# the same run: server on the first CPU, wrk on the second, keep-alive connections. The engine is a fake that answers at once.
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
http { access_log off; keepalive_requests 1000000000; default_type application/json; open_file_cache max=10; sendfile on; tcp_nopush on;
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

# Requests per second; an answer that is not 200 ends the run.
rate() {
    taskset -c 1 wrk -t 1 -c "$connections" -d "${seconds}s" "${@:2}" "$1" > "$dir/wrk"
    if grep -q 'Non-2xx\|Socket errors' "$dir/wrk"; then cat "$dir/wrk" >&2; exit 1; fi
    awk '/^Requests\/sec/ {print $2}' "$dir/wrk"
}

best() { sort -g | tail -1; }
for i in $(seq "$rounds"); do # interleaved, so that a slow moment of the machine meets all
    rate "http://127.0.0.1:$nginx_port/health" >> "$dir/nginx"
    rate "${url%/}/health" >> "$dir/health"
    rate "${url%/}/v1/models" >> "$dir/models"
    rate "${url%/}/v1/completions" -s "$dir/post.lua" >> "$dir/completions"
done
peer=$(best < "$dir/nginx")
printf '%-28s %10s requests/s\n' "nginx, static file" "$peer"
for what in health models completions; do
    printf '%-28s %10s requests/s, nginx is %.2f times that\n' "moed, $what" "$(best < "$dir/$what")" "$(awk -v a="$peer" -v b="$(best < "$dir/$what")" 'BEGIN {print a / b}')"
done
