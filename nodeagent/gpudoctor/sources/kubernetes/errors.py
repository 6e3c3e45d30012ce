"""What can go wrong when the API server is asked, each a line for the person who has to act.

All are `InputError`: where nothing can be said without the answer they end the command, and
where a diagnosis can go on without it the caller notes them in the bundle's scope.
"""

from __future__ import annotations

from gpudoctor.errors import InputError


class ApiError(InputError):
    """The API server did not give what was asked for."""


class Unreachable(ApiError):
    """No HTTP answer: name not resolved, connection refused, TLS, timed out, cut off."""


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Forbidden(ApiError):
    """403: the credentials lack a permission, which the message names as RBAC does."""


class NotFound(ApiError):
    """404: there is no such object."""


class NotServed(NotFound):
    """404: the API server does not serve that kind in any version we know."""


class Refused(ApiError):
    """Any other status; `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Garbled(ApiError):
    """The answer is not what a Kubernetes API server sends."""
