"""A fleet for a person: how many nodes are well, what is wrong with the others, who differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from gpudoctor.render.clean import one_line
from gpudoctor.render.paper import Paper
from gpudoctor.report import Report

_COLORS = {"failing": "red", "warning": "yellow", "unknown": "yellow", "healthy": "green"}
_COLUMNS = (
    ("gpu-model", "model"), ("gpu-count", "gpus"), ("driver", "driver"), ("nvlink", "nvlink"),
    ("rdma", "rdma"), ("rdma-rails", "rails"), ("rdma-gbps", "gbps"), ("gdr", "gdr"),
)  # fmt: skip
_MOST_GROUPS = 20
_MOST_NAMES = 6
_MOST_ODD = 20
_NONE = "-"


def render(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write a report on a fleet as text; `color` None means only on a terminal."""
    paper = Paper(stream, color=color)
    fleet = report.facts["fleet"]
    counts = [
        paper.style(f"{count} {verdict}", _COLORS.get(verdict, "cyan"))
        for verdict, count in fleet["verdicts"].items()
    ]
    if fleet["silent"]:
        counts.append(paper.style(f"{len(fleet['silent'])} not heard", "yellow"))
    paper.text(
        "", first=f"{paper.style('Fleet', 'bold')}  {fleet['nodes']} nodes: {', '.join(counts)}"
    )
    _groups(fleet["groups"], paper)
    _roots(report, paper)
    _odd(fleet["odd_ones_out"], paper)
    _silent(fleet["silent"], paper)
    for unknown in report.unknown:
        paper.text(f"{unknown.what}: {unknown.why}", first="Not known: ")


def _groups(groups: Sequence[dict[str, Any]], paper: Paper) -> None:
    """One row for nodes that are alike; what differs beyond the columns shows among the odd."""
    merged: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for group in groups:
        cells = [_cell(label, group["labels"].get(label)) for label, _ in _COLUMNS]
        merged[group["verdict"], *cells].extend(group["nodes"])
    rows = sorted(merged.items(), key=lambda row: (-len(row[1]), row[1][0]))
    if not rows:
        return
    paper.blank()
    table = [["nodes", "verdict", *(head for _, head in _COLUMNS), ""]]
    table += [
        [str(len(names)), *key, names[0] if len(names) == 1 else f"{names[0]}, …"]
        for key, names in rows[:_MOST_GROUPS]
    ]
    _table(table, paper)
    if len(rows) > _MOST_GROUPS:
        rest = sum(len(names) for _, names in rows[_MOST_GROUPS:])
        paper.text(f"and {len(rows) - _MOST_GROUPS} more kinds, {rest} nodes in all: -o json")


def _cell(label: str, value: str | None) -> str:
    if value is None:
        return _NONE
    if label == "driver" and value.isdecimal():
        number = int(value)
        return f"{number // 10**6}.{number // 1000 % 1000:02d}.{number % 1000:02d}"
    return one_line(value)


def _roots(report: Report, paper: Paper) -> None:
    nodes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for child in report.children:
        for root in map(child.finding, child.root_ids):
            nodes[root.code, root.name, root.severity.value].append(child.subject.name or "")
    if not nodes:
        return
    paper.blank()
    paper.text("Root causes", "bold")
    for (code, name, severity), where in sorted(nodes.items(), key=lambda one: -len(one[1])):
        unique = list(dict.fromkeys(where))
        paper.text(
            _names(unique), first=f"  {code} {name} ({severity}), {_count(unique)}: ", rest="    "
        )


def _odd(odd: Sequence[dict[str, Any]], paper: Paper) -> None:
    if not odd:
        return
    paper.blank()
    paper.text("Odd ones out", "bold")
    alike: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for one in odd:
        key = (one["model"], one["label"], one["value"], one["usual"], one["have"], one["of"])
        alike[key].append(one["node"])
    for (model, label, value, usual, have, of), names in list(alike.items())[:_MOST_ODD]:
        has = "has none, or it is not known" if value is None else f"is {_cell(label, value)}"
        text = (
            f"{label} {has}; of {have} of {of} {one_line(model)} nodes it is {_cell(label, usual)}"
        )
        paper.text(text, first=f"  {_names(names)}: ", rest="    ")
    if len(alike) > _MOST_ODD:
        paper.text(f"  and {len(alike) - _MOST_ODD} more: -o json")


def _silent(silent: dict[str, str], paper: Paper) -> None:
    if not silent:
        return
    paper.blank()
    paper.text("Not heard", "bold")
    for why, count in Counter(silent.values()).most_common(_MOST_GROUPS):
        names = [name for name, said in silent.items() if said == why]
        paper.text(why, first=f"  {_names(names)} ({count}): ", rest="    ")


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(one_line(name) for name in listed[:_MOST_NAMES])
    more = len(listed) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} node{'s' if len(names) > 1 else ''}"


def _table(rows: list[list[str]], paper: Paper) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if row is not rows[0]:
            padded[1] = paper.style(padded[1], _COLORS.get(row[1], "cyan"))
        paper.text("", first="  ".join(padded).rstrip())
