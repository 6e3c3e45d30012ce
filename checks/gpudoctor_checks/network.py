"""RDMA on the node and in the container: devices, ports, rates, GIDs, GPUDirect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.kubernetes.pod_adapters import PodAdapters
from gpudoctor.facts.node.model import Gid, Hca, NodeFacts, Port, VerbsNode, WorkloadFacts
from gpudoctor.report import Certainty, Evidence, Severity, Subject, Unknown

CHECKS = CheckSet()

_CLASS = "/sys/class/infiniband"
_INFINIBAND_CONTROLLER = 0x0207


def _device(facts: WorkloadFacts, name: str) -> Subject:
    return msgspec.structs.replace(facts.subject, device=name)


def _environment(facts: WorkloadFacts) -> dict[str, str]:
    process = facts.process
    return (process.environment if process is not None else None) or {}


def selected(hca: Hca, port: Port | None, wanted: str | None) -> bool | None:
    """Whether NCCL_IB_HCA names a device: a prefix, exact after `=`, all others after `^`.

    None when the variable is not set, so that nothing is said.
    """
    if not wanted:
        return None
    excludes = wanted.startswith("^")
    exact = wanted.lstrip("^").startswith("=")
    for name in wanted.lstrip("^=").split(","):
        device, _, number = name.strip().partition(":")
        fits = hca.name == device if exact else bool(device) and hca.name.startswith(device)
        if fits and (not number or port is None or port.number == number):
            return not excludes
    return excludes


def _given(facts: WorkloadFacts, hca: Hca) -> bool | None:
    """Whether the container has the device's node; None if that cannot be told."""
    if facts.verbs is None or not facts.verbs_whole or hca.uverbs is None:
        return None
    return hca.uverbs in {node.name for node in facts.verbs}


def _is_used(facts: WorkloadFacts, hca: Hca, port: Port) -> bool:
    """Whether the workload may use a port, as far as is known."""
    wanted = selected(hca, port, _environment(facts).get("NCCL_IB_HCA"))
    foreign = not hca.is_efa and any(other.is_efa for other in facts.hcas or ())
    return _given(facts, hca) is not False and wanted is not False and not foreign


def _ports(facts: WorkloadFacts) -> list[tuple[Hca, Port]]:
    return [(hca, port) for hca in facts.hcas or () for port in hca.ports]


def _alike(one: tuple[Hca, Port], other: tuple[Hca, Port]) -> bool:
    """Whether two ports belong to the same kind of NIC and the same kind of network."""
    boards = {one[0].board, other[0].board} - {None}
    return (
        one[0].model == other[0].model
        and one[1].link_layer == other[1].link_layer
        and len(boards) < 2
    )


def _card(hca: Hca) -> str:
    """Return what the functions and ports of one card share."""
    return hca.pci.address.rpartition(".")[0] if hca.pci is not None else hca.name


def _is_spare(facts: NodeFacts, hca: Hca, port: Port) -> bool:
    """Whether a down port is the uncabled second one of a card, as on the machine's other cards."""
    cards: dict[str, list[bool]] = {}
    for other, its in _ports(facts):
        if (other, its) != (hca, port):
            cards.setdefault(_card(other), []).append(bool(its.is_active))
    siblings = cards.pop(_card(hca), [])
    others_are_whole = any(len(states) > 1 and all(states) for states in cards.values())
    return any(siblings) and not others_are_whole


def _down_severity(facts: NodeFacts, hca: Hca, port: Port) -> Severity | None:
    if port.state in ("INIT", "ARMED"):
        return None if _is_used(facts, hca, port) else Severity.INFO
    others = [pair for pair in _ports(facts) if pair != (hca, port) and pair[1].is_active]
    peers = [pair for pair in others if _alike(pair, (hca, port))]
    if not _is_used(facts, hca, port) or _is_spare(facts, hca, port) or (others and not peers):
        return Severity.INFO
    if port.physical == "Disabled":
        return Severity.WARNING if _completes(facts, len(peers), 1) else Severity.INFO
    return None


@CHECKS.check(NodeFacts)
def ports_down(facts: NodeFacts) -> Iterator[Result]:
    """A port that its peers show to be needed carries no traffic."""
    for hca, port in _ports(facts):
        if port.is_active is not False:
            continue
        severity = _down_severity(facts, hca, port)
        if port.state == "INIT":
            why = "the link is up, but no subnet manager has configured it"
        elif port.physical == "Polling":
            why = "it looks for a peer: cable, transceiver or switch port"
        elif port.physical == "Disabled":
            why = "it was switched off by the administrator or never used"
        else:
            why = f"its physical state is {port.physical}"
        folder = f"{_CLASS}/{hca.name}/ports/{port.number}"
        yield finding(
            "nic-port-down",
            _device(facts, hca.name),
            f"Port {port.number} of {hca.name} is {port.state}: {why}.",
            Evidence(folder, "state", port.state),
            Evidence(folder, "phys_state", port.physical),
            values={"device": hca.name, "port": port.number},
            severity=severity,
        )


@CHECKS.check(PodAdapters)
def ports_down_in_log(adapters: PodAdapters) -> Iterator[Result]:
    """The same, where a pod's log shows the adapters."""
    for found in ports_down(adapters.facts):
        if isinstance(found, Draft) and found.subject.device in adapters.logs:
            log = f"log {adapters.logs[found.subject.device]}"
            evidence = (Evidence(log, found.subject.device, found.detail),)
            found = msgspec.structs.replace(found, evidence=evidence)
        yield found


def _active(facts: WorkloadFacts) -> list[tuple[Hca, Port]]:
    return [
        (hca, port) for hca, port in _ports(facts) if port.is_active and _is_used(facts, hca, port)
    ]


def _is_near_a_gpu(facts: NodeFacts, hca: Hca) -> bool | None:
    """Whether a NIC shares a PCIe switch with a GPU; None if the tree is not known."""
    if facts.topology is None:
        return None
    near = [facts.topology.near_nics(gpu) for gpu in facts.topology.gpus]
    if not any(near):
        return None
    return any(hca.name in names for names in near)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _completes(facts: NodeFacts, many: int, few: int) -> bool:
    """Whether the few only make up the full number of rails together with the many."""
    gpus = len(facts.gpus)
    if gpus:
        return many < gpus and many + few <= gpus
    return not _is_power_of_two(many) and _is_power_of_two(many + few)


@CHECKS.check(NodeFacts)
def slow_rate(facts: NodeFacts) -> Iterator[Result]:
    """An active port runs slower than the others of its kind."""
    active = [pair for pair in _active(facts) if pair[1].rate]
    for hca, port in active:
        peers = [pair for pair in active if _alike(pair, (hca, port))]
        rates = Counter(pair[1].rate for pair in peers)
        usual, many = max(rates.items(), key=lambda item: (item[1], item[0] or 0))
        few = rates[port.rate]
        if port.rate is None or usual is None or port.rate >= usual or many <= few:
            continue
        near = _is_near_a_gpu(facts, hca)
        is_rail = near if near is not None else _completes(facts, many, few)
        yield finding(
            "nic-slow-rate",
            _device(facts, hca.name),
            f"{hca.name} runs at {port.rate_text or port.rate}; {many} ports of its kind run at "
            f"{usual:g} Gb/s." + ("" if is_rail else " It may be a front-end or storage port."),
            Evidence(f"{_CLASS}/{hca.name}/ports/{port.number}", "rate", port.rate_text),
            values={"device": hca.name, "rate": f"{port.rate:g}", "expected": f"{usual:g}"},
            severity=None if is_rail else Severity.INFO,
        )


@CHECKS.check(NodeFacts)
def link_layer(facts: NodeFacts) -> Iterator[Result]:
    """One of the rails is set to another kind of network than the others."""
    rails = [
        (hca, port)
        for hca, port in _ports(facts)
        if port.link_layer in ("InfiniBand", "Ethernet")
        and port.physical != "Disabled"
        and _is_used(facts, hca, port)
    ]
    layers = Counter(port.link_layer for _, port in rails)
    if len(layers) < 2:
        return
    (usual, many), (other, few) = layers.most_common(2)
    if many <= few:
        return
    # Without GPUs to be near to, the card's model tells a rail from a front-end adapter.
    models = Counter(hca.model for hca, port in rails if port.link_layer == usual)
    model = models.most_common(1)[0][0]
    few = sum(port.link_layer == other and hca.model == model for hca, port in rails) or few
    for hca, port in rails:
        if port.link_layer != other or not port.is_active:
            continue
        named = selected(hca, port, _environment(facts).get("NCCL_IB_HCA"))
        near = _is_near_a_gpu(facts, hca)
        completes = hca.model == model and _completes(facts, many, few)
        is_rail = near if near is not None else bool(named) or completes
        if not is_rail:
            continue
        yield finding(
            "nic-link-layer-wrong",
            _device(facts, hca.name),
            f"{hca.name} is {other}, the {many} other rails are {usual}: NCCL uses one of the two.",
            Evidence(f"{_CLASS}/{hca.name}/ports/{port.number}", "link_layer", other),
            values={"device": hca.name, "layer": str(other), "expected": str(usual)},
            certainty=Certainty.LIKELY if near or named else Certainty.POSSIBLE,
        )


_FLAPPING = 10


@CHECKS.check(NodeFacts)
def flapping(facts: NodeFacts) -> Iterator[Result]:
    """The link went down between two observations; the count since boot proves nothing."""
    for hca, port in _ports(facts):
        downs = port.growth.get("link_downed", 0)
        if not downs:
            continue
        folder = f"{_CLASS}/{hca.name}/ports/{port.number}/counters"
        before = port.counters["link_downed"] - downs
        yield finding(
            "nic-link-flap",
            _device(facts, hca.name),
            f"The link of {hca.name} port {port.number} went down {downs} times between two "
            f"observations (link_downed {before} -> {port.counters['link_downed']}).",
            *(
                Evidence(folder, name, str(port.counters[name]), f"rose by {rise}")
                for name, rise in port.growth.items()
            ),
            values={"device": hca.name},
            severity=Severity.ERROR if downs > _FLAPPING else None,
        )


@CHECKS.check(WorkloadFacts)
def gid_index(facts: WorkloadFacts) -> Iterator[Result]:
    """NCCL_IB_GID_INDEX points at an entry that is empty, or at RoCE v1, on a RoCE device."""
    text = _environment(facts).get("NCCL_IB_GID_INDEX", "").strip()
    if not text.isdigit():
        return
    index = int(text)
    for hca, port in _active(facts):
        if not port.gids:
            continue
        gid = next((gid for gid in port.gids if gid.index == index), None)
        wrong = _wrong_gid(gid)
        if wrong is None:
            continue
        right = port.roce_v2_ipv4_index
        pid = facts.process.pid if facts.process else "self"
        yield finding(
            "gid-index-invalid",
            _device(facts, hca.name),
            f"NCCL_IB_GID_INDEX={index}, but entry {index} of {hca.name} {wrong}."
            + (f" Its RoCE v2 IPv4 GID is at {right}." if right is not None else "")
            + " The right index differs by device and pod.",
            Evidence(f"/proc/{pid}/environ", "NCCL_IB_GID_INDEX", text),
            Evidence(
                f"{_CLASS}/{hca.name}/ports/{port.number}/gids/{index}",
                None,
                gid.value if gid else None,
                gid.kind if gid else "no such entry",
            ),
            values={"index": text, "device": hca.name},
            severity=Severity.WARNING if gid is not None and not gid.is_empty else None,
        )


def _wrong_gid(gid: Gid | None) -> str | None:
    if gid is None:
        return "does not exist"
    if gid.is_empty:
        return "is empty"
    return "is a RoCE v1 GID, which no router forwards" if gid.kind == "IB/RoCE v1" else None


@CHECKS.check(WorkloadFacts)
def devices(facts: WorkloadFacts) -> Iterator[Result]:
    """sysfs shows RDMA devices that have no device node here, or none where one is expected."""
    if facts.hcas is None:
        return
    nodes = {node.name for node in facts.verbs or () if node.name.startswith("uverbs")}
    wanted = _environment(facts).get("NCCL_IB_HCA")
    if not facts.hcas:
        yield from _no_device(facts, nodes, wanted)
    elif not nodes and facts.verbs is not None and facts.verbs_whole:
        yield from _no_node(facts)
    elif facts.verbs_whole:
        for hca in facts.hcas:
            must = facts.rdma_shared is False or (
                selected(hca, None, wanted) and wanted and not wanted.startswith("^")
            )
            if must and _given(facts, hca) is False:
                yield _missing_node(facts, hca)


@CHECKS.check(WorkloadFacts)
def closed_nodes(facts: WorkloadFacts) -> Iterator[Result]:
    """A device node is here, but the process may not open it: cgroup, mode or owner."""
    hcas = {hca.uverbs: hca.name for hca in facts.hcas or () if hca.uverbs}
    uid = facts.process.uid if facts.process is not None else None
    for node in facts.verbs or ():
        why = _why_closed(node, uid) if node.name.startswith("uverbs") else None
        if why is None:
            continue
        path = f"/dev/infiniband/{node.name}"
        mode = None if node.mode is None else f"{node.mode:04o}"
        yield finding(
            "rdma-device-open-failed",
            _device(facts, hcas.get(node.name, node.name)),
            f"{path} is here, but cannot be opened for reading and writing: {why}.",
            Evidence(path, "mode", mode, f"owner {node.uid}:{node.gid}"),
            values={"devices": hcas.get(node.name, node.name), "hosts": facts.subject.name},
        )


def _why_closed(node: VerbsNode, uid: int | None) -> str | None:
    if node.opened in ("EPERM", "EACCES"):
        return f"{node.opened}, " + (
            "the container's device cgroup does not allow it"
            if node.opened == "EPERM"
            else "its owner and mode do not allow it"
        )
    if node.opened is not None or node.mode is None or not uid or uid == node.uid:
        return None
    return (
        None if node.mode & 0o066 else f"mode {node.mode:04o} is for its owner only, not uid {uid}"
    )


def _no_device(facts: WorkloadFacts, nodes: set[str], wanted: str | None) -> Iterator[Result]:
    controllers = [d for d in facts.pci if d.class_ >> 8 == _INFINIBAND_CONTROLLER]
    named = wanted and not wanted.startswith("^")
    if not (controllers or named or nodes):
        return
    if controllers:
        why = f"{len(controllers)} InfiniBand controllers are on the PCI bus"
    else:
        why = f"NCCL_IB_HCA={wanted} names some" if named else f"{min(nodes)} is in /dev/infiniband"
    yield finding(
        "rdma-device-absent",
        facts.subject,
        f"{_CLASS} has no device, although {why}.",
        Evidence(_CLASS, None, "empty or absent"),
        values={"where": facts.subject.name},
        severity=None if named or nodes else Severity.WARNING,
    )


def _no_node(facts: WorkloadFacts) -> Iterator[Result]:
    assert facts.hcas
    names = ", ".join(hca.name for hca in facts.hcas)
    yield finding(
        "rdma-device-node-missing",
        facts.subject,
        f"sysfs shows {names}, but /dev/infiniband has no uverbs node: no program here can open "
        "an RDMA device. In a container, the pod was not given one.",
        Evidence("/dev/infiniband", None, ", ".join(n.name for n in facts.verbs or ()) or "absent"),
        Evidence(_CLASS, None, names),
        values={"device": names},
    )
    yield finding(
        "rdma-device-absent",
        facts.subject,
        "No RDMA device can be used here.",
        Evidence("/dev/infiniband", None, "no uverbs node"),
        values={"where": facts.subject.name},
        severity=Severity.INFO,
    )


def _missing_node(facts: WorkloadFacts, hca: Hca) -> Result:
    return finding(
        "rdma-device-node-missing",
        _device(facts, hca.name),
        f"{hca.name} is visible in sysfs, but /dev/infiniband/{hca.uverbs} is not here.",
        Evidence("/dev/infiniband", hca.uverbs, "absent"),
        values={"device": hca.name},
    )


@CHECKS.check(WorkloadFacts)
def foreign_verbs(facts: WorkloadFacts) -> Iterator[Result]:
    """Device nodes of other vendors beside those of EFA make its provider fail."""
    hcas = {hca.uverbs: hca for hca in facts.hcas or () if hca.uverbs}
    given = [hcas[node.name] for node in facts.verbs or () if node.name in hcas]
    efa = [hca for hca in given if hca.is_efa]
    foreign = [hca for hca in given if not hca.is_efa]
    if not efa or not foreign:
        return
    names = ", ".join(f"{hca.uverbs} ({hca.name})" for hca in foreign)
    yield finding(
        "efa-foreign-uverbs",
        facts.subject,
        f"/dev/infiniband holds {names} beside {len(efa)} EFA devices. libfabric's EFA provider "
        "fails on them; mounting the whole directory from the host brings them in.",
        *(Evidence(f"/dev/infiniband/{hca.uverbs}", "ibdev", hca.name) for hca in foreign),
        values={"devices": names},
        severity=Severity.INFO if facts.in_container is False else None,
    )


def _wants_gpudirect(facts: NodeFacts) -> bool:
    """Whether this machine has GPUs and NICs that could use GPUDirect RDMA by peer memory."""
    return (
        any(gpu.is_data_center for gpu in facts.gpus)
        and bool(facts.hcas)
        and not any(hca.is_efa for hca in facts.hcas or ())
    )


def _why_no_dma_buf(facts: NodeFacts) -> str:
    state = facts.gpudirect
    if state.open_module is False:
        return f"the kernel module {state.driver or ''} is the proprietary one".replace("  ", " ")
    if state.kernel is not None and state.kernel < (5, 12):
        return f"kernel {state.kernel_text} is older than 5.12"
    return f"driver {state.driver} is older than 515"


@CHECKS.check(NodeFacts)
def gpudirect(facts: NodeFacts) -> Iterator[Result]:
    """NICs cannot reach GPU memory: neither DMA-BUF nor a registered peer-memory module."""
    state = facts.gpudirect
    if not _wants_gpudirect(facts) or state.driver is None:
        return
    evidence = (
        Evidence("/proc/driver/nvidia/version", None, state.driver, _flavour(state.open_module)),
        Evidence("/proc/sys/kernel/osrelease", None, state.kernel_text),
        Evidence("/sys/module/nvidia_peermem", None, _loaded(state.peermem_loaded)),
    )
    if state.dma_buf:
        if state.peermem_loaded and state.peermem_registered is False:
            yield _not_registered(facts, evidence)
        return
    if state.peermem_loaded is False:
        why = "the nvidia-peermem module is not loaded"
        yield _peermem_missing(facts, evidence)
    elif state.peermem_loaded and state.peermem_registered is False:
        why = "nvidia-peermem is loaded but not registered with the RDMA core"
        yield _not_registered(facts, evidence)
    elif state.peermem_loaded is None:
        yield Unknown("GPUDirect RDMA", "whether nvidia-peermem is loaded could not be read")
        return
    else:
        return
    if state.dma_buf is None:
        yield Unknown("GPUDirect RDMA by DMA-BUF", "kernel or module flavour could not be read")
        return
    yield finding(
        "gdr-unavailable",
        facts.subject,
        f"GPUDirect RDMA cannot work: no DMA-BUF, since {_why_no_dma_buf(facts)}, and {why}. Every "
        "RDMA transfer is staged through host memory.",
        *evidence,
        values={"why": why},
    )


def _flavour(is_open: bool | None) -> str:
    if is_open is None:
        return "flavour unknown"
    return "open kernel module" if is_open else "proprietary kernel module"


def _loaded(loaded: bool | None) -> str:
    return "unknown" if loaded is None else ("loaded" if loaded else "not loaded")


def _not_registered(facts: NodeFacts, evidence: tuple[Evidence, ...]) -> Result:
    replaced = facts.gpudirect.dma_buf is True
    return finding(
        "peermem-not-registered",
        facts.subject,
        "nvidia-peermem is loaded, but /sys/kernel/mm/memory_peers has no nv_mem: it was built "
        "without the RDMA stack's peer-memory symbols."
        + (" DMA-BUF works here and takes its place." if replaced else ""),
        *evidence,
        severity=Severity.INFO if replaced else None,
    )


def _peermem_missing(facts: NodeFacts, evidence: tuple[Evidence, ...]) -> Result:
    certain = facts.gpudirect.dma_buf is False
    return finding(
        "peermem-missing",
        facts.subject,
        "nvidia-peermem is not loaded"
        + (
            ", and this driver and kernel have no DMA-BUF export instead."
            if certain
            else "; whether DMA-BUF takes its place is not known."
        ),
        *evidence,
        severity=Severity.INFO if certain else None,
        certainty=Certainty.CERTAIN if certain else Certainty.POSSIBLE,
    )
