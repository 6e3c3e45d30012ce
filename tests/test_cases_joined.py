"""Pods with the machines beneath them: the root across both, and what is another's trouble."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpudoctor.report import Certainty, Report, Severity
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


DENIED = {"errno": "EACCES"}
_PRIVATE = re.compile(r"^/proc/\d+/(environ|maps|root/)")


def without_privilege(tree: dict[str, Any]) -> None:
    """What a user without CAP_SYS_PTRACE and CAP_SYSLOG sees."""
    for path in [path for path in tree if _PRIVATE.match(path)]:
        tree[path] = DENIED
    tree["cmd:dmesg"] = DENIED


def without_processes(tree: dict[str, Any]) -> None:
    for path in [path for path in tree if re.match(r"^(space:)?/proc/\d", path)]:
        del tree[path]
    tree["/proc"] = {"errno": "UNREAD"}


def without_a_clock(tree: dict[str, Any]) -> None:
    tree["/proc/stat"] = DENIED


def without_a_driver(tree: dict[str, Any]) -> None:
    for name in ("version", "gpus"):
        tree[f"/proc/driver/nvidia/{name}"] = {"errno": "UNREAD"}
    tree["/sys/module/nvidia/version"] = {"errno": "UNREAD"}


LESS = [without_privilege, without_processes, without_a_clock, without_a_driver]


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("near", [False, True], ids=["case", "near"])
@pytest.mark.parametrize("name", cases_joined.NAMES)
def test_seeing_less_never_gives_another_certain_root(
    name: str, near: bool, less: Callable[[dict[str, Any]], None]
) -> None:
    case = cases_joined.near(name) if near else cases_joined.load(name)
    known = {finding.name for finding in cases_joined.ask(case).findings}
    bare = set(cases_joined.ask(case | {"hosts": {}}).roots)
    for host in case["hosts"].values():
        less(host["tree"])
    report = cases_joined.ask(case, complete=False)
    roots = [report.finding(root) for root in report.root_ids]
    others = [
        found.id
        for found in roots
        if found.certainty is Certainty.CERTAIN and found.name not in known | bare
    ]
    assert others == []


@pytest.mark.parametrize("name", cases_joined.NAMES)
def test_without_the_node_object_the_machine_still_tells(name: str) -> None:
    case = cases_joined.load(name)
    case["objects"] = [obj for obj in case["objects"] if obj["kind"] != "Node"]
    report = cases_joined.ask(case, complete=False)
    assert set(case["expect"]["roots"]) <= {finding.name for finding in report.findings}
