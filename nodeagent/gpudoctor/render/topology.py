"""Draws a topology: the matrix, what serves which GPU, and the NVLink islands."""

from __future__ import annotations

from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudoctor.report import Report

_STYLES = {
    "X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"
}  # fmt: skip
_NVLINK = "bold cyan"
_WIDE = 400


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write the topology of a report as text; `color` None means only on a terminal."""
    console = Console(
        file=stream,
        no_color=color is False,
        force_terminal=color,
        highlight=False,
        markup=False,
        width=None if stream.isatty() else _WIDE,
    )
    topology = report.facts.get("topology")
    if not topology or not topology["gpus"]:
        console.print("No GPU is known here.")
    else:
        _draw(topology, console)
    for finding in report.findings:
        console.print(f"{finding.severity}: {finding.title} [{finding.runbook}]")
    for unknown in report.unknown:
        console.print(f"unknown: {unknown.what}: {unknown.why}", style="dim")


def _draw(topology: dict[str, Any], console: Console) -> None:
    console.print(_matrix(topology))
    console.print(_neighbours(topology))
    islands = topology["nvlink_islands"]
    if islands:
        console.print("NVLink: " + "; ".join(" ".join(island) for island in islands))
    elif not topology["nvlink_visible"]:
        console.print(f"NVLink: not shown by {topology['source']}")


def _matrix(topology: dict[str, Any]) -> Table:
    matrix = topology["matrix"]
    labels = list(dict.fromkeys([*matrix, *(other for row in matrix.values() for other in row)]))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for label in labels:
        table.add_column(label, justify="center")
    for label in labels:
        row = matrix.get(label, {})
        table.add_row(label, *(_cell(row.get(other, "?")) for other in labels))
    return table


def _cell(path: str) -> Text:
    return Text(path, style=_STYLES.get(path, _NVLINK if path.startswith("NV") else "magenta"))


def _neighbours(topology: dict[str, Any]) -> Table:
    table = Table("GPU", "near NICs", "NUMA", "CPUs", box=None, pad_edge=False)
    for label in topology["gpu_numa_id"]:
        nodes = topology["numa"].get(label)
        table.add_row(
            label,
            " ".join(topology["nic_for_gpu"].get(label, [])) or "-",
            "unknown" if nodes is None else ",".join(map(str, nodes)),
            topology["cpu_affinity"].get(label) or "-",
        )
    return table
