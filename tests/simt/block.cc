/* SPDX-License-Identifier: Apache-2.0
 *
 * One grid on the CPU: a fiber per thread, a queue of those that can run. A thread leaves the queue when it waits for
 * others and comes back when the last of them arrives, so an empty queue with threads left is a deadlock, exactly. With a
 * seed the next to run is drawn at random, and so are the blocks. */
#include "simt.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#if defined(SIMT_TSAN)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

fiber *self;
options opt = { 0, 1 };
counters count;

namespace {

const size_t STACK = 64 << 10;

struct grid {
    std::vector<block> slots;
    std::vector<fiber *> ready; /* a ring with a place for every thread, none is in it twice: nothing allocates in a fiber */
    size_t head, n_ready;
    std::vector<uint32_t> order; /* block numbers, as they start */
    size_t next;
    unsigned running;            /* slots with a block */
    block *over;                 /* a block that ended: main gives its slot the next one */
    const std::function<void()> *body;
    void *main_sp;
    uint64_t idle;               /* spins since somebody got ahead */
    char *stacks;
    size_t n_stacks;
    unsigned char *arena;
    size_t arena_stride, arena_slots;
    uint32_t rng;
#if defined(SIMT_TSAN)
    void *main_fiber;
    int begun, ended;            /* addresses that order the launch with its threads */
    std::vector<void *> tsan_fibers;
#elif defined(__SANITIZE_ADDRESS__)
    const void *main_stack;
    size_t main_size;
#endif
};

grid G;

/* ---- switching ---- */

#if defined(__x86_64__)
extern "C" void simt_switch(void **save, void *to);
__asm__(".text\n.globl simt_switch\nsimt_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
#error "the emulated device switches stacks in x86-64 assembly"
#endif

char *stack_of(const fiber *f) {
    return G.stacks + STACK * (size_t)((f->blk - G.slots.data()) * f->blk->n + f->index);
}

void enter(fiber *f, void **save) {
    count.switches++;
    self = f;
#if defined(SIMT_TSAN)
    __tsan_switch_to_fiber(f->sanitizer, __tsan_switch_to_fiber_no_sync);
    simt_switch(save, f->sp);
#elif defined(__SANITIZE_ADDRESS__)
    void *fake;
    __sanitizer_start_switch_fiber(&fake, stack_of(f), STACK);
    simt_switch(save, f->sp);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    simt_switch(save, f->sp);
#endif
}

/* For good: the thread has returned. */
void leave_to_main() {
    void *dropped;
#if defined(SIMT_TSAN)
    __tsan_switch_to_fiber(G.main_fiber, __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, G.main_stack, G.main_size);
#endif
    simt_switch(&dropped, G.main_sp);
}

void order_before(void *p) {
#if defined(SIMT_TSAN)
    __tsan_release(p);
#else
    (void)p;
#endif
}

void order_after(void *p) {
#if defined(SIMT_TSAN)
    __tsan_acquire(p);
#else
    (void)p;
#endif
}

/* ---- the queue ---- */

void wake(fiber *f) {
    f->state = RUNNABLE;
    G.ready[(G.head + G.n_ready++) % G.ready.size()] = f;
    G.idle = 0;
}

fiber *take_next() {
    if (!G.n_ready) return nullptr;
    fiber **first = &G.ready[G.head];
    if (opt.seed) std::swap(*first, G.ready[(G.head + random_below((uint32_t)G.n_ready)) % G.ready.size()]);
    G.head = (G.head + 1) % G.ready.size();
    G.n_ready--;
    return *first;
}

const char *wait_name(wait w) {
    static const char *const name[] = { "running", "waiting for memory to change", "waiting at a block barrier", "waiting in a warp operation", "returned" };
    return name[w];
}

[[noreturn]] void report_deadlock() {
    fprintf(stderr, "simt: deadlock:\n");
    for (const block &b : G.slots) {
        for (size_t i = 0; i < b.fibers.size() && b.live;) {
            const fiber &f = b.fibers[i];
            size_t j = i + 1;
            while (j < b.fibers.size() && b.fibers[j].state == f.state && b.fibers[j].at.line == f.at.line) j++;
            fprintf(stderr, "  block (%u,%u,%u), threads %zu to %zu: %s", b.bid.x, b.bid.y, b.bid.z, i, j - 1, wait_name(f.state));
            if (f.state != FINISHED) fprintf(stderr, " at %s:%d", f.at.file, f.at.line);
            fprintf(stderr, "\n");
            i = j;
        }
    }
    abort();
}

/* The running thread waits; whoever can run does. */
void run_others() {
    fiber *me = self, *next = take_next();
    if (!next) report_deadlock();
    if (next != me) enter(next, &me->sp);
}

/* ---- life of a thread ---- */

void release_barrier(block *b) {
    b->arrived = 0;
    b->epoch++;
    count.barriers++;
    for (fiber &f : b->fibers)
        if (f.state == AT_BARRIER) wake(&f);
}

void release_warp(block *b, warp *w) {
    w->arrived = 0;
    w->epoch++;
    fiber *lane = &b->fibers[(size_t)(w - b->warps.data()) * WARP];
    for (unsigned i = 0; i < w->n; i++)
        if (lane[i].state == AT_WARP_OP) wake(&lane[i]);
}

/* A thread that returned takes part in no barrier: those that wait may have been waiting for it. */
void finish() {
    fiber *me = self;
    block *b = me->blk;
    warp *w = &b->warps[me->warp];
    if (me->n_copies) fail("thread %u returns with asynchronous copies nobody waited for", me->index);
    me->state = FINISHED;
    G.idle = 0;
    b->live--;
    w->live &= ~(1u << me->lane);
    if (b->live && b->arrived == b->live) release_barrier(b);
    if (w->arrived && w->arrived == (w->mask & w->live)) fail("a lane returned that others wait for at %s:%d", w->at.file, w->at.line);
    if (!b->live) G.over = b;
}

void thread_main() {
#if defined(__SANITIZE_ADDRESS__)
    const bool first = G.main_size == 0; /* of the grid: it was entered from there */
    __sanitizer_finish_switch_fiber(nullptr, first ? &G.main_stack : nullptr, first ? &G.main_size : nullptr);
#endif
#if defined(SIMT_TSAN)
    order_after(&G.begun);
    order_after(&self->blk->turn[self->blk->nth & 1]); /* the block that had the slot before */
#endif
    (*G.body)();
#if defined(SIMT_TSAN)
    order_before(&G.ended);
    order_before(&self->blk->turn[~self->blk->nth & 1]);
#endif
    finish();
    leave_to_main();
    abort(); /* not reached: nobody enters a thread that returned */
}

#if defined(SIMT_TSAN)
/* They cost a millisecond each to make, so they are kept: the blocks of one slot are ordered, one after the other, and a race
 * between blocks shows between slots. */
void *tsan_fiber(size_t i) {
    while (G.tsan_fibers.size() <= i) G.tsan_fibers.push_back(__tsan_create_fiber(0));
    return G.tsan_fibers[i];
}
#endif

void make_ready(fiber *f) {
    const size_t stagger = (f->index * 7 & 63) * 64; /* tops of many stacks in one cache set are slow */
    uintptr_t *sp = (uintptr_t *)((uintptr_t)(stack_of(f) + STACK - 64 - stagger) & ~(uintptr_t)63);
    *--sp = 0;
    *--sp = (uintptr_t)thread_main;
    sp -= 6;
    memset(sp, 0, 48);
    f->sp = sp;
    f->n_copies = f->group = 0;
#if defined(SIMT_TSAN)
    f->sanitizer = tsan_fiber((size_t)(f->blk - G.slots.data()) * f->blk->n + f->index);
#endif
    wake(f);
}

uint3 block_at(dim3 g, uint32_t i) {
    return { i % g.x, i / g.x % g.y, i / g.x / g.y };
}

/* Not by memset, which ThreadSanitizer would take for a write of the program. */
void poison(unsigned char *p, size_t n) {
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0xff) : "memory");
}

void start_block(block *b, dim3 gdim, dim3 bdim) {
    b->bid = block_at(gdim, G.order[G.next++]);
    b->live = b->n;
    b->arrived = 0;
    b->nth++;
    poison(b->smem, b->smem_bytes);
    for (size_t i = 0; i < b->warps.size(); i++) {
        warp *w = &b->warps[i];
        w->n = std::min<unsigned>(WARP, b->n - (unsigned)i * WARP);
        w->live = w->n == WARP ? ~0u : (1u << w->n) - 1;
        w->arrived = 0;
    }
    for (unsigned i = 0; i < b->n; i++) {
        fiber *f = &b->fibers[i];
        f->lane = i % WARP;
        f->warp = i / WARP;
        f->tid = { i % bdim.x, i / bdim.x % bdim.y, i / bdim.x / bdim.y };
        make_ready(f);
    }
    G.running++;
    count.blocks++;
}

/* ---- memory of a grid ---- */

void reserve(size_t n_fibers, size_t n_slots, size_t smem_bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), stride = (smem_bytes + page - 1) / page * page + page;
    if (n_fibers > G.n_stacks) {
        if (G.stacks) munmap(G.stacks, STACK * G.n_stacks);
        G.stacks = (char *)mmap(nullptr, STACK * n_fibers, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (G.stacks == MAP_FAILED) fail("no memory for %zu stacks", n_fibers);
        G.n_stacks = n_fibers;
    }
    if (stride == G.arena_stride && n_slots <= G.arena_slots) return;
    if (G.arena) munmap(G.arena, G.arena_stride * G.arena_slots);
    G.arena = (unsigned char *)mmap(nullptr, stride * n_slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (G.arena == MAP_FAILED) fail("no memory for shared memory");
    for (size_t i = 0; i < n_slots; i++) mprotect(G.arena + (i + 1) * stride - page, page, PROT_NONE);
    G.arena_stride = stride;
    G.arena_slots = n_slots;
}

void draw_order(uint32_t n_blocks) {
    G.order.resize(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) G.order[i] = i;
    if (!opt.seed) return;
    for (uint32_t i = n_blocks; i > 1; i--) std::swap(G.order[i - 1], G.order[random_below(i)]);
}

void set_up(dim3 gdim, dim3 bdim, size_t smem_bytes, size_t n_slots) {
    const unsigned n = bdim.x * bdim.y * bdim.z;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    smem_bytes = (smem_bytes + 127) & ~(size_t)127; /* the start is aligned to 128 bytes and the end to the guard page */
    reserve(n * n_slots, n_slots, smem_bytes);
    G.slots.resize(n_slots);
    for (size_t i = 0; i < n_slots; i++) {
        block *b = &G.slots[i];
        b->bdim = bdim;
        b->gdim = gdim;
        b->n = n;
        b->live = 0;
        b->fibers.resize(n);
        for (unsigned j = 0; j < n; j++) b->fibers[j].blk = b, b->fibers[j].index = j;
        b->warps.resize((n + WARP - 1) / WARP);
        b->smem = G.arena + (i + 1) * G.arena_stride - page - smem_bytes;
        b->smem_bytes = smem_bytes;
    }
    G.ready.resize(n * n_slots);
    G.head = G.n_ready = G.next = G.running = 0;
    G.idle = 0;
    draw_order(gdim.x * gdim.y * gdim.z);
}

} // namespace

/* ---- public ---- */

void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "simt: ");
    vfprintf(stderr, format, args);
    if (self)
        fprintf(stderr, " [block (%u,%u,%u), thread %u]", self->blk->bid.x, self->blk->bid.y, self->blk->bid.z, self->index);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

uint32_t random_below(uint32_t n) {
    static uint32_t last_seed;
    if (last_seed != opt.seed) G.rng = (last_seed = opt.seed) * 2654435761u | 1;
    G.rng ^= G.rng << 13;
    G.rng ^= G.rng >> 17;
    G.rng ^= G.rng << 5;
    return (uint32_t)(((uint64_t)G.rng * n) >> 32);
}

void run_grid(dim3 gdim, dim3 bdim, size_t smem_bytes, bool cooperative, const std::function<void()> &body) {
    const size_t n_blocks = (size_t)gdim.x * gdim.y * gdim.z;
    if (self) fail("a kernel launches a kernel");
    set_up(gdim, bdim, smem_bytes, cooperative ? n_blocks : std::min<size_t>(n_blocks, opt.resident));
    G.body = &body;
    count.launches++;
#if defined(__SANITIZE_ADDRESS__)
    G.main_size = 0;
#endif
#if defined(SIMT_TSAN)
    G.main_fiber = __tsan_get_current_fiber();
    order_before(&G.begun);
#endif
    for (block &b : G.slots) start_block(&b, gdim, bdim);
    while (G.running) {
        fiber *f = take_next();
        if (!f) report_deadlock();
        G.over = nullptr;
        enter(f, &G.main_sp);
        self = nullptr;
        if (!G.over) continue;
        G.running--;
        if (G.next < n_blocks) start_block(G.over, gdim, bdim);
    }
#if defined(SIMT_TSAN)
    order_after(&G.ended);
#endif
}

void block_barrier(site at) {
    fiber *me = self;
    block *b = me->blk;
    if (b->arrived && (b->at.line != at.line || strcmp(b->at.file, at.file)))
        fail("threads of a block meet in different barriers: %s:%d and %s:%d", b->at.file, b->at.line, at.file, at.line);
    me->at = b->at = at;
    order_before(b);
    if (++b->arrived == b->live) {
        release_barrier(b);
        if (opt.seed) wake(me);
    } else {
        me->state = AT_BARRIER;
    }
    if (me->state == AT_BARRIER || opt.seed) run_others();
    order_after(b);
}

uint64_t (*warp_exchange(const uint64_t *mine, unsigned n, uint32_t mask, site at, warp_fn last))[MAX_WORDS] {
    fiber *me = self;
    warp *w = &me->blk->warps[me->warp];
    uint64_t(*slot)[MAX_WORDS] = w->slot[w->epoch & 1];
    /* A warp that is not full has fewer lanes than its mask names, as on the hardware. */
    mask &= w->n == WARP ? ~0u : (1u << w->n) - 1;
    if (!(mask >> me->lane & 1)) fail("lane %u is not in the mask %08x of its warp operation at %s:%d", me->lane, mask, at.file, at.line);
    if (mask & ~w->live) fail("mask %08x names lanes that returned, at %s:%d", mask, at.file, at.line);
    if (w->arrived && (w->mask != mask || w->at.line != at.line || strcmp(w->at.file, at.file)))
        fail("lanes of a warp meet in different operations: %s:%d mask %08x and %s:%d mask %08x", w->at.file, w->at.line, w->mask, at.file, at.line, mask);
    me->at = w->at = at;
    w->mask = mask;
    for (unsigned i = 0; i < n; i++) slot[me->lane][i] = mine[i];
    order_before(w);
    w->arrived |= 1u << me->lane;
    if (w->arrived == mask) {
        order_after(w);
        if (last) last(slot, mask);
        order_before(w);
        release_warp(me->blk, w);
        if (opt.seed) wake(me);
    } else {
        me->state = AT_WARP_OP;
    }
    if (me->state == AT_WARP_OP || opt.seed) run_others();
    order_after(w);
    return slot;
}

/* A thread that polls memory lets the others run. When all of them only poll and nobody ever gets ahead, they would for ever. */
void yield_spinning(site at) {
    fiber *me = self;
    me->at = at;
    if (++G.idle > 1000 + 64 * (uint64_t)G.slots.size() * me->blk->n) {
        me->state = SPINNING;
        report_deadlock();
    }
    const uint64_t idle = G.idle;
    wake(me);
    G.idle = idle;
    run_others();
}

/* The bytes arrive when they are waited for and not before; until then the destination is poisoned. */
void cp_async(void *dst, const void *src, size_t size, size_t n_read, site at) {
    fiber *me = self;
    check_aligned(dst, size, at);
    check_aligned(src, n_read ? size : 1, at);
    if (me->n_copies == MAX_COPIES) fail("more than %d asynchronous copies of a thread in flight, %s:%d", MAX_COPIES, at.file, at.line);
    memset(dst, 0xff, size);
    me->copies[me->n_copies++] = { dst, src, size, n_read, me->group };
}

void cp_async_commit() { self->group++; }

/* Until at most n_left of the committed groups are still on their way; what is not committed is not waited for. */
void cp_async_wait(unsigned n_left) {
    fiber *me = self;
    unsigned done = 0;
    for (; done < me->n_copies && me->copies[done].group + n_left < me->group; done++) {
        const async_copy *c = &me->copies[done];
        memcpy(c->dst, c->src, c->n_read);
        memset((char *)c->dst + c->n_read, 0, c->size - c->n_read);
    }
    me->n_copies -= done;
    for (unsigned i = 0; i < me->n_copies; i++) me->copies[i] = me->copies[i + done];
}

} // namespace simt
