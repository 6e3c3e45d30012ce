"""Cards cut by a scheduler extender: HAMi and Volcano vGPU, what nodes register, why none fits.

Nodes register their cards in an annotation, as JSON or (HAMi before 2.5, Volcano) as
`uuid,count,devmem,devcore,type,numa,health[,index,mode]:…`; devmem is in MiB, devcore in percent.
Source: HAMi pkg/device/devices.go, pkg/device/common, pkg/scheduler/score.go; Volcano
pkg/scheduler/api/devices/nvidia/vgpu.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.model import Container, Event, Node, Pod

HAMI_REGISTER = "hami.io/node-nvidia-register"
HAMI_HANDSHAKE = "hami.io/node-handshake"
_REGISTERS = (HAMI_REGISTER, "volcano.sh/node-vgpu-register", "4pd.io/node-nvidia-register")
_COUNT_KEYS = ("nvidia.com/gpu", "volcano.sh/vgpu-number")
_MEMORY_KEYS = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory")
_CORE_KEYS = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores")
_PERCENT_KEY = "nvidia.com/gpumem-percentage"
_MAX_CHARS = 1 << 20
_SAME_ROUND = timedelta(minutes=10)
_CODED = re.compile(r"(?P<count>\d{1,9}) nodes? (?P<code>[A-Z][A-Za-z]+)\((?P<nodes>[^)]*)\)")
_BARE_CODE = re.compile(r"\b(?P<count>\d{1,9}) (?P<code>(?:Card|Node|Numa|Exclusive|Allocated|"
                        r"Resource|Mode)[A-Z][A-Za-z]+)\b")  # fmt: skip
_UNREGISTERED = re.compile(r"node unregistered|node not registered", re.I)


class Card(msgspec.Struct, frozen=True):
    """A card as its node registers it: memory in MiB, cores in percent, replicas in all."""

    id: str
    memory: int
    cores: int
    replicas: int
    type: str = ""
    healthy: bool | None = None


class CardNode(msgspec.Struct, frozen=True):
    """A node's cards, with the annotation they were read from; None where it cannot be read."""

    node: Node
    annotation: str
    cards: tuple[Card, ...] | None


class Slice(msgspec.Struct, frozen=True):
    """What one container asks of the extender: cards, and memory (MiB) and cores (%) of each."""

    container: str
    field: str
    cards: int
    memory: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    written: str = ""


class CardRefusal(msgspec.Struct, frozen=True):
    """Why nodes were left out: the extender's code, and the nodes it names."""

    code: str
    count: int
    nodes: tuple[str, ...]
    event: Event | None = None


def register(node: Node) -> CardNode | None:
    """Read the cards that a node registers; None for a node without such an annotation."""
    for key in _REGISTERS:
        text = node.meta.annotations.get(key)
        if text is not None:
            return CardNode(node, key, _cards(text[:_MAX_CHARS]))
    return None


def _cards(text: str) -> tuple[Card, ...] | None:
    text = text.strip()
    if text.startswith("["):
        try:
            decoded = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return None
        return tuple(_from_json(fields.objects({"cards": decoded}, "cards")))
    return _from_colons(text)


def _from_json(items: Iterable[dict[str, Any]]) -> Iterator[Card]:
    for item in items:
        # HAMi leaves `health` out when it is false.
        yield Card(
            id=fields.text(item, "id") or "",
            memory=fields.integer(item, "devmem") or 0,
            cores=fields.integer(item, "devcore") or 0,
            replicas=fields.integer(item, "count") or 0,
            type=fields.text(item, "type") or "",
            healthy=fields.flag(item, "health"),
        )


def _from_colons(text: str) -> tuple[Card, ...] | None:
    found: list[Card] = []
    for part in text.split(":"):
        items = [item.strip() for item in part.split(",")]
        if len(items) < 5:
            if any(items):
                return None
            continue
        memory, replicas = fields.integer(items[2]), fields.integer(items[1])
        # Volcano: uuid,count,devmem,type,health[,…]; HAMi has devcore before the type.
        cores = fields.integer(items[3])
        rest = items[4:] if cores is not None else items[3:]
        flags = [item.lower() for item in rest if item.lower() in ("true", "false")]
        if memory is None or replicas is None:
            return None
        found.append(
            Card(
                id=items[0],
                memory=memory,
                cores=cores if cores is not None else 100,
                replicas=replicas,
                type=rest[0] if rest else "",
                healthy=flags[0] == "true" if flags else None,
            )
        )
    return tuple(found)


def slices(pod: Pod) -> tuple[Slice, ...]:
    """Return what the pod's containers ask of the extender, empty if they ask nothing of it."""
    places: dict[bool, int] = {False: -1, True: -1}
    found: list[Slice] = []
    for container in pod.containers:
        places[container.is_init] += 1
        list_name = "initContainers" if container.is_init else "containers"
        made = _slice(container, f"spec.{list_name}[{places[container.is_init]}].resources.limits")
        if made is not None:
            found.append(made)
    return tuple(found)


def _slice(container: Container, field: str) -> Slice | None:
    asked = container.requests | container.limits
    written = ", ".join(
        f"{key} {amount:f}{' (MiB)' if key in _MEMORY_KEYS else ''}"
        for key, amount in asked.items()
        if key.startswith(("nvidia.com/", "volcano.sh/vgpu"))
    )
    memory, cores = _first(asked, _MEMORY_KEYS), _first(asked, _CORE_KEYS)
    percent = _first(asked, (_PERCENT_KEY,))
    cards = _first(asked, _COUNT_KEYS)
    if memory is None and cores is None and percent is None and cards is None:
        return None
    return Slice(container.name, field, cards or 1, memory, percent, cores, written)


def _first(asked: dict[str, Decimal], keys: tuple[str, ...]) -> int | None:
    return next((int(asked[key]) for key in keys if key in asked), None)


def refusals(events: Iterable[Event], said: str) -> tuple[CardRefusal, ...]:
    """Return the newest refusal of each code: from the extender's events, else from the text
    of the scheduler, which has the codes without names.
    """
    found: dict[str, CardRefusal] = {}
    for event in _lately(e for e in events if e.reason in ("FilteringFailed", "FailedScheduling")):
        for match in _CODED.finditer(event.message[:_MAX_CHARS]):
            nodes = tuple(name.strip() for name in match["nodes"].split(",") if name.strip())
            found[match["code"]] = CardRefusal(match["code"], int(match["count"]), nodes, event)
    if not found:
        for match in _BARE_CODE.finditer(said[:_MAX_CHARS]):
            found[match["code"]] = CardRefusal(match["code"], int(match["count"]), ())
    return tuple(found.values())


def _lately(events: Iterable[Event]) -> list[Event]:
    """Leave out what was said long before the newest event: a card may have changed since."""
    listed = list(events)
    newest = max((event.seen for event in listed if event.seen), default=None)
    if newest is None:
        return listed
    return [event for event in listed if event.seen is None or newest - event.seen <= _SAME_ROUND]


def says_unregistered(text: str) -> bool:
    """Whether the extender says that nodes have not registered their cards."""
    return _UNREGISTERED.search(text[:_MAX_CHARS]) is not None
