"""What udev and psutil said of our own machine, as typed facts."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.report import Unknown


class Device(msgspec.Struct, frozen=True):
    """A device that udev enumerates: its sysfs name and the address of its PCI function."""

    subsystem: str
    name: str
    path: str = ""
    pci: str | None = None
    properties: dict[str, str] = {}

    @property
    def model(self) -> str | None:
        """What the hardware database calls it, where udev's daemon looked it up."""
        return self.properties.get("ID_MODEL_FROM_DATABASE")


class Interface(msgspec.Struct, frozen=True):
    """A network interface; `speed_mbps` is 0 where the driver does not tell."""

    name: str
    up: bool = False
    speed_mbps: int = 0
    mtu: int = 0
    addresses: tuple[str, ...] = ()


class Waiting(msgspec.Struct, frozen=True):
    """A process that waits uninterruptibly in the kernel."""

    pid: int
    name: str | None = None


class System(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered; None for a section that was not, with the reason among `unknown`."""

    devices: tuple[Device, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    limits: dict[str, tuple[int, int]] | None = None
    waiting: tuple[Waiting, ...] | None = None
    unknown: tuple[Unknown, ...] = ()

    def interfaces_of(self, address: str) -> tuple[str, ...]:
        """Return the network interfaces of a PCI function."""
        return tuple(
            device.name
            for device in self.devices or ()
            if device.subsystem == "net" and device.pci == address
        )


_TYPES: dict[str, Any] = {
    "devices": tuple[Device, ...],
    "interfaces": tuple[Interface, ...],
    "limits": dict[str, tuple[int, int]],
    "waiting": tuple[Waiting, ...],
}


def parse(printed: str) -> System:
    """Type what the reading process printed; what cannot be used is unknown, with the reason."""
    found: dict[str, Any] = {}
    unknown: list[Unknown] = []
    asked: str | None = None
    for line in printed.splitlines():
        try:
            name, value = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            continue  # the last line of a killed process may be cut
        if name == "?" and isinstance(value, str):
            asked = value
        elif isinstance(name, str) and name in _TYPES:
            asked = None
            if isinstance(value, dict) and isinstance(value.get("error"), str):
                unknown.append(Unknown(f"{name} of this machine", value["error"]))
                continue
            try:
                found[name] = msgspec.convert(value, _TYPES[name])
            except (msgspec.ValidationError, RecursionError) as error:
                unknown.append(Unknown(f"{name} of this machine", f"not understood: {error}"))
    if asked is not None:
        unknown.append(Unknown(f"{asked} of this machine", "no answer in time"))
    return System(unknown=tuple(unknown), **found)
