"""The reading of a host itself: what does not answer, and what this user may not see.

A driver, a kubelet and a file system that hang are three conditions with a finding each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.node.allotments import KubeletSilence
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.system import Waiting
from gpudoctor.report import Evidence, Severity, Unknown

CHECKS = CheckSet()

_SHOWN = 5


_DRIVER = ("/proc/driver/nvidia", "/dev/nvidia", "/sys/module/nvidia", "cmd:nvidia-smi")


def waiting(processes: Iterable[Waiting]) -> Iterator[Evidence]:
    """Tell of the processes that wait in the kernel: they show who hangs."""
    for process in list(processes)[:_SHOWN]:
        name = process.name or "a process"
        yield Evidence(f"process {process.pid}", "state", "D", f"{name} waits in the kernel")


@CHECKS.check(NodeFacts)
def hung_driver(facts: NodeFacts) -> Iterator[Result]:
    """A file or program of the NVIDIA driver does not come back."""
    stuck = [path for path in facts.stuck if path.startswith(_DRIVER)]
    if not stuck:
        return
    names = [path.removeprefix("cmd:") for path in stuck[:_SHOWN]]
    yield finding(
        "driver-not-answering",
        facts.subject,
        f"The NVIDIA driver did not answer in time: {', '.join(names)}. What was asked waits "
        "inside the driver, and so will every program that uses a GPU here.",
        *(Evidence(name, None, None, "no answer") for name in names),
        *waiting(facts.waiting),
        values={"what": names[0]},
    )
    for name in names:
        yield Unknown(name, "did not answer in time")


@CHECKS.check(KubeletSilence)
def hung_kubelet(silence: KubeletSilence) -> Iterator[Result]:
    """The kubelet takes the connection and does not answer."""
    yield finding(
        "kubelet-not-answering",
        silence.subject,
        f"The kubelet's socket {silence.socket} is there and did not answer in time. Which GPUs "
        "and NICs it gave to which container is unknown, and new pods will wait here too.",
        Evidence(silence.socket, "List", None, silence.details),
    )


@CHECKS.check(NodeFacts)
def unreadable(facts: NodeFacts) -> Iterator[Result]:
    """Files or commands that hang, or that were refused."""
    stuck = [path for path in facts.stuck if not path.startswith(_DRIVER)]
    if stuck:
        first = stuck[0].removeprefix("cmd:")
        yield finding(
            "host-facts-unreadable",
            facts.subject,
            f"{len(stuck)} readings did not come back in time, first {first}: a driver or "
            "file system hangs, and programs that need it will hang too.",
            *(Evidence(path, None, None, "no answer") for path in stuck[:_SHOWN]),
            *waiting(facts.waiting),
            values={"what": first, "state": "does not answer"},
        )
        for path in stuck[:_SHOWN]:
            yield Unknown(path, "did not answer in time")
    elif facts.refused:
        yield finding(
            "host-facts-unreadable",
            facts.subject,
            f"Files of this host that this user may not read: {', '.join(facts.refused[:_SHOWN])}"
            f" ({len(facts.refused)} in all). Run it as root, or with the capability that guards "
            "them.",
            *(Evidence(path, None, None, "denied") for path in facts.refused[:_SHOWN]),
            values={"what": facts.refused[0], "state": "may not be read"},
            severity=Severity.INFO,
        )
