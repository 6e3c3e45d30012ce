"""The layout that all of `kubectl describe` shares: fields, blocks, lists, tables of events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.facts.kubernetes import ages
from gpudoctor.facts.kubernetes.ages import Seen

# A message of several lines goes on at the margin, and such a line may look like a field of its
# own (`nvidia-container-cli: requirement error: …`): only these names begin one there.
_TOP_LEVEL = frozenset({
    "Name", "Namespace", "Priority", "Priority Class Name", "Runtime Class Name",
    "Service Account", "Node", "Start Time", "Labels", "Annotations", "Status",
    "Termination Grace Period", "Reason", "Message", "SeccompProfile", "LocalhostProfile", "IP",
    "IPs", "Controlled By", "NominatedNodeName", "Resources", "Init Containers", "Containers",
    "Ephemeral Containers", "Readiness Gates", "Conditions", "Volumes", "QoS Class",
    "Node-Selectors", "Tolerations", "Topology Spread Constraints", "Events", "Scheduling Gates",
    "Resource Claims", "Host Network", "Roles", "CreationTimestamp", "Taints", "Unschedulable",
    "Lease", "Addresses", "Capacity", "Allocatable", "System Info", "PodCIDR", "PodCIDRs",
    "ProviderID", "ExternalID", "Non-terminated Pods", "Allocated resources", "Features",
    "API Version", "Kind", "Metadata", "Spec", "Selector", "Replicas", "Pods Status",
    "Pod Template", "StrategyType", "MinReadySeconds", "RollingUpdateStrategy",
    "OldReplicaSets", "NewReplicaSet", "Update Strategy", "Parallelism", "Completions",
    "Completion Mode", "Suspend", "Backoff Limit", "Pods Statuses", "Completed Indexes",
    "Desired Number of Nodes Scheduled", "Current Number of Nodes Scheduled",
})  # fmt: skip
_FIELD = re.compile(r"^(?P<key>[A-Za-z][\w .()/-]{0,80}?):(?:[ \t]+(?P<value>.*))?$")
_EVENT = re.compile(
    rf"^\s*(?P<type>Normal|Warning)\s+(?P<reason>\S+)\s+(?P<seen>{ages.SEEN})"
    r"(?P<gap>\s+)(?P<rest>\S.*)$"
)
_FROM = re.compile(r"(?P<component>\S+?)(?:, \S+)?\s+(?P<message>\S.*)$")
_EVENT_HEADER = re.compile(r"^\s*(?:Type\s+Reason\s+Age\s+From\s+Message|----\s+[- ]+)$")
NONE = ("<none>", "<unset>", "<unknown>", "<nil>")


class Section(msgspec.Struct):
    """A field: what stands on its line from a column on, and the lines below, still indented."""

    key: str
    value: str
    lines: list[str]
    column: int = 0


class EventRow(msgspec.Struct):
    """A row of an events table."""

    type: str
    reason: str
    seen: Seen
    component: str
    message: str


def sections(lines: Iterable[str]) -> Iterator[Section]:
    """Split the lines of one object at its outermost fields."""
    return _sections(lines, _TOP_LEVEL, 0)


def inner_sections(
    lines: Iterable[str], names: frozenset[str] | None, indent: int
) -> Iterator[Section]:
    """Split at the fields of that indentation; `names` None takes any name, such as a label's."""
    return _sections(lines, names, indent)


def _sections(lines: Iterable[str], names: frozenset[str] | None, indent: int) -> Iterator[Section]:
    current: Section | None = None
    margin = " " * indent
    open_names = set(names or ())
    for line in lines:
        inner = line[indent:] if line.startswith(margin) else ""
        match = _FIELD.match(inner) if inner[:1].strip() else None
        if match is not None and (names is None or match["key"] in open_names):
            # Each field is printed once: a second one stands in the text of a message.
            open_names.discard(match["key"])
            if current is not None:
                yield current
            column = indent + max(match.start("value"), 0)
            current = Section(match["key"], match["value"] or "", [], column)
        elif current is not None:
            current.lines.append(line)
    if current is not None:
        yield current


def blocks(lines: Iterable[str], indent: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the named blocks of that indentation: containers, volumes."""
    opening = re.compile(rf"^ {{{indent}}}(\S+):\s*$")
    name, inside = None, list[str]()
    for line in lines:
        match = opening.match(line)
        if match is not None:
            if name is not None:
                yield name, inside
            name, inside = match[1], []
        else:
            inside.append(line)
    if name is not None:
        yield name, inside


def listed(section: Section | None) -> list[str]:
    """Return the entries of a list such as Labels or Tolerations: one a line, none for <none>."""
    if section is None:
        return []
    entries = [section.value.strip(), *(line.strip() for line in section.lines)]
    return [entry for entry in entries if entry and entry not in NONE]


def pairs(section: Section | None) -> dict[str, str]:
    """Return a `key=value` list as a mapping."""
    return {
        key: value for key, _, value in (entry.partition("=") for entry in listed(section)) if key
    }


def quantities(section: Section | None) -> dict[str, str]:
    """Return a block of `resource: quantity` lines."""
    if section is None:
        return {}
    found = (line.strip().rpartition(":") for line in section.lines)
    return {key: value.strip() for key, _, value in found if key and value.strip()}


def plain(section: Section | None) -> str | None:
    """Return the field's text with its further lines, None when absent or `<none>`."""
    if section is None:
        return None
    text = "\n".join([section.value, *section.lines]).strip()
    return None if not text or text in NONE else text


def annotation_map(section: Section | None) -> dict[str, str]:
    """Read annotations: `key: value`, or a long value on deeper lines below its key."""
    found: dict[str, str] = {}
    key = ""
    entries = (
        [section.value, *(line[section.column :] for line in section.lines)] if section else []
    )
    for entry in entries:
        if entry.startswith(" "):
            found[key] = f"{found[key]}\n{entry[2:]}" if found.get(key) else entry[2:]
            continue
        key, colon, value = entry.rstrip().partition(":")
        if colon:
            found[key] = value.strip()
    return found


def table_events(section: Section) -> list[EventRow]:
    """Read the Events table; a line that begins no row goes on with the message before it."""
    rows: list[EventRow] = []
    message_column = _message_column(section.lines)
    for line in section.lines:
        match = _EVENT.match(line)
        if match is not None:
            component, message = _from_and_message(line, match, message_column)
            rows.append(
                EventRow(
                    type=match["type"],
                    reason=match["reason"],
                    seen=ages.seen(match["seen"]),
                    component=component,
                    message=message.rstrip(),
                )
            )
        elif rows and line.strip() and not _EVENT_HEADER.match(line):
            rows[-1].message += f"\n{line.rstrip()}"
    return rows


def _message_column(lines: list[str]) -> int | None:
    header = next((line for line in lines if _EVENT_HEADER.match(line)), "")
    column = header.find("Message")
    return column if column > 0 else None


def _from_and_message(line: str, match: re.Match[str], column: int | None) -> tuple[str, str]:
    """Part the two last columns by the header, or, where a paste lost the blanks, by the words."""
    if (
        column is not None
        and line[column - 2 : column] == "  "
        and line[column : column + 1].strip()
    ):
        source = line[match.end("seen") : column].strip()
        return source.split(", ")[0], line[column:]
    parted = _FROM.match(match["rest"])
    return (parted["component"], parted["message"]) if parted else ("", match["rest"])
