"""The outbox: the latest state only, outages and refusals apart, and nothing lost that matters."""

from __future__ import annotations

import pytest

from gpudoctor.agent.outbox import FIRST_DELAY_S, MOST_REFUSED_DELAY_S, Entry, Outbox
from gpudoctor.errors import InputError
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)

MOST = 8.0
OUTAGES = [
    UnreachableError("connection refused"),
    UnauthorizedError("the token has expired"),
    RefusedError("too many requests", 429),
    RefusedError("no leader", 503),
    InputError("the token cannot be read"),
]
REFUSALS = [
    ConflictError("kubectl owns it", 409),
    ForbiddenError("the policy says no"),
    RefusedError("invalid", 422),
    NotFoundError("gone"),
]


class Server:
    """Takes writes, or fails them as `failing` says by their path."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.taken: list[str] = []
        self.tried = 0
        self.failing: dict[str, InputError] = {}
        self.said: list[str] = []
        self.outbox = Outbox(
            self.send, most_delay_s=MOST, said=self.said.append, clock=lambda: self.now
        )

    def send(self, write: Write) -> None:
        self.tried += 1
        error = self.failing.get(write.path) or self.failing.get("")
        if error is not None:
            raise error
        self.taken.append(write.path)

    def put(self, key: str, *paths: str, minor: bool = False) -> None:
        self.outbox.put(key, Entry(writes=writes(*paths), minor=minor))

    def wait(self) -> float:
        """Let the time pass until something is due, and flush; how long that was."""
        seconds = self.outbox.wait_s()
        assert seconds is not None
        self.now += seconds
        self.outbox.flush()
        return seconds


def writes(*paths: str) -> tuple[Write, ...]:
    return tuple(Write(what=path, method="PATCH", path=path) for path in paths)


@pytest.fixture
def server() -> Server:
    return Server()


def test_sends_what_was_put_in_its_order(server: Server) -> None:
    server.put("diagnosis", "object", "status")
    server.put("labels", "node")
    server.outbox.flush()
    assert server.taken == ["object", "status", "node"]
    assert len(server.outbox) == 0
    assert server.outbox.wait_s() is None


def test_only_the_latest_state_of_an_object_is_sent(server: Server) -> None:
    for number in range(1000):
        server.put("labels", f"state {number}")
    assert len(server.outbox) == 1
    server.outbox.flush()
    assert server.taken == ["state 999"]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: type(error).__name__)
def test_an_outage_stops_all_and_is_waited_out_with_growing_pauses(
    server: Server, error: InputError
) -> None:
    server.failing[""] = error
    server.put("labels", "old labels")
    server.put("lease", "lease")
    server.outbox.flush()
    assert server.tried == 1, "the second write was sent into the outage, too"
    pauses = [server.wait() for _ in range(8)]
    assert FIRST_DELAY_S / 2 <= pauses[0] <= FIRST_DELAY_S
    assert all(pause <= MOST for pause in pauses)
    assert pauses[-1] >= MOST / 2
    server.put("labels", "new labels")
    server.failing.clear()
    server.wait()
    assert server.taken == ["new labels", "lease"]
    assert len(server.said) == 2, "one line for its start and one for its end"
    assert server.outbox.counts["unreachable"] == 9


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refusal_concerns_its_own_object_alone(server: Server, error: InputError) -> None:
    server.failing["node"] = error
    server.put("labels", "node")
    server.put("lease", "lease")
    server.outbox.flush()
    assert server.taken == ["lease"]
    pauses = [server.wait() for _ in range(8)]
    assert pauses[0] <= MOST, "a server that has just started may refuse what it allows later"
    assert pauses[:7] == sorted(pauses[:7])
    assert pauses[-1] >= MOST_REFUSED_DELAY_S / 2
    assert len(server.said) == 1
    server.failing.clear()
    server.wait()
    assert server.taken == ["lease", "node"]


def test_a_new_state_does_not_end_the_pause_after_a_refusal(server: Server) -> None:
    server.failing["node"] = ForbiddenError("no")
    for _ in range(20):
        server.put("labels", "node")
        server.outbox.flush()
    assert server.tried == 1


def test_an_event_that_is_refused_is_dropped(server: Server) -> None:
    server.failing["event"] = NotFoundError("the namespace is gone")
    server.put("event", "event", minor=True)
    server.outbox.flush()
    assert len(server.outbox) == 0


def test_an_event_outlives_an_outage(server: Server) -> None:
    server.failing[""] = UnreachableError("down")
    server.put("event", "event", minor=True)
    server.outbox.flush()
    server.failing.clear()
    server.wait()
    assert server.taken == ["event"]


def test_what_is_refused_may_be_sent_otherwise(server: Server) -> None:
    server.failing["status"] = NotFoundError("no such Diagnosis")

    def made(error: InputError) -> tuple[Write, ...]:
        del server.failing["status"]
        return writes("object", "status") if isinstance(error, NotFoundError) else ()

    server.outbox.put("diagnosis", Entry(writes=writes("status"), refused=made))
    server.outbox.flush()
    assert server.taken == ["object", "status"]


def test_what_is_dropped_is_not_sent(server: Server) -> None:
    server.failing["node"] = ForbiddenError("no")
    server.put("labels", "node")
    server.outbox.flush()
    server.outbox.drop(["labels"])
    assert server.outbox.wait_s() is None
    server.failing.clear()
    server.put("labels", "node")
    server.outbox.flush()
    assert server.taken == ["node"], "the pause of what was dropped is over"
