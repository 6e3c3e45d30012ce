"""nccl-tests output: tables of all versions, with launcher prefixes and other lines in between,
and the JSON of `-J`.

The columns: `size count type [redop] [root]`, then twice `time algbw busbw #wrong`, each half
with four more columns per iteration since 2.19, and a time at the end where asked for. Before
mid-2022 the last column is `error`, a rounding error. Source: src/common.cu, src/util.cu.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gpudoctor.facts.acceptance import CollectiveResults, CollectiveRun, Device, Measure, Row
from gpudoctor.report import Subject

_TELLING = re.compile(
    r"# nThread \d+|#  Rank +\d+ .*device|algbw +busbw|Out of bounds values|Avg bus bandwidth"
    r'|"out_of_place" ?:|# nccl-tests version'
)
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_ROW = re.compile(r"(?:^|[^\w.+-])(\d+)\s+(\d+)\s+([a-z]\w*)\s+(.+)$")
_START = re.compile(r"#\s*nThread\s+\d+")
_COLLECTIVE = re.compile(r"#\s*Collective test starting:\s*(\w+?)(?:_perf)?\s*$")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.eE+-]+)(?:\s+(OK|FAILED))?")
_FAILURE = re.compile(r"Test NCCL failure|Test CUDA failure|Test failure")
_DATE = re.compile(r"\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?$")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"^\s*((?:\[\d+,\d+\]<\w+>:)|(?:\d+: )|(?:\[rank\d+\]:))")
_HALF, _HALF_WITH_ITERATIONS = 4, 8
_LINE_LIMIT = 4096
_UNREADABLE_KEPT = 20


def telling_lines(head: str) -> int:
    """Count the lines that only nccl-tests prints."""
    return len(_TELLING.findall(head))


def parse(text: str, source: str) -> CollectiveResults:
    """Read every run in a text; anything else in it is passed over."""
    subject = Subject("CollectiveResults", source)
    document = _json(text)
    if document is not None:
        return CollectiveResults(subject, (_run_of_json(document, source),))
    reader = _Reader(source)
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, _ANSI.sub("", line[:_LINE_LIMIT]).rstrip())
    return CollectiveResults(subject, reader.finish())


class _Open:
    """A run whose end has not been read yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.collective: str | None = None
        self.devices: dict[int, Device] = {}
        self.rows: list[Row] = []
        self.out_of_bounds: int | None = None
        self.failed = False
        self.average: float | None = None
        self.error_column = False
        self.header = False
        self.unreadable: list[tuple[int, str]] = []
        self.failure: tuple[int, str] | None = None

    def close(self, source: str) -> CollectiveRun:
        devices = tuple(self.devices[rank] for rank in sorted(self.devices))
        return CollectiveRun(
            source=source,
            number=self.number,
            collective=self.collective or _by_ratio(self.rows, max(len(devices), 1)),
            devices=devices,
            rows=tuple(self.rows),
            out_of_bounds=self.out_of_bounds,
            failed=self.failed,
            average_busbw=self.average,
            error_column=self.error_column,
            unreadable=tuple(self.unreadable),
            failure=self.failure,
        )


class _Reader:
    """Keeps one open run for each launcher tag: copies of a program may be interleaved."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: dict[str, _Open] = {}
        self._done: list[_Open] = []

    def read(self, number: int, line: str) -> None:
        tag_match = _TAG.match(line)
        tag = tag_match[1] if tag_match else ""
        body = line[tag_match.end() :] if tag_match else line
        run = self._open.get(tag)
        if _START.search(body) or (run is not None and run.average is not None and "Rank" in body):
            run = self._begin(tag, number)
        if "#" in body:
            self._comment(tag, run, number, body)
        elif run is not None:
            self._row(run, number, body)

    def _begin(self, tag: str, number: int) -> _Open:
        before = self._open.get(tag)
        name = before.collective if before and not before.header and not before.rows else None
        if before is not None and name is None:
            self._done.append(before)
        run = self._open[tag] = _Open(number)
        run.collective = name
        return run

    def _comment(self, tag: str, run: _Open | None, number: int, body: str) -> None:
        rank = _RANK.search(body)
        if run is None and (rank or "algbw" in body or _COLLECTIVE.search(body)):
            run = self._open[tag] = _Open(number)
        if run is None:
            return
        if rank is not None:
            run.header = True
            run.devices[int(rank[1][:9])] = Device(int(rank[1][:9]), rank[2], rank[3].strip())
        elif "algbw" in body and "busbw" in body:
            run.header = True
            run.error_column = "#wrong" not in body and "error" in body
        elif collective := _COLLECTIVE.search(body):
            run.collective = collective[1].lower()
        elif bounds := _BOUNDS.search(body):
            run.out_of_bounds = int(bounds[1][:18])
            run.failed = bounds[2] == "FAILED"
        elif average := _AVERAGE.search(body):
            run.average = _number(average[1])

    def _row(self, run: _Open, number: int, body: str) -> None:
        if _FAILURE.search(body):
            run.failure = run.failure or (number, body)
            return
        match = _ROW.search(body)
        if match is None or "NCCL" in body:
            return
        halves = _halves(_DATE.sub("", match[4]).split())
        if halves is None:
            if len(run.unreadable) < _UNREADABLE_KEPT:
                run.unreadable.append((number, body))
            return
        out_of_place, in_place = halves
        run.rows.append(Row(int(match[1][:18]), out_of_place, in_place, number, body.strip()))

    def finish(self) -> tuple[CollectiveRun, ...]:
        runs = [*self._done, *self._open.values()]
        runs.sort(key=lambda run: run.number)
        return tuple(run.close(self._source) for run in runs if run.header or run.rows)


def _halves(fields: list[str]) -> tuple[Measure | None, Measure | None] | None:
    """The two halves at the end of a row, after redop and root; None when they are not numbers."""
    for width in (_HALF_WITH_ITERATIONS, _HALF):
        for lead in (2, 1, 0):
            if len(fields) == lead + 2 * width:
                return _pair(fields[-2 * width : -width], fields[-width:])
    if len(fields) == 2 + _HALF:  # in-place only
        return _pair(None, fields[-_HALF:])
    return None


def _pair(
    first: list[str] | None, second: list[str]
) -> tuple[Measure | None, Measure | None] | None:
    halves = [None if half is None else _measure(half) for half in (first, second)]
    if halves[1] is None or (first is not None and halves[0] is None):
        return None
    return halves[0], halves[1]


def _measure(fields: list[str]) -> Measure | None:
    """`time algbw busbw #wrong …`; N/A stands where nothing was checked."""
    algbw, busbw = _number(fields[1]), _number(fields[2])
    wrong = None if fields[3] == "N/A" else _number(fields[3])
    if _number(fields[0]) is None or algbw is None or busbw is None:
        return None
    if wrong is None and fields[3] != "N/A":
        return None
    return Measure(algbw, busbw, wrong)


def _number(text: Any) -> float | None:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < float("inf") else None


def _by_ratio(rows: list[Row], ranks: int) -> str | None:
    """All-reduce moves 2(n-1)/n of its size: the two bandwidths of a large row give it away."""
    row = max(rows, key=lambda row: row.size, default=None)
    half = row and (row.out_of_place or row.in_place)
    if not half or half.algbw <= 0 or ranks < 2:
        return None
    return "all_reduce" if _near(half.busbw / half.algbw, 2 * (ranks - 1) / ranks) else None


def _near(ratio: float, wanted: float) -> bool:
    return abs(ratio - wanted) < 0.01 * wanted and not (wanted <= 1)


def _json(text: str) -> dict[str, Any] | None:
    if text.lstrip()[:1] != "{":
        return None
    try:
        document = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) and "results" in document else None


def _run_of_json(document: dict[str, Any], source: str) -> CollectiveRun:
    run = _Open(0)
    for entry in _objects(_object(document.get("config")).get("devices")):
        rank = entry.get("rank")
        if isinstance(rank, int):
            host = str(entry.get("hostname") or entry.get("host") or "")
            run.devices[rank] = Device(rank, host, str(entry.get("device_info") or ""))
    for entry in _objects(document.get("results")):
        halves = [_measure_of(entry.get(key)) for key in ("out_of_place", "in_place")]
        size = entry.get("size")
        if isinstance(size, int) and any(halves):
            run.rows.append(Row(size, halves[0], halves[1], 0, msgspec.json.encode(entry).decode()))
            name = entry.get("experiment_name")
            run.collective = run.collective or (str(name).lower() if name else None)
    bounds = document.get("out_of_bounds")
    count = _object(bounds).get("count") if isinstance(bounds, dict) else bounds
    run.out_of_bounds = int(count) if isinstance(count, int) else None
    run.failed = bool(run.out_of_bounds)
    average = document.get("average_bus_bandwidth")
    run.average = _number(
        _object(average).get("bandwidth") if isinstance(average, dict) else average
    )
    if "end_time" in document and run.average is None and run.rows:
        run.average = sum(row.busbw for row in run.rows) / len(run.rows)
    return run.close(source)


def _measure_of(value: Any) -> Measure | None:
    entry = _object(value)
    algbw, busbw = _number(entry.get("alg_bw")), _number(entry.get("bus_bw"))
    if algbw is None or busbw is None:
        return None
    return Measure(algbw, busbw, _number(entry.get("nwrong")))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
