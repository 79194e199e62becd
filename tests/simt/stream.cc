/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, graphs and copy engines of the emulated device; see stream.h. */
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

struct capture;

struct simt_stream {
    simt::node_ref last;
    capture *into; /* NULL: not being captured */
    size_t tail;   /* last node of this stream in the capture, or NONE */
};
struct simt_event {
    simt::node_ref recorded;
    capture *into;
    size_t node;
};
struct graph_node {
    simt::node proto; /* `after` is empty */
    std::vector<size_t> after;
};
struct simt_graph {
    std::vector<graph_node> nodes;
};
struct simt_graph_exec {
    simt_graph graph;
};
struct capture {
    simt_stream *origin;
    simt_graph graph;
    std::set<simt_stream *> joined;
};

namespace simt {

device_model device = { EAGER, (size_t)8 << 30, 16, 227 << 10, 25, 8, 2, 3, 2 };

namespace {

const size_t NONE = ~(size_t)0;

struct state {
    std::recursive_mutex lock;
    std::vector<node_ref> pending;
    double host_us, engine_free[N_ENGINES];
    std::map<const void *, double> cost;
    std::map<const void *, size_t> smem;
    unsigned n_captures;
    cudaError_t last_error;
    device_counters count;
};
state S;

bool may_start(const node &n) {
    return n.state == node::WAITING && std::all_of(n.after.begin(), n.after.end(), [](const node_ref &d) { return d->state == node::DONE; });
}

void start(node *n) {
    n->state = node::STARTED;
    double from = n->issued;
    for (const node_ref &d : n->after) from = std::max(from, d->finish);
    from = std::max(from, S.engine_free[n->engine]);
    n->finish = from + n->us;
    if (n->engine != NO_ENGINE) S.engine_free[n->engine] = n->finish;
    n->after.clear();
    if (n->begin) n->begin();
}

void finish(node *n) {
    n->state = node::DONE;
    if (n->end) n->end();
    n->begin = n->end = nullptr;
}

/* The first moment at which this node could make its next step. */
double next_time(const node &n) {
    if (n.state == node::STARTED) return n.finish;
    double from = std::max(n.issued, S.engine_free[n.engine]);
    for (const node_ref &d : n.after) from = std::max(from, d->finish);
    return from;
}

/* One step of one node. false: nothing is pending. */
bool advance() {
    node_ref best;
    uint32_t n_legal = 0;
    for (const node_ref &n : S.pending) {
        if (n->state != node::STARTED && !may_start(*n)) continue;
        n_legal++;
        const bool better = device.mode == RANDOM ? random_below(n_legal) == 0 : !best || next_time(*n) < next_time(*best);
        if (better) best = n;
        if (device.mode == EAGER) break;
    }
    if (!best) {
        if (!S.pending.empty()) fail("streams wait for each other in a circle");
        return false;
    }
    if (best->state == node::WAITING) {
        start(best.get());
    } else {
        finish(best.get());
        S.pending.erase(std::find(S.pending.begin(), S.pending.end(), best));
    }
    return true;
}

node_ref issue(node proto) {
    node_ref n = std::make_shared<node>(std::move(proto));
    S.host_us += device.issue_us;
    n->issued = S.host_us;
    S.pending.push_back(n);
    if (device.mode == EAGER) drain_until(n);
    return n;
}

/* To the end of a stream, or of its capture. */
void append(simt_stream *s, node proto) {
    proto.state = node::WAITING;
    if (s->into) {
        graph_node g = { std::move(proto), {} };
        if (s->tail != NONE) g.after.push_back(s->tail);
        s->into->graph.nodes.push_back(std::move(g));
        s->tail = s->into->graph.nodes.size() - 1;
        return;
    }
    if (s->last) proto.after.push_back(s->last);
    s->last = issue(std::move(proto));
}

node step(enum engine e, double us, std::function<void()> begin, std::function<void()> end) {
    node n;
    n.begin = std::move(begin);
    n.end = std::move(end);
    n.engine = e;
    n.us = us;
    n.state = node::WAITING;
    n.issued = n.finish = 0;
    return n;
}

double copy_us(size_t size) {
    return device.copy_us + (double)size / (device.link_gbps * 1e3);
}

/* The source may be read at any moment between start and end; RANDOM tries both. */
void append_copy(simt_stream *s, enum engine e, void *dst, const void *src, size_t size) {
    auto early = std::make_shared<std::vector<char>>();
    append(s, step(
        e, copy_us(size),
        [=] {
            if (device.mode == RANDOM && random_below(2)) early->assign((const char *)src, (const char *)src + size);
            memset(dst, 0xff, size);
        },
        [=] {
            memcpy(dst, early->empty() ? src : early->data(), size);
            early->clear();
        }));
}

} // namespace

api_call::api_call(capture_rule rule) : refused(cudaSuccess), lock(S.lock) {
    if (self) fail("a kernel calls the runtime");
    if (rule == NO_CAPTURE && S.n_captures) refused = error(cudaErrorStreamCaptureUnsupported);
    if (device.mode != RANDOM) return;
    for (uint32_t n = random_below(4); n > 0; n--) advance();
}

cudaError_t api_call::error(cudaError_t e) { return S.last_error = e; }

void drain_until(const node_ref &n) {
    while (n && n->state != node::DONE) advance();
    if (n) S.host_us = std::max(S.host_us, n->finish);
}

void drain_all() {
    while (advance()) {}
    for (double t : S.engine_free) S.host_us = std::max(S.host_us, t);
}

void kernel_cost(const void *kernel, double us) { S.cost[kernel] = us; }
double device_now_us() { return S.host_us; }

device_counters device_count() {
    device_counters c = S.count;
    c.device_bytes = device_bytes_now();
    c.pinned_bytes = pinned_bytes_now();
    return c;
}

void device_settle() {
    std::lock_guard<std::recursive_mutex> hold(S.lock);
    drain_all();
    S.host_us = 0;
    std::fill(S.engine_free, S.engine_free + N_ENGINES, 0.0);
    S.last_error = cudaSuccess;
    S.count = {};
}

} // namespace simt

using namespace simt;

#define REFUSE_DEFAULT_STREAM(s) \
    if (!(s)) fail("the default stream is not for use: it orders itself with all others")

/* ---- devices and errors ---- */

const char *cudaGetErrorName(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    }
    return "unknown error";
}
const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

cudaError_t cudaGetLastError() {
    const cudaError_t e = S.last_error;
    S.last_error = cudaSuccess;
    return e;
}
cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d) {
    if (d != 0) return cudaErrorInvalidDevice;
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = device.vram_bytes;
    p->sharedMemPerBlockOptin = device.smem_per_block;
    p->major = 9;
    p->multiProcessorCount = (int)device.n_sms;
    p->l2CacheSize = 50 << 20;
    p->asyncEngineCount = 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    S.count.host_waits++;
    drain_all();
    return cudaSuccess;
}

/* ---- work ---- */

cudaError_t simt_allow_smem(const void *kernel, size_t bytes) {
    api_call call(ANY_TIME);
    if (bytes > device.smem_per_block) return call.error(cudaErrorInvalidValue);
    S.smem[kernel] = bytes;
    return cudaSuccess;
}

cudaError_t simt_launch(const cudaLaunchConfig_t *c, const void *kernel, std::function<void()> body) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(c->stream);
    const dim3 grid = c->gridDim, block = c->blockDim;
    const uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z, n_threads = (uint64_t)block.x * block.y * block.z;
    auto allowed = S.smem.find(kernel);
    const size_t smem = c->dynamicSmemBytes, most = allowed == S.smem.end() ? 48 << 10 : allowed->second;
    bool cooperative = false;
    for (unsigned i = 0; i < c->numAttrs; i++) cooperative |= c->attrs[i].id == cudaLaunchAttributeCooperative && c->attrs[i].val.cooperative;
    if (n_blocks == 0 || n_threads == 0 || n_threads > 1024 || block.z > 64 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || smem > most)
        return call.error(cudaErrorInvalidValue);
    auto cost = S.cost.find(kernel);
    const double us = cost != S.cost.end() ? cost->second : device.kernel_us + (double)n_blocks * device.block_us / device.n_sms;
    append(c->stream, step(COMPUTE, us, [=] {
        S.count.kernels++;
        run_grid(grid, block, smem, cooperative, body);
    }, nullptr));
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, cudaMemcpyKind kind, cudaStream_t s) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(s);
    if (!size) return cudaSuccess;
    const bool to = is_device(dst, size), from = is_device(src, size);
    if ((kind == cudaMemcpyHostToDevice && (!to || from)) || (kind == cudaMemcpyDeviceToHost && (to || !from)) ||
        (kind == cudaMemcpyDeviceToDevice && !(to && from)) || kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault)
        return call.error(cudaErrorInvalidValue);
    const enum engine e = to && from ? COMPUTE : to ? TO_DEVICE : TO_HOST;
    const bool pageable = e == TO_DEVICE ? !is_pinned(src, size) : e == TO_HOST && !is_pinned(dst, size);
    if (pageable && s->into) return call.error(cudaErrorStreamCaptureUnsupported);
    S.count.copies++;
    append_copy(s, e, dst, src, size);
    if (pageable) {
        S.count.pageable_copies++;
        drain_until(s->last);
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(s);
    if (size && !is_device(p, size)) return call.error(cudaErrorInvalidValue);
    append(s, step(COMPUTE, device.kernel_us, [=] { memset(p, value, size); }, nullptr));
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*fn)(void *), void *arg) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(s);
    append(s, step(NO_ENGINE, 0, nullptr, [=] { fn(arg); }));
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    *s = new simt_stream{ nullptr, nullptr, NONE };
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    drain_until(s->last);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    REFUSE_DEFAULT_STREAM(s);
    S.count.host_waits++;
    drain_until(s->last);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    if (device.mode == TIMED) advance();
    return !s->last || s->last->state == node::DONE ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new simt_event{ nullptr, nullptr, NONE }, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(s);
    append(s, step(NO_ENGINE, 0, nullptr, nullptr));
    e->recorded = s->into ? nullptr : s->last;
    e->into = s->into;
    e->node = s->tail;
    return cudaSuccess;
}

/* An event means its latest record at this moment; none at all is no wait. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    api_call call(ANY_TIME);
    REFUSE_DEFAULT_STREAM(s);
    if (e->into) { /* draws the stream into the capture */
        if (s->into && s->into != e->into) return call.error(cudaErrorStreamCaptureUnsupported);
        s->into = e->into;
        s->into->joined.insert(s);
        append(s, step(NO_ENGINE, 0, nullptr, nullptr));
        s->into->graph.nodes.back().after.push_back(e->node);
        return cudaSuccess;
    }
    if (s->into) return call.error(cudaErrorStreamCaptureUnsupported);
    if (!e->recorded) return cudaSuccess;
    node wait = step(NO_ENGINE, 0, nullptr, nullptr);
    wait.after.push_back(e->recorded);
    append(s, std::move(wait));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    api_call call(ANY_TIME);
    if (device.mode == TIMED) advance();
    return !e->recorded || e->recorded->state == node::DONE ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    S.count.host_waits++;
    drain_until(e->recorded);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    api_call call(ANY_TIME);
    if (!from->recorded || !to->recorded) return call.error(cudaErrorInvalidResourceHandle);
    if (from->recorded->state != node::DONE || to->recorded->state != node::DONE) return cudaErrorNotReady;
    *ms = (float)((to->recorded->finish - from->recorded->finish) / 1e3);
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    REFUSE_DEFAULT_STREAM(s);
    s->into = new capture{ s, {}, { s } };
    s->tail = NONE;
    S.n_captures++;
    return cudaSuccess;
}

/* Every stream that was drawn in must have been waited for by the origin: else work would go on beyond the graph's end. */
static bool all_joined(const capture *c) {
    std::vector<bool> reached(c->graph.nodes.size());
    std::vector<size_t> todo;
    if (c->origin->tail != NONE) todo.push_back(c->origin->tail);
    while (!todo.empty()) {
        const size_t i = todo.back();
        todo.pop_back();
        if (reached[i]) continue;
        reached[i] = true;
        for (size_t d : c->graph.nodes[i].after) todo.push_back(d);
    }
    return std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    api_call call(ANY_TIME);
    capture *c = s->into;
    if (!c || c->origin != s) return call.error(cudaErrorInvalidValue);
    const bool joined = all_joined(c);
    for (simt_stream *member : c->joined) member->into = nullptr;
    *g = joined ? new simt_graph(std::move(c->graph)) : nullptr;
    delete c;
    S.n_captures--;
    return joined ? cudaSuccess : call.error(cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long) { return *x = new simt_graph_exec{ *g }, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return delete x, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete g, cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    api_call call(NO_CAPTURE);
    if (call.refused) return call.refused;
    REFUSE_DEFAULT_STREAM(s);
    const node_ref before = s->last;
    const double issue_each = device.issue_us;
    std::vector<node_ref> made;
    S.host_us += device.issue_us;
    device.issue_us = 0; /* one call of the host for all of them */
    for (const graph_node &g : x->graph.nodes) {
        node n = g.proto;
        if (before) n.after.push_back(before);
        for (size_t d : g.after) n.after.push_back(made[d]);
        made.push_back(issue(std::move(n)));
    }
    node end = step(NO_ENGINE, 0, nullptr, nullptr);
    end.after = made;
    if (before) end.after.push_back(before);
    s->last = issue(std::move(end));
    device.issue_us = issue_each;
    S.count.graph_launches++;
    return cudaSuccess;
}
