"""The driver's device nodes, and CDI specs that no longer fit what is on the host."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.facts.node.driver_files import CdiSpec
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.report import Evidence, Severity, Unknown

CHECKS = CheckSet()

_UVM = "/dev/nvidia-uvm"
_SHOWN = 8


@CHECKS.check(NodeFacts)
def uvm_missing(facts: NodeFacts) -> Iterator[Result]:
    """The driver serves GPUs here, and CUDA's own device is not there.

    In a container it is the runtime that gives it, for programs that compute only.
    """
    files = facts.driver_files
    if files.control is not True or files.uvm is not False or facts.in_container is True:
        return
    why = {
        False: "the kernel module nvidia_uvm is not loaded",
        True: "the kernel module nvidia_uvm is loaded, and nobody made its node",
        None: "whether the kernel module nvidia_uvm is loaded is not known",
    }[files.uvm_module]
    yield finding(
        "nvidia-uvm-missing",
        facts.subject,
        f"{_UVM} does not exist: {why}. nvidia-smi works without it; CUDA does not start (error"
        " 999 or 304). As root, a CUDA program or nvidia-modprobe loads it when first needed; for"
        " containers somebody must have done so before.",
        Evidence(_UVM, None, None, "does not exist"),
        Evidence("/sys/module/nvidia_uvm", None, None, _STATE[files.uvm_module]),
        values={"why": why},
        # Until the first CUDA program it is like that on a good host, too.
        severity=None if files.uvm_module is True else Severity.INFO,
    )


_STATE = {False: "does not exist", True: "there", None: "not known"}


@CHECKS.check(NodeFacts)
def stale_specs(facts: NodeFacts) -> Iterator[Result]:
    """A CDI spec names a driver release or a GPU's node that is not what is here now."""
    files, driver = facts.driver_files, facts.gpudirect.driver
    if facts.in_container is True:
        return
    if files.unsure is not None:
        yield Unknown(
            "the CDI specs in force",
            f"{files.unsure}; what is written there takes the place of the specs in /etc/cdi",
        )
    if files.unread and (driver is not None or files.control is True):
        yield Unknown("whether the CDI specs fit this host", "; ".join(files.unread))
    for spec in files.specs:
        if driver is not None and spec.version is not None and spec.version != driver:
            yield _stale(
                facts,
                spec,
                f"it mounts the libraries of driver {spec.version}, and {driver} is loaded",
                Evidence(spec.path, "hostPath", spec.library),
                Evidence("/sys/module/nvidia/version", None, driver),
            )
        elif files.control is True and files.gpu_nodes is not None and spec.nodes:
            yield from _of_nodes(facts, spec, spec.nodes, files.gpu_nodes)


def _of_nodes(
    facts: NodeFacts, spec: CdiSpec, named: tuple[str, ...], there: tuple[str, ...]
) -> Iterator[Draft]:
    gone = [name for name in named if name not in there]
    new = [name for name in there if name not in named]
    if gone:
        yield _stale(
            facts,
            spec,
            f"it names {_nodes(gone)}, which {'do' if len(gone) > 1 else 'does'} not exist",
            Evidence(spec.path, "deviceNodes", _nodes(gone)),
        )
    elif new:
        yield _stale(
            facts,
            spec,
            f"it does not name {_nodes(new)}, which {'are' if len(new) > 1 else 'is'} there",
            Evidence(spec.path, "deviceNodes", _nodes(named)),
            severity=Severity.WARNING,
        )


def _nodes(found: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(f"/dev/{name}" for name in found[:_SHOWN]) + more


def _stale(
    facts: NodeFacts,
    spec: CdiSpec,
    why: str,
    *evidence: Evidence,
    severity: Severity | None = None,
) -> Draft:
    return finding(
        "cdi-spec-stale",
        facts.subject,
        f"The CDI spec {spec.path} was written for another state of this host: {why}. Containers"
        " that get their GPU by it do not start, or start without what has changed.",
        *evidence,
        values={"path": spec.path, "why": why},
        severity=severity,
    )
