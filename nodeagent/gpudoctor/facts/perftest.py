"""Output of perftest's bandwidth programs: ib_write_bw, ib_read_bw, ib_send_bw.

A row is `#bytes #iterations BW peak BW average MsgRate`; the unit stands in the header: Gb/sec
with `--report_gbits`, else MB/sec, which perftest counts as 2^20 bytes. Peak is 0 with -D.
"""

from __future__ import annotations

import re

from gpudoctor.facts.acceptance import BandwidthResults, BandwidthRow, BandwidthRun
from gpudoctor.report import Subject

_TELLING = re.compile(r"#bytes +#iterations|RDMA_(?:Write|Read) BW Test|Send BW Test|BW average\[")
_TITLE = re.compile(r"(RDMA_Write|RDMA_Read|Send)(?: Bidirectional)? BW Test")
_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\w+)/sec\]\s+BW average\[(\w+)/sec\]")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
_FIELDS = {
    "device": re.compile(r"\bDevice\s*:\s*(\S+)"),
    "link": re.compile(r"\bLink type\s*:\s*(\S+)"),
    "mtu": re.compile(r"\bMtu\s*:\s*(\d+)"),
    "gid_index": re.compile(r"\bGID index\s*:\s*(\d+)"),
}
_PROGRAMS = {"RDMA_Write": "ib_write_bw", "RDMA_Read": "ib_read_bw", "Send": "ib_send_bw"}
_MIB_TO_GBIT = (1 << 20) * 8 / 1e9
_LINE_LIMIT = 1024


def telling_lines(head: str) -> int:
    """Count the lines that only perftest prints."""
    return len(_TELLING.findall(head))


def parse(text: str, source: str) -> BandwidthResults:
    """Read every run in a text."""
    runs: list[BandwidthRun] = []
    program, fields, rows = "ib_write_bw", dict[str, str](), list[BandwidthRow]()
    factor: float | None = None

    def close() -> None:
        if rows:
            runs.append(_run(source, program, fields, rows))

    for number, line in enumerate(text.splitlines(), 1):
        line = line[:_LINE_LIMIT]
        if title := _TITLE.search(line):
            close()
            program, fields, rows, factor = _PROGRAMS[title[1]], {}, [], None
        for name, pattern in _FIELDS.items():
            if found := pattern.search(line):
                fields[name] = found[1]
        if header := _HEADER.search(line):
            factor = 1.0 if header[2] == "Gb" else _MIB_TO_GBIT
        elif factor is not None and (row := _ROW.match(line)):
            gbps = _number(row[4]) * factor
            rows.append(BandwidthRow(int(row[1][:18]), gbps, number, line.strip()))
    close()
    return BandwidthResults(Subject("CollectiveResults", source), tuple(runs))


def _run(
    source: str, program: str, fields: dict[str, str], rows: list[BandwidthRow]
) -> BandwidthRun:
    return BandwidthRun(
        source=source,
        program=program,
        device=fields.get("device"),
        link=fields.get("link"),
        mtu=int(fields["mtu"][:9]) if "mtu" in fields else None,
        gid_index=int(fields["gid_index"][:9]) if "gid_index" in fields else None,
        rows=tuple(rows),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
