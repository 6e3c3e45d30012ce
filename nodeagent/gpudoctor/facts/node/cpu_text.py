"""NUMA nodes and their CPUs as `lscpu -e`, `lscpu` and `numactl --hardware` print them."""

from __future__ import annotations

import re

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.model import NumaNode

_NUMACTL = re.compile(r"^node (\d{1,4}) cpus:([ \d]*)$", re.MULTILINE)
_LSCPU = re.compile(r"^\s*NUMA node(\d{1,4}) CPU\(s\):\s*([\d,-]*)\s*$", re.MULTILINE)
_TABLE = re.compile(r"^\s*CPU\s+(?:\S+\s+)*?NODE\b.*$", re.MULTILINE)
_ROW = re.compile(r"^\s*\d+(?:\s+\S+)+\s*$", re.MULTILINE)


def lines_seen(text: str) -> int:
    """Count the telling lines."""
    found = len(_NUMACTL.findall(text)) + len(_LSCPU.findall(text))
    return found + (1 + len(_ROW.findall(text)) if _TABLE.search(text) else 0)


def parse(text: str) -> tuple[NumaNode, ...]:
    """Return the nodes in order; none if the text names none."""
    text = text.replace("\r", "")
    nodes: dict[int, set[int]] = {}
    for number, cpus in _NUMACTL.findall(text):
        nodes.setdefault(int(number), set()).update(int(cpu) for cpu in cpus.split()[:4096])
    for number, cpus in _LSCPU.findall(text):
        nodes.setdefault(int(number), set()).update(cpulist.parse(cpus) or ())
    if header := _TABLE.search(text):
        _read_table(header[0].split(), text[header.end() :], nodes)
    return tuple(NumaNode(number, frozenset(cpus)) for number, cpus in sorted(nodes.items()))


def _read_table(columns: list[str], rows: str, nodes: dict[int, set[int]]) -> None:
    cpu, node = columns.index("CPU"), columns.index("NODE")
    for line in rows.splitlines():
        words = line.split()
        if len(words) <= max(cpu, node):
            continue
        numbers = cpulist.parse(words[node]), cpulist.parse(words[cpu])
        if numbers[0] and numbers[1] and len(numbers[0]) == 1:
            nodes.setdefault(min(numbers[0]), set()).update(numbers[1])
