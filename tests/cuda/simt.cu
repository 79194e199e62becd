/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the emulated device itself: that it computes what the hardware's definitions say, and that each kind of bug it is
 * there for is found when it is put in on purpose. */
#include "rig.h"

#include "dead.h"

#if defined(__SANITIZE_THREAD__)
static const bool RACES = true;
#else
static const bool RACES = false;
#endif

template <class... P, class... A> static void run(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, A... args) {
    if (launch(kernel, grid, block, smem, stream_of_test(), args...) != ST_OK) abort();
    settle();
}

/* ---- what it computes ---- */

static __global__ void reverse_kernel(const int *x, int *y, unsigned n) {
    int *s = shared_memory<int>();
    const unsigned i = threadIdx.x;
    s[i] = x[blockIdx.x * n + i];
    __syncthreads();
    y[blockIdx.x * n + i] = s[n - 1 - i];
}

TEST(threads_meet_at_barriers) {
    const unsigned n = 256, blocks = 7;
    std::vector<int> x(n * blocks);
    for (unsigned i = 0; i < x.size(); i++) x[i] = (int)(i * 2654435761u);
    device_array<int> dx(x), dy(x.size());
    for (simt::opt.seed = 0; simt::opt.seed < 20; simt::opt.seed++) {
        simt::opt.resident = 1 + simt::opt.seed % 3;
        run(reverse_kernel, blocks, n, n * sizeof(int), (const int *)dx.p, dy.p, n);
        const std::vector<int> y = dy.get();
        for (unsigned i = 0; i < y.size(); i++) CHECK(y[i] == x[i / n * n + n - 1 - i % n]);
    }
    simt::opt = { 0, 1 };
}

static __global__ void warp_kernel(unsigned *out) {
    const unsigned l = threadIdx.x;
    unsigned *o = out + l * 8;
    o[0] = __shfl_xor_sync(ALL_LANES, l * 3, 5);
    o[1] = __shfl_up_sync(ALL_LANES, l * 3, 3);
    o[2] = __shfl_down_sync(ALL_LANES, l * 3, 3);
    o[3] = __shfl_sync(ALL_LANES, l * 3, 2, 8);
    o[4] = __ballot_sync(ALL_LANES, l % 3 == 0);
    o[5] = __match_any_sync(ALL_LANES, l % 4);
    o[6] = (unsigned)warp_sum((float)l);
    o[7] = (unsigned)(__any_sync(ALL_LANES, l == 31) + 2 * __all_sync(ALL_LANES, l != 31));
}

TEST(warp_operations_as_defined) {
    device_array<unsigned> out(32 * 8);
    run(warp_kernel, 1, 32, 0, out.p);
    const std::vector<unsigned> got = out.get();
    for (unsigned l = 0; l < 32; l++) {
        const unsigned *o = &got[l * 8];
        CHECK(o[0] == (l ^ 5) * 3 && o[1] == (l < 3 ? l : l - 3) * 3 && o[2] == (l + 3 > 31 ? l : l + 3) * 3);
        CHECK(o[3] == (l / 8 * 8 + 2) * 3 && o[4] == 0x49249249u && o[5] == 0x11111111u << l % 4 && o[6] == 496 && o[7] == 1);
    }
}

/* One warp, A [16, K] and B [8, K] row by row in memory; fragments are loaded by hand from the definition, and by ldmatrix. */
static __global__ void mma_kernel(const unsigned char *a, const unsigned char *b, float *d, int *di, unsigned char *loaded_same) {
    struct tile { unsigned char a[16][32], b[8][32]; } *s = shared_memory<tile>();
    const unsigned l = threadIdx.x, g = l / 4, t = l % 4;
    for (unsigned i = l; i < 16 * 32; i += 32) s->a[i / 32][i % 32] = a[i];
    for (unsigned i = l; i < 8 * 32; i += 32) s->b[i / 32][i % 32] = b[i];
    __syncwarp();
    uint32_t fa[4], fb[2], la[4], lb[2];
    for (unsigned i = 0; i < 4; i++) memcpy(&fa[i], &s->a[g + i % 2 * 8][i / 2 * 16 + t * 4], 4);
    for (unsigned i = 0; i < 2; i++) memcpy(&fb[i], &s->b[g][i * 16 + t * 4], 4);
    ptx_ldmatrix_x4(la, &s->a[l % 16][l / 16 * 16]);
    ptx_ldmatrix_x2(lb, &s->b[l % 8][l / 8 % 2 * 16]);
    loaded_same[l] = memcmp(fa, la, sizeof fa) == 0 && memcmp(fb, lb, sizeof fb) == 0;
    float f[4] = { 1, 2, 3, 4 };
    int n[4] = { 1, 2, 3, 4 };
    ptx_mma_bf16(f, fa, fb);
    ptx_mma_s8(n, fa, fb);
    for (unsigned i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = f[i];
        di[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = n[i];
    }
}

TEST(matrix_instructions_as_defined) {
    unsigned char a[16 * 32], b[8 * 32];
    for (unsigned i = 0; i < 16 * 16; i++) { /* small integers, as bf16 exact: sums have no rounding */
        const __nv_bfloat16 v = __float2bfloat16_rn((float)(int)(i * 7 % 13) - 6);
        memcpy(a + i * 2, &v, 2);
    }
    for (unsigned i = 0; i < 8 * 16; i++) {
        const __nv_bfloat16 v = __float2bfloat16_rn((float)(int)(i * 5 % 11) - 5);
        memcpy(b + i * 2, &v, 2);
    }
    device_array<unsigned char> da(std::vector<unsigned char>(a, a + sizeof a)), db(std::vector<unsigned char>(b, b + sizeof b)), same(32);
    device_array<float> d(128);
    device_array<int> di(128);
    run(mma_kernel, 1, 32, 1024, (const unsigned char *)da.p, (const unsigned char *)db.p, d.p, di.p, same.p);
    const std::vector<float> got = d.get();
    const std::vector<int> goti = di.get();
    for (unsigned char ok : same.get()) CHECK(ok);
    for (unsigned r = 0; r < 16; r++) {
        for (unsigned c = 0; c < 8; c++) {
            const unsigned start = 1 + c % 2 + r / 8 * 2;
            float f = (float)start;
            int n = (int)start;
            for (unsigned k = 0; k < 16; k++) {
                __nv_bfloat16 x, y;
                memcpy(&x, a + (r * 16 + k) * 2, 2);
                memcpy(&y, b + (c * 16 + k) * 2, 2);
                f += __bfloat162float(x) * __bfloat162float(y);
            }
            for (unsigned k = 0; k < 32; k++) n += (signed char)a[r * 32 + k] * (signed char)b[c * 32 + k];
            CHECKF(got[r * 8 + c] == f && goti[r * 8 + c] == n, "row %u column %u: %g %d, want %g %d", r, c, (double)got[r * 8 + c], goti[r * 8 + c], (double)f, n);
        }
    }
}

static __global__ void trans_kernel(unsigned short *out) {
    unsigned short *s = shared_memory<unsigned short>(); /* [8, 8], row by row */
    const unsigned l = threadIdx.x;
    for (unsigned i = l; i < 64; i += 32) s[i] = (unsigned short)i;
    __syncwarp();
    uint32_t r[2];
    ptx_ldmatrix_x2_trans(r, s + l % 8 * 8);
    out[l * 2] = (unsigned short)r[0];
    out[l * 2 + 1] = (unsigned short)(r[0] >> 16);
}

TEST(ldmatrix_transposes) {
    device_array<unsigned short> out(64);
    run(trans_kernel, 1, 32, 128, out.p);
    const std::vector<unsigned short> got = out.get();
    for (unsigned l = 0; l < 32; l++)
        for (unsigned j = 0; j < 2; j++) CHECK(got[l * 2 + j] == (l % 4 * 2 + j) * 8 + l / 4);
}

TEST(half_conversions_are_the_hardware_s) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const float f = __half2float({ (uint16_t)bits });
        if (f != f) continue;
        CHECKF(__float2half_rn(f).bits == bits, "%04x", bits);
        if ((bits & 0x7fff) >= 0x7bff) continue;
        const float next = __half2float({ (uint16_t)(bits + 1) }), mid = f + (next - f) / 2; /* exact: ties go to the even one */
        CHECKF(__float2half_rn(mid).bits == (bits & 1 ? bits + 1 : bits), "%04x and the next", bits);
    }
}

/* ---- seeded bugs ---- */

static __global__ void no_barrier_kernel(const int *x, int *y, unsigned n) {
    int *s = shared_memory<int>();
    const unsigned i = threadIdx.x;
    s[i] = x[i];
    y[i] = s[n - 1 - i];
}

static void missing_barrier() {
    std::vector<int> x(64, 1);
    device_array<int> dx(x), dy(64);
    run(no_barrier_kernel, 1, 64, 256, (const int *)dx.p, dy.p, 64u);
    for (int v : dy.get())
        if (v != 1) simt::fail("read what nobody wrote");
}

TEST(missing_barrier_is_found) {
    if (RACES)
        DIES_SAYING(missing_barrier, "data race", "no_barrier_kernel");
    else
        DIES_SAYING(missing_barrier, "read what nobody wrote");
}

static __global__ void no_wait_kernel(const int *x, int *y) {
    int *s = shared_memory<int>();
    ptx_cp_async16(s + threadIdx.x * 4, x + threadIdx.x * 4, true);
    ptx_cp_async_commit();
    const int early = s[threadIdx.x * 4];
    ptx_cp_async_wait<0>();
    y[threadIdx.x] = early;
}

static void missing_wait() {
    std::vector<int> x(128, 1);
    device_array<int> dx(x), dy(32);
    run(no_wait_kernel, 1, 32, 512, (const int *)dx.p, dy.p);
    for (int v : dy.get())
        if (v != 1) simt::fail("read before the copy");
}

TEST(missing_wait_for_a_copy_is_found) { DIES_SAYING(missing_wait, "read before the copy"); }

static __global__ void never_waits_kernel(const int *x) {
    int *s = shared_memory<int>();
    ptx_cp_async16(s + threadIdx.x * 4, x + threadIdx.x * 4, true);
}

static void copy_left_behind() {
    device_array<int> dx(128);
    run(never_waits_kernel, 1, 32, 512, (const int *)dx.p);
}

TEST(copy_nobody_waits_for_is_found) { DIES_SAYING(copy_left_behind, "nobody waited for"); }

static __global__ void half_barrier_kernel() {
    if (threadIdx.x < 32) __syncthreads();
    else (void)__shfl_sync(ALL_LANES, 0, 0), ptx_spin_until([] { return false; });
}

static void deadlock() { run(half_barrier_kernel, 1, 64, 0); }

TEST(deadlock_is_reported_with_lines) { DIES_SAYING(deadlock, "deadlock", "threads 0 to 31: waiting at a block barrier at", "simt.cu:", "waiting for memory to change"); }

static __global__ void two_barriers_kernel() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static void different_barriers() { run(two_barriers_kernel, 1, 64, 0); }

TEST(different_barriers_are_found) { DIES_SAYING(different_barriers, "different barriers"); }

static __global__ void diverged_kernel(int *y) {
    if (threadIdx.x % 2)
        y[threadIdx.x] = __shfl_sync(ALL_LANES, 1, 0);
    else
        y[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 2, 1);
}

static void diverged_warp() {
    device_array<int> y(32);
    run(diverged_kernel, 1, 32, 0, y.p);
}

TEST(diverged_warp_is_found) { DIES_SAYING(diverged_warp, "different operations"); }

static __global__ void early_return_kernel(int *y) {
    if (threadIdx.x == 5) return;
    y[threadIdx.x] = __shfl_sync(ALL_LANES, 1, 5);
}

static void lane_returned() {
    device_array<int> y(32);
    run(early_return_kernel, 1, 32, 0, y.p);
}

TEST(lane_that_returned_is_found) { DIES_SAYING(lane_returned, "returned"); }

static __global__ void misaligned_kernel(const float *x, float *y) {
    const float4 v = *(const float4 *)(x + 1);
    y[threadIdx.x] = v.x;
}

static void misaligned_load() {
    device_array<float> x(64), y(32);
    run(misaligned_kernel, 1, 32, 0, (const float *)x.p, y.p);
}

static __global__ void misaligned_copy_kernel(const float *x) {
    ptx_cp_async16(shared_memory<float>(), x + 1, true);
    ptx_cp_async_commit();
    ptx_cp_async_wait<0>();
}

static void misaligned_copy() {
    device_array<float> x(64);
    run(misaligned_copy_kernel, 1, 1, 64, (const float *)x.p);
}

TEST(misaligned_load_is_found) {
    DIES_SAYING(misaligned_load, "alignment", "simt.cu:");
    DIES_SAYING(misaligned_copy, "misaligned access", "simt.cu:");
}

static __global__ void overrun_kernel(unsigned n) {
    volatile int *s = shared_memory<int>();
    s[n] = 1;
}

static void shared_overrun() { run(overrun_kernel, 1, 1, 128, 32u); }

static __global__ void write_at_kernel(volatile int *p, size_t i) { p[i] = 1; }

static void device_overrun() {
    device_array<int> x(64);
    run(write_at_kernel, 1, 1, 0, (volatile int *)x.p, (size_t)64);
}

TEST(overruns_are_found) {
    DIES_SAYING(shared_overrun, "");
    DIES_SAYING(device_overrun, "");
}

/* Blocks of a cooperative launch wait for each other; the same kernel in an ordinary launch is a deadlock. */
static __global__ void meet_kernel(uint32_t *n, uint32_t *out) {
    if (threadIdx.x == 0) {
        ptx_add_release(n, 1);
        ptx_spin_until([&] { return ptx_load_acquire(n) == gridDim.x; });
        out[blockIdx.x] = 1;
    }
}

static cudaError_t meet(bool cooperative) {
    device_array<uint32_t> n(std::vector<uint32_t>(1, 0)), out(5);
    cudaLaunchAttribute attr;
    attr.id = cudaLaunchAttributeCooperative;
    attr.val.cooperative = cooperative;
    cudaLaunchConfig_t c = {};
    c.gridDim = 5;
    c.blockDim = 32;
    c.stream = (cudaStream_t)stream_of_test();
    c.attrs = &attr;
    c.numAttrs = 1;
    const cudaError_t e = cudaLaunchKernelEx(&c, meet_kernel, n.p, out.p);
    for (uint32_t v : out.get())
        if (v != 1) return cudaErrorInvalidValue;
    return e;
}

static void meet_alone() { meet(false); }

TEST(blocks_meet_only_in_a_cooperative_launch) {
    CHECK(meet(true) == cudaSuccess);
    DIES_SAYING(meet_alone, "deadlock", "waiting for memory to change");
}

/* The order of blocks shows in a sum of floats by atomics: seeds must be able to tell. */
static __global__ void atomic_sum_kernel(const float *x, float *sum) { atomicAdd(sum, x[blockIdx.x]); }

TEST(seeds_change_the_order_of_blocks) {
    std::vector<float> x(64);
    for (unsigned i = 0; i < 64; i++) x[i] = ldexpf(1.0f, (int)(i % 2 ? 24 : 0)) + (float)i;
    device_array<float> dx(x);
    std::vector<float> sums;
    for (simt::opt.seed = 0; simt::opt.seed < 10; simt::opt.seed++) {
        device_array<float> sum(std::vector<float>(1, 0));
        run(atomic_sum_kernel, 64, 1, 0, (const float *)dx.p, sum.p);
        sums.push_back(sum.get()[0]);
    }
    simt::opt = { 0, 1 };
    bool differ = false;
    for (float s : sums) differ |= s != sums[0];
    CHECK(differ);
}

int main() {
    RUN(threads_meet_at_barriers);
    RUN(warp_operations_as_defined);
    RUN(matrix_instructions_as_defined);
    RUN(ldmatrix_transposes);
    RUN(half_conversions_are_the_hardware_s);
    RUN(missing_barrier_is_found);
    RUN(missing_wait_for_a_copy_is_found);
    RUN(copy_nobody_waits_for_is_found);
    RUN(deadlock_is_reported_with_lines);
    RUN(different_barriers_are_found);
    RUN(diverged_warp_is_found);
    RUN(lane_that_returned_is_found);
    RUN(misaligned_load_is_found);
    RUN(overruns_are_found);
    RUN(blocks_meet_only_in_a_cooperative_launch);
    RUN(seeds_change_the_order_of_blocks);
    return test_failed_;
}
