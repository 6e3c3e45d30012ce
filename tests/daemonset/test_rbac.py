"""The documented roles: read-only, and enough for every kind that the client asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.kinds import Kind

RBAC = Path(__file__).parents[2] / "daemonset" / "manifests" / "rbac"
READ: list[Kind] = [found for found in vars(kinds).values() if isinstance(found, Kind)]


def rules(name: str) -> list[dict[str, Any]]:
    role = yaml.safe_load((RBAC / f"{name}.yaml").read_text(encoding="utf-8"))
    listed: list[dict[str, Any]] = role["rules"]
    return listed


@pytest.mark.parametrize("name", ["pod-owner", "operator"])
def test_roles_only_read(name: str) -> None:
    assert {verb for rule in rules(name) for verb in rule["verbs"]} == {"get", "list"}
    assert "secrets" not in {resource for rule in rules(name) for resource in rule["resources"]}


@pytest.mark.parametrize("kind", READ, ids=[kind.resource for kind in READ])
def test_operator_may_read_every_kind_that_is_asked_for(kind: Kind) -> None:
    granted = [
        rule
        for rule in rules("operator")
        if kind.group in rule["apiGroups"] and kind.plural in rule["resources"]
    ]
    assert granted
    assert set(granted[0]["verbs"]) >= {"get", "list"}


def test_pod_owner_has_nothing_cluster_wide() -> None:
    namespaced = {(kind.group, kind.plural) for kind in READ if kind.namespaced}
    granted = {
        (group, resource)
        for rule in rules("pod-owner")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if resource != "pods/log"
    }
    known = {(kind.group, kind.plural) for kind in READ}
    assert (granted & known) <= namespaced
