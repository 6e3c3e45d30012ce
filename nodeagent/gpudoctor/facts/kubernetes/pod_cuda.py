"""The CUDA version of a pod's image against the driver and GPU of its node.

What the runtime itself said of the image (a refused `cuda>=X`) is certain, and so is what a running
container of it has loaded or in its environment. Without them the tag is all that Kubernetes
objects show, and a tag is a guess: `possible`. The node's side is the machine itself where it was
seen, else the labels of GPU feature discovery.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.model import Container
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.facts.node.gpu_offer import GpuOffer, either, offer_of_labels
from gpudoctor.facts.node.image_cuda import ImageCuda
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.facts.node.versions import CudaVersion, parse_cuda, parse_driver
from gpudoctor.report import Certainty, Evidence


class SeenCuda(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen on the pod's machine: what the driver there offers, with where that stands,
    and the CUDA of the pod's image if a container of it runs.
    """

    offer: GpuOffer
    driver: tuple[Evidence, ...] = ()
    image: ImageCuda | None = None


_REFUSED = "image-requirement-unsatisfied"
_WANTED = re.compile(r"cuda\s*>=?\s*(?P<version>\d+\.\d+)")
# `cuda:12.8.1-runtime`, `…-cuda12.8-cudnn9`, `…-cuda-12.4`, `…_cu128`: two-digit majors only,
# since cu1 or cu11 alone would match too much.
_TAG = re.compile(
    r"cuda[:-]?(?P<dotted>1[0-9]\.[0-9])(?:\.\d+)?(?![\d.])|(?<![a-z0-9])cu(?P<wheel>1[0-9][0-9])(?!\d)"
)
_LABELS = (
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.runtime-version.full",
    "nvidia.com/cuda.driver.major",
    "nvidia.com/cuda.runtime.major",
    "nvidia.com/gpu.product",
)


def read(
    situation: PodSituation, errors: ErrorLines | None, seen: SeenCuda | None = None
) -> CudaStack | None:
    """Return what has to fit, None where the node's driver or the image's CUDA is not known."""
    node = situation.node
    image = seen.image if seen else None
    wanted = _refused(errors) or _of_image(image) or _of_tags(situation)
    if wanted is None:
        return None
    toolkit, requirement, evidence = wanted
    labels = node.labels if node else {}
    offer = offer_of_labels(labels)
    if seen is not None:
        offer = either(seen.offer, offer)
    if offer.driver is None and offer.level is None:
        return None
    certain = requirement is not None or (image is not None and evidence == image.evidence)
    return CudaStack(
        subject=situation.subject,
        toolkit=toolkit,
        driver=offer.driver,
        level=offer.level,
        gpu=offer.gpu,
        kernel_module=offer.kernel_module,
        compat_package=_is_compat(image, offer),
        requirements=(requirement,) if requirement else (),
        certainty=Certainty.CERTAIN if certain else Certainty.POSSIBLE,
        related=(node.subject,) if node else (),
        evidence=(evidence, *(seen.driver if seen else ()), *_of_labels(situation)),
    )


def _of_labels(situation: PodSituation) -> Iterator[Evidence]:
    node = situation.node
    for label in _LABELS if node else ():
        if node is not None and label in node.labels:
            yield Evidence(node.meta.path, f"metadata.labels[{label}]", node.labels[label])


def _is_compat(image: ImageCuda | None, offer: GpuOffer) -> bool:
    """Whether the process has a libcuda of another release than the node's driver loaded."""
    loaded = parse_driver(image.libcuda) if image is not None and image.libcuda else None
    return loaded is not None and offer.driver is not None and loaded != offer.driver


Wanted = tuple[CudaVersion, str | None, Evidence]
"""The image's CUDA, the requirement that was refused if one was, and where it stands."""


def _refused(errors: ErrorLines | None) -> Wanted | None:
    for error, evidence in errors.errors if errors else ():
        written = error.values.get("wanted", "") if error.name == _REFUSED else ""
        match = _WANTED.search(written)
        toolkit = parse_cuda(match["version"]) if match else None
        if toolkit is not None:
            return toolkit, written, evidence
    return None


def _of_image(image: ImageCuda | None) -> Wanted | None:
    return None if image is None else (image.toolkit, None, image.evidence)


def _of_tags(situation: PodSituation) -> Wanted | None:
    for container in situation.pod.containers:
        toolkit = of_tag(container.image) if _has_gpu(container) else None
        if toolkit is not None:
            path = f"spec.containers[{container.name}].image"
            evidence = Evidence(situation.pod.meta.path, path, container.image, "by its tag")
            return toolkit, None, evidence
    return None


def _has_gpu(container: Container) -> bool:
    return bool(container.claims) or any(
        map(resources.is_gpu, container.limits | container.requests)
    )


def of_tag(image: str) -> CudaVersion | None:
    """Guess the CUDA version from an image reference, None where its tag names none."""
    name = image.partition("@")[0].rpartition("/")[2].lower()
    match = _TAG.search(name)
    if match is None:
        return None
    wheel = match["wheel"]
    return parse_cuda(match["dotted"] or f"{wheel[:2]}.{wheel[2:]}")
