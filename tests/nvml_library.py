"""Compiles a libnvidia-ml.so.1 that answers by a script, for tests that run without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from tests import parts

_SOURCE = Path(__file__).parent / "data" / "fake_nvml.c"

_NONE = "nvmlDeviceGetNvLinkState=3;nvmlDeviceGetMigMode=3;nvmlDeviceGetGpuFabricInfoV=3"
H100 = "gpus=8;fabric_form=2"
A100_MIG = (
    "gpus=8;name=NVIDIA A100-SXM4-80GB;major=8;links=12;links_up=12;mig@1=1;mig_devices@1=3;"
    "links_up@1=0;nvmlDeviceGetRemappedRows@1=3;nvmlDeviceGetRowRemapperHistogram@1=3;"
    "nvmlDeviceGetGpuFabricInfoV=3;nvmlDeviceGetPlatformInfo=3"
)
L40S = (
    f"gpus=4;name=NVIDIA L40S;major=8;minor=9;per_socket=2;near=40;{_NONE};"
    "nvmlDeviceGetPlatformInfo=3"
)
RTX_4090 = (
    f"gpus=2;name=NVIDIA GeForce RTX 4090;major=8;minor=9;near=30;{_NONE};nvmlDeviceGetEccMode=3;"
    "nvmlDeviceGetRemappedRows=3;nvmlDeviceGetRowRemapperHistogram=3;nvmlDeviceGetPlatformInfo=3;"
    "nvmlDeviceGetRetiredPagesPendingStatus=3;nvmlDeviceGetSramEccErrorStatus=3"
)
GB200 = (
    "gpus=4;name=NVIDIA GB200;major=10;per_socket=2;near=40;nvlink5=1;counter222=0x50F;"
    "memory_node=2;nvmlDeviceGetApplicationsClock=3;generation=6;max_generation=6"
)
PARTS = {"H100": H100, "A100 with MIG": A100_MIG, "L40S": L40S, "RTX 4090": RTX_4090,
         "GB200": GB200}  # fmt: skip
"""Scripts of whole machines: what each part has, and which calls it refuses."""


def build(folder: Path, script: str = "", *defines: str) -> str:
    """Compile the library for a script (see data/fake_nvml.c) and return its path."""
    compiler = parts.program("gcc", "gcc")
    parts.module("nvidia")
    headers = importlib.util.find_spec("nvidia")
    target = folder / "libnvidia-ml.so.1"
    locations = (headers.submodule_search_locations if headers else None) or ()
    includes = [f"-I{location}/cu13/include" for location in locations]
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", *includes, "-Wno-deprecated-declarations",
         "-Wl,-soname,libnvidia-ml.so.1", f'-DSCRIPT="{script}"', *defines,
         "-o", str(target), str(_SOURCE)],
        check=True,
    )  # fmt: skip
    return str(target)
