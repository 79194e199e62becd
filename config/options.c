/* SPDX-License-Identifier: Apache-2.0
 *
 * The one table of options. moed.conf, --help, the environment names and the checks are all made from it. */
#include "config/internal.h"

#include <string.h>

#define FIELD(f) offsetof(struct config, f)

const struct option config__options[] = {
    { "model", 'm', OPTION_STRING, FIELD(model), 0, 0, NULL, "", "Model", "GGUF file to serve",
      "Path of the GGUF file. For a split model give the first part (name-00001-of-0000N.gguf).\n"
      "There is no default: a server without a model has nothing to do.\n" },
    { "model-alias", 'a', OPTION_STRING, FIELD(model_alias), 0, 0, NULL, "", NULL, "model id shown to clients",
      "The id in /v1/models and in responses; requests may name it or leave `model` out. Empty: the name of the file\n"
      "without its directory and \".gguf\".\n" },

    { "chat-template", 0, OPTION_STRING, FIELD(chat_template), 0, 0, NULL, "", NULL, "file with a Jinja chat template",
      "Replaces the template inside the model file, for chat requests. Empty: the model's own; a model without one is\n"
      "served as ChatML when its vocabulary has <|im_start|>, else chat requests are refused.\n" },
    { "tool-syntax", 0, OPTION_ENUM, FIELD(tool_syntax), 0, 0, "auto|none|hermes|qwen-xml|glm|mistral|llama3|deepseek|kimi|invoke|harmony", "auto", NULL,
      "how the model writes tool calls",
      "auto takes what the chat template shows. The others are for templates that do not tell; none leaves calls in the\n"
      "text of the answer.\n" },
    { "embedding-pooling", 0, OPTION_ENUM, FIELD(embedding_pooling), 0, 0, "auto|mean|last", "auto", NULL, "what an embedding is made of",
      "The final hidden states of all tokens, or of the last one. auto takes what the model file says it was trained with, else\n"
      "mean.\n" },

    { "host", 'H', OPTION_STRING, FIELD(host), 0, 0, NULL, "127.0.0.1", "Network", "address to listen on",
      "An IPv4 or IPv6 address. 0.0.0.0 or :: opens the server to the network: set api-key-file and tls-cert then.\n"
      "Empty (\"\"): no TCP, only unix-socket.\n" },
    { "port", 'p', OPTION_U32, FIELD(port), 0, 65535, NULL, "8080", NULL, "TCP port (0 = any free one, printed)",
      "0 takes any free port and prints it in the first log lines.\n" },
    { "unix-socket", 0, OPTION_STRING, FIELD(unix_socket), 0, 0, NULL, "", NULL, "path of a Unix socket to listen on as well",
      "For clients on this machine and proxies (curl --unix-socket PATH http://localhost/health). A file that a killed server\n"
      "left there is replaced, anything else is not; it is removed at the end. API keys are asked for as over TCP.\n" },
    { "unix-mode", 0, OPTION_ENUM, FIELD(unix_mode), 0, 0, "600|660|666", "660", NULL, "who may connect to it: file permissions",
      "660: the user and the group of the file. 666: every user of this machine.\n" },
    { "unix-owner", 0, OPTION_STRING, FIELD(unix_owner), 0, 0, NULL, "", NULL, "whose it is: USER, USER:GROUP or :GROUP",
      "Empty: the user and group of the process. Another user takes root, another group membership in it.\n" },
    { "tls-cert", 0, OPTION_STRING, FIELD(tls_cert), 0, 0, NULL, "", NULL, "PEM file: certificate and chain; the TCP port speaks TLS then",
      "TLS 1.2 and 1.3. SIGHUP reads tls-cert and tls-key again, for connections made from then on. The Unix socket stays plain.\n" },
    { "tls-key", 0, OPTION_STRING, FIELD(tls_key), 0, 0, NULL, "", NULL, "PEM file: its private key, not encrypted",
      "Empty: the file of tls-cert has it. Should be readable for the server's user only.\n" },
    { "api-key-file", 0, OPTION_STRING, FIELD(api_key_file), 0, 0, NULL, "", NULL, "file of API keys; without one no key is needed",
      "A line per key: KEY [name=TEXT] [concurrent=N] [per-minute=N] [weight=N] [priority=N]. A key has 16 to 256 printable\n"
      "characters; concurrent bounds its requests running at once, per-minute those it may start. Keys share the server by\n"
      "tokens, one of weight 2 (1 to 1000, default 1) getting twice as many as one of 1. priority is the lowest number, and so\n"
      "the most urgent, that its requests may ask for (-10 to 10, default 0). /health and the page at / need no key.\n"
      "SIGHUP reads the file again.\n" },
    { "allowed-hosts", 0, OPTION_STRING, FIELD(allowed_hosts), 0, 0, NULL, "", NULL, "names clients may address, by comma (* = any)",
      "Guards against pages that point a name of theirs at this machine. Empty: localhost and its addresses when the\n"
      "server listens on loopback; any name on other addresses, and on the Unix socket, where no browser comes from. Entries are\n"
      "names without a port.\n" },
    { "allowed-origins", 0, OPTION_STRING, FIELD(allowed_origins), 0, 0, NULL, "", NULL, "sites whose scripts may call, by comma (* = any)",
      "Origins as browsers send them, such as https://chat.example. Empty: only the page of this server itself.\n" },
    { "max-connections", 0, OPTION_U32, FIELD(max_connections), 1, 1000000, NULL, "1024", NULL, "open client connections",
      "Beyond it new connections wait in the kernel's queue; idle keep-alive connections are closed first.\n"
      "Costs about 3 KiB each when idle, with TLS 16. The limit of open files (ulimit -n) must be higher.\n" },
    { "max-body", 0, OPTION_BYTES, FIELD(max_body_bytes), 1024, 1ull << 30, NULL, "16mb", NULL, "largest request body",
      "A larger body is answered 413 before it is read.\n" },
    { "max-header", 0, OPTION_U32, FIELD(max_header_bytes), 1024, 1u << 20, NULL, "32768", NULL, "bytes of one request head",
      "Request line and headers together; beyond it the answer is 431.\n" },
    { "header-timeout", 0, OPTION_MS, FIELD(header_timeout_ms), 100, 3600000, NULL, "10s", NULL, "time to send the request head",
      "A client that has not sent its whole head in this time gets 408. Raise it for very slow links only: this is the\n"
      "guard against clients that trickle bytes to hold connections.\n" },
    { "body-timeout", 0, OPTION_MS, FIELD(body_timeout_ms), 100, 3600000, NULL, "30s", NULL, "silence allowed while a body arrives",
      "A body that stalls this long is answered 408.\n" },
    { "keepalive-timeout", 0, OPTION_MS, FIELD(keepalive_timeout_ms), 100, 86400000, NULL, "120s", NULL,
      "idle time of a kept-alive connection", "An idle connection is closed after this time.\n" },
    { "write-timeout", 0, OPTION_MS, FIELD(write_timeout_ms), 100, 3600000, NULL, "60s", NULL,
      "time without progress in sending", "A client that takes no byte for this long is dropped and its request cancelled.\n" },
    { "max-output", 0, OPTION_BYTES, FIELD(max_output_bytes), 65536, 1ull << 30, NULL, "1mb", NULL,
      "unsent bytes of one stream before it is cancelled",
      "A slow reader never stalls the engine: its output waits here, and the request is cancelled when it passes this.\n" },
    { "sse-ping", 0, OPTION_MS, FIELD(sse_ping_ms), 0, 3600000, NULL, "15s", NULL, "comment in a silent stream (0 = never)",
      "Proxies and clients cut streams that are silent, for example during a long prefill. 0 sends none.\n" },

    { "max-running", 0, OPTION_U32, FIELD(max_running), 1, 4096, NULL, "32", "Scheduling", "sequences decoded together",
      "More gives more tokens per second in total and fewer for each client. Each one may need `context` tokens of KV.\n" },
    { "max-queued", 0, OPTION_U32, FIELD(max_queued), 1, 1000000, NULL, "512", NULL, "requests waiting before 429",
      "A full queue is answered 429 with Retry-After from the measured rate. With API keys none gets more than twice the\n"
      "places that are free, so that some stay free for the others.\n" },
    { "max-wait", 0, OPTION_MS, FIELD(max_wait_ms), 0, 86400000, NULL, "600s", NULL, "expected wait for a place before 429",
      "A request whose turn is expected later than this is answered 429 with Retry-After at once, from how long requests had\n"
      "their places lately. Near the time within which an answer is of use to clients it keeps an overloaded server useful:\n"
      "those it lets in are served in time. The default is what official clients wait.\n" },
    { "request-timeout", 0, OPTION_MS, FIELD(request_timeout_ms), 0, 86400000, NULL, "0", NULL, "time a request may take in all (0 = no bound)",
      "For requests without field timeout, and the most that one may ask for. When it is over the answer ends as if\n"
      "max_tokens were reached; a request that has not begun by then is answered 503.\n" },
    { "batch-tokens", 'b', OPTION_U32, FIELD(batch_tokens), 16, 65536, NULL, "512", NULL, "tokens computed in one step",
      "Bounds a prefill chunk: larger is faster for long prompts, and running streams wait longer between tokens.\n"
      "Scratch memory grows with it.\n" },
    { "max-n", 0, OPTION_U32, FIELD(max_n), 1, 1024, NULL, "16", NULL, "choices (`n`) of one request",
      "Each choice is a sequence of its own; the prompt is computed once where the prefix cache is on.\n" },
    { "max-prompts", 0, OPTION_U32, FIELD(max_prompts), 1, 65536, NULL, "128", NULL, "prompts of one completions request",
      "Bounds `prompt` when it is a list.\n" },
    { "prefix-cache", 0, OPTION_BOOL, FIELD(prefix_cache), 0, 0, NULL, "on", NULL, "reuse the KV of shared prompt beginnings",
      "Never changes an answer. Turn it off only to measure.\n" },

    { "context", 'C', OPTION_U32, FIELD(context), 0, 1u << 24, NULL, "0", "Memory", "tokens of one sequence (0 = the model's)",
      "Prompt and output together. 0 takes what the model was trained for, cut to what fits into memory.\n" },
    { "kv-tokens", 0, OPTION_U32, FIELD(kv_tokens), 0, 1u << 30, NULL, "0", NULL, "tokens in the whole KV cache (0 = automatic)",
      "All sequences share it. 0 takes max-running x context, cut to what fits into memory. When it runs full, cached\n"
      "prefixes go first, then the youngest sequence is paused and computed again later; nothing is lost.\n" },
    { "kv-type", 0, OPTION_ENUM, FIELD(kv_type), 0, 0, "f16|bf16|f32|q8", "f16", NULL, "number format of the KV cache",
      "f32 doubles the memory and is for comparisons; bf16 has less precision than f16. q8 (8-bit integers, one scale per\n"
      "row of a head) takes about half the memory of f16 and is faster in long contexts, for a small loss of accuracy.\n" },
    { "ram", 0, OPTION_BYTES, FIELD(ram_bytes), 0, 1ull << 50, NULL, "0", NULL, "ceiling for weights, KV and scratch (0 = automatic)",
      "0 takes what is free at start (the container's limit respected) minus a safety margin, and says so in the log. A model\n"
      "that does not fit is served all the same, see experts.\n" },
    { "experts", 0, OPTION_ENUM, FIELD(experts), 0, 0, "auto|resident|stream", "auto", NULL, "where expert weights live",
      "resident: all in memory. stream: in memory as far as expert-ram goes, the others are read from the file when a token\n"
      "needs them, past the page cache. auto: resident if ram suffices for them and a context of 4096 tokens, else stream.\n"
      "The answers are the same; the speed of a streamed model is that of the disk, the fewer experts fit the more.\n" },
    { "expert-ram", 0, OPTION_BYTES, FIELD(expert_bytes), 0, 1ull << 50, NULL, "0", NULL, "memory for streamed experts (0 = what ram leaves)",
      "0 takes what dense weights, KV cache and scratch leave of ram. An automatic KV cache leaves experts three quarters of what\n"
      "both share. With experts auto a number here that does not hold them all means stream.\n" },
    { "expert-policy", 0, OPTION_ENUM, FIELD(expert_policy), 0, 0, "auto|lru|lfu|lfru", "auto", NULL, "which streamed expert gives way",
      "lru: the one not used for longest. lfu: the one used least, old uses counting less. lfru: the one with the\n"
      "fewest uses for its age. auto is lfru, in simulation at or near the best at every budget.\n" },
    { "expert-prefetch", 0, OPTION_BOOL, FIELD(expert_prefetch), 0, 0, NULL, "on", NULL, "read streamed experts before they are asked for",
      "The next layer's router is tried on the present state, and an idle disk fills empty memory. Never delays a read that\n"
      "is waited for. /metrics says how much of it was of use.\n" },
    { "expert-io", 0, OPTION_ENUM, FIELD(expert_io), 0, 0, "auto|uring|threads", "auto", NULL, "how streamed experts are read",
      "auto takes io_uring where the kernel allows it (containers often do not), else threads.\n" },
    { "expert-heat", 0, OPTION_STRING, FIELD(expert_heat), 0, 0, NULL, "", NULL, "file that remembers which experts are hot",
      "Read at start, so that memory is filled with the right experts at once, and written at the end\n"
      "and every expert-heat-every seconds. Empty: nothing is kept.\n" },
    { "expert-heat-every", 0, OPTION_U32, FIELD(expert_heat_every), 0, 86400, NULL, "300", NULL, "seconds between saves of expert-heat",
      "What a server that is killed has learned is lost since the last of them. 0: saved at the end only.\n" },
    { "lossy-experts", 0, OPTION_ENUM, FIELD(lossy_experts), 0, 0, "off|fewer|cached|both", "off", NULL, "what requests may trade accuracy for speed with",
      "Only requests that ask for it with their field lossy_experts get it; all others are exact. fewer: half the experts of a layer\n"
      "where that half has lossy-share of the weight. cached: of experts that the router rates nearly alike the one in memory;\n"
      "such an answer depends on what else runs. docs/NUMBERS.md has what each costs.\n" },
    { "lossy-share", 0, OPTION_U32, FIELD(lossy_share), 50, 100, NULL, "75", NULL, "percent of the weight that half the experts must have",
      "For lossy-experts fewer. 50 halves the experts of every token, 100 of next to none.\n" },
    { "lossy-margin", 0, OPTION_U32, FIELD(lossy_margin), 1, 100, NULL, "10", NULL, "percent by which scores may differ to count as near",
      "For lossy-experts cached, of the weakest chosen score.\n" },
    { "trace", 0, OPTION_STRING, FIELD(trace), 0, 0, NULL, "", NULL, "file to record which experts are chosen",
      "Empty: nothing is recorded. The file is emptied at start and complete at exit; it grows by about 500 bytes a token and holds\n"
      "no text. A disk that cannot keep up loses steps of the record, never time. For moed trace show and moed simulate.\n" },
    { "repack", 0, OPTION_BOOL, FIELD(repack), 0, 0, NULL, "on", NULL, "copy weights into the kernels' layout at start",
      "Faster, above all in decoding; the copy replaces the file's pages in memory, the answers are the same. off reads the\n"
      "weights where they lie in the file: for a model larger than memory, or to share it between processes.\n" },

    { "threads", 't', OPTION_U32, FIELD(threads), 0, 1024, NULL, "0", "CPU", "compute threads (0 = physical cores)",
      "0 takes one per physical core this process may use (affinity and container quota respected), or one per entry of\n"
      "cpus. A second thread on the same core (SMT) shares its vector units and gains nothing. Any number gives the same\n"
      "answers. The HTTP side needs little and shares these cores; leave one out only where something else is busy.\n" },
    { "cpus", 0, OPTION_STRING, FIELD(cpus), 0, 0, NULL, "", NULL, "pin compute threads, e.g. 0-3,8",
      "Empty: the kernel decides. Pin when other work shares the machine, and name one CPU per core: lscpu -e shows which\n"
      "belong together. The engine's own thread takes the first, its helpers the others in order; the HTTP thread is not pinned.\n"
      "With several NUMA nodes weights lie where they were first read: start with `numactl --interleave=all` to use the\n"
      "memory of all nodes, or with `numactl --membind=N` and the CPUs of node N when the model fits there.\n" },
    { "cpu-level", 0, OPTION_ENUM, FIELD(cpu_level), 0, 0, "auto|scalar|avx2|avxvnni|avx512|avx512bf16|neon", "auto", NULL, "instruction set of the kernels",
      "auto takes the best this CPU has. The others are for comparisons; asking for more than the CPU has is an error.\n" },
    { "activations", 0, OPTION_ENUM, FIELD(activations), 0, 0, "q8|f32", "q8", NULL, "precision of the inputs of matrix products",
      "q8 rounds the inputs of quantised matrices to 8 bits in blocks of 32, as other CPU servers do; f32 does not round and is\n"
      "several times slower. On the demo model q8 costs 0.4 % of perplexity. Inputs of BF16 matrices are rounded to BF16 with q8,\n"
      "which CPUs with AVX-512 BF16 multiply twice as fast as floats. No effect on F32 and F16 weights.\n" },

    { "drain-timeout", 0, OPTION_MS, FIELD(drain_timeout_ms), 0, 86400000, NULL, "30s", "Process", "time running requests get after SIGTERM",
      "After SIGTERM or SIGINT new requests are refused with 503 and /health turns 503; running ones may finish for this\n"
      "long. A second signal stops at once.\n" },
    { "admin", 0, OPTION_ENUM, FIELD(admin), 0, 0, "auto|on|off", "auto", NULL, "serve /admin routes",
      "They show and change the running server and ask for no password. auto: only over loopback and the Unix socket.\n" },
    { "log-level", 0, OPTION_ENUM, FIELD(log_level), 0, 0, "error|warn|info|debug", "info", NULL, "how much to log",
      "Logs go to standard error. Prompts and outputs are never logged.\n" },
    { "log-format", 0, OPTION_ENUM, FIELD(log_format), 0, 0, "text|json", "text", NULL, "log line format",
      "json writes one object per line.\n" },
    { "warmup", 0, OPTION_BOOL, FIELD(warmup), 0, 0, NULL, "on", NULL, "touch all weights before listening",
      "Runs one step before the port opens, so that the first request is not slow.\n" },
};

const size_t config__n_options = sizeof config__options / sizeof *config__options;

_Static_assert(sizeof config__options / sizeof *config__options <= sizeof((struct config *)0)->origin, "one origin per option");

const struct option *config__find(const char *name, size_t len) {
    for (size_t i = 0; i < config__n_options; i++) {
        if (strlen(config__options[i].name) == len && memcmp(config__options[i].name, name, len) == 0) return &config__options[i];
    }
    return NULL;
}

void config__env_name(const struct option *o, char *out, size_t cap) {
    size_t n = 0;
    for (const char *s = "MOED_"; *s && n + 1 < cap; s++) out[n++] = *s;
    for (const char *s = o->name; *s && n + 1 < cap; s++) out[n++] = *s == '-' ? '_' : (char)(*s >= 'a' && *s <= 'z' ? *s - 32 : *s);
    out[n] = '\0';
}
