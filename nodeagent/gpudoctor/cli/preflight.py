"""`gpudoctor preflight`: the init container that fails with a reason instead of hanging in NCCL."""

from __future__ import annotations

import os
from typing import Any

import click

from gpudoctor import preflight, registry
from gpudoctor.cli import output
from gpudoctor.errors import InputError
from gpudoctor.facts.node import needs
from gpudoctor.facts.node.needs import Needs
from gpudoctor.render import termination

_TERMINATION_LOG = "/dev/termination-log"
_ANNOTATIONS = "/etc/podinfo/annotations"
_MOST_ANNOTATIONS = 1 << 20

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

\b
--on-unknown is `fail` unless said otherwise: only what was declared is asked, each of it can be
tried in a healthy container, and a job of many pods that starts with one of them unproved hangs
with all its GPUs held. What was not declared never fails.
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
    help=f"The pod's annotations by the downward API.  [default: {_ANNOTATIONS} if it is there]",
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
    termination_log: str | None,
    on_unknown: str,
    fail_on: str,
    **emitting: Any,
) -> None:
    """Say whether this container has what its job needs, before the job starts.

    Without declared needs: the GPUs and RDMA devices that the container was given, and RDMA if
    NCCL_IB_HCA names a device.
    """
    try:
        declared = _declared(required, annotations)
    except InputError as error:
        _write(termination_log, f"gpudoctor preflight: wrong usage: {error}")
        raise
    outcome = preflight.run(
        declared,
        registry.load(),
        os.environ,
        fail_on=fail_on,
        fail_on_unknown=on_unknown == "fail",
    )
    word = outcome.exit.name.lower()
    _write(termination_log, termination.message(outcome.report, word))
    output.emit(outcome.report, fail_on=fail_on, **emitting)
    ctx.exit(outcome.exit)


def _declared(required: tuple[str, ...], annotations: str | None) -> Needs | None:
    """Join what is declared, the nearest to the command last; None if nothing is."""
    found: Needs | None = None
    annotated = _annotated(annotations)
    if annotated:
        found = needs.parse(annotated, f"annotation {needs.ANNOTATION}")
    # A fieldRef to an annotation that is not there gives an empty variable.
    if variable := os.environ.get(needs.VARIABLE, "").strip():
        found = needs.parse(variable, needs.VARIABLE, found)
    for text in required:
        found = needs.parse(text, "--require", found)
    return found


def _annotated(path: str | None) -> str | None:
    try:
        with open(path or _ANNOTATIONS, encoding="utf-8", errors="replace") as file:
            return needs.of_annotations(file.read(_MOST_ANNOTATIONS))
    except OSError as error:
        if path is not None:
            raise InputError(f"--annotations {path}: {error.strerror}") from None
        return None


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
