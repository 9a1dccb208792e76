/*
 * Loaded before every other library of a process whose work is counted (LD_PRELOAD).
 *
 * - Its clock stands still until `count_advance`, so that nothing depends on the speed of the machine.
 * - Nothing is counted before `count_start` or after `count_stop`, where callgrind is several times as fast.
 * - `count_begin` and `count_end` delimit what is counted: under callgrind, instructions, which `count_end` writes to a
 *   file that bears a name; else, what Python's allocators are asked for.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <time.h>
#include <valgrind/callgrind.h>

/* ---- The clock ---- */

static const time_t UNIX = 1800000000;
static time_t seconds = 100000; /* since the boot */

void count_advance(int by) { seconds += by; }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    *now = (struct timespec){clock == CLOCK_REALTIME ? UNIX + seconds : seconds, 0};
    return 0;
}

/* ---- Python's allocators ---- */

struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

extern void PyMem_GetAllocator(int domain, struct allocator *) __attribute__((weak));
extern void PyMem_SetAllocator(int domain, struct allocator *) __attribute__((weak));

enum { DOMAINS = 3 }; /* raw, memory, objects */

static struct allocator allocators[DOMAINS];
static int wrapped, counting;
static long long bytes;

static void *count_malloc(void *of, size_t size)
{
    const struct allocator *to = of;
    bytes += counting ? (long long)size : 0;
    return to->malloc(to->context, size);
}

static void *count_calloc(void *of, size_t number, size_t size)
{
    const struct allocator *to = of;
    bytes += counting ? (long long)(number * size) : 0;
    return to->calloc(to->context, number, size);
}

static void *count_realloc(void *of, void *block, size_t size)
{
    const struct allocator *to = of;
    bytes += counting ? (long long)size : 0;
    return to->realloc(to->context, block, size);
}

static void count_free(void *of, void *block)
{
    const struct allocator *to = of;
    to->free(to->context, block);
}

static void wrap_allocators(void)
{
    wrapped = 1;
    for (int domain = 0; domain < DOMAINS; domain++) {
        PyMem_GetAllocator(domain, &allocators[domain]);
        PyMem_SetAllocator(domain, &(struct allocator){
            &allocators[domain], count_malloc, count_calloc, count_realloc, count_free});
    }
}

long long count_bytes(void) { return bytes; }

/* ---- What is counted ---- */

void count_start(void)
{
    if (RUNNING_ON_VALGRIND)
        CALLGRIND_START_INSTRUMENTATION;
    else if (!wrapped)
        wrap_allocators();
}

void count_stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }

void count_begin(void)
{
    counting = 1;
    CALLGRIND_TOGGLE_COLLECT;
}

void count_end(const char *name)
{
    CALLGRIND_TOGGLE_COLLECT;
    counting = 0;
    CALLGRIND_DUMP_STATS_AT(name);
}
