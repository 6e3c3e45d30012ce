"""Rules over a node's facts, from recorded trees: each finding, and the near miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpudoctor import readings, registry
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.readings import host
from gpudoctor.report import Report, Severity
from gpudoctor.sources.bundle import Bundle, HostRecording, Scope

CASES = Path(__file__).parent.parent / "cases" / "node"
CHECKS = registry.load()
Tree = dict[str, Any]
PCI = "/sys/bus/pci/devices"
IB = "/sys/class/infiniband"


def report(tree: Tree, later: Tree | None = None, roots: tuple[str, ...] = ()) -> Report:
    recorded = Bundle(
        scope=Scope(roots=roots),
        hosts={"local": HostRecording(tree=tree, tree_later=later or {})},
    )
    return readings.judge(host.read_recorded(recorded), CHECKS)


def names(answer: Report, at_least: Severity = Severity.INFO) -> set[str]:
    return {
        f"{finding.name}:{finding.subject.device}" if finding.subject.device else finding.name
        for finding in answer.findings
        if finding.severity.rank >= at_least.rank
    }


def on(name: str, device: str) -> str:
    """The finding of that name about that device, as `names` gives it."""
    return f"{name}:{device}"


def loud(tree: Tree, later: Tree | None = None, roots: tuple[str, ...] = ()) -> set[str]:
    return names(report(tree, later, roots), Severity.WARNING)


def pci(address: str, vendor: str, class_: str, numa: int = 0, **more: str) -> Tree:
    files = {
        "vendor": vendor,
        "class": class_,
        "numa_node": str(numa),
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
        **more,
    }
    return {f"{PCI}/{address}/{name}": f"{value}\n" for name, value in files.items()}


def gpu(address: str = "0000:1b:00.0", numa: int = 0, **more: str) -> Tree:
    return pci(address, "0x10de", "0x030200", numa, **more)


def hca(
    name: str,
    address: str,
    *,
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    rate: str = "400 Gb/sec (4X NDR)",
    layer: str = "InfiniBand",
    vendor: str = "0x15b3",
    uverbs: int | None = None,
    **more: str,
) -> Tree:
    class_ = "0x020700" if layer == "InfiniBand" else "0x020000"
    tree: Tree = pci(address, vendor, class_, 0, **more)
    tree[f"{IB}/{name}/device"] = {"link": f"../../../bus/pci/devices/{address}"}
    tree[f"{IB}/{name}/hca_type"] = "MT4129"
    port = f"{IB}/{name}/ports/1"
    tree |= {f"{port}/state": state, f"{port}/phys_state": physical}
    tree |= {f"{port}/rate": rate, f"{port}/link_layer": layer}
    if uverbs is not None:
        tree[f"/sys/class/infiniband_verbs/uverbs{uverbs}/ibdev"] = name
        tree[f"/dev/infiniband/uverbs{uverbs}"] = {"char": [231, 192 + uverbs], "mode": "0666"}
    return tree


def rails(count: int, **more: Any) -> Tree:
    tree: Tree = {}
    for index in range(count):
        tree |= hca(f"mlx5_{index}", f"0000:{index + 16:02x}:00.0", uverbs=index, **more)
    return tree


def process(
    *, memlock: str = "unlimited", caps: str = "00000000a80425fb", uid: int = 0, **status: str
) -> Tree:
    lines = {"Uid": f"{uid}\t{uid}\t{uid}\t{uid}", "CapEff": caps, "CapBnd": caps, **status}
    return {
        "/proc/1/limits": f"Max locked memory         {memlock}   {memlock}   bytes\n",
        "/proc/1/status": "".join(f"{name}:\t{value}\n" for name, value in lines.items()),
    }


def environment(**variables: str) -> Tree:
    return {"/proc/1/environ": "".join(f"{name}={value}\0" for name, value in variables.items())}


@pytest.mark.parametrize("path", sorted(CASES.glob("host-*.json")), ids=lambda path: path.stem)
def test_reported_hosts(path: Path) -> None:
    case: dict[str, Any] = json.loads(path.read_text())
    expect = case["expect"]
    answer = report(case["tree"], case.get("tree_later"))
    both = names(answer) | {name.partition(":")[0] for name in names(answer)}
    assert set(expect["findings"]) <= both
    heard = {name.partition(":")[0] for name in names(answer, Severity.WARNING)}
    wanted = {name.partition(":")[0] for name in expect["findings"]}
    wanted -= set(expect.get("info_only", []))
    assert heard == wanted, "nothing else is said aloud"
    assert names(answer, Severity.WARNING).isdisjoint(expect["must_not_flag"])
    for what in expect.get("unknown", []):
        assert what in {unknown.what for unknown in answer.unknown}
    facts = answer.facts["host"]
    for key in ("roce_v2_ipv4_gid_index", "memlock_soft_bytes", "cap_ipc_lock", "gpu_numa"):
        if key in expect:
            assert facts[key] == expect[key]
    if "active_ports_400g" in expect:
        assert facts["active_ports_by_rate"]["400"] == expect["active_ports_400g"]
    for words in expect.get("details_contains", []) + expect.get("advice_contains", []):
        assert any(words in finding.detail + finding.fix for finding in answer.findings)


class TestMemlock:
    def test_too_low_without_the_right(self) -> None:
        assert loud(rails(1) | process(memlock="65536")) == {"memlock-too-low"}

    def test_capability_in_force(self) -> None:
        assert loud(rails(1) | process(memlock="65536", caps="00000000a80465fb")) == set()

    def test_capability_in_its_own_user_namespace_does_nothing(self) -> None:
        tree = rails(1) | process(memlock="65536", caps="00000000a80465fb")
        tree["/proc/1/uid_map"] = "         0     100000      65536\n"
        assert loud(tree) == {"memlock-too-low"}
        tree["/proc/1/uid_map"] = "         0          0 4294967295\n"
        assert loud(tree) == set()

    def test_without_rdma_nothing_is_pinned(self) -> None:
        absent = {IB: {"errno": "ENOENT"}, "/dev/infiniband": {"errno": "ENOENT"}}
        assert loud(absent | process(memlock="8388608")) == set()

    def test_large_limit_is_a_choice_until_it_is_used_up(self) -> None:
        assert loud(rails(1) | process(memlock=str(64 << 30))) == set()
        full = process(memlock=str(64 << 30), VmPin=f"{63 << 20} kB")
        assert loud(rails(1) | full) == {"memlock-too-low"}

    @pytest.mark.parametrize("refusal", ["ENOMEM", "EPERM"])
    def test_a_real_try_decides_against_what_the_capabilities_promise(self, refusal: str) -> None:
        tree = rails(1) | process(memlock="65536", caps="00000000a80465fb") | same_rights()
        assert loud(tree | {"lock:1073741824": refusal}) == {"memlock-too-low"}
        (found,) = report(tree | {"lock:1073741824": refusal}).findings
        assert "in CapEff but not in force" in found.detail
        assert found.certainty == "certain"

    def test_a_real_try_that_succeeds_clears_it(self) -> None:
        tree = rails(1) | process(memlock="65536") | same_rights()
        assert loud(tree | {"lock:1073741824": ""}) == set()

    def test_a_try_under_other_rights_says_nothing_of_the_workload(self) -> None:
        tree = rails(1) | process(memlock="65536") | {"lock:1073741824": ""}
        assert loud(tree) == {"memlock-too-low"}


def same_rights() -> Tree:
    """Our own process, as `kubectl exec` starts it: what process 1 has, we have."""
    return {
        "/proc/self/limits": "Max locked memory         65536   65536   bytes\n",
        "/proc/self/status": "CapEff:\t00000000a80465fb\n",
        "/proc/1/status": "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80465fb\nCapBnd:\t0\n",
    }


def test_shared_memory_that_is_full() -> None:
    line = "9 8 0:1 / /dev/shm rw,nosuid - tmpfs shm rw,size=16g,inode64\n"
    tree = gpu() | {"/proc/1/mountinfo": line} | process()
    size = 16 << 30
    full = report(tree | {"space:/dev/shm": {"size": size, "free": size // 50}})
    assert full.roots == ("shm-too-small",)
    assert "15.7 GiB of the 16 GiB" in full.findings[0].detail
    assert full.facts["host"]["shm_used_bytes"] == size - size // 50
    assert loud(tree | {"space:/dev/shm": {"size": size, "free": size // 5}}) == set()
    assert loud({key: value for key, value in tree.items() if PCI not in key}) == set()


def test_huge_pages_are_told() -> None:
    folder = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    tree = {f"{folder}/nr_hugepages": "5128\n", f"{folder}/free_hugepages": "128\n"}
    assert report(tree).facts["host"]["hugepages"] == {"2097152": {"total": 5128, "free": 128}}


def test_shared_memory_of_the_runtime() -> None:
    line = "9 8 0:1 / /dev/shm rw,nosuid - tmpfs shm rw,size={},inode64\n"
    tree = gpu() | gpu("0000:1c:00.0")
    assert loud(tree | {"/proc/1/mountinfo": line.format("65536k")} | process()) == {
        "shm-too-small"
    }
    assert loud(tree | {"/proc/1/mountinfo": line.format("16g")} | process()) == set()
    one = {"cmd:nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader": "00000000:1B:00.0\n"}
    assert loud(tree | one | {"/proc/1/mountinfo": line.format("65536k")} | process()) == set()


class TestPorts:
    DOWN: ClassVar[Tree] = {
        "state": "1: DOWN",
        "physical": "2: Polling",
        "rate": "10 Gb/sec (4X SDR)",
    }

    def test_rail_without_peer(self) -> None:
        tree = rails(7) | hca("mlx5_7", "0000:50:00.0", **self.DOWN)
        assert loud(tree) == {"nic-port-down:mlx5_7"}

    def test_no_subnet_manager(self) -> None:
        tree = rails(2, state="2: INIT")
        assert loud(tree) == {"nic-port-down:mlx5_0", "nic-port-down:mlx5_1"}

    def test_second_port_of_a_card_nobody_cabled(self) -> None:
        tree = rails(4) | hca("mlx5_4", "0000:50:00.0", layer="Ethernet", rate="200 Gb/sec")
        tree |= hca("mlx5_5", "0000:50:00.1", layer="Ethernet", **self.DOWN)
        assert loud(tree) == set()
        assert "nic-port-down:mlx5_5" in names(report(tree))

    def test_second_port_where_all_other_cards_have_both(self) -> None:
        tree: Tree = {}
        for index in range(8):
            state: Tree = self.DOWN if index == 7 else {}
            tree |= hca(f"mlx5_{index}", f"0000:{16 + index // 2:02x}:00.{index % 2}", **state)
        assert loud(tree) == {"nic-port-down:mlx5_7"}

    def test_a_port_that_this_container_was_not_given(self) -> None:
        tree = rails(2) | hca("mlx5_2", "0000:50:00.0", **self.DOWN)
        tree["/sys/class/infiniband_verbs/uverbs2/ibdev"] = "mlx5_2"
        tree["/dev/infiniband"] = {"dir": ["uverbs0", "uverbs1"]}
        assert loud(tree) == set()

    def test_switched_off(self) -> None:
        off: Tree = {"state": "1: DOWN", "physical": "3: Disabled"}
        assert loud(rails(7) | hca("mlx5_7", "0000:50:00.0", **off)) == {"nic-port-down:mlx5_7"}
        assert loud(rails(8) | hca("mlx5_8", "0000:50:00.0", **off)) == set()

    def test_rate_below_the_peers(self) -> None:
        tree = rails(7) | hca("mlx5_7", "0000:50:00.0", rate="200 Gb/sec (2X NDR)")
        assert loud(tree) == {on("nic-slow-rate", "mlx5_7")}
        front_end = rails(8) | hca("mlx5_8", "0000:50:00.0", rate="200 Gb/sec (2X NDR)")
        assert loud(front_end) == set()

    def test_link_layer_of_one_rail(self) -> None:
        tree = rails(7) | hca("mlx5_7", "0000:50:00.0", layer="Ethernet")
        assert loud(tree) == {on("nic-link-layer-wrong", "mlx5_7")}
        assert loud(rails(8) | hca("mlx5_8", "0000:50:00.0", layer="Ethernet")) == set()
        front_end = hca("mlx5_8", "0000:60:00.0", layer="Ethernet", rate="100 Gb/sec (4X EDR)")
        front_end |= {f"{IB}/mlx5_8/hca_type": "MT4127\n"}
        assert loud(tree | front_end) == {on("nic-link-layer-wrong", "mlx5_7")}

    def test_flap_is_growth_not_a_count(self) -> None:
        counter = f"{IB}/mlx5_1/ports/1/counters/link_downed"
        tree = rails(2) | {counter: "3\n"}
        assert loud(tree, {counter: "4\n"}) == {"nic-link-flap:mlx5_1"}
        assert loud(tree, {counter: "3\n"}) == set()
        assert loud(rails(2) | {counter: "255\n"}, {counter: "255\n"}) == set()
        assert loud(tree, {counter: "0\n"}) == set(), "the driver was loaded again"


class TestGids:
    ZERO = ":".join(["0000"] * 8)
    V4 = "0000:0000:0000:0000:0000:ffff:0a98:000c"

    def roce(self) -> Tree:
        tree = hca("mlx5_0", "0000:18:00.0", layer="Ethernet", uverbs=0)
        table = {0: (self.ZERO, None), 4: (self.V4, "IB/RoCE v1"), 5: (self.V4, "RoCE v2")}
        for index, (gid, kind) in table.items():
            tree[f"{IB}/mlx5_0/ports/1/gids/{index}"] = f"{gid}\n"
            tree[f"{IB}/mlx5_0/ports/1/gid_attrs/types/{index}"] = (
                {"errno": "EINVAL"} if kind is None else kind
            )
        return tree

    @pytest.mark.parametrize("index", ["0", "3"])
    def test_empty_entry(self, index: str) -> None:
        tree = self.roce() | environment(NCCL_IB_GID_INDEX=index)
        assert names(report(tree), Severity.ERROR) == {"gid-index-invalid:mlx5_0"}

    def test_first_version(self) -> None:
        assert loud(self.roce() | environment(NCCL_IB_GID_INDEX="4")) == {
            "gid-index-invalid:mlx5_0"
        }

    def test_right_entry_default_and_infiniband(self) -> None:
        assert loud(self.roce() | environment(NCCL_IB_GID_INDEX="5")) == set()
        assert loud(self.roce() | environment(NCCL_IB_GID_INDEX="-1")) == set()
        assert loud(rails(1) | environment(NCCL_IB_GID_INDEX="3")) == set()

    def test_device_left_out_by_the_job(self) -> None:
        tree = self.roce() | environment(NCCL_IB_GID_INDEX="3", NCCL_IB_HCA="^mlx5_0")
        assert loud(tree) == set()


class TestDevices:
    def test_no_node_at_all(self) -> None:
        tree = hca("mlx5_0", "0000:18:00.0") | {"/dev/infiniband": {"errno": "ENOENT"}}
        answer = report(tree)
        assert answer.roots == ("rdma-device-node-missing",)
        assert "rdma-device-absent" in names(answer)

    def test_part_of_a_shared_host(self) -> None:
        tree = rails(2) | {"/sys/class/infiniband_verbs/uverbs7/ibdev": "mlx5_7"}
        tree |= hca("mlx5_7", "0000:50:00.0")
        tree["/dev/infiniband"] = {"dir": ["rdma_cm", "uverbs0", "uverbs1"]}
        assert loud(tree) == set()
        tree["cmd:rdma system"] = "netns exclusive copy-on-fork on\n"
        assert loud(tree) == {"rdma-device-node-missing:mlx5_7"}

    def test_named_by_the_job_and_not_given(self) -> None:
        tree = rails(2) | {"/dev/infiniband": {"dir": ["rdma_cm", "uverbs0"]}}
        del tree["/dev/infiniband/uverbs1"]
        assert loud(tree | environment(NCCL_IB_HCA="=mlx5_0,mlx5_1")) == {
            "rdma-device-node-missing:mlx5_1"
        }
        assert loud(tree | environment(NCCL_IB_HCA="=mlx5_0")) == set()

    def test_nothing_where_the_job_names_some(self) -> None:
        absent = {IB: {"errno": "ENOENT"}}
        assert loud(absent | environment(NCCL_IB_HCA="mlx5")) == {"rdma-device-absent"}
        assert loud(absent | environment(NCCL_DEBUG="INFO")) == set()

    def test_administrators_nodes_are_not_needed(self) -> None:
        tree = rails(1) | {"/dev/infiniband": {"dir": ["rdma_cm", "uverbs0"]}}
        assert "rdma-umad-missing" not in names(report(tree))
        assert loud(tree) == set()

    def test_node_that_cannot_be_opened(self) -> None:
        tree = rails(1) | process()
        node = {"char": [231, 192], "mode": "0666", "uid": 0, "gid": 0}
        tree["/dev/infiniband/uverbs0"] = {**node, "opened": "EPERM"}
        assert loud(tree) == {"rdma-device-open-failed:mlx5_0"}
        tree["/dev/infiniband/uverbs0"] = {**node, "opened": ""}
        assert loud(tree) == set()
        tree["/dev/infiniband/uverbs0"] = {**node, "mode": "0600"}
        assert loud(tree) == set(), "root may"
        assert loud(tree | process(uid=1000)) == {"rdma-device-open-failed:mlx5_0"}

    def test_foreign_nodes_beside_efa(self) -> None:
        efa = hca("rdmap79s0", "0000:4f:00.0", vendor="0x1d0f", layer="Unspecified", uverbs=0)
        assert loud(efa) == set()
        assert loud(efa | hca("mlx5_0", "0000:18:00.0", uverbs=1)) == {"efa-foreign-uverbs"}


class TestGpuDirect:
    OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build\n"
    CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26\n"
    NO_MODULE: ClassVar[Tree] = {
        "/sys/module/nvidia_peermem": {"errno": "ENOENT"},
        "/sys/module/nv_peer_mem": {"errno": "ENOENT"},
    }

    def tree(self, banner: str, kernel: str, **more: Any) -> Tree:
        return (
            gpu()
            | rails(1)
            | {"/proc/driver/nvidia/version": banner, "/proc/sys/kernel/osrelease": kernel}
            | more
        )

    def test_dma_buf_needs_no_module(self) -> None:
        assert names(report(self.tree(self.OPEN, "6.8.0-60") | self.NO_MODULE)) == set()

    @pytest.mark.parametrize(
        ("banner", "kernel"), [(OPEN, "5.4.0-150-generic"), (CLOSED, "6.8.0-60-generic")]
    )
    def test_neither_way(self, banner: str, kernel: str) -> None:
        answer = report(self.tree(banner, kernel) | self.NO_MODULE)
        assert names(answer, Severity.WARNING) == {"gdr-unavailable"}
        assert "peermem-missing" in names(answer)

    def test_module_without_its_registration(self) -> None:
        tree = self.tree(self.CLOSED, "5.15.0") | {"/sys/module/nvidia_peermem/version": "535"}
        tree["/sys/kernel/mm/memory_peers"] = {"errno": "ENOENT"}
        answer = report(tree)
        assert answer.roots == ("peermem-not-registered",)
        assert "gdr-unavailable" in names(answer)
        tree["/sys/kernel/mm/memory_peers"] = {"dir": ["nv_mem"]}
        assert loud(tree) == set()
        tree = self.tree(self.OPEN, "6.8.0") | {"/sys/module/nvidia_peermem/version": "570"}
        tree["/sys/kernel/mm/memory_peers"] = {"errno": "ENOENT"}
        assert loud(tree) == set(), "DMA-BUF takes its place"

    def test_unread_module_is_unknown(self) -> None:
        answer = report(self.tree(self.CLOSED, "5.15.0"))
        assert names(answer) == set()
        assert "GPUDirect RDMA" in {unknown.what for unknown in answer.unknown}

    def test_unread_kernel_makes_a_missing_module_possible_only(self) -> None:
        tree = self.tree(self.OPEN, "") | self.NO_MODULE
        del tree["/proc/sys/kernel/osrelease"]
        assert loud(tree) == {"peermem-missing"}

    def test_display_cards_have_none_by_design(self) -> None:
        tree = self.tree(self.CLOSED, "5.15.0") | self.NO_MODULE
        tree[f"{PCI}/0000:1b:00.0/class"] = "0x030000"
        assert names(report(tree)) == set()


class TestPcieLinks:
    STATE = "cmd:nvidia-smi --query-gpu=pstate,utilization.gpu --format=csv,noheader"
    GIVEN: ClassVar[Tree] = {
        "cmd:nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader": "00000000:1B:00.0"
    }

    def test_lost_lanes(self) -> None:
        assert loud(gpu(current_link_width="8")) == {on("gpu-pcie-degraded", "0000:1b:00.0")}

    def test_narrow_slot(self) -> None:
        tree = gpu(current_link_width="8") | pci(
            "0000:1a:01.0", "0x8086", "0x060400", max_link_width="8", current_link_width="8"
        )
        tree[f"{PCI}/0000:1b:00.0"] = {
            "link": "../../../devices/pci0000:1a/0000:1a:01.0/0000:1b:00.0"
        }
        assert loud(tree) == set()

    def test_speed_counts_only_at_work(self) -> None:
        idle = gpu(current_link_speed="2.5 GT/s PCIe") | self.GIVEN | {self.STATE: "P8, 0 %\n"}
        assert names(report(idle)) == {on("gpu-pcie-idle-speed", "0000:1b:00.0")}
        assert loud(idle) == set()
        busy = gpu(current_link_speed="8.0 GT/s PCIe") | self.GIVEN | {self.STATE: "P0, 97 %\n"}
        assert loud(busy) == {on("gpu-pcie-degraded", "0000:1b:00.0")}

    def test_nic(self) -> None:
        tree = hca("mlx5_0", "0000:18:00.0", uverbs=0, current_link_width="8")
        assert loud(tree) == {on("nic-pcie-degraded", "mlx5_0")}
        assert loud(hca("mlx5_0", "0000:18:00.0", uverbs=0, max_link_width="255")) == set()


class TestAcs:
    ON = (
        "\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    )
    VALID = "\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-"

    def test_only_redirects_of_bridges(self) -> None:
        assert loud({"cmd:lspci -vvv": f"15:00.0 PCI bridge: X\n{self.ON}\n"}) == {
            "acs-redirects-p2p:0000:15:00.0"
        }
        assert loud({"cmd:lspci -vvv": f"15:00.0 PCI bridge: X\n{self.VALID}\n"}) == set()
        assert loud({"cmd:lspci -vvv": f"15:00.0 3D controller: X\n{self.ON}\n"}) == set()

    def test_configuration_space(self) -> None:
        import base64

        config = bytearray(4096)
        config[0x0E] = 1
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
        config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x14E] = 0x1D
        path = f"{PCI}/0000:15:00.0/config"
        assert loud({path: {"b64": base64.b64encode(config).decode()}}) == {
            "acs-redirects-p2p:0000:15:00.0"
        }
        config[0x14E] = 0x01
        assert loud({path: {"b64": base64.b64encode(config).decode()}}) == set()
        answer = report({path: {"b64": base64.b64encode(config[:64]).decode()}})
        assert "acs-state" in {unknown.what for unknown in answer.unknown}

    def test_root_port_of_a_known_tree_turns_nothing_round(self) -> None:
        tree = gpu()
        tree[f"{PCI}/0000:1b:00.0"] = {
            "link": "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/"
            "0000:17:00.0/0000:1b:00.0"
        }
        printed = f"15:01.0 PCI bridge: X\n{self.ON}\n17:00.0 PCI bridge: X\n{self.ON}\n"
        assert loud(tree | {"cmd:lspci -vvv": printed}) == {"acs-redirects-p2p:0000:17:00.0"}

    def test_inside_a_virtual_machine_it_stays(self) -> None:
        tree = {"cmd:lspci -vvv": f"15:00.0 PCI bridge: X\n{self.ON}\n"}
        assert loud(tree | {"/proc/cpuinfo": "flags : fpu hypervisor lahf_lm\n"}) == set()
        assert loud(tree | {"/sys/class/dmi/id/product_name": "Virtual Machine\n"}) == set()
        assert loud(tree | {"/sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}) != set()

    def test_on_a_host_that_passes_devices_through_it_stays(self) -> None:
        tree: Tree = {"cmd:lspci -vvv": f"15:00.0 PCI bridge: X\n{self.ON}\n"} | gpu()
        tree[f"{PCI}/0000:1b:00.0/driver"] = {"link": "../../../bus/pci/drivers/vfio-pci"}
        assert loud(tree) == set()

    @pytest.mark.parametrize(
        ("line", "translated"),
        [
            ("intel_iommu=on", True),
            ("intel_iommu=on iommu=pt", False),
            ("amd_iommu=on iommu=pt", False),
            ("quiet", False),
        ],
    )
    def test_iommu(self, line: str, translated: bool) -> None:
        found = loud(gpu() | {"/proc/cmdline": f"ro {line}\n"})
        assert found == ({"iommu-enabled"} if translated else set())

    def test_group_type_is_the_fact(self) -> None:
        tree = gpu() | {"/proc/cmdline": "ro intel_iommu=on"}
        tree[f"{PCI}/0000:1b:00.0/iommu_group"] = {"link": "../../../../kernel/iommu_groups/7"}
        tree["/sys/kernel/iommu_groups/7/type"] = "identity\n"
        assert loud(tree) == set()
        tree["/sys/kernel/iommu_groups/7/type"] = "DMA-FQ\n"
        assert loud(tree) == {"iommu-enabled"}


class TestPlacement:
    NODES: ClassVar[Tree] = {
        "/sys/devices/system/node/node0/cpulist": "0-55",
        "/sys/devices/system/node/node1/cpulist": "56-111",
    }
    GIVEN = "cmd:nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader"

    def tree(self, cpus: str, mems: str = "0-1", given: str = "0000:9D:00.0\n") -> Tree:
        near, far = "0-55", "56-111"
        return (
            gpu("0000:1b:00.0", 0, local_cpulist=near)
            | gpu("0000:9d:00.0", 1, local_cpulist=far)
            | self.NODES
            | process(Cpus_allowed_list=cpus, Mems_allowed_list=mems)
            | {self.GIVEN: given}
        )

    def test_cpus_on_the_other_socket(self) -> None:
        assert loud(self.tree("0-15")) == {"cpu-gpu-cross-numa"}
        assert loud(self.tree("60-75")) == set()

    def test_both_sockets_need_both(self) -> None:
        both = "0000:1B:00.0\n0000:9D:00.0\n"
        assert loud(self.tree("0-15", given=both)) == {"cpu-gpu-cross-numa"}
        assert loud(self.tree("0-15,60-75", given=both)) == set()

    def test_which_gpus_are_its_own_is_unknown(self) -> None:
        tree = self.tree("0-15")
        del tree[self.GIVEN]
        answer = report(tree)
        assert names(answer) == set()
        assert "GPUs of this container" in {unknown.what for unknown in answer.unknown}

    def test_memory(self) -> None:
        assert loud(self.tree("60-75", "0")) == {"memory-cross-numa"}
        assert loud(self.tree("60-75", "1")) == set()

    def test_unpinned_is_information(self) -> None:
        answer = report(self.tree("0-111"))
        assert names(answer) == {"cpu-not-pinned"}
        assert names(answer, Severity.WARNING) == set()

    def test_too_few_cpus(self) -> None:
        both = "0000:1B:00.0\n0000:9D:00.0\n"
        assert "cpu-affinity-too-small" in loud(self.tree("0", given=both))
        assert "cpu-affinity-too-small" not in loud(self.tree("0,60", given=both))

    def test_numa_of_gpus(self) -> None:
        unknown = gpu("0000:1b:00.0", -1) | self.NODES
        assert names(report(unknown)) == {"numa-unknown:0000:1b:00.0"}
        empty = gpu("0000:1b:00.0", 2) | self.NODES | {"/sys/devices/system/node/node2/cpulist": ""}
        assert names(report(empty)) == {on("numa-node-without-cpus", "0000:1b:00.0")}
        assert names(report(gpu("0000:1b:00.0", 1) | self.NODES)) == set()


def test_gpu_that_the_driver_lost() -> None:
    tree = gpu("0000:1b:00.0") | gpu("0000:1c:00.0")
    tree |= {"/proc/1/comm": "systemd", "/proc/driver/nvidia/gpus": {"dir": ["0000:1b:00.0"]}}
    assert loud(tree, roots=("/sys/bus/pci",)) == {"gpu-count-wrong"}
    assert loud(tree | {"/proc/1/comm": "python3"}, roots=("/sys/bus/pci",)) == set()
    tree["/proc/driver/nvidia/gpus"] = {"dir": ["0000:1b:00.0", "0000:1c:00.0"]}
    assert loud(tree, roots=("/sys/bus/pci",)) == set()


def test_sysfs_alone_gives_the_matrix() -> None:
    root = "../../../devices/pci0000:15"
    tree = gpu("0000:18:00.0") | gpu("0000:1c:00.0") | hca("mlx5_4", "0000:19:00.0", uverbs=0)
    tree |= gpu("0000:9d:00.0", 1)
    switch = f"{root}/0000:15:01.0/0000:16:00.0"
    tree[f"{PCI}/0000:18:00.0"] = {"link": f"{switch}/0000:17:00.0/0000:18:00.0"}
    tree[f"{PCI}/0000:19:00.0"] = {"link": f"{switch}/0000:17:01.0/0000:19:00.0"}
    tree[f"{PCI}/0000:1c:00.0"] = {"link": f"{root}/0000:15:02.0/0000:1c:00.0"}
    tree[f"{PCI}/0000:9d:00.0"] = {"link": "../../../devices/pci0000:9a/0000:9a:01.0/0000:9d:00.0"}
    topology = report(tree).facts["topology"]
    assert topology["matrix"]["GPU0"] == {
        "GPU0": "X", "GPU1": "PHB", "GPU2": "SYS", "NIC0": "PIX"
    }  # fmt: skip
    assert topology["nic_for_gpu"] == {"GPU0": ["mlx5_4"]}
    assert topology["numa"] == {"GPU0": [0], "GPU1": [0], "GPU2": [1]}
    assert not topology["nvlink_visible"]


def test_what_nvml_said_is_replayed() -> None:
    answers = '[null,"init",true]\n[null,"driver","570.172.08"]\n[null,"count",0]\n'
    tree = gpu() | {"cmd:nvml": answers + '[null,"complete",true]\n'}
    recorded = Bundle(hosts={"local": HostRecording(tree=tree)})
    (said,) = [fact for fact in host.read_recorded(recorded).facts if isinstance(fact, NodeGpus)]
    assert said.count == 0
    late = gpu() | {"cmd:nvml, killed": answers + '["?",0,"handle"]\n'}
    recorded = Bundle(hosts={"local": HostRecording(tree=late)})
    (said,) = [fact for fact in host.read_recorded(recorded).facts if isinstance(fact, NodeGpus)]
    assert said.hung_in == "handle of GPU 0"


def test_nothing_known_is_no_all_clear() -> None:
    answer = report({})
    assert answer.verdict == "unknown"
    assert {"NVIDIA GPUs", "RDMA devices"} <= {unknown.what for unknown in answer.unknown}
