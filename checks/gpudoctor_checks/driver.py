"""Driver, CUDA level, GPU architecture: the compatibility rules as findings."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack
from gpudoctor.facts.node.kernel_log import Condition, KernelLog
from gpudoctor.report import Certainty, Evidence, Severity, Subject
from gpudoctor_checks.compatibility import Compatibility, judge, level_of, rule_tables
from gpudoctor_checks.ways_out import ways_out

CHECKS = CheckSet()

_DETAILS = {
    "driver-too-old": (
        "CUDA {cuda} needs a driver of CUDA {major}.0 or newer; driver {driver} offers"
        " CUDA {level}. The first CUDA call fails with error 35."
    ),
    "driver-below-minor-baseline": (
        "Driver {driver} offers CUDA {level}. Newer {major}.x toolkits run on it from {baseline} on"
        " only; this one is older, and the first CUDA call fails with error 35."
    ),
    "minor-version-compat-limits": (
        "Driver {driver} offers CUDA {level}, older than the image's {cuda} but of the same major:"
        " it runs, except for newer driver calls (error 36) and PTX that must be compiled on"
        " the node (error 222)."
    ),
    "ptx-newer-than-driver": (
        "The program compiles PTX of CUDA {cuda} at run time; driver {driver} compiles up to"
        " CUDA {level} and answers with error 222."
    ),
    "compat-not-supported-on-gpu": (
        "The image's cuda-compat library is loaded, and it serves data-center GPUs only:"
        " on {gpu} CUDA fails with error 804."
    ),
    "compat-older-than-driver": (
        "LD_LIBRARY_PATH puts the image's libcuda of CUDA {cuda} before the one of driver {driver}"
        " (CUDA {level}); an older libcuda does not talk to a newer kernel module: error 803."
    ),
    "compat-branch-not-supported": (
        "The image's cuda-compat of CUDA {cuda} is loaded, but NVIDIA does not support it on"
        " driver branch {branch} (table of {date}): error 803."
    ),
    "gpu-newer-than-driver": (
        "{gpu} ({arch}) needs driver branch {first_branch} or newer; driver {driver} does not"
        " bind it, and CUDA sees no device (error 100)."
    ),
    "gpu-dropped-by-driver": (
        "Branch {last_branch} was the last one for {arch}; driver {driver} does not bind {gpu},"
        " and CUDA sees no device (error 100)."
    ),
    "toolkit-dropped-arch": (
        "CUDA {cuda} carries no code for {arch} (compute capability {capability}) and cannot make"
        " any: kernels on {gpu} fail with error 209, although the driver runs it."
    ),
    "toolkit-predates-gpu": (
        "CUDA {cuda} is older than {arch} (compute capability {capability}, from CUDA"
        " {first_toolkit}): {gpu} runs the image only where it carries PTX, else error 209."
    ),
    "no-code-for-gpu": (
        "The image has neither machine code for compute capability {capability} nor PTX: kernels"
        " on {gpu} fail with error 209."
    ),
    "needs-open-kernel-module": (
        "{gpu} ({arch}) is bound by the open kernel modules only; the proprietary ones are"
        " loaded, and CUDA sees no device (error 100)."
    ),
    "needs-proprietary-kernel-module": (
        "{gpu} ({arch}) is older than Turing, so only the proprietary kernel modules bind it;"
        " the open ones are loaded, and CUDA sees no device (error 100)."
    ),
    "image-requirement-unsatisfied": (
        "The image asks for {wanted}; driver {driver} (CUDA {level}) with {gpu} does not meet it,"
        " so the container toolkit refuses to start the container."
    ),
}


@CHECKS.check(CudaStack)
def compatible(stack: CudaStack) -> Iterator[Result]:
    """Driver, image and GPU do not fit by the rule that decides, or fit with limits."""
    answer = judge(stack)
    yield from answer.unknown
    values = _values(stack)
    fix = _fix(stack) if answer.problems else None
    for name in answer.problems:
        yield finding(
            name,
            stack.subject,
            _DETAILS[name].format_map(values),
            *stack.evidence,
            *_shown(stack),
            values=values,
            certainty=min(answer.certainty, stack.certainty, key=lambda one: one.rank),
            severity=_severity(name, answer, stack),
            related=stack.related,
            fix=fix,
        )


def _severity(name: str, answer: Compatibility, stack: CudaStack) -> Severity | None:
    """Code that PTX makes up for is worth knowing, no more."""
    if name == "toolkit-predates-gpu" and stack.has_ptx and answer.problems:
        return Severity.INFO
    return None


def _fix(stack: CudaStack) -> str | None:
    ways = ways_out(stack)
    if not ways:
        return None
    text = "; or ".join(ways)
    return f"{text[0].upper()}{text[1:]}."


def _values(stack: CudaStack) -> dict[str, str]:
    level = level_of(stack)
    baseline = rule_tables().baselines.get(stack.toolkit.major)
    values = {
        "driver": str(stack.driver) if stack.driver else "the node's driver",
        "branch": str(stack.driver.branch) if stack.driver else f"of CUDA {level}",
        "level": str(level) if level else "unknown",
        "cuda": str(stack.toolkit),
        "major": str(stack.toolkit.major),
        "baseline": str(baseline) if baseline else "none",
        "date": rule_tables().date,
        "wanted": " and ".join(stack.requirements),
        "gpu": "the GPU",
    }
    if stack.gpu is not None:
        architecture = stack.gpu.architecture
        values |= {
            "gpu": stack.gpu.name,
            "arch": architecture.name,
            "capability": str(architecture.capability),
            "first_toolkit": str(architecture.first_toolkit),
            "first_branch": str(stack.gpu.first_branch),
            "last_branch": str(architecture.last_branch),
        }
    return values


def _shown(stack: CudaStack) -> Iterator[Evidence]:
    """The versions that were compared, where their reader brought no evidence of its own."""
    if stack.evidence:
        return
    yield Evidence("driver", "version", str(stack.driver or "unknown"), _level_note(stack))
    yield Evidence("image", "CUDA", str(stack.toolkit))
    if stack.gpu is not None:
        note = f"compute capability {stack.gpu.architecture.capability}"
        yield Evidence("gpu", "name", stack.gpu.name, note)
    for requirement in stack.requirements:
        yield Evidence("image", "NVIDIA_REQUIRE_CUDA", requirement)
    if stack.compat_package and stack.activation is Activation.LD_LIBRARY_PATH:
        yield Evidence("image", "LD_LIBRARY_PATH", "cuda-compat", "before the driver's libcuda")


def _level_note(stack: CudaStack) -> str:
    return f"offers CUDA {level_of(stack) or 'unknown'}"


_KERNEL_SAYS = {
    "driver-library-mismatch": (
        "A program's driver library is {library}, the loaded kernel module {module}."
    ),
    "nouveau-bound": "The nouveau driver holds the GPU, so NVIDIA's cannot.",
    "adapter-init-failed": "The driver found the GPU and could not initialise it.",
    "needs-proprietary-kernel-module": (
        "The open kernel modules are loaded, and the GPU is older than Turing, so that only the"
        " proprietary ones bind it."
    ),
    "needs-open-kernel-module": (
        "The proprietary kernel modules are loaded, and only the open ones bind this GPU."
    ),
    "gpu-dropped-by-driver": "The driver's branch has dropped this GPU; an older branch binds it.",
    "gpu-newer-than-driver": "The driver's branch does not support this GPU.",
    "no-devices": "The driver was loaded and found no NVIDIA GPU on the PCI bus.",
    "module-signature-rejected": (
        "The kernel refused a module because its signing key is not trusted."
    ),
    "nic-init-failed": (
        "The adapter's driver found it and could not start it: it is no RDMA device on this host."
    ),
    "driver-not-answering": (
        "The kernel found a task that does not come back from the NVIDIA driver: {what}."
        " Programs that use a GPU here will wait in the same place."
    ),
    "nic-firmware-failure": (
        "The adapter's firmware does not answer its driver, or reports an error of its own."
        " Its links may look well all the same."
    ),
}
_UNNAMED = {
    "library": "of one version", "module": "another", "driver": "of the node", "gpu": "this GPU",
    "arch": "its architecture", "first_branch": "that knows the GPU", "last_branch": "older",
}  # fmt: skip
_ENDED = " The driver has recovered it since."
_LESS_SURE = {
    # The kernel does not name the module; the same message may be about another vendor's GPU age.
    "module-signature-rejected": Certainty.POSSIBLE,
    "gpu-newer-than-driver": Certainty.LIKELY,
    # A very large release of memory can take that long.
    "driver-not-answering": Certainty.LIKELY,
}


@CHECKS.check(KernelLog)
def kernel_conditions(log: KernelLog) -> Iterator[Result]:
    """The kernel or the driver said why it does not bind or serve a GPU."""
    for said in log.conditions:
        over = "ended" in said.values
        values = _UNNAMED | said.values | {"device": said.pci or "the device"}
        yield finding(
            said.name,
            _host(log, said),
            _KERNEL_SAYS[said.name].format_map(values) + (_ENDED if over else ""),
            log.evidence(said.text, said.line),
            values=values,
            certainty=_LESS_SURE.get(said.name, Certainty.CERTAIN),
            severity=Severity.WARNING if over else None,
        )


def _host(log: KernelLog, said: Condition) -> Subject:
    return Subject(
        log.subject.kind, said.host or log.subject.name, log.subject.namespace, device=said.pci
    )
