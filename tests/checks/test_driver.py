"""Each finding of the compatibility rules, beside the nearest stack that must not give it."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.checking import Draft
from gpudoctor.facts.node.cuda import resolve_gpu
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule
from gpudoctor.facts.node.versions import parse_cuda, parse_driver
from gpudoctor.report import Certainty, Severity, Subject
from gpudoctor_checks.driver import compatible

FORCED = {"compat_package": True, "activation": Activation.LD_LIBRARY_PATH}
OPEN = {"kernel_module": KernelModule.OPEN}
PROPRIETARY = {"kernel_module": KernelModule.PROPRIETARY}
Parts = tuple[str, str, str, dict[str, Any]]

PAIRS: dict[str, tuple[Parts, Parts]] = {
    "driver-too-old": (("575.57.08", "13.0", "H100", {}), ("575.57.08", "12.9", "H100", {})),
    "driver-below-minor-baseline": (
        ("450.51.06", "11.2", "T4", {}), ("450.80.02", "11.2", "T4", {})),
    "minor-version-compat-limits": (
        ("535.54.03", "12.4", "A100", {}), ("550.54.14", "12.4", "A100", {})),
    "ptx-newer-than-driver": (
        ("535.54.03", "12.4", "A100", {"needs_ptx_jit": True}),
        ("550.54.14", "12.4", "A100", {"needs_ptx_jit": True})),
    "compat-not-supported-on-gpu": (
        ("535.54.03", "12.4", "RTX 3090", {"compat_package": True}),
        ("535.54.03", "12.4", "RTX 3090", {})),
    "compat-older-than-driver": (
        ("580.95.05", "12.8", "H200", FORCED), ("580.95.05", "12.8", "H200",
                                                {"compat_package": True})),
    "compat-branch-not-supported": (
        ("560.35.05", "13.0", "A100", FORCED), ("570.124.06", "13.0", "A100", FORCED)),
    "gpu-newer-than-driver": (("550.144.03", "12.8", "B200", {}), ("570.26", "12.8", "B200", {})),
    "gpu-dropped-by-driver": (("590.44.01", "12.8", "V100", {}), ("580.95.05", "12.8", "V100", {})),
    "toolkit-dropped-arch": (("580.95.05", "13.0", "V100", {}), ("580.95.05", "12.9", "V100", {})),
    "toolkit-predates-gpu": (("570.26", "12.4", "B200", {}), ("535.54.03", "11.4", "L4", {})),
    "no-code-for-gpu": (
        ("570.26", "12.4", "B200", {"has_ptx": False}),
        ("535.54.03", "11.4", "L4", {"has_ptx": False})),
    "needs-open-kernel-module": (
        ("570.26", "12.8", "B200", PROPRIETARY), ("570.26", "12.8", "H100", PROPRIETARY)),
    "needs-proprietary-kernel-module": (
        ("570.26", "12.8", "V100", OPEN), ("570.26", "12.8", "T4", OPEN)),
    "image-requirement-unsatisfied": (
        ("535.54.03", "12.8", "RTX 3060", {"requirements": ("cuda>=12.8",)}),
        ("570.26", "12.8", "RTX 3060", {"requirements": ("cuda>=12.8",)})),
}  # fmt: skip


def stack(driver: str, cuda: str, gpu: str, options: dict[str, Any], **more: Any) -> CudaStack:
    toolkit = parse_cuda(cuda)
    assert toolkit is not None
    return CudaStack(
        subject=Subject("Stack", "s"),
        driver=parse_driver(driver),
        toolkit=toolkit,
        gpu=resolve_gpu(gpu),
        **options,
        **more,
    )


def drafts(one: CudaStack) -> list[Draft]:
    return [result for result in compatible(one) if isinstance(result, Draft)]


@pytest.mark.parametrize("name", PAIRS)
def test_finds_it_and_not_the_near_miss(name: str) -> None:
    wrong, right = PAIRS[name]
    assert [draft.name for draft in drafts(stack(*wrong))] == [name]
    assert name not in [draft.name for draft in drafts(stack(*right))]


@pytest.mark.parametrize("name", PAIRS)
def test_says_what_is_so_and_how_to_get_out(name: str) -> None:
    report = diagnosis.diagnose(registry.load(), [stack(*PAIRS[name][0])])
    (finding,) = report.findings
    assert not report.unknown
    assert "{" not in finding.title + finding.detail + finding.fix
    assert finding.evidence
    assert finding.fix != ""


def test_ptx_that_makes_up_for_missing_code_is_only_worth_knowing() -> None:
    (draft,) = drafts(stack("570.26", "12.4", "B200", {"has_ptx": True}))
    assert (draft.name, draft.severity) == ("toolkit-predates-gpu", Severity.INFO)


def test_is_no_surer_than_the_images_cuda_version() -> None:
    guessed = stack("575.57.08", "13.0", "H100", {}, certainty=Certainty.POSSIBLE)
    (draft,) = drafts(guessed)
    assert draft.certainty is Certainty.POSSIBLE
