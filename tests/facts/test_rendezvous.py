"""Who a pod is in its job by its environment, and what it says of itself."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.errors import InputError
from gpudoctor.facts import rendezvous, rendezvous_plan
from gpudoctor.facts.node.model import Gid, Hca, NodeFacts, PciDevice, Port, VerbsNode
from gpudoctor.facts.node.needs import Needs
from gpudoctor.facts.node.own_container import OwnContainer
from gpudoctor.facts.node.system import Interface
from gpudoctor.facts.rendezvous import Statement
from gpudoctor.report import Subject
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.rendezvous import Entry, Minutes, Outcome, Plan

SECRET = b"0123456789abcdef"
SUBJECT = Subject("Container", "train-1")
JOBSET = "jobset.sigs.k8s.io"


def plan(
    said: str = "",
    environment: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    secret: bytes | None = SECRET,
) -> Plan:
    words = rendezvous_plan.words(said, "--rendezvous")
    return rendezvous_plan.plan(words, environment or {}, annotations or {}, secret)


def test_everything_said() -> None:
    found = plan("members=8,rank=3 address=train-0.train,port=1234,timeout=60")
    assert (found.members, found.rank, found.host) == (8, 3, "train-0.train")
    assert (found.port, found.timeout) == (1234, 60)


@pytest.mark.parametrize(
    ("said", "environment", "expected"),
    [
        ("", {"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "a"}, (4, 2, "a")),
        ("members=2", {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "a"}, (2, 1, "a")),
        (
            "",
            {"LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "a.b"},
            (3, 0, "a.b"),
        ),
        # What is said goes before what the environment tells.
        ("rank=0", {"PET_NNODES": "4", "PET_NODE_RANK": "2", "MASTER_ADDR": "a"}, (4, 0, "a")),
    ],
)
def test_the_environment_tells(
    said: str, environment: dict[str, str], expected: tuple[int, int, str]
) -> None:
    found = plan(said, environment)
    assert (found.members, found.rank, found.host) == expected


def test_the_index_in_a_job_set_counts_on_over_its_jobs() -> None:
    index = {"JOB_COMPLETION_INDEX": "3"}
    told = {f"{JOBSET}/job-global-index": "2", f"{JOBSET}/global-replicas": "4"}
    told[f"{JOBSET}/coordinator"] = "set-workers-0-0.set"
    found = plan("members=16", index, told)
    assert (found.rank, found.host) == (2 * 4 + 3, "set-workers-0-0.set")
    with pytest.raises(InputError, match="differ in size"):
        plan("members=15", index, told)
    one = {f"{JOBSET}/job-global-index": "0", f"{JOBSET}/global-replicas": "1"}
    assert plan("members=15,address=a", index, one).rank == 3


@pytest.mark.parametrize(
    ("said", "secret", "says"),
    [
        ("members=2,rank=0,address=a", None, "GPUDOCTOR_TOKEN"),
        ("members=2,rank=0,address=a", b"  short \n", "at least 16 bytes"),
        ("rank=0,address=a", SECRET, "say members=N"),
        ("members=2,address=a", SECRET, "Say rank=N"),
        ("members=2,rank=0", SECRET, "where is member 0"),
        ("members=2,rank=2,address=a", SECRET, "rank=2: not a number from 0 to 1"),
        ("members=1,rank=0,address=a", SECRET, "members=1"),
        ("members=2,rank=0,address=a;b", SECRET, "no host name"),
        ("members=2,rank=0,address=a,timeout=9999", SECRET, "timeout=9999"),
        ("rounds=3", SECRET, "'rounds=3' is not NAME=VALUE"),
        ("start=ordered", SECRET, "only start=parallel"),
    ],
)
def test_what_cannot_be_is_said(said: str, secret: bytes | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan(said, secret=secret)


WORDS = st.sampled_from(rendezvous_plan.WORDS)


@given(
    st.text(max_size=60)
    | st.lists(st.tuples(WORDS, st.text(max_size=12)).map("=".join), max_size=5).map(",".join),
    st.dictionaries(
        st.sampled_from(["PET_NNODES", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "MASTER_ADDR"]),
        st.text(max_size=12),
    ),
)
@settings(deadline=None, max_examples=200)
def test_any_words_are_read_or_refused(said: str, environment: dict[str, str]) -> None:
    with contextlib.suppress(InputError):
        found = plan(said, environment)
        assert 0 <= found.rank < found.members


@pytest.mark.parametrize(
    ("said", "environment", "labels", "refused"),
    [
        ("", {}, {}, False),
        ("", {}, {"statefulset.kubernetes.io/pod-name": "t-0"}, True),
        ("start=parallel", {}, {"statefulset.kubernetes.io/pod-name": "t-0"}, False),
        (
            "",
            {},
            {
                "statefulset.kubernetes.io/pod-name": "t-0",
                "leaderworkerset.sigs.k8s.io/name": "t",
            },
            False,
        ),
        ("", {}, {"training.kubeflow.org/operator-name": "pytorchjob-controller"}, True),
        ("", {}, {"training.kubeflow.org/operator-name": "jaxjob-controller"}, False),
        ("", {}, {"training.kubeflow.org/job-role": "launcher"}, True),
        ("", {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}, {}, True),
    ],
)
def test_ordered_starts_are_known_as_far_as_they_can_be(
    said: str, environment: dict[str, str], labels: dict[str, str], refused: bool
) -> None:
    words = rendezvous_plan.words(said, "--rendezvous")
    found = rendezvous_plan.ordered(words, environment, labels, SUBJECT)
    assert (found is not None) is refused


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", "ib0"),
        ("eth", "eth0"),
        ("=eth", None),
        ("=eth1", "eth1"),
        ("^ib,lo,docker", "eth0"),
        ("bond", None),
    ],
)
def test_the_interface_that_nccl_takes(setting: str, expected: str | None) -> None:
    names = frozenset({"lo", "docker0", "eth0", "eth1", "ib0"})
    environment = {"NCCL_SOCKET_IFNAME": setting} if setting else {}
    assert rendezvous.interface(environment, names) == expected
    assert rendezvous.interface({}, frozenset({"lo"})) is None


def hca(name: str, layer: str, uverbs: str | None = "uverbs0", **port: Any) -> Hca:
    common: dict[str, Any] = {"state": "ACTIVE", "rate": 400.0, "physical": "LinkUp"}
    ports = (Port(number="1", rate_text="", link_layer=layer, **(common | port)),)
    return Hca(name=name, pci=None, model=None, board=None, ports=ports, uverbs=uverbs)


IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
GIDS = (
    Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
    Gid(1, IPV4, "IB/RoCE v1"),
    Gid(3, IPV4, "RoCE v2"),
)


def statement(*hcas: Hca, environment: dict[str, str] | None = None, **tree: Any) -> Statement:
    nodes = (VerbsNode("uverbs0"), VerbsNode("uverbs1"))
    node = NodeFacts(subject=SUBJECT, hcas=hcas, verbs=nodes)
    own = OwnContainer(needs=Needs(), node=node, interfaces=(Interface("eth0"), Interface("lo")))
    host = RecordedHost(tree)
    return rendezvous.statement(own, host, environment or {}, "2.26.2")


def test_what_a_member_with_roce_says() -> None:
    roce = hca("mlx5_0", "Ethernet", gids=GIDS, rate=200.0)
    other = hca("mlx5_1", "Ethernet", "uverbs7", gids=GIDS)  # its node was not given
    tree = {
        "/sys/class/net/eth0/mtu": "1500\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "net1\n",
        "/sys/class/net/net1/mtu": "9000\n",
    }
    said = statement(roce, other, environment={"NODE_NAME": "gpu-1"}, **tree)
    assert said == Statement(
        pod="train-1", node="gpu-1", nccl="2.26.2", network="roce", hcas=1, rate=200.0,
        gid="RoCE v2 IPv4", mtu=1500, rdma_mtu=9000,
    )  # fmt: skip
    by_hand = statement(roce, environment={"NCCL_IB_GID_INDEX": "0"})
    assert by_hand.gid == "IB/RoCE v1 IPv6"


def test_kinds_of_networks() -> None:
    assert rendezvous.network(()) == "none"
    assert rendezvous.network((hca("mlx5_0", "InfiniBand"),)) == "ib"
    assert rendezvous.network((hca("rdmap0", "Unspecified"),)) == "efa"
    mixed = (hca("mlx5_0", "InfiniBand"), hca("mlx5_1", "Ethernet"))
    assert rendezvous.network(mixed) == "ib+roce"
    assert statement().hcas == 0


def test_what_could_not_be_looked_at_is_not_said() -> None:
    node = NodeFacts(subject=SUBJECT, hcas=None, pci=(PciDevice(address="0", vendor=1, class_=1),))
    own = OwnContainer(needs=Needs(), node=node)
    said = rendezvous.statement(own, RecordedHost({}), {}, None)
    assert said == Statement(pod="train-1")


REPORT = st.dictionaries(
    st.sampled_from([*Statement.__struct_fields__, "more"]),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
    | st.lists(st.integers(), max_size=2),
)  # fmt: skip


@given(st.lists(st.builds(Entry, rank=st.integers(-1, 5), report=st.none() | REPORT), max_size=5))
@settings(deadline=None, max_examples=200)
def test_any_minutes_are_read(entries: list[Entry]) -> None:
    minutes = Minutes(timeout=1.0, entries=tuple(entries))
    here = plan("members=4,rank=1,address=a")
    met = rendezvous.read(Outcome(minutes=minutes), here, SUBJECT)
    assert [member.rank for member in met.members] == [0, 1, 2, 3]
    assert all(member.label for member in met.members)
