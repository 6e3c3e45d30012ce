"""Writes as values: what server-side apply asks of them."""

from __future__ import annotations

import json

import pytest

from gpudoctor.publish import names, writes
from gpudoctor.publish.writes import Write


def test_an_apply_says_who_owns_its_fields_and_does_not_force() -> None:
    fields = {"metadata": {"name": "gpu-1", "labels": {names.label("driver"): "580126009"}}}
    write = writes.apply("labels of Node gpu-1", "/api/v1/nodes/gpu-1", fields, names.AGENT)
    assert (write.method, write.content_type) == ("PATCH", "application/apply-patch+yaml")
    assert write.query == {"fieldManager": "gpudoctor-agent"}
    assert json.loads(write.body) == fields


@pytest.mark.parametrize(
    ("method", "path", "permission"),
    [
        ("PATCH", "/api/v1/nodes/gpu-1", "patch nodes"),
        ("PATCH", "/api/v1/nodes/gpu-1/status", "patch nodes/status"),
        ("POST", "/api/v1/namespaces/ns/events", "create events"),
        (
            "DELETE",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/a",
            "delete leases.coordination.k8s.io",
        ),
        (
            "PATCH",
            "/apis/gpudoctor.io/v1alpha1/namespaces/ns/diagnoses/a/status",
            "patch diagnoses.gpudoctor.io/status",
        ),
    ],
)
def test_a_write_names_the_right_that_it_takes(method: str, path: str, permission: str) -> None:
    assert Write(what="x", method=method, path=path).permission == permission


def test_a_pinned_apply_is_refused_once_the_object_changed() -> None:
    write = writes.apply("x", "/api/v1/nodes/a", {"metadata": {"name": "a"}}, names.AGENT)
    pinned = writes.pinned(write, "17")
    assert json.loads(pinned.body) == {"metadata": {"name": "a", "resourceVersion": "17"}}
    assert pinned.query == write.query
