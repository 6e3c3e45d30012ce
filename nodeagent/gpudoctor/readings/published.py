"""What agents published, put beside the reading of a pod or node that it is about.

A host in the input is read itself, and newer: then its agent is not asked.
"""

from __future__ import annotations

import msgspec

from gpudoctor.catalogue import Entry
from gpudoctor.checking import Draft
from gpudoctor.facts.kubernetes import diagnoses, relayed
from gpudoctor.facts.kubernetes.cluster import Cluster
from gpudoctor.facts.kubernetes.diagnoses import Book
from gpudoctor.facts.kubernetes.model import Node, Pod
from gpudoctor.facts.kubernetes.relayed import Relayed
from gpudoctor.publish import names
from gpudoctor.readings import Reading
from gpudoctor.readings.stake import GUESSES_OF_MEMLOCK


def _book(cluster: Cluster) -> Book:
    found = cluster.of_kind(names.GROUP, names.DIAGNOSIS)
    return diagnoses.read_all([*found, *cluster.of_kind("coordination.k8s.io", "Lease")])


def with_pod(reading: Reading, cluster: Cluster, pod: Pod, *, is_well: bool) -> Reading:
    """Return the reading of a pod with what the agent of its node published about it."""
    node = cluster.nodes.get(pod.node or "")
    book = cluster.derived(_book)
    told = relayed.of_pod(book, pod, node, cluster.now, is_well=is_well)
    found = _with(reading, told)
    if told is None or told.judged is None:
        return found
    judged = told.judged

    def kept(draft: Draft, _entry: Entry) -> bool:
        """The agent sees the same pod and its processes: a guess that it does not share is none."""
        return draft.name not in GUESSES_OF_MEMLOCK or draft.name in judged

    return msgspec.structs.replace(found, kept=kept)


def with_node(reading: Reading, cluster: Cluster, node: Node) -> Reading:
    """Return the reading of a node with what its agent published about it."""
    return _with(reading, relayed.of_node(cluster.derived(_book), node, cluster.now))


def _with(reading: Reading, told: Relayed | None) -> Reading:
    if told is None:
        return reading
    return msgspec.structs.replace(reading, around=(*reading.around, told))
