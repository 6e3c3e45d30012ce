"""Driver branches against CUDA versions for one GPU, each cell by the rules."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.node.cuda import Gpu, tables
from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Subject
from gpudoctor_checks.compatibility import Outcome, Rule, judge, rule_tables

OLDEST_TOOLKIT = CudaVersion(11, 8)
OLDEST_BRANCH = 470
LEGEND = (
    "ok   runs (backward rule)\n"
    "min  runs with the limits of the minor-version rule (errors 36, 222)\n"
    "fwd  runs with cuda-compat of that level in the image, else error 35\n"
    "ptx  runs where the image carries PTX, else error 209\n"
    "a number is the CUDA error"
)


def matrix(gpu: Gpu) -> dict[int, dict[CudaVersion, str]]:
    """Return a word for each branch that binds the GPU (its newest release) and CUDA version."""
    last = gpu.architecture.last_branch or tables().newest_branch
    toolkits = [toolkit for toolkit in rule_tables().paired if toolkit >= OLDEST_TOOLKIT]
    return {
        branch: {toolkit: _cell(gpu, branch, toolkit) for toolkit in toolkits}
        for branch in tables().levels
        if max(OLDEST_BRANCH, gpu.first_branch) <= branch <= last
    }


def _cell(gpu: Gpu, branch: int, toolkit: CudaVersion) -> str:
    stack = CudaStack(
        subject=Subject("Stack", "matrix"), driver=DriverVersion(branch), toolkit=toolkit, gpu=gpu
    )
    answer = judge(stack)
    if answer.outcome is Outcome.OK:
        return "ok"
    if answer.problems == ("toolkit-predates-gpu",):
        return "ptx"
    if answer.outcome is Outcome.LIMITED:
        return "min"
    with_package = judge(msgspec.structs.replace(stack, compat_package=True))
    if with_package.rule is Rule.FORWARD and with_package.outcome is Outcome.OK:
        return "fwd"
    return str(answer.error_codes[0])
