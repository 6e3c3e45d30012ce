"""Whether someone is at work on a node's driver: by the labels that operators keep on it.

An open handle on the driver, as NVML's, blocks both the unloading of its modules and a change of
MIG mode. While one goes on, nobody of ours may touch it.
Sources: NVIDIA gpu-operator, k8s-driver-manager and mig-parted.
"""

from __future__ import annotations

from collections.abc import Mapping

_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_AT_REST = ("", "upgrade-done", "upgrade-failed", "upgrade-required")
_MIG = "nvidia.com/mig.config.state"
_CHANGING = ("pending", "rebooting")
_DEPLOY, _PAUSED = "nvidia.com/gpu.deploy.", "paused-for-"


def going_on(labels: Mapping[str, str]) -> str | None:
    """Return what goes on, in words, None if nothing does."""
    upgrade = labels.get(_UPGRADE, "")
    if upgrade not in _AT_REST:
        return f"the driver is being upgraded ({_UPGRADE}={upgrade})"
    if labels.get(_MIG) in _CHANGING:
        return f"MIG is being reconfigured ({_MIG}={labels[_MIG]})"
    for key, value in sorted(labels.items()):
        if key.startswith(_DEPLOY) and value.startswith(_PAUSED):
            return f"the users of the driver are to let go of it ({key}={value})"
    return None
