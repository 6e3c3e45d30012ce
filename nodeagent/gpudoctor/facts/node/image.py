"""The CUDA and NCCL levels of an image, from its files: no label or tag can be wrong about them.

Read where an image is mounted (an image volume) or is our own root. Frameworks bring CUDA and NCCL
as Python wheels, which their programs take before the system's; a toolkit lies in
/usr/local/cuda-X.Y, NCCL's library carries its version in its file name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.node.versions import CudaVersion, parse_cuda
from gpudoctor.report import Certainty, Evidence
from gpudoctor.sources.host import Host, names

_LOCAL = "/usr/local"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
)
_PYTHONS = ("/usr/lib", "/usr/local/lib", "/opt/conda/lib", "/opt/venv/lib", "/venv/lib",
            "/opt/python/lib")  # fmt: skip
_MOST_PYTHONS = 8
_TOOLKIT = re.compile(r"cuda-(\d{1,2}\.\d{1,2})\Z")
_COMPAT = re.compile(r"libcuda\.so\.\d{3}\.\d")
_NCCL_FILE = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)\Z")
_RUNTIME_WHEEL = re.compile(r"nvidia_cuda_runtime(?:_cu\d+)?-(\d+\.\d+)[\d.]*\.dist-info\Z")
_NCCL_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+\.\d+\.\d+)(?:\.\d+)*\.dist-info\Z")
_TORCH_WHEEL = re.compile(r"torch-[\d.]+\w*\+(cu\d{3})\.dist-info\Z")


class ImageLevels(msgspec.Struct, frozen=True, kw_only=True):
    """What an image was built with; None where no file tells.

    `certainty` is that of `cuda`: `likely` where the image holds several and the program may take
    either. `compat_package` says that the cuda-compat of that level lies in it.
    """

    cuda: CudaVersion | None = None
    nccl: str | None = None
    certainty: Certainty = Certainty.CERTAIN
    compat_package: bool = False
    evidence: tuple[Evidence, ...] = ()


class _Seen(msgspec.Struct, frozen=True):
    version: str
    path: str


def read(image: Host, shown: str = "") -> ImageLevels | None:
    """Return the levels of the image whose root `image` is, None if its root cannot be listed.

    `shown` stands before the paths in the evidence: where the image is mounted.
    """
    if not names(image, "/"):
        return None
    packages = list(_packages(image))
    wheels = [*_versions(packages, _TORCH_WHEEL), *_versions(packages, _RUNTIME_WHEEL)]
    toolkits = _versions(((_LOCAL, name) for name in names(image, _LOCAL)), _TOOLKIT)
    found = {
        version: seen for seen in (*toolkits, *wheels) if (version := parse_cuda(seen.version))
    }
    of_wheels = [version for seen in wheels if (version := parse_cuda(seen.version))]
    cuda = max(of_wheels) if of_wheels else max(found, default=None)
    nccl = _nccl(image, packages)
    evidence = [Evidence(f"{shown}{seen.path}", "version", seen.version) for seen in found.values()]
    if nccl is not None:
        evidence.append(Evidence(f"{shown}{nccl.path}", "version", nccl.version))
    return ImageLevels(
        cuda=cuda,
        nccl=None if nccl is None else nccl.version,
        certainty=Certainty.LIKELY if len(found) > 1 else Certainty.CERTAIN,
        compat_package=cuda is not None and _has_compat(image, cuda),
        evidence=tuple(evidence),
    )


def _packages(image: Host) -> Iterator[tuple[str, str]]:
    """Yield (folder, name) of what is installed for the Pythons of the image."""
    for base in _PYTHONS:
        pythons = [name for name in names(image, base) if name.startswith("python3")]
        for python in pythons[:_MOST_PYTHONS]:
            for kind in ("site-packages", "dist-packages"):
                folder = f"{base}/{python}/{kind}"
                yield from ((folder, name) for name in names(image, folder))


def _versions(
    entries: Iterator[tuple[str, str]] | list[tuple[str, str]], pattern: re.Pattern[str]
) -> list[_Seen]:
    return [
        _Seen(match[1], f"{folder}/{name}")
        for folder, name in entries
        if (match := pattern.match(name))
    ]


def _nccl(image: Host, packages: list[tuple[str, str]]) -> _Seen | None:
    """Return NCCL as a wheel, else as the newest library."""
    wheels = _versions(packages, _NCCL_WHEEL)
    files = [(folder, name) for folder in _LIBRARIES for name in names(image, folder)]
    found = wheels or _versions(files, _NCCL_FILE)
    return max(
        found, key=lambda seen: [int(part) for part in seen.version.split(".")], default=None
    )


def _has_compat(image: Host, cuda: CudaVersion) -> bool:
    folder = f"{_LOCAL}/cuda-{cuda}/compat"
    return any(_COMPAT.match(name) for name in names(image, folder))
