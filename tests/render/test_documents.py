"""The report as JUnit XML and as an HTML page."""

from __future__ import annotations

import builtins
import io
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from gpudoctor.render import html, junit
from gpudoctor.report import Report, Verdict
from tests.render import reports

EVIL = '<script>alert(1)</script> & "quotes" \x1b[31m\x00 \u202e \ufffe'


def evil() -> Report:
    report = reports.two_causes()
    findings = [
        msgspec.structs.replace(finding, title=EVIL, detail=EVIL) for finding in report.findings
    ]
    return msgspec.structs.replace(report, findings=tuple(findings))


def junit_of(report: Report) -> ET.Element:
    stream = io.BytesIO()
    junit.render(report, stream)
    return ET.fromstring(stream.getvalue())


def html_of(report: Report) -> str:
    stream = io.StringIO()
    html.render(report, stream)
    return stream.getvalue()


def test_junit_counts() -> None:
    [suite] = junit_of(reports.two_causes())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "4", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed[0] == "DRV001 driver-too-old Node/gpu-1"
    assert suite.get("timestamp") == "2026-11-20T08:20:02"


def test_junit_of_children_and_of_nothing() -> None:
    suites = junit_of(reports.fleet())
    assert len(suites) == 52
    [healthy] = junit_of(reports.plain(Verdict.HEALTHY))
    assert (healthy.get("tests"), healthy.get("failures")) == ("1", "0")


def test_junit_of_hostile_text_is_well_formed() -> None:
    suite = junit_of(evil())[0]
    failure = suite[0].find("failure")
    assert failure is not None
    assert "<script>" in (failure.get("message") or "")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(report: Report) -> Tags:
    tags = Tags()
    tags.feed(html_of(report))
    tags.close()
    return tags


@pytest.mark.parametrize("report", [reports.two_causes(), reports.fleet(), evil()])
def test_html_needs_nothing_from_elsewhere(report: Report) -> None:
    page = parsed(report)
    assert not {tag for tag, _ in page.seen} & {"script", "link", "img", "iframe", "object"}
    assert not [attrs for _, attrs in page.seen if {"src", "href", "onclick"} & set(attrs)]


def test_html_says_what_the_report_says() -> None:
    page = parsed(reports.two_causes()).text
    for part in (
        "failing",
        "The driver of gpu-1 is too old",
        "NCCL runs over TCP sockets on eth0",
        "rdma/hca: 1",
        "403 forbidden",
        "gpudoctor runbook WKL004",
    ):
        assert part in page


def test_html_escapes() -> None:
    written = html_of(evil())
    assert "<script>" not in written
    assert "&lt;script&gt;" in written
    assert "\x1b" not in written


def test_html_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(html.MissingLibraryError, match=r"gpudoctor\[html\]"):
        html_of(reports.two_causes())
