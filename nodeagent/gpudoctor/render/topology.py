"""Draws a topology: the matrix, what serves which GPU, and the NVLink islands."""

from __future__ import annotations

from typing import Any, TextIO

from gpudoctor.render.clean import one_line
from gpudoctor.render.paper import Paper
from gpudoctor.report import Report

_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow"}
_STYLES |= {"SYS": "red"}
_UNKNOWN = "?"


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write the topology of a report as text; `color` None means only on a terminal."""
    paper = Paper(stream, color=color)
    topology = report.facts.get("topology")
    if not topology or not topology["gpus"]:
        paper.text("No GPU is known here.")
    else:
        _draw(topology, paper)
    if report.findings or report.unknown:
        paper.blank()
    for finding in report.findings:
        paper.text(f"{finding.title} [{finding.runbook}]", first=f"{finding.severity}: ")
    for unknown in report.unknown:
        paper.text(f"{unknown.what}: {unknown.why}", first="unknown: ")


def _draw(topology: dict[str, Any], paper: Paper) -> None:
    matrix = topology["matrix"]
    names = topology["nic_names"]
    gpus = list(topology["gpu_numa_id"])
    labels = [*gpus, *names]
    rows = [["", *labels]]
    rows += [[one, *(matrix.get(one, {}).get(other, _UNKNOWN) for other in labels)] for one in gpus]
    rows += [
        [nic, *(matrix.get(nic, {}).get(other, _UNKNOWN) for other in labels)] for nic in names
    ]
    _table(rows, paper, colored=True)
    paper.blank()
    _table([["GPU", "near NICs", "NUMA", "CPUs"], *(_place(topology, gpu) for gpu in gpus)], paper)
    if any(name != label for label, name in names.items()):
        paper.blank()
        paper.text(", ".join(f"{label} {name}" for label, name in names.items()), first="NICs: ")
    paper.blank()
    if islands := topology["nvlink_islands"]:
        paper.text("; ".join(" ".join(island) for island in islands), first="NVLink: ")
    elif topology["nvlink_visible"]:
        paper.text("none", first="NVLink: ")
    else:
        paper.text(f"not shown by {topology['source']}", first="NVLink: ")


def _place(topology: dict[str, Any], gpu: str) -> list[str]:
    nodes = topology["numa"].get(gpu)
    return [
        gpu,
        " ".join(topology["nic_for_gpu"].get(gpu, [])) or "-",
        "unknown" if nodes is None else ",".join(map(str, nodes)),
        topology["cpu_affinity"].get(gpu) or "-",
    ]


def _table(rows: list[list[str]], paper: Paper, *, colored: bool = False) -> None:
    """Write columns side by side; the names in them come from outside and are cleaned."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if colored and row is not rows[0]:
            padded[1:] = [_styled(cell, paper) for cell in padded[1:]]
        paper.text("", first="  ".join(padded).rstrip())


def _styled(cell: str, paper: Paper) -> str:
    path = cell.strip()
    if path.startswith("NV"):
        return paper.style(cell, "bold", "cyan")
    return paper.style(cell, _STYLES[path]) if path in _STYLES else cell
