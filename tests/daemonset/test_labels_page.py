"""The page on labels names every label that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from gpudoctor.facts.node import labels
from gpudoctor.facts.node.labels import UNLIMITED_MIB, Node
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.publish.labels import VERDICT
from gpudoctor.report import Subject

PAGE = Path(__file__).parents[2] / "daemonset" / "labels.md"


def test_every_label_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    found = labels.read(Node(facts=NodeFacts(subject=Subject("Node", "n"))))
    known = {VERDICT, *labels.with_node_labels(found, {})}
    assert sorted(listed) == sorted(known)
    assert f"`{UNLIMITED_MIB}`" in text
