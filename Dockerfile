# SPDX-License-Identifier: Apache-2.0
# CPU image of moed.
#   docker build -t moed .
#   docker run --rm -p 8080:8080 -v "$PWD/models:/models:ro" moed serve --model /models/demo-moe.gguf
# tools/image_check.sh builds and tries it without a Docker engine.
FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc make pkg-config libc6-dev libuv1-dev libcjson-dev libpcre2-dev liburing-dev libxxhash-dev libssl-dev libllhttp-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN make -j"$(nproc)" all && make install DESTDIR=/out PREFIX=/usr && strip /out/usr/bin/moed

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libuv1t64 libcjson1 libpcre2-8-0 liburing2 libxxhash0 libssl3t64 libllhttp9.2 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --no-create-home --shell /usr/sbin/nologin moed
COPY --from=build /out/ /
USER moed
# Inside a container the loopback address reaches nobody: the port that is published decides who may connect.
ENV MOED_HOST=0.0.0.0
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["moed", "healthcheck"]
ENTRYPOINT ["moed"]
CMD ["serve"]
