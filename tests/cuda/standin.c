// A stand-in for CUDA's driver, cuBLAS, NVRTC and NCCL, for tests on machines without a GPU. It runs the real kernels:
// the .cu files are compiled as C into this library (kernels.h, made from them by tests/cuda/build), and a launch
// executes every thread of every block.
//
// Enqueued work does not run at once. It waits in its stream until the host synchronizes; then the streams take turns in an
// unfavourable order ($STANDIN_ORDER: first, last, or a seed), and only events hold them back. So a missing event in the program
// leads to wrong numbers instead of an order that is right by accident.
//
// The stand-in implements only the functions that rankscope calls. It allows no conclusion about speed, or about the real
// libraries beyond their C interface.

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------------------ threads of a block

typedef struct { unsigned int x, y, z; } dim3;
static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__ static
#define __device__
#define __shared__ static
#define __fmul_rn(a, b) ((float)((float)(a) * (float)(b)))
#define __fadd_rn(a, b) ((float)((float)(a) + (float)(b)))
#define atomicAdd(address, value) (*(address) += (value))

static ucontext_t scheduler;
static ucontext_t *fiber;
static void __syncthreads(void) { swapcontext(fiber, &scheduler); }

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#define GLOBALTIMER() clock_ns()

#include "kernels.h"

#define A(type, i) (*(type *)a[i])
#define P(type, i) ((type *)(uintptr_t) * (uint64_t *)a[i])
static void k_bias_relu(void **a) { bias_relu(P(float, 0), P(float, 1), P(unsigned short, 2), A(unsigned, 3), A(unsigned, 4)); }
static void k_bias_add(void **a) { bias_add(P(float, 0), P(float, 1), P(unsigned short, 2), A(unsigned, 3), A(unsigned, 4)); }
static void k_fill(void **a) { fill(P(float, 0), A(float, 1), A(size_t, 2)); }
static void k_to_bf16(void **a) { to_bf16(P(float, 0), P(unsigned short, 1), A(size_t, 2)); }
static void k_bucket_pack(void **a) { bucket_pack(P(float, 0), P(float, 1), A(size_t, 2), A(float, 3), A(size_t, 4)); }
static void k_bucket_unpack(void **a) { bucket_unpack(P(float, 0), P(float, 1), A(size_t, 2), A(size_t, 3)); }
static void k_sgd_momentum(void **a) {
    sgd_momentum(P(float, 0), P(float, 1), P(float, 2), P(unsigned short, 3), A(float, 4), A(float, 5), A(size_t, 6));
}
static void k_column_sums(void **a) {
    column_sums(P(float, 0), P(float, 1), P(unsigned short, 2), P(float, 3), A(unsigned, 4), A(unsigned, 5), A(unsigned, 6));
}
static void k_sum_partials(void **a) { sum_partials(P(float, 0), P(float, 1), A(unsigned, 2), A(unsigned, 3)); }
static void k_cross_entropy_rows(void **a) {
    cross_entropy_rows(P(float, 0), P(unsigned, 1), P(double, 2), P(float, 3), P(unsigned short, 4), A(unsigned, 5),
                       A(unsigned, 6));
}
static void k_mean_loss(void **a) { mean_loss(P(double, 0), P(float, 1), A(unsigned, 2)); }
static void k_cluster_batch(void **a) {
    cluster_batch(P(unsigned, 0), A(word, 1), P(float, 2), P(float, 3), P(unsigned short, 4), P(unsigned, 5),
                  A(unsigned, 6), A(unsigned, 7), A(unsigned, 8));
}
static void k_add_checksum(void **a) { add_checksum(P(float, 0), A(word, 1), P(word, 2), A(size_t, 3)); }
static void k_injected_delay(void **a) { injected_delay(A(word, 0)); }
static void k_end_step(void **a) {
    end_step(P(unsigned, 0), P(float, 1), P(word, 2), P(float, 3), P(word, 4), A(unsigned, 5));
}

typedef struct { const char *name; void (*run)(void **); int arguments; int syncs; } Kernel;
static const Kernel KERNELS[] = {
    {"bias_relu", k_bias_relu, 5, 0},       {"bias_add", k_bias_add, 5, 0},
    {"fill", k_fill, 3, 0},                 {"to_bf16", k_to_bf16, 3, 0},
    {"bucket_pack", k_bucket_pack, 5, 0},   {"bucket_unpack", k_bucket_unpack, 4, 0},
    {"sgd_momentum", k_sgd_momentum, 7, 0}, {"column_sums", k_column_sums, 7, 1},
    {"sum_partials", k_sum_partials, 4, 0}, {"cross_entropy_rows", k_cross_entropy_rows, 7, 1},
    {"mean_loss", k_mean_loss, 3, 1},       {"cluster_batch", k_cluster_batch, 9, 0},
    {"add_checksum", k_add_checksum, 4, 1}, {"end_step", k_end_step, 6, 0},
    {"injected_delay", k_injected_delay, 1, 0},
};

// ------------------------------------------------------------------------------------------------ work

enum { LAUNCH, COPY, SET, RECORD, WAIT, GEMM, TRANSFER, GRAPH };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };
typedef struct Graph Graph;
typedef struct Event { long recorded, completed; int64_t time_ns; } Event;
typedef struct Comm Comm;
typedef struct Op {
    int kind;
    const Kernel *kernel;
    dim3 grid, block;
    uint64_t words[12];
    void *to;
    const void *from;
    size_t bytes;
    Event *event;
    long version;
    struct { int ta, tb, m, n, k, lda, ldb, ldc, type, fast; float alpha, beta; const void *a, *b; float *c; } gemm;
    // A transfer: what, the other side, numbers that are done, and how far it is with the next piece of them.
    struct { Comm *comm; int what, peer; size_t count, done; int phase, generation; } transfer;
    Graph *graph;
    struct Stream *stream;
    struct Op *next;
} Op;
typedef struct Stream { Op *head, *tail; int index; int captures; struct Stream *next; } Stream;
struct Graph { Op *head, *tail; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Stream *streams;
static int stream_count;
static Graph *capturing;
static Stream *capture_origin;
static int advance(Op *op);
static void run_op(Op *op);

static void append(Op **head, Op **tail, Op *op) {
    op->next = NULL;
    if (*tail) (*tail)->next = op; else *head = op;
    *tail = op;
}

static Op *make(int kind) {
    Op *op = calloc(1, sizeof *op);
    op->kind = kind;
    return op;
}

static void enqueue(Stream *s, Op *op) {
    pthread_mutex_lock(&lock);
    op->stream = s;
    // A stream joins a capture by waiting for one of its events.
    if (capturing && (s == capture_origin || s->captures)) append(&capturing->head, &capturing->tail, op);
    else append(&s->head, &s->tail, op);
    pthread_mutex_unlock(&lock);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static float operand(const void *p, int type, int fast, long i) {
    union { uint32_t bits; float number; } v;
    if (type == 14) v.bits = (uint32_t)((const unsigned short *)p)[i] << 16;
    else v.number = ((const float *)p)[i];
    if (fast) v.bits &= ~0x1fffu;  // TensorFloat-32: 10 bits of mantissa
    return v.number;
}

static void gemm(Op *op) {
    for (long j = 0; j < op->gemm.n; j++)
        for (long i = 0; i < op->gemm.m; i++) {
            float sum = 0;
            for (long l = 0; l < op->gemm.k; l++) {
                long at = op->gemm.ta ? l + i * op->gemm.lda : i + l * op->gemm.lda;
                long bt = op->gemm.tb ? j + l * op->gemm.ldb : l + j * op->gemm.ldb;
                sum += operand(op->gemm.a, op->gemm.type, op->gemm.fast, at) *
                       operand(op->gemm.b, op->gemm.type, op->gemm.fast, bt);
            }
            float *c = &op->gemm.c[i + j * op->gemm.ldc];
            *c = op->gemm.alpha * sum + (op->gemm.beta == 0 ? 0 : op->gemm.beta * *c);
        }
}

static ucontext_t fibers[1024];
static char *stacks;
static int finished[1024], current;
static void (*body)(void **);
static void **body_arguments;
static void enter(void) {
    int me = current;
    body(body_arguments);
    finished[me] = 1;
}

// The threads of a block run in turns, each from one __syncthreads to the next.
static void run_block_with_syncs(unsigned threads) {
    const size_t STACK = 64 << 10;
    if (!stacks) stacks = mmap(NULL, 1024 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(finished, 0, sizeof finished);
    for (unsigned t = 0; t < threads; t++) {
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = stacks + t * STACK;
        fibers[t].uc_stack.ss_size = STACK;
        fibers[t].uc_link = &scheduler;
        makecontext(&fibers[t], enter, 0);
    }
    for (unsigned left = threads; left > 0;)
        for (unsigned t = 0; t < threads; t++) {
            if (finished[t]) continue;
            threadIdx.x = t % blockDim.x;
            threadIdx.y = t / blockDim.x;
            current = t;
            fiber = &fibers[t];
            swapcontext(&scheduler, fiber);
            if (finished[t]) left--;
        }
}

static void launch(Op *op) {
    static void *arguments[12];
    for (int i = 0; i < 12; i++) arguments[i] = &op->words[i];
    gridDim = op->grid;
    blockDim = op->block;
    body = op->kernel->run;
    body_arguments = arguments;
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
            if (op->kernel->syncs) {
                run_block_with_syncs(blockDim.x * blockDim.y);
                continue;
            }
            for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
                for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) body(arguments);
        }
}

static void run_op(Op *op) {
    switch (op->kind) {
    case LAUNCH: launch(op); break;
    case COPY: memcpy(op->to, op->from, op->bytes); break;
    case SET:
        for (size_t i = 0; i < op->bytes; i++) ((uint32_t *)op->to)[i] = op->version;
        break;
    case RECORD:
        op->event->completed = op->version > op->event->completed ? op->version : op->event->completed;
        op->event->time_ns = now_ns();
        break;
    case WAIT: break;
    case GEMM: gemm(op); break;
    case TRANSFER:
        while (!advance(op)) sched_yield();
        op->transfer.done = 0;
        break;
    case GRAPH:
        for (Op *inner = op->graph->head; inner; inner = inner->next)
            if (inner->kind != WAIT) run_op(inner);
        break;
    }
}

// A transfer blocks its stream until the other ranks have done their part. Other streams go on meanwhile.
static int blocked(Op *op) {
    if (op->kind == TRANSFER) return !advance(op);
    return op->kind == WAIT && op->event->completed < op->version;
}
static int is_transferring(void) {
    for (Stream *s = streams; s; s = s->next)
        if (s->head && s->head->kind == TRANSFER) return 1;
    return 0;
}

// Runs all that is enqueued and need not wait for another rank.
static void run(void) {
    static unsigned long random_state;
    const char *order = getenv("STANDIN_ORDER");
    pthread_mutex_lock(&lock);
    for (;;) {
        Stream *runnable[64];
        int count = 0;
        for (Stream *s = streams; s && count < 64; s = s->next)
            if (s->head && !blocked(s->head)) runnable[count++] = s;
        if (count == 0) break;
        Stream *s = runnable[0];  // the youngest stream, which is the first of the list
        if (order && !strcmp(order, "last")) s = runnable[count - 1];
        else if (order && strcmp(order, "first")) {
            if (!random_state) random_state = strtoul(order, NULL, 10) * 2 + 1;
            random_state = random_state * 6364136223846793005ul + 1442695040888963407ul;
            s = runnable[(random_state >> 33) % count];
        }
        Op *op = s->head;
        s->head = op->next;
        if (!s->head) s->tail = NULL;
        run_op(op);
        free(op);
    }
    pthread_mutex_unlock(&lock);
}

// Runs everything that is enqueued.
static void run_all(void) {
    for (;;) {
        run();
        pthread_mutex_lock(&lock);
        int waits = is_transferring();
        pthread_mutex_unlock(&lock);
        if (!waits) return;
        sched_yield();
    }
}

// ------------------------------------------------------------------------------------------------ driver

#define SUCCESS 0
#define CAPTURE_UNSUPPORTED 900
#define REFUSE_IN_CAPTURE() do { if (capturing) return CAPTURE_UNSUPPORTED; } while (0)
static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

int cuInit(unsigned flags) { return flags == 0 ? setting("STANDIN_INIT", SUCCESS) : 1; }
int cuDriverGetVersion(int *version) { *version = setting("STANDIN_DRIVER", 13000); return SUCCESS; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STANDIN";
    return SUCCESS;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : "an error of the stand-in";
    return SUCCESS;
}
static int visible[64];
int cuDeviceGetCount(int *count) {
    int real = setting("STANDIN_DEVICES", 1);
    const char *variable = getenv("CUDA_VISIBLE_DEVICES");
    *count = 0;
    if (!variable) {
        for (; *count < real; ++*count) visible[*count] = *count;
        return SUCCESS;
    }
    char *copy = strdup(variable), *rest = copy, *word;
    while ((word = strsep(&rest, ",")) && *word && atoi(word) < real) visible[(*count)++] = atoi(word);
    free(copy);
    return SUCCESS;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
// $STANDIN_MIG: all devices are parts of one.
int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "Stand-in %d%s", visible[device], setting("STANDIN_MIG", 0) ? " MIG 1g.18gb" : "");
    return SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, length, "0000:%02x:00.0", setting("STANDIN_MIG", 0) ? 0 : visible[device]);
    return SUCCESS;
}
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, visible[device] + 1, 16); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)1 << 30; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 4 : attribute == 13 ? 1000000 : 64;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
static __thread void *bound;
int cuCtxSetCurrent(void *context) { bound = context; return SUCCESS; }
#define NEED_CONTEXT() do { if (!bound) return 201; } while (0)
int cuCtxSynchronize(void) { NEED_CONTEXT(); REFUSE_IN_CAPTURE(); run_all(); return SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { NEED_CONTEXT(); *least = 0; *greatest = -5; return SUCCESS; }
static size_t used;
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *total = (size_t)1 << 30; *free_bytes = *total - used; return SUCCESS; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    if (bytes > (size_t)1 << 30) return 2;
    // Fill new memory, so that uninitialized memory does not look like zeros.
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(memory, 0xff, bytes);
    *address = (uintptr_t)memory;
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) { NEED_CONTEXT(); run_all(); free((void *)(uintptr_t)address); return SUCCESS; }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return SUCCESS;
}
int cuMemFreeHost(void *memory) { run_all(); free(memory); return SUCCESS; }
static int copy(void *to, const void *from, size_t bytes, Stream *s) {
    NEED_CONTEXT();
    Op *op = make(COPY);
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    enqueue(s, op);
    return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *s) { return copy((void *)(uintptr_t)to, from, bytes, s); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *s) { return copy(to, (void *)(uintptr_t)from, bytes, s); }
int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, Stream *s) {
    NEED_CONTEXT();
    Op *op = make(SET);
    op->to = (void *)(uintptr_t)to;
    op->version = value;
    op->bytes = count;
    enqueue(s, op);
    return SUCCESS;
}
int cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    NEED_CONTEXT();
    *stream = calloc(1, sizeof **stream);
    pthread_mutex_lock(&lock);
    (*stream)->index = stream_count++;
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuStreamDestroy_v2(Stream *stream) {
    run_all();
    pthread_mutex_lock(&lock);
    for (Stream **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) { *s = stream->next; break; }
    pthread_mutex_unlock(&lock);
    free(stream);
    return SUCCESS;
}
int cuStreamSynchronize(Stream *s) { (void)s; NEED_CONTEXT(); REFUSE_IN_CAPTURE(); run_all(); return SUCCESS; }
int cuEventCreate(Event **event, unsigned flags) { (void)flags; NEED_CONTEXT(); *event = calloc(1, sizeof **event); return SUCCESS; }
int cuEventDestroy_v2(Event *event) {
    for (run(); event->completed < event->recorded; run()) sched_yield();
    free(event);
    return SUCCESS;
}
static Event *captured_events[4096];
static int captured_count;
int cuEventRecord(Event *event, Stream *s) {
    NEED_CONTEXT();
    Op *op = make(RECORD);
    op->event = event;
    op->version = ++event->recorded;
    if (capturing && (s == capture_origin || s->captures) && captured_count < 4096) captured_events[captured_count++] = event;
    enqueue(s, op);
    return SUCCESS;
}
int cuStreamWaitEvent(Stream *s, Event *event, unsigned flags) {
    (void)flags;
    NEED_CONTEXT();
    if (event->recorded == 0) return SUCCESS;
    int in_capture = 0;
    for (int i = 0; i < captured_count; i++) in_capture |= captured_events[i] == event;
    // Waiting inside a capture for work outside of it is an error (CUDA_ERROR_STREAM_CAPTURE_ISOLATION).
    if (capturing && (s == capture_origin || s->captures) && !in_capture) return 905;
    if (capturing && in_capture) s->captures = 1;
    Op *op = make(WAIT);
    op->event = event;
    op->version = event->recorded;
    enqueue(s, op);
    return SUCCESS;
}
int cuEventQuery(Event *event) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    run();
    return event->completed >= event->recorded ? SUCCESS : 600;
}
int cuEventSynchronize(Event *event) {
    NEED_CONTEXT();
    REFUSE_IN_CAPTURE();
    for (run(); event->completed < event->recorded; run()) sched_yield();
    return SUCCESS;
}
int cuEventElapsedTime(float *ms, Event *start, Event *end) {
    if (!start->completed || !end->completed) return 400;
    // $STANDIN_CLOCK_PERCENT: the rate of the device's clock.
    *ms = (end->time_ns - start->time_ns) / 1e6f * setting("STANDIN_CLOCK_PERCENT", 100) / 100.0f;
    return SUCCESS;
}
int cuModuleLoadData(void **module, const void *image) {
    NEED_CONTEXT();
    *module = (void *)image;
    return memcmp(image, "STANDIN", 7) ? 200 : SUCCESS;
}
int cuModuleUnload(void *module) { (void)module; return SUCCESS; }
int cuModuleGetFunction(const Kernel **function, void *module, const char *name) {
    (void)module;
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].name, name)) { *function = &KERNELS[i]; return SUCCESS; }
    return 500;
}
int cuLaunchKernel(const Kernel *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream *s, void **arguments, void **extra) {
    (void)gz, (void)bz, (void)shared, (void)extra;
    NEED_CONTEXT();
    if (gx == 0 || gy == 0 || gy > 65535 || bx * by == 0 || bx * by > 1024) return 1;
    Op *op = make(LAUNCH);
    op->kernel = f;
    op->grid = (dim3){gx, gy, 1};
    op->block = (dim3){bx, by, 1};
    for (int i = 0; i < f->arguments; i++) memcpy(&op->words[i], arguments[i], 8);
    enqueue(s, op);
    return SUCCESS;
}
int cuStreamBeginCapture_v2(Stream *s, int mode) {
    (void)mode;
    NEED_CONTEXT();
    pthread_mutex_lock(&lock);
    capturing = calloc(1, sizeof *capturing);
    capture_origin = s;
    captured_count = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuStreamEndCapture(Stream *s, Graph **graph) {
    int joined = s == capture_origin;
    pthread_mutex_lock(&lock);
    // A stream that joined the capture must be joined again: the origin waits for an event behind its last work.
    for (Stream *other = streams; other; other = other->next) {
        if (!other->captures || other == capture_origin) continue;
        other->captures = 0;
        int is_joined = 1;
        for (Op *op = capturing->head; op; op = op->next) {
            if (op->stream == other && op->kind != WAIT) is_joined = 0;
            if (op->stream == other && op->kind == RECORD)
                for (Op *later = op->next; later; later = later->next)
                    is_joined |= later->stream == capture_origin && later->kind == WAIT && later->event == op->event;
        }
        joined &= is_joined;
    }
    *graph = capturing;
    capturing = NULL;
    capture_origin = NULL;
    captured_count = 0;
    pthread_mutex_unlock(&lock);
    return joined ? SUCCESS : 901;
}
int cuGraphInstantiateWithFlags(Graph **executable, Graph *graph, uint64_t flags) { (void)flags; *executable = graph; return SUCCESS; }
int cuGraphLaunch(Graph *graph, Stream *s) {
    NEED_CONTEXT();
    Op *op = make(GRAPH);
    op->graph = graph;
    enqueue(s, op);
    return SUCCESS;
}
int cuGraphExecDestroy(Graph *graph) { (void)graph; run_all(); return SUCCESS; }
int cuGraphDestroy(Graph *graph) { (void)graph; return SUCCESS; }

// ------------------------------------------------------------------------------------------------ cuBLAS

typedef struct { Stream *stream; } Blas;
int cublasCreate_v2(Blas **handle) { *handle = calloc(1, sizeof **handle); return SUCCESS; }
int cublasDestroy_v2(Blas *handle) { free(handle); return SUCCESS; }
int cublasSetStream_v2(Blas *handle, Stream *stream) { handle->stream = stream; return SUCCESS; }
int cublasSetWorkspace_v2(Blas *handle, void *memory, size_t bytes) { (void)handle, (void)memory, (void)bytes; return SUCCESS; }
int cublasGetVersion_v2(Blas *handle, int *version) { (void)handle; *version = 130000; return SUCCESS; }
int cublasGemmEx(Blas *handle, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int a_type,
                 int lda, const void *b, int b_type, int ldb, const float *beta, float *c, int c_type, int ldc,
                 int compute, int algorithm) {
    (void)algorithm;
    int rows_a = ta ? k : m, rows_b = tb ? n : k;
    // cuBLAS requires: leading dimensions at least 1 and the rows of the stored matrix; equal types of A and B; C in f32.
    if (lda < (rows_a > 1 ? rows_a : 1) || ldb < (rows_b > 1 ? rows_b : 1) || ldc < (m > 1 ? m : 1)) return 7;
    if (a_type != b_type || c_type != 0 || (a_type != 0 && a_type != 14)) return 15;
    if (compute != 68 && compute != 77) return 15;
    Op *op = make(GEMM);
    op->gemm.ta = ta, op->gemm.tb = tb, op->gemm.m = m, op->gemm.n = n, op->gemm.k = k;
    op->gemm.lda = lda, op->gemm.ldb = ldb, op->gemm.ldc = ldc, op->gemm.type = a_type, op->gemm.fast = compute == 77;
    op->gemm.alpha = *alpha, op->gemm.beta = *beta, op->gemm.a = a, op->gemm.b = b, op->gemm.c = c;
    enqueue(handle->stream, op);
    return SUCCESS;
}

// ------------------------------------------------------------------------------------------------ NVRTC

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return SUCCESS; }
const char *nvrtcGetErrorString(int code) { (void)code; return "an error of the stand-in"; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return SUCCESS; }
int nvrtcGetSupportedArchs(int *archs) { archs[0] = 80; archs[1] = 90; return SUCCESS; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n, void *headers, void *names) {
    (void)source, (void)name, (void)n, (void)headers, (void)names;
    *program = malloc(1);
    return SUCCESS;
}
int nvrtcDestroyProgram(void **program) { free(*program); *program = NULL; return SUCCESS; }
int nvrtcCompileProgram(void *program, int count, const char **options) { (void)program, (void)count, (void)options; return SUCCESS; }
int nvrtcGetCUBINSize(void *program, size_t *size) { (void)program; *size = 8; return SUCCESS; }
int nvrtcGetCUBIN(void *program, char *cubin) { (void)program; memcpy(cubin, "STANDIN", 8); return SUCCESS; }
int nvrtcGetPTXSize(void *program, size_t *size) { return nvrtcGetCUBINSize(program, size); }
int nvrtcGetPTX(void *program, char *ptx) { return nvrtcGetCUBIN(program, ptx); }
int nvrtcGetProgramLogSize(void *program, size_t *size) { (void)program; *size = 1; return SUCCESS; }
int nvrtcGetProgramLog(void *program, char *log) { (void)program; *log = 0; return SUCCESS; }

// ------------------------------------------------------------------------------------------------ NCCL

// All ranks of a communicator map one file, whose name is the unique id. It has a counter for the barrier, and space for a
// piece of every rank's numbers and for a piece of a message from each rank to each.
#define PIECE 65536
#define RANKS 16
typedef struct { _Atomic int arrived, generation, is_full[RANKS * RANKS]; float room[]; } Meeting;
struct Comm { Meeting *meeting; int rank, size; };
typedef struct { char bytes[128]; } UniqueId;

int ncclGetVersion(int *version) { *version = setting("STANDIN_NCCL", 22809); return SUCCESS; }
const char *ncclGetErrorString(int code) { (void)code; return code == 5 ? "invalid usage" : "an error of the stand-in"; }
const char *ncclGetLastError(Comm *comm) { (void)comm; return "Duplicate GPU detected"; }
int ncclGetUniqueId(UniqueId *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/dev/shm/rankscope-standin-%d-%lld", getpid(), (long long)now_ns());
    return SUCCESS;
}
// Arrives at the barrier. Its generation changes when all have arrived.
static int arrive(Comm *comm) {
    int generation = comm->meeting->generation;
    if (++comm->meeting->arrived == comm->size) {
        comm->meeting->arrived = 0;
        comm->meeting->generation++;
    }
    return generation;
}
int ncclCommInitRank(Comm **comm, int size, UniqueId id, int rank) {
    // NCCL before 2.30, or without NCCL_MULTI_RANK_GPU_ENABLE, accepts one rank of a host on each GPU.
    if (setting("STANDIN_DUPLICATE", 0) && !getenv("NCCL_HOSTID") && !getenv("NCCL_MULTI_RANK_GPU_ENABLE")) return 5;
    if (size > RANKS) return 4;
    size_t bytes = sizeof(Meeting) + (size_t)size * (size + 1) * PIECE * sizeof(float);
    int file = open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, bytes)) return 2;
    *comm = calloc(1, sizeof **comm);
    (*comm)->meeting = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    (*comm)->rank = rank;
    (*comm)->size = size;
    int generation = arrive(*comm);
    while ((*comm)->meeting->generation == generation) sched_yield();
    unlink(id.bytes);
    return SUCCESS;
}
// A message goes piece by piece through the space between two ranks.
static int pass(Op *op, float *room, _Atomic int *is_full, int sends) {
    while (op->transfer.done < op->transfer.count) {
        size_t left = op->transfer.count - op->transfer.done, n = left < PIECE ? left : PIECE;
        if (*is_full == sends) return 0;
        if (sends) memcpy(room, (const float *)op->from + op->transfer.done, n * sizeof(float));
        else memcpy((float *)op->to + op->transfer.done, room, n * sizeof(float));
        *is_full = sends;
        op->transfer.done += n;
    }
    return 1;
}
// The numbers of all ranks for a piece: a sum, or one after the other.
static void combine(Op *op, size_t n) {
    Comm *comm = op->transfer.comm;
    const float *room = comm->meeting->room;
    float *to = (float *)op->to;
    for (int rank = 0; rank < comm->size; rank++)
        for (size_t i = 0; i < n; i++) {
            float number = room[rank * (size_t)PIECE + i];
            size_t at = op->transfer.done + i;
            if (op->transfer.what == ALL_GATHER) {
                to[rank * op->transfer.count + at] = number;
                continue;
            }
            if (op->transfer.what == REDUCE_SCATTER) {
                if (at / op->transfer.count != (size_t)comm->rank) continue;
                at %= op->transfer.count;
            }
            to[at] = rank == 0 ? number : to[at] + number;
        }
}
// Does what of a transfer the other ranks allow; returns whether it is complete. A reduce-scatter is an all-reduce of which a
// rank keeps its part.
static int advance(Op *op) {
    Comm *comm = op->transfer.comm;
    int peer = op->transfer.peer;
    float *messages = &comm->meeting->room[comm->size * (size_t)PIECE];
    if (op->transfer.what == SEND || op->transfer.what == RECEIVE) {
        int from = op->transfer.what == SEND ? comm->rank : peer, to = op->transfer.what == SEND ? peer : comm->rank;
        float *room = &messages[(from * (size_t)comm->size + to) * PIECE];
        return pass(op, room, &comm->meeting->is_full[from * RANKS + to], op->transfer.what == SEND);
    }
    size_t whole = op->transfer.count * (op->transfer.what == REDUCE_SCATTER ? comm->size : 1);
    while (op->transfer.done < whole) {
        size_t left = whole - op->transfer.done, n = left < PIECE ? left : PIECE;
        if (op->transfer.phase == 0) {
            const float *from = (const float *)op->from + op->transfer.done;
            memcpy(&comm->meeting->room[comm->rank * (size_t)PIECE], from, n * sizeof(float));
            op->transfer.generation = arrive(comm);
            op->transfer.phase = 1;
        }
        if (comm->meeting->generation == op->transfer.generation) return 0;
        if (op->transfer.phase == 1) {
            combine(op, n);
            op->transfer.generation = arrive(comm);
            op->transfer.phase = 2;
            if (comm->meeting->generation == op->transfer.generation) return 0;
        }
        op->transfer.phase = 0;
        op->transfer.done += n;
    }
    return 1;
}
static int transfer(int what, const void *from, void *to, size_t count, int type, int peer, Comm *comm, Stream *s) {
    if (type != 7) return 4;
    Op *op = make(TRANSFER);
    op->from = from;
    op->to = to;
    op->transfer.what = what;
    op->transfer.peer = peer;
    op->transfer.count = count;
    op->transfer.comm = comm;
    enqueue(s, op);
    return SUCCESS;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Comm *comm, Stream *s) {
    return operation ? 4 : transfer(ALL_REDUCE, from, to, count, type, 0, comm, s);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, Stream *s) {
    return transfer(ALL_GATHER, from, to, count, type, 0, comm, s);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Comm *comm, Stream *s) {
    return operation ? 4 : transfer(REDUCE_SCATTER, from, to, count, type, 0, comm, s);
}
int ncclSend(const void *from, size_t count, int type, int peer, Comm *comm, Stream *s) {
    return transfer(SEND, from, NULL, count, type, peer, comm, s);
}
int ncclRecv(void *to, size_t count, int type, int peer, Comm *comm, Stream *s) {
    return transfer(RECEIVE, NULL, to, count, type, peer, comm, s);
}
int ncclCommGetAsyncError(Comm *comm, int *error) { (void)comm; *error = 0; return SUCCESS; }
int ncclCommDestroy(Comm *comm) { run_all(); free(comm); return SUCCESS; }
int ncclCommAbort(Comm *comm) { (void)comm; return SUCCESS; }
