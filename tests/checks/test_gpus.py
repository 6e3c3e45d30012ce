"""Findings from NVML's answers, and the healthy or unsupported answers that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import diagnosis, registry
from gpudoctor.diagnosis import Diagnosis
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources.child import Answer

HOST = Subject("Host", "local")
CHECKS = registry.load()
NOT_SUPPORTED = {"code": 3, "why": "Not Supported"}
FABRIC = {"state": 3, "status": 0, "clique": 0, "cluster": ""}
LINKS = [{"active": True, "errors": {}}] * 18
HEALTHY: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1", "pci": "00000000:18:00.0",
    "capability": [9, 0], "recovery_action": 0, "mig_mode": [0, 0], "compute_mode": 0,
    "remapped_rows": [0, 0, 0, 0], "retired_pending": NOT_SUPPORTED, "sram_threshold": False,
    "pcie_generation": 5, "pcie_width": 16, "pcie_max_generation": 5, "pcie_max_width": 16,
    "clock_reasons": 4, "temperature": 60, "links": LINKS,
    "fabric": {"state": 3, "status": 0, "clique": 0, "cluster": ""},
}  # fmt: skip


def answer(*gpus: dict[str, Any], init: Any = True, in_time: bool = True) -> Answer:
    lines: list[Any] = [[None, "init", init], [None, "driver", "580.95.05"]]
    lines += [[number, key, value] for number, gpu in enumerate(gpus) for key, value in gpu.items()]
    return Answer("".join(json.dumps(line) + "\n" for line in lines), in_time)


def diagnose(*gpus: dict[str, Any], **rest: Any) -> Diagnosis:
    facts = parse_gpus(answer(*gpus, **rest), HOST)
    assert isinstance(facts, NodeGpus)
    return diagnosis.diagnose(CHECKS, [facts])


def names(found: Diagnosis) -> list[str]:
    return [finding.name for finding in found.findings]


def test_a_healthy_node_says_nothing() -> None:
    found = diagnose(HEALTHY, HEALTHY | {"pci": "00000000:19:00.0"})
    assert (found.findings, found.unknown) == ((), ())


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"handle": {"code": 15, "why": "GPU is lost"}}, "gpu-lost"),
        ({"temperature": {"code": 15, "why": "GPU is lost"}}, "gpu-lost"),
        ({"handle": {"code": 16, "why": "reset"}}, "gpu-needs-reset"),
        ({"recovery_action": 1}, "gpu-needs-reset"),
        ({"recovery_action": 2}, "gpu-needs-reboot"),
        ({"recovery_action": 7}, "gpu-needs-reboot"),
        ({"remapped_rows": [0, 1, 1, 0]}, "gpu-memory-repair-pending"),
        ({"remapped_rows": [0, 1, 1, 1]}, "gpu-memory-repair-failed"),
        ({"sram_threshold": True}, "gpu-memory-repair-failed"),
        ({"retired_pending": True}, "gpu-memory-repair-pending"),
        ({"pcie_width": 8}, "gpu-pcie-degraded"),
        ({"pcie_generation": 1}, "gpu-pcie-degraded"),
        ({"clock_reasons": 0x44}, "gpu-clocks-slowed"),
        ({"clock_reasons": 0x80}, "gpu-clocks-slowed"),
        ({"links": [*LINKS[:17], {"active": False, "errors": {}}]}, "nvlink-down"),
        ({"fabric": {"state": 2, "status": 0, "clique": 0, "cluster": ""}}, "fabric-not-ready"),
        ({"fabric": {"state": 3, "status": 999, "clique": 0, "cluster": ""}}, "fabric-not-ready"),
        ({"compute_mode": 2}, "gpu-busy"),
        ({"fabric": FABRIC | {"health_summary": 2}}, "nvlink-fabric-degraded"),
        ({"fabric": FABRIC | {"health_summary": 1, "health_mask": 1}}, "nvlink-fabric-degraded"),
        ({"fabric": FABRIC | {"health_mask": 5 << 8}}, "nvlink-fabric-degraded"),
        ({"ecc_uncorrected": 2}, "gpu-uncorrectable-ecc"),
        ({"ecc_uncorrected": 2, "remapped_rows": [0, 1, 1, 0]}, "gpu-memory-repair-pending"),
        ({"ecc_uncorrected": 2, "remapped_rows": [0, 1, 1, 1]}, "gpu-memory-repair-failed"),
    ],
)
def test_findings(changed: dict[str, Any], name: str) -> None:
    found = diagnose(HEALTHY | changed, HEALTHY)
    assert names(found) == [name]
    assert "{" not in found.findings[0].title


@pytest.mark.parametrize(
    "changed",
    [
        {"pcie_generation": 1, "clock_reasons": 1},  # idle: saves power
        {"clock_reasons": 0x2 | 0x4 | 0x100},  # application clocks, power cap, display
        {"remapped_rows": [5, 2, 0, 0]},  # repaired
        {"ecc_uncorrected": 0},
        {"ecc_uncorrected": NOT_SUPPORTED},
        {"remapped_rows": NOT_SUPPORTED, "links": NOT_SUPPORTED, "fabric": NOT_SUPPORTED},
        {"fabric": {"state": 0, "status": 0, "clique": 0, "cluster": ""}},
        {"recovery_action": NOT_SUPPORTED},
        {"fabric": FABRIC | {"health_summary": 1, "health_mask": 2 | 2 << 2 | 1 << 8 | 1 << 14}},
        {"fabric": FABRIC | {"health_summary": 0, "health_mask": 0}},
        {"clocks": {"sm": [345, 1980, 1980]}, "clock_reasons": 1},
        {"row_histogram": [600, 30, 6, 3, 1]},  # a bank without a spare row is no fault yet
        {"compute_mode": 3},  # exclusive is a choice
        {"mig_mode": [1, 1], "links": [{"active": False, "errors": {}}] * 18},
    ],
)
def test_near_misses(changed: dict[str, Any]) -> None:
    assert names(diagnose(HEALTHY | changed, HEALTHY)) == []


def test_bridged_cards_differ_by_design() -> None:
    bridged = HEALTHY | {"name": "NVIDIA H100 PCIe"}
    alone = bridged | {"links": [{"active": False, "errors": {}}] * 18}
    assert names(diagnose(bridged, bridged, alone)) == []


@pytest.mark.parametrize(
    ("code", "expected"), [(9, ["driver-not-loaded"]), (18, ["driver-library-mismatch"]), (4, [])]
)
def test_nvml_that_does_not_start(code: int, expected: list[str]) -> None:
    found = diagnose(init={"code": code, "why": "x"})
    assert names(found) == expected
    assert bool(found.unknown) == (not expected)


def test_a_hang_is_one_unknown_not_one_for_each_value() -> None:
    text = answer({"name": "NVIDIA H100"}).text + '["?", 0, "temperature"]\n[0, "temp'
    facts = parse_gpus(Answer(text, in_time=False), HOST)
    assert isinstance(facts, NodeGpus)
    found = diagnosis.diagnose(CHECKS, [facts])
    assert names(found) == ["driver-not-answering"]
    assert [unknown.what for unknown in found.unknown] == [
        "NVML: temperature of GPU 0 and what follows"
    ]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=40),
            st.tuples(
                st.one_of(st.none(), st.integers(-1, 3), st.just("?")),
                st.sampled_from(["init", "count", *HEALTHY, "handle", "processes", "mig_devices"]),
                st.recursive(
                    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
                    lambda inner: (
                        st.lists(inner, max_size=4)
                        | st.dictionaries(st.sampled_from(["code", "why", "state"]), inner)
                    ),
                    max_leaves=6,
                ),
            ).map(json.dumps),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_any_answer_is_taken(lines: list[str], in_time: bool) -> None:
    start = json.dumps([None, "init", True])
    facts = parse_gpus(Answer("\n".join([start, *lines]), in_time), HOST)
    if not isinstance(facts, Unknown):
        assert all(
            "check" not in unknown.what for unknown in diagnosis.diagnose(CHECKS, [facts]).unknown
        )
