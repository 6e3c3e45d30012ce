"""The kubelet's pod-resources socket: which devices and CPUs it gave to which container.

Asked in a short-lived child, since gRPC is heavy and the kubelet may not answer. The answer is
the JSON form of `v1.ListPodResourcesResponse` (as `grpcurl` prints it), or
`{"error": {"code": gRPC status name, "details": …}}`.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
"""

from __future__ import annotations

import json

from gpudoctor.sources.child import ChildSource

FOLDER = "/var/lib/kubelet/pod-resources"
"""To be mounted as a folder: the kubelet makes the socket anew when it restarts."""

NAME = "kubelet.sock"
_START_S = 2.0
"""What starting the child may take on top of the kubelet's own bound."""

_SOURCE = ChildSource("gpudoctor.sources.pod_resources_child", ("PATH", "LANG"))


def read_pod_resources(deadline_s: float, root: str = "") -> str:
    """Return the kubelet's answer; `root` is where the host's root is mounted."""
    socket = f"{root.rstrip('/')}{FOLDER}/{NAME}"
    answer = _SOURCE.ask(deadline_s + _START_S, socket, f"{deadline_s:g}")
    if isinstance(answer, str):
        return _error("NOT_ASKED", answer)
    if not answer.in_time:
        how = "had to be killed" if answer.ended else "hangs and cannot be ended"
        return _error("DEADLINE_EXCEEDED", f"the reading process {how}")
    return answer.text


def is_error(answer: str) -> bool:
    """Whether the answer is the reason why there is none."""
    return answer.startswith('{"error"')


def _error(code: str, details: str) -> str:
    return json.dumps({"error": {"code": code, "details": details}})
