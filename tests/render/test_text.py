"""The text report: what a person sees, compared with the files in data/render.

Run with REWRITE_SNAPSHOTS=1 to write them anew, and read the difference.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.render import text
from gpudoctor.render.clean import clean, one_line, shorten
from gpudoctor.render.paper import Paper, cells, wrap
from gpudoctor.report import Evidence, Report, Verdict
from tests.render import reports

SNAPSHOTS = Path(__file__).parents[1] / "data" / "render"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def rendered(report: Report, width: int = 80, color: bool = False) -> str:
    stream = io.StringIO()
    text.render(report, stream, color=color, width=width)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "report", "width", "color"),
    [
        ("pod-80", reports.two_causes(), 80, False),
        ("pod-40", reports.two_causes(), 40, False),
        ("pod-120", reports.two_causes(), 120, False),
        ("pod-80-color", reports.two_causes(), 80, True),
        ("fleet-80", reports.fleet(), 80, False),
    ],
)
def test_snapshot(name: str, report: Report, width: int, color: bool) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    seen = rendered(report, width, color)
    if os.environ.get("REWRITE_SNAPSHOTS"):
        path.write_text(seen, encoding="utf-8")
    assert seen == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 61, 80, 100])
@pytest.mark.parametrize("report", [reports.two_causes(), reports.fleet()], ids=["pod", "fleet"])
def test_no_line_is_wider_than_asked(report: Report, width: int) -> None:
    pasted = {"resources:", "limits:", "rdma/hca: 1"}
    for line in rendered(report, width).split("\n"):
        assert cells(line) <= width or line.strip() in pasted


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict.HEALTHY, "Nothing wrong was found."),
        (Verdict.STARTING, "on its way up"),
        (Verdict.UNKNOWN, "Cannot tell"),
    ],
)
def test_an_answer_without_finding(verdict: Verdict, says: str) -> None:
    seen = rendered(reports.plain(verdict))
    assert seen.startswith(f"{verdict.upper()}  Pod ml/trainer-0\n")
    assert says in seen


def test_pods_that_are_well_are_counted() -> None:
    report = reports.plain(Verdict.HEALTHY, "all GPU pods", "Pods")
    counted = msgspec.structs.replace(report, facts={"pods": {"seen": 12, "shown": 0}})
    assert "12 pods read, 12 of them are well.\n" in rendered(counted)


def hostile(value: str) -> Report:
    report = reports.two_causes()
    bad = msgspec.structs.replace(
        report.findings[0],
        title=value,
        detail=value,
        evidence=(Evidence(value, value, value, value),),
    )
    return msgspec.structs.replace(report, findings=(bad, *report.findings[1:]))


@pytest.mark.parametrize(
    "value",
    [
        "\x1b[2J\x1b[31mred\x1b[0m",
        "\x1b]0;owned\x07title",
        "\x1b]8;;http://evil\x1b\\link",
        "\x9b31m",
        "a\rb\x08\x00",
        "abc\u202etxt.exe",
        "\u2066hidden\u2069\u200b",
        "lone \ud800 surrogate",
    ],
)
def test_nothing_from_outside_acts_on_the_terminal(value: str) -> None:
    seen = rendered(hostile(value))
    assert all(char == "\n" or char.isprintable() for char in seen)
    seen.encode("utf-8")


def test_a_message_of_10_kb_is_shortened_and_says_so() -> None:
    seen = rendered(hostile("NCCL WARN " + "x" * 10_000 + " the end"))
    assert len(seen) < 8_000
    assert "characters …]" in seen
    assert "the end" in seen


def test_ascii_streams_get_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    text.render(hostile("größe → ✗ 日本"), stream, width=80)
    stream.flush()
    assert b"gr??e -> x ??" in raw.getvalue()
    stream.close()


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_only_on_a_terminal_that_wants_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    on_terminal, piped = Terminal(), io.StringIO()
    text.render(reports.two_causes(), on_terminal)
    text.render(reports.two_causes(), piped)
    assert ("\x1b[" in on_terminal.getvalue()) is colored
    assert "\x1b[" not in piped.getvalue()


def test_the_width_is_the_terminals_up_to_100(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, expected in (("60", 60), ("300", 100), ("10", 40)):
        monkeypatch.setenv("COLUMNS", columns)
        assert Paper(Terminal()).width == expected
    assert Paper(io.StringIO()).width == 80


def test_evidence_is_bounded() -> None:
    report = reports.two_causes()
    many = tuple(Evidence("log", f"line {n}", "\n".join("abcdefghi")) for n in range(30))
    first = msgspec.structs.replace(report.findings[0], evidence=many)
    seen = rendered(msgspec.structs.replace(report, findings=(first, *report.findings[1:])))
    assert "22 more with -o json" in seen
    assert "… 3 more lines" in seen


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200), st.integers(1, 50), st.integers(0, 30))
def test_wrapping_loses_nothing_and_keeps_the_width(value: str, width: int, taken: int) -> None:
    lines = wrap(value, width, taken)
    assert "".join("".join(lines).split()) == "".join(value.split())
    assert all(cells(line) <= max(width, 2) for line in lines)


def test_what_unicode_calls_printable_is_left_as_it_is() -> None:
    """Which lets most text pass unlooked at; beside a tab it is looked at."""
    printable = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode + 1))))
    assert clean(printable) == printable
    assert clean(f"{printable}\n\t") == f"{printable}\n "


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(), max_size=100))
def test_cleaned_text_is_harmless(value: str) -> None:
    seen = clean(value)
    assert clean(seen) == seen
    assert "\x1b" not in seen
    assert "\n" not in one_line(value)
    assert len(shorten(value * 50)) <= 700
