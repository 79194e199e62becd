/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of device kernels share: one stream, arrays on the device, launches on the emulated device in many orders. */
#ifndef MOED_TESTS_CUDA_RIG_H
#define MOED_TESTS_CUDA_RIG_H

extern "C" {
#include "kernels/kernels.h"
}

#include "kernels/cuda/device.cuh"

#include <cstdlib>
#include <vector>

#include "tests/simt/stream.h"
#include "tests/unit/kernels_rand.h"
#include "tests/unit/test.h"

static inline kern_stream stream_of_test() {
    static cudaStream_t s;
    if (!s && cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess) abort();
    return (kern_stream)s;
}

static inline void settle() {
    if (cudaStreamSynchronize((cudaStream_t)stream_of_test()) != cudaSuccess) abort();
}

/* n elements on the device, poisoned or a copy of the host's; zero elements have no memory. */
template <class T> struct device_array {
    T *p;
    size_t n;
    explicit device_array(size_t count) : p(nullptr), n(count) {
        if (n && cudaMalloc((void **)&p, n * sizeof(T)) != cudaSuccess) abort();
    }
    explicit device_array(const std::vector<T> &from) : device_array(from.size()) { set(from); }
    device_array(const device_array &) = delete;
    ~device_array() { cudaFree(p); }
    void set(const std::vector<T> &v) {
        if (cudaMemcpyAsync(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice, (cudaStream_t)stream_of_test()) != cudaSuccess) abort();
        settle();
    }
    std::vector<T> get() const {
        std::vector<T> v(n);
        if (cudaMemcpyAsync(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, (cudaStream_t)stream_of_test()) != cudaSuccess) abort();
        settle();
        return v;
    }
};

/* Rounds of a random test: ThreadSanitizer slows a thread down 50 times. */
static inline uint32_t rounds(uint32_t n) {
#if defined(__SANITIZE_THREAD__)
    return n / 40 + 1;
#else
    return n;
#endif
}

/* Threads and blocks in another order each time; 0 is the plain one. */
static inline void order_of_round(uint32_t round) { simt::opt = { round, 1 + round % 3 }; }

#endif
