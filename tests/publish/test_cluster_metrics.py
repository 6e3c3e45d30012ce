"""The controller's metrics, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gpudoctor.publish.cluster_metrics import ControllerState, render


def samples(state: ControllerState) -> dict[tuple[str, str], float]:
    text = render(state).decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_leader_says_what_it_sees_and_wrote() -> None:
    state = ControllerState(
        leads=True,
        braked=True,
        counts={"nodes": 5, "agents": 3, "silent_agents": 1, "tainted_nodes": 0},
        writes={"keys": 2},
        failures={"ForbiddenError": 4},
    )
    assert samples(state) == {
        ("gpudoctor_controller_leader", ""): 1,
        ("gpudoctor_controller_brake", ""): 1,
        ("gpudoctor_controller_nodes", ""): 5,
        ("gpudoctor_controller_agents", ""): 3,
        ("gpudoctor_controller_silent_agents", ""): 1,
        ("gpudoctor_controller_tainted_nodes", ""): 0,
        ("gpudoctor_controller_writes_total", "keys"): 2,
        ("gpudoctor_controller_failures_total", "ForbiddenError"): 4,
    }


def test_one_that_waits_says_that_it_does_not_lead_and_no_more() -> None:
    assert samples(ControllerState(leads=False)) == {("gpudoctor_controller_leader", ""): 0}
