"""Well-known lines in pod logs: what runtimes, device plugins, engines and frameworks print.

Each kind has one pattern over all the versions known for it; the fact page of the projects'
sources is named beside it. NCCL's own log has a parser of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MAX_LINE_CHARS = 2048
_KEPT_PER_KIND = 3


class LogLine(msgspec.Struct, frozen=True):
    """A telling line: which kind of fact it is, its text, its number (1-based) and its groups."""

    kind: str
    text: str
    number: int
    groups: dict[str, str] = {}


class _Pattern(msgspec.Struct, frozen=True):
    """What a line matches, and in small letters the words of which one is in each such line.

    Most lines have none of them, and most logs lines of few kinds: what is not needed is never
    compiled.
    """

    words: tuple[str, ...]
    source: str
    flags: int = 0

    def search(self, line: str, small: str) -> re.Match[str] | None:
        """Look for it in a line, which is `small` in small letters."""
        if not any(word in small for word in self.words):
            return None
        return re.search(self.source, line, self.flags)  # re keeps what it has compiled


PATTERNS: dict[str, _Pattern] = {
    # HAMi-core's allocator; the numbers are bytes wanted and the slice's limit in bytes.
    "hami-oom": _Pattern(
        ("hami-core error",),
        r"HAMI-core ERROR[^\]]*\]:?\s*Device (?P<device>\d+) OOM (?P<wanted>\d+) / (?P<limit>\d+)",
    ),
    # PyTorch (old and new class name), CUDA runtime, JAX/XLA, TensorFlow, vLLM's start-up check.
    "gpu-oom": _Pattern(
        (
            "out of memory",
            "outofmemoryerror",
            "out_of_memory",
            "cudaerrormemoryallocation",
            "cuda failure",
            "no available memory for the cache blocks",
            "is less than desired gpu memory",
            "kv cache",
        ),
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|HIP out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Cuda failure (2\b|'out of memory')"
        r"|RESOURCE_EXHAUSTED: Out of memory (while|allocating)"
        r"|No available memory for the cache blocks"
        r"|KV cache is needed, which is larger than the available KV cache memory"
        r"|max(?:imum)? seq(?:uence)? len.* is larger than the maximum number of tokens that can "
        r"be stored in KV cache"
        r"|Free memory on device .* is less than desired GPU memory utilization",
    ),
    # The same line of PyTorch says who else holds memory when the process itself does not.
    "gpu-memory-held-elsewhere": _Pattern(
        ("memory in use", "including non-pytorch memory"),
        r"Process \d+ has (?P<held>[\d.]+ [GM]iB) memory in use"
        r"|including non-PyTorch memory, this process has (?P<own>[\d.]+ [GM]iB)",
    ),
    "shm": _Pattern(
        ("shared memory", "dev/shm", "posix_fallocate failed", "unable to write to", "bus error"),
        r"Error while creating shared memory segment|failed to extend /dev/shm/"
        r"|posix_fallocate failed ?: No space left|unable to (?:write to|open shared memory) "
        r".*(?:torch_|/dev/shm)|insufficient shared memory \(shm\)"
        r"|No space left on device.*/dev/shm"
        r"|/dev/shm.*No space left on device"
        r"|DataLoader worker \(pid[^)]*\) is killed by signal: Bus error"
        r"|The object store .*/dev/shm",
    ),
    # k8s-device-plugin internal/rm/health.go
    "device-marked-unhealthy": _Pattern(
        ("xidcriticalerror", "device marked unhealthy"),
        r"XidCriticalError: Xid=(?P<xid>\d+) on Device=(?P<device>[^;,\s]+)"
        r"|device marked unhealthy: (?P<marked>\S+)",
    ),
    "plugin-no-devices": _Pattern(
        ("waiting indefinitely",), r"No devices found\.? Waiting indefinitely"
    ),
    "plugin-nvml": _Pattern(
        ("failed to initialize nvml", "could not load nvml"),
        r"[Ff]ailed to initialize NVML: (?P<why>.+)|could not load NVML library(?P<lib>.*)",
    ),
    "plugin-strategy": _Pattern(
        ("incompatible", "no mig devices", "more than one mig", "not supported with mps"),
        r"Incompatible (?:platform|strategy) detected|has no MIG devices configured"
        r"|[Mm]ore than one MIG device type present on node"
        r"|not supported with MPS",
    ),
    "plugin-start": _Pattern(
        ("error starting plugins", "failed to start plugin"),
        r"(?:error starting plugins|Failed to start plugin): (?P<why>.+)",
    ),
    "rdma-pool-empty": _Pattern(
        ("no devices in device pool",),
        r"no devices in device pool, creating empty resource server for (?P<resource>\S+)",
    ),
    "rdma-netns": _Pattern(
        ("incorrect rdma subsystem",), r"incorrect RDMA subsystem network namespace"
    ),
    "driver-mismatch": _Pattern(("version mismatch",), r"Driver/library version mismatch"),
    "driver-missing": _Pattern(
        ("nvml", "nvidia-smi has failed", "gpu driver "),
        r"NVML: (?:Driver Not Loaded|ERROR_DRIVER_NOT_LOADED)|NVIDIA-SMI has failed because it "
        r"couldn't communicate with the NVIDIA driver|nvml error: driver not loaded"
        # GKE's plugin, in the init container that would install one.
        r"|GPU driver auto installation is disabled|Waiting for GPU driver libraries",
    ),
    "driver-not-in-container": _Pattern(
        ("libcuda.so", "found no nvidia driver", "libnvidia-ml"),
        r"libcuda\.so(?:\.1)?: cannot open|Found no NVIDIA driver on your system"
        r"|couldn't find libnvidia-ml",
    ),
    # CUDA, PyTorch, nvidia-smi, JAX, TensorFlow and vLLM where the driver shows no device.
    "no-gpu": _Pattern(
        (
            "cuda-capable device",
            "no devices were found",
            "cudaerrornodevice",
            "cuda_error_no_device",
            "cuda gpus are available",
            "infer device type",
        ),
        r"no CUDA-capable device is detected|No devices were found|cudaErrorNoDevice"
        r"|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available|Failed to infer device type",
    ),
    # vLLM's start-up check, before it has taken any memory itself.
    "gpu-memory-taken": _Pattern(
        ("free memory on device",),
        r"Free memory on device \S*\s*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)",
    ),
    "memlock": _Pattern(
        ("cannot allocate memory",),
        r"ibv_(?:reg_mr(?:_iova2)?|create_cq|create_qp)\b.*Cannot allocate memory"
        r"|Failed to register memory region.*Cannot allocate memory",
    ),
    # vLLM, SGLang, TGI, DeepSpeed: the numbers are GPUs wanted and GPUs there.
    "tensor-parallel": _Pattern(
        (
            "parallel",
            "world",
            "tp_size",
            "tp-size",
            "tp size",
            "required gpus",
            "sharded",
            "ray does not allocate",
            "invalid device ordinal",
        ),
        r"(?:tensor.parallel.size|\btp[ _-]size|world.size|required GPUs)"
        r"(?:\W{1,4}(?P<wanted>\d+))?"
        r"[^,;]*?(?:\b(?:is )?(?:larger|greater|more|less) than|exceeds|must be|>)"
        r"[^,;]*(?:available GPUs|\bGPUs?\b(?: count)?|CUDA devices)(?:\W{1,4}(?P<offered>\d+))?"
        r"|sharded\W+is true but only found (?P<found>\d+) CUDA devices"
        r"|Ray does not allocate any GPUs|invalid device ordinal"
        r"|Tensor parallel size \(\d+\) cannot be larger than",
        re.IGNORECASE,
    ),
    "compute-domain-wait": _Pattern(("computedomain",), r"node not ready in ComputeDomain"),
    # One rank's death as its peers report it: always a follower.
    "peer-lost": _Pattern(
        (
            "connection closed by",
            "connection reset by",
            "ncclremoteerror",
            "socketstartconnect",
            "socketpollconnect",
            "watchdog caught",
            "root cause (first",
            "received signal: 15",
            "signalexception",
            "rendezvous",
        ),
        r"Connection closed by (?:remote )?peer|Connection reset by peer|ncclRemoteError"
        r"|socket(?:Start|Poll)Connect: connect to .* returned"
        r"|Watchdog caught collective operation timeout"
        r"|Root Cause \(first observed failure\)|Received signal: 15|SignalException"
        r"|rendezvous.*(?:closed|timed? ?out)|RendezvousConnectionError",
        re.IGNORECASE,
    ),
    # A name that nobody bears yet, or a port that nobody listens on, as the one who waits says it.
    "peer-awaited": _Pattern(
        (
            "name or service not known",
            "failure in name resolution",
            "could not resolve",
            "can't resolve",
            "no such host",
            "connection refused",
            "no route to host",
            "waiting for ",
            "tcpstore",
            "clients joined",
        ),
        r"name or service not known|failure in name resolution|(?:could not|can't) resolve"
        r"|no such host|connection refused|no route to host|waiting for |clients joined"
        r"|TCPStore.*timed out",
        re.IGNORECASE,
    ),
    "python-error": _Pattern(
        ("error: ", "exception: "),
        r"^(?:\[?rank\d+\]?:?\s*)?(?P<error>[A-Za-z_][\w.]*(?:Error|Exception)): .+",
    ),
    # The kernel's ENOEXEC as the container's own runtime, or its shell, prints it.
    "exec-format": _Pattern(
        ("exec format error",),
        r"^(?:standard_init_linux\.go.*|exec .*|.*: cannot execute binary file: ?)"
        r"exec format error",
        re.IGNORECASE,
    ),
    "loading-model": _Pattern(
        ("loading", "load model", "capturing cuda graph"),
        r"Loading safetensors checkpoint shards|Loading model weights|Starting to load model"
        r"|Loading checkpoint shards|Downloading (?:shards|model)|Capturing CUDA graph",
        re.IGNORECASE,
    ),
    "engine-total-memory": _Pattern(
        ("gib",), r"total[_ ](?:gpu[_ ])?memory[^\d]{0,20}(?P<gib>[\d.]+) ?GiB", re.IGNORECASE
    ),
    "driver-build": _Pattern(
        (
            "linux kernel",
            "kernel module",
            "kernel headers",
            "modprobe: ",
            "install kernel",
            "gcc",
            "insmod: ",
            "could not unload",
            "could not find",
        ),
        r"Could not resolve Linux kernel version|Kernel (?:module|headers).*(?:not found|missing)"
        r"|modprobe: (?:ERROR|FATAL)|Failed to install kernel|error: .*gcc|insmod: ERROR"
        r"|Unable to load the kernel module|Could not (?:unload|find) .*driver",
        re.IGNORECASE,
    ),
}


def scan(log: str) -> tuple[LogLine, ...]:
    """Return the telling lines in order, at most three of a kind: the first two and the newest."""
    kept: dict[str, list[LogLine]] = {}
    for found in _all(log):
        same = kept.setdefault(found.kind, [])
        if len(same) == _KEPT_PER_KIND:
            same.pop()
        same.append(found)
    return tuple(
        sorted((line for lines in kept.values() for line in lines), key=lambda line: line.number)
    )


def _all(log: str) -> Iterator[LogLine]:
    for number, raw in enumerate(log.splitlines(), 1):
        line = _ANSI.sub("", raw[:_MAX_LINE_CHARS])
        small = line.lower()
        for kind, pattern in PATTERNS.items():
            match = pattern.search(line, small)
            if match:
                groups = {key: value for key, value in match.groupdict().items() if value}
                yield LogLine(kind, line.strip(), number, groups)
