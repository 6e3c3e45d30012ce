"""The CUDA of a job's image against the driver of the container that looks before the job starts.

The image's own files tell for certain; a version that is only declared is `possible`.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.node.cuda_stack import CudaStack
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_offer import either, offer_of_gpus, offer_of_module
from gpudoctor.facts.node.image import ImageLevels
from gpudoctor.facts.node.own_container import OwnContainer
from gpudoctor.facts.node.versions import CudaVersion
from gpudoctor.report import Certainty, Evidence


def stacks(own: OwnContainer, levels: ImageLevels | None, module: str | None) -> list[CudaStack]:
    """Return what has to fit the driver: the image's own CUDA where seen, and what is declared."""
    gpus = own.gpus if isinstance(own.gpus, NodeGpus) else None
    offer = offer_of_module(module or "")
    if gpus is not None:
        offer = either(offer_of_gpus(gpus), offer)
    if offer.driver is None and offer.level is None:
        return []
    stack = CudaStack(
        subject=own.subject,
        driver=offer.driver,
        level=offer.level,
        toolkit=own.needs.cuda or CudaVersion(0, 0),
        gpu=offer.gpu,
        kernel_module=offer.kernel_module,
        certainty=Certainty.POSSIBLE,
        evidence=(Evidence("declared need", "cuda", str(own.needs.cuda)),),
    )
    seen = levels.cuda if levels is not None else None
    found: list[CudaStack] = []
    if own.needs.cuda is not None and own.needs.cuda != seen:
        found.append(stack)
    if levels is not None and seen is not None:
        found.append(
            msgspec.structs.replace(
                stack,
                toolkit=seen,
                certainty=levels.certainty,
                compat_package=levels.compat_package,
                evidence=levels.evidence,
            )
        )
    return found
