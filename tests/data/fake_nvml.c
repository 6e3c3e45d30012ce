/*
 * A real libnvidia-ml.so.1 without a GPU behind it, for the tests of the NVML reader.
 *
 * Built from NVIDIA's published nvml.h, so that prototypes and structs are the true ones. SCRIPT is
 * a string of "key=value;" pairs given at compile time: "gpus=8", "name=NVIDIA H100 80GB HBM3",
 * "width=8", and for a call "nvmlDeviceGetMigMode=3" (its return code) or "...=hang" (it never
 * returns). A key with "@N" before the "=" is for GPU N alone.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SCRIPT
#define SCRIPT ""
#endif

#define MIG 64 /* handles from here on are MIG devices, eight a GPU */
static char numbers[MIG + 8 * MIG];

static const char *raw(const char *key)
{
    size_t length = strlen(key);
    const char *at = ";" SCRIPT;
    while ((at = strchr(at, ';')) != NULL) {
        at++;
        if (strncmp(at, key, length) == 0 && at[length] == '=')
            return at + length + 1;
    }
    return NULL;
}

static const char *value(int gpu, const char *key)
{
    char own[128];
    snprintf(own, sizeof own, "%s@%d", key, gpu);
    const char *found = gpu >= 0 ? raw(own) : NULL;
    return found ? found : raw(key);
}

static unsigned long long number(int gpu, const char *key, unsigned long long otherwise)
{
    const char *found = value(gpu, key);
    return found ? strtoull(found, NULL, 0) : otherwise;
}

static void text(int gpu, const char *key, const char *otherwise, char *out, unsigned int length)
{
    const char *found = value(gpu, key);
    if (found == NULL)
        found = otherwise;
    size_t size = strcspn(found, ";");
    if (size >= length)
        size = length - 1;
    memcpy(out, found, size);
    out[size] = 0;
}

static int index_of(nvmlDevice_t device) { return (int)((char *)device - numbers); }

/* What the script says of this call: go on, fail with a code, or hang. */
#define SCRIPTED(gpu)                                                                              \
    do {                                                                                           \
        const char *said = value(gpu, __func__);                                                   \
        if (said != NULL && strncmp(said, "hang", 4) == 0)                                         \
            for (;;)                                                                               \
                pause();                                                                           \
        if (said != NULL && atoi(said) != 0)                                                       \
            return (nvmlReturn_t)atoi(said);                                                       \
    } while (0)

#define DEVICE SCRIPTED(index_of(device))
#define GPU index_of(device)

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; SCRIPTED(-1); return NVML_SUCCESS; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { (void)result; return "scripted error"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    SCRIPTED(-1);
    text(-1, "driver", "580.126.09", version, length);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    text(-1, "nvml", "13.580.126.09", version, length);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SCRIPTED(-1);
    *version = (int)number(-1, "cuda", 13000);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    SCRIPTED(-1);
    *count = (unsigned int)number(-1, "gpus", 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    SCRIPTED((int)index);
    *device = (nvmlDevice_t)(numbers + index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    if (GPU >= MIG) {
        snprintf(name, length, "NVIDIA A100-SXM4-80GB MIG 1g.10gb");
        return NVML_SUCCESS;
    }
    DEVICE;
    text(GPU, "name", "NVIDIA H100 80GB HBM3", name, length);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    if (GPU >= MIG) {
        snprintf(uuid, length, "MIG-00000000-0000-5000-8000-%012d", GPU - MIG);
        return NVML_SUCCESS;
    }
    DEVICE;
    snprintf(uuid, length, "GPU-00000000-0000-4000-8000-%012d", GPU);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0",
             (unsigned int)number(GPU, "bus", 0x18 + (unsigned int)GPU));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE;
    *major = (int)number(GPU, "major", 9);
    *minor = (int)number(GPU, "minor", 0);
    return NVML_SUCCESS;
}

/* NVLink 5 counters are there with "nvlink5=1": "counter213=4" for all links of a GPU, else 0. */
static void field(int gpu, nvmlFieldValue_t *out)
{
    char key[32];
    snprintf(key, sizeof key, "counter%u", out->fieldId);
    out->nvmlReturn = NVML_SUCCESS;
    out->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    if (out->fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
        out->nvmlReturn = (nvmlReturn_t)number(gpu, "field", NVML_SUCCESS);
        out->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        out->value.uiVal = (unsigned int)number(gpu, "recovery", 0);
    } else if (number(gpu, "nvlink5", 0)) {
        out->value.ullVal = number(gpu, key, 0);
    } else {
        out->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    DEVICE;
    for (int i = 0; i < count; i++)
        field(GPU, &values[i]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    DEVICE;
    text(GPU, "gsp", "580.126.09", version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    DEVICE;
    *current = *pending = (unsigned int)number(GPU, "mig", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    DEVICE;
    *count = 7;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *mig)
{
    DEVICE;
    if (index >= number(GPU, "mig_devices", 0))
        return NVML_ERROR_NOT_FOUND;
    *mig = (nvmlDevice_t)(numbers + MIG + 8 * GPU + index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (GPU < MIG)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = 7 + (unsigned int)(GPU - MIG) % 8;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (GPU < MIG)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    DEVICE;
    *mode = (nvmlComputeMode_t)number(GPU, "compute_mode", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    DEVICE;
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE;
    memory->total = 85520809984ULL;
    memory->used = number(GPU, "used", 0);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending)
{
    DEVICE;
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *count)
{
    (void)type, (void)counter;
    DEVICE;
    *count = number(GPU, "uncorrected", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    DEVICE;
    status->bThresholdExceeded = (unsigned int)number(GPU, "sram", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failed)
{
    DEVICE;
    *correctable = 0;
    *uncorrectable = (unsigned int)number(GPU, "rows", 0);
    *pending = (unsigned int)number(GPU, "remap_pending", 0);
    *failed = (unsigned int)number(GPU, "remap_failed", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    DEVICE;
    *pending = (nvmlEnableState_t)number(GPU, "pages_pending", 0);
    return NVML_SUCCESS;
}

#define NUMBER(function, key, otherwise)                                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *out)                                  \
    {                                                                                              \
        DEVICE;                                                                                    \
        *out = (unsigned int)number(GPU, key, otherwise);                                          \
        return NVML_SUCCESS;                                                                       \
    }

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_width", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays", 0)
NUMBER(nvmlDeviceGetMinorNumber, "minor_number", (unsigned int)GPU)
NUMBER(nvmlDeviceGetPowerUsage, "power", 70000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "limit", 700000)

#ifndef WITHOUT_CLOCK_REASONS
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    DEVICE;
    *reasons = number(GPU, "reasons", 1);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius)
{
    (void)sensor;
    DEVICE;
    *celsius = (unsigned int)number(GPU, "celsius", 34);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state)
{
    DEVICE;
    *state = (nvmlPstates_t)number(GPU, "pstate", 0);
    return NVML_SUCCESS;
}

/* MHz: graphics and SM run alike, memory has its own. */
#define CLOCK(function, key, otherwise)                                                            \
    nvmlReturn_t function(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)            \
    {                                                                                              \
        DEVICE;                                                                                    \
        *mhz = (unsigned int)(type == NVML_CLOCK_MEM ? 2619 : number(GPU, key, otherwise));        \
        return NVML_SUCCESS;                                                                       \
    }

CLOCK(nvmlDeviceGetClockInfo, "clock", 1980)
CLOCK(nvmlDeviceGetMaxClockInfo, "max_clock", 1980)
CLOCK(nvmlDeviceGetApplicationsClock, "application_clock", 1980)

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device,
                                               nvmlRowRemapperHistogramValues_t *values)
{
    DEVICE;
    values->max = 640 - (unsigned int)number(GPU, "banks_used_up", 0);
    values->high = values->partial = values->low = 0;
    values->none = (unsigned int)number(GPU, "banks_used_up", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    DEVICE;
    memcpy(info->chassisSerialNumber, "1820123456789\0\0", 16);
    info->slotNumber = 12;
    info->trayIndex = 3;
    info->hostId = 1;
    info->peerType = 2;
    info->moduleId = (unsigned char)(GPU + 1);
    return NVML_SUCCESS;
}

/* Half of the CPUs and one NUMA node a socket, four GPUs on each. */
static void half(unsigned long *set, unsigned int words, int second, unsigned int width)
{
    memset(set, 0, words * sizeof *set);
    for (unsigned int bit = width * second; bit < width * (second + 1u); bit++)
        set[bit / 64] |= 1UL << bit % 64;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    DEVICE;
    half(set, words, GPU >= (int)number(-1, "per_socket", 4), 72);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                         unsigned long *set, nvmlAffinityScope_t scope)
{
    (void)scope;
    DEVICE;
    half(set, words, GPU >= (int)number(-1, "per_socket", 4), 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    DEVICE;
    if (value(GPU, "memory_node") == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned int)number(GPU, "memory_node", 0) + 8 * (unsigned int)GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level)
{
    DEVICE;
    int per_socket = (int)number(-1, "per_socket", 4);
    int together = (GPU >= per_socket) == (index_of(other) >= per_socket);
    *level = together ? (nvmlGpuTopologyLevel_t)number(GPU, "near", NVML_TOPOLOGY_NODE)
                      : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

/* "fabric_form=2" is a driver that does not know the third form yet; all of them have version,
   then the fields of the second one, then the summary. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    DEVICE;
    unsigned int newest = (unsigned int)number(GPU, "fabric_form", 3), form = info->version >> 24;
    if (form > newest)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->state = (nvmlGpuFabricState_t)number(GPU, "fabric", 3);
    info->status = (nvmlReturn_t)number(GPU, "fabric_status", 0);
    info->cliqueId = (unsigned int)number(GPU, "clique", 7);
    info->healthMask = (unsigned int)number(GPU, "health_mask", 0);
    memset(info->clusterUuid, 0xab, sizeof info->clusterUuid);
    if (form >= 3)
        info->healthSummary = (unsigned char)number(GPU, "health", 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active)
{
    DEVICE;
    if (link >= number(GPU, "links", 18))
        return NVML_ERROR_INVALID_ARGUMENT;
    *active = link < number(GPU, "links_up", 18) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* "peers=switch" (default), "peers=pair": GPU 0 with 1, 2 with 3, as bridges do, or "hidden". */
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type)
{
    (void)link;
    DEVICE;
    const char *peers = value(GPU, "peers");
    *type = peers == NULL                       ? NVML_NVLINK_DEVICE_TYPE_SWITCH
            : strncmp(peers, "pair", 4) == 0    ? NVML_NVLINK_DEVICE_TYPE_GPU
                                                : NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t *pci)
{
    DEVICE;
    const char *peers = value(GPU, "peers");
    memset(pci, 0, sizeof *pci);
    if (peers == NULL)
        snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x03 + link % 4);
    else if (strncmp(peers, "pair", 4) == 0)
        snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x18 + (GPU ^ 1));
    else
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *count)
{
    (void)link, (void)counter;
    DEVICE;
    *count = number(GPU, "link_errors", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos)
{
    DEVICE;
    unsigned int have = (unsigned int)number(GPU, "processes", 0), room = *count;
    *count = have;
    if (room < have || (have > 0 && infos == NULL))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < have; i++) {
        infos[i].pid = 4000 + i;
        infos[i].usedGpuMemory = NVML_VALUE_NOT_AVAILABLE;
    }
    return NVML_SUCCESS;
}
