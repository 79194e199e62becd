/* SPDX-License-Identifier: Apache-2.0
 *
 * Single-threaded units of base/: err, alloc, arena, buf, status. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "tests/unit/test.h"

TEST(err_is_cut_with_dots) {
    struct err e;
    char longer[600];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK(err_set(&e, ST_IO, "%s", longer) == ST_IO);
    CHECK(e.code == ST_IO && strlen(e.text) == sizeof e.text - 1);
    CHECK(strcmp(e.text + sizeof e.text - 4, "...") == 0);
    CHECK(err_set(NULL, ST_NOMEM, "nobody listens") == ST_NOMEM);
}

TEST(status_has_name_and_http) {
    for (int s = ST_OK; s >= ST_INTERNAL; s--) {
        CHECKF(strcmp(status_name(s), "unknown") != 0, "%d", s);
        CHECKF(status_http(s) >= 200 && status_http(s) < 600, "%d", s);
    }
    CHECK(status_http(ST_QUEUE_FULL) == 429 && status_http(ST_SHUTDOWN) == 503);
}

TEST(alloc_counts_and_fails_on_demand) {
    struct mem_stats before, after;
    mem_stats(&before);
    void *a = mem_alloc(10), *b = mem_zalloc(3, 7);
    CHECK(a && b);
    a = mem_realloc(a, 1000);
    mem_stats(&after);
    CHECK(after.n_calls == before.n_calls + 3 && after.n_live == before.n_live + 2);
    mem_free(a);
    mem_free(b);
    mem_stats(&after);
    CHECK(after.n_live == before.n_live);
    CHECK(mem_zalloc(SIZE_MAX / 2, 4) == NULL);
    mem_fail_after(1);
    a = mem_alloc(1);
    b = mem_alloc(1);
    mem_fail_after(UINT64_MAX);
    CHECK(a != NULL && b == NULL);
    mem_free(a);
    char *m = mem_map(4u << 20);
    CHECK(m && m[0] == 0 && m[(4u << 20) - 1] == 0);
    mem_unmap(m, 4u << 20);
}

TEST(arena_has_a_hard_cap) {
    struct arena a;
    arena_init(&a, 100000);
    char *s = arena_strndup(&a, "hello!", 5);
    CHECK(s && strcmp(s, "hello") == 0);
    for (int i = 1; i < 200; i++) {
        char *p = arena_zalloc(&a, (size_t)i, 1);
        CHECK(p && ((uintptr_t)p & 15) == 0);
        memset(p, 0xaa, (size_t)i);
    }
    CHECK(arena_alloc(&a, 50000) != NULL);
    CHECK(arena_alloc(&a, 50000) == NULL);
    CHECK(arena_zalloc(&a, SIZE_MAX, 2) == NULL && arena_alloc(&a, SIZE_MAX) == NULL);
    CHECK(strcmp(s, "hello") == 0);
    arena_clear(&a);
    CHECK(arena_alloc(&a, 90000) != NULL);
    arena_clear(&a);
}

TEST(buf_grows_to_its_limit_and_stays_failed) {
    struct buf b;
    buf_init(&b, 1000);
    CHECK(buf_puts(&b, "abc") == 0 && buf_putc(&b, 'd') == 0);
    CHECK(buf_printf(&b, "%s-%d", "x", 42) == 0);
    CHECK(b.len == 8 && memcmp(b.data, "abcdx-42", 8) == 0);
    CHECK(buf_printf(&b, "%500d", 7) == 0 && b.len == 508 && b.data[507] == '7');
    buf_consume(&b, 500);
    CHECK(b.len == 8);
    char big[1000] = { 0 };
    CHECK(buf_append(&b, big, 993) == ST_LIMIT && b.failed && b.len == 8);
    CHECK(buf_putc(&b, 'x') != 0);
    buf_reset(&b);
    CHECK(buf_append(&b, big, 1000) == 0 && !b.failed);
    CHECK(buf_putc(&b, 'x') == ST_LIMIT);
    buf_clear(&b);
}

int main(void) {
    RUN(err_is_cut_with_dots);
    RUN(status_has_name_and_http);
    RUN(alloc_counts_and_fails_on_demand);
    RUN(arena_has_a_hard_cap);
    RUN(buf_grows_to_its_limit_and_stays_failed);
    return test_failed_;
}
