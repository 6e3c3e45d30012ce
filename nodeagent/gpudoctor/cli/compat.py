"""`gpudoctor compat`: does this driver run that image's CUDA on this GPU, before a pull."""

from __future__ import annotations

import json
from typing import Any

import click

from gpudoctor import diagnosis, registry
from gpudoctor.cli import cluster, output
from gpudoctor.cli.cluster import Access
from gpudoctor.errors import InputError
from gpudoctor.facts.node.cuda import Gpu, resolve_gpu
from gpudoctor.facts.node.cuda_stack import Activation, CudaStack, KernelModule, RuntimeMode
from gpudoctor.facts.node.gpu_offer import GpuOffer, either
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda, parse_driver
from gpudoctor.readings import gpu_offer as readings
from gpudoctor.report import Report, ReportSubject, Subject
from gpudoctor_checks import compat_matrix
from gpudoctor_checks.compatibility import Compatibility, Outcome, Rule, judge, level_of


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
@click.option("--node", metavar="NAME", help="Take driver and GPU from this node's labels.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="A bundle or kubectl dump that holds the node, instead of the live cluster.",
)
@cluster.options
@click.option("--matrix", is_flag=True, help="All driver branches and CUDA versions for the GPU.")
@output.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    driver: DriverVersion | None,
    cuda: CudaVersion | None,
    gpu: str | None,
    capability: str | None,
    node: str | None,
    sources: tuple[str, ...],
    access: Access,
    matrix: bool,
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
    """Say whether a driver runs an image's CUDA on a GPU, by which rule, and what would help.

    Driver and GPU that are not given are those of --node, else of this host.
    """
    offer = GpuOffer(
        driver=driver,
        gpu=_gpu(gpu, capability),
        kernel_module=KernelModule(kernel_module) if kernel_module else None,
    )
    if node is not None:
        found = (
            readings.of_recorded_node(node, sources)
            if sources
            else readings.of_live_node(node, access.connect)
        )
        offer = either(offer, _without_level_of_another(found, driver))
    elif driver is None and not (matrix and offer.gpu):
        offer = either(offer, readings.of_host())
    if matrix:
        _print_matrix(offer, emitting["output"])
        return
    if cuda is None:
        raise InputError("say the image's CUDA version with --cuda")
    if offer.driver is None and offer.level is None:
        raise InputError("this host has no NVIDIA driver; say --driver, or --node for a node's")
    stack = CudaStack(
        subject=Subject("Stack", f"driver {offer.driver or offer.level}, CUDA {cuda}"),
        driver=offer.driver,
        level=offer.level,
        toolkit=cuda,
        gpu=offer.gpu,
        compat_package=compat_package,
        activation=Activation(compat_activation),
        mode=RuntimeMode(runtime_mode),
        kernel_module=offer.kernel_module,
        requirements=requirements,
        requirements_disabled=disable_require,
        needs_ptx_jit=ptx_jit,
        has_ptx=has_ptx,
    )
    answer = judge(stack)
    if emitting["output"] == "text":
        click.echo(_sentence(stack, answer))
    ctx.exit(output.emit(_report(stack, answer), **emitting))


def _without_level_of_another(found: GpuOffer, driver: DriverVersion | None) -> GpuOffer:
    """The node's CUDA level is that of its own driver, not of one that is asked about."""
    return found if driver is None else GpuOffer(gpu=found.gpu, kernel_module=found.kernel_module)


def _gpu(name: str | None, capability: str | None) -> Gpu | None:
    found = resolve_gpu(name, capability)
    if capability is not None and found is None:
        raise InputError(f"--capability {capability}: not a known compute capability such as 9.0")
    return found


def _sentence(stack: CudaStack, answer: Compatibility) -> str:
    """The answer in one line, before the findings."""
    gpu = f" on {stack.gpu.name}" if stack.gpu else ""
    rule = f" by the {answer.rule} rule" if answer.rule is not Rule.NONE else ""
    codes = ", ".join(map(str, answer.error_codes))
    errors = f"; CUDA errors to expect: {codes}" if codes else ""
    level = level_of(stack) or "not known"
    return (
        f"CUDA {stack.toolkit} on driver {stack.driver or 'unknown'} (CUDA {level}){gpu}:"
        f" {answer.outcome}{rule}{errors}"
    )


def _report(stack: CudaStack, answer: Compatibility) -> Report:
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


def _print_matrix(offer: GpuOffer, form: str) -> None:
    if offer.gpu is None:
        raise InputError("say the GPU with --gpu, by a name such as A100 or H100")
    rows = compat_matrix.matrix(offer.gpu)
    if form == "json":
        cells = {
            str(branch): {str(toolkit): word for toolkit, word in row.items()}
            for branch, row in rows.items()
        }
        click.echo(json.dumps({"gpu": offer.gpu.name, "matrix": cells}, indent=2))
        return
    if form != "text":
        raise InputError(f"--matrix is printed as text or json, not {form}")
    toolkits = list(next(iter(rows.values())))
    width = 5
    click.echo(f"{offer.gpu.name}, {offer.gpu.architecture.name}: driver branch by CUDA version")
    click.echo("".join(f"{column:>{width}}" for column in ["", *map(str, toolkits)]))
    for branch, row in rows.items():
        mark = "*" if offer.driver and offer.driver.branch == branch else ""
        click.echo("".join(f"{cell:>{width}}" for cell in [f"{mark}{branch}", *row.values()]))
    click.echo(compat_matrix.LEGEND)
