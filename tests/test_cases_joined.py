"""Pods with the machines beneath them: the root across both, and what is another's trouble."""

from __future__ import annotations

import pytest

from gpudoctor.report import Report, Severity
from tests import cases_joined


def agrees(report: Report, expected: cases_joined.Case) -> None:
    loud = {f.name for f in report.findings if f.severity is not Severity.INFO}
    chain = sorted({f.name for f in report.findings})
    assert (report.verdict, list(report.roots)) == (expected["verdict"], expected["roots"]), chain
    assert set(expected["chain"]) <= set(chain)
    assert loud & set(expected["must_not_say"]) == set()


@pytest.mark.parametrize("name", cases_joined.NAMES)
def test_root_cause(name: str) -> None:
    case = cases_joined.load(name)
    agrees(cases_joined.ask(case), case["expect"])


@pytest.mark.parametrize("name", cases_joined.NAMES)
def test_near_miss(name: str) -> None:
    case = cases_joined.near(name)
    agrees(cases_joined.ask(case), case["expect"])
