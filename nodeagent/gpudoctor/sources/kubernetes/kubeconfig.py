"""Kubeconfig files and the in-cluster service account, as typed access to one API server.

Rules as in client-go: the files of KUBECONFIG are merged and the first that sets a value wins;
relative paths belong to the file that names them; data wins over the file of the same name.
Unknown fields are ignored. Everything wrong is an InputError that names the file and the field.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes.access import (
    Access,
    Cluster,
    Credentials,
    Fixed,
    Identity,
    server_url,
)
from gpudoctor.sources.kubernetes.credentials import (
    EXEC_API,
    EXEC_VERSIONS,
    ExecPlugin,
    ExecSpec,
    TokenFile,
    bearer,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_EXTENSION = f"{EXEC_API}/exec"
_MAX_BYTES = 16 << 20


class _Extension(msgspec.Struct, frozen=True):
    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: tuple[_Extension, ...] | None = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] | None = None
    as_user_extra: dict[str, tuple[str, ...]] | None = None
    auth_provider: dict[str, Any] | None = None
    exec: ExecSpec | None = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class _Merged:
    """The entries of all files, each with the file it came from; the first of a name stays."""

    def __init__(self) -> None:
        self.current = ""
        self.clusters: dict[str, tuple[Path, _Cluster]] = {}
        self.users: dict[str, tuple[Path, _User]] = {}
        self.contexts: dict[str, tuple[Path, _Context]] = {}

    def add(self, path: Path, content: _File) -> None:
        """Merge one more file behind those that are there."""
        self.current = self.current or content.current_context or ""
        for cluster in content.clusters or ():
            self.clusters.setdefault(cluster.name, (path, cluster.cluster or _Cluster()))
        for user in content.users or ():
            self.users.setdefault(user.name, (path, user.user or _User()))
        for context in content.contexts or ():
            self.contexts.setdefault(context.name, (path, context.context or _Context()))


def load(
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Access:
    """Return the access that a kubeconfig, or the pod this runs in, gives.

    An explicit `kubeconfig` must exist; else the files of KUBECONFIG, else ~/.kube/config, else
    the service account of the pod. `context` overrides the current one.
    """
    environ = os.environ if environ is None else environ
    merged = _Merged()
    files = _files(kubeconfig, environ)
    for path in files:
        merged.add(path, _read(path))
    if not files and context is None:
        return in_cluster(environ)
    return _select(merged, context, ", ".join(map(str, files)) or "no kubeconfig")


def _files(kubeconfig: str | None, environ: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        path = Path(kubeconfig)
        if not path.exists():
            raise InputError(f"{path}: no such kubeconfig")
        return [path]
    listed = environ.get("KUBECONFIG", "")
    if listed:
        candidates = [Path(name) for name in listed.split(os.pathsep) if name]
    else:
        candidates = [Path(environ.get("HOME") or "/", ".kube", "config")]
    return [path for path in candidates if path.exists()]


def _read(path: Path) -> _File:
    import yaml

    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise InputError(f"{path}: too large for a kubeconfig")
        content = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except yaml.MarkedYAMLError as error:
        # str(error) may quote the line, and with it a token.
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}: not YAML: {error.problem}{line}") from error
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as e:
        # PyYAML's constructors let these through on a misshapen scalar or deep nesting.
        raise InputError(f"{path}: not YAML that can be read ({type(e).__name__})") from e
    try:
        return msgspec.convert({} if content is None else content, _File)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(f"{path}: not a kubeconfig: {error}") from error


def _select(merged: _Merged, wanted: str | None, origin: str) -> Access:
    name = wanted or merged.current
    if not name:
        known = ", ".join(sorted(merged.contexts)) or "none"
        raise InputError(f"{origin}: no current-context; give --context ({known})")
    if name not in merged.contexts:
        known = ", ".join(sorted(merged.contexts)) or "none"
        raise InputError(f"{origin}: no context {name!r}; there are: {known}")
    path, context = merged.contexts[name]
    if context.cluster not in merged.clusters:
        raise InputError(f"{path}: context {name!r} names cluster {context.cluster!r}: not there")
    if context.user and context.user not in merged.users:
        raise InputError(f"{path}: context {name!r} names user {context.user!r}: not there")
    raw_cluster = merged.clusters[context.cluster]
    cluster = _cluster(*raw_cluster, f"{raw_cluster[0]}: cluster {context.cluster!r}")
    user_path, user = merged.users.get(context.user, (path, _User()))
    return Access(
        cluster=cluster,
        credentials=_credentials(
            user_path,
            user,
            f"{user_path}: user {context.user!r}",
            lambda spec, at: ExecPlugin(spec, cluster, at, _exec_extension(raw_cluster[1])),
        ),
        headers=_impersonation(user, f"{user_path}: user {context.user!r}"),
        namespace=context.namespace or "default",
        origin=f"context {name!r} of {path}",
    )


def _cluster(path: Path, cluster: _Cluster, origin: str) -> Cluster:
    if not cluster.server:
        raise InputError(f"{origin}: has no server")
    authority = _pem(
        path, cluster.certificate_authority, cluster.certificate_authority_data,
        f"{origin}: certificate-authority",
    )  # fmt: skip
    if authority and cluster.insecure_skip_tls_verify:
        raise InputError(f"{origin}: certificate-authority and insecure-skip-tls-verify at once")
    return Cluster(
        server=server_url(cluster.server, origin),
        authority=authority,
        tls_server_name=cluster.tls_server_name or None,
        insecure=cluster.insecure_skip_tls_verify,
        proxy=_proxy_url(cluster.proxy_url, origin),
    )


def _proxy_url(text: str, origin: str) -> str | None:
    scheme, separator, rest = text.partition("://")
    if text and (scheme not in ("http", "https", "socks5") or not separator or not rest):
        raise InputError(f"{origin}: proxy-url is not a URL like http://proxy:3128")
    return text or None


def _exec_extension(cluster: _Cluster) -> object:
    for entry in cluster.extensions or ():
        if entry.name == _EXEC_EXTENSION:
            return entry.extension
    return None


def _credentials(
    path: Path,
    user: _User,
    origin: str,
    plugin: Callable[[ExecSpec, str], Credentials],
) -> Credentials:
    if user.auth_provider is not None:
        raise InputError(f"{origin}: auth-provider is not supported; use an exec plugin")
    certificate = _pem(
        path, user.client_certificate, user.client_certificate_data, f"{origin}: client-certificate"
    )
    key = _pem(path, user.client_key, user.client_key_data, f"{origin}: client-key")
    if bool(certificate) != bool(key):
        raise InputError(f"{origin}: client-certificate and client-key must both be given")
    if user.exec is not None:
        return plugin(_checked(user.exec, path, origin), origin)
    if user.token_file:
        return TokenFile(_beside(path, user.token_file), certificate, key)
    authorization = None
    if user.token:
        authorization = bearer(user.token, origin)
    elif user.username:
        pair = f"{user.username}:{user.password}".encode()
        authorization = "Basic " + base64.b64encode(pair).decode()
    return Fixed(Identity(authorization, certificate, key))


def _checked(spec: ExecSpec, path: Path, origin: str) -> ExecSpec:
    if spec.api_version not in EXEC_VERSIONS:
        raise InputError(
            f"{origin}: exec apiVersion {spec.api_version!r} is not one of"
            f" {', '.join(EXEC_VERSIONS)}"
        )
    if not spec.command:
        raise InputError(f"{origin}: exec has no command")
    if spec.api_version == EXEC_VERSIONS[0] and not spec.interactive_mode:
        raise InputError(f"{origin}: exec needs interactiveMode (Never, IfAvailable or Always)")
    if any({"name", "value"} - entry.keys() for entry in spec.env or ()):
        raise InputError(f"{origin}: an entry of exec.env lacks name or value")
    if os.sep in spec.command:
        spec = msgspec.structs.replace(spec, command=str(_beside(path, spec.command)))
    return spec


def _impersonation(user: _User, origin: str) -> dict[str, str]:
    """The headers for `as`; a list of groups cannot be sent as repeated headers by requests."""
    if not (user.as_user or user.as_uid or user.as_groups or user.as_user_extra):
        return {}
    if not user.as_user:
        raise InputError(f"{origin}: as-uid, as-groups and as-user-extra need `as`")
    if user.as_user_extra or len(user.as_groups or ()) > 1:
        raise InputError(f"{origin}: as-user-extra and several as-groups are not supported")
    headers = {"Impersonate-User": user.as_user}
    if user.as_uid:
        headers["Impersonate-Uid"] = user.as_uid
    for group in user.as_groups or ():
        headers["Impersonate-Group"] = group
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise InputError(f"{origin}: `as` has characters that cannot be sent")
    return headers


def _pem(path: Path, name: str, data: str, origin: str) -> bytes | None:
    if data:
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{origin}-data is not base64") from error
    if not name:
        return None
    file = _beside(path, name)
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{origin}: {file}: cannot be read: {reason}") from error


def _beside(path: Path, name: str) -> Path:
    return path.absolute().parent / name


def in_cluster(environ: Mapping[str, str]) -> Access:
    """Return the access of the pod's service account; InputError outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    if not host or not port or not token.exists():
        raise InputError(
            "no cluster to ask: no kubeconfig (KUBECONFIG, ~/.kube/config) and not in a pod with"
            " a service account; give --kubeconfig, --server, or --from with a recorded bundle"
        )
    address = f"[{host}]" if ":" in host else host
    namespace = "default"
    try:
        authority_pem = authority.read_bytes()
        if (SERVICE_ACCOUNT / "namespace").exists():
            namespace = (SERVICE_ACCOUNT / "namespace").read_text("utf-8").strip() or namespace
    except (OSError, ValueError) as error:
        raise InputError(f"{SERVICE_ACCOUNT}: cannot be read: {error}") from error
    return Access(
        cluster=Cluster(
            server=server_url(f"https://{address}:{port}", "KUBERNETES_SERVICE_HOST"),
            authority=authority_pem,
        ),
        credentials=TokenFile(token),
        namespace=namespace,
        origin="the pod's service account",
    )
