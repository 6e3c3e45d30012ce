"""The picture of a node's pods against a real HTTPS server: changes, ends, 410, silence, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import trustme

from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.access import Access, Cluster, Fixed, Identity
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.watch import Picture
from tests.agent.small_cluster import NODE, SmallCluster
from tests.kubernetes_objects import Object, node, pod
from tests.sources.kubernetes.api_server import Answer, ApiServer, Asked, forbidden, serving, status

WAIT_SECONDS = 60.0


def a_pod(name: str, **more: Any) -> Object:
    return pod(name, node=NODE, meta={"uid": f"uid-{name}"}, **more)


class Watched:
    """A cluster, a picture of its pods that a thread keeps, and waiting for what it shows."""

    def __init__(self, cluster: SmallCluster, api: ApiServer, client: Client) -> None:
        self.cluster, self.api = cluster, api
        self._seen = threading.Condition()
        self.picture = Picture(
            client,
            kinds.POD,
            f"spec.nodeName={NODE}",
            changed=self._changed,
            most_delay_s=0.2,
            silence_s=1.0,
        )

    def _changed(self) -> None:
        with self._seen:
            self._seen.notify_all()

    def names(self) -> list[str]:
        decoded = (msgspec.json.decode(raw) for raw in self.picture.objects())
        return sorted(one["metadata"]["name"] for one in decoded)

    def until(self, *names: str) -> None:
        with self._seen:
            assert self._seen.wait_for(lambda: self.names() == sorted(names), WAIT_SECONDS), (
                self.names(),
                self.picture.failing(),
            )

    def until_asked(self, what: str, ask: Callable[[], object]) -> None:
        self.cluster.wait(what, ask)

    def lists(self) -> int:
        return sum(
            asked.path == "/api/v1/pods" and "watch" not in asked.query for asked in self.api.asked
        )

    def watches(self) -> list[Asked]:
        return [asked for asked in self.api.asked if "watch" in asked.query]


@pytest.fixture
def cluster() -> SmallCluster:
    return SmallCluster(node(NODE))


@pytest.fixture
def watched(cluster: SmallCluster) -> Iterator[Watched]:
    authority = trustme.CA()
    stop = threading.Event()
    with serving(cluster.answer, authority.issue_cert("127.0.0.1")) as api:
        access = Access(
            cluster=Cluster(server=api.url, authority=authority.cert_pem.bytes()),
            credentials=Fixed(Identity("Bearer secret-token")),
            origin="test",
        )
        with Client(access, sleep=lambda _: None) as client:
            found = Watched(cluster, api, client)
            thread = threading.Thread(target=found.picture.run, args=(stop,))
            thread.start()
            try:
                yield found
            finally:
                stop.set()
                cluster.end_streams()
                thread.join()
                cluster.end_streams()  # one that was opened in between


def test_pods_come_change_and_go(watched: Watched) -> None:
    first, second = a_pod("one"), a_pod("two")
    watched.cluster.put_pod(first)
    watched.until("one")
    watched.cluster.put_pod(second)
    watched.until("one", "two")
    assert watched.picture.failing() is None
    watched.cluster.put_pod({**second, "status": {"phase": "Failed"}})
    watched.cluster.delete_pod(first)
    watched.until("two")
    (left,) = watched.picture.objects()
    assert msgspec.json.decode(left)["status"]["phase"] == "Failed"
    assert watched.lists() == 1


def test_only_the_pods_of_its_own_node_are_asked_for_with_bookmarks(watched: Watched) -> None:
    watched.until_asked("watch", watched.watches)
    asked = watched.watches()[0]
    assert asked.query["fieldSelector"] == f"spec.nodeName={NODE}"
    assert asked.query["allowWatchBookmarks"] == "true"
    assert 100 < int(asked.query["timeoutSeconds"]) <= 300


def test_a_stream_that_ends_goes_on_from_the_last_bookmark(watched: Watched) -> None:
    watched.until_asked("watch", watched.watches)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "4711"}}
    watched.cluster.say({"type": "BOOKMARK", "object": bookmark})
    watched.cluster.end_streams()
    watched.until_asked(
        "second watch",
        lambda: "4711" in [one.query["resourceVersion"] for one in watched.watches()],
    )
    assert watched.lists() == 1
    assert watched.names() == ["one"]


@pytest.mark.parametrize("how", ["event", "status"])
def test_a_version_that_is_gone_wants_a_new_list(watched: Watched, how: str) -> None:
    watched.until_asked("watch", watched.watches)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")
    # What happens in the gap, no stream tells.
    watched.cluster.pods = {"uid-two": a_pod("two")}
    gone = {"kind": "Status", "code": 410, "message": "too old resource version: 1 (250)"}
    if how == "event":
        watched.cluster.say({"type": "ERROR", "object": gone})
    else:
        refusals = [status(410, "too old resource version")]
        watched.cluster.refuse = lambda asked: (
            refusals.pop() if refusals and "watch" in asked.query else None
        )
    watched.cluster.end_streams()
    watched.until("two")
    assert watched.lists() == 2
    assert watched.picture.failing() is None


def test_a_silent_stream_is_taken_for_dead_and_asked_for_again(watched: Watched) -> None:
    watched.until_asked("three watches", lambda: len(watched.watches()) >= 3)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")
    assert watched.lists() == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_overloaded_server_is_not_asked_for_the_whole_list_again(
    watched: Watched, code: int
) -> None:
    watched.until_asked("watch", watched.watches)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")
    watched.cluster.outage = code
    watched.cluster.end_streams()
    refused = len(watched.watches())
    watched.until_asked("watches that fail", lambda: len(watched.watches()) >= refused + 3)
    failing = watched.picture.failing()
    assert failing is not None
    assert str(code) in failing[0]
    assert watched.names() == ["one"]
    watched.cluster.outage = 0
    watched.cluster.put_pod(a_pod("two"))
    watched.until("one", "two")
    assert watched.picture.failing() is None
    assert watched.lists() == 1


def test_a_lost_right_is_told_and_does_not_end_the_thread(watched: Watched) -> None:
    watched.until_asked("watch", watched.watches)
    watched.cluster.refuse = lambda asked: forbidden("pods", "list")
    watched.cluster.end_streams()
    watched.until_asked("lists that fail", lambda: watched.lists() >= 3)
    failing = watched.picture.failing()
    assert failing is not None
    assert "pods" in failing[0]
    watched.cluster.refuse = lambda _asked: None
    watched.cluster.pods = {"uid-three": a_pod("three")}
    watched.until("three")


@pytest.mark.parametrize(
    "line", [b"not json", b"[]", b'{"type":"ADDED"}', b'{"type":"ADDED","object":{"metadata":[]}}']
)
def test_what_is_no_event_is_told_and_listed_anew(watched: Watched, line: bytes) -> None:
    watched.until_asked("watch", watched.watches)
    sent = [Answer(pieces=[line + b"\n"])]
    watched.cluster.refuse = lambda asked: sent.pop() if sent and "watch" in asked.query else None
    watched.cluster.end_streams()
    watched.until_asked("second list", lambda: watched.lists() >= 2)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")


def test_an_object_that_cannot_be_kept_does_not_end_the_thread(watched: Watched) -> None:
    watched.until_asked("watch", watched.watches)
    kept = watched.picture._keep

    def keep(raw: msgspec.Raw) -> msgspec.Raw:
        if b"odd" in bytes(raw):
            raise RuntimeError("odd")
        return kept(raw)

    watched.picture._keep = keep
    odd = a_pod("odd")
    watched.cluster.put_pod(odd)
    watched.until_asked("second list", lambda: watched.lists() >= 2)
    watched.cluster.delete_pod(odd)
    watched.cluster.put_pod(a_pod("one"))
    watched.until("one")
