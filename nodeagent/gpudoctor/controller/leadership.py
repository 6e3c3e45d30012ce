"""Runs for the leader's Lease in a thread of its own, so that slow work never costs the lead.

The rules are in publish/election.py. Whoever writes as the leader asks `leads` before each write:
it is a matter of time alone, so that a renewal that hangs ends the lead as one that is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gpudoctor.controller.writer import deliver
from gpudoctor.errors import InputError
from gpudoctor.publish import brake, election, names
from gpudoctor.publish.brake import Braked
from gpudoctor.publish.election import Candidate, Held
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    GarbledError,
    NotFoundError,
)
from gpudoctor.sources.kubernetes.kinds import LEASE


class ByHand(msgspec.Struct, frozen=True):
    """A person put the brake on the Lease, or took it off (None)."""

    braked: Braked | None


class Leadership:
    """The lead of one controller. `identity` tells it from the others; `say` hears of changes."""

    def __init__(
        self, client: Client, namespace: str, identity: str, say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._candidate = Candidate(identity, namespace)
        self._say = say
        self._lock = threading.Lock()
        self._soon = threading.Event()
        self._braked: Braked | None = None
        self._by_hand: ByHand | None = None
        self._led = False
        self._trouble = ""

    def leads(self) -> bool:
        """Whether this controller leads now, with time left for a write."""
        with self._lock:
            return self._candidate.leads(time.monotonic())

    def trouble(self) -> str:
        """What keeps the Lease from being read or written, empty if nothing does."""
        return self._trouble

    def braked(self) -> Braked | None:
        """The brake on the Lease, as this leader found or put it there."""
        with self._lock:
            return self._braked

    def brake(self, braked: Braked | None) -> None:
        """Put the brake on the Lease, or take it off, with the next renewal, which is due now."""
        with self._lock:
            self._braked = braked
        self._soon.set()

    def by_hand(self) -> ByHand | None:
        """What a person did to the brake on the Lease since this was last asked, None: nothing."""
        with self._lock:
            done, self._by_hand = self._by_hand, None
            return done

    def run(self, stop: threading.Event) -> None:
        """Run for the lead and keep it until `stop`, then give it back; never raises."""
        while not stop.is_set():
            self._soon.clear()
            try:
                self._step()
                self._trouble = ""
            except InputError as error:
                self._failed(error)
            self._notice()
            # `stop` sets nothing that this waits for; RETRY bounds how late it is seen.
            self._soon.wait(election.RETRY)
        self._release()

    def end(self) -> None:
        """Wake the thread up, to see `stop`."""
        self._soon.set()

    def _step(self) -> None:
        """One look or renewal. A leader renews what it last wrote; only a refusal makes it read."""
        if not self.leads():
            self._look()
        with self._lock:
            now = time.monotonic()
            if not self._candidate.may_write(now):
                return
            held = self._candidate.held
            if not self._candidate.leads(now):
                # The brake outlives the leader that put it on.
                self._braked = brake.parse(held.brake) if held else None
            text = self._braked.text() if self._braked else None
            write = self._candidate.write(datetime.now(UTC), text)
        try:
            self._renew(write)
        except ConflictError:
            self._look()
            self._see_hand(held)
            self._soon.set()

    def _renew(self, write: Write) -> None:
        asked_at = time.monotonic()
        held = _held(deliver(self._client, write))
        with self._lock:
            self._candidate.renewed(held, asked_at)

    def _look(self) -> None:
        held: Held | None = None
        try:
            held = _held(self._client.get(LEASE, names.LEADER_LEASE, self._namespace))
        except NotFoundError:
            held = None
        with self._lock:
            self._candidate.saw(held, time.monotonic())

    def _see_hand(self, before: Held | None) -> None:
        """Our Lease changed under our hands: whoever changed the brake on it meant to."""
        with self._lock:
            held = self._candidate.held
            if not (held and before and held.holder == self._candidate.identity):
                return
            if held.brake != before.brake:
                self._braked = brake.parse(held.brake)
                self._by_hand = ByHand(self._braked)

    def _failed(self, error: InputError) -> None:
        text = str(error)
        if text != self._trouble:
            self._say(f"the leader's Lease: {text}")
        self._trouble = text
        if isinstance(error, ForbiddenError):
            with self._lock:
                self._candidate.step_down()

    def _notice(self) -> None:
        leads = self.leads()
        if leads != self._led:
            self._led = leads
            self._say("leads now" if leads else "leads no longer")

    def _release(self) -> None:
        with self._lock:
            write = self._candidate.release(datetime.now(UTC))
            self._candidate.step_down()
        self._notice()
        if write is not None:
            try:
                deliver(self._client, write)
            except InputError as error:
                self._say(f"the lead could not be given back, and ends by itself: {error}")


def _held(raw: msgspec.Raw) -> Held:
    try:
        return election.read(bytes(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbledError(f"Lease {names.LEADER_LEASE}: not a Lease: {error}") from error
