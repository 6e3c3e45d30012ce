"""Takes out of a bundle what nobody else should read, and keeps what a diagnosis needs.

Addresses, host names, user names and registries become others, each always the same one, so that
what was equal stays equal and parsers still see their formats. Secrets, tokens and values of
environment variables outside the allow-list are dropped. Names of pods, namespaces and devices
stay: the findings are about them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from gpudoctor.report import Report
from gpudoctor.sources import environment
from gpudoctor.sources.bundle import Bundle, HostRecording

GONE = "[redacted]"

_TOKENS = re.compile(
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"  # JSON web tokens
    r"|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}"
    r"|\bhf_\w{20,}|\bsk-[\w-]{20,}|\bxox[abprs]-[\w-]{10,}|\bnvapi-[\w-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"\b([\w-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credential)[\w-]*)"
    r"([\"']?\s*[=:]\s*[\"']?)([^\s\"',;&]+)",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://)[^/\s:@]+:[^/\s@]+@")
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_HOME = re.compile(r"(/home/|/Users/)([^/\s:\"']+)")
_V4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_V6 = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-f]{4}:){7}[0-9a-f]{4}|(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?::"
    r"(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?)(?![\w:])",
    re.IGNORECASE,
)
_HARDWARE = re.compile(
    r"(?<![\w:])(?:[0-9a-f]{2}:){5}(?:(?:[0-9a-f]{2}:){14})?[0-9a-f]{2}(?![\w:])", re.IGNORECASE
)
_GUID = re.compile(r"(?<![\w:])(?!fe80)[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])", re.IGNORECASE)
_KEPT_V4 = ("0.", "127.", "255.")
_PUBLIC_REGISTRIES = (
    "docker.io", "nvcr.io", "ghcr.io", "quay.io", "registry.k8s.io", "gcr.io", "mcr.microsoft.com",
    "public.ecr.aws",
)  # fmt: skip
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HOSTNAME = "/proc/sys/kernel/hostname"
_GENERIC = frozenset({"localhost", "local", "node", "host", "none", "unknown", "kubernetes"})
_SHORTEST_NAME = 3
_ADDRESS_TYPES = ("Hostname", "InternalDNS", "ExternalDNS")


class _Numbers:
    """Numbers things in the order in which they are first seen."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, thing: str) -> int:
        return self._seen.setdefault(thing, len(self._seen) + 1)


class Redactor:
    """Replaces what is private, each thing always by the same other one."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """`hosts` are the host names that are known; their short forms are found too."""
        self._numbers: dict[str, _Numbers] = {}
        names = {name for name in hosts if _is_telling(name)}
        names |= {short for name in names if _is_telling(short := name.partition(".")[0])}
        self._short = {name: name.partition(".")[0] for name in names}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        self._hosts = (
            re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])")
            if names
            else None
        )

    def _number(self, kind: str, thing: str) -> int:
        return self._numbers.setdefault(kind, _Numbers()).of(thing.lower())

    def text(self, text: str) -> str:
        """Return a text without what is private in it."""
        text = without_secrets(text)
        text = _MAIL.sub(lambda m: f"user{self._number('mail', m[0])}@example.com", text)
        text = _HOME.sub(lambda m: f"{m[1]}user{self._number('user', m[2])}", text)
        text = _V6.sub(lambda m: self._v6(m[0]), text)
        text = _HARDWARE.sub(lambda m: self._hardware(m[0]), text)
        text = _GUID.sub(lambda m: f"0200:0000:0000:{self._number('guid', m[0]):04x}", text)
        text = _V4.sub(lambda m: self._v4(m[0]), text)
        if self._hosts is not None:
            text = self._hosts.sub(lambda m: self.host(m[0]), text)
        return text

    def host(self, name: str) -> str:
        """Return the other name of a host; a full name and its short form get the same."""
        short = self._short.get(name)
        return name if short is None else f"node-{self._number('host', short)}"

    def _v4(self, printed: str) -> str:
        """Replace an IPv4 address; those of one /16 and one /24 stay together."""
        octets = printed.split(".")
        if printed.startswith(_KEPT_V4) or any(int(octet) > 255 for octet in octets):
            return printed
        first, third = ".".join(octets[:2]), ".".join(octets[:3])
        parts = (
            self._number("v4", first),
            self._number(f"v4 {first}", third),
            self._number(f"v4 {third}", printed),
        )
        return "10." + ".".join(str((part - 1) % 255 + 1) for part in parts)

    def _v6(self, printed: str) -> str:
        try:
            address = ipaddress.IPv6Address(printed)
        except ValueError:
            return printed
        if address.is_unspecified or address.is_loopback or address.is_multicast:
            return printed
        if address.ipv4_mapped is not None:
            other = ipaddress.IPv6Address(f"::ffff:{self._v4(str(address.ipv4_mapped))}")
        else:
            base = "fe80::" if address.is_link_local else "2001:db8::"
            other = ipaddress.IPv6Address(int(ipaddress.IPv6Address(base)) + self._of_v6(address))
        return str(other) if "::" in printed else other.exploded

    def _of_v6(self, address: ipaddress.IPv6Address) -> int:
        return self._number("v6", address.exploded)

    def _hardware(self, printed: str) -> str:
        if not printed.replace(":", "").strip("0") or printed.lower() == "ff:ff:ff:ff:ff:ff":
            return printed
        head = "02:00:00" if len(printed) == 17 else ":".join(["00"] * 17)
        number = self._number("mac", printed)
        return f"{head}:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"

    def image(self, name: str) -> str:
        """Return an image name with a private registry replaced."""
        host, slash, rest = name.partition("/")
        private = slash and ("." in host or ":" in host) and host not in _PUBLIC_REGISTRIES
        return f"registry-{self._number('registry', host)}.example/{rest}" if private else name

    def value(self, value: Any, key: str = "") -> Any:
        """Return a decoded JSON value without what is private anywhere in it."""
        if isinstance(value, str):
            if key in ("image", "imageID"):
                value = self.image(value)
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, dict):
            return {
                self.text(name): self._environment(item)
                if name == "env" and isinstance(item, list)
                else self.value(item, name)
                for name, item in value.items()
                if name not in ("managedFields", _LAST_APPLIED)
            }
        return value

    def _environment(self, variables: list[Any]) -> list[Any]:
        """Drop the values of variables that are not on the allow-list."""
        kept = []
        for variable in variables:
            if isinstance(variable, dict) and "value" in variable:
                name = str(variable.get("name", ""))
                if not environment.is_readable(name):
                    variable = {**variable, "value": GONE}
            kept.append(self.value(variable))
        return kept


def without_secrets(text: str) -> str:
    """Return a text without credentials; names and addresses stay."""
    text = _TOKENS.sub(GONE, text)
    text = _BEARER.sub(rf"\1 {GONE}", text)
    text = _ASSIGNED.sub(rf"\1\2{GONE}", text)
    return _IN_URL.sub(rf"\1{GONE}@", text)


_of_report = lru_cache(2048)(without_secrets)
"""Rounds say for the most part what they said before."""


def publishable(report: Report) -> Report:
    """Return a report as it may stand in the cluster: what it quotes holds no credentials.

    Names and addresses stay: whoever may read a Diagnosis, a condition or an Event may read the
    pod and the node that it is about.
    """
    return msgspec.convert(_each_text(msgspec.to_builtins(report)), Report)


def _each_text(value: Any) -> Any:
    if isinstance(value, str):
        return _of_report(value)
    if isinstance(value, list | tuple):
        return [_each_text(item) for item in value]
    if isinstance(value, dict):
        return {key: _each_text(item) for key, item in value.items()}
    return value


def _is_telling(name: str) -> bool:
    return len(name) >= _SHORTEST_NAME and name.lower() not in _GENERIC and not name.isdigit()


def redact(bundle: Bundle) -> Bundle:
    """Return the bundle without what is private; Secrets are left out altogether."""
    objects = [msgspec.json.decode(raw) for raw in bundle.objects]
    redactor = Redactor([*bundle.hosts, *_host_names(objects), *_of_trees(bundle)])
    return msgspec.structs.replace(
        bundle,
        scope=msgspec.structs.replace(
            bundle.scope, denied=tuple(redactor.text(what) for what in bundle.scope.denied)
        ),
        objects=tuple(
            msgspec.Raw(msgspec.json.encode(redactor.value(item)))
            for item in objects
            if not (isinstance(item, dict) and item.get("kind") == "Secret")
        ),
        logs={redactor.text(key): redactor.text(text) for key, text in bundle.logs.items()},
        hosts={
            redactor.host(name): HostRecording(
                tree=redactor.value(host.tree), tree_later=redactor.value(host.tree_later)
            )
            for name, host in bundle.hosts.items()
        },
    )


def _of_trees(bundle: Bundle) -> Iterable[str]:
    for host in bundle.hosts.values():
        name = host.tree.get(_HOSTNAME)
        if isinstance(name, str):
            yield name.strip()


def _host_names(objects: list[Any]) -> Iterable[str]:
    """Yield the host names that objects of the cluster speak of."""
    for item in objects:
        if not isinstance(item, dict):
            continue
        if item.get("kind") == "Node":
            yield str(_at(item, "metadata", "name"))
            for address in _at(item, "status", "addresses") or ():
                if isinstance(address, dict) and address.get("type") in _ADDRESS_TYPES:
                    yield str(address.get("address", ""))
        elif node := _at(item, "spec", "nodeName"):
            yield str(node)


def _at(item: dict[str, Any], outer: str, inner: str) -> Any:
    found = item.get(outer)
    return found.get(inner) if isinstance(found, dict) else None
