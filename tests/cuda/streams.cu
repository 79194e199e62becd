/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the emulated streams, events, copy engines and graphs: a right program gives the right answer in every legal
 * order, each kind of wrong one is caught, and the timed model shows overlap. The program is the one that streams experts:
 * per layer a copy into one of two slots and a kernel that reads it. */
#include "kernels/cuda/device.cuh"

#include "tests/unit/test.h"

#include <cstdlib>
#include <vector>

#include "tests/simt/stream.h"

enum { N = 4096, LAYERS = 16, SEEDS = 200 };

#define OK(call) CHECK((call) == cudaSuccess)

/* sum += the slot's words, in one thread: exact, and a poisoned word shows. */
static __global__ void add_kernel(const uint32_t *slot, uint64_t *sum, unsigned n) {
    for (unsigned i = 0; i < n; i++) *sum += slot[i];
}

enum bug { NONE, NO_ARRIVAL_WAIT, WRONG_EVENT, NO_REUSE_WAIT, STAGING_REUSED };

struct rig {
    cudaStream_t compute, copy;
    cudaEvent_t full[2], used[2];
    uint32_t *host, *staging, *slot[2];
    uint64_t *sum;
};

static void open_rig(rig *r) {
    cudaStreamCreateWithFlags(&r->compute, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&r->copy, cudaStreamNonBlocking);
    cudaHostAlloc((void **)&r->host, LAYERS * N * 4, cudaHostAllocDefault);
    cudaHostAlloc((void **)&r->staging, N * 4, cudaHostAllocDefault);
    cudaMalloc((void **)&r->sum, 8);
    for (int i = 0; i < 2; i++) {
        cudaMalloc((void **)&r->slot[i], N * 4);
        cudaEventCreateWithFlags(&r->full[i], 0);
        cudaEventCreateWithFlags(&r->used[i], 0);
    }
    for (uint32_t i = 0; i < LAYERS * N; i++) r->host[i] = i * 2654435761u >> 8;
}

static void close_rig(rig *r) {
    for (int i = 0; i < 2; i++) {
        cudaFree(r->slot[i]);
        cudaEventDestroy(r->full[i]);
        cudaEventDestroy(r->used[i]);
    }
    cudaFree(r->sum);
    cudaFreeHost(r->host);
    cudaFreeHost(r->staging);
    cudaStreamDestroy(r->compute);
    cudaStreamDestroy(r->copy);
}

static void copy_in(rig *r, int layer, bug b) {
    const uint32_t *from = r->host + layer * N;
    if (b == STAGING_REUSED) { /* the copy of the layer before may not have read it yet */
        memcpy(r->staging, from, N * 4);
        from = r->staging;
    }
    cudaMemcpyAsync(r->slot[layer & 1], from, N * 4, cudaMemcpyHostToDevice, r->copy);
}

static uint64_t walk_layers(rig *r, bug b) {
    cudaMemsetAsync(r->sum, 0, 8, r->compute);
    for (int l = 0; l < LAYERS; l++) {
        const int s = l & 1;
        if (l >= 2 && b != NO_REUSE_WAIT) cudaStreamWaitEvent(r->copy, r->used[s]);
        if (b == WRONG_EVENT) cudaEventRecord(r->full[s], r->copy);
        copy_in(r, l, b);
        if (b != WRONG_EVENT) cudaEventRecord(r->full[s], r->copy);
        if (b != NO_ARRIVAL_WAIT) cudaStreamWaitEvent(r->compute, r->full[s]);
        launch(add_kernel, 1, 1, 0, (kern_stream)r->compute, (const uint32_t *)r->slot[s], r->sum, (unsigned)N);
        cudaEventRecord(r->used[s], r->compute);
    }
    uint64_t *sum = (uint64_t *)r->staging, got;
    if (b == STAGING_REUSED) cudaStreamSynchronize(r->copy);
    cudaMemcpyAsync(sum, r->sum, 8, cudaMemcpyDeviceToHost, r->compute);
    cudaStreamSynchronize(r->compute);
    got = *sum;
    simt::device_settle();
    return got;
}

static uint64_t right_sum(const rig *r) {
    uint64_t sum = 0;
    for (int i = 0; i < LAYERS * N; i++) sum += r->host[i];
    return sum;
}

/* How many of the random orders give a wrong answer. */
static int wrong_orders(bug b) {
    rig r;
    int wrong = 0;
    open_rig(&r);
    simt::device.mode = simt::RANDOM;
    for (simt::opt.seed = 1; simt::opt.seed <= SEEDS; simt::opt.seed++) wrong += walk_layers(&r, b) != right_sum(&r);
    simt::opt.seed = 0;
    simt::device.mode = simt::EAGER;
    close_rig(&r);
    return wrong;
}

TEST(a_right_program_is_right_in_every_order) { CHECK(wrong_orders(NONE) == 0); }

#define CAUGHT(bug, at_least)                                          \
    do {                                                               \
        const int wrong_ = wrong_orders(bug);                          \
        CHECKF(wrong_ >= (at_least), "in %d of %d", wrong_, SEEDS);    \
    } while (0)

TEST(missing_wait_for_arrival_is_caught) { CAUGHT(NO_ARRIVAL_WAIT, SEEDS * 9 / 10); }
TEST(event_recorded_too_early_is_caught) { CAUGHT(WRONG_EVENT, SEEDS * 9 / 10); }
TEST(slot_overwritten_while_used_is_caught) { CAUGHT(NO_REUSE_WAIT, SEEDS * 9 / 10); }
TEST(staging_reused_too_early_is_caught) { CAUGHT(STAGING_REUSED, SEEDS * 9 / 10); }

/* 16 copies of 170 us beside 16 kernels of 170 us. */
TEST(timed_copies_overlap_with_kernels) {
    rig r;
    open_rig(&r);
    const double copy = simt::device.copy_us + N * 4 / (simt::device.link_gbps * 1e3);
    const simt::device_model was = simt::device;
    simt::device.link_gbps = N * 4 / (170.0 - was.copy_us) / 1e3;
    simt::device.mode = simt::TIMED;
    simt::kernel_cost((const void *)add_kernel, 170);
    CHECK(copy < 170);

    simt::device_settle();
    cudaEvent_t from, to;
    float ms, serial_ms;
    cudaEventCreateWithFlags(&from, 0);
    cudaEventCreateWithFlags(&to, 0);
    cudaEventRecord(from, r.compute);
    for (int l = 0; l < LAYERS; l++) {
        cudaMemcpyAsync(r.slot[0], r.host + l * N, N * 4, cudaMemcpyHostToDevice, r.compute);
        launch(add_kernel, 1, 1, 0, (kern_stream)r.compute, (const uint32_t *)r.slot[0], r.sum, (unsigned)N);
    }
    cudaEventRecord(to, r.compute);
    cudaEventSynchronize(to);
    OK(cudaEventElapsedTime(&serial_ms, from, to));

    cudaEventRecord(from, r.compute);
    for (int l = 0; l < LAYERS; l++) {
        if (l >= 2) cudaStreamWaitEvent(r.copy, r.used[l & 1]);
        copy_in(&r, l, NONE);
        cudaEventRecord(r.full[l & 1], r.copy);
        cudaStreamWaitEvent(r.compute, r.full[l & 1]);
        launch(add_kernel, 1, 1, 0, (kern_stream)r.compute, (const uint32_t *)r.slot[l & 1], r.sum, (unsigned)N);
        cudaEventRecord(r.used[l & 1], r.compute);
    }
    cudaEventRecord(to, r.compute);
    cudaEventSynchronize(to);
    OK(cudaEventElapsedTime(&ms, from, to));
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    simt::device = was;
    simt::device_settle();
    close_rig(&r);
    CHECKF(serial_ms > 5.4 && serial_ms < 5.6, "%g ms one after the other", (double)serial_ms);
    CHECKF(serial_ms / ms >= 1.8, "%g against %g ms", (double)serial_ms, (double)ms);
}

/* ---- graphs ---- */

static void capture_layers(rig *r, cudaGraphExec_t *x) {
    cudaGraph_t g;
    cudaStreamBeginCapture(r->compute, cudaStreamCaptureModeThreadLocal);
    cudaMemsetAsync(r->sum, 0, 8, r->compute);
    cudaEventRecord(r->used[0], r->compute); /* draws the copy stream in */
    cudaStreamWaitEvent(r->copy, r->used[0]);
    for (int l = 0; l < LAYERS; l++) {
        if (l >= 2) cudaStreamWaitEvent(r->copy, r->used[l & 1]);
        cudaMemcpyAsync(r->slot[l & 1], r->host + l * N, N * 4, cudaMemcpyHostToDevice, r->copy);
        cudaEventRecord(r->full[l & 1], r->copy);
        cudaStreamWaitEvent(r->compute, r->full[l & 1]);
        launch(add_kernel, 1, 1, 0, (kern_stream)r->compute, (const uint32_t *)r->slot[l & 1], r->sum, (unsigned)N);
        cudaEventRecord(r->used[l & 1], r->compute);
    }
    if (cudaStreamEndCapture(r->compute, &g) != cudaSuccess || cudaGraphInstantiate(x, g) != cudaSuccess) abort();
    cudaGraphDestroy(g);
}

TEST(graph_repeats_what_was_captured) {
    rig r;
    cudaGraphExec_t x;
    int wrong = 0;
    open_rig(&r);
    capture_layers(&r, &x);
    CHECK(simt::device_count().kernels == 0); /* capturing runs nothing */
    simt::device.mode = simt::RANDOM;
    for (simt::opt.seed = 1; simt::opt.seed <= 50; simt::opt.seed++) {
        r.host[simt::opt.seed] += simt::opt.seed; /* the graph reads memory as it is at the launch */
        for (int again = 0; again < 2; again++) {
            uint64_t *sum = (uint64_t *)r.staging;
            cudaGraphLaunch(x, r.compute);
            cudaMemcpyAsync(sum, r.sum, 8, cudaMemcpyDeviceToHost, r.compute);
            cudaStreamSynchronize(r.compute);
            wrong += *sum != right_sum(&r);
        }
    }
    simt::opt.seed = 0;
    simt::device.mode = simt::EAGER;
    simt::device_settle();
    cudaGraphExecDestroy(x);
    close_rig(&r);
    CHECKF(wrong == 0, "%d", wrong);
}

TEST(captures_refuse_what_cuda_refuses) {
    rig r;
    cudaGraph_t g;
    void *p;
    open_rig(&r);
    OK(cudaStreamBeginCapture(r.compute, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamSynchronize(r.compute) == cudaErrorStreamCaptureUnsupported);
    uint32_t pageable[4];
    CHECK(cudaMemcpyAsync(r.slot[0], pageable, 16, cudaMemcpyHostToDevice, r.compute) == cudaErrorStreamCaptureUnsupported);
    cudaEventRecord(r.full[0], r.compute);
    cudaStreamWaitEvent(r.copy, r.full[0]);
    cudaMemcpyAsync(r.slot[0], r.host, 16, cudaMemcpyHostToDevice, r.copy); /* and nobody waits for it */
    CHECK(cudaStreamEndCapture(r.compute, &g) == cudaErrorStreamCaptureUnjoined);
    close_rig(&r);
    simt::device_settle();
}

/* ---- what the API refuses ---- */

TEST(copies_are_checked) {
    rig r;
    open_rig(&r);
    CHECK(cudaMemcpyAsync(r.slot[0], r.host, N * 4 + 4, cudaMemcpyHostToDevice, r.copy) == cudaErrorInvalidValue); /* beyond the end */
    CHECK(cudaMemcpyAsync(r.slot[0], r.host, N * 4, cudaMemcpyDeviceToHost, r.copy) == cudaErrorInvalidValue);     /* wrong way */
    CHECK(cudaMemcpyAsync(r.host, r.slot[0], N * 4, cudaMemcpyHostToDevice, r.copy) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    std::vector<uint32_t> pageable(N, 7);
    const uint64_t before = simt::device_count().pageable_copies;
    simt::device.mode = simt::RANDOM;
    OK(cudaMemcpyAsync(r.slot[0], pageable.data(), N * 4, cudaMemcpyHostToDevice, r.copy));
    pageable.assign(N, 9); /* allowed: such a copy has read its source when it returns */
    OK(cudaMemcpyAsync(r.staging, r.slot[0], N * 4, cudaMemcpyDeviceToHost, r.copy));
    OK(cudaStreamSynchronize(r.copy));
    simt::device.mode = simt::EAGER;
    CHECK(r.staging[0] == 7 && simt::device_count().pageable_copies == before + 1);
    close_rig(&r);
}

TEST(launches_and_memory_are_bounded) {
    cudaStream_t s;
    void *p;
    size_t free_bytes, total;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    CHECK(launch(add_kernel, 1, 2048, 0, (kern_stream)s, (const uint32_t *)nullptr, (uint64_t *)nullptr, 0u) == ST_DEVICE);
    CHECK(launch(add_kernel, dim3(1, 70000), 32, 0, (kern_stream)s, (const uint32_t *)nullptr, (uint64_t *)nullptr, 0u) == ST_DEVICE);
    CHECK(launch(add_kernel, 1, 32, 100 << 10, (kern_stream)s, (const uint32_t *)nullptr, (uint64_t *)nullptr, 0u) == ST_DEVICE);
    OK(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    CHECK(launch(add_kernel, 1, 32, 100 << 10, (kern_stream)s, (const uint32_t *)nullptr, (uint64_t *)nullptr, 0u) == ST_OK);
    CHECK(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10) == cudaErrorInvalidValue);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(cudaMalloc(&p, free_bytes + 1) == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, free_bytes / 2));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes <= total / 2 + 1);
    OK(cudaFree(p));
    cudaStreamDestroy(s);
    CHECK(simt::device_count().device_bytes == 0);
}

int main() {
    RUN(a_right_program_is_right_in_every_order);
    RUN(missing_wait_for_arrival_is_caught);
    RUN(event_recorded_too_early_is_caught);
    RUN(slot_overwritten_while_used_is_caught);
    RUN(staging_reused_too_early_is_caught);
    RUN(timed_copies_overlap_with_kernels);
    RUN(graph_repeats_what_was_captured);
    RUN(captures_refuse_what_cuda_refuses);
    RUN(copies_are_checked);
    RUN(launches_and_memory_are_bounded);
    return test_failed_;
}
