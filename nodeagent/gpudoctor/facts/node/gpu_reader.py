"""From what NVML's reading process printed to typed facts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from gpudoctor.facts.node import gpu_values as values
from gpudoctor.facts.node.gpu import (
    LIBRARY_NOT_FOUND,
    NO_ANSWER,
    NOT_ASKED,
    Gpu,
    MemoryUse,
    Modes,
    NodeGpus,
    NotAvailable,
    Power,
)
from gpudoctor.facts.node.versions import CudaVersion
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources.child import Answer
from gpudoctor.sources.nvml import read_nvml

T = TypeVar("T")
Answers = dict[tuple[int | None, str], Any]

_WHAT = "GPUs (NVML)"
_MAX_GPUS = 1024


def read_gpus(
    deadline_s: float, library: str | None = None, subject: Subject | None = None
) -> NodeGpus | Unknown:
    """Ask NVML about this machine, within the deadline; Unknown says why nothing was learnt."""
    answer = read_nvml(deadline_s, library)
    if isinstance(answer, str):
        return Unknown(_WHAT, answer)
    return parse_gpus(answer, subject or Subject("Host", "local"))


def parse_gpus(answer: Answer, subject: Subject) -> NodeGpus | Unknown:
    """Type what the reading process printed; a text that it did not print is Unknown."""
    answers, asked = _answers(answer.text)
    hung_in = _name(asked) if asked is not None and not answer.in_time else None
    if not answer.ended and hung_in is None:
        hung_in = "an earlier call"
    missing = NotAvailable(NO_ANSWER, "NVML did not answer in time")
    if answer.in_time:
        missing = NotAvailable(NOT_ASKED, "not asked")
    init = answers.get((None, "init"))
    failure = _refusal(init)
    if init is None and hung_in is None:
        return Unknown(_WHAT, "the reading process ended early" if answer.in_time else missing.why)
    if failure is not None and failure.code == LIBRARY_NOT_FOUND:
        return Unknown(_WHAT, "no libnvidia-ml.so.1: no NVIDIA driver here")
    found = _Values(answers, missing)
    count = found.get(None, "count", int)
    gpus = sorted({gpu for gpu, _ in answers if gpu is not None})[:_MAX_GPUS]
    return NodeGpus(
        subject=subject,
        failure=failure,
        hung_in=hung_in,
        driver=found.get(None, "driver", values.driver),
        nvml=found.get(None, "nvml", str),
        cuda=found.get(None, "cuda", values.cuda),
        count=count,
        gpus=tuple(_gpu(number, found) for number in gpus),
        ended=answer.ended,
    )


def _answers(text: str) -> tuple[Answers, tuple[int | None, str] | None]:
    """Return the answers, and the call that was asked last and not answered."""
    answers: Answers = {}
    asked: tuple[int | None, str] | None = None
    for line in text.splitlines():
        try:
            first, second, third = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue  # the last line of a killed process may be cut
        if first == "?" and isinstance(third, str) and _is_gpu(second):
            asked = second, third
        elif _is_gpu(first) and isinstance(second, str):
            answers[first, second] = third
            asked = None
    return answers, asked


def _is_gpu(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < _MAX_GPUS)


def _name(call: tuple[int | None, str]) -> str:
    gpu, name = call
    return name if gpu is None else f"{name} of GPU {gpu}"


def _refusal(value: object) -> NotAvailable | None:
    if isinstance(value, dict) and isinstance(code := value.get("code"), int):
        return NotAvailable(code, str(value.get("why", "")))
    return None


class _Values:
    """The answers, each converted, or the reason why there is none."""

    def __init__(self, answers: Answers, missing: NotAvailable) -> None:
        self._answers = answers
        self._missing = missing

    def get(self, gpu: int | None, name: str, convert: Callable[[Any], T]) -> T | NotAvailable:
        value = self._answers.get((gpu, name))
        if value is None:
            return self._missing
        refusal = _refusal(value)
        if refusal is not None:
            return refusal
        try:
            return convert(value)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            return NotAvailable(NOT_ASKED, f"not understood: {value!r}"[:200])


def _gpu(number: int, found: _Values) -> Gpu:
    def get(name: str, convert: Callable[[Any], T]) -> T | NotAvailable:
        return found.get(number, name, convert)

    handle = get("handle", bool)
    return Gpu(
        index=number,
        handle=handle if isinstance(handle, NotAvailable) and handle.code >= 0 else None,
        name=get("name", str),
        uuid=get("uuid", str),
        pci=get("pci", values.pci_address),
        minor=get("minor", int),
        capability=get("capability", lambda pair: CudaVersion(*map(int, pair))),
        gsp_firmware=get("gsp_firmware", str),
        recovery_action=get("recovery_action", int),
        mig_mode=get("mig_mode", lambda pair: Modes(*map(bool, pair))),
        mig_devices=get("mig_devices", lambda found: tuple(map(values.mig_instance, found))),
        compute_mode=get("compute_mode", int),
        persistence=get("persistence", bool),
        memory=get("memory", lambda pair: MemoryUse(*map(int, pair))),
        ecc_mode=get("ecc_mode", lambda pair: Modes(*map(bool, pair))),
        ecc_uncorrected=get("ecc_uncorrected", int),
        sram_threshold=get("sram_threshold", bool),
        remapped_rows=get("remapped_rows", values.rows),
        row_histogram=get("row_histogram", values.histogram),
        retired_pending=get("retired_pending", bool),
        pcie_generation=get("pcie_generation", int),
        pcie_width=get("pcie_width", int),
        pcie_max_generation=get("pcie_max_generation", int),
        pcie_max_width=get("pcie_max_width", int),
        pcie_replays=get("pcie_replays", int),
        performance_state=get("performance_state", int),
        clock_reasons=get("clock_reasons", int),
        clocks=get("clocks", values.clocks),
        temperature=get("temperature", int),
        power=get("power", lambda pair: Power(*map(int, pair))),
        platform=get("platform", values.platform),
        cpus=get("cpus", values.numbers),
        numa=get("numa", values.numbers),
        memory_node=get("memory_node", int),
        fabric=get("fabric", values.fabric),
        links=get("links", lambda links: tuple(map(values.link, links))),
        processes=get("processes", lambda found: tuple(map(values.process, found))),
        ancestors=get("ancestors", values.levels),
    )
