"""`explain` for `kubectl describe pod|node` text."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import described
from gpudoctor.readings import Format, Reading, kubernetes, kubernetes_text
from gpudoctor.report import Unknown
from gpudoctor.sources.text import TextInput

_LINE = re.compile(
    r"^[ \t>|]*(?:Name|Namespace|Node|Roles|Labels|Annotations|Status|IP|IPs|Containers|Image|"
    r"Image ID|State|Last State|Ready|Restart Count|Limits|Requests|Environment|Mounts|Conditions|"
    r"Volumes|QoS Class|Node-Selectors|Tolerations|Events|Capacity|Allocatable|System Info|Taints|"
    r"Unschedulable|Non-terminated Pods|Allocated resources):(?:\s|$)",
    re.MULTILINE,
)
_NOT_PRINTED = (
    Unknown(
        "security context, affinity, resource claims, scheduler and restart policy of the pod",
        "kubectl describe does not print them; kubectl get pod -o yaml does",
    ),
)


def _matches(head: str) -> int:
    return len(_LINE.findall(head)) if described.starts(head) else 0


def _read(text: TextInput) -> Reading:
    found = described.read(text.text())
    if not found.subjects:
        raise InputError(f"{text.name}: describes no pod and no node")
    # The described objects come last: of two pods of one name, the last is taken.
    read_from = kubernetes_text.as_bundle((*found.others, *found.subjects), found.now)
    source = kubernetes.Input(read_from)
    names = dict.fromkeys(
        (subject["kind"], subject["metadata"].get("namespace"), subject["metadata"]["name"])
        for subject in found.subjects
    )
    pods = [
        kubernetes.find_pod(source.cluster, name, namespace)
        for kind, namespace, name in names
        if kind == "Pod"
    ]
    nodes = [name for kind, _, name in names if kind == "Node"]
    # Beside a pod, a node is what the pod is judged by, unless the text is about nodes alone.
    reading = kubernetes_text.read_subjects(source, pods, [] if pods else nodes)
    missing = _NOT_PRINTED if pods else ()
    return msgspec.structs.replace(
        kubernetes_text.undated(reading), unknown=(*reading.unknown, *missing)
    )


FORMAT = Format("kubectl-describe", _matches, _read)
