/*
 * A fake libnvidia-ml.so.1, so that tests use the real bindings without a GPU.
 *
 * What each call answers comes from a text file named by the environment variable FAKE_NVML. It is
 * looked at again on every call, so that a test changes the "hardware" under a running process; the
 * writer replaces it atomically. Without the file there is no driver.
 *
 *     <gpu index or *> <Key> <value>        a GPU's own line wins over the * line, which is the default
 *
 * Key: the function's name without "nvmlDeviceGet" or "nvml", then ".<argument>" for each enumeration
 * argument or ".<member>" for a result of several: PowerUsage, ClockInfo.1, MemoryInfo.total,
 * TotalEccErrors.1.0, RemappedRows.0, FieldValues.<field>.<scope> (else FieldValues.<field>),
 * Gpm.<metric>. A call with no line is not supported (3). A newer form of a call (see `aliases`) uses
 * the lines of the old form where it has none of its own.
 *
 * Value:  42, 0.5          a number
 *         any text         to the end of the line, for the calls that return text
 *         !15              this NVML return code; on the bare name of any call the whole call fails
 *         v@t;v@t;...      numbers or codes over time: each holds from its t (unix seconds) on, the
 *                          first one also before
 *         ~base+rate@t     a counter: base + rate * (now - t)
 * FieldValues takes a type in front: f: double, u: unsigned int, i: int; none: unsigned long long.
 *
 * Other lines:  * Count n, * Driver text, * Nvml text, * Cuda 13000, * Init !code
 *         * Loaded n       0: no driver; another number than at nvmlInit: reloaded since, so that the
 *                          library is uninitialised until the next nvmlInit
 *         * DeviceFile path  open from nvmlInit until as many nvmlShutdown, as the real library's /dev/nvidia*
 *         * Lock gpu       calls are serialised per GPU; "driver": all calls of the process are
 *         g Lost 1, g Reset 1, g Unknown 1  every call on this GPU returns 15, 16, 999
 *         g Block 1        every call on this GPU hangs, holding its lock, until the line is gone
 *         g Delay.<Call> s that call takes s seconds, or until the line is gone
 *         * WaitingFile path  created when a call begins to hang or to take its time
 *         g GpmSupported 1, g PciBusId text
 *         g MigDevice.s 1  the GPU has a MIG device in slot s (0 to 6), whose own lines are those of the "GPU"
 *                          100 * (g + 1) + s: GpuInstanceId, ComputeInstanceId, UUID, Name, Gpm.<metric>, ...
 *         g ComputeRunningProcesses pid:bytes,pid:bytes   (and Graphics..., MPSCompute...); bytes - : not reported
 *         g Xids n:code,n:code    what happened, numbered from 1 on; an event set reports those after its registration
 *         g PlatformInfo serial,slot,tray,host,module
 *         g Samples.<type> value at the time of each sample; g ClockBack s: the clock that stamped it was s seconds slow
 *         g RoomForSamples n  fewer are refused: the driver keeps more
 *         g ProcessUtilization pid:percent,pid:percent    "none": no samples
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

#ifndef DRIVER /* the control file's key for the driver's version: another library's is another */
#define DRIVER "Driver"
#endif

enum {
    SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED, VERSION_MISMATCH = 25, UNKNOWN = 999
};

/* ---- The control file: sorted lines; `table` guards it and everything read from it. ---- */

enum { ALL = -1, NO_GPU = -2, MAX_GPUS = 32, MAX_MIG = 7 };

struct entry { int gpu; const char *key, *value; };

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static size_t entry_count;
static char *contents;
static struct stat seen;

static int compare(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    return a->gpu != b->gpu ? (a->gpu > b->gpu) - (a->gpu < b->gpu) : strcmp(a->key, b->key);
}

static void refresh(void)
{
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now))
        memset(&now, 0, sizeof now);
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;

    FILE *file = now.st_ino ? fopen(path, "r") : NULL;
    if (!file || fstat(fileno(file), &now))
        memset(&now, 0, sizeof now);
    seen = now;
    contents = realloc(contents, (size_t)now.st_size + 1);
    contents[file ? fread(contents, 1, (size_t)now.st_size, file) : 0] = '\0';
    if (file)
        fclose(file);

    size_t lines = 1;
    for (const char *c = contents; *c; c++)
        lines += *c == '\n';
    entries = realloc(entries, lines * sizeof *entries);
    entry_count = 0;
    for (char *rest, *line = strtok_r(contents, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *key = strchr(line, ' '), *value = key ? strchr(key + 1, ' ') : NULL;
        if (!value)
            continue;
        *key++ = *value++ = '\0';
        entries[entry_count++] = (struct entry){*line == '*' ? ALL : atoi(line), key, value};
    }
    qsort(entries, entry_count, sizeof *entries, compare);
}

static const char *find(int gpu, const char *key)
{
    struct entry *found = NULL;
    if (entry_count && gpu != ALL)
        found = bsearch(&(struct entry){gpu, key, NULL}, entries, entry_count, sizeof *entries, compare);
    if (entry_count && !found)
        found = bsearch(&(struct entry){ALL, key, NULL}, entries, entry_count, sizeof *entries, compare);
    return found ? found->value : NULL;
}

/* ---- Values ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A value's time-weighted mean between two times, or at an instant where they are the same. */
static int evaluate(const char *value, double from, double to, double *out)
{
    char *end;
    if (!value)
        return NOT_SUPPORTED;
    if (*value && value[1] == ':')
        value += 2;
    if (*value == '~') {
        double base = strtod(value + 1, &end), rate = strtod(end, &end);
        double since = *end == '@' ? strtod(end + 1, NULL) : 0;
        *out = base + rate * ((from + to) / 2 - since);
        return SUCCESS;
    }
    double sum = 0, weight = 0, start = -INFINITY, stop;
    do {
        int code = *value == '!' ? (int)strtol(value + 1, &end, 10) : 0;
        double number = *value == '!' ? 0 : strtod(value, &end);
        if (end == value)
            return UNKNOWN;
        value = strchr(end, ';');
        const char *next = value ? strchr(++value, '@') : NULL;
        stop = next ? strtod(next + 1, NULL) : INFINITY;
        double span = from < to ? fmin(to, stop) - fmax(from, start) : start <= from && from < stop;
        if (span > 0 && code)
            return code;
        if (span > 0) {
            sum += number * span;
            weight += span;
        }
        start = stop;
    } while (value);
    *out = weight > 0 ? sum / weight : 0;
    return SUCCESS;
}

static double setting(int gpu, const char *key, double otherwise)
{
    double value, t = now();
    return evaluate(find(gpu, key), t, t, &value) ? otherwise : value;
}

static const char *aliases[][2] = {
    {"ComputeRunningProcesses_v3", "ComputeRunningProcesses"},
    {"CurrentClocksThrottleReasons", "CurrentClocksEventReasons"},
    {"FanSpeed_v2", "FanSpeed"},
    {"GraphicsRunningProcesses_v3", "GraphicsRunningProcesses"},
    {"MPSComputeRunningProcesses_v3", "MPSComputeRunningProcesses"},
    {"MemoryInfo_v2", "MemoryInfo"},
    {"RetiredPages_v2", "RetiredPages"},
    {"TemperatureV", "Temperature"},
};

/* The line of a call, with an argument or member unless that is empty. */
static const char *line_of(int gpu, const char *call, const char *part)
{
    char key[96];
    snprintf(key, sizeof key, *part ? "%s.%s" : "%s%s", call, part);
    const char *value = find(gpu, key);
    for (size_t i = 0; !value && i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(call, aliases[i][0]))
            value = line_of(gpu, aliases[i][1], part);
    return value;
}

static int failure(int gpu, const char *call)
{
    double ignored, t = now();
    const char *value = line_of(gpu, call, "");
    return value && (*value == '!' || strstr(value, ";!")) ? evaluate(value, t, t, &ignored) : SUCCESS;
}

/* ---- Calls ---- */

struct gpu { pthread_mutex_t lock; };

static struct gpu gpus[MAX_GPUS] = {[0 ... MAX_GPUS - 1] = {PTHREAD_MUTEX_INITIALIZER}};
static struct gpu migs[MAX_GPUS][MAX_MIG];
static struct gpu driver = {PTHREAD_MUTEX_INITIALIZER}; /* stands for the calls that have no GPU */
static __thread pthread_mutex_t *held;
static int users;
static double generation;
static int device_file = -1;

static void use_device_file(void)
{
    const char *path = users ? find(ALL, "DeviceFile") : NULL;
    if (path && device_file < 0)
        device_file = open(path, O_RDONLY | O_CLOEXEC);
    if (!users && device_file >= 0)
        device_file = close(device_file) - 1;
}

static int number_of(const struct gpu *device)
{
    for (int i = 0; i < MAX_GPUS; i++)
        if (device == &gpus[i])
            return i;
        else if (device >= migs[i] && device < migs[i] + MAX_MIG)
            return 100 * (i + 1) + (int)(device - migs[i]);
    return device == &driver ? ALL : NO_GPU;
}

static int mig_exists(int gpu, int slot)
{
    char key[32];
    snprintf(key, sizeof key, "MigDevice.%d", slot);
    return setting(gpu, key, 0) != 0;
}

static void pause_for(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)(1e9 * fmod(seconds, 1))};
    pthread_mutex_unlock(&table);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&table);
    refresh();
}

static double monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void create_waiting_file(void)
{
    const char *path = find(ALL, "WaitingFile");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0)
        close(file);
}

/* Begins a call: takes its turn, hangs and takes its time as configured. The caller then has the table. */
static int enter(struct gpu *device, const char *call)
{
    int number = number_of(device), gpu = number < 100 ? number : number / 100 - 1;
    char delay[96];
    snprintf(delay, sizeof delay, "Delay.%s", call);

    pthread_mutex_lock(&table);
    refresh();
    const char *scope = find(ALL, "Lock");
    held = scope && !strcmp(scope, "driver") ? &driver.lock : gpu >= 0 ? &gpus[gpu].lock : NULL;
    if (held) {
        pthread_mutex_unlock(&table);
        pthread_mutex_lock(held);
        pthread_mutex_lock(&table);
        refresh();
    }
    if ((gpu >= 0 && setting(gpu, "Block", 0)) || setting(gpu, delay, 0) > 0)
        create_waiting_file();
    while (gpu >= 0 && setting(gpu, "Block", 0))
        pause_for(0.02);
    double end = monotonic() + setting(gpu, delay, 0);
    for (double left; (left = end - monotonic()) > 0 && setting(gpu, delay, 0) > 0;)
        pause_for(fmin(left, 0.05));

    double loaded = setting(ALL, "Loaded", entry_count > 0);
    if (!loaded || loaded != generation) {
        users = 0;
        use_device_file();
    }
    if (!strcmp(call, "Init")) {
        generation = loaded;
        return loaded ? failure(ALL, call) : DRIVER_NOT_LOADED;
    }
    if (!users)
        return UNINITIALIZED;
    if (gpu == NO_GPU)
        return INVALID_ARGUMENT;
    if (gpu >= 0 && setting(gpu, "Unknown", 0))
        return 999;
    if (gpu >= 0 && setting(gpu, "Lost", 0))
        return GPU_IS_LOST;
    if (gpu >= 0 && setting(gpu, "Reset", 0))
        return RESET_REQUIRED;
    if (number >= 100 && !mig_exists(gpu, number % 100))
        return NOT_FOUND;
    return failure(number, call);
}

static int leave(int status)
{
    pthread_mutex_unlock(&table);
    if (held)
        pthread_mutex_unlock(held);
    return status;
}

enum kind { INT, U64 };
#define KIND(pointer) _Generic(*(pointer), int: INT, unsigned: INT, u64: U64)

struct part { const char *name; void *out; };
#define PARTS(...) ((const struct part[]){__VA_ARGS__, {NULL, NULL}})

static const char *join(char *buffer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, 48, format, arguments);
    va_end(arguments);
    return buffer;
}
#define ARGUMENTS(...) join((char[48]){0}, __VA_ARGS__)

/* A call that returns numbers, each under its own key. */
static int numbers(struct gpu *device, const char *call, enum kind kind, const struct part *part)
{
    int status = enter(device, call), gpu = number_of(device);
    double value, t = now();
    for (; !status && part->name; part++) {
        status = part->out ? evaluate(line_of(gpu, call, part->name), t, t, &value) : INVALID_ARGUMENT;
        if (!status && kind == U64)
            *(u64 *)part->out = (u64)(long long)value;
        else if (!status)
            *(unsigned *)part->out = (unsigned)(long long)value; /* or an int: the same bits */
    }
    return leave(status);
}

static int text(struct gpu *device, const char *call, const char *key, char *out, unsigned size)
{
    int status = enter(device, call), gpu = number_of(device);
    const char *value = find(gpu, key);
    if (!status)
        status = failure(gpu, key);
    if (!status)
        status = !value ? NOT_SUPPORTED : strlen(value) >= size ? INSUFFICIENT_SIZE : SUCCESS;
    if (!status)
        strcpy(out, value);
    return leave(status);
}

#define CALL(name, arguments, kind, ...) \
    int nvmlDeviceGet##name arguments { return numbers(device, #name, kind, PARTS(__VA_ARGS__)); }
#define NUMBER(name, type) CALL(name, (struct gpu *device, type *out), KIND(out), {"", out})
#define INDEXED(name, type) \
    CALL(name, (struct gpu *device, unsigned index, type *out), KIND(out), {ARGUMENTS("%u", index), out})
#define PAIR(name, type, first, second) \
    CALL(name, (struct gpu *device, type *a, type *b), KIND(a), {#first, a}, {#second, b})
#define PERCENT(name) /* over the driver's own period, in microseconds */ \
    int nvmlDeviceGet##name(struct gpu *device, unsigned *out, unsigned *period) \
    { *period = 166667; return numbers(device, #name, INT, PARTS({"", out})); }
#define STRUCT(name, type, kind, ...) CALL(name, (struct gpu *device, struct type *out), kind, __VA_ARGS__)
#define VERSIONED(name, type, number, kind, ...) \
    int nvmlDeviceGet##name(struct gpu *device, struct type *out) \
    { return out->version != (sizeof *out | number << 24) ? VERSION_MISMATCH \
                                                          : numbers(device, #name, kind, PARTS(__VA_ARGS__)); }
#define TEXT(name) \
    int nvmlDeviceGet##name(struct gpu *device, char *out, unsigned size) \
    { return text(device, #name, #name, out, size); }

/* ---- The library ---- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int status = enter(&driver, "Init");
    users += !status;
    use_device_file();
    return leave(status);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    int status = enter(&driver, "Shutdown");
    users -= !status;
    use_device_file();
    return leave(status);
}

const char *nvmlErrorString(int code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated", "Not Ready",
        "GPU not found", "Invalid state", "Reset type not supported",
    };
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(&driver, "Driver", DRIVER, out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text(&driver, "Nvml", "Nvml", out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) { return numbers(&driver, "Cuda", INT, PARTS({"", out})); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
int nvmlDeviceGetCount_v2(unsigned *out) { return numbers(&driver, "Count", INT, PARTS({"", out})); }

/* ---- Handles and identity ---- */

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **out)
{
    unsigned count;
    int status = nvmlDeviceGetCount_v2(&count);
    if (status || index >= count || index >= MAX_GPUS)
        return status ? status : INVALID_ARGUMENT;
    *out = &gpus[index];
    return leave(enter(*out, "HandleByIndex"));
}

static int same_address(const char *left, const char *right)
{
    unsigned a[4], b[4];
    return sscanf(left, "%x:%x:%x.%x", a, a + 1, a + 2, a + 3) == 4 &&
           sscanf(right, "%x:%x:%x.%x", b, b + 1, b + 2, b + 3) == 4 && !memcmp(a, b, sizeof a);
}

static int handle_by(const char *call, const char *key, const char *wanted, struct gpu **out)
{
    int status = enter(&driver, call), count = (int)setting(ALL, "Count", 0), gpu = 0;
    for (const char *value; gpu < count && gpu < MAX_GPUS; gpu++)
        if ((value = find(gpu, key)) && (!strcmp(value, wanted) || same_address(value, wanted)))
            break;
    if (!status && (gpu == count || gpu == MAX_GPUS))
        status = NOT_FOUND;
    leave(status);
    return status ? status : nvmlDeviceGetHandleByIndex_v2((unsigned)gpu, out);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **out)
{ return handle_by("HandleByUUID", "UUID", uuid, out); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct gpu **out)
{ return handle_by("HandleByPciBusId", "PciBusId", address, out); }

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char address[32]; };

int nvmlDeviceGetPciInfo_v3(struct gpu *device, struct pci *out)
{
    memset(out, 0, sizeof *out);
    int status = text(device, "PciInfo", "PciBusId", out->address, sizeof out->address);
    if (!status && sscanf(out->address, "%x:%x:%x", &out->domain, &out->bus, &out->device) == 3)
        snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff,
                 out->device & 0xff);
    return status;
}

TEXT(UUID)
TEXT(Name)
TEXT(Serial)
TEXT(VbiosVersion)
TEXT(InforomImageVersion)
NUMBER(Index, unsigned)
NUMBER(MinorNumber, unsigned)
NUMBER(NumaNodeId, int)
NUMBER(Architecture, unsigned)
NUMBER(Brand, unsigned)
NUMBER(NumGpuCores, unsigned)
NUMBER(MemoryBusWidth, unsigned)
PAIR(CudaComputeCapability, int, major, minor)
PAIR(MigMode, unsigned, current, pending)
NUMBER(PersistenceMode, unsigned)

/* ---- Activity, power, heat, clocks, links ---- */

struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int value; };
struct margin { unsigned version; int value; };

STRUCT(UtilizationRates, utilization, INT, {"gpu", &out->gpu}, {"memory", &out->memory})
PERCENT(EncoderUtilization)
PERCENT(DecoderUtilization)
PERCENT(JpgUtilization)
PERCENT(OfaUtilization)
NUMBER(PerformanceState, unsigned)
NUMBER(PowerUsage, unsigned)
NUMBER(EnforcedPowerLimit, unsigned)
NUMBER(PowerManagementLimit, unsigned)
NUMBER(PowerManagementDefaultLimit, unsigned)
CALL(P2PStatus, (struct gpu *device, struct gpu *other, int caps, int *out), INT,
     {ARGUMENTS("%d.%d", caps, number_of(other)), out})
PAIR(PowerManagementLimitConstraints, unsigned, min, max)
NUMBER(TotalEnergyConsumption, u64)
INDEXED(Temperature, unsigned)
VERSIONED(TemperatureV, temperature, 1, INT, {ARGUMENTS("%u", out->sensor), &out->value})
INDEXED(TemperatureThreshold, unsigned)
VERSIONED(MarginTemperature, margin, 1, INT, {"", &out->value})
NUMBER(NumFans, unsigned)
NUMBER(FanSpeed, unsigned)
INDEXED(FanSpeed_v2, unsigned)
INDEXED(ClockInfo, unsigned)
INDEXED(MaxClockInfo, unsigned)
NUMBER(CurrentClocksEventReasons, u64)
NUMBER(CurrentClocksThrottleReasons, u64)
NUMBER(CurrPcieLinkGeneration, unsigned)
NUMBER(CurrPcieLinkWidth, unsigned)
NUMBER(MaxPcieLinkGeneration, unsigned)
NUMBER(MaxPcieLinkWidth, unsigned)
NUMBER(PcieReplayCounter, unsigned)
INDEXED(PcieThroughput, unsigned)
INDEXED(NvLinkState, unsigned)

/* ---- Memory and its faults ---- */

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct sram { unsigned version; u64 counts[11]; unsigned exceeded; };
struct repair { unsigned version, channel, tpc; };
struct fabric { unsigned version; unsigned char cluster[16]; unsigned status, clique, state, mask; };
struct confidential { u64 protected, unprotected; };
struct histogram { unsigned max, high, partial, low, none; };

int nvmlDeviceGetMemoryInfo(struct gpu *device, struct memory *out)
{
    u64 reserved = 0;
    int status = numbers(device, "MemoryInfo", U64, PARTS({"total", &out->total}, {"reserved", &reserved},
                                                          {"free", &out->free}, {"used", &out->used}));
    out->used += reserved; /* the first version of the call does not separate them */
    return status;
}

VERSIONED(MemoryInfo_v2, memory_v2, 2, U64, {"total", &out->total}, {"reserved", &out->reserved},
          {"free", &out->free}, {"used", &out->used})
STRUCT(BAR1MemoryInfo, memory, U64, {"total", &out->total}, {"free", &out->free}, {"used", &out->used})
PAIR(EccMode, unsigned, current, pending)
CALL(TotalEccErrors, (struct gpu *device, unsigned error, unsigned counter, u64 *out), U64,
     {ARGUMENTS("%u.%u", error, counter), out})
CALL(MemoryErrorCounter, (struct gpu *device, unsigned error, unsigned counter, unsigned place, u64 *out), U64,
     {ARGUMENTS("%u.%u.%u", error, counter, place), out})
CALL(RemappedRows, (struct gpu *device, unsigned *corrected, unsigned *other, unsigned *pending, unsigned *failed),
     INT, {"0", corrected}, {"1", other}, {"2", pending}, {"3", failed})
STRUCT(RowRemapperHistogram, histogram, INT, {"max", &out->max}, {"high", &out->high}, {"partial", &out->partial},
       {"low", &out->low}, {"none", &out->none})
NUMBER(RetiredPagesPendingStatus, unsigned)
NUMBER(ComputeMode, unsigned)
STRUCT(ConfComputeMemSizeInfo, confidential, U64, {"protected", &out->protected}, {"unprotected", &out->unprotected})
VERSIONED(SramEccErrorStatus, sram, 1, INT, {"bThresholdExceeded", &out->exceeded})
VERSIONED(RepairStatus, repair, 1, INT, {"channel", &out->channel}, {"tpc", &out->tpc})
VERSIONED(GpuFabricInfoV, fabric, 2, INT, {"state", &out->state}, {"status", &out->status}, {"mask", &out->mask},
          {"clique", &out->clique}, {"cluster", out->cluster})

struct platform { unsigned version; char guid[16], serial[16]; unsigned char slot, tray, host, peer, module; };

int nvmlDeviceGetPlatformInfo(struct gpu *device, struct platform *out)
{
    char found[64];
    int status = out->version != (sizeof *out | 2 << 24) ? VERSION_MISMATCH
                                                         : text(device, "PlatformInfo", "PlatformInfo", found, sizeof found);
    if (!status)
        sscanf(found, "%15[^,],%hhu,%hhu,%hhu,%hhu", out->serial, &out->slot, &out->tray, &out->host, &out->module);
    return status;
}

int nvmlDeviceValidateInforom(struct gpu *device)
{
    unsigned answer;
    return numbers(device, "ValidateInforom", INT, PARTS({"", &answer}));
}

static int retired_pages(struct gpu *device, const char *call, unsigned cause, unsigned *count, u64 *pages, u64 *times)
{
    unsigned room = *count;
    int status = numbers(device, call, INT, PARTS({ARGUMENTS("%u", cause), count}));
    if (!status && *count > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; !status && pages && i < *count; i++) {
        pages[i] = 0x10000 * (i + 1);
        if (times)
            times[i] = (u64)(now() * 1e6);
    }
    return status;
}

int nvmlDeviceGetRetiredPages(struct gpu *device, unsigned cause, unsigned *count, u64 *pages)
{ return retired_pages(device, "RetiredPages", cause, count, pages, NULL); }

int nvmlDeviceGetRetiredPages_v2(struct gpu *device, unsigned cause, unsigned *count, u64 *pages, u64 *times)
{ return retired_pages(device, "RetiredPages_v2", cause, count, pages, times); }

/* ---- MIG ---- */

struct attributes { unsigned sms, engines[5], gpu_slices, compute_slices; u64 memory_mib; };

NUMBER(GpuInstanceId, unsigned)
NUMBER(ComputeInstanceId, unsigned)
STRUCT(Attributes_v2, attributes, INT, {"gpuInstanceSliceCount", &out->gpu_slices})

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *device, unsigned *out)
{
    *out = MAX_MIG;
    return leave(enter(device, "MaxMigDeviceCount"));
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *device, unsigned slot, struct gpu **out)
{
    int status = enter(device, "MigDeviceHandleByIndex"), gpu = number_of(device);
    if (!status && (slot >= MAX_MIG || !mig_exists(gpu, (int)slot)))
        status = NOT_FOUND;
    if (!status)
        *out = &migs[gpu][slot];
    return leave(status);
}

/* ---- Processes: a list in the text of a line ---- */

struct process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
struct use { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; };

static unsigned listed(const char *value)
{
    unsigned count = 0;
    for (; value && (value = strchr(value, ':')); value++)
        count++;
    return count;
}

static int processes(struct gpu *device, const char *call, unsigned *count, struct process *out)
{
    int status = enter(device, call);
    const char *value = line_of(number_of(device), call, "");
    unsigned room = *count, found = listed(value);
    if (!status && !value)
        status = NOT_SUPPORTED;
    *count = found;
    if (!status && found > room)
        status = INSUFFICIENT_SIZE;
    for (unsigned i = 0; !status && i < found; i++, value = strchr(value, ',') + 1) {
        char *end;
        out[i] = (struct process){(unsigned)strtoul(value, &end, 10), 0, ~0u, ~0u};
        out[i].memory = end[1] == '-' ? ~0ull : strtoull(end + 1, &end, 10);
        if (i + 1 == found)
            break;
    }
    return leave(status);
}

#define PROCESSES(kind) \
    int nvmlDeviceGet##kind##RunningProcesses_v3(struct gpu *device, unsigned *count, struct process *out) \
    { return processes(device, #kind "RunningProcesses_v3", count, out); }
PROCESSES(Compute)
PROCESSES(Graphics)
PROCESSES(MPSCompute)

int nvmlDeviceGetProcessUtilization(struct gpu *device, struct use *out, unsigned *count, u64 since)
{
    int status = enter(device, "ProcessUtilization");
    const char *value = line_of(number_of(device), "ProcessUtilization", "");
    unsigned room = out ? *count : 0, found = listed(value);
    u64 time = (u64)(now() * 1e6);
    if (!status)
        status = !value ? NOT_SUPPORTED : !found || since >= time ? NOT_FOUND : SUCCESS;
    *count = found;
    if (!status && found > room)
        status = INSUFFICIENT_SIZE;
    for (unsigned i = 0; !status && i < found; i++, value = strchr(value, ',') + 1) {
        char *end;
        out[i] = (struct use){(unsigned)strtoul(value, &end, 10), time, 0, 0, 0, 0};
        out[i].sm = (unsigned)strtoul(end + 1, NULL, 10);
        if (i + 1 == found)
            break;
    }
    return leave(status);
}

/* ---- Events ---- */

struct event_set { struct gpu *device; unsigned long reported; };
struct event { struct gpu *device; u64 type, data; unsigned gpu_instance, compute_instance; };

/* The first Xid after a number; the number of the last one if there is none. */
static unsigned long xid_after(int gpu, unsigned long reported, u64 *code)
{
    unsigned long last = reported;
    const char *value = find(gpu, "Xids");
    for (char *end; value && *value; value = *end == ',' ? end + 1 : "") {
        unsigned long number = strtoul(value, &end, 10);
        u64 found = strtoull(end + (*end == ':'), &end, 10);
        if (number > reported && code) {
            *code = found;
            return number;
        }
        last = number;
    }
    return last;
}

int nvmlEventSetCreate(struct event_set **out)
{
    int status = enter(&driver, "EventSetCreate");
    if (!status && (*out = malloc(sizeof **out)))
        **out = (struct event_set){NULL, 0};
    return leave(status);
}

int nvmlDeviceRegisterEvents(struct gpu *device, u64 types, struct event_set *set)
{
    int status = enter(device, "RegisterEvents");
    if (!status && types == 8)
        *set = (struct event_set){device, xid_after(number_of(device), 0, NULL)};
    return leave(status);
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned milliseconds)
{
    (void)milliseconds; /* never waits: the exporter only polls */
    int status = enter(&driver, "EventSetWait");
    u64 code = 0;
    unsigned long number = set->device ? xid_after(number_of(set->device), set->reported, &code) : 0;
    if (!status && !code)
        status = TIMEOUT;
    if (!status) {
        set->reported = number;
        *out = (struct event){set->device, 8, code, ~0u, ~0u};
    }
    return leave(status);
}

int nvmlEventSetFree(struct event_set *set)
{
    int status = enter(&driver, "EventSetFree");
    if (!status)
        free(set);
    return leave(status);
}

/* ---- Field values ---- */

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type, status;
    union { double d; unsigned u; int i; u64 ull; } value;
};

int nvmlDeviceGetFieldValues(struct gpu *device, int count, struct field *fields)
{
    /* NVIDIA's (580, H200) then reads past the end, and writes to what it takes for another one. */
    if (count > 0 && fields[count - 1].id >= 161 && fields[count - 1].id <= 163)
        abort();
    int status = enter(device, "FieldValues"), gpu = number_of(device);
    double value = 0, t = now();
    for (struct field *field = fields; !status && field < fields + count; field++) {
        const char *line = line_of(gpu, "FieldValues", ARGUMENTS("%u.%u", field->id, field->scope));
        if (!line)
            line = line_of(gpu, "FieldValues", ARGUMENTS("%u", field->id));
        field->status = (unsigned)evaluate(line, t, t, &value);
        field->timestamp = (long long)(t * 1e6);
        field->latency = 1;
        field->value.ull = 0;
        if (field->status)
            continue;
        if (line[0] == 'f' && line[1] == ':')
            field->type = 0, field->value.d = value;
        else if (line[0] == 'u' && line[1] == ':')
            field->type = 1, field->value.u = (unsigned)(long long)value;
        else if (line[0] == 'i' && line[1] == ':')
            field->type = 5, field->value.i = (int)value;
        else
            field->type = 3, field->value.ull = (u64)(long long)value;
    }
    return leave(status);
}

/* ---- Buffered samples, stamped with whole multiples of their period: of power, one each 20 ms for 2.4 s; others, one
 * each 200 ms for 14 s ---- */

struct buffered { u64 time; union { unsigned u; u64 ull; } value; };

int nvmlDeviceGetSamples(struct gpu *device, unsigned kind, u64 last, unsigned *type, unsigned *count,
                         struct buffered *out)
{
    const u64 step = kind ? 200000 : 20000, kept = kind ? 71 : 120;
    int status = enter(device, "Samples"), gpu = number_of(device);
    const char *line = line_of(gpu, "Samples", ARGUMENTS("%u", kind)), *clock = find(gpu, "ClockBack");
    double value = 0, back, t = now();
    u64 newest = (u64)(t * 1e6) / step, n = 0;
    if (!status)
        status = evaluate(line, t, t, &value);
    if (!status && out && *count < (u64)setting(gpu, "RoomForSamples", 0))
        status = INSUFFICIENT_SIZE;
    for (u64 k = newest - (kept - 1); !status && k <= newest && (!out || n < *count); k++) {
        double at = (double)(k * step) / 1e6; /* a clock that was set shows in the samples since then */
        u64 stamp = k * step - (evaluate(clock, at, at, &back) ? 0 : (u64)(back * 1e6));
        if (stamp <= last)
            continue;
        if (out) {
            status = evaluate(line, at, at, &value);
            out[n].time = stamp;
            out[n].value.ull = 0;
            out[n].value.u = (unsigned)value;
        }
        n++;
    }
    if (!status && !n)
        status = NOT_FOUND;
    *type = 1;
    *count = (unsigned)n;
    return leave(status);
}

/* ---- GPU performance monitoring: the mean between two samples ---- */

struct sample { int gpu; double time; };
struct support { unsigned version, supported; };
struct metric { unsigned id, status; double value; const char *names[3]; };
struct metrics { unsigned version, count; struct sample *first, *second; struct metric metrics[]; };

int nvmlGpmQueryDeviceSupport(struct gpu *device, struct support *out)
{
    int status = enter(device, "GpmQueryDeviceSupport");
    if (!status)
        out->supported = setting(number_of(device), "GpmSupported", 0) != 0;
    return leave(status);
}

int nvmlGpmSampleAlloc(struct sample **out)
{
    int status = enter(&driver, "GpmSampleAlloc");
    if (!status && (*out = malloc(sizeof **out)))
        **out = (struct sample){NO_GPU, 0};
    return leave(status);
}

int nvmlGpmSampleFree(struct sample *sample)
{
    int status = enter(&driver, "GpmSampleFree");
    if (!status)
        free(sample);
    return leave(status);
}

int nvmlGpmSampleGet(struct gpu *device, struct sample *sample)
{
    int status = enter(device, "GpmSampleGet"), gpu = number_of(device);
    if (!status && !setting(gpu, "GpmSupported", 0))
        status = NOT_SUPPORTED;
    if (!status)
        *sample = (struct sample){gpu, now()};
    return leave(status);
}

int nvmlGpmMigSampleGet(struct gpu *device, unsigned instance, struct sample *sample)
{
    int status = enter(device, "GpmMigSampleGet"), gpu = number_of(device), found = NO_GPU;
    if (!status && !setting(gpu, "GpmSupported", 0))
        status = NOT_SUPPORTED;
    for (int slot = 0; !status && slot < MAX_MIG; slot++)
        if (mig_exists(gpu, slot) && setting(100 * (gpu + 1) + slot, "GpuInstanceId", -1) == instance)
            found = 100 * (gpu + 1) + slot;
    if (!status && found == NO_GPU)
        status = NOT_FOUND;
    if (!status)
        *sample = (struct sample){found, now()};
    return leave(status);
}

int nvmlGpmMetricsGet(struct metrics *request)
{
    int status = enter(&driver, "GpmMetricsGet");
    const struct sample *first = request->first, *second = request->second;
    if (!status && request->version != 1)
        status = VERSION_MISMATCH;
    if (!status && (!first || !second || first->gpu < 0 || first->gpu != second->gpu || first->time >= second->time))
        status = INVALID_ARGUMENT;
    if (!status)
        status = failure(first->gpu, "GpmMetricsGet");
    for (unsigned i = 0; !status && i < request->count; i++) {
        struct metric *metric = &request->metrics[i];
        const char *line = line_of(first->gpu, "Gpm", ARGUMENTS("%u", metric->id));
        metric->status = (unsigned)evaluate(line, first->time, second->time, &metric->value);
        if (second->time - first->time < 0.1)
            metric->value /= 10; /* the real driver's trap: too short a time, a wrong value and no error */
    }
    return leave(status);
}
