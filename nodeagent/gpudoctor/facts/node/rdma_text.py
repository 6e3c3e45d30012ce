"""RDMA devices and ports as ibstat, ibstatus, ibv_devinfo and `rdma link` print them."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.node.model import Hca, Port

_DEVICE = re.compile(
    r"^(?:CA '(?P<ca>[^']+)'|hca_id:\s*(?P<id>\S+)"
    r"|Infiniband device '(?P<status>[^']+)' port (?P<port>\d+) status:)",
)
_PORT = re.compile(r"^\s+[Pp]ort:?\s*(\d+):?\s*$")
_FIELD = re.compile(r"^\s+([A-Za-z_ /]+?):\s*(\S.*?)\s*$")
_LINK = re.compile(r"^(?:link |\d+/\d+: )(\S+)/(\d+):? (.*)$", re.MULTILINE)
_LINK_FIELD = re.compile(r"\b(state|physical_state|netdev|subnet_prefix) (\S+)")
_NOTHING = re.compile(
    r"^(?:No IB devices found|Failed to get IB devices list|ibstat: .*no .*found)", re.MULTILINE
)
_NUMBER = re.compile(r"^[0-9.]+")
_STATES = {
    "INITIALIZE": "INIT", "INITIALIZING": "INIT", "LINK_UP": "LinkUp", "LINKUP": "LinkUp",
    "POLLING": "Polling", "DISABLED": "Disabled", "LINK_ERROR_RECOVERY": "LinkErrorRecovery",
}  # fmt: skip


class _Draft(msgspec.Struct):
    name: str
    fields: dict[str, str] = {}
    ports: dict[str, dict[str, str]] = {}


def lines_seen(text: str) -> int:
    """Count the telling lines."""
    heads = sum(1 for line in text.splitlines() if _DEVICE.match(line))
    return 3 * heads + len(_LINK.findall(text)) + len(_NOTHING.findall(text))


def parse(text: str) -> tuple[Hca, ...] | None:
    """Return the devices; none when a tool says that there are none, None for other text."""
    devices: dict[str, _Draft] = {}
    port: dict[str, str] | None = None
    device: _Draft | None = None
    for line in text.replace("\r", "").splitlines():
        if match := _DEVICE.match(line):
            name = match["ca"] or match["id"] or match["status"]
            device = devices.setdefault(name, _Draft(name))
            port = device.ports.setdefault(match["port"], {}) if match["port"] else None
        elif device is not None and (match := _PORT.match(line)):
            port = device.ports.setdefault(match[1], {})
        elif device is not None and (match := _FIELD.match(line)):
            (device.fields if port is None else port).setdefault(_key(match[1]), match[2])
        elif match := _LINK.match(line):
            draft = devices.setdefault(match[1], _Draft(match[1]))
            draft.ports[match[2]] = _link_fields(match[3])
    if devices:
        return tuple(_hca(draft) for draft in devices.values())
    return () if _NOTHING.search(text) else None


def _key(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _link_fields(rest: str) -> dict[str, str]:
    """Name what `rdma link` says; a subnet prefix is InfiniBand's, a netdev Ethernet's."""
    fields = dict(_LINK_FIELD.findall(rest))
    if "subnet_prefix" in fields:
        fields["link_layer"] = "InfiniBand"
    elif "netdev" in fields:
        fields["link_layer"] = "Ethernet"
    return fields


def _hca(draft: _Draft) -> Hca:
    model = draft.fields.get("ca_type") or draft.fields.get("vendor_part_id")
    return Hca(
        name=draft.name,
        pci=None,
        model=model,
        board=draft.fields.get("board_id"),
        ports=tuple(_port(number, fields) for number, fields in draft.ports.items()),
        uverbs=None,
    )


def _port(number: str, fields: dict[str, str]) -> Port:
    rate = fields.get("rate", "")
    match = _NUMBER.match(rate)
    physical = fields.get("physical_state") or fields.get("phys_state")
    return Port(
        number=number,
        state=_state(fields.get("state")),
        physical=_state(physical),
        rate=float(match[0]) if match and match[0].strip(".") and match[0].count(".") < 2 else None,
        rate_text=rate,
        link_layer=fields.get("link_layer"),
    )


def _state(value: str | None) -> str | None:
    """Return sysfs's word of `Active`, `PORT_ACTIVE (4)`, `4: ACTIVE`, `LINK_UP`, `LinkUp`."""
    if value is None:
        return None
    word = re.sub(r"^\d+:\s*", "", value).split(" ")[0].removeprefix("PORT_")
    upper = word.upper()
    if upper in _STATES:
        return _STATES[upper]
    return upper if upper in ("ACTIVE", "DOWN", "INIT", "ARMED", "NOP") else word
