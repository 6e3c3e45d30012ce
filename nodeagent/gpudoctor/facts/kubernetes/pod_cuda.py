"""The CUDA version of a pod's image against the driver and GPU of its node.

What the runtime itself said of the image (a refused `cuda>=X`) is certain. Without it the tag is
all that Kubernetes objects show, and a tag is a guess: `possible`.
"""

from __future__ import annotations

import re

from gpudoctor.facts.kubernetes import resources
from gpudoctor.facts.kubernetes.model import Container
from gpudoctor.facts.kubernetes.situation import PodSituation
from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.facts.node.gpu_offer import offer_of_labels
from gpudoctor.facts.node.runtime_errors import ErrorLines
from gpudoctor.facts.node.versions import CudaVersion, parse_cuda
from gpudoctor.report import Certainty, Evidence

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


def read(situation: PodSituation, errors: ErrorLines | None) -> CudaStack | None:
    """Return what has to fit, None where the node's driver or the image's CUDA is not known."""
    node = situation.node
    wanted = _wanted(situation, errors)
    if node is None or wanted is None:
        return None
    toolkit, requirement, evidence = wanted
    offer = offer_of_labels(node.labels)
    if offer.driver is None and offer.level is None:
        return None
    return CudaStack(
        subject=situation.subject,
        toolkit=toolkit,
        driver=offer.driver,
        level=offer.level,
        gpu=offer.gpu,
        requirements=(requirement,) if requirement else (),
        certainty=Certainty.CERTAIN if requirement else Certainty.POSSIBLE,
        related=(node.subject,),
        evidence=(
            evidence,
            *(
                Evidence(node.meta.path, f"metadata.labels[{label}]", node.labels[label])
                for label in _LABELS
                if label in node.labels
            ),
        ),
    )


def _wanted(
    situation: PodSituation, errors: ErrorLines | None
) -> tuple[CudaVersion, str | None, Evidence] | None:
    """Return the image's CUDA, the requirement that was refused if one was, and where it stands."""
    for error, evidence in errors.errors if errors else ():
        written = error.values.get("wanted", "") if error.name == _REFUSED else ""
        match = _WANTED.search(written)
        toolkit = parse_cuda(match["version"]) if match else None
        if toolkit is not None:
            return toolkit, written, evidence
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
