"""Pasted output of `nvidia-smi`: its GPUs, and errors of other programs that stand around it."""

from __future__ import annotations

from gpudoctor.errors import InputError
from gpudoctor.facts.node import smi_gpu, smi_text
from gpudoctor.facts.node.runtime_error_lines import recognise_all
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.readings import Format, Reading
from gpudoctor.report import Evidence, ReportSubject, Subject
from gpudoctor.sources.text import TextInput


def _read(text: TextInput) -> Reading:
    found = smi_text.parse(text.read().decode("utf-8", "replace"))
    if not found.gpus:
        raise InputError(f"{text.name}: no GPU in a table, list or query of nvidia-smi")
    gpus = smi_gpu.gpus(found, Subject("Host", text.name))
    numbers = [number for number, _ in found.rest]
    errors = tuple(
        (error, Evidence.of_line(text.name, numbers[place - 1], error.text))
        for place, error in recognise_all(line for _, line in found.rest)
    )
    return Reading(
        subject=ReportSubject("GPUs", text.name),
        facts=(gpus, ErrorLines(subject=Subject("Log", text.name), errors=errors)),
        published={"nvml": gpus.published()},
        is_complete=lambda _kind: True,
    )


FORMAT = Format("nvidia-smi", smi_text.lines_seen, _read)
