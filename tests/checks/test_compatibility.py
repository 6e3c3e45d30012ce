"""Driver, image and GPU: the published cases, the gates, and what holds for all versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.cuda import resolve_gpu, tables
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule, RuntimeMode
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda, parse_driver
from gpudoctor.report import Subject
from gpudoctor_checks.compatibility import (
    Compatibility,
    Outcome,
    compat_supported,
    judge,
    rule_tables,
)
from gpudoctor_checks.ways_out import ways_out

CASES = json.loads((Path(__file__).parent.parent / "cases/node/compat-cases.json").read_text())


def stack(driver: str, cuda: str, gpu: str | None = None, **rest: Any) -> CudaStack:
    toolkit = parse_cuda(cuda)
    assert toolkit is not None
    return CudaStack(
        subject=Subject("Stack", "s"),
        driver=parse_driver(driver),
        toolkit=toolkit,
        gpu=resolve_gpu(gpu),
        **rest,
    )


def of_case(case: dict[str, Any]) -> CudaStack:
    return stack(
        case["driver"],
        case["cuda_image"],
        case["gpu"],
        compat_package=case["compat_package"],
        activation=Activation(case.get("compat_activation", "hook")),
        mode=RuntimeMode(case.get("runtime_mode", "legacy")),
        requirements=tuple(filter(None, [case["nvidia_require_cuda"]])),
        requirements_disabled=case.get("nvidia_disable_require", False),
        kernel_module=KernelModule(case["kernel_module"]) if "kernel_module" in case else None,
        needs_ptx_jit=case.get("needs_ptx_jit"),
        has_ptx=case.get("has_ptx"),
    )


def short(answer: Compatibility) -> tuple[str, str, list[int], list[str]]:
    return answer.outcome, answer.rule, list(answer.error_codes), list(answer.problems)


@pytest.mark.parametrize("case", CASES, ids=[f"{c['driver']}-{c['cuda_image']}" for c in CASES])
def test_published_cases(case: dict[str, Any]) -> None:
    want = case["expect"]
    assert short(judge(of_case(case))) == (
        want["verdict"], want["rule"], want["error_codes"], want["finding_ids"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "cuda", "gpu", "options", "expected"),
    [
        # the baseline of each major, and the release before it
        ("580.65.06", "13.2", "H100", {}, ("ok-with-limits", "minor", [36, 222])),
        ("580.65.05", "13.2", "H100", {}, ("fails", "none", [35])),
        ("525.60.11", "12.3", "T4", {}, ("fails", "none", [35])),
        ("440.33.01", "10.2", "T4", {}, ("ok", "backward", [])),
        ("418.39", "10.2", "T4", {}, ("fails", "none", [35])),
        # three-part releases compare by level
        ("615.12.01", "13.4.2", "H100", {}, ("ok", "backward", [])),
        ("560.28.03", "12.6.3", "H100", {}, ("ok", "backward", [])),
        # a program that is known to compile nothing has no PTX limit
        ("535.129.03", "12.6", "A100", {"needs_ptx_jit": False}, ("ok-with-limits", "minor", [36])),
        # forward compatibility
        ("595.45.04", "13.4.1", "H100", {"compat_package": True}, ("ok", "forward", [])),
        ("580.95.05", "13.5", "H100", {"compat_package": True}, ("ok", "forward", [])),
        ("580.95.05", "13.2", "RTX A6000", {"compat_package": True}, ("ok", "forward", [])),
        ("570.124.06", "12.8.1", "H200",
         {"compat_package": True, "activation": Activation.LD_LIBRARY_PATH},
         ("ok", "backward", [])),
        ("560.35.05", "13.0.2", "A100", {"compat_package": True}, ("fails", "none", [35])),
        ("550.54.15", "12.8", "A100", {"compat_package": True},
         ("ok-with-limits", "minor", [36, 222])),
        ("520.61.05", "12.4", "A100", {"compat_package": True}, ("fails", "forward", [803])),
        ("545.23.06", "12.8", "A100",
         {"compat_package": True, "activation": Activation.LD_LIBRARY_PATH},
         ("fails", "forward", [803])),
        # architecture: family members, products younger than their architecture, gates
        ("580.65.06", "12.8", "NVIDIA B300", {}, ("ok", "backward", [])),
        ("580.65.06", "12.8", "NVIDIA GB10", {}, ("ok", "backward", [])),
        ("535.129.03", "11.4", "NVIDIA L4", {}, ("ok", "backward", [])),
        ("535.129.03", "11.7", "H100", {}, ("ok-with-limits", "backward", [209])),
        ("535.129.03", "11.7", "H100", {"has_ptx": True}, ("ok", "backward", [])),
        ("535.129.03", "11.7", "H100", {"has_ptx": False}, ("fails", "backward", [209])),
        ("530.30.02", "12.1", "NVIDIA L40S", {}, ("fails", "none", [100])),
        ("535.129.03", "12.2", "NVIDIA H200", {}, ("fails", "none", [100])),
        ("610.43.02", "13.4.1", "Rubin", {}, ("fails", "none", [100])),
        ("470.256.02", "12.1", "Tesla K80", {"kernel_module": KernelModule.OPEN},
         ("fails", "none", [100])),
        ("570.86.15", "12.8", "NVIDIA GH200 480GB", {"kernel_module": KernelModule.PROPRIETARY},
         ("fails", "none", [100])),
        ("570.86.15", "12.8", "NVIDIA H200", {"kernel_module": KernelModule.PROPRIETARY},
         ("ok", "backward", [])),
        # without a known GPU the version rules still answer
        ("535.54.03", "13.0", None, {}, ("fails", "none", [35])),
        # beyond the table: a newer branch runs what the newest known one does, no more is known
        ("700.10.01", "13.5", "H100", {}, ("ok", "backward", [])),
        ("700.10.01", "14.0", "H100", {}, ("unknown", "none", [])),
    ],
)  # fmt: skip
def test_rules(
    driver: str, cuda: str, gpu: str | None, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert short(judge(stack(driver, cuda, gpu, **options)))[:3] == expected


def test_the_drivers_own_cuda_level_decides_over_its_branch() -> None:
    told = stack("700.10.01", "14.0", "H100", level=CudaVersion(14, 1))
    assert judge(told).outcome is Outcome.OK
    only_level = CudaStack(
        subject=Subject("Stack", "s"), toolkit=CudaVersion(13, 0), level=CudaVersion(12, 2)
    )
    assert judge(only_level).problems == ("driver-too-old",)


def test_what_is_not_known_is_said() -> None:
    assert [one.what for one in judge(stack("535.54.03", "12.2", "Foo 3")).unknown] == [
        "the GPU's architecture"
    ]
    needs_brand = stack("535.54.03", "12.9", None, requirements=("brand=tesla,driver>=535",))
    assert "the image's requirement" in {one.what for one in judge(needs_brand).unknown}


@pytest.mark.parametrize("toolkit", list(rule_tables().forward), ids=str)
@pytest.mark.parametrize("branch", list(next(iter(rule_tables().forward.values()))))
def test_the_forward_table_decides_each_of_its_cells(toolkit: CudaVersion, branch: int) -> None:
    forced = CudaStack(
        subject=Subject("Stack", "s"),
        driver=DriverVersion(branch),
        toolkit=toolkit,
        gpu=resolve_gpu("H100"),
        compat_package=True,
        activation=Activation.LD_LIBRARY_PATH,
    )
    mark = rule_tables().forward[toolkit][branch]
    expected = {"C": ("ok", "forward"), "=": ("ok", "backward"), "X": ("fails", "forward")}[mark]
    assert short(judge(forced))[:2] == expected
    assert compat_supported(toolkit, branch) is (mark == "C")


@pytest.mark.parametrize("row", list(tables().architectures.values()), ids=lambda row: row.name)
def test_the_architecture_table_decides_its_edges(row: Any) -> None:
    gpu = resolve_gpu(None, str(row.capability))

    def at(branch: int, toolkit: CudaVersion) -> tuple[str, ...]:
        built = CudaStack(
            subject=Subject("Stack", "s"), driver=DriverVersion(branch), toolkit=toolkit, gpu=gpu
        )
        return judge(built).problems

    if row.last_branch:
        assert at(row.last_branch + 1, row.first_toolkit) == ("gpu-dropped-by-driver",)
        assert "gpu-dropped-by-driver" not in at(row.last_branch, row.first_toolkit)
    if row.first_branch:
        assert at(row.first_branch - 1, row.first_toolkit) == ("gpu-newer-than-driver",)
    newest = row.last_branch or tables().newest_branch
    assert at(newest, row.first_toolkit) == ()
    if row.last_toolkit and row.last_toolkit.major < tables().levels[newest].major:
        next_major = CudaVersion(row.last_toolkit.major + 1, 0)
        assert at(newest, next_major) == ("toolkit-dropped-arch",)


def test_needs_a_module_flavour_only_where_the_other_is_loaded() -> None:
    open_on_volta = stack("580.95.05", "12.8", "Tesla V100", kernel_module=KernelModule.OPEN)
    assert judge(open_on_volta).problems == ("needs-proprietary-kernel-module",)
    assert judge(stack("580.95.05", "12.8", "Tesla V100")).problems == ()


@pytest.mark.parametrize(
    ("unfit", "cheapest"),
    [
        (stack("570.172.08", "13.0", "H100"), "install cuda-compat-13-0 in the image"),
        (stack("570.172.08", "13.0", "RTX 4090"), "use an image of CUDA 12.8"),
        (stack("535.1.1", "12.9", "RTX 3060", requirements=("cuda>=12.9",)), "NVIDIA_DISABLE"),
        (
            stack(
                "580.126.09", "12.8", "H200",
                compat_package=True, activation=Activation.LD_LIBRARY_PATH,
            ),
            "take the cuda-compat folder out",
        ),
        (stack("570.124.06", "12.4", "RTX 5090", has_ptx=False), "use an image of CUDA 12.8"),
        (stack("580.95.05", "13.0", "V100"), "use an image of CUDA 12.9"),
        (stack("550.144.03", "12.8", "B200"), "upgrade the driver to 570.26 or newer"),
        (stack("590.48.01", "12.8", "V100"), "install a driver of branch 580"),
        (
            stack("570.133.20", "12.8", "B200", kernel_module=KernelModule.PROPRIETARY),
            "install the open kernel modules",
        ),
    ],
)  # fmt: skip
def test_the_cheapest_way_out_comes_first(unfit: CudaStack, cheapest: str) -> None:
    assert judge(unfit).outcome is Outcome.FAILS
    assert cheapest in ways_out(unfit)[0]


def test_what_works_with_limits_is_told_only_what_lifts_them() -> None:
    limited = stack(
        "470.199.02", "11.8", "A100", requirements=("cuda>=11.8 driver>=470,driver<471",)
    )
    assert judge(limited).outcome is Outcome.LIMITED
    assert ways_out(limited) == (
        "use an image of CUDA 11.4 or older, down to 11.0",
        "upgrade the driver to 520.61.05 or newer",
    )


VERSIONS = st.builds(CudaVersion, st.integers(7, 15), st.integers(0, 12))
BRANCHES = st.sampled_from([*tables().levels, 384, 430, 600, 699])
DRIVERS = st.builds(DriverVersion, BRANCHES, st.integers(0, 400), st.integers(0, 99))
NAMES = ["Tesla K80", "Tesla P100", "V100", "T4", "A100", "L40S", "H200", "B300", "RTX 5090", ""]
GPUS = st.sampled_from(NAMES)


@settings(deadline=None, max_examples=200)
@given(DRIVERS, VERSIONS, GPUS, st.booleans(), st.sampled_from(Activation))
def test_any_versions_give_one_answer(
    driver: DriverVersion, toolkit: CudaVersion, gpu: str, compat: bool, activation: Activation
) -> None:
    answer = judge(
        CudaStack(
            subject=Subject("Stack", "s"),
            driver=driver,
            toolkit=toolkit,
            gpu=resolve_gpu(gpu),
            compat_package=compat,
            activation=activation,
        )
    )
    assert (answer.outcome is Outcome.UNKNOWN) <= (driver.branch > tables().newest_branch)
    assert bool(answer.problems) == (answer.outcome in (Outcome.FAILS, Outcome.LIMITED))


@settings(deadline=None, max_examples=200)
@given(DRIVERS, DRIVERS, VERSIONS, GPUS)
def test_a_newer_driver_breaks_nothing_but_dropped_gpus(
    one: DriverVersion, other: DriverVersion, toolkit: CudaVersion, name: str
) -> None:
    gpu = resolve_gpu(name)
    older, newer = (
        judge(CudaStack(subject=Subject("Stack", "s"), driver=driver, toolkit=toolkit, gpu=gpu))
        for driver in sorted((one, other))
    )
    works = (Outcome.OK, Outcome.LIMITED)
    if older.outcome in works and newer.outcome not in works:
        assert newer.problems == ("gpu-dropped-by-driver",) or newer.outcome is Outcome.UNKNOWN
