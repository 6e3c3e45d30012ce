"""How many GPUs an inference or training engine is told to use: its flags, wherever they stand.

Flags come as arguments, inside a shell string (`sh -c "vllm serve … -tp 8"`), as short forms,
with `=` or a blank, and as environment variables. Sources: vLLM, SGLang, TGI, TensorRT-LLM,
DeepSpeed and torchrun command lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.kubernetes import fields
from gpudoctor.facts.kubernetes.model import Container

_SHELLS = ("sh", "bash", "ash", "dash", "zsh", "env")
_FLAGS = {
    "tensor": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--num-shard", "--tp_size"),
    "pipeline": ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp", "--pp_size"),
    "data": ("--data-parallel-size", "-dp", "--dp-size", "--dp"),
    "local": ("--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus"),
    "memory": ("--gpu-memory-utilization", "--mem-fraction-static", "--cuda-memory-fraction"),
    "nodes": ("--nnodes", "--num_nodes", "--num-nodes"),
}
_ENV = {
    "tensor": ("TENSOR_PARALLEL_SIZE", "VLLM_TENSOR_PARALLEL_SIZE", "TP_SIZE", "NUM_SHARD"),
    "pipeline": ("PIPELINE_PARALLEL_SIZE", "VLLM_PIPELINE_PARALLEL_SIZE", "PP_SIZE"),
    "data": ("DATA_PARALLEL_SIZE",),
    "local": ("NPROC_PER_NODE", "PET_NPROC_PER_NODE"),
    "memory": ("GPU_MEMORY_UTILIZATION", "VLLM_GPU_MEMORY_UTILIZATION"),
    "nodes": ("PET_NNODES",),
}
_ENGINE = re.compile(
    r"vllm|sglang|text-generation|\btgi\b|trtllm|tensorrt|tritonserver|lmdeploy|deepspeed|torchrun"
    r"|accelerate|torch\.distributed|megatron",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\((?P<name>\w+)\)|\$\{?(?P<shell>\w+)\}?")
_RAY = ("ray", "mp-ray")
_MAX_CHARS = 64 * 1024


class EngineFlags(msgspec.Struct, frozen=True):
    """What the engine is told. A size is None where nothing says so; `flag` is what was read.

    `memory` is the fraction of the memory that the process sees, not of the physical card.
    """

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    local: int | None = None
    nodes: int | None = None
    memory: float | None = None
    flags: dict[str, str] = {}
    is_engine: bool = False
    uses_ray: bool = False

    @property
    def gpus(self) -> int | None:
        """GPUs that one instance of the engine needs: tensor x pipeline x data parallel."""
        sizes = [size for size in (self.tensor, self.pipeline, self.data) if size]
        if not sizes:
            return None
        product = 1
        for size in sizes:
            product *= size
        return product


def read(container: Container) -> EngineFlags:
    """Read the engine's flags from arguments and environment; arguments win."""
    words = list(_words(container))
    found: dict[str, str] = {}
    flags: dict[str, str] = {}
    for name, spellings in _FLAGS.items():
        value, written = _value(words, spellings)
        if value is None:
            value, written = _env(container, _ENV[name])
        if value is not None:
            found[name], flags[name] = _expanded(container, value), written
    return EngineFlags(
        tensor=_size(found.get("tensor")),
        pipeline=_size(found.get("pipeline")),
        data=_size(found.get("data")),
        local=_size(found.get("local")),
        nodes=_size(found.get("nodes")),
        memory=_fraction(found.get("memory")),
        flags=flags,
        is_engine=bool(_ENGINE.search(" ".join([container.image, *words])[:_MAX_CHARS])),
        uses_ray=_value(words, ("--distributed-executor-backend",))[0] in _RAY,
    )


def _words(container: Container) -> Iterator[str]:
    """Yield the words of command and args, those inside shell strings too."""
    written = [*container.command, *container.args]
    shell = bool(written) and written[0].rpartition("/")[2] in _SHELLS
    for word in written:
        if shell and any(blank in word for blank in " \n\t"):
            yield from _split(word[:_MAX_CHARS])
        else:
            yield word


def _split(script: str) -> list[str]:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        # An unbalanced quote: words by blanks are still better than none.
        return script.split()


def _value(words: list[str], spellings: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the last value given, as the engines' own parsers take it, and how it was written."""
    value, written = None, ""
    for position, word in enumerate(words):
        flag, equals, inline = word.partition("=")
        if flag not in spellings:
            continue
        if equals:
            value, written = inline, word
        elif position + 1 < len(words):
            value, written = words[position + 1], f"{word} {words[position + 1]}"
    return value, written


def _expanded(container: Container, value: str) -> str:
    """Put the container's own variables in, as the kubelet ($(NAME)) or a shell ($NAME) does."""
    return _REFERENCE.sub(
        lambda match: container.env.get(match["name"] or match["shell"], match[0]), value
    )


def _env(container: Container, names: tuple[str, ...]) -> tuple[str | None, str]:
    for name in names:
        if name in container.env:
            return container.env[name], f"{name}={container.env[name]}"
    return None, ""


def _size(written: str | None) -> int | None:
    size = fields.integer(written)
    return size if size is not None and 0 < size < 1_000_000 else None


def _fraction(written: str | None) -> float | None:
    try:
        value = float(written or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
