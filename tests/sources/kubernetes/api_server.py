"""An HTTPS server in a thread that answers as a test says and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import trustme


@dataclass
class Asked:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    peer: str | None
    method: str = "GET"
    body: bytes = b""


@dataclass
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    raw: bytes | None = None
    pieces: Iterable[bytes] | None = None
    """The body as a stream without a known end, as that of a watch: sent as they come."""

    def encoded(self) -> bytes:
        return self.raw if self.raw is not None else json.dumps(self.body).encode()


def status(code: int, message: str, **details: str) -> Answer:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
            "code": code, "details": details}  # fmt: skip
    return Answer(body, code)


def forbidden(resource: str, verb: str, user: str = "dev") -> Answer:
    return status(
        403, f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}"'
    )


UNSERVED = Answer(status=404, raw=b"404 page not found\n")


class ApiServer:
    """`answer` is called for each request; `asked` lists them."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.url = ""


@contextlib.contextmanager
def serving(
    answer: Callable[[Asked], Answer],
    certificate: trustme.LeafCert | None = None,
    client_authority: trustme.CA | None = None,
    host: str = "127.0.0.1",
) -> Iterator[ApiServer]:
    api = ApiServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query, headers = dict(parse_qsl(parts.query)), dict(self.headers)
            asked = Asked(parts.path, query, headers, self.peer(), self.command, body)
            api.asked.append(asked)
            reply = api.answer(asked)
            if reply.pieces is not None:
                self.stream(reply.pieces)
                return
            content = reply.encoded()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: reply.cut_at])

        do_PATCH = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def stream(self, pieces: Iterable[bytes]) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):  # whoever listened may go
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        def peer(self) -> str | None:
            if not isinstance(self.connection, ssl.SSLSocket):
                return None
            found: Any = self.connection.getpeercert() or {}
            return dict(pair[0] for pair in found.get("subject", ())).get("commonName")

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = False

        def handle_error(self, *_: object) -> None:
            pass

    server = Server((host, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        if client_authority is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            client_authority.configure_trust(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    port = server.server_address[1]
    name = f"[{host}]" if ":" in host else host
    api.url = f"{'https' if certificate else 'http'}://{name}:{port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def proxying() -> Iterator[tuple[str, list[str]]]:
    """A CONNECT proxy; yields its URL and the list of targets that it was asked for."""
    targets: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            target = self.rfile.readline().split()[1].decode()
            targets.append(target)
            while self.rfile.readline().strip():
                pass
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                ends = {upstream: self.connection, self.connection: upstream}
                while True:
                    for source in select.select(list(ends), [], [])[0]:
                        data = source.recv(65536)
                        if not data:
                            return
                        ends[source].sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", targets
        finally:
            server.shutdown()
            thread.join()
