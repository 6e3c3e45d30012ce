"""The client against a real HTTPS server: TLS, proxies, retries, paging, and what it says."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed, Identity
from gpudoctor.sources.kubernetes.client import PAGE, Client, connect
from gpudoctor.sources.kubernetes.credentials import TokenFile
from gpudoctor.sources.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    GarbledError,
    NotFoundError,
    NotServedError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from tests.sources.kubernetes.api_server import (
    UNSERVED,
    Answer,
    ApiServer,
    Asked,
    forbidden,
    proxying,
    serving,
    status,
)

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer-0", "namespace": "ml"}}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def api(authority: trustme.CA) -> Iterator[ApiServer]:
    with serving(lambda _: Answer(POD), authority.issue_cert("127.0.0.1", "localhost")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def naps() -> list[float]:
    return []


@pytest.fixture
def open_client(
    api: ApiServer, authority: trustme.CA, naps: list[float]
) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def make(credentials: Any = None, **cluster: Any) -> Client:
        settings = {"server": api.url, "authority": authority.cert_pem.bytes(), **cluster}
        access = Access(
            cluster=Cluster(**settings),
            credentials=credentials or Fixed(Identity("Bearer secret-token")),
            origin="context 'test'",
        )
        opened.append(Client(access, sleep=naps.append))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


Open = Callable[..., Client]


def script(api: ApiServer, *answers: Answer) -> None:
    waiting = list(answers)
    api.answer = lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def pods(*names: str, token: str = "") -> Answer:
    items = [{"metadata": {"name": name, "namespace": "ml"}} for name in names]
    return Answer(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": token}, "items": items}
    )


def get(client: Client) -> Any:
    return json.loads(bytes(client.get(kinds.POD, "trainer-0", "ml")))


def complaint(client: Client, error: type[Exception] = UnreachableError) -> str:
    with pytest.raises(error) as caught:
        get(client)
    assert isinstance(caught.value, InputError)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def test_gets_an_object_with_the_token(api: ApiServer, open_client: Open) -> None:
    client = open_client()
    assert get(client) == POD
    assert api.asked[0].path == "/api/v1/namespaces/ml/pods/trainer-0"
    assert api.asked[0].headers["Authorization"] == "Bearer secret-token"
    assert client.requests == 1
    assert client.now.tzinfo is not None


def test_names_are_quoted(api: ApiServer, open_client: Open) -> None:
    open_client().get(kinds.POD, "../../nodes", "a/b")
    assert api.asked[0].path == "/api/v1/namespaces/a%2Fb/pods/..%2F..%2Fnodes"


def test_environment_does_not_override(
    api: ApiServer, open_client: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(tmp_path / "ca.pem"))
    get(open_client())
    assert api.asked[0].headers["Authorization"] == "Bearer secret-token"


def test_server_below_a_path(api: ApiServer, open_client: Open) -> None:
    get(open_client(server=f"{api.url}/k8s/clusters/c-x"))
    assert api.asked[0].path == "/k8s/clusters/c-x/api/v1/namespaces/ml/pods/trainer-0"


def test_scheme_in_upper_case(api: ApiServer) -> None:
    with connect(server=api.url.replace("https", "HTTPS")) as client:
        assert client.server == api.url


def test_ipv6_server(authority: trustme.CA, open_client: Open) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with serving(lambda _: Answer(POD), authority.issue_cert("::1"), host="::1") as server:
            assert get(open_client(server=server.url)) == POD
    except OSError:
        pytest.skip("no ::1 here")


# -- TLS ---------------------------------------------------------------------------------------


def test_certificate_for_another_name(authority: trustme.CA, open_client: Open) -> None:
    with serving(lambda _: Answer(POD), authority.issue_cert("kubernetes")) as server:
        assert "for another name" in complaint(open_client(server=server.url))
        assert get(open_client(server=server.url, tls_server_name="kubernetes")) == POD


def test_unknown_authority(open_client: Open) -> None:
    other = trustme.CA().cert_pem.bytes()
    assert "known authority" in complaint(open_client(authority=other))
    assert "known authority" in complaint(open_client(authority=None))


def test_insecure(open_client: Open) -> None:
    assert get(open_client(authority=None, insecure=True)) == POD


def test_authority_that_is_no_certificate(open_client: Open) -> None:
    for garbage in (b"garbage", b"\xff\x00"):
        assert "PEM certificate" in complaint(open_client(authority=garbage), InputError)


def test_client_certificate_leaves_no_file(
    authority: trustme.CA, open_client: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = authority.issue_cert(common_name="dev", organization_name="team")
    identity = Identity(
        certificate=mine.cert_chain_pems[0].bytes(), key=mine.private_key_pem.bytes()
    )
    certificate = authority.issue_cert("127.0.0.1")
    with serving(lambda _: Answer(POD), certificate, authority) as server:
        get(open_client(Fixed(identity), server=server.url))
        assert server.asked[0].peer == "dev"
        assert "Authorization" not in server.asked[0].headers
    assert list(tmp_path.iterdir()) == []


def test_key_of_another_certificate(authority: trustme.CA, open_client: Open) -> None:
    one, other = authority.issue_cert("a"), authority.issue_cert("b")
    pair = Identity(certificate=one.cert_chain_pems[0].bytes(), key=other.private_key_pem.bytes())
    assert "PEM pair" in complaint(open_client(Fixed(pair)), InputError)


def test_plain_http_behind_https(open_client: Open) -> None:
    with serving(lambda _: Answer(POD)) as server:
        assert "TLS failed" in complaint(open_client(server=server.url.replace("http", "https")))


# -- no answer ---------------------------------------------------------------------------------


def test_connection_refused(open_client: Open, naps: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = open_client(server=f"https://127.0.0.1:{port}")
    assert "connection refused" in complaint(client)
    assert naps == []


def test_name_that_does_not_resolve(open_client: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert "DNS" in complaint(open_client(server="https://nowhere.invalid:6443"))


def test_time_out(open_client: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.sources.kubernetes.client._READ_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = open_client(server=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "no answer in time" in complaint(client)
        assert client.requests == 1


def test_trickling_answer_is_bounded(open_client: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.sources.kubernetes.client._ANSWER_SECONDS", -1.0)
    assert "took over" in complaint(open_client())


def test_body_cut_off_is_asked_again(api: ApiServer, open_client: Open, naps: list[float]) -> None:
    script(api, Answer(POD, cut_at=20), Answer(POD))
    assert get(open_client()) == POD
    assert len(api.asked) == 2
    script(api, Answer(POD, cut_at=20))
    assert "cut" in complaint(open_client())
    assert len(api.asked) == 2 + 4


# -- refusals ----------------------------------------------------------------------------------


def test_unauthorized(api: ApiServer, open_client: Open) -> None:
    script(api, status(401, "Unauthorized"))
    text = complaint(open_client(), UnauthorizedError)
    assert "context 'test'" in text
    assert len(api.asked) == 1


def test_token_is_read_again_after_401(api: ApiServer, open_client: Open, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def answer(asked: Asked) -> Answer:
        token.write_text("new")
        fresh = asked.headers["Authorization"] == "Bearer new"
        return Answer(POD) if fresh else status(401, "Unauthorized")

    api.answer = answer
    client = open_client(TokenFile(token))
    assert get(client) == POD
    assert client.requests == 2
    api.answer = lambda _: status(401, "Unauthorized")
    complaint(client, UnauthorizedError)
    assert client.requests == 3


def test_token_rotates_between_requests(api: ApiServer, open_client: Open, tmp_path: Path) -> None:
    token = tmp_path / "token"
    client = open_client(TokenFile(token))
    for value in ("one", "two"):
        token.write_text(value + "\n")
        get(client)
    assert [asked.headers["Authorization"] for asked in api.asked] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("ask", "needs"),
    [
        (lambda c: c.get(kinds.POD, "a", "ml"), "get pods in namespace ml"),
        (lambda c: c.list(kinds.POD), "list pods (cluster-wide)"),
        (lambda c: c.get(kinds.NODE, "n"), "get nodes"),
        (lambda c: c.list(kinds.CLUSTER_QUEUE), "list clusterqueues.kueue.x-k8s.io"),
        (lambda c: c.log("ml", "a", "main"), "get pods/log in namespace ml"),
    ],
)
def test_forbidden_names_the_permission(
    api: ApiServer, open_client: Open, ask: Callable[[Client], object], needs: str
) -> None:
    script(api, forbidden("pods", "list", user="system:serviceaccount:ml:dev"))
    with pytest.raises(ForbiddenError) as caught:
        ask(open_client())
    assert str(caught.value) == f"needs {needs}: user 'system:serviceaccount:ml:dev' may not"
    assert len(api.asked) == 1


def test_forbidden_for_anonymous_and_without_status(api: ApiServer, open_client: Open) -> None:
    script(api, forbidden("pods", "get", user="system:anonymous"))
    assert "no credentials" in complaint(open_client(), ForbiddenError)
    script(api, Answer(status=403, raw=b"<h3>Unauthorized</h3>"))
    assert "<h3>Unauthorized</h3>" in complaint(open_client(), ForbiddenError)


def test_not_found(api: ApiServer, open_client: Open) -> None:
    script(api, status(404, 'pods "trainer-0" not found', name="trainer-0"))
    text = complaint(open_client(), NotFoundError)
    assert text == 'not found: pods "trainer-0" not found'


def test_redirect_is_not_followed(api: ApiServer, open_client: Open) -> None:
    script(api, Answer(status=302, headers={"Location": "https://login.example/"}))
    assert "redirects (302)" in complaint(open_client(), RefusedError)
    assert len(api.asked) == 1


def test_answers_that_are_no_objects(api: ApiServer, open_client: Open) -> None:
    for raw in (
        b"<html>Sign in</html>",
        b"",
        b"[]",
        b'"text"',
        b"{",
        b"\xff",
        b'{"a":' + b"[" * 100_000,
    ):
        script(api, Answer(raw=raw, headers={"Content-Type": "text/html"}))
        assert "not a Kubernetes object" in complaint(open_client(), GarbledError)
    script(api, Answer({}))
    with pytest.raises(GarbledError):
        open_client().list(kinds.POD)


def test_retries_honour_retry_after(api: ApiServer, open_client: Open, naps: list[float]) -> None:
    busy = Answer(status=429, raw=b"busy", headers={"Retry-After": "3"})
    script(api, busy, Answer(status=503, raw=b""), Answer(POD))
    client = open_client()
    assert get(client) == POD
    assert naps == [3.0, 1.0]
    assert client.requests == 3


def test_retries_are_bounded(api: ApiServer, open_client: Open, naps: list[float]) -> None:
    script(api, Answer(status=500, raw=b"etcd leader changed", headers={"Retry-After": "9999"}))
    assert "HTTP 500: etcd leader changed" in complaint(open_client(), RefusedError)
    assert naps == [20.0, 20.0, 20.0]


# -- lists -------------------------------------------------------------------------------------


def test_list_reads_all_pages_with_selectors(api: ApiServer, open_client: Open) -> None:
    script(api, pods("a", "b", token="t1"), pods("c", token="t2"), pods("d"))
    listing = open_client().list(kinds.POD, fields="spec.nodeName=n", labels="a=b,c in (d)")
    found = [json.loads(bytes(raw)) for raw in listing.objects]
    assert [pod["metadata"]["name"] for pod in found] == ["a", "b", "c", "d"]
    assert {(pod["apiVersion"], pod["kind"]) for pod in found} == {("v1", "Pod")}
    assert listing.whole
    expected = {
        "limit": str(PAGE), "fieldSelector": "spec.nodeName=n", "labelSelector": "a=b,c in (d)",
    }  # fmt: skip
    assert [asked.query for asked in api.asked] == [
        expected, {**expected, "continue": "t1"}, {**expected, "continue": "t2"},
    ]  # fmt: skip


def test_list_of_bounded_pages_says_so(api: ApiServer, open_client: Open) -> None:
    script(api, pods("a", token="t1"))
    assert not open_client().list(kinds.POD, max_pages=1).whole


def test_expired_list_starts_again_in_one_piece(api: ApiServer, open_client: Open) -> None:
    script(api, pods("a", token="t1"), status(410, "too old"), pods("a", "b"))
    listing = open_client().list(kinds.POD)
    assert len(listing.objects) == 2
    assert "limit" not in api.asked[-1].query
    assert "continue" not in api.asked[-1].query


def test_list_that_does_not_end(api: ApiServer, open_client: Open) -> None:
    script(api, pods("a", token="t1"))
    with pytest.raises(GarbledError, match="does not end"):
        open_client().list(kinds.POD)


def test_null_items_and_empty_items(api: ApiServer, open_client: Open) -> None:
    script(api, Answer({"kind": "PodList", "items": None}))
    assert open_client().list(kinds.POD).objects == ()
    script(api, Answer({"kind": "PodList", "items": [{}]}))
    only = open_client().list(kinds.POD).objects[0]
    assert json.loads(bytes(only)) == {"apiVersion": "v1", "kind": "Pod"}


def test_older_versions_are_tried_and_remembered(api: ApiServer, open_client: Open) -> None:
    def answer(asked: Asked) -> Answer:
        if "/v1beta1/" not in asked.path:
            return UNSERVED
        return Answer({"kind": "ResourceSliceList", "items": [{"metadata": {"name": "s"}}]})

    api.answer = answer
    client = open_client()
    for expected in (3, 4):
        listing = client.list(kinds.RESOURCE_SLICE)
        assert client.requests == expected
        assert json.loads(bytes(listing.objects[0]))["apiVersion"] == "resource.k8s.io/v1beta1"
    with pytest.raises(NotServedError) as caught:
        open_client().list(kinds.RESOURCE_SLICE, tries=2)
    assert not caught.value.all_tried
    api.answer = lambda _: UNSERVED
    with pytest.raises(NotServedError) as caught:
        open_client().list(kinds.RESOURCE_SLICE)
    assert caught.value.all_tried


def test_log(api: ApiServer, open_client: Open) -> None:
    script(api, Answer(raw=b"line \xff\n{not json"))
    text = open_client().log("ml", "a", "main", previous=True, limit_bytes=10, tail_lines=5)
    assert text == "line \ufffd\n{not json"
    assert api.asked[0].query == {
        "container": "main", "previous": "true", "limitBytes": "10", "tailLines": "5",
    }  # fmt: skip


# -- proxies and connect -----------------------------------------------------------------------


def test_proxy_of_the_kubeconfig(authority: trustme.CA, open_client: Open, api: ApiServer) -> None:
    with proxying() as (url, targets):
        client = open_client(proxy=url)
        assert get(client) == POD
        client.close()
    assert targets == [api.url.removeprefix("https://")]


def test_proxy_of_the_environment(
    open_client: Open, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxying() as (url, targets):
        monkeypatch.setenv("HTTPS_PROXY", url)
        get(open_client())
        assert targets == []  # never for this machine itself
        monkeypatch.setattr("gpudoctor.sources.kubernetes.transport._LOOPBACK", frozenset())
        client = open_client()
        get(client)
        client.close()
        assert len(targets) == 1
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,127.0.0.1")
        get(open_client())
    assert len(targets) == 1


def test_proxy_that_is_not_there_or_not_possible(open_client: Open) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = complaint(open_client(proxy=f"http://me:secret@127.0.0.1:{port}"))
    assert f"the proxy http://127.0.0.1:{port} cannot be used" in text


def test_server_alone_is_asked_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/does/not/matter")
    with (
        serving(lambda _: Answer(POD)) as server,
        connect(server=server.url + "/") as client,
    ):
        assert get(client) == POD
        assert client.namespace == "default"
        assert "Authorization" not in server.asked[0].headers


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8001", "ftp://a", "https://", "https://a:b", "http://[::1", "https://u@h", "x y"],
)
def test_server_that_is_no_url(url: str) -> None:
    with pytest.raises(InputError, match="--server"):
        connect(server=url)


def test_a_write_is_sent_as_it_is_and_its_answer_returned(
    api: ApiServer, open_client: Callable[..., Client]
) -> None:
    answer = open_client().send(
        "PATCH",
        "/api/v1/nodes/gpu-1",
        b'{"metadata": {}}',
        content_type="application/merge-patch+json",
        query={"fieldManager": "us"},
        what="labels of Node gpu-1",
    )
    (asked,) = api.asked
    assert (asked.method, asked.path, asked.body) == (
        "PATCH",
        "/api/v1/nodes/gpu-1",
        b'{"metadata": {}}',
    )
    assert asked.query == {"fieldManager": "us"}
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(bytes(answer)) == POD


def test_a_created_object_is_a_success(api: ApiServer, open_client: Callable[..., Client]) -> None:
    api.answer = lambda _: Answer(POD, 201)
    path = "/api/v1/namespaces/ml/pods"
    assert json.loads(bytes(open_client().send("POST", path, b"{}", what="a pod"))) == POD


def test_a_write_is_repeated_when_the_server_is_too_busy(
    api: ApiServer, open_client: Callable[..., Client], naps: list[float]
) -> None:
    answers = iter([status(429, "too many requests"), Answer(POD)])
    api.answer = lambda _: next(answers)
    open_client().send("PATCH", "/api/v1/nodes/gpu-1", b"{}", what="labels of Node gpu-1")
    assert [asked.body for asked in api.asked] == [b"{}", b"{}"]
    assert len(naps) == 1


def test_a_conflict_is_told_apart_and_not_repeated(
    api: ApiServer, open_client: Callable[..., Client]
) -> None:
    api.answer = lambda _: status(409, "the object has been modified")
    with pytest.raises(ConflictError, match="labels of Node gpu-1: conflict: the object has been"):
        open_client().send("PATCH", "/api/v1/nodes/gpu-1", b"{}", what="labels of Node gpu-1")
    assert len(api.asked) == 1
