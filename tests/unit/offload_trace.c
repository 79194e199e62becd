/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing traces: what is written is read back, a writer that cannot keep up drops whole steps and says how many, and the
 * reader refuses every truncation and survives every flipped byte. */
#include "tests/unit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "offload/trace.h"

enum { LAYERS = 5, DENSE_LAYER = 2, K = 3, MAX_EXPERTS = 300, MAX_ROWS = 100 };

static uint32_t rnd(uint64_t *rng, uint32_t n) {
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33) % n;
}

static struct trace_info make_info(uint32_t n_experts) {
    struct trace_info t = { .n_layers = LAYERS, .n_experts = n_experts, .k = K, .expert_bytes = 12345, .dense_bytes = 678, .model = "a model" };
    t.routed[0] = 0x1f & ~(1 << DENSE_LAYER);
    return t;
}

struct routing { int32_t ids[MAX_ROWS * K], first[MAX_EXPERTS + 1]; };

static void make_routing(struct routing *x, uint32_t n_experts, uint32_t n_rows, uint64_t *rng) {
    int32_t counts[MAX_EXPERTS] = { 0 };
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t base = rnd(rng, n_experts);
        for (uint32_t j = 0; j < K; j++) { /* distinct within a row, in no order */
            int32_t id = (int32_t)((base + j * j * 7) % n_experts);
            x->ids[r * K + j] = id;
            counts[id]++;
        }
    }
    x->first[0] = 0;
    for (uint32_t i = 0; i < n_experts; i++) {
        x->first[i + 1] = x->first[i] + counts[i];
    }
}

/* Step s of the test's text: every third one a prefill, the last layer with fewer rows. */
struct shape { bool prefill; uint32_t n_tokens; };
static struct shape shape_of(uint32_t s) {
    bool prefill = s % 3 == 0;
    return (struct shape){ prefill, prefill ? 20 + s % 50 : 1 + s % (s % 5 == 4 ? MAX_ROWS : 4) };
}
static uint32_t rows_of(uint32_t s, uint32_t layer) { return layer == LAYERS - 1 && shape_of(s).prefill ? 1 : shape_of(s).n_tokens; }

static void write_steps(struct trace_writer *w, uint32_t n_experts, uint32_t n_steps) {
    uint64_t rng = 7;
    struct routing x;
    for (uint32_t s = 0; s < n_steps; s++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            if (l == DENSE_LAYER || (l == LAYERS - 1 && s % 9 == 3)) { /* a prefill chunk whose last layer nobody needs */
                continue;
            }
            make_routing(&x, n_experts, rows_of(s, l), &rng);
            trace_write(w, &(struct trace_routing){ l, shape_of(s).n_tokens, shape_of(s).prefill, rows_of(s, l), x.ids, x.first });
        }
    }
}

static bool layer_equals(const struct trace_layer *l, const struct routing *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_distinct; i++) {
        uint32_t id = l->experts[i];
        if ((int32_t)l->rows[i] != x->first[id + 1] - x->first[id] || (i && id <= l->experts[i - 1])) return false;
        n += l->rows[i];
    }
    for (uint32_t i = 0; l->ids && i < l->n_rows * K; i++) {
        if ((int32_t)l->ids[i] != x->ids[i]) return false;
    }
    return n == l->n_rows * K;
}

static uint32_t check_steps(const char *test_name_, struct trace *t, uint32_t n_experts, uint32_t n_steps) {
    uint64_t rng = 7;
    uint32_t n_layers = 0;
    struct routing x;
    struct trace_layer got;
    struct err e = { 0 };
    for (uint32_t s = 0; s < n_steps; s++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            if (l == DENSE_LAYER || (l == LAYERS - 1 && s % 9 == 3)) {
                continue;
            }
            make_routing(&x, n_experts, rows_of(s, l), &rng);
            CHECKF(trace_next(t, &got, &e) == 1, "%s", e.text);
            CHECK(got.layer == l && got.first == (l == 0) && got.prefill == shape_of(s).prefill && got.n_rows == rows_of(s, l));
            CHECK(got.n_tokens == shape_of(s).n_tokens && layer_equals(&got, &x));
            CHECK((got.ids != NULL) == (!got.prefill && got.n_rows <= TRACE_ORDERED_ROWS));
            n_layers++;
        }
    }
    CHECK(trace_next(t, &got, &e) == 0 && trace_next(t, &got, &e) == 0);
    return n_layers;
}

static void temp_path(char path[64]) {
    snprintf(path, 64, "/tmp/moed-trace-XXXXXX");
    int fd = mkstemp(path);
    if (fd >= 0) close(fd);
}

TEST(what_is_written_is_read_back) {
    const uint32_t sizes[] = { 40, 256, 257, 300 };
    for (int i = 0; i < 4; i++) {
        char path[64];
        struct err e = { 0 };
        struct trace_writer *w;
        struct trace *t;
        struct trace_info info = make_info(sizes[i]);
        uint64_t dropped = 9;
        temp_path(path);
        CHECK(!trace_writer_open(&w, path, &info, &e));
        write_steps(w, sizes[i], 200);
        CHECK(!trace_writer_close(w, &dropped, &e) && dropped == 0);
        int st = trace_open(&t, path, &e);
        unlink(path);
        CHECKF(!st, "%s", e.text);
        CHECK(!memcmp(trace_info(t), &info, sizeof info));
        CHECK(check_steps(test_name_, t, sizes[i], 200) > 700);
        CHECK(trace_end(t)->present && trace_end(t)->n_steps == 200 && trace_end(t)->n_dropped == 0);
        trace_rewind(t);
        check_steps(test_name_, t, sizes[i], 200);
        trace_close(t);
    }
}

TEST(a_trace_of_nothing_is_valid) {
    char path[64];
    struct err e = { 0 };
    struct trace_writer *w;
    struct trace *t;
    struct trace_layer l;
    struct trace_info info = make_info(40);
    temp_path(path);
    CHECK(!trace_writer_open(&w, path, &info, &e) && !trace_writer_close(w, NULL, &e));
    CHECK(!trace_open(&t, path, &e));
    unlink(path);
    CHECK(trace_next(t, &l, &e) == 0 && trace_end(t)->present);
    trace_close(t);
}

TEST(files_that_cannot_be_written_or_read) {
    struct err e = { 0 };
    struct trace_writer *w;
    struct trace *t;
    struct trace_info info = make_info(40);
    CHECK(trace_writer_open(&w, "/nonexistent/x", &info, &e) == ST_IO && strstr(e.text, "/nonexistent/x") && !w);
    CHECK(trace_open(&t, "/nonexistent/x", &e) == ST_IO && !t);
    CHECK(trace_open(&t, "/dev/null", &e) == ST_INVALID && !t);
    CHECK(!trace_writer_open(&w, "/dev/full", &info, &e));
    write_steps(w, 40, 10);
    CHECK(trace_writer_close(w, NULL, &e) == ST_IO && strstr(e.text, "space"));
    CHECK(trace_writer_close(NULL, NULL, &e) == ST_OK);
}

/* Reads nothing until told, then everything. */
struct slow_reader { const char *path; int fd; size_t n, cap; unsigned char *bytes; };

static void *read_all(void *ctx) {
    struct slow_reader *r = ctx;
    for (ssize_t n = 1; n > 0 && r->n < r->cap; r->n += n > 0 ? (size_t)n : 0) {
        n = read(r->fd, r->bytes + r->n, r->cap - r->n);
    }
    return NULL;
}

/* A pipe that nobody reads stands for a disk that has stopped: the writer must not. */
TEST(a_stalled_disk_loses_whole_steps_and_counts_them) {
    enum { STEPS = 60000 };
    char path[64];
    struct err e = { 0 };
    struct trace_writer *w;
    struct trace *t;
    struct trace_layer l;
    struct trace_info info = make_info(40);
    uint64_t dropped = 0;
    temp_path(path);
    unlink(path);
    CHECK(!mkfifo(path, 0600));
    struct slow_reader r = { .path = path, .fd = open(path, O_RDWR), .cap = 16u << 20, .bytes = malloc(16u << 20) };
    CHECK(r.fd >= 0 && r.bytes);
    CHECK(!trace_writer_open(&w, path, &info, &e));
    write_steps(w, 40, STEPS); /* several times what the chunks and the pipe hold */
    int reading = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(reading >= 0 && !fcntl(reading, F_SETFL, 0));
    close(r.fd); /* else the end of the pipe would never come */
    r.fd = reading;
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, read_all, &r));
    CHECK(!trace_writer_close(w, &dropped, &e));
    pthread_join(thread, NULL);
    close(r.fd);
    unlink(path);
    CHECK(dropped > 0 && dropped < STEPS);
    CHECK(!trace_open_memory(&t, r.bytes, r.n, &e));
    int rc;
    while ((rc = trace_next(t, &l, &e)) == 1) {
    }
    CHECKF(rc == 0, "%s", e.text);
    CHECK(trace_end(t)->present && trace_end(t)->n_dropped == dropped && trace_end(t)->n_steps + dropped == STEPS);
    trace_close(t);
    free(r.bytes);
}

static size_t sample_file(const char *test_name_, unsigned char *bytes, size_t cap) {
    char path[64];
    struct err e = { 0 };
    struct trace_writer *w;
    struct trace_info info = make_info(40);
    temp_path(path);
    CHECK(!trace_writer_open(&w, path, &info, &e));
    write_steps(w, 40, 8);
    CHECK(!trace_writer_close(w, NULL, &e));
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t n = fread(bytes, 1, cap, f);
    fclose(f);
    unlink(path);
    CHECK(n > 500 && n < cap);
    return n;
}

/* 0 at a clean end, else the error. Touches all that a layer shows. */
static int read_through(const unsigned char *bytes, size_t n, uint64_t *sum) {
    struct err e = { 0 };
    struct trace *t;
    struct trace_layer l;
    unsigned char *exact = malloc(n); /* so that an access beyond the end is seen */
    memcpy(exact, bytes, n);
    int rc = trace_open_memory(&t, exact, n, &e);
    while (!rc && (rc = trace_next(t, &l, &e)) == 1) {
        for (uint32_t i = 0; i < l.n_distinct; i++) *sum += l.experts[i] < trace_info(t)->n_experts ? l.rows[i] : UINT64_C(1) << 60;
        rc = 0;
    }
    trace_close(t);
    free(exact);
    return rc;
}

TEST(every_truncation_is_refused_or_ends_between_records) {
    unsigned char bytes[1 << 16];
    size_t n = sample_file(test_name_, bytes, sizeof bytes);
    uint64_t sum = 0;
    int clean = 0;
    CHECK(read_through(bytes, n, &sum) == 0);
    for (size_t cut = 0; cut < n; cut++) {
        clean += read_through(bytes, cut, &sum) == 0;
    }
    CHECKF(clean >= 1 && clean <= 8 * LAYERS, "%d", clean); /* the ends of layers; a killed recording ends at one of a step */
}

TEST(flipped_bytes_never_lead_outside) {
    unsigned char bytes[1 << 16];
    size_t n = sample_file(test_name_, bytes, sizeof bytes);
    uint64_t rng = 3, sum = 0;
    int refused = 0;
    for (int i = 0; i < 20000; i++) {
        size_t at = rnd(&rng, (uint32_t)n);
        unsigned char old = bytes[at];
        bytes[at] = (unsigned char)rnd(&rng, 256);
        refused += read_through(bytes, n, &sum) != 0;
        bytes[at] = old;
    }
    CHECKF(sum < UINT64_C(1) << 60 && refused > 2000, "%d", refused);
}

int main(void) {
    RUN(what_is_written_is_read_back);
    RUN(a_trace_of_nothing_is_valid);
    RUN(files_that_cannot_be_written_or_read);
    RUN(a_stalled_disk_loses_whole_steps_and_counts_them);
    RUN(every_truncation_is_refused_or_ends_between_records);
    RUN(flipped_bytes_never_lead_outside);
    return test_failed_;
}
