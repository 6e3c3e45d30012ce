"""Draws an NCCL log: the answer, one line a node, and who reaches whom by which transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from gpudoctor.render import text
from gpudoctor.render.clean import one_line
from gpudoctor.render.paper import Paper
from gpudoctor.report import Report

_WIDEST = 64
"""Cells a row: more ranks or hosts are folded, the slowest way in a block is shown."""
_ROWS_SHOWN = 24
_SETTINGS_SHOWN = 16
_LETTERS = (
    ("P2P/", "p", "p2p inside a node", "green"),
    ("NVLS", "v", "NVLS", "green"),
    ("COLLNET", "c", "CollNet", "green"),
    ("SHM", "s", "shared memory", "yellow"),
    ("direct shared memory", "s", "shared memory", "yellow"),
    ("NET/Socket", "T", "TCP sockets", "red"),
)
_GDR, _NO_GDR = ("N", "network with GDR", "green"), ("n", "network without GDR", "yellow")
_NONE = "·"


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write the report and the pictures as text; `color` None means only on a terminal."""
    text.render(report, stream, color=color)
    facts = report.facts.get("nccl")
    if facts and facts["hosts"]:
        paper = Paper(stream, color=color)
        paper.blank()
        paper.text(headline(facts))
        _hosts(facts["hosts"], paper)
        _grid(facts["transports"], paper)
        _settings(facts["environment"], paper)


def headline(facts: dict[str, Any]) -> str:
    """One line: ranks, hosts, network, GDR, version."""
    versions = ", ".join(facts["versions"]) or "unknown version"
    runs = f", {facts['runs']} runs" if facts["runs"] > 1 else ""
    return (
        f"{facts['ranks']} ranks, {facts['nodes']} hosts in the log, network {facts['network']},"
        f" GDR {facts['gdr']}, NCCL {versions}{runs}"
    )


def _hosts(hosts: list[dict[str, Any]], paper: Paper) -> None:
    """One line for each kind of host; the odd ones stand out, the alike ones are folded."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        adapters = "-" if host["adapters"] is None else str(host["adapters"])
        row = (
            str(host["processes"]),
            ", ".join(host["networks"]) or "-",
            host["gdr"],
            adapters,
            ", ".join(host["transports"]) or "-",
            str(host["warnings"]),
        )
        kinds.setdefault(row, []).append(host["name"])
    rows = [["host", "procs", "network", "GDR", "NICs", "inside the node", "warnings"]]
    for kind, names in sorted(kinds.items(), key=lambda item: len(item[1])):
        name = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
        rows.append([name, *kind])
    paper.blank()
    _table(rows[: _ROWS_SHOWN + 1], paper)
    if len(rows) > _ROWS_SHOWN + 1:
        paper.text(f"and {len(rows) - 1 - _ROWS_SHOWN} more kinds of hosts (-o json has them all)")


def _table(rows: list[list[str]], paper: Paper) -> None:
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        paper.text("", first="  ".join(padded).rstrip())


def _grid(transports: dict[str, Any], paper: Paper) -> None:
    labels, rows = transports["labels"], transports["rows"]
    if len(labels) < 2 or not any(map(any, rows)):
        return
    block = -(-len(labels) // _WIDEST)
    cells = _folded(rows, block)
    used: dict[str, str] = {}
    paper.blank()
    what = "ranks" if labels[0].isdigit() else "hosts"
    folded = f", {block} in a cell, the slowest way of them" if block > 1 else ""
    paper.text(f"From row to column, {len(labels)} {what}{folded}:")
    width = max(len(one_line(label)) for label in labels[::block])
    for label, row in zip(labels[::block], cells, strict=True):
        drawn = "".join(_drawn(code, transports["names"], used, paper) for code in row)
        paper.text("", first=f"{one_line(label).rjust(width)} {drawn}")
    legend = ", ".join(f"{letter} {meaning}" for letter, meaning in used.items())
    paper.text(f"{legend}, {_NONE} not in the log")


def _folded(rows: list[list[int]], block: int) -> list[list[int]]:
    starts = range(0, len(rows), block)
    return [
        [
            max(code for row in rows[top : top + block] for code in row[left : left + block])
            for left in starts
        ]
        for top in starts
    ]


def _drawn(code: int, names: list[str], used: dict[str, str], paper: Paper) -> str:
    name = names[code] if code < len(names) else ""
    if not code or not name:
        return _NONE
    letter, meaning, style = _letter(name)
    used[letter] = meaning
    return paper.style(letter, style)


def _letter(name: str) -> tuple[str, str, str]:
    for prefix, letter, meaning, style in _LETTERS:
        if name.startswith(prefix):
            return letter, meaning, style
    return _GDR if "GDRDMA" in name else _NO_GDR


def _settings(settings: list[dict[str, Any]], paper: Paper) -> None:
    lines = list(_setting_lines(settings))
    if not lines:
        return
    paper.blank()
    paper.text("NCCL read from its environment:")
    for line in lines[:_SETTINGS_SHOWN]:
        paper.text(line, first="  ")


def _setting_lines(settings: list[dict[str, Any]]) -> Iterator[str]:
    for setting in settings:
        hosts = f" on {setting['hosts']} hosts" if setting["hosts"] > 1 else ""
        yield one_line(f"{setting['name']}={setting['value']}{hosts}")
