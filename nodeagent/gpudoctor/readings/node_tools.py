"""What the node's own tools print, for `gpudoctor explain`: RDMA, PCI trees, CPUs, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpudoctor.errors import InputError
from gpudoctor.facts.node import (
    cpu_text,
    cpulist,
    interfaces_text,
    limits_text,
    pci_text,
    rdma_text,
    topology_reader,
)
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.pci_text import Tree
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject, Subject, Unknown
from gpudoctor.sources.text import TextInput


def _content(text: TextInput) -> str:
    return text.read().decode("utf-8", "replace")


def _reading(
    text: TextInput,
    kind: str,
    facts: tuple[object, ...] = (),
    published: dict[str, Any] | None = None,
    unknown: tuple[Unknown, ...] = (),
) -> Reading:
    return Reading(
        subject=ReportSubject(kind=kind, name=text.name),
        facts=facts,
        published=published or {},
        unknown=unknown,
        needed_unknown=bool(unknown),
    )


def _node(text: TextInput, **known: Any) -> NodeFacts:
    return NodeFacts(subject=Subject("Host", text.name), **known)


def _read_rdma(text: TextInput) -> Reading:
    hcas = rdma_text.parse(_content(text))
    if hcas is None:
        raise InputError(f"{text.name}: no device of ibstat, ibv_devinfo or `rdma link`")
    unknown = () if hcas else (Unknown("RDMA devices", "the tool found none"),)
    published = {
        "rdma": {
            f"{hca.name}/{port.number}": {
                "state": port.state,
                "physical_state": port.physical,
                "rate_gbps": port.rate if port.is_active else None,
                "link_layer": port.link_layer,
            }
            for hca in hcas
            for port in hca.ports
        }
    }
    return _reading(text, "RDMA", (_node(text, hcas=hcas),), published, unknown)


def _read_limits(text: TextInput) -> Reading:
    process = limits_text.parse(_content(text))
    if process is None:
        raise InputError(f"{text.name}: no line of the locked-memory limit")
    published = {"host": {"memlock_soft_bytes": process.memlock_soft}}
    return _reading(text, "Limits", (_node(text, process=process),), published)


def _read_cpus(text: TextInput) -> Reading:
    nodes = cpu_text.parse(_content(text))
    if not nodes:
        raise InputError(f"{text.name}: no NUMA node is named")
    published = {"numa": {f"node{node.number}": cpulist.render(node.cpus) for node in nodes}}
    unknown = (
        Unknown("GPUs and their NUMA nodes", "CPUs alone do not show them: `nvidia-smi topo -m`"),
    )
    return _reading(text, "CPUs", (_node(text, numa=nodes),), published, unknown)


def _read_interfaces(text: TextInput) -> Reading:
    found = interfaces_text.parse(_content(text))
    if not found:
        raise InputError(f"{text.name}: no line of `ip -br link`")
    published = {
        "interfaces": {one.name: {"state": one.state, "carrier": one.has_carrier} for one in found}
    }
    unknown = (
        Unknown("RDMA devices", "network interfaces do not show them: `rdma link`, `ibv_devinfo`"),
    )
    return _reading(text, "Interfaces", (), published, unknown)


def _tree_reader(parse: Callable[[str], Tree], source: str) -> Callable[[TextInput], Reading]:
    def read(text: TextInput) -> Reading:
        tree = parse(_content(text))
        placed = [*tree.gpus, *(nic.pci for nic in tree.nics if nic.pci is not None)]
        topology = topology_reader.from_sysfs(
            Subject("Host", text.name),
            tree.gpus,
            tree.nics,
            {device.address: device for device in placed},
            (),
            source=source,
        )
        unknown = () if tree.gpus else (Unknown("NVIDIA GPUs", "the tree shows none"),)
        published = {"topology": topology.published()}
        return _reading(text, "PCI", (topology,), published, unknown)

    return read


RDMA = Format("rdma", rdma_text.lines_seen, _read_rdma)
LIMITS = Format("limits", limits_text.lines_seen, _read_limits)
CPUS = Format("cpus", cpu_text.lines_seen, _read_cpus)
INTERFACES = Format("interfaces", interfaces_text.lines_seen, _read_interfaces)
LSPCI = Format("lspci", pci_text.lspci_lines, _tree_reader(pci_text.parse_lspci, "lspci -tv"))
HWLOC = Format("hwloc", pci_text.hwloc_lines, _tree_reader(pci_text.parse_hwloc, "hwloc-ls"))
