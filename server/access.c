/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of Host, Origin and API key. A key is compared with every key of the file in time that depends on lengths
 * only. Limits of a key: requests running at once, and a token bucket that holds one minute's worth. */
#include "server/access.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "scheduler/request.h"

enum { KEY_MIN = 16, KEY_MAX = 256, LINE_BYTES = 1024, NAME_BYTES = 64, WEIGHT_MAX = 1000 };

struct key {
    char text[KEY_MAX];               /* zero-padded */
    size_t n;                         /* 0 = revoked: an empty place once nothing of it runs */
    char name[NAME_BYTES];
    uint32_t concurrent, per_minute;  /* 0 = no limit */
    uint32_t weight;                  /* its share of the server beside other keys */
    int8_t best_priority;
    uint32_t live;
    double mean_ms;                   /* of its requests, moving average; 0 = none ended yet */
    double allowance;                 /* requests; at most per_minute */
    uint64_t refilled_ms;
};

struct access {
    const struct config *cfg;         /* borrowed */
    struct key *keys;
    uint32_t n_keys, capacity;
};

bool access_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* ---- the file of keys ---- */

static void free_keys(struct access *a) {
    if (a->keys != NULL) explicit_bzero(a->keys, a->capacity * sizeof *a->keys);
    mem_free(a->keys);
    a->keys = NULL;
}

static bool parse_count(const char *s, uint32_t *out) {
    uint64_t v = 0;
    if (*s == '\0') return false;
    for (; *s >= '0' && *s <= '9' && v <= UINT32_MAX; s++) v = v * 10 + (uint64_t)(*s - '0');
    *out = (uint32_t)v;
    return *s == '\0' && v >= 1 && v <= UINT32_MAX;
}

static bool parse_priority(const char *s, int8_t *out) {
    bool negative = *s == '-';
    uint32_t v = 0;
    if (strcmp(s, "0") != 0 && (!parse_count(s + negative, &v) || v > SCHED_PRIORITY_MAX)) return false;
    *out = (int8_t)(negative ? -(int)v : (int)v);
    return true;
}

static int parse_field(struct key *k, const char *word, const char *file, unsigned line, struct err *e) {
    if (strncmp(word, "name=", 5) == 0) {
        if (strlen(word + 5) >= sizeof k->name) return err_set(e, ST_INVALID, "%s:%u: name: at most %d bytes", file, line, NAME_BYTES - 1);
        memcpy(k->name, word + 5, strlen(word + 5) + 1);
        return 0;
    }
    if (strncmp(word, "concurrent=", 11) == 0 && parse_count(word + 11, &k->concurrent)) return 0;
    if (strncmp(word, "per-minute=", 11) == 0 && parse_count(word + 11, &k->per_minute)) return 0;
    if (strncmp(word, "weight=", 7) == 0 && parse_count(word + 7, &k->weight) && k->weight <= WEIGHT_MAX) return 0;
    if (strncmp(word, "priority=", 9) == 0 && parse_priority(word + 9, &k->best_priority)) return 0;
    return err_set(e, ST_INVALID, "%s:%u: expected name=TEXT, concurrent=N, per-minute=N, weight=N (1 to %d) or priority=N (%d to %d) after the key, found \"%.60s\"",
                   file, line, WEIGHT_MAX, SCHED_PRIORITY_MIN, SCHED_PRIORITY_MAX, word);
}

/* The next word of *s, NUL-terminated in place; NULL at the end. */
static char *next_word(char **s) {
    *s += strspn(*s, " \t\r\n");
    if (**s == '\0') return NULL;
    char *word = *s;
    *s += strcspn(*s, " \t\r\n");
    if (**s != '\0') *(*s)++ = '\0';
    return word;
}

/* Room for n more keys. */
static int reserve(struct access *a, uint32_t n) {
    if (a->n_keys + n <= a->capacity) return ST_OK;
    uint32_t capacity = 2 * a->capacity + n;
    struct key *keys = mem_zalloc(capacity, sizeof *keys);
    if (keys == NULL) return ST_NOMEM;
    if (a->n_keys > 0) memcpy(keys, a->keys, a->n_keys * sizeof *keys);
    free_keys(a);
    a->keys = keys;
    a->capacity = capacity;
    return ST_OK;
}

/* After reserve. */
static struct key *new_key(struct access *a) {
    for (uint32_t i = 0; i < a->n_keys; i++)
        if (a->keys[i].n == 0 && a->keys[i].live == 0) return &a->keys[i];
    return &a->keys[a->n_keys++];
}

static int add_key(struct access *a, char *text, const char *file, unsigned line, struct err *e) {
    char *word = next_word(&text);
    if (word == NULL || *word == '#') return 0;
    size_t n = strlen(word);
    if (n < KEY_MIN || n > KEY_MAX)
        return err_set(e, ST_INVALID, "%s:%u: a key has %d to %d characters, this one %zu", file, line, KEY_MIN, KEY_MAX, n);
    for (size_t i = 0; i < n; i++)
        if (word[i] <= ' ' || word[i] > '~') return err_set(e, ST_INVALID, "%s:%u: a key is printable ASCII", file, line);
    if (a->n_keys == ACCESS_MAX_KEYS) return err_set(e, ST_LIMIT, "%s:%u: more than %d keys", file, line, ACCESS_MAX_KEYS);
    if (reserve(a, 1) != ST_OK) return err_set(e, ST_NOMEM, "out of memory for the keys of %s", file);
    struct key *k = new_key(a);
    *k = (struct key){ .n = n, .weight = 1 };
    memcpy(k->text, word, n);
    while ((word = next_word(&text)) != NULL && *word != '#') {
        int st = parse_field(k, word, file, line, e);
        if (st != 0) return st;
    }
    k->allowance = k->per_minute;
    return 0;
}

static int read_keys(struct access *a, const char *file, struct err *e) {
    FILE *f = fopen(file, "re");
    if (f == NULL) return err_set(e, ST_IO, "api-key-file: cannot open %s: %m", file);
    char line[LINE_BYTES];
    int st = 0;
    for (unsigned n = 1; st == 0 && fgets(line, sizeof line, f) != NULL; n++) {
        if (strlen(line) == sizeof line - 1) st = err_set(e, ST_INVALID, "%s:%u: the line is longer than %d bytes", file, n, LINE_BYTES - 2);
        else st = add_key(a, line, file, n, e);
    }
    if (st == 0 && ferror(f)) st = err_set(e, ST_IO, "api-key-file: cannot read %s", file);
    fclose(f);
    explicit_bzero(line, sizeof line);
    if (st == 0 && a->n_keys == 0) st = err_set(e, ST_INVALID, "api-key-file: %s holds no key; an empty file would lock everybody out", file);
    return st;
}

int access_open(struct access **out, const struct config *cfg, struct err *e) {
    struct access *a = mem_zalloc(1, sizeof *a);
    if (a == NULL) return err_set(e, ST_NOMEM, "out of memory for the access rules");
    a->cfg = cfg;
    int st = cfg->api_key_file[0] != '\0' ? read_keys(a, cfg->api_key_file, e) : 0;
    if (st != 0) {
        access_close(a);
        return st;
    }
    *out = a;
    return 0;
}

/* The key of a with the same text, or NULL. */
static struct key *same_key(struct access *a, const struct key *k) {
    for (uint32_t i = 0; i < a->n_keys; i++)
        if (k->n > 0 && a->keys[i].n == k->n && memcmp(a->keys[i].text, k->text, k->n) == 0) return &a->keys[i];
    return NULL;
}

/* Places keep their index, by which running requests give back what they took. */
static void take_over(struct access *a, struct access *fresh) {
    for (uint32_t i = 0; i < fresh->n_keys; i++) {
        struct key *to = same_key(a, &fresh->keys[i]);
        if (to == NULL) {
            to = new_key(a);
            *to = (struct key){ .n = 0 };
        }
        uint32_t live = to->live;
        double mean_ms = to->mean_ms;
        *to = fresh->keys[i];
        to->live = live;
        to->mean_ms = mean_ms;
    }
    for (uint32_t i = 0; i < a->n_keys; i++) {
        struct key *k = &a->keys[i];
        if (k->n > 0 && same_key(fresh, k) == NULL) *k = (struct key){ .live = k->live };
    }
}

int access_reload(struct access *a, struct err *e) {
    struct access *fresh;
    int st = access_open(&fresh, a->cfg, e);
    if (st != 0) return st;
    st = reserve(a, fresh->n_keys);
    if (st == 0) take_over(a, fresh);
    else err_set(e, st, "out of memory for the keys of %s", a->cfg->api_key_file);
    access_close(fresh);
    return st;
}

void access_close(struct access *a) {
    if (a == NULL) return;
    free_keys(a);
    mem_free(a);
}

uint32_t access_n_keys(const struct access *a) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_keys; i++) n += a->keys[i].n > 0;
    return n;
}

/* ---- Host and Origin ---- */

static bool same(struct access_text t, const char *s, size_t n) {
    return t.n == n && strncasecmp(t.s, s, n) == 0;
}

/* Is t an entry of the comma-separated list? "*" is everything. */
static bool listed(const char *list, struct access_text t) {
    for (const char *s = list; *s != '\0';) {
        s += strspn(s, ", ");
        size_t n = strcspn(s, ", ");
        if ((n == 1 && *s == '*') || (n > 0 && same(t, s, n))) return true;
        s += n;
    }
    return false;
}

/* "name:port" or "[v6]:port" without the port. */
static struct access_text host_name(struct access_text host) {
    size_t n = host.n;
    while (n > 0 && host.s[n - 1] >= '0' && host.s[n - 1] <= '9') n--;
    bool has_port = n > 0 && host.s[n - 1] == ':' && (host.s[0] != '[' || (n > 1 && host.s[n - 2] == ']'));
    return (struct access_text){ host.s, has_port ? n - 1 : host.n };
}

static bool host_allowed(const struct access *a, enum access_from from, struct access_text host) {
    if (host.s == NULL) return true; /* HTTP/1.0; browsers always send one */
    struct access_text name = host_name(host);
    if (a->cfg->allowed_hosts[0] != '\0') return listed(a->cfg->allowed_hosts, name);
    return from != ACCESS_LOOPBACK || listed("localhost,127.0.0.1,[::1]", name) || same(name, a->cfg->host, strlen(a->cfg->host));
}

/* The page of this server itself: "http://" or "https://" and the Host. */
static bool same_origin(struct access_text origin, struct access_text host) {
    for (int tls = 0; host.s != NULL && tls < 2; tls++) {
        size_t n = tls ? 8 : 7;
        if (origin.n == n + host.n && strncasecmp(origin.s, tls ? "https://" : "http://", n) == 0 &&
            same((struct access_text){ origin.s + n, host.n }, host.s, host.n))
            return true;
    }
    return false;
}

/* ---- keys ---- */

static bool equal_in_fixed_time(const char *a, const char *b) {
    unsigned char different = 0;
    for (size_t i = 0; i < KEY_MAX; i++) different |= (unsigned char)(a[i] ^ b[i]);
    return different == 0;
}

/* Index of the key, or -1. */
static int find_key(const struct access *a, struct access_text given) {
    char padded[KEY_MAX] = { 0 };
    int found = -1;
    if (given.s == NULL || given.n == 0 || given.n > KEY_MAX) return -1;
    memcpy(padded, given.s, given.n);
    for (uint32_t i = 0; i < a->n_keys; i++)
        if (equal_in_fixed_time(padded, a->keys[i].text) && given.n == a->keys[i].n) found = (int)i;
    explicit_bzero(padded, sizeof padded);
    return found;
}

static struct access_text bearer(struct access_text header) {
    size_t skip = 6;
    if (header.s == NULL || header.n <= skip || strncasecmp(header.s, "Bearer", skip) != 0 || header.s[skip] != ' ')
        return (struct access_text){ NULL, 0 };
    while (skip < header.n && header.s[skip] == ' ') skip++;
    return (struct access_text){ header.s + skip, header.n - skip };
}

static void refuse(struct access_verdict *v, int status, const char *code, const char *message) {
    v->status = status;
    v->code = code;
    v->message = message;
    v->key = -1;
}

static void refill(struct key *k, uint64_t now_ms) {
    if (k->refilled_ms != 0 && now_ms > k->refilled_ms) k->allowance += (double)(now_ms - k->refilled_ms) * k->per_minute / 60000.0;
    if (k->allowance > k->per_minute) k->allowance = k->per_minute;
    k->refilled_ms = now_ms;
}

static void take(struct access *a, int key, uint64_t now_ms, struct access_verdict *v) {
    struct key *k = &a->keys[key];
    if (k->concurrent != 0 && k->live >= k->concurrent) {
        refuse(v, 429, "key_concurrency", "This API key has as many requests running as it may.");
        v->retry_after_s = (uint32_t)(k->mean_ms / k->live / 1000) + 1; /* until one of them has ended */
        return;
    }
    if (k->per_minute != 0) {
        refill(k, now_ms);
        if (k->allowance < 1) {
            refuse(v, 429, "key_rate", "This API key has made as many requests in this minute as it may.");
            v->retry_after_s = (uint32_t)((1 - k->allowance) * 60 / k->per_minute) + 1;
            return;
        }
        k->allowance -= 1;
    }
    k->live++;
    v->key = key;
}

void access_check(struct access *a, const struct access_request *r, struct access_verdict *v) {
    *v = (struct access_verdict){ .key = -1 };
    if (!host_allowed(a, r->from, r->host)) {
        refuse(v, 403, "host_not_allowed", "The Host header names a host this server does not answer to; option allowed-hosts lists more.");
        return;
    }
    if (r->origin.s != NULL && !same_origin(r->origin, r->host)) {
        v->cross_origin = listed(a->cfg->allowed_origins, r->origin);
        if (!v->cross_origin) {
            refuse(v, 403, "origin_not_allowed", "Pages of this origin may not call the server; option allowed-origins lists those that may.");
            return;
        }
    }
    if (a->n_keys == 0 || r->open) return;
    int key = find_key(a, r->api_key.s != NULL ? r->api_key : bearer(r->authorization));
    if (key < 0) refuse(v, 401, "invalid_api_key", "The request needs a valid API key: Authorization: Bearer KEY.");
    else if (r->work) take(a, key, r->now_ms, v);
    if (key < 0) return;
    v->tenant = (uint32_t)key % ACCESS_MAX_KEYS;
    v->weight = a->keys[key].weight;
    v->best_priority = a->keys[key].best_priority;
}

void access_done(struct access *a, int key, uint64_t took_ms) {
    if (key < 0) return;
    struct key *k = &a->keys[key];
    k->live--;
    k->mean_ms += ((double)took_ms - k->mean_ms) / (k->mean_ms > 0 ? 8 : 1);
}
