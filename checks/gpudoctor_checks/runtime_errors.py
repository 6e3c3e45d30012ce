"""What the runtime, the toolkit, NVML or CUDA said themselves: one finding for each cause named."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.report import Certainty, Severity

CHECKS = CheckSet()


class _Meaning(msgspec.Struct, frozen=True):
    """What a line of this name shows, and how far it proves it."""

    detail: str
    certainty: Certainty = Certainty.CERTAIN
    severity: Severity | None = None
    words: dict[str, str] = {}


_MEANINGS = {
    "image-requirement-unsatisfied": _Meaning(
        "The container toolkit compared the image's NVIDIA_REQUIRE_* with driver and GPU and"
        " refuses to start the container."
    ),
    "driver-library-mismatch": _Meaning(
        "The driver's libraries are of another release than the kernel module that is loaded."
    ),
    "fabric-manager-version-mismatch": _Meaning(
        "The fabric manager refuses to run: its release is not exactly the driver's."
    ),
    "fabric-not-ready": _Meaning(
        "CUDA waits for the NVLink fabric (error 802): the fabric manager has not set it up."
    ),
    "libcuda-kernel-mismatch": _Meaning(
        "The libcuda that the program found does not fit the loaded kernel module."
    ),
    "compat-not-supported-on-gpu": _Meaning(
        "The image's cuda-compat library is in use on a GPU that forward compatibility does not"
        " cover (error 804)."
    ),
    "ptx-newer-than-driver": _Meaning(
        "The driver's compiler is older than the PTX it was given (error 222)."
    ),
    "minor-version-compat-limits": _Meaning(
        "The program made a driver call that this older driver does not have (error 36).",
        severity=Severity.ERROR,
    ),
    "driver-too-old": _Meaning(
        "CUDA compared the driver's level with its own and refuses (error 35)."
    ),
    "no-code-for-gpu": _Meaning(
        "CUDA found neither machine code nor usable PTX for this GPU in the program (error 209)."
    ),
    "cgroup-device-access-lost": _Meaning(
        "NVML cannot open the devices. In a container that worked before, the runtime's device"
        " rules were rewritten, usually by a systemd daemon-reload.",
        certainty=Certainty.LIKELY,
    ),
    "host-driver-libs-missing": _Meaning(
        "The container toolkit does not find the driver's libraries on the host, or below the"
        " driver root that it was given."
    ),
    "driver-not-loaded": _Meaning("The library is there and finds no kernel module to talk to."),
    "driver-not-usable": _Meaning(
        "The toolkit's own call into the driver failed or timed out: the module is loaded and does"
        " not answer, or may not be used."
    ),
    "runtime-handler-missing": _Meaning(
        "The pod's RuntimeClass names a handler that the container runtime does not have."
    ),
    "cdi-device-not-in-spec": _Meaning(
        "The runtime was asked for a CDI device by a name that no CDI spec on the node has, or the"
        " spec names a device node that has gone since it was written."
    ),
    "toolkit-not-installed": _Meaning(
        "The container engine has no NVIDIA hook: the toolkit is absent or not configured."
    ),
    "toolkit-setup-failed": _Meaning(
        "The toolkit's hook found the driver and could not set the container up for it."
    ),
    "inotify-limit": _Meaning("The process may not open another inotify instance or watch."),
    "gpu-lost": _Meaning("The driver no longer reaches the GPU."),
    "gpu-needs-reset": _Meaning("The driver asks for a reset of the GPU."),
    "gpu-needs-reboot": _Meaning("The driver asks for a reboot of the node to recover the GPU."),
    "imex-channel-unavailable": _Meaning(
        "CUDA refused memory that other hosts of the NVLink domain could map (error 800): the"
        " container has no IMEX channel device, or there is no IMEX daemon.",
        certainty=Certainty.LIKELY,
    ),
    "mps-daemon-unreachable": _Meaning(
        "The program was told to share its GPU by MPS, and reaches no MPS daemon or server of the"
        " GPU (errors 805 to 810)."
    ),
    "cdi-spec-stale": _Meaning(
        "The engine was to mount a file of a driver release that is not installed any more: a CDI"
        " spec, or a container made before, still names it."
    ),
    "driver-libs-not-injected": _Meaning(
        "The driver's libraries are not in the container: it was started without the NVIDIA"
        " runtime, without a GPU, or without the driver capability it needs."
    ),
    "module-signature-rejected": _Meaning(
        "The kernel refuses the driver's module because its signing key is not trusted."
    ),
    "nouveau-bound": _Meaning("The nouveau driver holds the GPU, so NVIDIA's cannot."),
    "gpu-uncorrectable-ecc": _Meaning(
        "CUDA stopped the program because GPU memory returned wrong data (error 214)."
    ),
    "nvlink-error": _Meaning(
        "CUDA stopped the program because of an NVLink error (error 220)."
    ),
    "gpu-busy": _Meaning(
        "The GPU refuses another process (error 46): compute mode, a process that is stuck on it,"
        " or an Xid before.",
    ),
    "no-devices": _Meaning("The driver answers and has no GPU to offer.", Certainty.LIKELY),
    "device-list-stale": _Meaning(
        "The toolkit was told to put a device into the container that the driver does not have:"
        " who gave it out lists devices that are gone."
    ),
    "device-ordinal-invalid": _Meaning(
        "The program asked for a GPU number that the container does not have (error 101)."
    ),
    "gpu-out-of-memory": _Meaning(
        "An allocation of GPU memory failed: the program's own, or another's on the same GPU."
    ),
    "gpu-application-fault": _Meaning(
        "A kernel of the program did something illegal; the program itself is the first suspect.",
        certainty=Certainty.LIKELY,
        severity=Severity.ERROR,
    ),
    "p2p-disabled": _Meaning(
        "The driver lets these GPUs not reach each other's memory, and the program cannot do"
        " without: virtualisation, IOMMU or ACS, or a GPU model without peer access."
    ),
    "peermem-missing": _Meaning(
        "The program looked for the kernel module by which RDMA adapters reach GPU memory, and"
        " found none. NCCL can do without where the driver offers DMA-BUF; this program asks for"
        " the module."
    ),
    "shm-too-small": _Meaning(
        "The program could not get the shared memory it wants: /dev/shm is too small or full."
        " Without a volume there a container has 64 MiB of it."
    ),
    "tensor-parallel-exceeds-gpus": _Meaning(
        "The program is told to spread over more GPUs than it was given.",
        words={"wanted": "another number of"},
    ),
    "rdma-registration-enomem": _Meaning(
        "The program may not lock the memory that RDMA needs: mostly the limit of locked memory"
        " (memlock).",
        certainty=Certainty.LIKELY,
    ),
    "cuda-unknown-error": _Meaning(
        "CUDA could not start and does not know why: mostly /dev/nvidia-uvm is absent or closed to"
        " the container, or the process forked after CUDA was initialised.",
        certainty=Certainty.LIKELY,
    ),
}  # fmt: skip

# By what the line holds: it shows the same with less certainty.
_HINTS = {
    "room": _Meaning(
        "The sharing device plugin put these words in place of a GPU: none of the node's has as"
        " much memory left as the container asks for. Its scheduler extension counts otherwise, or"
        " the pod came past it.",
    ),
    "handle": _Meaning(
        "A CUDA library could not make its handle, which takes a little GPU memory: mostly none is"
        " left, the program's own use or another's. Less often the program asked for a GPU that it"
        " does not have, or an earlier kernel broke its context.",
        certainty=Certainty.LIKELY,
    ),
    "cell": _Meaning(
        "nvidia-smi shows an error in place of a reading: the GPU did not answer. See"
        " nvidia-smi -q for its recovery action, and the kernel log for an Xid.",
        certainty=Certainty.POSSIBLE,
        severity=Severity.WARNING,
    ),
    "xid": _Meaning(
        "A program that watches the GPUs took this one out of service because of an Xid; the"
        " kernel log has the driver's own line, and what came before it.",
        certainty=Certainty.LIKELY,
    ),
    "level_cell": _Meaning(
        "nvidia-smi runs and tells no CUDA level: libcuda.so.1 is not here. In a container that is"
        " for want of the driver capability compute (NVIDIA_DRIVER_CAPABILITIES=compute,utility);"
        " on a host the driver was installed without its compute libraries.",
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING,
    ),
    "dcgm": _Meaning(
        "DCGM could not start NVML and does not say why; in a container that is mostly for want of"
        " the driver's libraries: it was started without a GPU or the NVIDIA runtime.",
        certainty=Certainty.POSSIBLE,
    ),
}

_WORDS = {
    "hosts": "this host",
    "path": "of this node",
    "why": "it names files of another driver release",
    "exit": "unknown",
    "driver": "of the node",
    "cuda": "of the image",
    "wanted": "another driver",
    "offered": "fewer",
    "node": "the node",
    "device": "of the node",
    "library": "libnvidia-ml.so",
    "level": "older",
    "handler": "of that name",
    "codes": "not known",
    "process": "the program",
    "pod": "the program",
    "size": "too small",
    "call": "ibv_reg_mr",
    "link": "PCIe or NVLink",
    "step": "set-up",
    "reason": "unknown",
}


@CHECKS.check(ErrorLines)
def named_by_its_error(lines: ErrorLines) -> Iterator[Result]:
    """A line of the text is the known message of a known cause."""
    for error, evidence in lines.errors:
        hints = (_HINTS[key] for key in error.values if key in _HINTS)
        meaning = next(hints, _MEANINGS[error.name])
        yield finding(
            error.name,
            lines.subject,
            meaning.detail,
            evidence,
            values=_WORDS | meaning.words | error.values,
            certainty=meaning.certainty,
            severity=meaning.severity,
            related=lines.related,
        )
