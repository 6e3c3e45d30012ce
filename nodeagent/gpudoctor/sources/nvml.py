"""NVML, asked in a short-lived child; its answer is described in `gpudoctor.sources.nvml_child`."""

from __future__ import annotations

from gpudoctor.sources.child import Answer, ChildSource


class NvmlSource(ChildSource):
    """The driver of this machine, through libnvidia-ml."""

    def __init__(self) -> None:
        super().__init__(
            "gpudoctor.sources.nvml_child",
            ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
        )

    def read(self, deadline_s: float, library: str | None = None) -> Answer | str:
        """Return the child's answer, or the reason why none was asked for.

        `library` is a path to use instead of the loader's own libnvidia-ml.so.1.
        """
        return self.ask(deadline_s, *([library] if library else []))


_SOURCE = NvmlSource()


def read_nvml(deadline_s: float, library: str | None = None) -> Answer | str:
    """Ask the process-wide source; see `NvmlSource.read`."""
    return _SOURCE.read(deadline_s, library)
