"""Reads the table of `nvidia-smi topo -m` and `-mp`, as drivers since 2018 have printed it.

Columns are the labels of GPUs and NICs (before about driver 515 the RDMA device names), then
`CPU Affinity`, `NUMA Affinity` (since about 450) and `GPU NUMA ID` (since about 535). Cells are
parted by tabs, and by blanks once somebody has pasted them; a CPU list is cut to its first
entries on interleaved machines, and is empty where none of the local CPUs is in the caller's
cpuset. The header may be underlined by terminal escapes even in a file.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.node import cpulist
from gpudoctor.facts.node.topology import SELF, BrokenRow, Gpu, Nic, Topology, nvlinks
from gpudoctor.report import Subject

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)")
_GPU = re.compile(r"^GPU\d+$")
_NIC = re.compile(r"^NIC\d+$")
_CELL = re.compile(r"^(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)$")
_COLUMN = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID")
_LEGEND_NIC = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
_LEGEND_NVLINK = re.compile(r"^\s*NV#\s*=")
_ROW = re.compile(r"^[>\s]*GPU\d+\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)\b", re.MULTILINE)
_SINGLES = re.compile(r"^\d+(?:,\d+)+$")
_MOST_COLUMNS = 512
_OLD_NAMES = {"SOC": "SYS"}


class _Header(msgspec.Struct, frozen=True):
    labels: tuple[str, ...]
    columns: tuple[str, ...]


class _Row(msgspec.Struct, frozen=True):
    label: str
    cells: dict[str, str]
    trailing: dict[str, str]


def plain(text: str) -> str:
    """Return the text without terminal escapes and carriage returns."""
    return _ESCAPE.sub("", text).replace("\r", "")


def rows_seen(text: str) -> int:
    """Count the rows of GPUs, to recognise the table."""
    return len(_ROW.findall(plain(text)))


def parse(text: str, subject: Subject, source: str = "nvidia-smi topo -m") -> Topology | None:
    """Parse the first table in a text; None when there is no header of one."""
    lines = plain(text).splitlines()
    start = next((i for i, line in enumerate(lines) if _header(line) is not None), None)
    if start is None:
        return None
    header = _header(lines[start])
    assert header is not None
    body, rest = _body(lines[start + 1 :], header)
    parsed: dict[str, _Row] = {}
    broken: list[BrokenRow] = []
    for line in body:
        row = _row(line, header)
        if isinstance(row, BrokenRow):
            broken.append(row)
        else:
            parsed.setdefault(row.label, row)
    gpu_labels = [label for label in header.labels if _GPU.match(label)]
    missing = [
        BrokenRow(label, "the row is missing", "")
        for label in gpu_labels
        if label not in parsed and label not in {row.label for row in broken}
    ]
    legend = {m[1]: m[2] for line in rest if (m := _LEGEND_NIC.match(line))}
    nics = [label for label in header.labels if not _GPU.match(label)]
    matrix = {label: parsed[label].cells for label in header.labels if label in parsed}
    shows_nvlink = any(nvlinks(cell) for row in matrix.values() for cell in row.values())
    return Topology(
        subject=subject,
        source=source,
        gpus=tuple(_gpu(label, parsed.get(label)) for label in gpu_labels),
        nics=tuple(Nic(label, legend.get(label, label)) for label in nics),
        matrix=matrix,
        nvlink_shown=shows_nvlink or any(_LEGEND_NVLINK.match(line) for line in rest),
        numa_shown="NUMA Affinity" in header.columns,
        broken=tuple(broken + missing),
    )


def _header(line: str) -> _Header | None:
    found = list(_COLUMN.finditer(line))
    labels = line[: found[0].start()].split() if found else line.split()
    if not labels or not _GPU.match(labels[0]) or len(labels) > _MOST_COLUMNS:
        return None
    if any(_CELL.match(label) for label in labels) or len(set(labels)) < len(labels):
        return None
    if not found and not all(_GPU.match(label) or _looks_like_nic(label) for label in labels):
        return None
    columns = tuple(" ".join(match[0].split()) for match in found)
    return _Header(tuple(labels), columns)


def _looks_like_nic(label: str) -> bool:
    return bool(_NIC.match(label)) or "_" in label or label.startswith("rdma")


def _body(lines: list[str], header: _Header) -> tuple[list[str], list[str]]:
    """Split what follows the header into the table's rows and the rest (legends)."""
    rows: list[str] = []
    for index, line in enumerate(lines):
        words = line.split()
        if not words:
            if rows:
                return rows, lines[index:]
            continue
        if words[0] in header.labels and _header(line) is None:
            rows.append(line)
        else:
            return rows, lines[index:]
    return rows, []


def _row(line: str, header: _Header) -> _Row | BrokenRow:
    """Read one row by tabs when it has them, else by blanks; refuse it rather than guess."""
    wanted = len(header.labels)
    if "\t" in line.strip():
        parts = [part.strip() for part in line.split("\t")]
        label, cells, trailing = parts[0], parts[1 : 1 + wanted], parts[1 + wanted :]
        named = _by_position(trailing, header.columns)
    else:
        label, *words = line.split()
        cells = words[:wanted]
        named = _by_order(words[wanted:], header.columns)
    why = _wrong(label, cells, header.labels)
    if why:
        return BrokenRow(label, why, line.strip())
    named_cells = dict(zip(header.labels, (_OLD_NAMES.get(c, c) for c in cells), strict=True))
    return _Row(label, named_cells, named)


def _by_position(values: list[str], columns: tuple[str, ...]) -> dict[str, str]:
    """Name the trailing cells of a row with tabs: two of them stand before GPU NUMA ID."""
    named = dict(zip(columns, values, strict=False))
    if "GPU NUMA ID" in columns:
        named["GPU NUMA ID"] = next((value for value in reversed(values[2:]) if value), "")
    return named


def _by_order(words: list[str], columns: tuple[str, ...]) -> dict[str, str]:
    """Name the trailing words of a pasted row from the right: only CPU Affinity can be empty."""
    if not words:
        return {}
    return dict(zip(columns, [""] * (len(columns) - len(words)) + words, strict=False))


def _wrong(label: str, cells: list[str], labels: tuple[str, ...]) -> str:
    """Say what is wrong with a row's cells, empty if they can be trusted."""
    if label not in labels:
        return f"{label!r} is not a column"
    for cell in cells:
        if not _CELL.match(cell):
            return f"{cell[:40]!r} is not a path"
    if len(cells) < len(labels):
        return f"{len(cells)} of {len(labels)} cells"
    if [column for column, cell in zip(labels, cells, strict=True) if cell == SELF] != [label]:
        return "the cells are shifted: X does not stand in its own column"
    return ""


def _gpu(label: str, row: _Row | None) -> Gpu:
    if row is None:
        return Gpu(label=label)
    text = row.trailing.get("CPU Affinity")
    numa = cpulist.parse(row.trailing.get("NUMA Affinity", ""))
    own = row.trailing.get("GPU NUMA ID", "")
    return Gpu(
        label=label,
        cpus=None if text is None else cpulist.parse(text),
        cpus_text=text or "",
        # A list of single numbers is an interleaved machine, whose list the tool cuts.
        cpus_cut=text is not None and bool(_SINGLES.match(text)),
        numa=tuple(sorted(numa)) if numa else None,
        memory_node=int(own) if own.isdigit() else None,
    )
