"""Pods as far as the network goes: network namespaces on one bridge, with real interfaces."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from tests import parts

_PREFIX = "10.77.0."


class Pods:
    """Namespaces `gd<pid>-0` and so on, each with eth0 on a bridge that only they share."""

    def __init__(self, name: str, count: int) -> None:
        self._ip = parts.program("ip", "iproute2")
        self._name, self._count = name, count

    def address(self, pod: int) -> str:
        """Return the pod's address."""
        return f"{_PREFIX}{pod + 10}"

    def command(self, pod: int) -> list[str]:
        """Return what stands before a command to have it run in the pod's namespace."""
        return [self._ip, "netns", "exec", f"{self._name}-{pod}"]

    def ip(self, pod: int, *words: str) -> None:
        """Run `ip` in the pod's namespace."""
        self._run("-n", f"{self._name}-{pod}", *words)

    def _run(self, *words: str) -> None:
        ended = subprocess.run([self._ip, *words], capture_output=True, text=True, check=False)
        if ended.returncode:
            parts.missing(f"network namespaces (ip {' '.join(words)}: {ended.stderr.strip()})")

    def _make(self) -> None:
        switch = f"{self._name}-switch"
        self._run("netns", "add", switch)
        self._run("-n", switch, "link", "add", "br0", "type", "bridge")
        self._run("-n", switch, "link", "set", "br0", "up", "mtu", "9000")
        for pod in range(self._count):
            self._run("netns", "add", f"{self._name}-{pod}")
            self.ip(pod, "link", "set", "lo", "up")
            self.ip(
                pod, "link", "add", "eth0", "type", "veth",
                "peer", "name", f"port{pod}", "netns", switch,
            )  # fmt: skip
            self._run("-n", switch, "link", "set", f"port{pod}", "master", "br0", "up")
            self.ip(pod, "address", "add", f"{self.address(pod)}/24", "dev", "eth0")
            self.ip(pod, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for name in [*(f"{self._name}-{pod}" for pod in range(self._count)),
                     f"{self._name}-switch"]:  # fmt: skip
            subprocess.run([self._ip, "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def pods(count: int) -> Iterator[Pods]:
    """Make so many namespaces; they and their interfaces are gone afterwards."""
    if os.getuid():
        parts.missing("root, for network namespaces")
    made = Pods(f"gd{os.getpid()}", count)
    try:
        made._make()
        yield made
    finally:
        made._remove()
