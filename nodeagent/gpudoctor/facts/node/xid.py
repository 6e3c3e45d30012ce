"""NVIDIA's Xid and SXid codes: severity, what to do, and what they mean.

The tables are `xid.tsv` and `sxid.toml` beside this module, with their sources.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path

import msgspec


class XidSeverity(StrEnum):
    """Whom a code concerns, from nobody to whoever swaps parts."""

    INFO = "info"
    APP = "app"
    LINK = "link"
    RESET = "reset"
    REBOOT = "reboot"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


class Action(IntEnum):
    """What to tell the operator, mildest first; `word` is how reports spell it."""

    NONE = 0
    WATCH = 1
    RESET_WHEN_IDLE = 2
    CHECK_LINK_SIGNAL = 3
    RESET = 4
    DRAIN_AND_RESET = 5
    DRAIN_AND_RESET_FABRIC = 6
    DRAIN_AND_RESET_THEN_RMA_CHECK = 7
    REBOOT = 8

    @property
    def word(self) -> str:
        """The action's name in reports, such as `drain-and-reset`."""
        return self.name.lower().replace("_", "-")


class Xid(msgspec.Struct, frozen=True):
    """A row of the catalogue; `finding` is the runbook that tells about such codes."""

    code: int
    name: str
    severity: XidSeverity
    action: Action
    finding: str
    meaning: str
    advice: str


@cache
def _catalogue() -> dict[int, Xid]:
    text = Path(__file__).with_name("xid.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line[:1].isdigit()]
    words = {action.word: action for action in Action}
    return {
        int(code): Xid(
            int(code), name, XidSeverity(severity), words[action], finding, meaning, advice
        )
        for code, name, severity, action, finding, meaning, advice in rows
    }


def xid(code: int) -> Xid:
    """Return the catalogue's row of a code; one that it does not list has severity unknown."""
    known = _catalogue().get(code)
    return known or Xid(
        code,
        "UNKNOWN",
        XidSeverity.UNKNOWN,
        Action.NONE,
        "gpu-xid-noted",
        "a code that NVIDIA's catalogue does not list",
        "Look for it in the notes of the driver's release.",
    )


@cache
def _switch_codes() -> dict[str, frozenset[int]]:
    import tomllib  # imported late: only a log with switch errors needs it

    file = Path(__file__).with_name("sxid.toml")
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        kind: frozenset(
            code for first, last in data[kind]["ranges"] for code in range(first, last + 1)
        )
        for kind in ("non_fatal", "reboot")
    }


def sxid_is_fatal(code: int, said: bool | None) -> bool:
    """Tell whether a switch error is fatal: the line's own word, else NVIDIA's list."""
    return code not in _switch_codes()["non_fatal"] if said is None else said


def sxid_action(code: int, *, fatal: bool) -> Action:
    """Return what a switch error asks for."""
    if code in _switch_codes()["reboot"]:
        return Action.REBOOT
    return Action.DRAIN_AND_RESET_FABRIC if fatal else Action.NONE
