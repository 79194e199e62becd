/* SPDX-License-Identifier: Apache-2.0
 *
 * The replay. A visit is one routed layer of one step with the keys of the experts it wants; visits are the ticks of the
 * policy. What is missing takes the slots of the lowest scores, found by one scan per visit, as in the store. */
#include "offload/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "offload/synth.h"
#include "offload/trace.h"

enum { NONE = -1, NEAR = 8 /* steps, of sim_summary.reuse_8 */, MAX_DISTANCE = 4096 };

struct visit {
    uint32_t at, n;           /* keys [at .. at + n)              */
    uint32_t n_tokens;        /* of the step                      */
    bool first, prefill;      /* of its step; the step is a prefill */
};

struct sim {
    struct trace_info info;
    uint32_t n_routed;
    uint32_t index_of[TRACE_MAX_LAYERS]; /* among the routed layers */
    struct visit *visits;     /* [n_visits] */
    uint32_t *keys;           /* [n_used], distinct within a visit and ascending */
    uint32_t n_visits, cap_visits, n_used, cap_used;
};

const char *sim_policy_name(int policy) {
    return policy == SIM_BELADY ? "belady" : policy_name((enum offload_policy)policy);
}

bool sim_policy_from_name(const char *name, int *out) {
    enum offload_policy p;
    bool shipped = policy_from_name(name, &p);
    *out = shipped ? (int)p : SIM_BELADY;
    return shipped || !strcmp(name, "belady");
}

const struct trace_info *sim_info(const struct sim *s) { return &s->info; }
uint32_t sim_n_keys(const struct sim *s) { return s->n_routed * s->info.n_experts; }

/* ---- loading ---- */

static int new_sim(struct sim **out, const struct trace_info *info, struct err *e) {
    struct sim *s = *out = mem_zalloc(1, sizeof *s);
    if (!s) {
        return err_set(e, ST_NOMEM, "out of memory");
    }
    s->info = *info;
    for (uint32_t i = 0; i < info->n_layers; i++) {
        s->index_of[i] = s->n_routed;
        s->n_routed += trace_is_routed(info, i);
    }
    return s->n_routed ? ST_OK : err_set(e, ST_INVALID, "no layer has experts");
}

/* Room for one more visit with n keys. */
static int grow(struct sim *s, uint32_t n, struct err *e) {
    if (s->n_visits == s->cap_visits) {
        uint32_t cap = s->cap_visits ? 2 * s->cap_visits : 1024;
        struct visit *more = mem_realloc(s->visits, (size_t)cap * sizeof *more);
        if (!more) {
            return err_set(e, ST_NOMEM, "out of memory after %u layers of the trace", s->n_visits);
        }
        s->visits = more;
        s->cap_visits = cap;
    }
    while (n > s->cap_used - s->n_used) {
        uint32_t cap = s->cap_used ? 2 * s->cap_used : 16384;
        uint32_t *more = cap > s->cap_used ? mem_realloc(s->keys, (size_t)cap * sizeof *more) : NULL;
        if (!more) {
            return err_set(e, ST_NOMEM, "out of memory after %u layers of the trace", s->n_visits);
        }
        s->keys = more;
        s->cap_used = cap;
    }
    return ST_OK;
}

static int load(struct sim *s, struct trace *t, struct err *e) {
    struct trace_layer l;
    int rc;
    trace_rewind(t);
    while ((rc = trace_next(t, &l, e)) == 1) {
        rc = grow(s, l.n_distinct, e);
        if (rc) {
            return rc;
        }
        s->visits[s->n_visits++] = (struct visit){ s->n_used, l.n_distinct, l.n_tokens, l.first, l.prefill };
        for (uint32_t i = 0; i < l.n_distinct; i++) {
            s->keys[s->n_used++] = s->index_of[l.layer] * s->info.n_experts + l.experts[i];
        }
    }
    return rc;
}

static int opened(struct sim **out, int st) {
    if (st) {
        sim_close(*out);
        *out = NULL;
    }
    return st;
}

int sim_open(struct sim **out, struct trace *t, struct err *e) {
    int st = new_sim(out, trace_info(t), e);
    return opened(out, st ? st : load(*out, t, e));
}

static int compare_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int load_synth(struct sim *s, struct synth *from, uint32_t n_tokens, int32_t *ids, struct err *e) {
    const uint32_t k = s->info.k;
    for (uint32_t t = 0; t < n_tokens; t++) {
        synth_token(from, ids);
        for (uint32_t l = 0; l < s->n_routed; l++) {
            int st = grow(s, k, e);
            if (st) {
                return st;
            }
            s->visits[s->n_visits++] = (struct visit){ s->n_used, k, 1, l == 0, false };
            qsort(ids + l * k, k, sizeof *ids, compare_id);
            for (uint32_t j = 0; j < k; j++) {
                s->keys[s->n_used++] = l * s->info.n_experts + (uint32_t)ids[l * k + j];
            }
        }
    }
    return ST_OK;
}

int sim_open_synth(struct sim **out, const struct trace_info *info, const struct synth_params *p, uint32_t n_tokens, uint64_t seed,
                   struct err *e) {
    struct synth *from = NULL;
    int32_t *ids = NULL;
    int st = new_sim(out, info, e);
    if (!st) {
        st = synth_open(&from, &(struct synth_shape){ (*out)->n_routed, info->n_experts, info->k }, p, seed, e);
    }
    if (!st) {
        ids = mem_zalloc((size_t)(*out)->n_routed * info->k, sizeof *ids);
        st = ids ? load_synth(*out, from, n_tokens, ids, e) : err_set(e, ST_NOMEM, "out of memory");
    }
    mem_free(ids);
    synth_close(from);
    return opened(out, st);
}

void sim_close(struct sim *s) {
    if (s) {
        mem_free(s->visits);
        mem_free(s->keys);
        mem_free(s);
    }
}

/* ---- summary ---- */

struct tally { uint64_t visits, prefill_visits, wanted, prefill_wanted, next, near, again; uint64_t distances[MAX_DISTANCE + 1]; };

static void tally_visit(const struct sim *s, const struct visit *v, uint32_t step, uint32_t *last, struct tally *t) {
    for (uint32_t i = v->at; i < v->at + v->n; i++) {
        uint32_t *used = &last[s->keys[i]]; /* step of the last use, from 1 */
        uint32_t distance = *used ? step - *used : 0;
        t->next += distance == 1;
        t->near += distance >= 1 && distance <= NEAR;
        t->again += distance != 0;
        t->distances[distance < MAX_DISTANCE ? distance : MAX_DISTANCE]++;
        *used = step;
    }
}

static uint32_t median(const struct tally *t) {
    uint64_t below = 0;
    for (uint32_t d = 1; d <= MAX_DISTANCE; d++) {
        below += t->distances[d];
        if (t->again && 2 * below >= t->again) {
            return d;
        }
    }
    return 0;
}

static double share(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

int sim_summarize(const struct sim *s, struct sim_summary *out) {
    uint32_t step = 0, *last = mem_zalloc(sim_n_keys(s), sizeof *last);
    uint8_t *used = mem_zalloc(sim_n_keys(s), 1);
    struct tally *t = mem_zalloc(1, sizeof *t);
    int st = last && used && t ? ST_OK : ST_NOMEM;
    *out = (struct sim_summary){ 0 };
    for (uint32_t i = 0; !st && i < s->n_visits; i++) {
        const struct visit *v = &s->visits[i];
        *(v->prefill ? &out->prefill_steps : &out->steps) += v->first;
        *(v->prefill ? &out->prefill_tokens : &out->tokens) += v->first ? v->n_tokens : 0;
        *(v->prefill ? &t->prefill_visits : &t->visits) += 1;
        *(v->prefill ? &t->prefill_wanted : &t->wanted) += v->n;
        for (uint32_t j = v->at; j < v->at + v->n; j++) {
            out->keys_used += !used[s->keys[j]];
            used[s->keys[j]] = 1;
        }
        if (!v->prefill) {
            step += v->first;
            tally_visit(s, v, step, last, t);
        }
    }
    if (!st) {
        out->distinct = share(t->wanted, t->visits);
        out->prefill_distinct = share(t->prefill_wanted, t->prefill_visits);
        out->reuse_next = share(t->next, t->wanted);
        out->reuse_8 = share(t->near, t->wanted);
        out->median_distance = median(t);
    }
    mem_free(last);
    mem_free(used);
    mem_free(t);
    return st;
}

/* ---- replay ---- */

struct replay {
    const struct sim *s;
    const struct sim_opts *o;
    struct policy policy;
    struct policy_entry *entries; /* [n_keys]                                                      */
    uint32_t *next_use;           /* Belady: [n_used] the visit that wants this key again, or UINT32_MAX */
    uint32_t *next_of;            /* Belady: [n_keys] the same as of the key's last use            */
    int32_t *slot_of;             /* [n_keys] or NONE                                              */
    uint32_t *key_in;             /* [slots]                                                       */
    uint32_t *wanted_in;          /* [n_keys] last visit that wants it, from 1                     */
    uint32_t *victims;            /* [n_experts] slots of the running visit, highest score first   */
    double *scores;               /* [n_experts] of victims                                        */
    uint32_t n_filled;
};

static double score(const struct replay *r, uint32_t key) {
    return r->o->policy == SIM_BELADY ? -(double)r->next_of[key] : policy_score(&r->policy, key);
}

/* The n evictable slots with the lowest scores, ties to the lower key; those that the visit wants itself are not. */
static uint32_t find_victims(struct replay *r, uint32_t visit, uint32_t n) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < r->n_filled; i++) {
        const uint32_t key = r->key_in[i];
        if (r->wanted_in[key] == visit) {
            continue;
        }
        const double x = score(r, key);
        if (found == n && (x > r->scores[0] || (x == r->scores[0] && key > r->key_in[r->victims[0]]))) {
            continue;
        }
        uint32_t at = 0; /* the highest is first: it goes when a lower one comes */
        if (found < n) {
            memmove(r->victims + 1, r->victims, found * sizeof *r->victims);
            memmove(r->scores + 1, r->scores, found * sizeof *r->scores);
            found++;
        }
        for (; at + 1 < found; at++) {
            const uint32_t other = r->victims[at + 1];
            if (r->scores[at + 1] < x || (r->scores[at + 1] == x && r->key_in[other] < key)) {
                break;
            }
            r->scores[at] = r->scores[at + 1];
            r->victims[at] = other;
        }
        r->scores[at] = x;
        r->victims[at] = i;
    }
    return found;
}

static void put(struct replay *r, uint32_t key, uint32_t slot) {
    r->key_in[slot] = key;
    r->slot_of[key] = (int32_t)slot;
}

/* Brings in the m missing keys of a visit: into free slots, then into those of victims. What finds neither, in a prefill or
 * in a budget below what the visit wants, is used and let go. */
static void bring(struct replay *r, const struct visit *v, uint32_t visit, uint32_t m) {
    const uint32_t free_slots = r->o->slots - r->n_filled, n_evict = m > free_slots ? m - free_slots : 0;
    uint32_t n_victims = n_evict && !v->prefill ? find_victims(r, visit, n_evict) : 0;
    for (uint32_t i = v->at; i < v->at + v->n; i++) {
        const uint32_t key = r->s->keys[i];
        if (r->slot_of[key] != NONE) {
            continue;
        }
        if (r->n_filled < r->o->slots) {
            put(r, key, r->n_filled++);
        } else if (n_victims) {
            const uint32_t slot = r->victims[--n_victims];
            r->slot_of[r->key_in[slot]] = NONE;
            put(r, key, slot);
        }
    }
}

/* Seconds the visit takes from when its experts are known, and how much of it is waiting. */
static double pipeline(const struct replay *r, uint32_t hits, uint32_t misses, double *stall) {
    const double bytes = (double)r->s->info.expert_bytes, compute = bytes / r->o->dram, arrive = bytes / r->o->link;
    double now = hits * compute;
    for (uint32_t i = 1; i <= misses; i++) {
        const double wait = i * arrive - now;
        *stall += wait > 0 ? wait : 0;
        now = (wait > 0 ? i * arrive : now) + compute;
    }
    return now;
}

static uint32_t touch(struct replay *r, const struct visit *v, uint32_t visit) {
    uint32_t misses = 0;
    policy_tick(&r->policy);
    for (uint32_t i = v->at; i < v->at + v->n; i++) {
        const uint32_t key = r->s->keys[i];
        misses += r->slot_of[key] == NONE;
        r->wanted_in[key] = visit;
        if (!v->prefill) {
            policy_touch(&r->policy, key);
        }
        if (r->next_of) {
            r->next_of[key] = r->next_use[i];
        }
    }
    return misses;
}

static void replay(struct replay *r, struct sim_result *out) {
    uint32_t decode_steps = 0;
    for (uint32_t n = 0; n < r->s->n_visits; n++) {
        const struct visit *v = &r->s->visits[n];
        uint32_t misses = touch(r, v, n + 1);
        bring(r, v, n + 1, misses);
        if (v->prefill) {
            out->prefill_wanted += v->n;
            out->prefill_misses += misses;
            continue;
        }
        decode_steps += v->first;
        if (decode_steps <= r->o->warm_steps) {
            continue;
        }
        out->steps += v->first;
        out->tokens += v->first ? v->n_tokens : 0;
        out->wanted += v->n;
        out->misses += misses;
        out->seconds += pipeline(r, v->n - misses, misses, &out->stall_s);
        out->seconds += v->first ? (double)r->s->info.dense_bytes / r->o->dram : 0;
    }
    out->hits = out->wanted - out->misses;
    out->bytes = (double)out->misses * (double)r->s->info.expert_bytes;
}

/* Prefill does not count as use: it takes what it finds. */
static void look_ahead(struct replay *r) {
    for (uint32_t k = 0; k < sim_n_keys(r->s); k++) {
        r->next_of[k] = UINT32_MAX;
    }
    for (uint32_t n = r->s->n_visits; n-- > 0;) {
        const struct visit *v = &r->s->visits[n];
        for (uint32_t i = v->at; i < v->at + v->n; i++) {
            r->next_use[i] = r->next_of[r->s->keys[i]];
            if (!v->prefill) {
                r->next_of[r->s->keys[i]] = n;
            }
        }
    }
}

int sim_run(const struct sim *s, const struct sim_opts *o, struct sim_result *out) {
    const uint32_t n = sim_n_keys(s), slots = o->slots < n ? o->slots : n;
    struct sim_opts opts = *o;
    *out = (struct sim_result){ 0 };
    if (o->policy < 0 || o->policy >= SIM_N_POLICIES || slots < 1 || !(o->link > 0) || !(o->dram > 0)) {
        return ST_INVALID;
    }
    opts.slots = slots;
    struct replay r = {
        .s = s,
        .o = &opts,
        .entries = mem_zalloc(n, sizeof *r.entries),
        .slot_of = mem_zalloc(n, sizeof *r.slot_of),
        .key_in = mem_zalloc(slots, sizeof *r.key_in),
        .wanted_in = mem_zalloc(n, sizeof *r.wanted_in),
        .victims = mem_zalloc(s->info.n_experts, sizeof *r.victims),
        .scores = mem_zalloc(s->info.n_experts, sizeof *r.scores),
    };
    int st = r.entries && r.slot_of && r.key_in && r.wanted_in && r.victims && r.scores ? ST_OK : ST_NOMEM;
    if (!st && o->policy == SIM_BELADY) {
        r.next_use = mem_zalloc(s->n_used + UINT64_C(1), sizeof *r.next_use);
        r.next_of = mem_zalloc(n, sizeof *r.next_of);
        st = r.next_use && r.next_of ? ST_OK : ST_NOMEM;
    }
    if (!st) {
        memset(r.slot_of, 0xff, n * sizeof *r.slot_of); /* NONE */
        policy_init(&r.policy, o->policy == SIM_BELADY ? OFFLOAD_LRU : (enum offload_policy)o->policy, r.entries, n,
                    s->n_routed);
        if (r.next_of) {
            look_ahead(&r);
        }
        replay(&r, out);
    }
    mem_free(r.entries);
    mem_free(r.slot_of);
    mem_free(r.key_in);
    mem_free(r.wanted_in);
    mem_free(r.victims);
    mem_free(r.scores);
    mem_free(r.next_use);
    mem_free(r.next_of);
    return st;
}
