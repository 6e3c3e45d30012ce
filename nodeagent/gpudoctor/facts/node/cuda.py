"""What NVIDIA's tables say of a driver branch and of a GPU: CUDA level, architecture, class.

The tables are `cuda.toml` beside this module, with their sources and date.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec

from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda


class GpuClass(StrEnum):
    """What forward compatibility distinguishes."""

    DATACENTER = "datacenter"
    WORKSTATION = "workstation"
    GEFORCE = "geforce"
    JETSON = "jetson"


class Architecture(msgspec.Struct, frozen=True):
    """A compute capability and who supports it; None as the last means "still supported"."""

    name: str
    capability: CudaVersion
    first_toolkit: CudaVersion
    last_toolkit: CudaVersion | None
    first_branch: int
    last_branch: int | None


class Gpu(msgspec.Struct, frozen=True):
    """A GPU as far as its name or its compute capability tells."""

    name: str
    architecture: Architecture
    gpu_class: GpuClass | None
    first_branch: int
    open_module_only: bool
    open_module_possible: bool


class _Product(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    capability: CudaVersion
    gpu_class: GpuClass
    first_branch: int
    open_only: bool


class Tables(msgspec.Struct, frozen=True):
    """`cuda.toml`, typed: CUDA level by branch (ascending), architectures by capability."""

    date: str
    levels: dict[int, CudaVersion]
    lifecycle: dict[int, str]
    architectures: dict[CudaVersion, Architecture]
    products: tuple[_Product, ...]
    open_from: CudaVersion
    open_only_from: CudaVersion
    open_default_branch: int

    @property
    def newest_branch(self) -> int:
        """The newest branch that the table knows."""
        return max(self.levels)


_ALL_MINORS = 99


@cache
def tables() -> Tables:
    """Load the tables, once."""
    import tomllib  # imported late: each run imports this module, few read the tables

    raw = Path(__file__).with_name("cuda.toml").read_text(encoding="utf-8")
    data = tomllib.loads(raw)
    architectures = [
        Architecture(
            name=row["name"],
            capability=_version(row["capability"]),
            first_toolkit=_version(row["toolkits"][0]),
            last_toolkit=_last(row["toolkits"][1]) if row["toolkits"][1:] else None,
            first_branch=row["drivers"][0],
            last_branch=row["drivers"][1] if row["drivers"][1:] else None,
        )
        for row in data["architectures"]["rows"]
    ]
    return Tables(
        date=data["date"],
        levels={branch: _version(level) for branch, level in data["branches"]["levels"]},
        lifecycle={int(key): text for key, text in data["branches"]["lifecycle"].items()},
        architectures={one.capability: one for one in architectures},
        products=tuple(
            _Product(
                re.compile(rf"(?<![A-Z0-9])(?:{'|'.join(row['names'])})(?![A-Z0-9])"),
                _version(row["capability"]),
                GpuClass(row["class"]),
                row.get("driver", 0),
                row.get("open_only", False),
            )
            for row in data["products"]["rows"]
        ),
        open_from=_version(data["kernel_modules"]["open_from"]),
        open_only_from=_version(data["kernel_modules"]["open_only_from"]),
        open_default_branch=data["kernel_modules"]["open_default_branch"],
    )


def _version(text: str) -> CudaVersion:
    major, _, minor = text.partition(".")
    return CudaVersion(int(major), int(minor))


def _last(text: str) -> CudaVersion:
    return _version(text) if "." in text else CudaVersion(int(text), _ALL_MINORS)


def cuda_level(driver: DriverVersion) -> CudaVersion | None:
    """Return the CUDA level of a driver's branch; a branch between two has the lower one's.

    None for a branch newer than the table, whose level only the driver itself knows, and for
    one older than it.
    """
    known = tables()
    if driver.branch > known.newest_branch:
        return None
    below = [branch for branch in known.levels if branch <= driver.branch]
    return known.levels[max(below)] if below else None


def branch_of_level(level: CudaVersion) -> int | None:
    """Return the branch that first offers a CUDA level, None where the table has none."""
    known = tables().levels
    return min((branch for branch, offered in known.items() if offered >= level), default=None)


def resolve_gpu(name: str | None, capability: str | None = None) -> Gpu | None:
    """Return what is known of a GPU by its NVML or label name and its compute capability.

    The capability, where it was read, decides over the name. None where neither is known.
    """
    product = _product(name) if name else None
    stated = parse_cuda(capability) if capability else None
    key = stated or (product.capability if product else None)
    architecture = tables().architectures.get(key) if key else None
    if architecture is None:
        return None
    if product is not None and product.capability != architecture.capability:
        product = None
    return Gpu(
        name=name or f"compute capability {architecture.capability}",
        architecture=architecture,
        gpu_class=product.gpu_class if product else None,
        first_branch=max(architecture.first_branch, product.first_branch if product else 0),
        open_module_only=architecture.capability >= tables().open_only_from
        or (product is not None and product.open_only),
        open_module_possible=architecture.capability >= tables().open_from,
    )


def short_name(name: str) -> str:
    """Return a GPU's name as short as the tables know it: `h100` of `NVIDIA H100 80GB HBM3`.

    Of a GPU that is not in them, the whole name without the maker's.
    """
    found = _products(name)
    words = max(found, key=lambda pair: len(pair[0]))[0] if found else _spaced(name)
    return re.sub(r"[^A-Z0-9]+", "-", re.sub(r"^(?:NVIDIA|TESLA)\b", "", words)).strip("-").lower()


def _product(name: str) -> _Product | None:
    """Return the product that the longest run of whole words in the name belongs to."""
    found = _products(name)
    return max(found, key=lambda pair: len(pair[0]))[1] if found else None


def _products(name: str) -> list[tuple[str, _Product]]:
    """Return the runs of whole words in the name that belong to products, with these."""
    words = _spaced(name)
    return [
        (match[0], product)
        for product in tables().products
        for match in product.pattern.finditer(words)
    ]


def _spaced(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.upper())
