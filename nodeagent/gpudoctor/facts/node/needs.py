"""What a container declares that it needs: `rdma,gdr,nvlink,shm=16Gi,memlock,cuda=13.1,gpus=8`.

The same words stand in `preflight --require`, in the variable GPUDOCTOR_REQUIRE and in the pod
annotation `gpudoctor.io/require`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from gpudoctor import PREFIX
from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.node.model import LOCK_TRIED
from gpudoctor.facts.node.versions import CudaVersion, parse_cuda

ANNOTATION = f"{PREFIX}/require"
VARIABLE = "GPUDOCTOR_REQUIRE"

_BOOTSTRAP_S = 30
_MOST_BOOTSTRAP_S = 600
_MOST_GPUS = 1024
_SEPARATORS = re.compile(r"[,\s]+")


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Declared needs; sizes in bytes, None or False for what is not asked for.

    `bootstrap` is how many seconds the job's first address may take to resolve.
    """

    rdma: bool = False
    gdr: bool = False
    nvlink: bool = False
    numa: bool = False
    gpus: int | None = None
    memlock: int | None = None
    shm: int | None = None
    hugepages: int | None = None
    cuda: CudaVersion | None = None
    bootstrap: int | None = None

    @property
    def wants_rdma(self) -> bool:
        """GPUDirect RDMA is RDMA."""
        return self.rdma or self.gdr

    @property
    def locked(self) -> int | None:
        """Bytes to lock: as declared, else what RDMA takes."""
        return self.memlock or (LOCK_TRIED if self.wants_rdma else None)

    @property
    def wants_gpus(self) -> bool:
        """Whether anything asked for needs a GPU."""
        return self.gpus is not None or self.nvlink or self.gdr or self.cuda is not None


def _size(value: str) -> int:
    amount = fields.quantity(value)
    if amount is None or amount <= 0:
        raise ValueError("a size such as 16Gi")
    return int(amount)


def _count(value: str, most: int, what: str) -> int:
    if not (value.isascii() and value.isdecimal() and 0 < int(value[:9]) <= most):
        raise ValueError(what)
    return int(value)


def _cuda(value: str) -> CudaVersion:
    version = parse_cuda(value)
    if version is None:
        raise ValueError("a CUDA version such as 13.1")
    return version


_VALUES: dict[str, Callable[[str], Any]] = {
    "gpus": lambda value: _count(value, _MOST_GPUS, "a number of GPUs such as 8"),
    "memlock": _size,
    "shm": _size,
    "hugepages": _size,
    "cuda": _cuda,
    "bootstrap": lambda value: _count(value, _MOST_BOOTSTRAP_S, "seconds, at most 600"),
}
_BARE: dict[str, Any] = {
    "rdma": True,
    "gdr": True,
    "nvlink": True,
    "numa": True,
    "memlock": LOCK_TRIED,
    "bootstrap": _BOOTSTRAP_S,
}
NAMES = tuple(Needs.__struct_fields__)


def parse(text: str, where: str, beneath: Needs | None = None) -> Needs:
    """Read declared needs; those of `beneath` stay where `text` does not name them.

    InputError names the word, `where` it stands, and what may stand there.
    """
    found: dict[str, Any] = {}
    for word in _SEPARATORS.split(text.strip()):
        if word:
            name, given, value = word.partition("=")
            found[name] = _value(name, value if given else None, where)
    return msgspec.structs.replace(beneath or Needs(), **found)


def _value(name: str, value: str | None, where: str) -> Any:
    if name not in NAMES:
        raise InputError(f"{where}: {name!r} is no need; there are {', '.join(NAMES)}")
    if value is None:
        if name not in _BARE:
            raise InputError(f"{where}: {name} wants a value, as in {name}={_EXAMPLES[name]}")
        return _BARE[name]
    if name not in _VALUES:
        raise InputError(f"{where}: {name} takes no value, found {value!r}")
    try:
        return _VALUES[name](value)
    except ValueError as error:
        raise InputError(f"{where}: {name}={value}: not {error}") from None


_EXAMPLES = {"gpus": "8", "shm": "16Gi", "hugepages": "1Gi", "cuda": "13.1"}
