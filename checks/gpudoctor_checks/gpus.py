"""GPUs as NVML describes them: lost, waiting for a reset, slowed down, half connected."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.node.gpu import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    FabricState,
    Gpu,
    NodeGpus,
    NotAvailable,
)
from gpudoctor.facts.node.kernel_log import RECOVERY, RecoveryAction
from gpudoctor.facts.node.xid import Action
from gpudoctor.report import Certainty, Evidence, Severity, Subject, Unknown
from gpudoctor_checks.host import waiting

CHECKS = CheckSet()

_NVML = "NVML"
_IDLE = 0x1
_SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake from outside the board",
}
_FABRIC_WORDS = {1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_COMPLETED = 3
_PROHIBITED = 2
_BRIDGED = re.compile(r"PCIE|\bNVL\b|\bA30\b|\bA40\b|RTX|ACTIVE", re.IGNORECASE)


@CHECKS.check(NodeGpus)
def answers(gpus: NodeGpus) -> Iterator[Result]:
    """NVML does not start, hangs, or does not let us at a GPU."""
    if gpus.failure is not None:
        yield _no_start(gpus, gpus.failure)
    if gpus.hung_in is not None:
        yield _hangs(gpus, gpus.hung_in)
        yield Unknown(f"NVML: {gpus.hung_in} and what follows", "no answer in time")
    for gpu in gpus.gpus:
        if gpu.handle is not None and gpu.handle.code not in (GPU_IS_LOST, RESET_REQUIRED):
            yield Unknown(f"NVML: {gpu.label}", gpu.handle.why)


def _hangs(gpus: NodeGpus, call: str) -> Draft:
    stuck = (
        "and its process cannot be killed: it waits inside the driver, and so will every program "
        "that uses a GPU here. It is not asked again until that call comes back."
    )
    slow = (
        "and was ended. A driver that starts its GPUs anew for each program (persistence mode "
        "off) can be that slow on a large machine; one that stays silent hangs."
    )
    return finding(
        "driver-not-answering",
        gpus.subject,
        f"The NVIDIA driver did not answer in time ({call}), {slow if gpus.ended else stuck}",
        Evidence(_NVML, call, None, "no answer" if gpus.ended else "not even ended by SIGKILL"),
        *waiting(gpus.waiting),
        values={"what": f"NVML: {call}"},
        certainty=Certainty.LIKELY if gpus.ended else Certainty.CERTAIN,
        severity=Severity.WARNING if gpus.ended else None,
    )


def _no_start(gpus: NodeGpus, failure: NotAvailable) -> Result:
    name = {DRIVER_NOT_LOADED: "driver-not-loaded", VERSION_MISMATCH: "driver-library-mismatch"}
    if failure.code not in name:
        return Unknown("GPUs (NVML)", f"NVML does not start: {failure.why}")
    return finding(
        name[failure.code],
        gpus.subject,
        "The driver's library is there and NVML does not start.",
        Evidence(_NVML, "nvmlInit", str(failure.code), failure.why),
        values={"node": gpus.subject.name},
    )


@CHECKS.check(NodeGpus)
def lost_or_asking_for_recovery(gpus: NodeGpus) -> Iterator[Result]:
    """A GPU is off the bus, or the driver recommends a reset or a reboot."""
    for gpu in gpus.gpus:
        codes = {value.code for value in _refusals(gpu)}
        if GPU_IS_LOST in codes:
            yield _about(
                gpus, gpu, "gpu-lost", "NVML says that the GPU is lost.",
                Evidence(_NVML, gpu.label, str(GPU_IS_LOST), "GPU is lost"),
            )  # fmt: skip
            continue
        action = _recovery(gpu)
        if RESET_REQUIRED in codes:
            action = max(action, Action.RESET)
        if action is not Action.NONE:
            name = "gpu-needs-reboot" if action is Action.REBOOT else "gpu-needs-reset"
            yield _about(
                gpus, gpu, name, "The driver recommends it for this GPU.",
                Evidence(_NVML, "recovery action", str(gpu.recovery_action), action.word),
            )  # fmt: skip


def _refusals(gpu: Gpu) -> Iterator[NotAvailable]:
    for name in gpu.__struct_fields__:
        value = getattr(gpu, name)
        if isinstance(value, NotAvailable):
            yield value


def _recovery(gpu: Gpu) -> Action:
    actions = tuple(RecoveryAction)
    number = gpu.recovery_action
    if isinstance(number, int) and 0 <= number < len(actions):
        return RECOVERY[actions[number]]
    return Action.NONE


@CHECKS.check(NodeGpus)
def memory_repair(gpus: NodeGpus) -> Iterator[Result]:
    """Memory is marked for repair, or could not be repaired."""
    for gpu in gpus.gpus:
        rows = gpu.remapped_rows
        failed = not isinstance(rows, NotAvailable) and rows.failed
        pending = not isinstance(rows, NotAvailable) and rows.pending
        if failed or gpu.sram_threshold is True:
            what = "row remapping failed" if failed else "the SRAM error threshold is exceeded"
            yield _about(
                gpus, gpu, "gpu-memory-repair-failed", f"NVML says that {what}.",
                Evidence(_NVML, "remapped rows" if failed else "SRAM threshold", "yes"),
                *_spares(gpu),
            )  # fmt: skip
        elif pending or gpu.retired_pending is True:
            yield _about(
                gpus, gpu, "gpu-memory-repair-pending",
                "NVML has a repair that waits for the next reset.",
                Evidence(_NVML, "remapped rows" if pending else "retired pages", "pending"),
            )  # fmt: skip
        elif isinstance(gpu.ecc_uncorrected, int) and gpu.ecc_uncorrected:
            yield msgspec.structs.replace(
                _about(
                    gpus, gpu, "gpu-uncorrectable-ecc",
                    "Since the driver was loaded, or the GPU reset, its memory had"
                    f" {gpu.ecc_uncorrected} errors that could not be corrected. What used it then"
                    f" was stopped; {_repair(gpu)}.",
                    Evidence(_NVML, "volatile uncorrected ECC errors", str(gpu.ecc_uncorrected)),
                ),
                severity=Severity.WARNING,
            )  # fmt: skip


def _repair(gpu: Gpu) -> str:
    if isinstance(gpu.remapped_rows, NotAvailable) and isinstance(
        gpu.retired_pending, NotAvailable
    ):
        return "whether a repair waits for a reset is not said: nvidia-smi -q tells"
    return "no repair waits"


def _spares(gpu: Gpu) -> Iterator[Evidence]:
    """Tell of the banks that have no spare row left; their count alone is no fault."""
    if not isinstance(gpu.row_histogram, NotAvailable):
        spares = gpu.row_histogram
        yield Evidence(_NVML, "row remapper histogram", f"{spares.none} banks without a spare row",
                       f"{spares.few} with few")  # fmt: skip


@CHECKS.check(NodeGpus)
def slowed_down(gpus: NodeGpus) -> Iterator[Result]:
    """Clocks are held down by heat, by the board's power or by a brake from outside.

    A software power cap is normal under load, and low clocks at idle are.
    """
    for gpu in gpus.gpus:
        if isinstance(gpu.clock_reasons, NotAvailable):
            continue
        reasons = [word for bit, word in _SLOWED.items() if gpu.clock_reasons & bit]
        if reasons:
            degrees = f" at {gpu.temperature} C" if isinstance(gpu.temperature, int) else ""
            yield _about(
                gpus, gpu, "gpu-clocks-slowed", f"Clocks are held down{degrees}:"
                f" {', '.join(reasons)}.",
                Evidence(_NVML, "clocks event reasons", f"{gpu.clock_reasons:#x}"),
                *_clock(gpu),
                reason=reasons[0],
            )  # fmt: skip


def _clock(gpu: Gpu) -> Iterator[Evidence]:
    """Tell how far the clock is down, where NVML says it."""
    clock = None if isinstance(gpu.clocks, NotAvailable) else gpu.clocks.get("sm")
    if clock is not None and clock.current is not None:
        yield Evidence(_NVML, "SM clock", f"{clock.current} MHz", f"at most {clock.most} MHz")


@CHECKS.check(NodeGpus)
def pcie_link(gpus: NodeGpus) -> Iterator[Result]:
    """The PCIe link is narrower than GPU and slot can, or slower while the GPU works."""
    for gpu in gpus.gpus:
        width = _below(gpu.pcie_width, gpu.pcie_max_width)
        speed = _below(gpu.pcie_generation, gpu.pcie_max_generation)
        if width:
            found = f"x{gpu.pcie_width} of x{gpu.pcie_max_width} lanes"
        elif speed and _works(gpu):
            found = f"PCIe generation {gpu.pcie_generation} of {gpu.pcie_max_generation}"
        else:
            continue
        # The subject is the one that the rule over sysfs has: one condition, one finding.
        subject = msgspec.structs.replace(gpus.subject, device=gpu.label)
        yield finding(
            "gpu-pcie-degraded",
            subject,
            f"The PCIe link of GPU {gpu.label} runs at {found}"
            + (", at any load." if width else " while the GPU is busy."),
            Evidence(_NVML, "PCIe link", found),
            values={"device": gpu.label, "link": found},
            certainty=Certainty.CERTAIN if width else Certainty.LIKELY,
        )


def _below(now: int | NotAvailable, most: int | NotAvailable) -> bool:
    return isinstance(now, int) and isinstance(most, int) and 0 < now < most


def _works(gpu: Gpu) -> bool:
    """A GPU at idle lowers its link's speed to save power, so only a busy one counts."""
    return isinstance(gpu.clock_reasons, int) and not gpu.clock_reasons & _IDLE


@CHECKS.check(NodeGpus)
def links(gpus: NodeGpus) -> Iterator[Result]:
    """A GPU has fewer active NVLinks than others of its model in the node.

    Cards that bridges connect are left out: there only some pairs have links, by design.
    """
    most: dict[str, int] = {}
    for gpu in gpus.gpus:
        most[str(gpu.name)] = max(most.get(str(gpu.name), 0), _active(gpu))
    for gpu in gpus.gpus:
        active, usual = _active(gpu), most[str(gpu.name)]
        if isinstance(gpu.links, NotAvailable) or not gpu.links or active == usual:
            continue
        if _BRIDGED.search(str(gpu.name)) or _in_mig_mode(gpu):
            continue
        down = [str(number) for number, link in enumerate(gpu.links) if not link.active]
        yield _about(
            gpus, gpu, "nvlink-down",
            f"{active} of its NVLinks are active, {usual} on other GPUs of this model."
            f" Down: {', '.join(down)}.",
            Evidence(_NVML, "NVLink state", f"{active} active", f"others have {usual}"),
            *_link_errors(gpu),
            active=str(active), usual=str(usual),
        )  # fmt: skip


def _link_errors(gpu: Gpu) -> Iterator[Evidence]:
    """Tell what the links that are down counted; bins of corrected errors say nothing of it."""
    for number, link in enumerate(() if isinstance(gpu.links, NotAvailable) else gpu.links):
        counted = [
            f"{name} {count}"
            for name, count in link.errors.items()
            if count and not name.startswith(("fec_bin", "symbol_ber", "effective_ber"))
        ]
        if counted and not link.active:
            yield Evidence(_NVML, f"NVLink {number}", ", ".join(counted), "since the driver loaded")


def _in_mig_mode(gpu: Gpu) -> bool:
    return not isinstance(gpu.mig_mode, NotAvailable) and gpu.mig_mode.current


def _active(gpu: Gpu) -> int:
    return 0 if isinstance(gpu.links, NotAvailable) else sum(link.active for link in gpu.links)


@CHECKS.check(NodeGpus)
def fabric(gpus: NodeGpus) -> Iterator[Result]:
    """A GPU of a machine with NVSwitch is not registered with the fabric."""
    waiting = []
    for gpu in gpus.gpus:
        if isinstance(gpu.fabric, NotAvailable) or gpu.fabric.state not in _FABRIC_WORDS:
            continue
        state, status = gpu.fabric.state, gpu.fabric.status
        if state != _FABRIC_COMPLETED or status != 0:
            word = _FABRIC_WORDS[state]
            waiting.append(
                Evidence(_NVML, f"fabric state of {gpu.label}", word, f"status {status}")
            )
    if waiting:
        yield finding(
            "fabric-not-ready",
            gpus.subject,
            f"{len(waiting)} of {len(gpus.gpus)} GPUs are not registered with the NVLink fabric.",
            *waiting,
        )


@CHECKS.check(NodeGpus)
def fabric_health(gpus: NodeGpus) -> Iterator[Result]:
    """A registered GPU whose fabric says itself that it is not well."""
    unwell = [
        (gpu, gpu.fabric)
        for gpu in gpus.gpus
        if not isinstance(gpu.fabric, NotAvailable)
        and gpu.fabric.state == _FABRIC_COMPLETED
        and gpu.fabric.status == 0
        and gpu.fabric.complaints
    ]
    if not unwell:
        return
    said = dict.fromkeys(word for _, fabric in unwell for word in fabric.complaints)
    labels = ", ".join(gpu.label for gpu, _ in unwell)
    yield finding(
        "nvlink-fabric-degraded",
        gpus.subject,
        f"The NVLink fabric of {len(unwell)} of {len(gpus.gpus)} GPUs ({labels}) reports: "
        f"{'; '.join(said)}.",
        *(
            Evidence(
                _NVML, f"fabric health of {gpu.label}", _mask(fabric), "; ".join(fabric.complaints)
            )
            for gpu, fabric in unwell
        ),
        values={"gpu": labels, "reason": "; ".join(said)},
    )


def _mask(fabric: FabricState) -> str:
    mask = "" if fabric.health_mask is None else f"mask {fabric.health_mask:#x}"
    summary = "" if fabric.health_summary is None else f"summary {fabric.health_summary}"
    return ", ".join(part for part in (mask, summary) if part)


@CHECKS.check(NodeGpus)
def compute_mode(gpus: NodeGpus) -> Iterator[Result]:
    """The GPU's compute mode lets no program in."""
    for gpu in gpus.gpus:
        if gpu.compute_mode == _PROHIBITED:
            yield _about(
                gpus, gpu, "gpu-busy", "Its compute mode is Prohibited: no program may use it.",
                Evidence(_NVML, "compute mode", "Prohibited"),
            )  # fmt: skip


def _about(
    gpus: NodeGpus,
    gpu: Gpu,
    name: str,
    detail: str,
    *evidence: Evidence,
    certainty: Certainty = Certainty.CERTAIN,
    **values: str,
) -> Draft:
    """Draft a finding about one GPU; its address is the device, without the function as in Xids."""
    device = gpu.label.rpartition(".")[0] if ":" in gpu.label else gpu.label
    uuid = f" ({gpu.uuid})" if isinstance(gpu.uuid, str) else ""
    subject = Subject(gpus.subject.kind, gpus.subject.name, gpus.subject.namespace, device=device)
    shown = device.removeprefix("GPU ")  # titles say that it is one
    common = {"device": f"{shown}{uuid}", "node": gpus.subject.name, "codes": "none read"}
    return finding(
        name,
        subject,
        detail,
        *evidence,
        values=common | values,
        certainty=certainty,
    )
