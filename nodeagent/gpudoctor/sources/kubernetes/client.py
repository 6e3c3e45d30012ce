"""A small client of the Kubernetes API: reads objects, lists and pod logs; `send` alone writes.

Objects come back as the JSON bytes that the server sent, with the `apiVersion` and `kind`
which it leaves out of list items, so that what is read can be recorded as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import msgspec

from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed, Identity, server_url
from gpudoctor.sources.kubernetes.errors import (
    ApiError,
    GarbledError,
    NotFoundError,
    NotServedError,
    RefusedError,
    UnreachableError,
)
from gpudoctor.sources.kubernetes.kinds import Kind

if TYPE_CHECKING:
    import requests

PAGE = 500
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 30.0
_ANSWER_SECONDS = 120.0
_ATTEMPTS = 4
_FIRST_DELAY = 0.5
_MAX_DELAY = 20.0
_CHUNK = 1 << 16
_ALL = 1_000_000
_LONGEST_LINE = 16 << 20
_RETRIED = frozenset({429, 500, 502, 503, 504})
_SUCCESS = frozenset({200, 201, 202})
_GONE = 410
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
"""The `Accept` of who wants labels and annotations, and not the rest of each object."""

T = TypeVar("T")


class _ListMeta(msgspec.Struct, rename={"token": "continue", "version": "resourceVersion"}):
    token: str = ""
    version: str = ""


class _List(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None
    metadata: _ListMeta | None = None


class _TypeMeta(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""


class Listing(msgspec.Struct, frozen=True):
    """The objects of a list; `whole` is False if there are more than the pages that were read.

    `version` is the collection's resourceVersion, from which a watch goes on.
    """

    objects: tuple[msgspec.Raw, ...]
    whole: bool
    version: str = ""


class _Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: dict[str, str]
    body: bytes = b""
    content_type: str = ""
    accept: str = ""


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


def connect(
    kubeconfig: str | None = None, context: str | None = None, server: str | None = None
) -> Client:
    """Return a client as --kubeconfig, --context and --server say; nothing is sent yet.

    `server` alone is reached without credentials (`kubectl proxy`); with a kubeconfig or context
    it replaces the address in it. InputError says what is wrong with the configuration.
    """
    from gpudoctor.sources.kubernetes import kubeconfig as files

    if server is None:
        return Client(files.load(kubeconfig, context))
    address = server_url(server, "--server")
    if kubeconfig is None and context is None:
        return Client(Access(cluster=Cluster(server=address), credentials=Fixed(), origin=address))
    access = files.load(kubeconfig, context)
    cluster = msgspec.structs.replace(access.cluster, server=address)
    return Client(msgspec.structs.replace(access, cluster=cluster))


class Client:
    """A client for one access. `requests` counts what was sent, retries and renewals included."""

    def __init__(self, access: Access, sleep: Callable[[float], None] = time.sleep) -> None:
        self._access = access
        self._sleep = sleep
        self._session: requests.Session | None = None
        self._identity = Identity()
        self._served: dict[str, str] = {}
        self._server_time: datetime | None = None
        self.requests = 0

    @property
    def namespace(self) -> str:
        """The namespace of the context."""
        return self._access.namespace

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.cluster.server

    @property
    def now(self) -> datetime:
        """The server's clock as it last answered, which its timestamps follow; else ours."""
        return self._server_time or datetime.now(UTC)

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, tries: int = _ALL
    ) -> msgspec.Raw:
        """Return one object; NotFoundError and the others of `errors` say why not."""

        def ask(version: str) -> msgspec.Raw:
            path = f"{_path(kind, version, namespace)}/{quote(name, safe='')}"
            body = self._read(_Request("GET", path, {}), permission("get", kind, namespace))
            return _typed(msgspec.Raw(body), kind.api_version(version), kind.name)

        return self._in_served_version(kind, ask, tries)

    def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        fields: str = "",
        labels: str = "",
        max_pages: int = _ALL,
        tries: int = _ALL,
        metadata_only: bool = False,
        keep: Callable[[msgspec.Raw], msgspec.Raw] = lambda raw: raw,
    ) -> Listing:
        """Return the objects that both selectors select; all namespaces if none is given.

        `tries` bounds the versions of the API that are tried where the served one is not known.
        With `metadata_only` the objects are PartialObjectMetadata: `metadata` and nothing else.
        `keep` makes what is kept of each, page by page, where all of them are too much to hold.
        """
        accept = _METADATA.format("List") if metadata_only else ""

        def ask(version: str) -> Listing:
            query = {"fieldSelector": fields, "labelSelector": labels, "limit": str(PAGE)}
            path = _path(kind, version, namespace)
            request = _Request("GET", path, query, accept=accept)
            allowed = permission("list", kind, namespace)
            return self._list(kind, version, request, allowed, max_pages, keep)

        return self._in_served_version(kind, ask, tries)

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        limit_bytes: int | None = None,
        tail_lines: int | None = None,
    ) -> str:
        """Return a container's log: what the kubelet still has of its newest file."""
        query = {
            "container": container,
            "previous": "true" if previous else "",
            "limitBytes": str(limit_bytes or ""),
            "tailLines": str(tail_lines or ""),
        }
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
        # One retry: what fails here is mostly a kubelet that does not answer.
        request = _Request("GET", path, query)
        body = self._read(request, LOG_PERMISSION.format(namespace), attempts=2)
        return body.decode("utf-8", "replace")

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        what: str,
        attempts: int = _ATTEMPTS,
    ) -> msgspec.Raw:
        """Send one write and return the object that the server answers with.

        `what` says in words what is written, for messages. Only what the server refused to
        handle (429, 503) or could not finish is sent again, `attempts` times in all: our writes
        declare a state, or carry their own condition, so a second one does no harm. ConflictError
        where the object changed in between, or another owns the field.
        """
        request = _Request(method, path, dict(query or {}), body, content_type)
        answer = self._answer(request, what, attempts)
        return msgspec.Raw(answer.body)

    def lines(
        self,
        kind: Kind,
        query: Mapping[str, str],
        silence_s: float,
        *,
        metadata_only: bool = False,
    ) -> Iterator[tuple[bytes, ...]]:
        """Send a list request once and yield the lines of its answer as they come in, first none.

        For a watch, whose answer has no end: UnreachableError when nothing came for `silence_s`
        seconds, or when the stream broke. Kinds with one version only.
        """
        import requests

        from gpudoctor.sources.kubernetes.faults import unreachable

        session = self._current_session()
        path, allowed = _path(kind, kind.versions[0], None), permission("watch", kind, None)
        accept = _METADATA.format("") if metadata_only else ""
        request = _Request("GET", path, {}, accept=accept)
        self.requests += 1
        try:
            with session.get(
                self.server + path,
                params=dict(query),
                headers=_headers(request, self._identity.authorization),
                timeout=(_CONNECT_SECONDS, silence_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                if response.status_code not in _SUCCESS:
                    answer = _Answer(response.status_code, response.headers, self._body(response))
                    raise self._refusal(answer, allowed)
                yield ()
                yield from _lines(response.iter_content(None), f"{self.server}: {allowed}")
        except requests.exceptions.RequestException as error:
            proxy = next(iter(session.proxies.values()), None)
            raise unreachable(error, self.server, proxy) from error

    def _in_served_version(self, kind: Kind, ask: Callable[[str], T], tries: int) -> T:
        """Ask in the newest version that the server has, trying older ones on 404."""
        known = self._served.get(kind.group)
        versions = (known,) if known in kind.versions else kind.versions
        for number, version in enumerate(versions, 1):
            try:
                answer = ask(version)
            except NotServedError as error:
                if number == len(versions):
                    raise
                if number >= tries:
                    raise NotServedError(str(error), all_tried=False) from error
            except NotFoundError:
                self._served[kind.group] = version
                raise
            else:
                self._served[kind.group] = version
                return answer
        raise AssertionError(f"{kind.name} has no versions")

    def _list(
        self,
        kind: Kind,
        version: str,
        request: _Request,
        allowed: str,
        max_pages: int,
        keep: Callable[[msgspec.Raw], msgspec.Raw],
    ) -> Listing:
        try:
            return self._pages(kind, version, request, allowed, max_pages, keep)
        except RefusedError as error:
            if error.status != _GONE:
                raise
        # The list took longer than the server keeps its snapshot: once more, in one piece.
        request = msgspec.structs.replace(request, query={**request.query, "limit": ""})
        return self._pages(kind, version, request, allowed, max_pages, keep)

    def _pages(
        self,
        kind: Kind,
        version: str,
        request: _Request,
        allowed: str,
        max_pages: int,
        keep: Callable[[msgspec.Raw], msgspec.Raw],
    ) -> Listing:
        objects: list[msgspec.Raw] = []
        token = list_version = ""
        for _ in range(max_pages):
            query = {**request.query, "continue": token}
            body = self._read(msgspec.structs.replace(request, query=query), allowed)
            try:
                page = msgspec.json.decode(body, type=_List)
            except (msgspec.MsgspecError, ValueError) as error:
                raise GarbledError(
                    f"{self.server}: {allowed}: not a list of objects: {error}"
                ) from error
            if not page.kind.endswith("List"):
                raise GarbledError(f"{self.server}: {allowed}: answered {page.kind or 'no kind'}")
            api_version = kind.api_version(version)
            items = page.items or ()
            objects += (keep(_typed(item, api_version, kind.name)) for item in items)
            meta = page.metadata or _ListMeta()
            last, token, list_version = token, meta.token, meta.version
            if token and token == last:
                raise GarbledError(f"{self.server}: {allowed}: the list does not end")
            if not token:
                break
        return Listing(tuple(objects), whole=not token, version=list_version)

    def _read(self, request: _Request, permission: str, attempts: int = _ATTEMPTS) -> bytes:
        """Return the body of a successful GET, after retries; an ApiError says what went wrong."""
        answer = self._answer(request, permission, attempts)
        return _checked(answer, request.path, self.server, permission)

    def _answer(self, request: _Request, permission: str, attempts: int) -> _Answer:
        """Return the answer of success to a request, after retries."""
        renewed = False
        delay = _FIRST_DELAY
        while True:
            attempts -= 1
            try:
                answer = self._once(request)
            except UnreachableError as error:
                if attempts <= 0 or not error.broken:
                    raise
                self._sleep(delay)
            else:
                if answer.status in _SUCCESS:
                    return answer
                if answer.status == 401 and not renewed:
                    renewed = True
                    if self._access.credentials.renew():
                        attempts += 1
                        continue
                if answer.status not in _RETRIED or attempts <= 0:
                    raise self._refusal(answer, permission)
                self._sleep(_retry_after(answer, delay))
            delay = min(delay * 2, _MAX_DELAY)

    def _refusal(self, answer: _Answer, permission: str) -> ApiError:
        from gpudoctor.sources.kubernetes.faults import refusal

        return refusal(answer.status, answer.body, permission, self.server, self._access.origin)

    def _once(self, request: _Request) -> _Answer:
        """Send one request and read its whole answer."""
        import requests

        from gpudoctor.sources.kubernetes.faults import unreachable

        session = self._current_session()
        identity = self._identity.authorization
        self.requests += 1
        try:
            with session.request(
                request.method,
                self.server + request.path,
                params={name: value for name, value in request.query.items() if value},
                data=request.body or None,
                headers=_headers(request, identity),
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._body(response)
                self._server_time = _date(response.headers) or self._server_time
                return _Answer(response.status_code, response.headers, body)
        except requests.exceptions.RequestException as error:
            proxy = next(iter(session.proxies.values()), None)
            raise unreachable(error, self.server, proxy) from error

    def _body(self, response: requests.Response) -> bytes:
        # The read timeout is for each piece: a server that trickles needs a bound of its own.
        end = time.monotonic() + _ANSWER_SECONDS
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if time.monotonic() > end:
                raise UnreachableError(
                    f"{self.server}: the answer took over {_ANSWER_SECONDS:.0f} s"
                )
        return bytes(body)

    def _current_session(self) -> requests.Session:
        """The session for the identity of now; another certificate needs another session."""
        from gpudoctor.sources.kubernetes.transport import open_session

        identity = self._access.credentials.identity()
        pair = (self._identity.certificate, self._identity.key)
        if self._session is None or (identity.certificate, identity.key) != pair:
            self.close()
            self._session = open_session(self._access, identity)
        self._identity = identity
        return self._session


LOG_PERMISSION = "get pods/log in namespace {}"


def permission(verb: str, kind: Kind, namespace: str | None) -> str:
    """Return what RBAC must allow, in words: `list pods (cluster-wide)`."""
    if namespace is not None:
        return f"{verb} {kind.resource} in namespace {namespace}"
    return f"{verb} {kind.resource}" + (" (cluster-wide)" if kind.namespaced else "")


def _lines(pieces: Iterable[bytes], what: str) -> Iterator[tuple[bytes, ...]]:
    """Cut a stream into lines; those that came in one piece come together."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise GarbledError(f"{what}: a line of over {_LONGEST_LINE >> 20} MiB")
        yield tuple(lines)


def _path(kind: Kind, version: str, namespace: str | None) -> str:
    root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{scope}/{kind.plural}"


def _typed(item: msgspec.Raw, api_version: str, kind: str) -> msgspec.Raw:
    """Put `apiVersion` and `kind` into an object that lacks them, as items of a list do."""
    raw = bytes(item)
    found = msgspec.json.decode(raw, type=_TypeMeta)
    if found.kind and found.api_version:
        return msgspec.Raw(raw)
    head = msgspec.json.encode({"apiVersion": api_version, "kind": kind})
    rest = raw.lstrip()[1:]
    separator = b"" if rest.lstrip().startswith(b"}") else b","
    return msgspec.Raw(head[:-1] + separator + rest)


def _headers(request: _Request, identity: str | None) -> dict[str, str]:
    headers = {"Authorization": identity} if identity else {}
    if request.content_type:
        headers["Content-Type"] = request.content_type
    if request.accept:
        headers["Accept"] = request.accept
    return headers


def _checked(answer: _Answer, path: str, server: str, permission: str) -> bytes:
    """The body of a 200, which for anything but a log has to be a JSON object."""
    if path.endswith("/log"):
        return answer.body
    try:
        msgspec.json.decode(answer.body, type=_TypeMeta)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        kind = answer.headers.get("Content-Type", "no content type")
        raise GarbledError(
            f"{server}: {permission}: the answer is not a Kubernetes object ({kind}):"
            " is this the address of an API server, or does a proxy answer in its place?"
        ) from error
    return answer.body


def _retry_after(answer: _Answer, delay: float) -> float:
    """The wait that the server asks for, in seconds (it sends no dates), within bounds."""
    value = answer.headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return min(float(value), _MAX_DELAY)
    return delay


def _date(headers: Mapping[str, str]) -> datetime | None:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(headers.get("Date", "")).astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
