"""Our own machine through udev and psutil, asked in a short-lived child.

The answer is described in `gpudoctor.sources.system_child`.
"""

from __future__ import annotations

from gpudoctor.sources.child import Answer, ChildSource

SECTIONS = ("devices", "interfaces", "limits")
WAITING = "waiting"
"""The section to ask for only when something hangs."""

_SOURCE = ChildSource("gpudoctor.sources.system_child", ("PATH", "LANG"))


def read_system(deadline_s: float, *sections: str) -> Answer | str:
    """Return the child's answer, or the reason why none was asked for."""
    return _SOURCE.ask(deadline_s, *(sections or SECTIONS))
