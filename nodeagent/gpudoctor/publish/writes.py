"""A write to the Kubernetes API as a value: what publish/ declares, and the agent sends.

Nothing here sends anything, so that what would be written can be shown, compared and tested.
"""

from __future__ import annotations

from typing import Any

import msgspec

APPLY = "application/apply-patch+yaml"
"""Server-side apply: we own the fields that we send, and those we no longer send are removed."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""A merge that knows the keys of lists, so that one condition can be taken away."""
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"


_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `what` says in words what it changes, for messages and for `--dry-run`."""

    what: str
    method: str
    path: str
    content_type: str = JSON
    query: dict[str, str] = {}
    body: bytes = b""

    @property
    def permission(self) -> str:
        """What RBAC must allow, in its words: `patch nodes/status`, `delete leases.coordination…`.

        An apply of what is not there takes `create` besides.
        """
        root, *rest = self.path.strip("/").split("/")
        group = rest.pop(0) if root == "apis" else ""
        parts = rest[3:] if rest[1:2] == ["namespaces"] and len(rest) > 3 else rest[1:]
        resource = f"{parts[0]}.{group}" if group else parts[0]
        return f"{_VERBS[self.method]} {'/'.join([resource, *parts[2:]])}"


def apply(what: str, path: str, fields: dict[str, Any], manager: str) -> Write:
    """Declare the fields that `manager` owns of an object; what it owned before and is not among
    them goes away. A field that another owns with another value is a conflict (409), and stays."""
    return Write(
        what=what,
        method="PATCH",
        path=path,
        content_type=APPLY,
        query={"fieldManager": manager},
        body=msgspec.json.encode(fields),
    )


def forced(write: Write) -> Write:
    """Return an apply that takes the fields over from whoever owns them."""
    return msgspec.structs.replace(write, query={**write.query, "force": "true"})


def patch(what: str, path: str, content_type: str, changes: object, manager: str) -> Write:
    """Change some fields in one of the three ways of patching that are not an apply."""
    return Write(
        what=what,
        method="PATCH",
        path=path,
        content_type=content_type,
        query={"fieldManager": manager},
        body=msgspec.json.encode(changes),
    )


def delete(what: str, path: str) -> Write:
    """Delete one object."""
    return Write(what=what, method="DELETE", path=path)


def pinned(write: Write, version: str) -> Write:
    """Return an apply that the server refuses (409) if the object is no longer at `version`."""
    fields = msgspec.json.decode(write.body)
    fields["metadata"]["resourceVersion"] = version
    return msgspec.structs.replace(write, body=msgspec.json.encode(fields))
