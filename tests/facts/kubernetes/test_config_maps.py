"""ConfigMaps recognised by their content: kubelet policies and RDMA pools, and garbage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import config_maps
from gpudoctor.facts.kubernetes.config_maps import KubeletConfig, RdmaPool

MODEST = settings(deadline=None, max_examples=60)


def config_map(**data: Any) -> dict[str, Any]:
    return {"metadata": {"name": "config", "namespace": "kube-system"}, "data": data}


def test_shared_and_sriov_pools() -> None:
    shared = json.dumps(
        {"configList": [{"resourceName": "hca", "rdmaHcaMax": 63, "selectors": {"ifNames": ["a"]}}]}
    )
    sriov = """
resourceList:
- resourceName: vfs
  resourcePrefix: example.com
  selectors: {vendors: ["15b3"]}
- not an object
"""
    found = config_maps.rdma_pools([config_map(shared=shared), config_map(sriov=sriov)])
    path = "ConfigMap/kube-system/config"
    assert found == (
        RdmaPool(path, "shared", "hca", None, '{"selectors":{"ifNames":["a"]}}'),
        RdmaPool(path, "sriov", "vfs", "example.com", '{"selectors":{"vendors":["15b3"]}}'),
    )


def test_kubelet() -> None:
    full = (
        "kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n"
        "topologyManagerScope: pod\ncpuManagerPolicy: static\n"
    )
    found = config_maps.kubelet_configs(
        [config_map(kubelet=full, bare="kind: KubeletConfiguration", other="kind: Other")]
    )
    path = "ConfigMap/kube-system/config"
    assert found == (
        KubeletConfig(path, "kubelet", "restricted", "pod", "static"),
        KubeletConfig(path, "bare", "none", "container", "none"),
    )


@pytest.mark.parametrize(
    "content",
    [
        "KubeletConfiguration: [",
        "KubeletConfiguration",
        "- KubeletConfiguration",
        "{" * 1200 + "KubeletConfiguration",
        "[" * 1200 + '"KubeletConfiguration"',
        "a: &a [*a, KubeletConfiguration]",
        "KubeletConfiguration: 2026-99-99",
        "KubeletConfiguration: !!python/object:os.system x",
    ],
)
def test_what_is_none(content: str) -> None:
    assert config_maps.kubelet_configs([config_map(kubelet=content)]) == () or (
        config_maps.kubelet_configs([config_map(kubelet=content)])[0].topology_policy == "none"
    )


def test_size_is_bounded() -> None:
    start = '{"kind": "KubeletConfiguration", "x": "'
    fits = start + "x" * (256 * 1024 - len(start) - 2) + '"}'
    assert len(config_maps.kubelet_configs([config_map(kubelet=fits)])) == 1
    assert config_maps.kubelet_configs([config_map(kubelet=fits + " ")]) == ()


CONTENT = st.text(max_size=60) | st.text(alphabet="{}[]:\"'-&*!|> \nab1", max_size=40)


@MODEST
@given(st.lists(CONTENT, max_size=3), st.sampled_from(["configList", "KubeletConfiguration", ""]))
def test_garbage(contents: list[str], word: str) -> None:
    maps = [config_map(key=f"{word}{content}") for content in contents]
    maps += [config_map(key=f"{word}: {content}") for content in contents]
    assert isinstance(config_maps.rdma_pools(maps), tuple)
    assert isinstance(config_maps.kubelet_configs(maps), tuple)


@pytest.mark.parametrize("odd", [{}, {"metadata": None, "data": None}, {"data": {"a": 1}}])
def test_misshapen_objects(odd: dict[str, Any]) -> None:
    assert config_maps.rdma_pools([odd]) == ()
    assert config_maps.kubelet_configs([odd]) == ()
