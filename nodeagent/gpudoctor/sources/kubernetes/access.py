"""How the API server is reached: address, TLS, and what proves who is asking."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from gpudoctor.errors import InputError


class Identity(msgspec.Struct, frozen=True):
    """What a request carries: an Authorization value, and a PEM certificate with its key."""

    authorization: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class Credentials(Protocol):
    """Where an identity comes from."""

    def identity(self) -> Identity:
        """Return the identity for the next request; InputError if it cannot be had."""

    def renew(self) -> bool:
        """After a 401: get another identity if there may be one; False if it would be the same."""


class Fixed:
    """Credentials that stay as they are: a token or certificate in the file, or none."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity or Identity()

    def identity(self) -> Identity:
        """Return the identity."""
        return self._identity

    def renew(self) -> bool:
        """Nothing else to offer."""
        return False


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """An API server. `server` may have a path; `authority` is PEM, None for the system's roots."""

    server: str
    authority: bytes | None = None
    tls_server_name: str | None = None
    insecure: bool = False
    proxy: str | None = None


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a client needs. `origin` says in messages where it was configured."""

    cluster: Cluster
    credentials: Credentials
    origin: str
    namespace: str = "default"
    headers: dict[str, str] = {}


def server_url(text: str, origin: str) -> str:
    """Check an API server's address; return it without a trailing slash, its scheme in lower case.

    `origin` says in the error where it was configured.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or any(character.isspace() for character in text):
        raise InputError(f"{origin}: server {text!r} is not a URL like https://host:6443")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InputError(f"{origin}: server must be a plain URL, without query or credentials")
    return parts.scheme + text[len(parts.scheme) :].rstrip("/")
