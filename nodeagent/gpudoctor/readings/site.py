"""Puts a site's profile beside the readings of its nodes: `--profile site.toml`."""

from __future__ import annotations

import datetime as dt

import msgspec

from gpudoctor.catalogue import Entry
from gpudoctor.checking import Draft
from gpudoctor.facts.node import site
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.facts.node.site import Expected, Profile, Waiver
from gpudoctor.facts.node.topology import Topology
from gpudoctor.readings import Reading
from gpudoctor.sources.text import open_input


def load(name: str) -> Profile:
    """Read a profile file; InputError says what is wrong with it."""
    with open_input(name) as text:
        return site.parse(text.read().decode("utf-8", "replace"), name)


def apply(reading: Reading, profile: Profile, today: dt.date) -> Reading:
    """Return the reading with what is expected of each node in it, without what is waived."""
    waivers = profile.in_force(today)
    topology = next((fact for fact in reading.facts if isinstance(fact, Topology)), None)
    expected = tuple(
        Expected(fact, topology, profile) for fact in reading.facts if isinstance(fact, NodeFacts)
    )
    published = {
        "waivers": [msgspec.to_builtins(waiver) for waiver in waivers],
        "expired_waivers": [
            msgspec.to_builtins(waiver) for waiver in profile.waiver if waiver not in waivers
        ],
    }

    def kept(draft: Draft, entry: Entry) -> bool:
        return reading.kept(draft, entry) and not any(
            _waives(waiver, draft, entry) for waiver in waivers
        )

    return msgspec.structs.replace(
        reading,
        facts=reading.facts + expected,
        children=tuple(apply(child, profile, today) for child in reading.children),
        published={**reading.published, "site": published} if profile.waiver else reading.published,
        kept=kept,
    )


def _waives(waiver: Waiver, draft: Draft, entry: Entry) -> bool:
    return waiver.finding in (entry.name, entry.code) and waiver.device in (
        None,
        draft.subject.device,
    )
