"""Which messages say that something failed, and what they name: one table, NCCL 2.4 to 2.31.

A symptom is recognised by a literal part of the message, wherever it stands, at WARN or INFO:
newer versions print some old warnings at INFO. The first entry that matches counts. Named
groups of the pattern become the event's values. Wordings: NCCL's sources at the tags v2.4.8 to
v2.30.7, aws-ofi-nccl 1.14 to 1.21.
"""

from __future__ import annotations

import re

import msgspec


class Symptom(msgspec.Struct, frozen=True):
    """`needle` must be in the message, then `pattern` must be found; `splits` names the values
    that keep events apart (a device), all others are those of the first line. `where` must be in
    the place in the source that a warning names.

    A pattern is text: re compiles, once, those of what a log shows.
    """

    kind: str
    needle: bytes
    pattern: bytes | None = None
    splits: tuple[str, ...] = ()
    where: bytes = b""


def _symptom(
    kind: str, needle: bytes, pattern: bytes = b"", *splits: str, where: bytes = b""
) -> Symptom:
    return Symptom(kind, needle, pattern or None, splits, where)


_ERROR = rb"(?: with error (?:(?P<errno>\d+) )?(?P<text>.+))?"
_PEER = rb"(?:from peer (?P<peer>[^ <]+)(?:<\d+>)?)?"
_STATUS = (
    rb"Got completion " + _PEER + rb" ?with (?:error |status=)(?:[A-Z_]+\()?(?P<status>\d+)\)?"
    rb"(?:.*?vendor[ _]err[ =]*(?P<vendor>\d+))?(?:.*?\((?P<side>Send|Recv)\))?"
    rb"(?:.*?\bhca (?P<device>\S+))?"
)
_ASYNC = (
    rb"(?:(?P<device>[\w.-]+:\d+) )?Got async (?:error |fatal )?event ?: (?P<event>[^()]+)"
    rb"|(?:(?P<device2>[\w.-]+:\d+) )?async fatal event ?: (?P<event2>[^()]+)"
    rb"|(?:(?P<device3>[\w.-]+:\d+) )?Got non-fatal async event: (?P<event3>[^()]+)"
)
_MODIFY = (
    rb"(?:with error |failed with )(?:(?P<errno>\d+) )?(?P<text>[^,]+?)(?:,|$)"
    rb"(?:.*?\bon dev (?P<device>[^,]+))?(?:.*?local GID index (?P<index>-?\d+))?"
    rb"(?:.*?local GID (?P<gid>[0-9a-f:.]+))?"
)

SYMPTOMS: tuple[Symptom, ...] = (
    # RDMA devices and memory
    _symptom("ibv-open", b"Call to ibv_open_device failed"),
    _symptom("ib-open", b"Unable to open device", rb"open device (?P<device>\S+)", "device"),
    _symptom("ib-library", b"Failed to open libibverbs.so"),
    _symptom("ib-none", b"NET/IB : No device found"),
    _symptom("ib-none", b"NET/IB: No device found"),
    _symptom("ib-none", b"NET/IBP : No device found"),
    _symptom(
        "memory-registration",
        b"Call to ibv_reg_",
        rb"Call to (?P<call>ibv_reg_\w+) failed" + _ERROR,
        "text",
    ),
    _symptom(
        "ib-create",
        b"Call to ibv_create_",
        rb"Call to (?P<call>ibv_create_\w+) failed" + _ERROR,
        "text",
    ),
    _symptom("modify-qp", b"ibv_modify_qp failed", _MODIFY, "text"),
    _symptom("completion", b"Got completion ", _STATUS, "status"),
    _symptom("async", b"async event", _ASYNC, "device", "event"),
    _symptom("async", b"async fatal event", _ASYNC, "device", "event"),
    _symptom("async", b"Got async error event", _ASYNC, "device", "event"),
    _symptom("merge-nics", b"Attempted to merge incompatible devices"),
    _symptom("merge-nics", b"different number of devices"),
    # Plugins and the choice of network
    _symptom("ofi-gdr", b"GDR disabled on GDR-supported instance type", rb"type (?P<type>\S+)"),
    # No failure: of such an instance type, or such a card, it is the property.
    _symptom("ofi-no-gdr", b"Could not disable CUDA API usage for HMEM, disabling GDR"),
    _symptom("ofi-no-gdr", b"Need to force simple protocol: GDR not supported"),
    _symptom("ofi-no-gdr", b"FI_HMEM capability requires RDMA, which this device does not support"),
    _symptom("ofi-no-provider", b"No eligible providers were found"),
    _symptom("ofi-no-provider", b"Unable to find a protocol that worked"),
    _symptom("plugin-init", b"Initializing plugin failed"),
    _symptom("plugin-init", b"aws-ofi-nccl initialization failed"),
    # The file is there and the loader refuses it; that there is none is normal.
    _symptom(
        "plugin-load",
        b"lugin",
        rb"(?:Plugin load(?: \([^)]*\))? returned \d+ : |dlerror=)"
        rb"(?!\S*lib\w*ccl-\w+\S*: cannot open shared object)(?P<reason>\S.*?)"
        rb"(?: ?:? when loading|  ?No plugin found|$)",
    ),
    _symptom(
        "ofi-provider",
        b"elected provider is ",
        rb"elected provider is (?P<provider>[^,(]+?)(?:,| \(|$)",
        "provider",
    ),
    _symptom("ofi-provider", b"elected Provider is ", rb"elected Provider is (?P<provider>\S+)"),
    _symptom("net-none", b"Failed to initialize any NET plugin"),
    _symptom("net-missing", b"Error: network ", rb"Error: network (?P<network>.+?) not found"),
    _symptom(
        "net-forced",
        b"Comm config netName reset to NCCL_NET=",
        rb"NCCL_NET=(?P<network>.+?)\s*$",
        "network",
    ),
    _symptom("ifname", b"Bootstrap : no socket interface found"),
    _symptom("ifname", b"Bootstrap: no socket interface found"),
    _symptom("ifname", b"no socket interface found"),
    _symptom("ifname-family", b"is neither AF_INET"),
    _symptom("topology-file", b"Attribute arch of node cpu not found"),
    _symptom("tcpx-timeout", b"rx ctrl timeout cnt"),
    _symptom("fastrak-env", b"mismatch recommended: NCCL_", rb": (?P<variable>NCCL_\w+)"),
    # Sockets
    _symptom(
        "connect-gave-up",
        b"exceeded error retry count",
        rb"(?:connect to (?P<peer>[^ <]+)(?:<\d+>)? )?(?:returned (?P<text>[^,]+), )?",
    ),
    _symptom(
        "connect-retry",
        b"retrying",
        rb"(?:connect to (?P<peer>[^ <]+)(?:<\d+>)?|Call to connect) returned (?P<text>[^,]+)",
    ),
    _symptom(
        "connect-failed",
        b"onnect",
        rb"(?:[Cc]onnect to (?P<peer>[^ <]+)(?:<\d+>)?|Call to connect)(?: failed| returned)[ :]*"
        rb"(?:\d{1,3}\()?(?P<text>Connection refused|Connection timed out|No route to host|"
        rb"Network is unreachable|Operation timed out|Software caused connection abort|"
        rb"Cannot assign requested address)",
    ),
    _symptom("peer-closed", b"onnection closed by remote peer", rb"peer(?: (?P<peer>[^ <]+))?"),
    _symptom("peer-closed", b"Connection reset by peer", rb"(?:from (?P<peer>[^ <]+))?"),
    _symptom("peer-closed", b"Socket recv failed while polling for opId"),
    _symptom("peer-closed", b"Could not receive type from localRank"),
    _symptom("peer-closed", b"Failed to execute operation "),
    _symptom("peer-closed", b"Broken pipe"),
    _symptom("open-files", b"Too many open files"),
    _symptom("crosstalk", b"wrong magic"),
    _symptom("crosstalk", b"wrong type "),
    _symptom("crosstalk", b"Message truncated : received"),
    _symptom("crosstalk", b"mismatch in rank count"),
    _symptom("crosstalk", b"has already checked in"),
    # Init, GPUs, shared memory
    _symptom(
        "duplicate-gpu",
        b"Duplicate GPU detected",
        rb"rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device (?P<bus>\w+)",
    ),
    _symptom(
        "version-mismatch",
        b"ismatched NCCL version detected",
        rb"rank (?P<rank>\d+) version (?P<version>\d+) rank (?P<other>\d+) version (?P<second>\d+)",
    ),
    _symptom("version-mismatch", b"NCCL version mismatch with remote peer"),
    _symptom("imex", b"available but not working"),
    _symptom("imex", b"nvidia-imex-ctl"),
    _symptom("imex", b"IMEX channel"),
    _symptom("imex-cuda", b"Cuda failure 800"),
    _symptom("nvls", b"Failed to bind NVLink SHARP"),
    _symptom("nvls", b"transport/nvls.cc", rb"Cuda failure (?:401|1) "),
    _symptom("nvls", b"Cuda failure", rb"Cuda failure (?:401|1)\b", where=b"transport/nvls.cc"),
    _symptom("p2p-nvlink", b"P2P is disabled between NVLINK connected GPUs"),
    _symptom("p2p-nvlink", b"hardware issue", rb"NVLINK"),
    _symptom("p2p", b"P2P is disabled between connected GPUs"),
    _symptom("p2p", b"Could not enable P2P between dev"),
    _symptom("p2p", b"peer access is not supported between these two devices"),
    _symptom("shm-full", b"posix_fallocate failed", rb"No space left"),
    _symptom("shm-peer", b"attaching", rb"No such file|\(size 0\)"),
    _symptom(
        "shm-full",
        b"failed to extend /dev/shm/",
        rb"to (?P<bytes>\d+) bytes(?:, error: No space left| *$)",
    ),
    _symptom(
        "shm-create",
        b"creating shared memory segment",
        rb"segment (?P<segment>\S+) \(size (?P<bytes>\d+)\)(?P<text>.*)",
    ),
    _symptom("gpu-memory", b"Cuda failure", rb"failure (?:2 )?'?out of memory|failure 2\b"),
    _symptom("gpu-memory", b"Failed to CUDA calloc"),
    _symptom(
        "cuda",
        b"Cuda failure",
        rb"Cuda failure (?:(?P<code>\d+) ?)?'?(?P<text>[^']*)'?",
        "code",
        "text",
    ),
)  # fmt: skip


def find(message: bytes, where: bytes = b"") -> tuple[Symptom, dict[str, str]] | None:
    """Return the first symptom that the message (text after INFO or WARN) shows."""
    for symptom in SYMPTOMS:
        if symptom.needle in message and symptom.where in where:
            if symptom.pattern is None:
                return symptom, {}
            match = re.search(symptom.pattern, message)
            if match is not None:
                return symptom, _values(match)
    return None


def _values(match: re.Match[bytes]) -> dict[str, str]:
    """The named groups that took part; `device2` is an alternative of `device`."""
    return {
        name.rstrip("23"): value.decode("utf-8", "replace").strip()
        for name, value in match.groupdict().items()
        if value
    }
