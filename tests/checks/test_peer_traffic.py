"""ACS of root ports: a word only where peer traffic really goes through the IOMMU's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.facts.node import machine
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.report import Finding, Severity, Subject
from gpudoctor.sources.host.recorded import RecordedHost

CASES = Path(__file__).parent.parent / "cases" / "node"
CASE = CASES / "host-11-acs-on-root-ports-under-a-translating-iommu.json"
FIRST, SECOND = "0000:40:01.1", "0000:60:03.1"
MODELS = {"0000:41:00.0": "NVIDIA GeForce RTX 4090", "0000:61:00.0": "NVIDIA GeForce RTX 4090"}


def facts(tree: dict[str, Any] | None = None) -> NodeFacts:
    """Two cards straight below two root ports of one socket, as the report has them."""
    host = RecordedHost(json.loads(CASE.read_text())["tree"] | (tree or {}))
    return machine.with_gpus(host, machine.read(host, Subject("Host", "test")), None)


def found(node: NodeFacts) -> list[Finding]:
    drawn = diagnosis.diagnose(registry.load(), [node])
    return [one for one in drawn.findings if one.name == "acs-redirects-p2p"]


def test_both_ports_are_named_in_one_finding() -> None:
    (one,) = found(facts())
    assert one.severity is Severity.WARNING
    assert FIRST in one.title
    assert SECOND in one.title
    assert "iommu=pt" in one.detail
    assert any(evidence.value == "DMA-FQ" for evidence in one.evidence)


def changed(node: NodeFacts, **values: Any) -> NodeFacts:
    return msgspec.structs.replace(node, **values)


@pytest.mark.parametrize("kind", ["identity", "none"])
def test_without_translation_nothing_is_lost(kind: str) -> None:
    groups = {f"/sys/kernel/iommu_groups/{group}/type": f"{kind}\n" for group in (31, 52)}
    line = {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro iommu=pt\n"}
    assert found(facts(groups | line)) == []


def test_an_iommu_that_nobody_could_look_at_is_not_blamed() -> None:
    groups = {f"/sys/kernel/iommu_groups/{group}/type": {"errno": "EACCES"} for group in (31, 52)}
    assert found(facts(groups | {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro\n"})) == []
    (guessed,) = found(facts(groups))
    assert guessed.severity is Severity.INFO, "amd_iommu=on was asked for: no more is known"


def test_cards_without_peer_access_lose_none() -> None:
    assert found(changed(facts(), models=MODELS)) == []
    assert found(changed(facts(), models=MODELS | {"0000:41:00.0": "NVIDIA RTX 5880"}))


def test_nvlink_goes_round_the_root_complex() -> None:
    node = facts()
    assert node.topology is not None
    matrix = {"GPU0": {"GPU0": "X", "GPU1": "NV4"}, "GPU1": {"GPU0": "NV4", "GPU1": "X"}}
    bridged = msgspec.structs.replace(node.topology, matrix=matrix)
    assert found(changed(node, topology=bridged)) == []


def test_one_port_alone_and_virtual_machines_say_nothing() -> None:
    node = facts()
    one = msgspec.structs.replace(node.acs, ports=node.acs.ports[:1])
    assert found(changed(node, acs=one)) == []
    assert found(changed(node, virtual=True)) == []


def test_across_the_sockets_nccl_does_not_try() -> None:
    apart = {"/sys/bus/pci/devices/0000:61:00.0/numa_node": "1\n"}
    assert found(facts(apart)) == []
