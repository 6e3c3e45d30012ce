"""The time as the API server has it, by its last answer and our monotonic clock.

A node's own clock may be wrong, and may jump; Leases and conditions of all nodes are compared.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class ServerClock:
    """Tells the time; this node's own until the server has told its."""

    def __init__(self) -> None:
        self._told = datetime.now(UTC)
        self._at = time.monotonic()

    def told(self, server_time: datetime) -> None:
        """Note what the server just said. It sends whole seconds: small differences are none."""
        if abs(server_time - self.now()) > timedelta(seconds=2):
            self._told, self._at = server_time, time.monotonic()

    def now(self) -> datetime:
        """Return the time in UTC."""
        return self._told + timedelta(seconds=time.monotonic() - self._at)

    def text(self) -> str:
        """Return the time as RFC 3339, in whole seconds."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
