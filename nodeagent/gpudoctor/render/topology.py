"""Draws a topology: the matrix, what serves which GPU, and the NVLink islands."""

from __future__ import annotations

from typing import Any, TextIO

from gpudoctor.render.clean import one_line
from gpudoctor.render.paper import Paper
from gpudoctor.report import Report

_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow"}
_STYLES |= {"SYS": "red"}
_UNKNOWN = "?"
_GAP = "  "
_SHOWN_NICS = 4
_MIG_HEADER = ["MIG device", "profile", "on", "GI/CI", "NVLink"]


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
    names = topology["nic_names"]
    gpus = list(topology["gpu_numa_id"])
    _matrix(topology["matrix"], gpus, list(names), paper)
    paper.blank()
    _places(topology, gpus, paper)
    if any(name != label for label, name in names.items()):
        paper.blank()
        paper.text(", ".join(f"{label}={name}" for label, name in names.items()), first="NICs: ")
    paper.blank()
    if islands := topology["nvlink_islands"]:
        paper.text("; ".join(" ".join(island) for island in islands), first="NVLink: ")
    elif topology["nvlink_visible"]:
        paper.text("none", first="NVLink: ")
    else:
        paper.text(f"not shown by {topology['source']}", first="NVLink: ")
    if devices := topology["mig"]:
        paper.blank()
        _table([_MIG_HEADER, *(_mig(device) for device in devices)], paper)


def _matrix(
    matrix: dict[str, dict[str, str]], gpus: list[str], nics: list[str], paper: Paper
) -> None:
    """Draw it whole where the paper is wide enough, else the GPUs' columns, then the NICs'.

    The path from A to B is that from B to A: below the GPUs' columns no NIC has a row.
    """
    labels = [*gpus, *nics]
    whole = _cells(matrix, labels, labels)
    if _width(whole) <= paper.width:
        _table(whole, paper, colored=True)
        return
    parts = [(gpus, part) for part in _parts(matrix, gpus, gpus, paper.width)]
    parts += [(labels, part) for part in _parts(matrix, labels, nics, paper.width)]
    for number, (rows, columns) in enumerate(parts):
        if number:
            paper.blank()
        _table(_cells(matrix, rows, columns), paper, colored=True)


def _cells(
    matrix: dict[str, dict[str, str]], rows: list[str], columns: list[str]
) -> list[list[str]]:
    body = [
        [row, *(matrix.get(row, {}).get(column, _UNKNOWN) for column in columns)] for row in rows
    ]
    return [["", *columns], *body]


def _parts(
    matrix: dict[str, dict[str, str]], rows: list[str], columns: list[str], width: int
) -> list[list[str]]:
    """Split columns into the fewest even parts that fit."""
    for count in range(1, len(columns) + 1):
        each = -(-len(columns) // count)
        parts = [columns[start : start + each] for start in range(0, len(columns), each)]
        if all(_width(_cells(matrix, rows, part)) <= width for part in parts):
            return parts
    return [[column] for column in columns]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(len(one_line(row[column])) for row in rows) for column in range(len(rows[0]))]


def _width(rows: list[list[str]]) -> int:
    widths = _widths(rows)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _places(topology: dict[str, Any], gpus: list[str], paper: Paper) -> None:
    """Say what is near to each GPU; the list of CPUs, the last column, may go on below."""
    rows = [["GPU", "near NICs", "NUMA"], *(_place(topology, gpu) for gpu in gpus)]
    widths = _widths(rows)
    cpus = ["CPUs", *(one_line(topology["cpu_affinity"].get(gpu) or "-") for gpu in gpus)]
    for row, last in zip(rows, cpus, strict=True):
        padded = [one_line(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        paper.text(last, first=_GAP.join([*padded, ""]))


def _place(topology: dict[str, Any], gpu: str) -> list[str]:
    nodes = topology["numa"].get(gpu)
    near = topology["nic_for_gpu"].get(gpu, [])
    more = f" +{len(near) - _SHOWN_NICS}" if len(near) > _SHOWN_NICS else ""
    return [
        gpu,
        " ".join(near[:_SHOWN_NICS]) + more or "-",
        "unknown" if nodes is None else ",".join(map(str, nodes)),
    ]


def _mig(device: dict[str, Any]) -> list[str]:
    parts = (device["gpu_instance"], device["compute_instance"])
    group = " ".join(device["nvlink_island"])
    return [
        device["uuid"],
        device["profile"] or _UNKNOWN,
        device["gpu"],
        "/".join(_UNKNOWN if part is None else str(part) for part in parts),
        group or "-",
    ]


def _table(rows: list[list[str]], paper: Paper, *, colored: bool = False) -> None:
    """Write columns side by side; the names in them come from outside and are cleaned."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = _widths(rows)
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if colored and row is not rows[0]:
            padded[1:] = [_styled(cell, paper) for cell in padded[1:]]
        paper.text("", first=_GAP.join(padded).rstrip())


def _styled(cell: str, paper: Paper) -> str:
    path = cell.strip()
    if path.startswith("NV"):
        return paper.style(cell, "bold", "cyan")
    return paper.style(cell, _STYLES[path]) if path in _STYLES else cell
