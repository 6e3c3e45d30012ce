"""What a site expects of its nodes: `--profile site.toml`, with waivers that expire.

[gpus]
count = 8
model = "H100"              # part of the driver's model name
nvlinks = 18                # of every pair
[nics]
count = 8                   # active ports at this rate or more
rate_gbps = 400
link_layer = "InfiniBand"
[driver]
version = "570.172.08"      # or a prefix: "570."
[[waiver]]
finding = "nic-port-down"   # name or code
device = "mlx5_5"           # optional
reason = "second port, not cabled"
until = 2027-01-31
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.topology import Topology

_Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]
_Rate = Annotated[float, msgspec.Meta(gt=0)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the profile: a key that is not known is a mistake, not a wish."""


class Gpus(_Section, frozen=True):
    """The GPUs of a node."""

    count: _Count | None = None
    model: str | None = None
    nvlinks: _Count | None = None


class Nics(_Section, frozen=True):
    """The RDMA ports that jobs use."""

    count: _Count | None = None
    rate_gbps: _Rate | None = None
    link_layer: str | None = None


class Driver(_Section, frozen=True):
    """The driver's version, or its beginning."""

    version: str | None = None


class Waiver(_Section, frozen=True):
    """A finding that the site accepts until a day, with the reason."""

    finding: str
    reason: str
    until: dt.date
    device: str | None = None


class Profile(_Section, frozen=True):
    """The whole profile."""

    gpus: Gpus = Gpus()
    nics: Nics = Nics()
    driver: Driver = Driver()
    waiver: tuple[Waiver, ...] = ()

    def in_force(self, today: dt.date) -> tuple[Waiver, ...]:
        """Return the waivers that have not expired."""
        return tuple(waiver for waiver in self.waiver if today <= waiver.until)


class Expected(msgspec.Struct, frozen=True):
    """A node beside what its site expects."""

    node: NodeFacts
    topology: Topology | None
    profile: Profile


def parse(text: str, name: str) -> Profile:
    """Parse a profile; InputError says which key is wrong and why."""
    import tomllib  # imported late: this module is loaded with the checks at every start

    try:
        return msgspec.convert(tomllib.loads(text), Profile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{name}: not a usable site profile: {error}") from error
