"""One line of a kernel log: what stands before the message, and the driver's messages.

Prefixes known: dmesg (plain, -T, -d, -e, -x, -r, --time-format iso, colour), /dev/kmsg, journald
(short, short-monotonic, short-unix, iso, json, verbose), syslog of RFC 3164 and 5424, talosctl.
A message counts only where nothing but such a prefix stands before it, so that a program that
quotes an Xid in its own log is not taken for the kernel.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import msgspec

from gpudoctor.facts.node.kernel_log import RecoveryAction

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CLOCK = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|[A-Z][a-z]{2} +\d{1,2} +(?:\d{4} +)?\d\d:\d\d:\d\d(?:\.\d+)?"
    # journalctl writes the months in the user's language
    r"|(?:[^\W\d_]{2,12}\.?|\d{1,2}月) +\d{1,2}\.? +\d\d:\d\d:\d\d(?:\.\d+)?"
    r"(?=\s+[\w.-]+\s+kernel\b)"
    r"|\d{9,10}\.\d{3,9}"
)
_PREFIX = re.compile(
    r"\s*(?:<\d{1,3}>(?:1 )?\s*)?"
    r"(?:[a-z0-9]{3,9} *:[a-z]{3,6} *: )?"
    rf"(?:(?:[A-Z][a-z]{{2}} )?(?P<clock>{_CLOCK})\s+)?"
    r"(?:(?P<node>[\w.:-]{1,64}): +[a-z0-9]{3,9}: +[a-z]{3,8}: (?=\[))?"
    r"(?:(?P<stream>[\w.-]+): (?=\[))?"
    r"(?:\[(?P<stamp>[^\]]{1,48})\]:?\s*)?"
    r"(?:(?:(?P<host>[\w.-]+)\s+)?kernel(?:\[\d+\])?(?::|(?: -){3})\s*)?"
    r"(?:\[(?P<uptime>[^\]]{1,48})\]\s*)?"
)
_SECONDS = re.compile(r"\s*([0-9]{1,9}\.[0-9]{1,9})(?:\s|\Z)")
_KMSG = re.compile(r"\s*\d{1,4},\d+,(?P<micros>\d+),[^;]{0,64};")
_FIELD = re.compile(r"""\s*(?:"MESSAGE"\s*:\s*"|"msg"\s*:\s*"|MESSAGE=)""")
_STARTS_A_MESSAGE = re.compile(
    r"NVRM: |nvidia-nvswitch\d+: SXid|nouveau |[a-z_]+port |Loading |Lockdown: "
)


class Line(msgspec.Struct, frozen=True):
    """A kernel message without its prefix; `stamped` says that there was one.

    `uptime` is the stamp in seconds since boot where there is such a one, `boot` the journal's id
    of the boot, `stream` what names the machine in a prefix that is not a host name for certain.
    """

    message: str
    time: str | None = None
    host: str | None = None
    stamped: bool = False
    uptime: float | None = None
    boot: str | None = None
    stream: str | None = None


def split_line(raw: bytes) -> Line | None:
    """Take the prefix off a line; None where what precedes the message is not the kernel's."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.startswith("{"):
        return _journal_json(text)
    if match := _KMSG.match(text):
        seconds = int(match["micros"]) / 1e6
        return Line(text[match.end() :], f"{seconds:.6f}", stamped=True, uptime=seconds)
    if match := _FIELD.match(text):
        return Line(text[match.end() :].rstrip('",'), stamped=True)
    match = _PREFIX.match(text)
    assert match is not None  # each part is optional
    time = match["clock"] or match["stamp"] or match["uptime"]
    return Line(
        text[match.end() :],
        time.strip() if time else None,
        match["host"] or match["node"],
        stamped=match.end() > 0 and not text[: match.end()].isspace(),
        uptime=_uptime(match["stamp"], match["uptime"]),
        stream=match["stream"],
    )


def _uptime(*stamps: str | None) -> float | None:
    """Return the first stamp that is seconds since boot; `dmesg -d` has the difference behind."""
    for stamp in stamps:
        if stamp is not None and (match := _SECONDS.match(stamp)):
            return float(match[1])
    return None


def _journal_json(text: str) -> Line | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    if isinstance(entry.get("sequence"), int) and "MESSAGE" not in entry:
        return _collected_json(entry)
    source = entry.get("_TRANSPORT") or entry.get("SYSLOG_IDENTIFIER") or "kernel"
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        # journald gives a message with unprintable bytes as a list of their values
        message = "".join(chr(byte) for byte in message if isinstance(byte, int) and 0 < byte < 256)
    if source != "kernel" or not isinstance(message, str):
        return None
    micros = str(entry.get("__REALTIME_TIMESTAMP", ""))
    host = entry.get("_HOSTNAME")
    return Line(
        _ANSI.sub("", message).split("\n", 1)[0],
        f"{int(micros) / 1e6:.6f}" if micros.isdecimal() and micros.isascii() else None,
        host if isinstance(host, str) else None,
        stamped=True,
        boot=boot if isinstance(boot := entry.get("_BOOT_ID"), str) else None,
    )


def _collected_json(entry: dict[str, object]) -> Line | None:
    """An entry of the kernel's ring buffer as Fluent Bit's kmsg input writes it."""
    message, seconds, micros = entry.get("msg"), entry.get("sec"), entry.get("usec")
    if not isinstance(message, str):
        return None
    stamp = None
    if isinstance(seconds, int) and isinstance(micros, int):
        stamp = f"{seconds}.{micros:06d}"
    return Line(
        message.split("\n", 1)[0], stamp, stamped=True, uptime=_uptime(stamp) if stamp else None
    )


class XidLine(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed Xid line; absent parts are None."""

    code: int
    pci: str
    gpu_instance: int | None
    compute_instance: int | None
    pid: int | None
    process: str | None
    text: str
    caused_by: int | None
    recovery: RecoveryAction | None
    unit: str | None
    fatal: bool | None
    link: int | None
    subcode: int | None


_PCI = r"[0-9a-fA-F]{1,8}(?::[0-9a-fA-F]{1,4}){1,2}"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<pci>{_PCI})(?:\.[0-9a-fA-F])?"
    r"(?:\s+GPU-I:(?P<gi>\d{1,4}))?(?:\s+GPU-CI:(?P<ci>\d{1,4}))?\)\s*:\s*(?P<code>\d{1,6})"
    r",\s*(?P<rest>.*)",  # no comma: the log ends inside the code
    re.DOTALL,
)
# Drivers before 515 print the pid alone.
_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?(?:,\s*name=(?P<name>.*)|,\s*|\Z)", re.DOTALL)
_QUOTED = re.compile(r"'([^']*)'(?:,\s*|\Z)")
_MAX_NAME = 15  # bytes that the kernel keeps of a program's name, blanks and commas included
# How the driver goes on after the name. What stands before it is all of the name.
_GOES_ON = re.compile(
    r"(?:Ch|[Cc]h(?:annel)?(?: ?[Ii][Dd])?) (?:0x)?[0-9a-fA-F]+\b|intr \d|engmask |errorString "
    r"|(?:0x)?[0-9a-fA-F]{8}\b|GPU has |Graphics |MMU |Timeout|GSP |PMU |SPI |NVLink|Row |DBE |DRAM"
    r"|SRAM|(?:[Uu]nc|C)ontained|[Uu]ncorrect|Dynamic Page|Engine |Reset |Robust|Unknown |Internal"
    r"|[A-Z0-9]+_[A-Z0-9]+ |Failed |Fatal |Non-?[Ff]atal |PBDMA|CTX|[Cc]aused by"
)
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,6})")
_RECOVERY = re.compile(r"to\s+0x([0-9a-fA-F]{1,4})\s*\(([^)]*)\)")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]+)\s+(?P<word>(?:Link )?(?:Non-?fatal|Fatal))\s+XC\d\s+i\d+\s+"
    r"Link\s+(?P<link>-?\d+)\s+\((?P<first>0x[0-9a-fA-F]{1,16})?"
)
_NVLINK = re.compile(r"NVLink: (?P<word>fatal|non-?fatal)? ?.*?\blink (?P<link>\d+)")
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F
_RECOVERY_WORDS = {
    "none": RecoveryAction.NONE,
    "gpu reset required": RecoveryAction.GPU_RESET,
    "node reboot required": RecoveryAction.NODE_REBOOT,
    "drain p2p": RecoveryAction.DRAIN_P2P,
    "drain and reset": RecoveryAction.DRAIN_AND_RESET,
    "recover imex domain": RecoveryAction.RECOVER_IMEX_DOMAIN,
}
_RECOVERY_NUMBERS = tuple(RecoveryAction)
_CHANGED_RECOVERY = 154


@lru_cache(maxsize=256)
def parse_xid(message: str) -> XidLine | None:
    """Parse a message that is an Xid; None for any other."""
    match = _XID.match(message)
    if match is None:
        return None
    rest = match["rest"]
    pid: int | None = None
    process: str | None = None
    if found := _PROCESS.match(rest):
        pid = int(found["pid"]) if found["pid"].isdecimal() and found["pid"].isascii() else None
        rest = rest[found.end() :]
        if found["name"] is not None:
            name, rest = _split_name(found["name"])
            process = name if name not in ("", "<unknown>") else None
    code = int(match["code"])
    caused = _CAUSED_BY.search(rest)
    link = _NVLINK5.search(rest) or (_NVLINK.search(rest) if "NVLink" in rest else None)
    parts = link.groupdict() if link else {}
    first = parts.get("first")
    return XidLine(
        code=code,
        pci=pci_address(match["pci"]),
        gpu_instance=int(match["gi"]) if match["gi"] else None,
        compute_instance=int(match["ci"]) if match["ci"] else None,
        pid=pid,
        process=process,
        text=rest.strip(),
        caused_by=int(caused[1]) if caused else None,
        recovery=_recovery(rest) if code == _CHANGED_RECOVERY else None,
        unit=parts.get("unit"),
        fatal=_is_fatal(parts.get("word")),
        link=int(parts["link"]) if link else None,
        subcode=(int(first, 16) >> _SUBCODE_SHIFT) & _SUBCODE_MASK if first else None,
    )


def _split_name(text: str) -> tuple[str, str]:
    """Part a program's name from what the driver says of it: any name may hold a comma."""
    if quoted := _QUOTED.match(text):
        return quoted[1], text[quoted.end() :]
    cuts = [cut for cut in re.finditer(r",\s*", text) if cut.start() <= _MAX_NAME]
    known = (cut for cut in cuts if _GOES_ON.match(text, cut.end()))
    cut = next(known, None) or next(iter(cuts), None) or re.search(r",\s*", text)
    if cut is None:
        return text.strip("'"), ""
    return text[: cut.start()].strip("'"), text[cut.end() :]


def _is_fatal(word: str | None) -> bool | None:
    return None if word is None else "non" not in word.lower()


def _recovery(text: str) -> RecoveryAction | None:
    match = _RECOVERY.search(text)
    if match is None:
        return None
    number = int(match[1], 16)
    if number < len(_RECOVERY_NUMBERS):
        return _RECOVERY_NUMBERS[number]
    return _RECOVERY_WORDS.get(match[2].strip().lower())


def pci_address(text: str) -> str:
    """Return an address in lower case with a domain of four digits, if it has one."""
    parts = text.lower().split(":")
    if len(parts) == 3:
        parts[0] = f"{int(parts[0], 16):04x}"
    return ":".join(parts)


class SwitchLine(msgspec.Struct, frozen=True):
    """A parsed SXid line; `detail` marks the Severity and Data lines of one already printed."""

    code: int
    pci: str
    fatal: bool | None
    link: int | None
    text: str
    detail: bool


_SXID = re.compile(
    r"nvidia-nvswitch\d+: SXid \(PCI:(?P<pci>[0-9a-fA-F:.]{7,16})\): (?P<code>\d{1,6}), ?"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_SWITCH_WORD = re.compile(r"(Non-?fatal|Fatal)\b", re.IGNORECASE)
_SWITCH_LINK = re.compile(r"\bLink (\d{1,3})\b")
_DETAIL = re.compile(r"Severity \d|Data \{|Severity:")


def parse_sxid(message: str) -> SwitchLine | None:
    """Parse a message of the NVSwitch driver; None for any other."""
    match = _SXID.match(message)
    if match is None:
        return None
    rest = match["rest"]
    word = _SWITCH_WORD.match(rest)
    link = _SWITCH_LINK.search(rest)
    return SwitchLine(
        code=int(match["code"]),
        pci=match["pci"].lower(),
        fatal=_is_fatal(word[1]) if word else None,
        link=int(link[1]) if link else None,
        text=rest.strip(),
        detail=_DETAIL.match(rest) is not None,
    )


def continues(raw: bytes) -> str | None:
    """Return a line that has no prefix and starts no message: the rest of a wrapped one."""
    line = split_line(raw)
    if line is None or line.stamped or _STARTS_A_MESSAGE.match(line.message):
        return None
    return line.message.strip() or None
