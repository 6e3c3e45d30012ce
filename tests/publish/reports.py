"""Reports on a node, as its agent makes them."""

from __future__ import annotations

import msgspec

from gpudoctor.report import Report, Subject, Verdict
from tests.render.reports import finding, plain


def of_node(name: str, verdict: Verdict, **labels: tuple[str | None, str]) -> Report:
    """A report without findings; `labels` are label name -> (value, because)."""
    told = {
        key.replace("_", "-"): {"value": value, "because": because}
        for key, (value, because) in labels.items()
    }
    return msgspec.structs.replace(plain(verdict, name, "Node"), facts={"labels": told})


def port_down(name: str) -> Report:
    """A failing node: a port of it is down."""
    found = finding(
        "rdma-port-down",
        "Port 1 of mlx5_3 is down",
        code="NET004",
        subject=Subject("Node", name, device="mlx5_3"),
    )
    return msgspec.structs.replace(
        of_node(name, Verdict.FAILING),
        roots=(found.name,),
        root_ids=(found.id,),
        findings=(found,),
        observed_at="2026-11-20T08:20:02Z",
    )
