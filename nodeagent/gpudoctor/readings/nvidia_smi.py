"""Pasted output of `nvidia-smi`, and what stands around it: in reports of trouble its table is
mostly beside an error, a few lines of a log, or `topo -m`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpudoctor.errors import InputError
from gpudoctor.facts import nccl
from gpudoctor.facts.node import smi_gpu, smi_text, topology_text
from gpudoctor.facts.node.gpu import NodeGpus, NotAvailable
from gpudoctor.facts.node.kernel_log import published
from gpudoctor.facts.node.kernel_log_reader import read_kernel_log
from gpudoctor.facts.node.runtime_error_lines import recognise_all
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.facts.node.smi_text import SmiText
from gpudoctor.readings import Format, Reading
from gpudoctor.report import Evidence, ReportSubject, Subject, Unknown
from gpudoctor.sources.text import TextInput

_IN_FULL = "not in this output of nvidia-smi: `nvidia-smi -q` shows them"
_KERNELS, _NCCLS = "NVRM: ", " NCCL WARN "


def _read(text: TextInput) -> Reading:
    raw = text.read()
    content = raw.decode("utf-8", "replace")
    found = smi_text.parse(content)
    if not found.gpus:
        raise InputError(f"{text.name}: no GPU in a table, list or query of nvidia-smi")
    host = Subject("Host", text.name)
    gpus = smi_gpu.gpus(found, host)
    facts: list[object] = [gpus, _errors(text.name, found)]
    told: dict[str, Any] = {"nvml": gpus.published()}
    if _KERNELS in content:
        log = read_kernel_log([raw], host, text.name)
        facts.append(log)
        told["kernel"] = published(log)
    if _NCCLS in content:
        facts.append(nccl.parse([raw], text.name))
    if (topology := topology_text.parse(content, host)) is not None:
        facts.append(topology)
        told["topology"] = topology.published()
    return Reading(
        subject=ReportSubject("GPUs", text.name),
        facts=tuple(facts),
        published=told,
        unknown=_untold(gpus),
        is_complete=lambda _kind: True,
    )


def _untold(gpus: NodeGpus) -> tuple[Unknown, ...]:
    """Say what a table, a list or a query leaves out of what decides over a GPU's health."""
    told = any(
        not isinstance(value, NotAvailable)
        for gpu in gpus.gpus
        for value in (gpu.recovery_action, gpu.remapped_rows, gpu.links)
    )
    if told:
        return ()
    return (Unknown("recovery action, memory repair, PCIe and fabric", _IN_FULL),)


def _errors(source: str, found: SmiText) -> ErrorLines:
    """What programs say around it; the kernel's and NCCL's own lines are read as theirs."""
    rest = list(_of_programs(found))
    lines = tuple(
        (error, Evidence.of_line(source, rest[place - 1][0], error.text))
        for place, error in recognise_all(line for _, line in rest)
    )
    return ErrorLines(subject=Subject("Log", source), errors=lines)


def _of_programs(found: SmiText) -> Iterator[tuple[int, str]]:
    for number, line in found.rest:
        if _KERNELS not in line and " NCCL " not in line:
            yield number, line


FORMAT = Format("nvidia-smi", smi_text.lines_seen, _read)
