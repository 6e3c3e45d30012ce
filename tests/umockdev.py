"""A recorded machine as umockdev's description of it, for programs that ask the real /sys."""

from __future__ import annotations

import struct
from typing import Any

_HEADER = 64


def _config(vendor: int, device: int, class_: int) -> str:
    """The standard header of a PCI configuration space, which lspci reads first, as hex."""
    header = bytearray(_HEADER)
    struct.pack_into("<HH", header, 0, vendor, device)
    header[9:12] = class_.to_bytes(3, "little")
    return header.hex().upper()


def _attributes(tree: dict[str, Any], folder: str, name_in: tuple[str, ...]) -> dict[str, str]:
    """The files under a device's folder, but for those of devices below it."""
    found = {}
    for path, entry in tree.items():
        name = path.removeprefix(f"{folder}/")
        if name != path and isinstance(entry, str) and name.split("/")[0] in name_in:
            found[name] = entry
    return found


def _device(path: str, subsystem: str, attributes: dict[str, str], *more: str) -> str:
    lines = [f"P: {path.removeprefix('/sys')}", f"E: SUBSYSTEM={subsystem}", *more]
    for name, value in attributes.items():
        escaped = value.replace("\n", "\\n")
        lines.append(f"A: {name}={escaped}")
    return "\n".join(lines) + "\n\n"


def describe(tree: dict[str, Any]) -> str:
    """Return the text that `umockdev-run -d` takes for a machine's PCI and RDMA devices."""
    described = []
    # Parents first, as umockdev wants them.
    for path in sorted(tree, key=lambda path: path.rpartition("/")[0]):
        folder, _, name = path.rpartition("/")
        if name == "vendor":
            own = ("vendor", "device", "class", "numa_node", "local_cpulist", "max_link_width",
                   "current_link_width")  # fmt: skip
            attributes = _attributes(tree, folder, own)
            config = _config(*(int(attributes[name], 16) for name in own[:3]))
            slot = f"E: PCI_SLOT_NAME={folder.rpartition('/')[2]}"
            attributes |= {"irq": "0\n", "resource": ""}  # lspci gives up without them
            described.append(_device(folder, "pci", attributes, slot, f"H: config={config}"))
        elif name == "hca_type":
            parent = tree[f"{folder}/device"]["link"]
            attributes = _attributes(tree, folder, ("ports", "hca_type"))
            described.append(_device(folder, "infiniband", attributes, f"L: device={parent}"))
        elif name == "cpulist":
            described.append(_device(folder, "node", {"cpulist": tree[path]}))
    return "".join(described)
