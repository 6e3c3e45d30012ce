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

static char numbers[64];

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
    DEVICE;
    text(GPU, "name", "NVIDIA H100 80GB HBM3", name, length);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    DEVICE;
    snprintf(uuid, length, "GPU-00000000-0000-4000-8000-%012d", GPU);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x18 + GPU);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE;
    *major = (int)number(GPU, "major", 9);
    *minor = (int)number(GPU, "minor", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    DEVICE;
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = (nvmlReturn_t)number(GPU, "field", NVML_SUCCESS);
        values[i].value.uiVal = (unsigned int)number(GPU, "recovery", 0);
    }
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
    *mig = (nvmlDevice_t)(numbers + 32 + index);
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

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    DEVICE;
    info->state = (nvmlGpuFabricState_t)number(GPU, "fabric", 3);
    info->status = (nvmlReturn_t)number(GPU, "fabric_status", 0);
    info->cliqueId = 7;
    memset(info->clusterUuid, 0xab, sizeof info->clusterUuid);
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
