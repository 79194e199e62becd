/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the emulated runtime share. */
#ifndef MOED_TESTS_SIMT_RUNTIME_H
#define MOED_TESTS_SIMT_RUNTIME_H

#include <memory>
#include <mutex>

#include "include/cuda_runtime.h"
#include "stream.h"

namespace simt {

enum capture_rule { NO_CAPTURE, ANY_TIME };

/* One call of the API: takes the lock, lets the device get on a little (RANDOM), refuses what a capture forbids. */
struct api_call {
    explicit api_call(capture_rule rule);
    cudaError_t refused;
    cudaError_t error(cudaError_t e); /* remembers it for cudaGetLastError */
    std::lock_guard<std::recursive_mutex> lock;
};

enum engine { NO_ENGINE, COMPUTE, TO_DEVICE, TO_HOST, N_ENGINES };

struct node {
    std::function<void()> begin, end; /* may be empty */
    enum engine engine;
    double us;                        /* modelled duration */
    std::vector<std::shared_ptr<node>> after;
    enum { WAITING, STARTED, DONE } state;
    double issued, finish;            /* microseconds, TIMED */
};
typedef std::shared_ptr<node> node_ref;

void drain_until(const node_ref &n);
void drain_all();
size_t device_bytes_now();
size_t pinned_bytes_now();

} // namespace simt

#endif
