"""What can go wrong when the API server is asked, each a line for the person who has to act.

All are `InputError`: where nothing can be said without the answer they end the command, and
where a diagnosis can go on without it the caller notes them in the bundle's scope.
"""

from __future__ import annotations

from gpudoctor.errors import InputError


class ApiError(InputError):
    """The API server did not give what was asked for."""


class UnreachableError(ApiError):
    """No whole HTTP answer: name not resolved, connection refused, TLS, timed out, cut off.

    `broken` tells a connection that stood and then broke: asking again may help.
    """

    def __init__(self, message: str, *, broken: bool = False) -> None:
        super().__init__(message)
        self.broken = broken


class UnauthorizedError(ApiError):
    """401: the credentials are missing, wrong or expired."""


class ForbiddenError(ApiError):
    """403: the credentials lack a permission, which the message names as RBAC does."""


class NotFoundError(ApiError):
    """404: there is no such object."""


class NotServedError(NotFoundError):
    """404: the API server does not serve that kind in any version that was tried.

    `all_tried` is False if there were older versions left and no request to spend on them.
    """

    def __init__(self, message: str, *, all_tried: bool = True) -> None:
        super().__init__(message)
        self.all_tried = all_tried


class RefusedError(ApiError):
    """Any other status; `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ConflictError(RefusedError):
    """409: the object changed since it was read, exists already, or another owns the field."""


class GarbledError(ApiError):
    """The answer is not what a Kubernetes API server sends."""
