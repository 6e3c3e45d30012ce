"""Credentials that change while a command runs: token files and exec plugins.

The plugin protocol is client.authentication.k8s.io/v1 and v1beta1, see
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes.access import Cluster, Identity

EXEC_API = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_API}/v1", f"{EXEC_API}/v1beta1")
_QUIET_SECONDS = 60
_INTERACTIVE_SECONDS = 600
_CLOCK_SLACK = timedelta(seconds=10)


def bearer(token: str, origin: str) -> str:
    """Return the Authorization value of a token; InputError if it cannot be a header."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{origin}: the token has characters that a token cannot have")
    return f"Bearer {token}"


class TokenFile:
    """A token in a file that someone else renews: read again for each request."""

    def __init__(self, path: Path, certificate: bytes | None = None, key: bytes | None = None):
        """The certificate and key are sent besides the token, where the user has both."""
        self._path = path
        self._certificate = certificate
        self._key = key
        self._last: str | None = None

    def identity(self) -> Identity:
        """Read the token; InputError says why it cannot be read."""
        self._last = self._read()
        return Identity(self._last, self._certificate, self._key)

    def renew(self) -> bool:
        """Whether the file holds another token than the one just refused."""
        return self._read() != self._last

    def _read(self) -> str:
        try:
            token = self._path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{self._path}: the token cannot be read: {error}") from error
        if not token.strip():
            raise InputError(f"{self._path}: the token file is empty")
        return bearer(token, str(self._path))


class ExecSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`user.exec` of a kubeconfig."""

    command: str = ""
    api_version: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[dict[str, str], ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always", ""] = ""


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


class ExecPlugin:
    """Runs the kubeconfig's credential command when an identity is needed, and when it expires."""

    def __init__(
        self,
        spec: ExecSpec,
        cluster: Cluster,
        origin: str,
        cluster_config: object = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`cluster_config` is the cluster's extension for plugins, passed on as it is."""
        self._spec = spec
        self._cluster = cluster
        self._cluster_config = cluster_config
        self._origin = f"{origin}: exec plugin {spec.command!r}"
        self._now = now
        self._identity: Identity | None = None
        self._expires: datetime | None = None

    def identity(self) -> Identity:
        """Return the plugin's identity, running the command if there is none or it has expired."""
        expired = self._expires is not None and self._now() >= self._expires - _CLOCK_SLACK
        if self._identity is None or expired:
            self._refresh()
        assert self._identity is not None
        return self._identity

    def renew(self) -> bool:
        """Run the command again; it decides what is new."""
        before = self._identity
        self._refresh()
        return self._identity != before

    def _refresh(self) -> None:
        answer = _decode(self._run(), self._origin)
        if answer.api_version != self._spec.api_version or answer.kind != "ExecCredential":
            found = f"{answer.api_version or 'nothing'} {answer.kind}".strip()
            raise InputError(
                f"{self._origin} answered {found!r}, asked was"
                f" {self._spec.api_version} ExecCredential"
            )
        status = answer.status or _Status()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise InputError(f"{self._origin} gave a certificate without key, or the reverse")
        if not status.token and not status.client_certificate_data:
            raise InputError(f"{self._origin} gave neither a token nor a certificate")
        self._identity = Identity(
            bearer(status.token, self._origin) if status.token else None,
            (status.client_certificate_data or "").encode() or None,
            (status.client_key_data or "").encode() or None,
        )
        self._expires = _aware(status.expiration_timestamp)

    def _run(self) -> bytes:
        interactive = self._interactive()
        # The command is the user's own, from the user's own kubeconfig, and needs the user's
        # environment (PATH, HOME, cloud profiles), as with kubectl.
        environment = dict(os.environ)
        environment.update((entry["name"], entry["value"]) for entry in self._spec.env or ())
        environment["KUBERNETES_EXEC_INFO"] = self._info(interactive)
        try:
            process = subprocess.Popen(  # noqa: S603 - a list, never a shell
                [self._spec.command, *(self._spec.args or ())],
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,
                start_new_session=not interactive,
            )
        except (OSError, ValueError) as error:
            hint = f"; {self._spec.install_hint.strip()}" if self._spec.install_hint else ""
            reason = "no such command" if isinstance(error, FileNotFoundError) else str(error)
            raise InputError(f"{self._origin} cannot be started: {reason}{hint}") from error
        with process:
            return self._output(process, interactive)

    def _output(self, process: subprocess.Popen[bytes], interactive: bool) -> bytes:
        limit = _INTERACTIVE_SECONDS if interactive else _QUIET_SECONDS
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            _kill(process, whole_group=not interactive)
            raise InputError(f"{self._origin} did not end within {limit} s") from error
        except BaseException:
            _kill(process, whole_group=not interactive)
            raise
        if process.returncode != 0:
            lines = (errors or b"").decode("utf-8", "replace").strip().splitlines()
            said = f": {lines[-1].strip()}" if lines else ""
            raise InputError(f"{self._origin} failed with exit status {process.returncode}{said}")
        return output

    def _interactive(self) -> bool:
        mode = self._spec.interactive_mode or "IfAvailable"
        if mode == "Never":
            return False
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise InputError(f"{self._origin} needs a terminal (interactiveMode: Always)")
        return terminal

    def _info(self, interactive: bool) -> str:
        spec: dict[str, object] = {"interactive": interactive}
        if self._spec.provide_cluster_info:
            spec["cluster"] = self._cluster_info()
        info = {"kind": "ExecCredential", "apiVersion": self._spec.api_version, "spec": spec}
        return msgspec.json.encode(info).decode()

    def _cluster_info(self) -> dict[str, object]:
        cluster = self._cluster
        fields: dict[str, object | None] = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure or None,
            "certificate-authority-data": cluster.authority,  # bytes are encoded as base64
            "proxy-url": cluster.proxy,
            "config": self._cluster_config,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _decode(output: bytes, origin: str) -> _ExecCredential:
    try:
        return msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.MsgspecError, ValueError) as error:
        # What it printed may be a secret: it is not repeated.
        detail = str(error) if output.strip() else "it printed nothing"
        raise InputError(f"{origin} did not print an ExecCredential: {detail}") from error


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _kill(process: subprocess.Popen[bytes], *, whole_group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
