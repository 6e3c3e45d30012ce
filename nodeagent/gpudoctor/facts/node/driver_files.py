"""The driver's device nodes, and the CDI specs that name its files for containers.

A CDI spec is written once, by `nvidia-ctk cdi generate`, and names files and device nodes as they
were then. It is YAML or JSON; what is looked for stands on lines of its own in both.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.sources.host import UNREAD, DeviceNode, Host, Listing, Missing
from gpudoctor.sources.host import read as read_file

_CONTROL, _UVM = "nvidiactl", "nvidia-uvm"
_UVM_MODULE = "/sys/module/nvidia_uvm"
_STATIC, _DYNAMIC = ("/etc/cdi",), ("/var/run/cdi", "/run/cdi")
_MOST_SPECS = 16
# Patterns as text: re compiles, once, what there is a spec for.
_SPEC = r"\.(?:ya?ml|json)$"
_KIND = r"(?m)^[\s{]*\"?kind\"?\s*:\s*\"?([\w.-]+/[\w.-]+)"
_LIBRARY = (
    r"\"?hostPath\"?\s*:\s*\"?(?P<path>/\S*/lib(?:cuda|nvidia-ml)\.so\.(?P<version>\d{3,4}(?:\.\d+){1,2}))"
    r"(?=[\s\",]|\Z)"
)
_NODE = r"\"?path\"?\s*:\s*\"?/dev/(?P<name>nvidia\d+)(?=[\s\",]|\Z)"
_ELSEWHERE = r"\"?hostPath\"?\s*:\s*\"?/\S*/dev/nvidia"


class CdiSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A CDI spec of NVIDIA's. `version` is that of the driver libraries it names and `library` one
    of them; `nodes` are the GPUs' device nodes it names, by name, None if they are not in /dev.
    """

    path: str
    kind: str
    version: str | None = None
    library: str | None = None
    nodes: tuple[str, ...] | None = ()


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the driver's files are there, each None if that cannot be told.

    `gpu_nodes` are the names of the GPUs' device nodes, None if /dev could not be listed whole.
    `specs` are the CDI specs in force: one written at run time takes the place of the others of
    its kind. `unsure` says why it is not known whether the others are in force, if there are any;
    `unread` what else of them was refused, or did not answer.
    """

    control: bool | None = None
    uvm: bool | None = None
    uvm_module: bool | None = None
    gpu_nodes: tuple[str, ...] | None = None
    specs: tuple[CdiSpec, ...] = ()
    unsure: str | None = None
    unread: tuple[str, ...] = ()


def read(host: Host) -> DriverFiles:
    """Read a host's or a container's."""
    listing = host.listing("/dev")
    whole = isinstance(listing, Listing) and listing.complete
    found = listing.names if isinstance(listing, Listing) else ()
    (static, hidden), (dynamic, unread) = _specs(host, _STATIC), _specs(host, _DYNAMIC)
    return DriverFiles(
        control=_node(host, _CONTROL, found, whole=whole),
        uvm=_node(host, _UVM, found, whole=whole),
        uvm_module=_module(host),
        gpu_nodes=tuple(name for name in found if re.match(r"nvidia\d+$", name)) if whole else None,
        specs=tuple(dynamic) if unread else _in_force(static, dynamic),
        unsure=str(unread) if unread and static else None,
        unread=tuple(
            str(one) for one in (hidden, None if static else unread) if one and one.refused
        ),
    )


class _Unread(msgspec.Struct, frozen=True):
    """A folder or file that could not be read."""

    path: str
    reason: Missing

    @property
    def refused(self) -> bool:
        """Whether it was asked for: a recording may simply not have it."""
        return self.reason.errno != UNREAD

    def __str__(self) -> str:
        return f"{self.path} {self.reason.why}"


def _node(host: Host, name: str, listed: tuple[str, ...], *, whole: bool) -> bool | None:
    if name in listed:
        return True
    if whole:
        return False
    found = host.device(f"/dev/{name}")
    if isinstance(found, DeviceNode):
        return True
    return False if found.absent else None


def _module(host: Host) -> bool | None:
    found = host.listing(_UVM_MODULE)
    if isinstance(found, Listing):
        return True
    return False if found.absent else None


def _specs(host: Host, folders: tuple[str, ...]) -> tuple[list[CdiSpec], _Unread | None]:
    """Return the specs of the first of these folders that is there, for the others are links to
    it, and what could not be read, where there may be more.
    """
    unread: _Unread | None = None
    for folder in folders:
        listing = host.listing(folder)
        if isinstance(listing, Missing):
            unread = unread if listing.absent else _Unread(folder, listing)
            continue
        files = [name for name in listing.names if re.search(_SPEC, name)]
        paths = [f"{folder}/{name}" for name in files[:_MOST_SPECS]]
        host.expect(paths)
        found, unread = [], None
        for path in paths:
            content = read_file(host, path)
            if isinstance(content, Missing):
                unread = _Unread(path, content)
            elif (spec := _spec(path, content)) is not None:
                found.append(spec)
        return found, unread
    return [], unread


def _spec(path: str, content: str) -> CdiSpec | None:
    kind = re.search(_KIND, content)
    if kind is None or not kind[1].endswith("nvidia.com/gpu"):
        return None
    library = re.search(_LIBRARY, content)
    nodes = dict.fromkeys(match["name"] for match in re.finditer(_NODE, content))
    return CdiSpec(
        path=path,
        kind=kind[1],
        version=library["version"] if library else None,
        library=library["path"] if library else None,
        nodes=None if re.search(_ELSEWHERE, content) else tuple(nodes),
    )


def _in_force(static: list[CdiSpec], dynamic: list[CdiSpec]) -> tuple[CdiSpec, ...]:
    renewed = {spec.kind for spec in dynamic}
    return (*(spec for spec in static if spec.kind not in renewed), *dynamic)
