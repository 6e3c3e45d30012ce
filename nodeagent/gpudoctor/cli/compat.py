"""`gpudoctor compat`: does this driver run that image's CUDA on this GPU, before a pull."""

from __future__ import annotations

from typing import Any

import click

from gpudoctor import diagnosis, registry
from gpudoctor.cli import output
from gpudoctor.errors import InputError
from gpudoctor.facts.node.cuda import Gpu, resolve_gpu
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule, RuntimeMode
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda, parse_driver
from gpudoctor.report import Report, ReportSubject, Subject
from gpudoctor_checks.compatibility import Compatibility, Outcome, judge, level_of


def _driver(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    version = parse_driver(value) if value is not None else None
    if value is not None and version is None:
        raise click.BadParameter(f"{value!r} is not a driver version such as 580.95.05")
    return version


def _cuda(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    version = parse_cuda(value) if value is not None else None
    if value is not None and version is None:
        raise click.BadParameter(f"{value!r} is not a CUDA version such as 12.8.1 or cu128")
    return version


@click.command("compat")
@click.option("--driver", callback=_driver, help="The driver's version or branch.")
@click.option("--cuda", callback=_cuda, help="The image's CUDA version, or the cuNNN of a wheel.")
@click.option("--gpu", help="The GPU's name as nvidia-smi or the node's label gives it.")
@click.option("--capability", help="The GPU's compute capability, which decides over its name.")
@click.option("--compat-package", is_flag=True, help="The image holds cuda-compat of its level.")
@click.option(
    "--compat-activation",
    type=click.Choice([one.value for one in Activation]),
    default=Activation.HOOK.value,
    show_default=True,
    help="Who puts cuda-compat in front.",
)
@click.option(
    "--runtime-mode",
    type=click.Choice([one.value for one in RuntimeMode]),
    default=RuntimeMode.LEGACY.value,
    show_default=True,
    help="The container toolkit's mode; NVIDIA_REQUIRE_* counts in legacy and csv only.",
)
@click.option(
    "--kernel-module",
    type=click.Choice([one.value for one in KernelModule]),
    help="The flavour of the loaded kernel modules.",
)
@click.option(
    "--require", "requirements", multiple=True, metavar="TEXT", help="A NVIDIA_REQUIRE_* value."
)
@click.option("--disable-require", is_flag=True, help="NVIDIA_DISABLE_REQUIRE is set.")
@click.option("--ptx-jit/--no-ptx-jit", default=None, help="The program compiles PTX at run time.")
@click.option("--ptx/--no-ptx", "has_ptx", default=None, help="The program carries PTX.")
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    driver: DriverVersion | None,
    cuda: CudaVersion | None,
    gpu: str | None,
    capability: str | None,
    compat_package: bool,
    compat_activation: str,
    runtime_mode: str,
    kernel_module: str | None,
    requirements: tuple[str, ...],
    disable_require: bool,
    ptx_jit: bool | None,
    has_ptx: bool | None,
    **emitting: Any,
) -> None:
    """Say whether a driver runs an image's CUDA on a GPU, by which rule, and what would help."""
    if driver is None or cuda is None:
        raise InputError("compat needs --driver and --cuda")
    stack = CudaStack(
        subject=Subject("Stack", f"driver {driver}, CUDA {cuda}"),
        driver=driver,
        toolkit=cuda,
        gpu=_gpu(gpu, capability),
        compat_package=compat_package,
        activation=Activation(compat_activation),
        mode=RuntimeMode(runtime_mode),
        kernel_module=KernelModule(kernel_module) if kernel_module else None,
        requirements=requirements,
        requirements_disabled=disable_require,
        needs_ptx_jit=ptx_jit,
        has_ptx=has_ptx,
    )
    ctx.exit(output.emit(_report(stack), **emitting))


def _gpu(name: str | None, capability: str | None) -> Gpu | None:
    found = resolve_gpu(name, capability)
    if capability is not None and found is None:
        raise InputError(f"--capability {capability}: not a known compute capability such as 9.0")
    return found


def _report(stack: CudaStack) -> Report:
    answer = judge(stack)
    return diagnosis.report(
        diagnosis.diagnose(registry.load(), [stack]),
        ReportSubject(stack.subject.kind, stack.subject.name),
        observed_at=None,
        needed_unknown=answer.outcome is Outcome.UNKNOWN,
        facts={"compat": _published(stack, answer)},
    )


def _published(stack: CudaStack, answer: Compatibility) -> dict[str, Any]:
    level = level_of(stack)
    return {
        "verdict": answer.outcome.value,
        "rule": answer.rule.value,
        "error_codes": list(answer.error_codes),
        "driver_cuda": str(level) if level else None,
        "capability": str(stack.gpu.architecture.capability) if stack.gpu else None,
    }
