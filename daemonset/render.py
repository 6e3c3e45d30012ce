"""Renders the plain manifests of the chart: `python -m daemonset.render HELM`, as `make manifests`.

The chart is the one source; what lies in manifests/ is for whoever has no helm, and a test compares
the two.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CHART = Path(__file__).parent / "chart"
MANIFESTS = Path(__file__).parent / "manifests"
NAMESPACE = "gpudoctor"
_HEAD = "# Rendered from daemonset/chart by `make manifests`: change that instead.\n"
_NAMESPACE = f"""---
# The agent mounts /proc, /sys and /dev of its host, which only this level allows; what it may do
# with them its securityContext says.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""
_HOOK = re.compile(r"^  annotations:\n(?:    helm\.sh/.*\n)+", re.MULTILINE)
_ALL_POLICIES = "--set=policies.enabled=true,preflight.inject=true"
_READERS = ("operator", "pod-owner")


def manifests(helm: str) -> dict[str, str]:
    """Path below manifests/ -> content."""
    rendered = {
        "gpudoctor.yaml": _NAMESPACE + _template(helm, "--no-hooks"),
        "clean-up.yaml": _HOOK.sub("", _template(helm, "--show-only=templates/clean-up.yaml")),
    }
    parts = [f"rbac/{name}.yaml" for name in _READERS]
    parts += [f"policies/{file.name}" for file in sorted(CHART.glob("templates/policies/*.yaml"))]
    for part in parts:
        only = f"--show-only=templates/{part}"
        rendered[part] = _template(helm, _ALL_POLICIES, only)
    return {name: _HEAD + text for name, text in rendered.items()}


def _template(helm: str, *options: str) -> str:
    command = [helm, "template", "gpudoctor", str(CHART), f"--namespace={NAMESPACE}"]
    command += ["--kube-version=1.37", *options]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    # What templates leave behind where they print nothing.
    return re.sub(r"\n{2,}", "\n", re.sub(r"^# Source: .*\n", "", answer.stdout, flags=re.M))


def main() -> None:
    """Write all manifests, and remove those that the chart no longer has."""
    rendered = manifests(sys.argv[1])
    for file in MANIFESTS.rglob("*.yaml"):
        if str(file.relative_to(MANIFESTS)) not in rendered:
            file.unlink()
    for name, text in rendered.items():
        path = MANIFESTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
