/*
 * A stand-in for libcuda.so.1, so that tests run active checks without a GPU. It has the functions that
 * gpu_exporter/active_checks/cuda.py calls. Memory is the host's; kernels are known by their names and computed in C; the time
 * of a GPU is virtual: each stream has a clock, which work moves on by its size divided by a rate.
 *
 * The environment variable FAKE_CUDA names a file of lines, read at cuInit:
 *
 *     <gpu index or *> <Key> <value>       a GPU's own line wins over the * line
 *
 *     * Count n              number of GPUs
 *     * Contexts directory   for each context a file <pid>.<gpu> while it exists
 *     g Fail.<call> code     the call returns this CUresult; code@n: from its n-th call on (1 is the first)
 *     g Hang.<call> n        the n-th call never returns
 *     g LostAfter n          after n launches of kernels, every call on the GPU returns 719
 *     g Crash.<call> n       the n-th call ends the process with SIGSEGV
 *     g Rate.<what> value    bytes/s or FLOP/s: memory_copy, memory_read, pcie_to_gpu, pcie_from_gpu, nvlink, fp32, bf16
 *     g Rate.nvlink.<peer> value
 *     g Wrong.<kernel> block this block of an arithmetic kernel computes something else; Sum.<kernel> 1: all do
 *     g Flip word            a bit of this word of the first allocation that a pattern is written to is wrong
 *     g Major 9, g Minor 0, g FreeMiB 32, g NoPeer 1
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;

enum {
    SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE, INVALID_CONTEXT = 201,
    INVALID_PTX = 218, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, UNKNOWN = 999
};
enum { MAX_GPUS = 16, MAX_LINES = 512, SMS = 2, L2 = 64 << 10, ALL = -1 };

struct line { int gpu; char key[64], value[256]; };
static struct line lines[MAX_LINES];
static int line_count, ready;

struct gpu { int contexts, launches; size_t used; u64 flipped; };
static struct gpu gpus[MAX_GPUS];
struct stream { int gpu; double now; };
struct event { double at; };
static int current = ALL;

static const char *find(int gpu, const char *key)
{
    const char *common = NULL;
    for (int i = 0; i < line_count; i++)
        if (!strcmp(lines[i].key, key)) {
            if (lines[i].gpu == gpu)
                return lines[i].value;
            if (lines[i].gpu == ALL)
                common = lines[i].value;
        }
    return common;
}

static double number(int gpu, const char *kind, const char *what, double otherwise)
{
    char key[96];
    snprintf(key, sizeof key, "%s%s", kind, what);
    const char *value = find(gpu, key);
    return value ? atof(value) : otherwise;
}

/* What every call does first: fail, hang or crash, if the file says so. */
static int enter(const char *call, int gpu)
{
    static struct { char name[48]; int gpu, count; } calls[256];
    char key[96];
    int i = 0;
    while (calls[i].name[0] && (calls[i].gpu != gpu || strcmp(calls[i].name, call)))
        i++;
    snprintf(calls[i].name, sizeof calls[i].name, "%s", call);
    calls[i].gpu = gpu;
    int count = ++calls[i].count;
    if (number(gpu, "Hang.", call, 0) == count)
        for (;;)
            pause();
    if (number(gpu, "Crash.", call, 0) == count)
        raise(SIGSEGV);
    if (gpu >= 0 && gpus[gpu].launches > number(gpu, "LostAfter", "", 1e9))
        return LAUNCH_FAILED;
    snprintf(key, sizeof key, "Fail.%s", call);
    const char *fail = find(gpu, key), *from = fail ? strchr(fail, '@') : NULL;
    return fail && count >= (from ? atoi(from + 1) : 1) ? atoi(fail) : SUCCESS;
}

#define ENTER(gpu) do { int code = enter(__func__, (gpu)); if (code) return code; } while (0)
#define ENTER_CURRENT do { if (current < 0) return INVALID_CONTEXT; ENTER(current); } while (0)

static void record_context(int gpu, int exists)
{
    char path[320];
    const char *directory = find(ALL, "Contexts");
    if (!directory)
        return;
    snprintf(path, sizeof path, "%s/%d.%d", directory, getpid(), gpu);
    if (!exists) {
        unlink(path);
        return;
    }
    FILE *file = fopen(path, "w");
    if (file)
        fclose(file);
}

int cuInit(unsigned flags)
{
    (void)flags;
    FILE *file = fopen(getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : "", "r");
    char text[400], gpu[16];
    for (line_count = 0; file && line_count < MAX_LINES && fgets(text, sizeof text, file);) {
        struct line *line = &lines[line_count];
        if (sscanf(text, "%15s %63s %255s", gpu, line->key, line->value) == 3) {
            line->gpu = *gpu == '*' ? ALL : atoi(gpu);
            line_count++;
        }
    }
    if (file)
        fclose(file);
    ENTER(ALL);
    ready = 1;
    return number(ALL, "Count", "", 0) > 0 ? SUCCESS : NO_DEVICE;
}

int cuGetErrorName(int code, const char **name)
{
    static const struct { int code; const char *name; } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {218, "CUDA_ERROR_INVALID_PTX"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}, {999, "CUDA_ERROR_UNKNOWN"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return SUCCESS;
        }
    *name = NULL;
    return INVALID_VALUE;
}

int cuDeviceGetCount(int *count)
{
    ENTER(ALL);
    *count = (int)number(ALL, "Count", "", 0);
    return ready ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int index)
{
    ENTER(index);
    *device = index;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *name, int size, int device)
{
    ENTER(device);
    snprintf(name, (size_t)size, "0000:%02x:00.0", 6 + device);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER(device);
    *value = attribute == 16 ? SMS : attribute == 38 ? L2 : attribute == 75 ? (int)number(device, "Major", "", 9)
             : attribute == 76 ? (int)number(device, "Minor", "", 0) : 0;
    return SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)peer;
    ENTER(device);
    *can = !number(device, "NoPeer", "", 0);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER(device);
    gpus[device].contexts++;
    record_context(device, 1);
    *context = (void *)(intptr_t)(device + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER(device);
    if (--gpus[device].contexts == 0)
        record_context(device, 0);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    int gpu = (int)(intptr_t)context - 1;
    ENTER(gpu);
    current = gpu;
    return SUCCESS;
}

int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    (void)context, (void)flags;
    ENTER_CURRENT;
    return SUCCESS;
}

int cuModuleLoadData(void **module, const char *text)
{
    ENTER_CURRENT;
    if (strncmp(text, ".version", 8))
        return INVALID_PTX;
    *module = (void *)text;
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    ENTER_CURRENT;
    *function = strdup(name);
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT;
    struct stream *made = calloc(1, sizeof *made);
    made->gpu = current;
    *stream = made;
    return SUCCESS;
}

int cuStreamSynchronize(void *stream)
{
    ENTER(((struct stream *)stream)->gpu);
    return SUCCESS;
}

int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT;
    *event = calloc(1, sizeof(struct event));
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream)
{
    ENTER_CURRENT;
    ((struct event *)event)->at = ((struct stream *)stream)->now;
    return SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    ENTER_CURRENT;
    *milliseconds = (float)((((struct event *)end)->at - ((struct event *)start)->at) * 1e3);
    return SUCCESS;
}

/* ---- Memory: each allocation has its size in front. ---- */

int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    ENTER_CURRENT;
    *total = (size_t)number(current, "FreeMiB", "", 32) << 20;
    *left = *total - gpus[current].used;
    return SUCCESS;
}

int cuMemAlloc_v2(u64 *address, size_t size)
{
    ENTER_CURRENT;
    if (gpus[current].used + size > (size_t)number(current, "FreeMiB", "", 32) << 20)
        return OUT_OF_MEMORY;
    size_t *block = calloc(1, size + 64);
    *block = size;
    gpus[current].used += size;
    *address = (u64)(uintptr_t)((char *)block + 64);
    return SUCCESS;
}

int cuMemFree_v2(u64 address)
{
    ENTER_CURRENT;
    size_t *block = (size_t *)((char *)(uintptr_t)address - 64);
    gpus[current].used -= *block;
    free(block);
    return SUCCESS;
}

int cuMemHostAlloc(void **address, size_t size, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT;
    *address = malloc(size);
    return SUCCESS;
}

static void work(struct stream *stream, const char *what, double size, double rate)
{
    stream->now += size / number(stream->gpu, "Rate.", what, rate);
}

int cuMemsetD32Async(u64 address, unsigned value, size_t count, void *stream)
{
    (void)stream;
    ENTER_CURRENT;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)address)[i] = value;
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *host, u64 device, size_t size)
{
    ENTER_CURRENT;
    memcpy(host, (void *)(uintptr_t)device, size);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(u64 device, const void *host, size_t size, void *stream)
{
    (void)device, (void)host;
    ENTER_CURRENT;
    work(stream, "pcie_to_gpu", (double)size, 55.2e9);
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *host, u64 device, size_t size, void *stream)
{
    (void)device, (void)host;
    ENTER_CURRENT;
    work(stream, "pcie_from_gpu", (double)size, 55.2e9);
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(u64 target, u64 source, size_t size, void *stream)
{
    (void)target, (void)source;
    ENTER_CURRENT;
    work(stream, "memory_copy", 2.0 * (double)size, 3.01e12);
    return SUCCESS;
}

int cuMemcpyPeerAsync(u64 target, void *peer, u64 source, void *context, size_t size, void *stream)
{
    char what[32];
    (void)target, (void)source, (void)context;
    ENTER_CURRENT;
    snprintf(what, sizeof what, "nvlink.%d", (int)(intptr_t)peer - 1);
    work(stream, what, (double)size, number(current, "Rate.", "nvlink", 397.5e9));
    return SUCCESS;
}

/* ---- Kernels. The constants come from gpu_exporter/active_checks/kernels.py. ---- */

static unsigned bits_of(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static unsigned word(u64 index, unsigned seed)
{
    unsigned mixed = (unsigned)(index ^ index >> 32) * 0x9E3779B1u;
    return mixed ^ mixed >> 15 ^ seed;
}

/* The checksum of a thread after so many iterations with ones. */
static unsigned ones(const char *name, unsigned iterations)
{
    int fp32 = !strcmp(name, "fp32"), sync = !strcmp(name, "bf16_sync");
    int accumulators = fp32 ? FP32_CHAINS : sync ? 4 * SYNC_TILES : GROUP_ACCUMULATORS;
    float rise = (float)(fp32 ? FP32_STEPS : 16 * (sync ? SYNC_STEPS : GROUP_STEPS));
    unsigned sum = 0;
    for (int i = 0; i < accumulators; i++)
        sum = sum * MULTIPLIER + bits_of((float)(fp32 ? i : sync ? i / 4 : 0) + rise * (float)iterations);
    return sum;
}

static void arithmetic(const char *name, struct stream *stream, unsigned blocks, unsigned threads, void **arguments)
{
    unsigned *out = *(unsigned **)arguments[0], iterations = *(unsigned *)arguments[1];
    int with_ones = *(unsigned *)arguments[2] != 0, fp32 = !strcmp(name, "fp32");
    double of_block = fp32 ? FP32_WORK : !strcmp(name, "bf16_sync") ? SYNC_WORK : GROUP_WORK;
    double wrong = number(stream->gpu, "Wrong.", name, -1), sum = number(stream->gpu, "Sum.", name, 0);
    unsigned right = ones(name, iterations);
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned thread = 0; thread < threads; thread++)
            out[block * threads + thread] = with_ones ? right + (unsigned)sum : thread * 2654435761u + (block == wrong);
    work(stream, fp32 ? "fp32" : "bf16", of_block * iterations * blocks, fp32 ? 66e12 : 895e12);
}

static void verify(void **arguments)
{
    unsigned *data = *(unsigned **)arguments[0], seed = *(unsigned *)arguments[2], *errors = *(unsigned **)arguments[3];
    u64 words = *(u64 *)arguments[1] * 4;
    for (u64 index = 0; index < words; index++) {
        unsigned right = word(index, seed);
        if (data[index] == right)
            continue;
        unsigned count = (*errors)++;
        if (count < MOST_ERRORS) {
            unsigned *record = errors + 4 + 4 * count;
            memcpy(record, &index, sizeof index);
            record[2] = right;
            record[3] = data[index];
        }
    }
}

int cuLaunchKernel(void *function, unsigned blocks, unsigned by, unsigned bz, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    const char *name = function;
    (void)by, (void)bz, (void)ty, (void)tz, (void)shared, (void)extra;
    ENTER_CURRENT;
    gpus[current].launches++;
    if (!strcmp(name, "memory_read"))
        work(stream, name, 16.0 * (double)*(u64 *)arguments[1], 3.06e12);
    else if (!strcmp(name, "pattern_write")) {
        unsigned *data = *(unsigned **)arguments[0], seed = *(unsigned *)arguments[2];
        u64 words = *(u64 *)arguments[1] * 4, flip = (u64)number(current, "Flip", "", -1);
        for (u64 index = 0; index < words; index++)
            data[index] = word(index, seed);
        if (find(current, "Flip") && flip < words && (!gpus[current].flipped || gpus[current].flipped == (uintptr_t)data)) {
            gpus[current].flipped = (uintptr_t)data;
            data[flip] ^= 1u << 7;
        }
    } else if (!strcmp(name, "pattern_verify"))
        verify(arguments);
    else
        arithmetic(name, stream, blocks, threads, arguments);
    return SUCCESS;
}
