"""Engine flags: arguments, shell strings, environment; the last one wins; any words are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import engine_flags
from gpudoctor.facts.kubernetes.engine_flags import EngineFlags
from gpudoctor.facts.kubernetes.model import Container

MODEST = settings(deadline=None, max_examples=60)


def read(*args: str, image: str = "", **env: str) -> EngineFlags:
    return engine_flags.read(Container(name="main", image=image, args=args, env=env))


@pytest.mark.parametrize(
    ("field", "spellings"),
    [
        (
            "tensor",
            ["--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--num-shard", "--tp_size"],
        ),
        ("pipeline", ["--pipeline-parallel-size", "-pp", "--pp-size", "--pp", "--pp_size"]),
        ("data", ["--data-parallel-size", "-dp", "--dp-size", "--dp"]),
        ("local", ["--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus"]),
        ("nodes", ["--nnodes", "--num_nodes", "--num-nodes"]),
    ],
)
def test_spellings(field: str, spellings: list[str]) -> None:
    for flag in spellings:
        for args in ((flag, "4"), (f"{flag}=4",), ("sh", "-c", f"run x {flag} 4; sleep 1")):
            found = read(*args)
            assert getattr(found, field) == 4, args
        assert read(flag, "4").flags == {field: f"{flag} 4"}
        assert read(f"{flag}=4").flags == {field: f"{flag}=4"}


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("TENSOR_PARALLEL_SIZE", "tensor"),
        ("VLLM_TENSOR_PARALLEL_SIZE", "tensor"),
        ("TP_SIZE", "tensor"),
        ("NUM_SHARD", "tensor"),
        ("PIPELINE_PARALLEL_SIZE", "pipeline"),
        ("PP_SIZE", "pipeline"),
        ("DATA_PARALLEL_SIZE", "data"),
        ("NPROC_PER_NODE", "local"),
        ("PET_NPROC_PER_NODE", "local"),
        ("PET_NNODES", "nodes"),
    ],
)
def test_environment(variable: str, field: str) -> None:
    found = read(**{variable: "8"})
    assert getattr(found, field) == 8
    assert variable in found.flags[field]
    assert "8" in found.flags[field]


def test_arguments_win_over_environment_and_the_last_over_the_first() -> None:
    assert read("--tp", "2", TP_SIZE="8").tensor == 2
    assert read("--tp=2", "-tp", "4").tensor == 4
    assert read("--tp", "2", "--tp").tensor == 2


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1", 1),
        ("0", None),
        ("-1", None),
        ("auto", None),
        ("gpu", None),
        ("", None),
        ("999999", 999_999),
        ("1000000", None),
    ],
)
def test_sizes(value: str, size: int | None) -> None:
    assert read(f"--tp={value}").tensor == size


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        ("0.9", 0.9),
        ("1", 1.0),
        ("1.0001", None),
        ("0", None),
        ("-0.5", None),
        ("most", None),
        ("nan", None),
    ],
)
def test_memory_fraction(value: str, fraction: float | None) -> None:
    assert read("--gpu-memory-utilization", value).memory == fraction
    assert read("--mem-fraction-static", value).memory == fraction
    assert read(GPU_MEMORY_UTILIZATION=value).memory == fraction


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ((), None),
        (("-tp", "4"), 4),
        (("-tp", "4", "-pp", "2"), 8),
        (("-tp", "4", "-pp", "2", "-dp", "3"), 24),
        (("-pp", "2"), 2),
        (("--nproc-per-node", "8"), None),
        (("-tp", "0"), None),
    ],
)
def test_gpus(args: tuple[str, ...], gpus: int | None) -> None:
    assert read(*args).gpus == gpus


def test_shell_strings() -> None:
    assert read("/bin/bash", "-c", "vllm serve 'a b' -tp 8 && echo done").tensor == 8
    assert read("bash", "-c", "vllm serve 'open -tp 8").tensor == 8
    assert read("bash", "-c", "a;vllm -tp 8;b").tensor == 8
    assert read("bash", "-c", "# note\nvllm \\\n  -tp 8").tensor == 8
    assert read("python", "a string with -tp 8 in it").tensor is None


@pytest.mark.parametrize(
    ("image", "args", "expected"),
    [
        ("vllm/vllm-openai:v0.9", (), True),
        ("lmsysorg/sglang", (), True),
        ("ghcr.io/huggingface/text-generation-inference", (), True),
        ("x/tgi:1", (), True),
        ("x", ("torchrun", "a.py"), True),
        ("x", ("python", "-m", "torch.distributed.run"), True),
        ("x/tgif:1", (), False),
        ("pytorch/pytorch", ("python", "train.py"), False),
    ],
)
def test_engines(image: str, args: tuple[str, ...], expected: bool) -> None:
    assert read(*args, image=image).is_engine is expected


def test_ray() -> None:
    assert read("--distributed-executor-backend", "ray").uses_ray
    assert read("--distributed-executor-backend=ray").uses_ray
    assert not read("--distributed-executor-backend", "mp").uses_ray
    assert not read("ray").uses_ray


WORDS = st.lists(
    st.text(max_size=12)
    | st.sampled_from(
        ["sh", "-c", "--tp", "-tp", "--tp=", "-pp=2", "'", '"', "\\", "4", "a b -tp 2"]
    ),
    max_size=8,
)


@MODEST
@given(WORDS, WORDS, st.dictionaries(st.sampled_from(["TP_SIZE", "PP_SIZE"]), st.text(max_size=6)))
def test_any_words(command: list[str], args: list[str], env: dict[str, str]) -> None:
    container = Container(name="c", command=tuple(command), args=tuple(args), env=env)
    found = engine_flags.read(container)
    for size in (found.tensor, found.pipeline, found.data, found.local, found.nodes):
        assert size is None or 0 < size < 1_000_000
    assert found.memory is None or 0 < found.memory <= 1
    assert found.gpus is None or found.gpus > 0


@MODEST
@given(st.integers(1, 999), st.integers(1, 999), st.lists(st.sampled_from(["x", "--y", "z=1"])))
def test_sizes_come_back(tensor: int, pipeline: int, others: list[str]) -> None:
    found = read(*others, "--tp", str(tensor), *others, f"-pp={pipeline}", *others)
    assert (found.tensor, found.pipeline) == (tensor, pipeline)
    assert found.gpus == tensor * pipeline
