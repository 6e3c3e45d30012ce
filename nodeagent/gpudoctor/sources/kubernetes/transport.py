"""The requests session to one API server: TLS by our own context, proxies by explicit rule.

`trust_env` is off: a netrc would replace the token, REQUESTS_CA_BUNDLE the cluster's authority.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import requests.utils
import urllib3
from requests.adapters import HTTPAdapter

from gpudoctor import __version__
from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes.access import Access, Cluster, Identity

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _Adapter(HTTPAdapter):
    """An adapter that uses one TLS context and nothing that requests would add to it."""

    def __init__(self, context: ssl.SSLContext | None, server_name: str | None) -> None:
        self._tls: dict[str, Any] = {}
        if context is not None:
            self._tls["ssl_context"] = context
            if server_name:
                self._tls["server_hostname"] = server_name
        super().__init__()

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **kwargs: Any
    ) -> None:
        super().init_poolmanager(connections, maxsize, block, **kwargs, **self._tls)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, **kwargs, **self._tls)

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """The context verifies; requests would add its own bundle of authorities here."""


def open_session(access: Access, identity: Identity) -> requests.Session:
    """Return a session for the access; the certificate is the one of this identity."""
    session = requests.Session()
    session.trust_env = False
    session.headers.update({
        "Accept": "application/json",
        "User-Agent": f"gpudoctor/{__version__}",
        **access.headers,
    })  # fmt: skip
    cluster = access.cluster
    context = None
    if cluster.server.startswith("https:"):
        context = _context(cluster, identity, access.origin)
        session.verify = not cluster.insecure
    session.mount("http://", _Adapter(None, None))
    session.mount("https://", _Adapter(context, cluster.tls_server_name))
    session.proxies.update(_proxies(cluster))
    return session


def _context(cluster: Cluster, identity: Identity, origin: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=_text(cluster, origin))
    # Python 3.13 turned this on; the authorities of many clusters lack the key identifiers.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    elif cluster.authority is None and not _has_system_roots():
        context.load_verify_locations(requests.utils.DEFAULT_CA_BUNDLE_PATH)
    if identity.certificate and identity.key:
        _load_pair(context, identity.certificate, identity.key, origin)
    return context


def _has_system_roots() -> bool:
    paths = ssl.get_default_verify_paths()
    return any((paths.cafile, paths.capath))


def _text(cluster: Cluster, origin: str) -> str | None:
    if cluster.authority is None:
        return None
    try:
        text = cluster.authority.decode("ascii", "ignore")  # a bundle may have comments
        ssl.create_default_context(cadata=text)
    except (ValueError, ssl.SSLError) as error:
        raise InputError(f"{origin}: certificate-authority is not a PEM certificate") from error
    return text


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, origin: str) -> None:
    with _private_file(certificate) as certificate_file, _private_file(key) as key_file:
        try:
            # Without `password` OpenSSL would stop and ask for one on the terminal.
            context.load_cert_chain(certificate_file, key_file, password=lambda: b"")
        except (ValueError, OSError) as error:
            raise InputError(
                f"{origin}: client-certificate and client-key are not a PEM pair"
                f" without passphrase ({getattr(error, 'reason', None) or type(error).__name__})"
            ) from error


@contextlib.contextmanager
def _private_file(content: bytes) -> Iterator[Path]:
    """A file that only we can read, for as long as OpenSSL, which takes no bytes, needs it."""
    handle, name = tempfile.mkstemp(prefix="gpudoctor-")  # made with mode 0600
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        yield Path(name)
    finally:
        Path(name).unlink()


def _proxies(cluster: Cluster) -> dict[str, str]:
    """The cluster's proxy, else HTTPS_PROXY and NO_PROXY as kubectl reads them."""
    host = urlsplit(cluster.server).hostname
    scheme = urlsplit(cluster.server).scheme
    if cluster.proxy:
        return {scheme: cluster.proxy}
    if host in _LOOPBACK or requests.utils.should_bypass_proxies(cluster.server, None):
        return {}
    name = f"{scheme}_proxy"
    proxy = os.environ.get(name.upper()) or os.environ.get(name)
    return {scheme: proxy} if proxy else {}
