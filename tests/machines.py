"""Trees of whole machines, in the form of a bundle's recording, and how to lay them on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DEVICES = "/sys/bus/pci/devices"


def whole_machine(sockets: int = 2, per_socket: int = 4) -> dict[str, Any]:
    """Return the tree of a machine with switches: a GPU and a NIC below each, as HGX has them."""
    tree: dict[str, Any] = {}
    for socket in range(sockets):
        tree[f"/sys/devices/system/node/node{socket}/cpulist"] = (
            f"{socket * 56}-{socket * 56 + 55}\n"
        )
        for slot in range(per_socket):
            bus = 0x10 + socket * 0x80 + slot * 0x10
            root = f"/sys/devices/pci0000:{bus:02x}"
            switch = f"{root}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
            gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
            name = f"mlx5_{socket * per_socket + slot}"
            for port, address, vendor, class_, model in (
                ("00", gpu, "0x10de", "0x030200", "0x2330"),
                ("01", nic, "0x15b3", "0x020700", "0x1021"),
            ):
                folder = f"{switch}/0000:{bus + 2:02x}:{port}.0/{address}"
                tree |= {
                    f"{folder}/vendor": f"{vendor}\n",
                    f"{folder}/device": f"{model}\n",
                    f"{folder}/class": f"{class_}\n",
                    f"{folder}/numa_node": f"{socket}\n",
                    f"{folder}/local_cpulist": f"{socket * 56}-{socket * 56 + 55}\n",
                    f"{folder}/max_link_width": "16\n",
                    f"{folder}/current_link_width": "16\n",
                    f"{DEVICES}/{address}": {"link": "../../.." + folder[len("/sys") :]},
                }
                if vendor == "0x15b3":
                    verbs = f"{folder}/infiniband/{name}"
                    tree |= {
                        f"{verbs}/ports/1/state": "4: ACTIVE\n",
                        f"{verbs}/ports/1/phys_state": "5: LinkUp\n",
                        f"{verbs}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
                        f"{verbs}/ports/1/link_layer": "InfiniBand\n",
                        f"{verbs}/hca_type": "MT4129\n",
                        f"{verbs}/device": {"link": "../../../" + address},
                        f"/sys/class/infiniband/{name}": {"link": "../.." + verbs[len("/sys") :]},
                    }
    return tree


def on_disk(tree: dict[str, Any], root: Path) -> None:
    for path, entry in tree.items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, dict):
            place.symlink_to(entry["link"])
        else:
            place.write_text(entry)
