"""The test cluster itself: it is the line it says, and it refuses, decides and records."""

from __future__ import annotations

import pytest
import requests

from tests.cluster.admin import Admin, wait_for
from tests.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


def test_server_is_of_the_line_that_was_asked_for(control_plane: ControlPlane, line: str) -> None:
    version = requests.get(
        f"{control_plane.url}/version", verify=str(control_plane.authority), timeout=10
    ).json()
    assert version["gitVersion"].startswith(f"v{line}.")


def test_service_account_without_a_role_is_refused_by_name(
    control_plane: ControlPlane, admin: Admin
) -> None:
    answer = requests.get(
        f"{control_plane.url}/api/v1/pods",
        headers={"Authorization": f"Bearer {admin.token('default', 'default')}"},
        verify=str(control_plane.authority),
        timeout=10,
    )
    assert answer.status_code == 403
    assert answer.json()["message"] == (
        'pods is forbidden: User "system:serviceaccount:default:default" cannot list resource '
        '"pods" in API group "" at the cluster scope'
    )


def test_audit_log_has_a_request_as_soon_as_it_is_answered(
    control_plane: ControlPlane, admin: Admin
) -> None:
    before = len(control_plane.audit_log())
    admin.list("v1", "Pod", "default", labelSelector="counted")
    uris = [request.uri for request in control_plane.audit_log()[before:]]
    assert uris.count("/api/v1/namespaces/default/pods?labelSelector=counted") == 1


def test_scheduler_says_that_there_is_no_node(admin: Admin) -> None:
    pod = admin.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "nowhere", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "image": "example.com/main"}]},
        }
    )
    try:
        event = wait_for(
            "FailedScheduling",
            lambda: admin.list("v1", "Event", "default", fieldSelector="reason=FailedScheduling"),
        )
        assert event[0]["message"].startswith("no nodes available to schedule pods")
    finally:
        admin.delete(pod)
