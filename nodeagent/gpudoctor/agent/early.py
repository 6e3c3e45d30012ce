"""Rounds before their time: the kernel says when a PCI or RDMA device comes, changes or goes.

What it says is "look again": events get lost, and some drivers send none, so the period stays.
Network devices are left out, since each pod that starts or ends makes some.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpudoctor.sources.host.devices import Hotplug

SUBSYSTEMS = ("pci", "infiniband")
LOOK_S = 2.0
"""How soon the end of the agent is noticed while no device changes."""


def watch(stop: threading.Event, changed: Callable[[], None], say: Callable[[str], None]) -> None:
    """Call `changed` after each burst of changes of a device, until `stop`.

    Where the kernel's events cannot be had, that is said once and rounds come by the period alone.
    """
    try:
        hotplug = Hotplug(SUBSYSTEMS)
    except (ImportError, OSError) as error:
        say(f"device changes are seen by the period alone: the kernel's events: {error}")
        return
    with hotplug:
        while not stop.is_set():
            if hotplug.wait(LOOK_S):
                changed()
