"""A name in a text is the whole of a name there."""

from __future__ import annotations

import pytest

from gpudoctor.facts.kubernetes import mentions


@pytest.mark.parametrize(
    "text",
    ["train-1", "until nslookup train-1.train.team.svc; do", "MASTER=train-1:29500", "(train-1)"],
)
def test_a_name(text: str) -> None:
    assert mentions.names(text, "train-1")


@pytest.mark.parametrize("text", ["", "train-10", "my-train-1", "train-1-worker", "train_1"])
def test_a_longer_name_is_another(text: str) -> None:
    assert not mentions.names(text, "train-1")
