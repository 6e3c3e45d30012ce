"""From the words that `nvidia-smi` printed to NVML's facts: they are NVML's answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from gpudoctor.facts.node import gpu_values
from gpudoctor.facts.node.gpu import (
    GPU_IS_LOST,
    NOT_ASKED,
    RESET_REQUIRED,
    Clock,
    FabricState,
    Gpu,
    MemoryUse,
    Modes,
    NodeGpus,
    NotAvailable,
    NvLink,
    RemappedRows,
)
from gpudoctor.facts.node.smi_text import REASON, SmiGpu, SmiText
from gpudoctor.facts.node.versions import parse_cuda, parse_driver
from gpudoctor.report import Subject

T = TypeVar("T")

_ABSENT = NotAvailable(NOT_ASKED, "not in the text")
_REFUSALS = {
    "gpu is lost": NotAvailable(GPU_IS_LOST, "GPU is lost"),
    "gpu requires reset": NotAvailable(RESET_REQUIRED, "GPU requires reset"),
}
_UNSAID = ("n/a", "not supported", "unknown", "requested func", "insufficient")
_REASONS = {
    "gpu_idle": 0x1,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_RECOVERY = {
    "none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3,
    "drain and reset": 4, "recover imex domain": 5, "bus reset": 6, "system reboot": 7,
}  # fmt: skip
_RESET, _DRAIN_AND_RESET = _RECOVERY["reset"], _RECOVERY["drain and reset"]
_COMPUTE = {
    "default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3,
    "e. thread": 1, "e. process": 3,
}  # fmt: skip
_FABRIC = {"not started": 1, "in progress": 2, "completed": 3}
_SUMMARY = {"healthy": 1, "unhealthy": 2, "limited capacity": 3}
_FAILED = 999
_DEGRADED_BANDWIDTH = 1
_MIB = 1 << 20
_NUMBER = re.compile(r"(?:[A-Z]|0x)?(\d+)")


def gpus(found: SmiText, subject: Subject) -> NodeGpus:
    """Return what NVML said through nvidia-smi; what was not printed was not asked."""
    return NodeGpus(
        subject=subject,
        failure=None,
        hung_in=None,
        driver=parse_driver(found.driver or "") or _ABSENT,
        nvml=_ABSENT,
        cuda=parse_cuda(found.cuda or "") or _ABSENT,
        count=len(found.gpus),
        gpus=tuple(_gpu(number, one) for number, one in enumerate(found.gpus)),
    )


class _Values:
    """The printed words of one GPU, in small letters and without brackets."""

    def __init__(self, printed: dict[str, str]) -> None:
        self._printed = printed

    def text(self, name: str) -> str | NotAvailable:
        """Return the words as printed, or why there are none."""
        words = self._printed.get(name, "").strip().strip("[]")
        unsaid = words.lower().startswith(_UNSAID) or words.lower() in _REFUSALS
        return _ABSENT if unsaid or not words else words

    def refusal(self) -> NotAvailable | None:
        """Return why the GPU does not answer, where any of the words says so."""
        words = (text.strip().strip("[]").lower() for text in self._printed.values())
        return next((_REFUSALS[word] for word in words if word in _REFUSALS), None)

    def get(self, name: str, convert: Callable[[str], T | None]) -> T | NotAvailable:
        """Return the value, or why there is none."""
        words = self.text(name)
        if isinstance(words, NotAvailable):
            return words
        try:
            value = convert(words)
        except ValueError:
            return _ABSENT
        return _ABSENT if value is None else value

    def number(self, name: str) -> int | NotAvailable:
        """Return the number that the words begin with, behind a letter as in P0."""
        return self.get(name, lambda words: int(m[1]) if (m := _NUMBER.match(words)) else None)

    def flag(self, name: str) -> bool | NotAvailable:
        """Return whether it is so."""
        return self.get(name, _yes)


def _yes(words: str) -> bool | None:
    word = words.lower()
    if word in ("yes", "active", "enabled", "1"):
        return True
    return False if word in ("no", "not active", "disabled", "0") else None


def _known(*values: int | NotAvailable) -> list[int]:
    return [value for value in values if not isinstance(value, NotAvailable)]


def _gpu(number: int, one: SmiGpu) -> Gpu:
    said = _Values(one.values)
    index = said.number("index")
    fields: dict[str, Any] = dict.fromkeys(Gpu.__struct_fields__, _ABSENT)
    fields |= {
        "index": number if isinstance(index, NotAvailable) else index,
        "handle": said.refusal(),
        "name": said.text("name"),
        "uuid": said.text("uuid"),
        "pci": said.get("pci.bus_id", gpu_values.pci_address),
        "minor": said.number("minor"),
        "gsp_firmware": said.text("gsp_firmware"),
        "recovery_action": _recovery(said),
        "mig_mode": said.get("mig.mode.current", lambda words: _modes(_yes(words))),
        "compute_mode": said.get(
            "compute_mode", lambda words: _compute_mode(words.lower().rstrip("."))
        ),
        "persistence": said.flag("persistence_mode"),
        "memory": _memory(said),
        "ecc_uncorrected": _uncorrected(said),
        "sram_threshold": _unrepairable(said),
        "remapped_rows": _rows(said),
        "retired_pending": said.flag("retired_pages.pending"),
        "pcie_generation": said.number("pcie.link.gen.current"),
        "pcie_width": said.number("pcie.link.width.current"),
        "pcie_max_generation": said.number("pcie.link.gen.max"),
        "pcie_max_width": said.number("pcie.link.width.max"),
        "performance_state": said.number("pstate"),
        "clock_reasons": _reasons(said),
        "clocks": _clocks(said),
        "temperature": said.number("temperature.gpu"),
        "fabric": _fabric(said),
        "links": _links(one.links),
    }
    return Gpu(**fields)


def _modes(current: bool | None) -> Modes | None:
    return None if current is None else Modes(current, current)


def _compute_mode(word: str) -> int | None:
    """The table shortens or cuts long words: `E. Process`, `Prohib...`."""
    return next((number for name, number in _COMPUTE.items() if name.startswith(word[:7])), None)


def _recovery(said: _Values) -> int | NotAvailable:
    action = said.get("gpu_recovery_action", lambda words: _RECOVERY.get(words.lower()))
    if not isinstance(action, NotAvailable):
        return action
    if said.flag("reset_status.reset_required") is True:
        return _RESET
    drain = said.flag("reset_status.drain_and_reset_recommended")
    return _DRAIN_AND_RESET if drain is True else _ABSENT


def _memory(said: _Values) -> MemoryUse | NotAvailable:
    numbers = _known(said.number("memory.total"), said.number("memory.used"))
    return MemoryUse(*(number * _MIB for number in numbers)) if len(numbers) == 2 else _ABSENT


def _uncorrected(said: _Values) -> int | NotAvailable:
    """The total where there is one, else the sum over kinds of memory."""
    total = said.number("ecc.total")
    if not isinstance(total, NotAvailable):
        return total
    parts = ("ecc.sram", "ecc.sram.parity", "ecc.sram.secded", "ecc.dram")
    counts = _known(*(said.number(name) for name in parts))
    return sum(counts) if counts else total


def _unrepairable(said: _Values) -> bool | NotAvailable:
    """Whether memory is beyond repair, of which the exceeded threshold is one sign."""
    flags = [said.flag("ecc.sram_threshold"), said.flag("ecc.unrepairable")]
    told = [flag for flag in flags if not isinstance(flag, NotAvailable)]
    return any(told) if told else flags[0]


def _rows(said: _Values) -> RemappedRows | NotAvailable:
    pending, failed = said.flag("remapped_rows.pending"), said.flag("remapped_rows.failure")
    if said.flag("ecc.channel_repair_pending") is True:
        pending = True
    if isinstance(pending, NotAvailable):
        return pending
    if not pending and isinstance(failed, NotAvailable):
        return failed
    correctable, uncorrectable = (
        _known(said.number(f"remapped_rows.{kind}")) for kind in ("correctable", "uncorrectable")
    )
    return RemappedRows(sum(correctable), sum(uncorrectable), pending, failed is True)


def _reasons(said: _Values) -> int | NotAvailable:
    mask = said.get(f"{REASON}active", lambda words: int(words, 16))
    if not isinstance(mask, NotAvailable):
        return mask
    flags = {name: said.flag(REASON + name) for name in _REASONS}
    if all(isinstance(flag, NotAvailable) for flag in flags.values()):
        return mask
    return sum(_REASONS[name] for name, flag in flags.items() if flag is True)


def _clocks(said: _Values) -> dict[str, Clock] | NotAvailable:
    now, most = said.number("clocks.current.sm"), said.number("clocks.max.sm")
    if isinstance(now, NotAvailable):
        return now
    return {"sm": Clock(now, None if isinstance(most, NotAvailable) else most, None)}


def _fabric(said: _Values) -> FabricState | NotAvailable:
    state = said.get("fabric.state", lambda words: _FABRIC.get(words.lower()))
    if isinstance(state, NotAvailable):
        return state
    status = said.get("fabric.status", lambda words: 0 if words.lower() == "success" else _FAILED)
    if state == _FABRIC["completed"] and isinstance(status, NotAvailable):
        return status  # it may have completed in vain
    summary = said.get("fabric.health.summary", lambda words: _SUMMARY.get(words.lower()))
    bandwidth = said.text("fabric.health.bandwidth")
    return FabricState(
        state,
        0 if isinstance(status, NotAvailable) else status,
        0,
        "",
        health_mask=_DEGRADED_BANDWIDTH if str(bandwidth).lower() == "degraded" else None,
        health_summary=None if isinstance(summary, NotAvailable) else summary,
    )


def _links(states: dict[int, bool]) -> tuple[NvLink, ...] | NotAvailable:
    if not states:
        return _ABSENT
    return tuple(NvLink(active) for _, active in sorted(states.items()))
