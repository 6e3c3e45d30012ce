"""ResourceQuotas and the words with which the API server refuses a pod because of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from gpudoctor.facts.kubernetes import fields, parse
from gpudoctor.facts.kubernetes.fields import JsonObject
from gpudoctor.facts.kubernetes.model import Meta, Resources

_EXCEEDED = re.compile(
    r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<requested>.+?), "
    r"used: (?P<used>.+?), limited: (?P<limited>.+?)\s*$",
    re.DOTALL,
)


class ResourceQuota(msgspec.Struct, frozen=True):
    """A quota: what is allowed and what is used."""

    meta: Meta
    hard: Resources
    used: Resources

    def free(self, resource: str) -> Decimal | None:
        """Return what is left of a resource, None where the quota does not limit it."""
        found = self.limit(resource)
        return found[1] - found[2] if found else None

    def limit(self, resource: str) -> tuple[str, Decimal, Decimal] | None:
        """Return the tightest limit of a resource: its key, what is allowed and what is used."""
        keys = (f"requests.{resource}", f"limits.{resource}", resource)
        found = [(k, self.hard[k], self.used.get(k, Decimal(0))) for k in keys if k in self.hard]
        return min(found, key=lambda entry: entry[1] - entry[2], default=None)


class QuotaRefusal(msgspec.Struct, frozen=True):
    """A refused creation: the quota and the three amount lists as the API server prints them."""

    quota: str
    requested: str
    used: str
    limited: str

    @property
    def resource(self) -> str:
        """The first resource asked for, without the `requests.` before it."""
        return self.requested.partition("=")[0].removeprefix("requests.").removeprefix("limits.")


def read(quotas: Iterable[JsonObject], namespace: str | None) -> tuple[ResourceQuota, ...]:
    """Return the quotas of a namespace."""
    return tuple(
        ResourceQuota(
            parse.meta(quota),
            fields.quantities(quota, "status", "hard") or fields.quantities(quota, "spec", "hard"),
            fields.quantities(quota, "status", "used"),
        )
        for quota in quotas
        if fields.text(quota, "metadata", "namespace") == namespace
    )


def refusal(message: str) -> QuotaRefusal | None:
    """Read `exceeded quota: …` out of an event or condition message."""
    match = _EXCEEDED.search(message)
    return QuotaRefusal(**match.groupdict()) if match else None
