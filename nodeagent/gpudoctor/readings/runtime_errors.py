"""An error of the container runtime, the toolkit, the device plugin or CUDA, as pasted."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.facts.kubernetes.pod_log import PATTERNS
from gpudoctor.facts.node.runtime_error_lines import recognise, recognise_all
from gpudoctor.facts.node.runtime_errors import ErrorLines, RecognisedError
from gpudoctor.facts.node.xid import xid
from gpudoctor.readings import Format, Reading
from gpudoctor.report import Evidence, ReportSubject, Subject
from gpudoctor.sources.text import TextInput

_MAX_LINE = 1 << 14
_MAX_TEXT = 400


_OF_A_POD = {
    "shm": "shm-too-small",
    "tensor-parallel": "tensor-parallel-exceeds-gpus",
    "memlock": "rdma-registration-enomem",
    "gpu-oom": "gpu-out-of-memory",
    "no-gpu": "no-devices",
}
"""Kinds of lines known from the logs of pods, and their findings: what a program was not given."""
_WATCHED = "device-marked-unhealthy"


def _of_pods(line: str) -> RecognisedError | None:
    """Recognise what is known of the logs of pods alone."""
    small = line.lower()
    if (match := PATTERNS[_WATCHED].search(line, small)) and match["xid"]:
        values = {"xid": match["xid"], "codes": match["xid"], "device": match["device"]}
        return RecognisedError(xid(int(match["xid"][:4])).finding, line.strip()[:_MAX_TEXT], values)
    for kind, name in _OF_A_POD.items():
        if match := PATTERNS[kind].search(line, small):
            told = {key: text for key, text in match.groupdict().items() if text}
            if "found" in told:
                told["offered"] = told.pop("found")
            return RecognisedError(name, line.strip()[:_MAX_TEXT], told)
    return None


def _matches(head: str) -> int:
    lines = head.splitlines()
    telling = sum((recognise(line) or _of_pods(line)) is not None for line in lines)
    return telling or sum(1 for _ in recognise_all(lines))


def _lines(text: TextInput) -> Iterator[str]:
    stream = text.open()
    while raw := stream.readline(_MAX_LINE):
        yield raw.decode("utf-8", "replace")


def _read(text: TextInput) -> Reading:
    subject = Subject("Log", text.name)
    errors = tuple(
        (found, Evidence.of_line(text.name, number, found.text))
        for number, found in recognise_all(_lines(text), also=_of_pods)
    )
    return Reading(
        subject=ReportSubject("Log", text.name),
        facts=(ErrorLines(subject=subject, errors=errors),),
        is_complete=lambda _kind: True,
    )


FORMAT = Format("runtime-error", _matches, _read)
