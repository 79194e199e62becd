/* SPDX-License-Identifier: Apache-2.0
 *
 * Device and pinned memory: mapped with guard pages, ending at one, poisoned, and known by range, so that a copy in the
 * wrong direction or beyond an allocation is refused. */
#include "runtime.h"

#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace simt {

namespace {

struct range {
    size_t size;
    void *map; /* NULL: not ours (registered) */
    size_t map_size;
};
typedef std::map<uintptr_t, range> ranges;
ranges on_device, pinned;
size_t device_bytes, pinned_bytes;

bool holds(const ranges &all, const void *p, size_t size) {
    auto it = all.upper_bound((uintptr_t)p);
    if (it == all.begin()) return false;
    --it;
    return (uintptr_t)p + size <= it->first + it->second.size;
}

void *map_guarded(ranges *all, size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (size + 255) & ~(size_t)255;
    const size_t inner = (rounded + page - 1) / page * page, total = inner + 2 * page;
    char *map = (char *)mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, inner, PROT_READ | PROT_WRITE)) fail("no host memory for %zu bytes", size);
    char *p = map + page + inner - rounded;
    memset(p, 0xff, rounded);
    (*all)[(uintptr_t)p] = { size, map, total };
    return p;
}

bool unmap(ranges *all, void *p, size_t *size) {
    auto it = all->find((uintptr_t)p);
    if (it == all->end()) return false;
    *size = it->second.size;
    if (it->second.map) munmap(it->second.map, it->second.map_size);
    all->erase(it);
    return true;
}

} // namespace

bool is_device(const void *p, size_t size) { return holds(on_device, p, size); }
bool is_pinned(const void *p, size_t size) { return holds(pinned, p, size); }
size_t device_bytes_now() { return device_bytes; }
size_t pinned_bytes_now() { return pinned_bytes; }

} // namespace simt

using namespace simt;

cudaError_t cudaMalloc(void **p, size_t size) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    if (!size) return *p = nullptr, cudaSuccess;
    if (size > device.vram_bytes - device_bytes) return call.error(cudaErrorMemoryAllocation);
    *p = map_guarded(&on_device, size);
    device_bytes += size;
    return cudaSuccess;
}

/* As in CUDA, freeing waits for the device. */
cudaError_t cudaFree(void *p) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    size_t size = 0;
    drain_all();
    if (p && !unmap(&on_device, p, &size)) return call.error(cudaErrorInvalidValue);
    device_bytes -= size;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    *p = map_guarded(&pinned, size);
    pinned_bytes += size;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    size_t size = 0;
    drain_all();
    if (p && !unmap(&pinned, p, &size)) return call.error(cudaErrorInvalidValue);
    pinned_bytes -= size;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t size, unsigned) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    if (!p || !size || pinned.count((uintptr_t)p)) return call.error(cudaErrorInvalidValue);
    pinned[(uintptr_t)p] = { size, nullptr, 0 };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    size_t size;
    drain_all();
    return unmap(&pinned, p, &size) ? cudaSuccess : call.error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = device.vram_bytes - device_bytes;
    *total_bytes = device.vram_bytes;
    return cudaSuccess;
}
