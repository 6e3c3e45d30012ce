"""CUDA and NCCL of an image by the names of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.node import image
from gpudoctor.facts.node.image import ImageLevels
from gpudoctor.facts.node.versions import CudaVersion
from gpudoctor.report import Certainty
from gpudoctor.sources.host.live import LiveHost

CONDA = "opt/conda/lib/python3.11/site-packages"
DEBIAN = "usr/local/lib/python3.12/dist-packages"


def read(root: Path, *paths: str) -> ImageLevels:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    with LiveHost(str(root)) as host:
        levels = image.read(host, "/trainer-image")
    assert levels is not None
    return levels


@pytest.mark.parametrize(
    ("paths", "cuda", "nccl", "certainty"),
    [
        (["usr/local/cuda-12.8/version.json"], CudaVersion(12, 8), None, Certainty.CERTAIN),
        (
            [f"{CONDA}/torch-2.7.0+cu128.dist-info", f"{CONDA}/nvidia_nccl_cu12-2.26.2.dist-info",
             f"{CONDA}/nvidia_cuda_runtime_cu12-12.8.57.dist-info"],
            CudaVersion(12, 8), "2.26.2", Certainty.CERTAIN,
        ),
        ([f"{DEBIAN}/nvidia_cuda_runtime-13.0.96.dist-info"], CudaVersion(13, 0), None,
         Certainty.CERTAIN),
        # The wheel's CUDA is what the framework loads; the toolkit beside it may be another.
        (
            ["usr/local/cuda-12.4/bin/nvcc", f"{DEBIAN}/torch-2.9.1+cu130.dist-info"],
            CudaVersion(13, 0), None, Certainty.LIKELY,
        ),
        (
            ["usr/lib/x86_64-linux-gnu/libnccl.so.2.9.9",
             "usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3", "usr/lib/x86_64-linux-gnu/libnccl.so.2"],
            None, "2.27.3", Certainty.CERTAIN,
        ),
        (["etc/os-release", "usr/local/cuda-samples/x", f"{CONDA}/torch-2.7.0.dist-info"],
         None, None, Certainty.CERTAIN),
    ],
)  # fmt: skip
def test_levels(
    tmp_path: Path,
    paths: list[str],
    cuda: CudaVersion | None,
    nccl: str | None,
    certainty: Certainty,
) -> None:
    levels = read(tmp_path, *paths)
    assert (levels.cuda, levels.nccl, levels.certainty) == (cuda, nccl, certainty)
    assert all(one.object.startswith("/trainer-image/") for one in levels.evidence)


def test_cuda_compat_of_the_same_level(tmp_path: Path) -> None:
    compat = "compat/libcuda.so.580.65.06"
    assert read(tmp_path / "a", f"usr/local/cuda-13.0/{compat}").compat_package
    other = ["usr/local/cuda-13.0/version.json", f"usr/local/cuda-12.8/{compat}"]
    assert not read(tmp_path / "b", *other).compat_package


def test_absolute_links_stay_inside_the_image(tmp_path: Path) -> None:
    """As alternatives make them; the host's own files are no part of the image."""
    outside = tmp_path / "outside"
    (outside / "cuda-11.8").mkdir(parents=True)
    root = tmp_path / "image"
    (root / "usr").mkdir(parents=True)
    (root / "usr" / "local").symlink_to(outside)
    assert read(root, "etc/os-release").cuda is None
    (root / str(outside)[1:] / "cuda-12.8").mkdir(parents=True)
    assert read(root).cuda == CudaVersion(12, 8)


def test_an_empty_mount_is_no_image(tmp_path: Path) -> None:
    with LiveHost(str(tmp_path)) as host:
        assert image.read(host) is None
