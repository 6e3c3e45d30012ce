"""A node's side of the compatibility rules, from labels, the module's text and NVML."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.cuda_stack import KernelModule
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import (
    GpuOffer,
    either,
    offer_of_gpus,
    offer_of_labels,
    offer_of_module,
)
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Subject
from gpudoctor.sources.child import Answer

GFD = {
    "nvidia.com/cuda.driver-version.full": "580.126.09",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
}
OLD_GFD = {
    "nvidia.com/cuda.driver.major": "535",
    "nvidia.com/cuda.driver.minor": "104",
    "nvidia.com/cuda.driver.rev": "05",
    "nvidia.com/cuda.runtime.major": "12",
    "nvidia.com/cuda.runtime.minor": "2",
    "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
}


def test_labels_of_feature_discovery() -> None:
    offer = offer_of_labels(GFD)
    assert (offer.driver, offer.level) == (DriverVersion(580, 126, 9), CudaVersion(13, 0))
    assert offer.gpu is not None
    assert str(offer.gpu.architecture.capability) == "9.0"


def test_labels_of_its_older_releases() -> None:
    offer = offer_of_labels(OLD_GFD)
    assert (offer.driver, offer.level) == (DriverVersion(535, 104, 5), CudaVersion(12, 2))
    assert offer.gpu is not None
    assert str(offer.gpu.architecture.capability) == "8.6"


def test_labels_of_other_nodes_tell_nothing() -> None:
    assert offer_of_labels({"kubernetes.io/os": "linux"}) == GpuOffer()
    gke = offer_of_labels({"cloud.google.com/gke-accelerator": "nvidia-l4"})
    assert gke.gpu is not None
    assert gke.gpu.architecture.name == "Ada"


@pytest.mark.parametrize(
    ("text", "driver", "module"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 2024\n",
         DriverVersion(535, 183, 6), KernelModule.PROPRIETARY),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
         DriverVersion(580, 95, 5), KernelModule.OPEN),
        ("", None, None),
    ],
)  # fmt: skip
def test_the_loaded_module(
    text: str, driver: DriverVersion | None, module: KernelModule | None
) -> None:
    offer = offer_of_module(text)
    assert (offer.driver, offer.kernel_module) == (driver, module)


def test_nvml() -> None:
    lines = [
        [None, "init", True], [None, "driver", "580.95.05"], [None, "cuda", 13000],
        [0, "name", {"code": 15, "why": "lost"}], [1, "name", "NVIDIA H200"],
        [1, "capability", [9, 0]],
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    gpus = parse_gpus(Answer(text, in_time=True), Subject("Host", "local"))
    assert isinstance(gpus, NodeGpus)
    offer = offer_of_gpus(gpus)
    assert (offer.driver, offer.level) == (DriverVersion(580, 95, 5), CudaVersion(13, 0))
    assert offer.gpu is not None
    assert offer.gpu.name == "NVIDIA H200"


def test_the_first_offer_wins_and_the_second_fills_up() -> None:
    module = offer_of_module("NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
    both = either(GpuOffer(level=CudaVersion(13, 1)), module)
    assert (both.level, both.driver) == (CudaVersion(13, 1), DriverVersion(580, 95, 5))


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from([*GFD, *OLD_GFD]), st.text(max_size=20)), st.text())
def test_any_label_and_text_is_taken(labels: dict[str, str], text: str) -> None:
    offer_of_labels(labels)
    offer_of_module(text)
