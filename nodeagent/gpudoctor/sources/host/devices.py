"""PCI, RDMA and network devices as udev enumerates them, and the kernel's word when one changes.

libudev always reads the /sys of this process: it serves the live `/`, never a host whose root is
mounted elsewhere, which plain files serve. Enumerating touches every device, so it is done in a
child (`gpudoctor.sources.system`); `Hotplug` only waits on a socket and may live in a long process.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec

SUBSYSTEMS = ("pci", "infiniband", "net")
_PROPERTIES = ("DRIVER", "ID_VENDOR_FROM_DATABASE", "ID_MODEL_FROM_DATABASE", "PCI_SLOT_NAME")
_SETTLE_S = 0.2
_BURST_S = 2.0
"""A device that keeps changing makes no end of events: what is read as one burst has one."""

_MOST_EVENTS = 1 << 14


def enumerate_devices() -> Iterator[dict[str, Any]]:
    """Yield subsystem, name, sysfs path, PCI parent and some properties of each device.

    ImportError or OSError where udev's library is not there.
    """
    import pyudev  # imported late: few runs need it

    context = pyudev.Context()
    for subsystem in SUBSYSTEMS:
        for device in context.list_devices(subsystem=subsystem):
            card = device if subsystem == "pci" else device.find_parent("pci")
            known = {name: device.properties.get(name) for name in _PROPERTIES}
            yield {
                "subsystem": subsystem,
                "name": device.sys_name,
                "path": device.sys_path,
                "pci": card.sys_name if card is not None else None,
                "properties": {name: value for name, value in known.items() if value},
            }


class Change(msgspec.Struct, frozen=True):
    """One kernel uevent: what happened (`add`, `remove`, `change`, …) to which device."""

    action: str
    subsystem: str
    name: str


class Hotplug:
    """The kernel's uevents for devices of these subsystems, from the moment it is made.

    It may be waited on with others by its `fileno`. Events get lost when nobody reads them in
    time, and some drivers send none: what they say is "look again", not what has changed.
    OSError where the socket cannot be had, ImportError without udev's library.
    """

    def __init__(self, subsystems: Sequence[str] = SUBSYSTEMS) -> None:
        import pyudev  # imported late: only an agent waits

        # Not "udev": its daemon may be missing, as in every container.
        self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def __enter__(self) -> Hotplug:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._monitor = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a change."""
        return int(self._monitor.fileno())

    def wait(self, timeout_s: float | None = None) -> tuple[Change, ...]:
        """Return the changes of one burst, none if there is none within the time-out.

        A card with its ports and functions makes many events: the burst is over when nothing
        more comes for a moment, or when it has lasted long enough.
        """
        changes: list[Change] = []
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while len(changes) < _MOST_EVENTS and self._readable(end, _SETTLE_S if changes else None):
            change = self._next()
            if change is None:
                continue
            if not changes:
                end = time.monotonic() + _BURST_S
            changes.append(change)
        return tuple(changes)

    def _readable(self, end: float | None, most_s: float | None) -> bool:
        """Wait for an event until `end` at the latest, and no longer than `most_s`."""
        left = None if end is None else max(0.0, end - time.monotonic())
        if left == 0 and most_s is not None:
            return False  # the burst has lasted long enough
        bounds = [bound for bound in (left, most_s) if bound is not None]
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(min(bounds) * 1000 if bounds else None))

    def _next(self) -> Change | None:
        try:
            device = self._monitor.poll(timeout=0)
        except OSError:
            return Change("lost", "", "")  # ENOBUFS: the kernel dropped some
        if device is None:
            return None  # of a subsystem that is not asked for
        return Change(str(device.action), str(device.subsystem), str(device.sys_name))
