"""Turns what requests raises and what the API server answers into one clear line."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator

import msgspec
import requests
from urllib3.exceptions import NameResolutionError

from gpudoctor.sources.kubernetes.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    NotServedError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)

_HOSTNAME_MISMATCH = (62, 64)
_EXPIRED = (9, 10)
_FORBIDDEN_USER = re.compile(r'User "([^"]*)"')
_FORBIDDEN_RIGHT = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_SNIPPET = 200
_BROKEN = (ConnectionResetError, BrokenPipeError)


class _Details(msgspec.Struct):
    name: str | None = None


class Status(msgspec.Struct):
    """The Status object that the API server sends with an error."""

    kind: str = ""
    message: str | None = None
    reason: str | None = None
    details: _Details | None = None


def status_of(body: bytes) -> Status | None:
    """Return the Status in an error's body, None if it is something else."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, ValueError):
        return None
    return status if status.kind == "Status" else None


def refusal(code: int, body: bytes, permission: str, server: str, origin: str) -> ApiError:
    """Return the error for an answer that is not a success. `permission` is as RBAC names it."""
    status = status_of(body)
    said = (status.message if status else None) or _snippet(body)
    if code == 401:
        return UnauthorizedError(
            f"{server}: the credentials of {origin} are not accepted (401: {said});"
            " they may have expired: log in again"
        )
    if code == 403:
        return _forbidden(status, said, permission)
    if code == 404:
        if status is None or status.details is None or not status.details.name:
            return NotServedError(
                f"{server} does not serve this ({permission}: {said}): is it an API server?"
            )
        return NotFoundError(f"not found: {said}")
    if code == 409:
        return ConflictError(f"{server}: {permission}: conflict: {said}", code)
    if 300 <= code < 400:
        return RefusedError(
            f"{server} redirects ({code}), which an API server does not: check the server's URL",
            code,
        )
    return RefusedError(f"{server}: {permission} failed with HTTP {code}: {said}", code)


def _forbidden(status: Status | None, said: str, permission: str) -> ForbiddenError:
    user = _FORBIDDEN_USER.search(said)
    right = _FORBIDDEN_RIGHT.search(said)
    if right and permission.split(" ")[0] != right[1]:
        # An apply of what is not there takes `create` besides.
        permission = " ".join([right[1], f"{right[2]}.{right[3]}".rstrip(".")]) + f" ({permission})"
    if user and user[1] == "system:anonymous":
        return ForbiddenError(
            f"needs {permission}: no credentials were sent or accepted (anonymous)"
        )
    if status is not None and user:
        return ForbiddenError(f"needs {permission}: user {user[1]!r} may not")
    return ForbiddenError(f"needs {permission}: {said}")


def unreachable(error: Exception, server: str, proxy: str | None) -> UnreachableError:
    """Return the error for a request that got no whole HTTP answer."""
    broken = isinstance(error, requests.exceptions.ChunkedEncodingError) or any(
        isinstance(link, _BROKEN) for link in _chain(error)
    )
    return UnreachableError(f"{server}: {_reason(error, proxy)}", broken=broken)


def _reason(error: Exception, proxy: str | None) -> str:
    chain = list(_chain(error))
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy {_without_password(proxy)} cannot be used: {_innermost(chain)}"
    for link in chain:
        reason = _known(link)
        if reason:
            return reason
    if isinstance(error, requests.exceptions.InvalidSchema):
        return "a SOCKS proxy needs the Python package PySocks"
    if isinstance(error, requests.exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut in the middle of the answer"
    return f"no usable connection: {_innermost(chain)}"


def _known(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason}): is this an HTTPS server, and our certificate right?"
    if isinstance(error, NameResolutionError | socket.gaierror):
        return "the host name cannot be resolved (DNS)"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is the address and port right, is the server up?"
    if isinstance(error, _BROKEN):
        return "the connection was reset"
    return None


def _certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _HOSTNAME_MISMATCH:
        return (
            f"the server's certificate is for another name ({error.verify_message});"
            " tls-server-name in the kubeconfig says which to expect"
        )
    if error.verify_code in _EXPIRED:
        return f"the server's certificate is not valid now ({error.verify_message})"
    return (
        f"the server's certificate is not signed by a known authority ({error.verify_message});"
        " certificate-authority in the kubeconfig says which to trust"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything it wraps: requests and urllib3 hide the cause in `args`."""
    seen: set[int] = set()
    stack: list[object] = [error]
    while stack:
        link = stack.pop()
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        stack += [link.__context__, link.__cause__, getattr(link, "reason", None), *link.args]


def _innermost(chain: list[BaseException]) -> str:
    last = chain[-1]
    return f"{type(last).__name__} {last}".strip()[:_SNIPPET]


def _without_password(proxy: str | None) -> str:
    return re.sub(r"//[^/@]*@", "//", proxy or "")


def _snippet(body: bytes) -> str:
    text = " ".join(body[:_SNIPPET].decode("utf-8", "replace").split())
    return text or "no message"
