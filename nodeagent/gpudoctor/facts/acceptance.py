"""Results of acceptance tests, as facts: nccl-tests runs and ib_write_bw rows."""

from __future__ import annotations

import msgspec

from gpudoctor.report import Subject


class Measure(msgspec.Struct, frozen=True):
    """One half of a row: GB/s (10^9), and how many elements were wrong, None if not checked."""

    algbw: float
    busbw: float
    wrong: float | None


class Row(msgspec.Struct, frozen=True):
    """One message size in bytes; `number` is the line it stands in, 0 for JSON."""

    size: int
    out_of_place: Measure | None
    in_place: Measure | None
    number: int
    text: str

    @property
    def busbw(self) -> float:
        """The better of the two halves."""
        return max(half.busbw for half in (self.out_of_place, self.in_place) if half is not None)


class Device(msgspec.Struct, frozen=True):
    """One rank as the header lists it."""

    rank: int
    host: str
    name: str


class CollectiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an nccl-tests program.

    `collective` is None when neither header nor the ratio of the two bandwidths tells it.
    `out_of_bounds` and `average_busbw` are None without the summary lines.
    """

    source: str
    number: int
    collective: str | None
    devices: tuple[Device, ...]
    rows: tuple[Row, ...]
    out_of_bounds: int | None
    failed: bool
    average_busbw: float | None
    error_column: bool
    """Before mid-2022 the last column is a rounding error, not a count."""
    unreadable: tuple[tuple[int, str], ...] = ()
    failure: tuple[int, str] | None = None

    @property
    def ranks(self) -> int:
        """Ranks listed, at least 1."""
        return max(len(self.devices), 1)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Distinct hosts."""
        return tuple(dict.fromkeys(device.host for device in self.devices))

    @property
    def largest(self) -> Row | None:
        """The row of the largest size."""
        return max(self.rows, key=lambda row: row.size, default=None)

    @property
    def best_busbw(self) -> float:
        """The best bus bandwidth of any row, in GB/s."""
        return max((row.busbw for row in self.rows), default=0.0)


class CollectiveResults(msgspec.Struct, frozen=True):
    """All runs in one text. `adapters` is the number of NICs a host that NCCL listed, if known."""

    subject: Subject
    runs: tuple[CollectiveRun, ...]
    adapters: int | None = None


class BandwidthRow(msgspec.Struct, frozen=True):
    """One size of ib_write_bw (or read, send), in Gbit/s (10^9 bits)."""

    size: int
    gbps: float
    number: int
    text: str


class BandwidthRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a perftest bandwidth program."""

    source: str
    program: str
    device: str | None
    link: str | None
    mtu: int | None
    gid_index: int | None
    rows: tuple[BandwidthRow, ...]


class BandwidthResults(msgspec.Struct, frozen=True):
    """All runs in one text; `expected_gbps` is the link's rate where the caller knows it."""

    subject: Subject
    runs: tuple[BandwidthRun, ...]
    expected_gbps: float | None = None
