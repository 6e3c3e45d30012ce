"""What would make an incompatible stack work, cheapest first: each is tried by the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.facts.node.cuda import tables
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor_checks.compatibility import Outcome, Rule, judge, rule_tables

WORKS = (Outcome.OK, Outcome.LIMITED)


def ways_out(stack: CudaStack) -> tuple[str, ...]:
    """Return one line for each change that alone makes the stack work, cheapest first.

    Where it works with limits already, only what lifts them counts.
    """
    goal = (Outcome.OK,) if judge(stack).outcome is Outcome.LIMITED else WORKS
    settings = tuple(_settings(stack, goal))
    ways = [*settings, *_compat_package(stack), *_image(stack), *_modules(stack, goal)]
    if not settings:
        ways += _driver(stack, goal)
    return tuple(ways)


Goal = tuple[Outcome, ...]


def _changed(stack: CudaStack, **changes: object) -> CudaStack:
    return msgspec.structs.replace(stack, **changes)


def _settings(stack: CudaStack, goal: Goal) -> Iterator[str]:
    if stack.compat_package and judge(_changed(stack, compat_package=False)).outcome in goal:
        if stack.activation is Activation.LD_LIBRARY_PATH:
            yield "take the cuda-compat folder out of the image's LD_LIBRARY_PATH"
        else:
            yield "remove cuda-compat from the image, or set cuda-compat-mode=disabled"
    if stack.requirements and judge(_changed(stack, requirements_disabled=True)).outcome in goal:
        yield "set NVIDIA_DISABLE_REQUIRE=true in the pod: only the image's own check refuses"


def _compat_package(stack: CudaStack) -> Iterator[str]:
    changed = _changed(stack, compat_package=True, activation=Activation.HOOK)
    answer = judge(changed)
    if not stack.compat_package and answer.outcome is Outcome.OK and answer.rule is Rule.FORWARD:
        package = f"cuda-compat-{stack.toolkit.major}-{stack.toolkit.minor}"
        yield f"install {package} in the image (forward compatibility)"


def _image(stack: CudaStack) -> Iterator[str]:
    """The CUDA version nearest to the image's own that runs without limits."""
    fits = [
        toolkit
        for toolkit in rule_tables().paired
        if judge(_changed(stack, toolkit=toolkit, requirements=(), compat_package=False)).outcome
        is Outcome.OK
    ]
    older = max((toolkit for toolkit in fits if toolkit < stack.toolkit), default=None)
    newer = min((toolkit for toolkit in fits if toolkit > stack.toolkit), default=None)
    if older is not None:
        yield f"use an image of CUDA {older}{_or_older(stack, older)}"
    elif newer is not None:
        last = max(fits)
        yield f"use an image of CUDA {newer}" + (f" to {last}" if last > newer else "")


def _or_older(stack: CudaStack, toolkit: CudaVersion) -> str:
    first = stack.gpu.architecture.first_toolkit if stack.gpu else None
    if first is None:
        return " or older"
    return f" or older, down to {first}" if first < toolkit else ""


def _driver(stack: CudaStack, goal: Goal) -> Iterator[str]:
    fit = _nearest_driver(stack, goal)
    if fit is None or fit == stack.driver:
        return
    lifecycle = tables().lifecycle.get(fit.branch)
    note = f" (branch {fit.branch}: {lifecycle})" if lifecycle else ""
    if stack.driver is not None and fit < stack.driver:
        yield f"install a driver of branch {fit.branch}{f' ({lifecycle})' if lifecycle else ''}"
    else:
        yield f"upgrade the driver to {fit} or newer{note}"


def _nearest_driver(stack: CudaStack, goal: Goal) -> DriverVersion | None:
    """Return the oldest driver from the present one on that fits, else the newest below it."""
    fits = [
        driver
        for driver in _candidates()
        if judge(_changed(stack, driver=driver, level=None, compat_package=False)).outcome in goal
    ]
    present = stack.driver or min(fits, default=None)
    above = [driver for driver in fits if present is None or driver >= present]
    return min(above, default=max(fits, default=None))


def _candidates() -> Iterable[DriverVersion]:
    rules = rule_tables()
    return {*rules.paired.values(), *rules.baselines.values()}


def _modules(stack: CudaStack, goal: Goal) -> Iterator[str]:
    for module in KernelModule:
        changed = _changed(stack, kernel_module=module)
        if stack.kernel_module not in (None, module) and judge(changed).outcome in goal:
            yield f"install the {module} kernel modules of the same driver"
