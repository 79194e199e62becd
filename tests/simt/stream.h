/* SPDX-License-Identifier: Apache-2.0
 *
 * When asynchronous work of the emulated device happens. Streams, event waits and graphs become one directed graph of
 * nodes; a mode decides which of those that may run does:
 *
 *   EAGER   as soon as it is issued; the order of the program
 *   RANDOM  any order that streams and events allow, drawn from options.seed, a little at every call of the runtime and the
 *           rest when the host waits. A copy is two steps: at the first the destination is poisoned, at the second the bytes
 *           come, and they are read from the source at either. What a missing event or an early reuse would break, breaks here.
 *   TIMED   a model of one compute engine and a copy engine each way, in microseconds; events carry times
 *
 * Copies from pageable host memory hold up the host, as in CUDA. */
#ifndef MOED_TESTS_SIMT_STREAM_H
#define MOED_TESTS_SIMT_STREAM_H

#include <cstddef>
#include <cstdint>

namespace simt {

enum mode { EAGER, RANDOM, TIMED };

struct device_model {
    enum mode mode;
    size_t vram_bytes;          /* cudaMalloc fails beyond                 */
    unsigned n_sms;
    size_t smem_per_block;      /* at most, after cudaFuncSetAttribute     */
    double link_gbps, copy_us;  /* each way, and per copy                  */
    double issue_us;            /* host time of one asynchronous call      */
    double kernel_us, block_us; /* a kernel: kernel_us + blocks * block_us / n_sms, unless kernel_cost says otherwise */
};
extern device_model device;

/* The modelled duration of one kernel, by its entry. */
void kernel_cost(const void *kernel, double us);

struct device_counters {
    uint64_t kernels, graph_launches, copies, pageable_copies, host_waits;
    size_t device_bytes, pinned_bytes; /* allocated at this moment */
};
device_counters device_count();
double device_now_us();  /* host clock of the TIMED mode */
void device_settle();    /* everything issued has happened; forgets errors and resets the clock */

/* Device memory, guard pages around it, poisoned. [p, p + size) lies in one allocation: */
bool is_device(const void *p, size_t size);
bool is_pinned(const void *p, size_t size);

} // namespace simt

#endif
