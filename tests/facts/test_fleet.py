"""Who differs from most of its model, and who does not."""

from __future__ import annotations

from gpudoctor.facts.fleet import NodeRow, groups, odd_ones_out


def node(number: int, model: str = "h100", **labels: str) -> NodeRow:
    told = {"gpu-model": model, "driver": "580126009"} | {
        name.replace("_", "-"): value for name, value in labels.items()
    }
    return NodeRow(f"gpu-{number}", "healthy", (), told)


def test_one_of_many_with_another_driver_is_odd() -> None:
    nodes = [*(node(n) for n in range(9)), node(9, driver="570172008")]
    [odd] = odd_ones_out(nodes)
    assert (odd.node, odd.label, odd.value, odd.usual) == (
        "gpu-9", "driver", "570172008", "580126009",
    )  # fmt: skip
    assert (odd.have, odd.of) == (9, 10)


def test_half_way_through_an_upgrade_nobody_is_odd() -> None:
    nodes = [node(n, driver="580126009" if n % 2 else "590044000") for n in range(10)]
    assert odd_ones_out(nodes) == ()


def test_other_models_are_no_measure() -> None:
    nodes = [*(node(n) for n in range(9)), node(9, model="t4", driver="535183006")]
    assert odd_ones_out(nodes) == ()


def test_three_nodes_are_no_majority() -> None:
    assert odd_ones_out([node(0), node(1), node(2, driver="1")]) == ()


def test_what_most_do_not_know_makes_nobody_odd_but_what_one_alone_does_not_know_does() -> None:
    knows = [*(node(n) for n in range(9)), node(9, nvlink="all")]
    assert odd_ones_out(knows) == ()
    [odd] = odd_ones_out([*(node(n, nvlink="all") for n in range(9)), node(9)])
    assert (odd.node, odd.label, odd.value) == ("gpu-9", "nvlink", None)


def test_racks_differ_and_that_is_not_odd() -> None:
    nodes = [node(n, rack=f"r{n}") for n in range(10)]
    assert odd_ones_out(nodes) == ()
    assert len(groups(nodes)) == 1
