"""The control plane's programs, built from the Go modules beside this file.

One folder a Kubernetes line holds `go.mod` and `go.sum`, which pin `k8s.io/kubernetes`, its
staging modules and the etcd server that this Kubernetes itself is tested with. The programs are
the module's `tool` directives, so `go build tool` builds them all in one run. They go into a
cache outside the tree, under the checksum of what they were built from: a second run builds
nothing, and two lines or two revisions never mix.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
VERSION_PACKAGE = "k8s.io/component-base/version"


class NoGoError(RuntimeError):
    """There is no Go on this machine, and the programs are not in the cache either."""


def lines() -> list[str]:
    """The Kubernetes lines that can be built, newest first: `["1.37", "1.34"]`."""
    found = [path.parent.name.removeprefix("v") for path in HERE.glob("v*/go.mod")]
    return sorted(found, key=lambda line: [int(part) for part in line.split(".")], reverse=True)


def programs(line: str) -> Path:
    """The folder with the `PROGRAMS` of a line (`1.37`), built first where it is not there yet.

    Raises NoGoError without Go, CalledProcessError (with the compiler's words on stderr) when
    the build fails.
    """
    module = HERE / f"v{line}"
    flags = _build_flags(module)
    target = _cache() / _checksum(module, flags)
    if not target.is_dir():
        _build(module, flags, target)
    return target


def _build_flags(module: Path) -> list[str]:
    version = next(
        words[2]
        for words in map(str.split, (module / "go.mod").read_text().splitlines())
        if words[:2] == ["require", "k8s.io/kubernetes"]
    )
    major, minor, _ = version.removeprefix("v").split(".")
    # Upstream's build script sets these; without them the server calls itself v0.0.0-master.
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamped = " ".join(f"-X {VERSION_PACKAGE}.{key}={value}" for key, value in stamps.items())
    return ["-mod=readonly", "-buildvcs=false", "-trimpath", f"-ldflags=-s -w {stamped}"]


def _checksum(module: Path, flags: list[str]) -> str:
    digest = hashlib.sha256()
    for part in ((module / "go.mod").read_bytes(), (module / "go.sum").read_bytes()):
        digest.update(part)
    digest.update("\0".join(flags).encode())
    return digest.hexdigest()[:32]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpudoctor-test-cluster"


def _build(module: Path, flags: list[str], target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise NoGoError("no `go` on the PATH to build the Kubernetes test cluster with")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own, then renamed: an interrupted build leaves nothing half there.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        out = Path(scratch) / "programs"
        out.mkdir()
        subprocess.run(
            [go, "build", *flags, "-o", f"{out}/", "tool"],
            cwd=module,
            env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
            check=True,
        )
        (out / "server").rename(out / "etcd")
        out.rename(target)
