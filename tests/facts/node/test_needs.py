"""Declared needs: flag, variable and annotation say the same words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.errors import InputError
from gpudoctor.facts.node import needs, podinfo
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.versions import CudaVersion

GIB = 1 << 30


def test_all_the_words() -> None:
    text = "rdma,gdr,nvlink,shm=16Gi,memlock,cuda=13.1,numa,gpus=8,hugepages=1G bootstrap"
    assert needs.parse(text, "--require") == Needs(
        rdma=True,
        gdr=True,
        nvlink=True,
        numa=True,
        shm=16 * GIB,
        memlock=GIB,
        cuda=CudaVersion(13, 1),
        gpus=8,
        hugepages=10**9,
        bootstrap=30,
    )


def test_the_nearest_declaration_wins_word_by_word() -> None:
    annotated = needs.parse("gpus=8,shm=16Gi", "annotation")
    assert needs.parse("gpus=4", "--require", annotated) == Needs(gpus=4, shm=16 * GIB)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rmda", "'rmda' is no need; there are rdma, gdr"),
        ("gpus", "gpus wants a value, as in gpus=8"),
        ("rdma=yes", "rdma takes no value"),
        ("gpus=many", "not a number of GPUs"),
        ("gpus=0", "not a number of GPUs"),
        ("gpus=²", "not a number of GPUs"),
        ("shm=-1Gi", "not a size"),
        ("shm=lots", "not a size"),
        ("cuda=new", "not a CUDA version"),
        ("bootstrap=601", "seconds, at most 600"),
    ],
)
def test_a_wrong_word_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InputError, match="--require") as raised:
        needs.parse(text, "--require")
    assert said in str(raised.value)


def test_rdma_locks_memory_and_gpudirect_is_rdma() -> None:
    assert Needs(gdr=True).wants_rdma
    assert Needs(rdma=True).locked == GIB
    assert Needs(rdma=True, memlock=5).locked == 5
    assert Needs(shm=1).locked is None


def test_annotations_as_the_downward_api_writes_them() -> None:
    file = 'a="b"\ngpudoctor.io/require="rdma,\\ngpus=8"\nkubernetes.io/config.seen="2026"\n'
    found = podinfo.read(file)
    assert found.keys() == {"a", needs.ANNOTATION, "kubernetes.io/config.seen"}
    assert needs.parse(found[needs.ANNOTATION], "annotation") == Needs(rdma=True, gpus=8)
    assert podinfo.read("no line of it\nx=unquoted\n") == {}


@given(st.text(max_size=80) | st.from_regex(r"(gpus|shm|cuda|memlock|bootstrap)=.{0,30}"))
@settings(deadline=None, max_examples=200)
def test_any_text_is_read_or_refused(text: str) -> None:
    podinfo.read(text)
    with contextlib.suppress(InputError):
        needs.parse(text, "--require")
