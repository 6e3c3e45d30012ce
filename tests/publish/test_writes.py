"""Writes as values: what server-side apply asks of them."""

from __future__ import annotations

import json

from gpudoctor.publish import names, writes


def test_an_apply_says_who_owns_its_fields_and_does_not_force() -> None:
    fields = {"metadata": {"name": "gpu-1", "labels": {names.label("driver"): "580126009"}}}
    write = writes.apply("labels of Node gpu-1", "/api/v1/nodes/gpu-1", fields, names.AGENT)
    assert (write.method, write.content_type) == ("PATCH", "application/apply-patch+yaml")
    assert write.query == {"fieldManager": "gpudoctor-agent"}
    assert json.loads(write.body) == fields
