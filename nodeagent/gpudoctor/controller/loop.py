"""The controller's process: runs for the lead, works while it has it, answers who asks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from gpudoctor.agent.server import serving
from gpudoctor.controller.leadership import Leadership
from gpudoctor.controller.term import Settings, Term
from gpudoctor.controller.writer import LostError, Writer
from gpudoctor.publish import cluster_metrics
from gpudoctor.publish.cluster_metrics import ControllerState
from gpudoctor.sources.kubernetes.client import Client

_STUCK_S = 600.0
"""Seconds without a step after which the process is of no use: every request is bounded below."""
_IDLE_S = 1.0


class Controller:
    """`open_client` makes a client for each thread that needs one."""

    def __init__(
        self,
        settings: Settings,
        identity: str,
        open_client: Callable[[], Client],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._open_client = open_client
        self._say = say
        self._leadership = Leadership(open_client(), settings.namespace, identity, say)
        self._writer = Writer(open_client(), self._leadership.leads)
        self._term: Term | None = None
        self._failures: Counter[str] = Counter()
        self._stepped = time.monotonic()
        self._running: threading.Thread | None = None

    def run(self, listen: str, stop: threading.Event) -> None:
        """Work until `stop`; the lead is given back at the end. InputError for a bad `listen`."""
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}
        running = threading.Thread(target=self._leadership.run, args=(stop,), name="leadership")
        self._running = running
        with serving(listen, pages) as port:
            self._say(f"metrics on port {port}")
            running.start()
            try:
                while not stop.is_set():
                    self._turn(stop)
            finally:
                stop.set()
                self._end_term()
                self._leadership.end()
                running.join()

    def _turn(self, stop: threading.Event) -> None:
        self._stepped = time.monotonic()
        if not self._leadership.leads():
            self._end_term()
            stop.wait(_IDLE_S)
            return
        if self._term is None:
            self._term = Term(
                self._writer, self._leadership, self._settings, self._open_client, self._say
            )
        try:
            self._term.step()
        except LostError:
            self._end_term()

    def wake(self) -> None:
        """End the wait of a step, as to see that it is time to stop."""
        if self._term is not None:
            self._term.wake()

    def _end_term(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            self._failures += term.failures
            term.end()

    def _metrics(self) -> bytes:
        term = self._term
        return cluster_metrics.render(
            ControllerState(
                leads=self._leadership.leads(),
                braked=term is not None and self._leadership.braked() is not None,
                counts=term.counts() if term is not None else {},
                writes=dict(self._writer.counts),
                failures=dict(self._failures + (term.failures if term else Counter())),
            )
        )

    def _health(self) -> bytes | str:
        age = time.monotonic() - self._stepped
        if self._running is None or not self._running.is_alive():
            return "nothing runs for the lead any more"
        return b"ok\n" if age < _STUCK_S else f"no step for {age:.0f} s"

    def _ready(self) -> bytes | str:
        trouble = self._leadership.trouble()
        return trouble or b"ok\n"
