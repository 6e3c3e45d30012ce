"""What the kubelet gave to each container, from the answer of its pod-resources socket.

The kubelet names pods, never UIDs or container ids; `/var/log/containers` ties both together.
Older kubelets also list pods that have ended: only a container that runs holds its devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gpudoctor.facts.node import pci
from gpudoctor.facts.node.model import MigDevice
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources import pod_resources
from gpudoctor.sources.host import Host, Missing, names

LOGS = "/var/log/containers"
_LOG = re.compile(
    r"^(?P<pod>[^_]{1,253})_(?P<namespace>[^_]{1,63})_(?P<container>.{1,63})-"
    r"(?P<id>[0-9a-f]{64})\.log$"
)
_LATE = "DEADLINE_EXCEEDED"
_WHAT = "devices that the kubelet gave out"
_UUID = re.compile(r"^(GPU-[0-9a-f-]{36})(?:::\d+)?$", re.IGNORECASE)
_MIG = re.compile(r"^(MIG-[0-9a-f-]{36})(?:::\d+)?$", re.IGNORECASE)
_OLD_MIG = re.compile(r"^MIG-(GPU-[0-9a-f-]{36})/\d+/\d+(?:::\d+)?$", re.IGNORECASE)
_NODE = re.compile(r"^nvidia(\d+)(?:/gi\d+)?$")
_INDEX = re.compile(r"^(\d{1,3})(?::\d{1,2})?(?:::\d+)?$")
_CLAIMED = re.compile(r"^gpu-(\d{1,3})(?:-mig-[a-z0-9-]+)?$")
"""Device names of NVIDIA's DRA driver: the minor number, then the MIG profile and its place."""
_GPU_CLAIMS = "gpu.nvidia.com"
_GPUS = "nvidia.com/"


class Names(msgspec.Struct, frozen=True):
    """A container as Kubernetes names it."""

    namespace: str
    pod: str
    container: str


class Claimed(msgspec.Struct, frozen=True):
    """A device that a DRA driver gave, with its CDI names."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """What one container was given: resource name -> device ids, exclusive CPUs, claimed devices.

    The ids have the form of the device plugin's choice.
    """

    names: Names
    devices: dict[str, tuple[str, ...]]
    cpus: frozenset[int] = frozenset()
    claimed: tuple[Claimed, ...] = ()


class KubeletSilence(msgspec.Struct, frozen=True):
    """A kubelet that took the connection and gave no answer within its bound."""

    subject: Subject
    socket: str
    details: str


class _Device(msgspec.Struct, rename="camel"):
    resource_name: str = ""
    device_ids: list[str] = []


class _CdiDevice(msgspec.Struct):
    name: str = ""


class _ClaimResource(msgspec.Struct, rename="camel"):
    cdi_devices: list[_CdiDevice] = []
    driver_name: str = ""
    pool_name: str = ""
    device_name: str = ""


class _Claim(msgspec.Struct, rename="camel"):
    claim_resources: list[_ClaimResource] = []


class _Container(msgspec.Struct, rename="camel"):
    name: str = ""
    devices: list[_Device] = []
    cpu_ids: list[int] = []
    dynamic_resources: list[_Claim] = []


class _Pod(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    containers: list[_Container] = []


class _Error(msgspec.Struct):
    code: str = ""
    details: str = ""


class _Response(msgspec.Struct, rename="camel"):
    pod_resources: list[_Pod] = []
    error: _Error | None = None


def _decode(printed: str) -> _Response | None:
    try:
        # Not strict: protobuf's JSON form writes 64-bit numbers as text.
        return msgspec.json.decode(printed.encode(), type=_Response, strict=False)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def silence(printed: str, subject: Subject) -> KubeletSilence | None:
    """Return that the kubelet did not answer in time, None for an answer or another refusal."""
    response = _decode(printed)
    error = response.error if response is not None else None
    if error is None or error.code != _LATE:
        return None
    return KubeletSilence(subject, f"{pod_resources.FOLDER}/{pod_resources.NAME}", error.details)


def parse(printed: str) -> tuple[Allotment, ...] | Unknown:
    """Return the containers that were given something; Unknown with the kubelet's reason."""
    response = _decode(printed)
    if response is None:
        return Unknown(_WHAT, "the kubelet's answer ended early")
    if response.error is not None:
        return Unknown(_WHAT, f"{response.error.code}: {response.error.details}".rstrip(": "))
    found = (
        _allotment(pod, container) for pod in response.pod_resources for container in pod.containers
    )
    return tuple(one for one in found if one.devices or one.cpus or one.claimed)


def _allotment(pod: _Pod, container: _Container) -> Allotment:
    devices: dict[str, tuple[str, ...]] = {}
    for device in container.devices:
        # One entry a NUMA node: the same resource may stand there several times.
        ids = devices.get(device.resource_name, ()) + tuple(device.device_ids)
        devices[device.resource_name] = tuple(dict.fromkeys(ids))
    return Allotment(
        names=Names(pod.namespace, pod.name, container.name),
        devices=devices,
        cpus=frozenset(container.cpu_ids),
        claimed=tuple(
            Claimed(
                one.driver_name,
                one.pool_name,
                one.device_name,
                tuple(cdi.name for cdi in one.cdi_devices),
            )
            for claim in container.dynamic_resources
            for one in claim.claim_resources
        ),
    )


def names_by_id(host: Host) -> dict[str, Names] | None:
    """Return container id -> its names, by the node's log files; None if they were not seen."""
    listing = host.listing(LOGS)
    if isinstance(listing, Missing):
        return None
    found = {}
    for name in listing.names:
        if match := _LOG.match(name):
            found[match["id"]] = Names(match["namespace"], match["pod"], match["container"])
    return found


def gpus(host: Host, allotment: Allotment, mig: Sequence[MigDevice] = ()) -> tuple[str, ...] | None:
    """Return the addresses of the GPUs in an allotment; None if one cannot be told.

    By UUID (with or without a replica number of time-slicing), device node, index, or the name
    that a DRA driver gave; a MIG device is a part of its card, which `mig` tells for UUIDs.
    """
    ids = _gpu_ids(allotment)
    claims = [one.device for one in allotment.claimed if one.driver == _GPU_CLAIMS]
    uuids, minors = addresses(host) if ids or claims else ({}, {})
    uuids |= {device.uuid.lower(): device.gpu for device in mig}
    in_order = sorted(minors.values())
    found = [_address(one, uuids, minors, in_order) for one in ids]
    found += [minors.get(m[1]) if (m := _CLAIMED.match(one)) else None for one in claims]
    known = [address for address in found if address is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else None


def mig_devices(allotment: Allotment, mig: Sequence[MigDevice]) -> tuple[MigDevice, ...]:
    """Return the MIG devices among what was given, as far as their UUIDs tell."""
    given = {match[1].lower() for one in _gpu_ids(allotment) if (match := _MIG.match(one))}
    return tuple(device for device in mig if device.uuid.lower() in given)


def _gpu_ids(allotment: Allotment) -> list[str]:
    return [
        one
        for resource, given in allotment.devices.items()
        if resource.startswith(_GPUS)
        for one in given
    ]


def _address(
    device: str, uuids: dict[str, str], minors: dict[str, str], in_order: list[str]
) -> str | None:
    if match := _UUID.match(device) or _MIG.match(device) or _OLD_MIG.match(device):
        return uuids.get(match[1].lower())
    if match := _NODE.match(device):
        return minors.get(match[1])
    if (match := _INDEX.match(device)) and int(match[1]) < len(in_order):
        return in_order[int(match[1])]
    return None


def addresses(host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Return the addresses of the driver's GPUs by UUID in lower case, and by minor number."""
    uuids, minors = {}, {}
    for name in names(host, pci.DRIVER_GPUS):
        where = pci.address(name)
        uuid, minor = pci.identity(host, name)
        if where and uuid:
            uuids[uuid.lower()] = where
        if where and minor:
            minors[minor] = where
    return uuids, minors


def published(allotment: Allotment) -> dict[str, Any]:
    """Return what a report says of an allotment."""
    return {
        "devices": {resource: list(ids) for resource, ids in allotment.devices.items()},
        "cpus": sorted(allotment.cpus),
        "claimed": [f"{one.driver}/{one.pool}/{one.device}" for one in allotment.claimed],
    }
