"""RDMA devices from sysfs and /dev/infiniband: ports, GIDs, counters, device nodes."""

from __future__ import annotations

import posixpath
import re

import msgspec

from gpudoctor.facts.node import pci
from gpudoctor.facts.node.model import Gid, Hca, PciDevice, Port, VerbsNode
from gpudoctor.sources.host import Host, Missing, names, text

CLASS = "/sys/class/infiniband"
VERBS_CLASS = "/sys/class/infiniband_verbs"
DEV = "/dev/infiniband"
_STATE = re.compile(r"^\d+:\s*(\S+)")
_RATE = re.compile(r"^([0-9.]+) Gb/sec")
_MOST_GIDS = 256
_OF_HCA, _OF_PORT = ("hca_type", "board_id"), ("rate", "link_layer", "state", "phys_state")
COUNTERS = (
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/roce_adp_retrans",
)


def read_hcas(
    host: Host, devices: dict[str, PciDevice], later: Host | None = None
) -> tuple[Hca, ...] | None:
    """Return the RDMA devices, None if their directory could not be looked at.

    `later` is a second observation of the same host, for the growth of counters.
    """
    listing = host.listing(CLASS)
    if isinstance(listing, Missing):
        return () if listing.absent else None
    verbs = _verbs_of(host)
    folders = [f"{CLASS}/{name}" for name in listing.names]
    host.expect((), lists=(f"{folder}/ports" for folder in folders))
    ports = [f"{at}/ports/{port}" for at in folders for port in names(host, f"{at}/ports")]
    asked = [f"{folder}/{name}" for folder in folders for name in _OF_HCA]
    asked += [f"{port}/{name}" for port in ports for name in (*_OF_PORT, *COUNTERS)]
    host.expect(asked, links=(f"{folder}/device" for folder in folders))
    hcas = [_hca(host, name, devices, verbs, later) for name in listing.names]
    return tuple(_with_gids(host, hca) for hca in hcas)


def _verbs_of(host: Host) -> dict[str, str]:
    """Return device name -> uverbsN: the numbers of the two are not the same."""
    found = {}
    for name in names(host, VERBS_CLASS):
        device = text(host, f"{VERBS_CLASS}/{name}/ibdev")
        if device:
            found[device] = name
    return found


def _hca(
    host: Host,
    name: str,
    devices: dict[str, PciDevice],
    verbs: dict[str, str],
    later: Host | None,
) -> Hca:
    folder = f"{CLASS}/{name}"
    target = host.target(f"{folder}/device")
    where = None if isinstance(target, Missing) else pci.address(posixpath.basename(target))
    ports = names(host, f"{folder}/ports")
    return Hca(
        name=name,
        pci=devices.get(where or "") or (pci.read_device(host, where) if where else None),
        model=text(host, f"{folder}/hca_type"),
        board=text(host, f"{folder}/board_id"),
        ports=tuple(_port(host, f"{folder}/ports/{port}", port, later) for port in ports),
        uverbs=verbs.get(name),
    )


def _port(host: Host, folder: str, number: str, later: Host | None) -> Port:
    now = later or host
    rate = text(now, f"{folder}/rate") or ""
    before = _counters(host, folder)
    after = _counters(later, folder) if later else {}
    return Port(
        number=number,
        state=_state(text(now, f"{folder}/state")),
        physical=_state(text(now, f"{folder}/phys_state")),
        rate=float(match[1]) if (match := _RATE.match(rate)) else None,
        rate_text=rate,
        link_layer=text(host, f"{folder}/link_layer"),
        counters=after or before,
        growth={
            name: after[name] - value
            for name, value in before.items()
            if after.get(name, 0) > value
        },
    )


def _state(content: str | None) -> str | None:
    """Return `ACTIVE` of `4: ACTIVE`."""
    match = _STATE.match(content or "")
    return match[1] if match else content or None


def _counters(host: Host, folder: str) -> dict[str, int]:
    found = {}
    for counter in COUNTERS:
        content = text(host, f"{folder}/{counter}")
        if content is not None and content.isdigit():
            found[posixpath.basename(counter)] = int(content)
    return found


def _with_gids(host: Host, hca: Hca) -> Hca:
    ports = f"{CLASS}/{hca.name}/ports"
    return msgspec.structs.replace(
        hca,
        ports=tuple(
            msgspec.structs.replace(port, gids=_gids(host, f"{ports}/{port.number}"))
            if port.link_layer == "Ethernet"
            else port
            for port in hca.ports
        ),
    )


def _gids(host: Host, folder: str) -> tuple[Gid, ...]:
    indexes = sorted(int(name) for name in names(host, f"{folder}/gids") if name.isdigit())
    at = {index: f"{folder}/gids/{index}" for index in indexes[:_MOST_GIDS]}
    host.expect(at.values())
    values = {index: value for index, path in at.items() if (value := text(host, path)) is not None}
    kinds = {
        index: f"{folder}/gid_attrs/types/{index}"
        for index, value in values.items()
        if value.strip("0:")
    }
    host.expect(kinds.values())
    return tuple(
        Gid(index, value, text(host, kinds[index]) if index in kinds else None)
        for index, value in values.items()
    )


def read_nodes(host: Host, folder: str = DEV) -> tuple[tuple[VerbsNode, ...] | None, bool]:
    """Return what is under /dev/infiniband, None if nobody looked, and whether that is all."""
    listing = host.listing(folder)
    if isinstance(listing, Missing):
        return ((), True) if listing.absent else (None, False)
    return tuple(_node(host, folder, name) for name in listing.names), listing.complete


def _node(host: Host, folder: str, name: str) -> VerbsNode:
    device = host.device(f"{folder}/{name}")
    if isinstance(device, Missing):
        return VerbsNode(name, opened=None if not device.errno.startswith("EPERM") else "EPERM")
    return VerbsNode(name, device.mode, device.uid, device.gid, device.opened)


def netns_shared(host: Host) -> bool | None:
    """Return whether every network namespace sees every RDMA device, None if unknown."""
    parameter = text(host, "/sys/module/ib_core/parameters/netns_mode")
    if parameter is not None:
        return parameter.upper().startswith(("Y", "1"))
    printed = host.run(["rdma", "system"])
    match = re.search(r"netns (shared|exclusive)", printed) if isinstance(printed, str) else None
    return match[1] == "shared" if match else None
