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


LIKE = {"hgx": (2, 4), "pair": (2, 1)}
"""Machines that the joined cases are like: sockets, and GPUs with a NIC beside each, a socket."""

BOOTED = 1_795_000_000
"""When the machines of the joined cases started, in seconds since 1970: 2026-11-18T11:06:40Z."""


def gpu_uuid(index: int) -> str:
    """Return the UUID of a machine's GPU by its number."""
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd"


def gpu_node(like: str = "hgx") -> dict[str, Any]:
    """Return the tree of a whole node as its root sees it, with driver, and nothing wrong.

    GPUs are numbered as the driver does, by address; uverbsN and mlx5_N go together.
    """
    sockets, per_socket = LIKE[like]
    tree = whole_machine(sockets, per_socket)
    gpus = [
        f"0000:{0x13 + socket * 0x80 + slot * 0x10:02x}:00.0"
        for socket in range(sockets)
        for slot in range(per_socket)
    ]
    devices = [path.rpartition("/")[2] for path in tree if path.startswith(f"{DEVICES}/")]
    adapters = range(sockets * per_socket)
    tree |= {
        DEVICES: {"dir": sorted(devices)},
        "/sys/class/infiniband": {"dir": [f"mlx5_{index}" for index in adapters]},
        "/sys/class/infiniband_verbs": {"dir": [f"uverbs{index}" for index in adapters]},
        "/sys/kernel/mm/memory_peers": {"errno": "ENOENT"},
        "/sys/module/nvidia/version": "580.126.09\n",
        "/sys/module/nvidia_peermem": {"errno": "ENOENT"},
        "/sys/module/nvidia_peermem/version": {"errno": "ENOENT"},
        "/sys/module/nv_peer_mem": {"errno": "ENOENT"},
        "/sys/module/nv_peer_mem/version": {"errno": "ENOENT"},
        "/proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09\n"
        ),
        "/proc/driver/nvidia/gpus": {"dir": gpus},
        "/proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "/proc/1/comm": "systemd\n",
        "/proc/1/cgroup": "0::/init.scope\n",
        "/proc/stat": f"cpu 1 2 3\nbtime {BOOTED}\n",
        "/proc": {"dir": ["1", "self"]},
        "/proc/self/limits": "Max locked memory         8388608   8388608   bytes\n",
        "/proc/self/status": "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
        "/dev": {"dir": ["null", *(f"nvidia{index}" for index in range(len(gpus)))]},
        "/dev/infiniband": {"dir": ["rdma_cm", *(f"uverbs{index}" for index in adapters)]},
        "cmd:dmesg": "<6>[    0.000000] Linux version 6.8.0-60-generic\n",
    }
    for index in adapters:
        tree[f"/sys/class/infiniband_verbs/uverbs{index}/ibdev"] = f"mlx5_{index}\n"
        tree[f"/dev/infiniband/uverbs{index}"] = {"char": [231, 192 + index], "mode": "0666"}
    for index, address in enumerate(gpus):
        tree[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {gpu_uuid(index)}\n"
            f"Device Minor: \t {index}\n"
        )
    return tree
