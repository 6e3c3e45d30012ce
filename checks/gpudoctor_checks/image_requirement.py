"""NVIDIA_REQUIRE_*: the line by which an image says which driver and GPU it accepts.

In one value a blank means OR and a comma AND; several variables are ANDed. A term is property,
operator, value; `cuda`, `driver` and `arch` compare as versions, `brand` as text. Terms with
other properties are skipped.
https://github.com/NVIDIA/nvidia-container-toolkit (internal/requirements)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpudoctor.facts.node.cuda import Gpu, GpuClass
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion

_TERM = re.compile(r"([a-z]+)(>=|<=|!=|>|<|=)(.+)\Z")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*\Z")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_PARTS = 4
_FIRST_BRANCH_WITH_NVIDIA_BRAND = 465


class Offer(msgspec.Struct, frozen=True):
    """What the node offers to a requirement; None where it is not known."""

    cuda: CudaVersion | None
    driver: DriverVersion | None
    gpu: Gpu | None


def satisfied(requirements: Iterable[str], offer: Offer) -> bool | None:
    """Tell whether all requirements hold; None where a needed property is not known."""
    return _all(_one(requirement, offer) for requirement in requirements)


def _one(requirement: str, offer: Offer) -> bool | None:
    alternatives = [
        [term for part in group.split(",") if part and (term := _parse(part))]
        for group in requirement.split()
    ]
    spoken = [group for group in alternatives if group]
    if not spoken:
        return True
    return _any(_all(_holds(*term, offer) for term in group) for group in spoken)


def _parse(term: str) -> tuple[str, str, str] | None:
    """Split a term; None for one that is skipped, as the toolkit does."""
    match = _TERM.match(term.strip().lower())
    if match is None or match[1] not in ("cuda", "driver", "arch", "brand"):
        return None
    return match[1], match[2], match[3]


def _holds(prop: str, sign: str, value: str, offer: Offer) -> bool | None:
    if prop == "brand":
        brands = brands_of(offer.gpu, offer.driver)
        if not brands:
            return None
        return value not in brands if sign == "!=" else value in brands
    have = _offered(prop, offer)
    if have is None or not _NUMBERS.match(value):
        return None
    want = [int(number) for number in value.split(".")]
    return _OPERATORS[sign](_padded(have), _padded(want))


def _offered(prop: str, offer: Offer) -> list[int] | None:
    if prop == "cuda":
        return [offer.cuda.major, offer.cuda.minor] if offer.cuda else None
    if prop == "arch":
        capability = offer.gpu.architecture.capability if offer.gpu else None
        return [capability.major, capability.minor] if capability else None
    driver = offer.driver
    return [driver.branch, driver.minor, driver.patch] if driver else None


def _padded(numbers: list[int]) -> list[int]:
    return numbers + [0] * (_PARTS - len(numbers))


def brands_of(gpu: Gpu | None, driver: DriverVersion | None) -> frozenset[str]:
    """Return the brands that NVML may give a GPU; empty where its name does not tell.

    Data-center parts were `tesla` until R460 and are `nvidia` since, but for those named Tesla.
    """
    if gpu is None or gpu.gpu_class is None:
        return frozenset()
    name = gpu.name.lower()
    for word, brands in (
        ("grid", {"grid"}), ("tesla", {"tesla"}), ("titan", {"titan", "titanrtx"}),
        ("quadro rtx", {"quadrortx"}), ("quadro", {"quadro"}),
    ):  # fmt: skip
        if word in name.replace("-", " "):
            return frozenset(brands)
    if gpu.gpu_class is GpuClass.GEFORCE:
        return frozenset({"geforce", "geforcertx"})
    if gpu.gpu_class is GpuClass.WORKSTATION:
        return frozenset({"nvidiartx"})
    if driver is not None and driver.branch < _FIRST_BRANCH_WITH_NVIDIA_BRAND:
        return frozenset({"tesla"})
    turing_or_older = gpu.architecture.capability < CudaVersion(8, 0)
    return frozenset({"tesla"} if turing_or_older else {"nvidia"})


def _all(truths: Iterable[bool | None]) -> bool | None:
    values = list(truths)
    if False in values:
        return False
    return None if None in values else True


def _any(truths: Iterable[bool | None]) -> bool | None:
    values = list(truths)
    if True in values:
        return True
    return None if None in values else False
