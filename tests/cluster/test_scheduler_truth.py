"""The real scheduler's words for a known cause, and whether gpudoctor names that cause."""

from __future__ import annotations

import pytest

from gpudoctor.sources.kubernetes import gather
from tests.cluster import situations, stage
from tests.cluster.admin import Admin
from tests.cluster.answers import Answers
from tests.cluster.control_plane import ControlPlane
from tests.cluster.situations import Situation

pytestmark = pytest.mark.cluster


def version(line: str) -> list[int]:
    return [int(part) for part in line.split(".")]


@pytest.mark.parametrize("situation", situations.ALL, ids=lambda s: s.name)
def test_names_the_cause(
    control_plane: ControlPlane, admin: Admin, answers: Answers, situation: Situation
) -> None:
    if version(control_plane.line) < version(situation.since or control_plane.line):
        pytest.skip(f"Kubernetes {control_plane.line} places the pod")
    kind, _, name = situation.asked.partition("/")
    with stage.staged(admin, situation) as namespace:
        event = stage.heard(admin, namespace, situation)
        asking = ("--pod", f"{namespace}/{name}") if kind == "pod" else (
            "--job", situation.asked, "-n", namespace
        )  # fmt: skip
        before = len(control_plane.audit_log())
        answer = stage.ask(control_plane.admin_kubeconfig, *asking)
        sent = [r for r in control_plane.audit_log()[before:] if r.is_of_gpudoctor]
        counted = [r for r in sent if not r.is_of_bound_pods]
        roots = frozenset(stage.report(answer)["roots"])
        answers.add(
            situation.name,
            roots,
            right=roots == situation.roots,
            event=event,
            requests=len(counted),
        )
        assert roots == situation.roots, event.get("message")
        assert len(counted) <= gather.BUDGET, [r.uri for r in counted]
