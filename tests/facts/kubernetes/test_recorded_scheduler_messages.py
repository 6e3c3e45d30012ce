"""What real schedulers print, recorded by tests/cluster with RECORD_SCHEDULER_MESSAGES."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpudoctor.facts.kubernetes import scheduler_message

FOLDER = Path(__file__).parents[2] / "data" / "scheduler_messages"
MESSAGES = {
    (path.stem, situation): recorded["message"]
    for path in sorted(FOLDER.glob("*.json"))
    for situation, recorded in json.loads(path.read_text()).items()
    if recorded.get("reason") == "FailedScheduling"
}
LINES = sorted({line for line, _ in MESSAGES})

every_message = pytest.mark.parametrize("key", MESSAGES, ids=" ".join)


@every_message
def test_counts_add_up(key: tuple[str, str]) -> None:
    text = MESSAGES[key]
    parsed = scheduler_message.parse(text)
    assert parsed.reasons
    head = re.match(r"0/(\d+) nodes are available: (\d)?", text)
    assert parsed.nodes == (int(head[1]) if head else None)
    if head and head[2]:
        assert sum(reason.count or 0 for reason in parsed.reasons) == parsed.nodes
    if "preemption:" in text:
        assert sum(reason.count or 0 for reason in parsed.preemption) == parsed.nodes


@every_message
def test_reasons_end_where_the_post_filter_begins(key: tuple[str, str]) -> None:
    parsed = scheduler_message.parse(MESSAGES[key])
    if parsed.nodes is None:
        return
    said = " ".join(reason.text for reason in parsed.reasons)
    for words in ("deallocate", "still not schedulable", "not found. not found", "preemption"):
        assert words not in said
    for resource in re.findall(r"Insufficient (\S+?)[,.]? ", said + " "):
        assert parsed.insufficient()[resource] > 0


@pytest.mark.parametrize("situation", sorted({name for _, name in MESSAGES}))
def test_all_lines_give_the_same_reasons(situation: str) -> None:
    parsed = [
        scheduler_message.parse(MESSAGES[line, situation])
        for line in LINES
        if (line, situation) in MESSAGES
    ]
    if parsed[0].nodes is not None:
        assert all(one == parsed[0] for one in parsed)
