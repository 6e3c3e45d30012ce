"""How each kind of pasted text is recognised and turned into facts, for `gpudoctor explain`.

One module a kind holds one `Format`. They are imported only when asked: recognising looks at
the first 64 KiB and takes the format whose lines it sees most of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

from gpudoctor import diagnosis
from gpudoctor.catalogue import Entry
from gpudoctor.checking import Draft
from gpudoctor.errors import InputError
from gpudoctor.registry import Registry
from gpudoctor.report import Report, ReportSubject, Subject, Unknown, Verdict
from gpudoctor.sources.bundle import is_bundle
from gpudoctor.sources.text import TextInput, as_utf8

_MODULES: dict[str, str] = {
    "nvidia-smi": "gpudoctor.readings.nvidia_smi",
    "kernel-log": "gpudoctor.readings.kernel_log",
    "runtime-error": "gpudoctor.readings.runtime_errors",
    "peer-access": "gpudoctor.readings.peer_access",
    "topology": "gpudoctor.readings.topology",
    "nccl": "gpudoctor.readings.nccl_log",
    "nccl-tests": "gpudoctor.readings.nccl_tests",
    "ib-write-bw": "gpudoctor.readings.ib_write_bw",
    "rdma": "gpudoctor.readings.node_tools:RDMA",
    "limits": "gpudoctor.readings.node_tools:LIMITS",
    "cpus": "gpudoctor.readings.node_tools:CPUS",
    "interfaces": "gpudoctor.readings.node_tools:INTERFACES",
    "lspci": "gpudoctor.readings.node_tools:LSPCI",
    "hwloc": "gpudoctor.readings.node_tools:HWLOC",
    "kubectl-describe": "gpudoctor.readings.kubectl_describe",
    "kubectl-events": "gpudoctor.readings.kubectl_events",
    "kubernetes-objects": "gpudoctor.readings.kubernetes_objects",
}
"""Format name -> module with its FORMAT, or `module:NAME`; the names are the values of `--kind`."""
_BUNDLES = "kubernetes-objects"
_MOST_AWAITED = 4
"""Members whose state is looked into: of a job of a thousand all may lack the same."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one input says: facts for the checks, and `published` for the report's `facts`.

    `needed_unknown` says that a fact which the verdict needs could not be read.
    `is_complete(kind)`, `otherwise`, `around`, `concern` and `kept` are as in
    `diagnosis.diagnose`. `children` are the members of what the reading is about: the pods of a
    job, the nodes of a dump. `well` are members that look well by their own status: they are shown
    where something fails all the same. `linked` says that causes run between it and its
    children: between a job and its pods. `member(subject)` reads another pod of the same job, None
    where the input does not have it: asked for one that this pod waits for.
    """

    subject: ReportSubject
    facts: tuple[object, ...]
    otherwise: tuple[object, ...] = ()
    children: tuple[Reading, ...] = ()
    well: tuple[Reading, ...] = ()
    around: tuple[object, ...] = ()
    concern: Callable[[Draft, Entry], Draft | None] = lambda draft, _entry: draft
    published: dict[str, Any] = {}
    observed_at: str | None = None
    unknown: tuple[Unknown, ...] = ()
    needed_unknown: bool = False
    starting: bool = False
    linked: bool = False
    member: Callable[[Subject], Reading | None] = lambda _subject: None
    is_complete: Callable[[str], bool] = lambda _kind: False
    kept: Callable[[Draft, Entry], bool] = lambda _draft, _entry: True


class Format(msgspec.Struct, frozen=True):
    """A kind of text. `matches(head)` counts the telling lines in the first 64 KiB, 0 for none."""

    name: str
    matches: Callable[[str], int]
    read: Callable[[TextInput], Reading]


def names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_MODULES)


def load(name: str) -> Format:
    """Return the format of that name."""
    module, _, attribute = _MODULES[name].partition(":")
    found = getattr(importlib.import_module(module), attribute or "FORMAT")
    assert isinstance(found, Format)
    return found


def judge(
    reading: Reading,
    checks: Registry,
    selected: Callable[[Entry], bool] = lambda _entry: True,
) -> Report:
    """Diagnose a reading and its children and build the report.

    A job that trains over TCP is Ready: of the `well` children those are shown that fail.
    """
    return _judge(reading, checks, selected)[0]


def _judge(
    reading: Reading, checks: Registry, selected: Callable[[Entry], bool]
) -> tuple[Report, dict[str, frozenset[Subject]]]:
    """Return the report, and whom its and its children's findings miss, by the findings' ids."""
    found = diagnosis.diagnose(
        checks,
        reading.facts,
        otherwise=reading.otherwise,
        around=reading.around,
        concern=reading.concern,
        is_complete=reading.is_complete,
        unknown=reading.unknown,
        selected=selected,
        kept=reading.kept,
    )
    judged = [_judge(child, checks, selected) for child in reading.children]
    well = (_judge(child, checks, selected) for child in reading.well)
    judged += [(report, awaited) for report, awaited in well if report.verdict is Verdict.FAILING]
    awaited = found.missed
    for _, of_child in judged:
        awaited |= of_child
    report = diagnosis.report(
        found,
        reading.subject,
        observed_at=reading.observed_at,
        needed_unknown=reading.needed_unknown,
        starting=reading.starting,
        facts=reading.published,
        children=tuple(child for child, _ in judged),
    )
    if reading.linked and found.findings:
        from gpudoctor import across  # imported late: only jobs have something to link

        report = across.link(report, found.touched, awaited, checks.catalogue)
    elif found.awaited and not reading.children:
        report = _with_members(report, reading, found.awaited, checks, selected)
    return report, awaited


def _with_members(
    report: Report,
    reading: Reading,
    awaited: dict[str, frozenset[Subject]],
    checks: Registry,
    selected: Callable[[Entry], bool],
) -> Report:
    """Take up why the members do not run that a pod waits for."""
    subjects = sorted({subject for waits in awaited.values() for subject in waits}, key=str)
    read = (reading.member(subject) for subject in subjects[:_MOST_AWAITED])
    judged = [
        # What that one waits for is its own affair: two may wait for each other.
        _judge(msgspec.structs.replace(one, member=lambda _subject: None), checks, selected)
        for one in read
        if one is not None
    ]
    if not judged:
        return report
    from gpudoctor import across  # imported late: few pods wait for another

    for _, of_member in judged:
        awaited = awaited | of_member
    return across.take_up(report, tuple(member for member, _ in judged), awaited)


def recognise(text: TextInput) -> Format:
    """Return the format that most of the head's lines speak for; InputError if none does."""
    if is_bundle(text.head):
        # Whatever logs it holds: their lines are no lines of this text.
        return load(_BUNDLES)
    head = as_utf8(text.head).decode()
    if not head.strip():
        raise InputError(f"{text.name}: it is empty")
    scored = [(candidate.matches(head), candidate) for candidate in map(load, _MODULES)]
    score, best = max(scored, key=lambda pair: pair[0], default=(0, None))
    if best is None or score == 0:
        kinds = ", ".join(_MODULES)
        raise InputError(f"{text.name}: not recognised; say what it is with --kind ({kinds})")
    return best
