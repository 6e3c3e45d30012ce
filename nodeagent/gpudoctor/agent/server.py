"""The agent's HTTP endpoint: /metrics, /healthz and /readyz, in threads of the parent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, has_dualstack_ipv6
from typing import Any
from urllib.parse import urlsplit

from gpudoctor.errors import InputError

_MOST_AT_ONCE = 8
_CONNECTION_S = 5.0
"""A peer that sends or takes nothing for so long is left."""

Page = Callable[[], "bytes | str"]
"""Returns the page; a str is the reason why there is none, for status 503."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.contextmanager
def serving(address: str, pages: Mapping[str, Page]) -> Iterator[int]:
    """Serve the pages by path on `HOST:PORT` (`:9400` is all addresses); yields the port.

    InputError where the address is none or is taken.
    """
    host, port = parse(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = _CONNECTION_S

        def do_GET(self) -> None:
            page = pages.get(urlsplit(self.path).path)
            answer: bytes | str = "no such page" if page is None else page()
            status = HTTPStatus.NOT_FOUND if page is None else HTTPStatus.OK
            if page is not None and isinstance(answer, str):
                status = HTTPStatus.SERVICE_UNAVAILABLE
            body = answer.encode() + b"\n" if isinstance(answer, str) else answer
            self.send_response(status)
            self.send_header("Content-Type", TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "gpudoctor"

        def log_message(self, *_: object) -> None:
            """Say nothing: a probe every few seconds is no news."""

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise InputError(f"--listen {address}: {error.strerror or error}") from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def parse(address: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT` or `:PORT`; InputError if it is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InputError(f"--listen {address}: not HOST:PORT or :PORT")
    return host.strip("[]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        six = ":" in address[0] or (not address[0] and has_dualstack_ipv6())
        self.address_family = AF_INET6 if six else AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind; on all addresses also those of IPv4."""
        import socket

        if self.address_family == AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or not at all while all are taken."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no news."""
