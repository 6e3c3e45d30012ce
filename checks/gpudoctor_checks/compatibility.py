"""Whether a driver runs an image's CUDA on a GPU: NVIDIA's three rules and the gates around them.

In the order in which they stop a program: does the driver's branch know the GPU; does the kernel
module's flavour bind it; does the image's own requirement line let the container start; which
version rule applies (backward, minor, forward); and is there code for the GPU in the image. The
tables are `compat.toml` beside this module and `gpudoctor.facts.node.cuda`.
"""

from __future__ import annotations

import importlib.resources
from enum import StrEnum
from functools import cache

import msgspec

from gpudoctor.facts.node.cuda import (
    Architecture,
    GpuClass,
    branch_of_level,
    cuda_level,
    tables,
)
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule, RuntimeMode
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda, parse_driver
from gpudoctor.report import Certainty, Unknown
from gpudoctor_checks import image_requirement

NOT_SUPPORTED_CALL = 36
INSUFFICIENT_DRIVER = 35
NO_DEVICE = 100
NO_BINARY_FOR_GPU = 209
UNSUPPORTED_PTX = 222
DRIVER_MISMATCH = 803
COMPAT_NOT_SUPPORTED = 804

_SUPPORTED = "C"
_REQUIREMENT_MODES = (RuntimeMode.LEGACY, RuntimeMode.CSV)


class Outcome(StrEnum):
    """What will happen; `unknown` only where a needed version is not in any table."""

    OK = "ok"
    LIMITED = "ok-with-limits"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Rule(StrEnum):
    """The version rule that decided; none where no rule was reached or none applies."""

    BACKWARD = "backward"
    MINOR = "minor"
    FORWARD = "forward"
    NONE = "none"


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `error_codes` are CUDA's, to expect or to be warned of; `problems` are names
    of findings, the decisive one first.
    """

    outcome: Outcome
    rule: Rule
    error_codes: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    certainty: Certainty = Certainty.CERTAIN
    unknown: tuple[Unknown, ...] = ()


class RuleTables(msgspec.Struct, frozen=True):
    """`compat.toml`, typed. `forward` maps package level and branch to C, = or X."""

    date: str
    baselines: dict[int, DriverVersion]
    forward: dict[CudaVersion, dict[int, str]]
    listed_in_library_from: CudaVersion
    paired: dict[CudaVersion, DriverVersion]


@cache
def rule_tables() -> RuleTables:
    """Load the tables, once."""
    import tomllib  # imported late: each run imports this module, few read the tables

    file = importlib.resources.files(__package__).joinpath("compat.toml")
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    forward = data["forward"]
    return RuleTables(
        date=data["date"],
        baselines={int(major): _driver(text) for major, text in data["minor"]["baselines"].items()},
        forward={
            _cuda(level): dict(zip(forward["branches"], marks.split(), strict=True))
            for level, marks in forward["packages"]
        },
        listed_in_library_from=_cuda(forward["listed_in_library_from"]),
        paired={_cuda(level): _driver(text) for level, text in data["toolkits"]["drivers"]},
    )


def _cuda(text: str) -> CudaVersion:
    version = parse_cuda(text)
    assert version is not None
    return version


def _driver(text: str) -> DriverVersion:
    version = parse_driver(text)
    assert version is not None
    return version


def judge(stack: CudaStack) -> Compatibility:
    """Apply the rules in their order; the first gate that stops the program is the answer."""
    gate = _gpu_gate(stack) or _module_gate(stack)
    if gate is not None:
        return gate
    allowed = _requirement(stack)
    if allowed is False:
        return _fails("image-requirement-unsatisfied", Rule.NONE)
    answer = _version_rule(stack)
    if answer.outcome in (Outcome.OK, Outcome.LIMITED):
        answer = _code_gate(stack, answer)
    return msgspec.structs.replace(answer, unknown=(*answer.unknown, *_unread(stack, allowed)))


def level_of(stack: CudaStack) -> CudaVersion | None:
    """Return the CUDA level that the driver offers: as it said itself, else by its branch."""
    return stack.level or (cuda_level(stack.driver) if stack.driver else None)


def _fails(
    problem: str, rule: Rule, *codes: int, certainty: Certainty = Certainty.CERTAIN
) -> Compatibility:
    return Compatibility(
        outcome=Outcome.FAILS,
        rule=rule,
        error_codes=codes,
        problems=(problem,),
        certainty=certainty,
    )


def _unread(stack: CudaStack, requirement_allows: bool | None) -> tuple[Unknown, ...]:
    missing = []
    if stack.gpu is None:
        missing.append(Unknown("the GPU's architecture", "no known GPU name or compute capability"))
    if requirement_allows is None:
        why = "it asks for a driver, brand or architecture that is not known here"
        missing.append(Unknown("the image's requirement", why))
    return tuple(missing)


def _gpu_gate(stack: CudaStack) -> Compatibility | None:
    """The driver's branch must know the GPU, else it binds nothing and CUDA sees no device."""
    if stack.gpu is None or stack.driver is None:
        return None
    last = stack.gpu.architecture.last_branch
    if last is not None and stack.driver.branch > last:
        return _fails("gpu-dropped-by-driver", Rule.NONE, NO_DEVICE)
    if stack.driver.branch < stack.gpu.first_branch:
        return _fails("gpu-newer-than-driver", Rule.NONE, NO_DEVICE)
    return None


def _module_gate(stack: CudaStack) -> Compatibility | None:
    if stack.gpu is None or stack.kernel_module is None:
        return None
    if stack.kernel_module is KernelModule.OPEN and not stack.gpu.open_module_possible:
        return _fails("needs-proprietary-kernel-module", Rule.NONE, NO_DEVICE)
    if stack.kernel_module is KernelModule.PROPRIETARY and stack.gpu.open_module_only:
        return _fails("needs-open-kernel-module", Rule.NONE, NO_DEVICE)
    return None


def _requirement(stack: CudaStack) -> bool | None:
    if stack.requirements_disabled or stack.mode not in _REQUIREMENT_MODES:
        return True
    offer = image_requirement.Offer(level_of(stack), stack.driver, stack.gpu)
    return image_requirement.satisfied(stack.requirements, offer)


def _version_rule(stack: CudaStack) -> Compatibility:
    level = level_of(stack)
    if level is None:
        return _beyond_the_table(stack)
    forward = _forward(stack, level)
    if forward is not None:
        return forward
    if level >= stack.toolkit:
        return Compatibility(outcome=Outcome.OK, rule=Rule.BACKWARD)
    baseline = rule_tables().baselines.get(stack.toolkit.major)
    if level.major != stack.toolkit.major or baseline is None:
        return _fails("driver-too-old", Rule.NONE, INSUFFICIENT_DRIVER)
    if stack.driver is not None and stack.driver < baseline:
        return _fails("driver-below-minor-baseline", Rule.NONE, INSUFFICIENT_DRIVER)
    return _minor(stack)


def _minor(stack: CudaStack) -> Compatibility:
    """The minor rule runs the toolkit, but its PTX is newer than the driver's compiler."""
    if stack.needs_ptx_jit:
        return _fails("ptx-newer-than-driver", Rule.MINOR, UNSUPPORTED_PTX)
    jit = () if stack.needs_ptx_jit is False else (UNSUPPORTED_PTX,)
    return Compatibility(
        outcome=Outcome.LIMITED,
        rule=Rule.MINOR,
        error_codes=(NOT_SUPPORTED_CALL, *jit),
        problems=("minor-version-compat-limits",),
    )


def _beyond_the_table(stack: CudaStack) -> Compatibility:
    """A driver newer than the table offers at least the newest known level; else nobody knows."""
    known = tables()
    newest = known.levels[known.newest_branch]
    if stack.driver is not None and stack.driver.branch > known.newest_branch:
        if newest >= stack.toolkit:
            return Compatibility(outcome=Outcome.OK, rule=Rule.BACKWARD)
        why = f"branch {stack.driver.branch} is not in the table of {known.date}"
    else:
        why = "neither its version nor its CUDA level is known"
    unknown = (Unknown("the driver's CUDA level", why),)
    return Compatibility(outcome=Outcome.UNKNOWN, rule=Rule.NONE, unknown=unknown)


def _forward(stack: CudaStack, level: CudaVersion) -> Compatibility | None:
    """What the image's cuda-compat does; None where it stays out of the way."""
    if not stack.compat_package:
        return None
    forced = stack.activation is Activation.LD_LIBRARY_PATH
    if stack.toolkit <= level:
        # The hook sees that it is not newer. A path does not look; the paired level still fits.
        older = forced and stack.toolkit < level
        return _fails("compat-older-than-driver", Rule.FORWARD, DRIVER_MISMATCH) if older else None
    supported = compat_supported(stack.toolkit, _branch(stack, level))
    lists_branches = stack.toolkit >= rule_tables().listed_in_library_from
    if not forced and lists_branches and not supported:
        return None
    if stack.gpu is not None and stack.gpu.gpu_class is GpuClass.GEFORCE:
        return _fails("compat-not-supported-on-gpu", Rule.FORWARD, COMPAT_NOT_SUPPORTED)
    if supported:
        return Compatibility(outcome=Outcome.OK, rule=Rule.FORWARD)
    if forced:
        return _fails("compat-branch-not-supported", Rule.FORWARD, DRIVER_MISMATCH)
    if level.major == stack.toolkit.major:
        # An older hook loads it on any older branch; that NVIDIA does not support this one does
        # not break what the minor rule allows anyway.
        return None
    return _fails(
        "compat-branch-not-supported", Rule.FORWARD, DRIVER_MISMATCH, certainty=Certainty.LIKELY
    )


def _branch(stack: CudaStack, level: CudaVersion) -> int | None:
    return stack.driver.branch if stack.driver else branch_of_level(level)


def compat_supported(package: CudaVersion, branch: int | None) -> bool:
    """Tell whether NVIDIA supports the cuda-compat of a level on a driver branch.

    A package newer than the table is taken to support what the newest known one does, and the
    branch that one was built with.
    """
    table = rule_tables().forward
    newest = max(table)
    if package > newest:
        return table[newest].get(branch or 0) in (_SUPPORTED, "=")
    return table.get(package, {}).get(branch or 0) == _SUPPORTED


def _code_gate(stack: CudaStack, so_far: Compatibility) -> Compatibility:
    """The image's machine code must cover the GPU, or its PTX be compiled for it."""
    if stack.gpu is None:
        return so_far
    architecture = stack.gpu.architecture
    if architecture.last_toolkit is not None and stack.toolkit > architecture.last_toolkit:
        return _fails("toolkit-dropped-arch", so_far.rule, NO_BINARY_FOR_GPU)
    if has_code(stack.toolkit, architecture):
        return so_far
    if stack.has_ptx is False:
        return _fails("no-code-for-gpu", so_far.rule, NO_BINARY_FOR_GPU)
    warned = msgspec.structs.replace(so_far, problems=(*so_far.problems, "toolkit-predates-gpu"))
    if stack.has_ptx:
        return warned
    return msgspec.structs.replace(
        warned,
        outcome=Outcome.LIMITED,
        error_codes=(*so_far.error_codes, NO_BINARY_FOR_GPU),
    )


def has_code(toolkit: CudaVersion, architecture: Architecture) -> bool:
    """Tell whether a toolkit can make machine code that runs on the architecture: its own, or
    that of a lower capability of the same major (8.9 runs 8.0 and 8.6 code).
    """
    return any(
        other.first_toolkit <= toolkit
        and (other.last_toolkit is None or toolkit <= other.last_toolkit)
        for other in tables().architectures.values()
        if other.capability.major == architecture.capability.major
        and other.capability <= architecture.capability
    )
