"""A TLS relay in front of the API server, which lets a test meddle with one request of a run."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

from tests.cluster.control_plane import LOOPBACK, ControlPlane

_PASSED_ON = ("Authorization", "Accept", "User-Agent")


@contextlib.contextmanager
def relay(
    control_plane: ControlPlane,
    *,
    headers: Callable[[int, dict[str, str]], dict[str, str]] = lambda _, sent: sent,
    halfway: Callable[[int], None] = lambda _: None,
) -> Iterator[str]:
    """The relay's URL. `headers` may change those of the nth request (from 1).

    `halfway` is called when half of the nth answer has been passed on; if the server has ended
    by then, so does the connection.
    """
    count = iter(range(1, 1_000_000))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = next(count)
            sent = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
            try:
                answer = requests.get(
                    control_plane.url + self.path,
                    headers=headers(number, sent),
                    verify=str(control_plane.authority),
                    timeout=30,
                )
            except requests.ConnectionError:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            middle = len(answer.content) // 2
            self.wfile.write(answer.content[:middle])
            halfway(number)
            if control_plane.is_serving:
                self.wfile.write(answer.content[middle:])
            else:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing on stderr."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*control_plane.server_certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
