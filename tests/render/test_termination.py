"""The termination message: the root cause first, all of it within a kilobyte."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.diagnosis import diagnose, report
from gpudoctor.registry import Registry
from gpudoctor.render import termination
from gpudoctor.report import Evidence, Report, ReportSubject, Subject, Unknown


def of(*texts: str, unknown: tuple[Unknown, ...] = ()) -> Report:
    """A report with a finding for each detail."""
    checks = CheckSet()

    @checks.check(str)
    def said(text: str) -> Iterator[Result]:
        yield finding(
            "shm-too-small", Subject("Container", text[:9]), text, Evidence("x"),
            values={"pod": "trainer-0", "size": "too small"},
        )  # fmt: skip

    found = diagnose(Registry([checks]), texts, unknown=unknown)
    return report(found, ReportSubject("Container", "trainer-0"), observed_at=None)


def test_the_root_cause_stands_first() -> None:
    text = termination.message(of("Only 64 MiB are left."), "request")
    first, detail, fix, more = text.splitlines()
    assert first == (
        "gpudoctor preflight: request: WKL001 shm-too-small: /dev/shm of trainer-0 is too small"
    )
    assert detail == "Only 64 MiB are left."
    assert fix.startswith("Fix (user): Mount an emptyDir")
    assert more == "More: gpudoctor runbook WKL001"


def test_others_and_what_is_unknown_follow() -> None:
    unknown = (Unknown("GPUs (NVML)", "no answer"),)
    lines = termination.message(of("first", "second", unknown=unknown), "request").splitlines()
    assert lines[4].startswith("Also: WKL001")
    assert lines[5] == "Unknown: GPUs (NVML): no answer"


def test_nothing_found() -> None:
    assert termination.message(of(), "passed") == "gpudoctor preflight: passed"


def test_what_would_steer_a_terminal_is_left_out() -> None:
    text = termination.message(of("a\x1b[31mred\r\nline"), "request")
    assert "\x1b" not in text
    assert "ared line" in text


@given(st.lists(st.text(max_size=2000), max_size=6))
@settings(deadline=None, max_examples=50)
def test_never_more_than_a_kilobyte(texts: list[str]) -> None:
    built = of("root")
    findings = tuple(
        msgspec.structs.replace(built.findings[0], id=str(number), detail=text)
        for number, text in enumerate(texts)
    )
    roots = tuple(one.id for one in findings)
    many = msgspec.structs.replace(built, findings=findings, root_ids=roots)
    text = termination.message(many, "request")
    assert len(text.encode("utf-8")) <= termination.MOST_BYTES
