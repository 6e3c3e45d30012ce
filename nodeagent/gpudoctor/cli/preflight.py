"""`gpudoctor preflight`: the init container that fails with a reason instead of hanging in NCCL."""

from __future__ import annotations

import os
from typing import Any

import click

from gpudoctor import preflight, registry
from gpudoctor.cli import output
from gpudoctor.errors import InputError
from gpudoctor.facts import rendezvous_plan
from gpudoctor.facts.node import needs, podinfo
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.rendezvous import OrderedStart
from gpudoctor.render import termination
from gpudoctor.report import Subject
from gpudoctor.sources.rendezvous import Plan

_TERMINATION_LOG = "/dev/termination-log"
_PODINFO = "/etc/podinfo"
_IMAGE = "/trainer-image"
_MOST_PODINFO = 1 << 20
_MOST_TOKEN = 4096

_EPILOG = """\b
What can be required (NAME or NAME=VALUE, by comma):
  rdma           an RDMA device that opens, with an active port; 1 GiB of locked memory
  gdr            GPUDirect RDMA by this node's driver and kernel; includes rdma
  nvlink         active NVLinks on each GPU
  gpus=8         so many GPUs that the driver offers here
  cuda=13.1      a driver that runs this CUDA
  memlock[=8Gi]  so much locked memory (1 GiB without a value), by locking it
  shm=16Gi       so much room in /dev/shm, by allocating in it
  hugepages=1Gi  so many huge pages of the default size, by mapping them
  numa           CPUs and memory near to the GPUs (warns)
  bootstrap[=30] MASTER_ADDR resolves within so many seconds

\b
Exit status, for a Job's podFailurePolicy; 10 to 12 from the severity of --fail-on on:
  0   passed
  2   wrong usage
  10  the pod's own spec must change (FailJob)
  11  this node, or its choice: try another one (Count)
  12  fabric or peers of the job (Count)
  13  a declared need could neither be proved nor refuted (--on-unknown)
A driver that is too old for the image is 11: another node may have a newer one.

\b
--on-unknown is `fail` unless said otherwise: only what was declared is asked, each of it can be
tried in a healthy container, and a job of many pods that starts with one of them unproved hangs
with all its GPUs held. What was not declared never fails.

\b
--rendezvous has the init containers of a job meet (members 0 to N-1; member 0 listens), compare
driver, NCCL, GPUs, HCAs, rate, MTU and GID type, and connect to each other. WORDS, by comma:
  members=8      how many pods       [PET_NNODES, LWS_GROUP_SIZE]
  rank=3         which one this is   [PET_NODE_RANK, JOB_COMPLETION_INDEX, LWS_WORKER_INDEX]
  address=HOST   where member 0 is   [MASTER_ADDR, PET_MASTER_ADDR, LWS_LEADER_ADDRESS]
  port=29499     where it listens
  timeout=300    seconds to wait for all, at most 3600
  start=parallel this StatefulSet starts its pods together
The secret that all share comes in GPUDOCTOR_TOKEN or --token-file, and never crosses the wire.
It is refused (10) where pods are started in order: each would wait for the next one.
"""


@click.command("preflight", epilog=_EPILOG)
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="NEEDS",
    help=f"What the job needs, as in rdma,gpus=8,shm=16Gi; goes before {needs.VARIABLE} and the "
    f"annotation {needs.ANNOTATION}.",
)
@click.option(
    "--annotations",
    metavar="FILE",
    help="The pod's annotations by the downward API, with a file of its labels beside it.  "
    f"[default: {_PODINFO}/annotations if it is there]",
)
@click.option(
    "--image-root",
    "image",
    metavar="DIR",
    help="Where the trainer's image is mounted: its CUDA and NCCL are read from its files.  "
    f"[default: {_IMAGE} if it is there]",
)
@click.option(
    "--rendezvous",
    is_flag=False,
    flag_value="",
    metavar="[WORDS]",
    help=f"Meet the other members of the job first; so does {rendezvous_plan.VARIABLE}.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help=f"The secret of the rendezvous; {rendezvous_plan.TOKEN_VARIABLE} otherwise.",
)
@click.option(
    "--termination-log",
    metavar="PATH",
    help=f"Where the root cause is written.  [default: {_TERMINATION_LOG} if it is there]",
)
@click.option(
    "--on-unknown",
    type=click.Choice(["fail", "pass"]),
    default="fail",
    show_default=True,
    help="What a declared need that could not be proved does.",
)
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    required: tuple[str, ...],
    annotations: str | None,
    image: str | None,
    rendezvous: str | None,
    token_file: str | None,
    termination_log: str | None,
    on_unknown: str,
    fail_on: str,
    **emitting: Any,
) -> None:
    """Say whether this container has what its job needs, before the job starts.

    Without declared needs: the GPUs and RDMA devices that the container was given, and RDMA if
    NCCL_IB_HCA or FI_PROVIDER names it. With none of these nothing can be proved (13).
    """
    # Our children need no secret, and no crash shall show it.
    token = os.environ.pop(rendezvous_plan.TOKEN_VARIABLE, None)
    try:
        info = _podinfo(annotations, "annotations")
        request = preflight.Request(
            declared=_declared(required, info),
            environment=os.environ,
            fail_on=fail_on,
            fail_on_unknown=on_unknown == "fail",
            image=_image(image),
            plan=_plan(rendezvous, info, _labels(annotations), _secret(token, token_file)),
        )
    except InputError as error:
        _write(termination_log, f"gpudoctor preflight: wrong usage: {error}")
        raise
    outcome = preflight.run(request, registry.load(), _say)
    word = outcome.exit.name.lower()
    _write(termination_log, termination.message(outcome.report, word))
    output.emit(outcome.report, fail_on=fail_on, **emitting)
    ctx.exit(outcome.exit)


def _say(words: str) -> None:
    """Tell how a wait goes: the log of an init container is where one looks while it hangs."""
    click.echo(f"gpudoctor: rendezvous: {words}", err=True)


def _declared(required: tuple[str, ...], annotations: dict[str, str]) -> Needs | None:
    """Join what is declared, the nearest to the command last; None if nothing is."""
    found: Needs | None = None
    if annotated := annotations.get(needs.ANNOTATION, "").strip():
        found = needs.parse(annotated, f"annotation {needs.ANNOTATION}")
    # A fieldRef to an annotation that is not there gives an empty variable.
    if variable := os.environ.get(needs.VARIABLE, "").strip():
        found = needs.parse(variable, needs.VARIABLE, found)
    for text in required:
        found = needs.parse(text, "--require", found)
    return found


def _plan(
    said: str | None, annotations: dict[str, str], labels: dict[str, str], secret: bytes | None
) -> Plan | OrderedStart | None:
    """Return our part in the rendezvous; None where neither option nor variable asks for it."""
    variable = os.environ.get(rendezvous_plan.VARIABLE, "").strip()
    if said is None and not variable:
        return None
    words = rendezvous_plan.words(variable, rendezvous_plan.VARIABLE)
    words |= rendezvous_plan.words(said or "", "--rendezvous")
    subject = Subject("Container", os.uname().nodename)
    ordered = rendezvous_plan.ordered(words, os.environ, labels, subject)
    return ordered or rendezvous_plan.plan(words, os.environ, annotations, secret)


def _secret(token: str | None, file: str | None) -> bytes | None:
    if file is None:
        return token.encode("utf-8", "surrogateescape") if token else None
    try:
        with open(file, "rb") as opened:
            return opened.read(_MOST_TOKEN)
    except OSError as error:
        raise InputError(f"--token-file {file}: {error.strerror}") from None


def _image(path: str | None) -> str | None:
    if path is not None and not os.path.isdir(path):
        raise InputError(f"--image-root {path}: no such directory")
    return path or (_IMAGE if os.path.isdir(_IMAGE) else None)


def _labels(annotations: str | None) -> dict[str, str]:
    """Return the labels beside a file of annotations, which need not be there."""
    folder = _PODINFO if annotations is None else os.path.dirname(annotations)
    try:
        return _podinfo(os.path.join(folder, "labels"), "labels")
    except InputError:
        return {}


def _podinfo(path: str | None, name: str) -> dict[str, str]:
    try:
        file = path or f"{_PODINFO}/{name}"
        with open(file, encoding="utf-8", errors="replace") as opened:
            return podinfo.read(opened.read(_MOST_PODINFO))
    except OSError as error:
        if path is not None:
            raise InputError(f"--{name} {path}: {error.strerror}") from None
        return {}


def _write(path: str | None, message: str) -> None:
    """Write the termination message; the default is not made where no kubelet put it."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    if path is not None:
        flags |= os.O_CREAT
    try:
        descriptor = os.open(path or _TERMINATION_LOG, flags, 0o644)
    except OSError as error:
        if path is not None:
            click.echo(f"gpudoctor: --termination-log {path}: {error.strerror}", err=True)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(message + "\n")
