"""The image as the Containerfile makes it, on a base of Debian packages: no registry is asked.

And the options by which podman runs a container of a pod as the kubelet would.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from daemonset import image
from tests import parts

NAME = "localhost/gpudoctor:test"
_BASE = "localhost/base:test"
_PACKAGES = "python3,libudev1"
# Runs where root lacks CAP_SYS_RESOURCE, too.
_LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
JSON = dict[str, Any]


class Store:
    """Podman with a store of its own in `folder`, and in it the image `NAME`."""

    def __init__(self, folder: Path) -> None:
        parts.program("runc", "runc")
        self._podman = (
            parts.program("podman", "podman"),
            f"--root={folder}/store",
            f"--runroot={folder}/run",
            "--storage-driver=vfs",  # others leave a mount behind
            "--cgroup-manager=cgroupfs",
        )
        self._folder = folder
        self._import_base()
        image.prepare(folder / "context", "x86_64")

    def podman(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman on this store."""
        return subprocess.run(
            [*self._podman, *arguments], check=check, capture_output=True, text=True, timeout=300
        )

    def build(self, name: str = NAME) -> str:
        """Build the image and return its ID."""
        options = ("--isolation=chroot", "--layers=false", f"--build-arg=BASE={_BASE}", "--quiet")
        image.build(self._folder / "context", name, self._podman, options)
        return self.podman("image", "inspect", "--format={{.Id}}", name).stdout.strip()

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman's `run` within what this machine allows."""
        return self.podman("run", "--runtime=runc", *_LIMITS, *arguments, check=check)

    def inspect(self, name: str = NAME) -> JSON:
        """What podman knows of the image."""
        [found] = json.loads(self.podman("image", "inspect", name).stdout)
        assert isinstance(found, dict)
        return found

    def _import_base(self) -> None:
        archive = self._folder / "base.tar"
        made = subprocess.run(
            [
                parts.program("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=extract",
                f"--include={_PACKAGES}", "--dpkgopt=path-exclude=/usr/share/*", "bookworm",
                str(archive),
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if made.returncode:
            parts.missing(f"Debian's packages by mmdebstrap: {made.stderr.strip()[-200:]}")
        self.podman("import", "--quiet", str(archive), _BASE)
        archive.unlink()


def as_the_kubelet(
    spec: JSON, host: Mapping[str, Path], fields: Mapping[str, str]
) -> Iterator[str]:
    """Podman's options for the one container of a pod, its arguments last, after the image.

    `host` maps a hostPath to where it is taken from here, `fields` what the downward API says.
    """
    [container] = spec["containers"]
    context = container["securityContext"]
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"  # podman's, too
    yield f"--user={context['runAsUser']}:{context['runAsGroup']}"
    yield from (f"--cap-drop={name}" for name in context["capabilities"]["drop"])
    yield from (f"--cap-add={name}" for name in context["capabilities"].get("add", []))
    if context["readOnlyRootFilesystem"]:
        yield from ("--read-only", "--read-only-tmpfs=false")
    if not context["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges"
    limit = container["resources"]["limits"]["memory"]
    yield f"--memory={limit.removesuffix('Mi')}m"
    for variable in container.get("env", []):
        value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        yield f"--env={variable['name']}={value}"
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        volume, at = volumes[mount["name"]], mount["mountPath"]
        if "emptyDir" in volume:
            size = volume["emptyDir"]["sizeLimit"].removesuffix("Mi")
            yield f"--tmpfs={at}:size={size}m,mode=1777"
        else:
            path = volume["hostPath"]["path"]
            yield f"--volume={host.get(path, path)}:{at}:{'ro' if mount.get('readOnly') else 'rw'}"
    yield NAME
    yield from container["args"]
