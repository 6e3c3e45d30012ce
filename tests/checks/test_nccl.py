"""The NCCL rules: what triggers each, and what looks like it and must not."""

# ruff: noqa: E501 - NCCL's lines are long, and are easier to compare whole

from __future__ import annotations

import pytest

from gpudoctor.report import Severity
from tests.nccl_logs import Rank, comm, diagnose, loud, names, pair, read, ring, start

TIMED_OUT = "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds"


def test_healthy_two_nodes_says_nothing() -> None:
    a = pair()
    report = diagnose(start(a) + ring(a))
    assert names(report) == set()
    assert report.verdict == "healthy"


def test_healthy_when_the_same_is_said_with_plugin_and_missing_plugins() -> None:
    a, b = pair()
    more = [
        a.info("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
        a.info("NET/Plugin: Failed to find ncclNetPlugin_v8 symbol."),
        b.info("TUNER/Plugin: Could not find: libnccl-tuner.so libnccl-net.so."),
        a.info("NET/IB : No device found."),
        a.info("Bootstrap timings total 0.03 (create 0.0, send 0.0, recv 0.02, ring 0.0)"),
    ]
    report = diagnose(
        more + start((a, b), network="IBext_v8") + ring((a, b), "NET/IBext_v8/0/GDRDMA")
    )
    assert names(report) == set()


def test_single_node_ignores_the_network() -> None:
    ranks = [Rank("box", 0), Rank("box", 1, device=1)]
    lines = start(
        ranks, network="Socket", nnodes=1, adapters=None, environment=["NCCL_IB_HCA set to mlx5"]
    )
    lines += [ranks[0].warn("NET/IB : Unable to open device mlx5_0")]
    lines += [ranks[0].info("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read")]
    assert names(diagnose(lines)) == set()


def test_socket_without_a_hint_is_information() -> None:
    ranks = pair()
    report = diagnose(start(ranks, network="Socket", adapters=None) + ring(ranks, "NET/Socket/0"))
    assert names(report) == {"nccl-socket-transport"}
    assert report.verdict == "healthy"


def test_node_evidence_turns_socket_into_a_fallback() -> None:
    ranks = pair()
    lines = start(ranks, network="Socket", adapters=None) + ring(ranks, "NET/Socket/0")
    report = diagnose(lines, rdma_expected_by=("Node/n1 offers rdma/hca_shared",))
    assert "nccl-socket-fallback" in loud(report)


def test_disabled_by_env_is_the_root_of_the_fallback() -> None:
    ranks = pair()
    env = ["NCCL_IB_DISABLE set by environment to 1."]
    lines = [
        line
        for line in start(ranks, network="Socket", adapters=None, environment=env)
        if "No device" not in line
    ]
    report = diagnose(lines + ring(ranks, "NET/Socket/0"))
    assert report.roots == ("nccl-ib-disabled-by-env",)
    assert "nccl-socket-fallback" in names(report)


def test_disable_zero_disables_nothing() -> None:
    ranks = pair()
    env = ["NCCL_IB_DISABLE set by environment to 0."]
    assert names(diagnose(start(ranks, environment=env) + ring(ranks))) == set()


def test_open_failure_explains_the_fallback() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket", adapters=None)
    lines += [
        a.warn("Call to ibv_open_device failed", "misc/ibvwrap.cc:212"),
        a.warn("NET/IB : Unable to open device mlx5_0"),
    ]
    report = diagnose(lines + ring((a, b), "NET/Socket/0"))
    assert report.roots == ("rdma-device-open-failed",)


def test_library_missing_explains_the_fallback() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket", adapters=None)
    lines += [
        a.info("Failed to open libibverbs.so[.1]"),
        b.info("Failed to open libibverbs.so[.1]"),
    ]
    report = diagnose(lines + ring((a, b), "NET/Socket/0"))
    assert report.roots == ("rdma-library-missing",)


def test_no_device_where_it_was_asked_for() -> None:
    ranks = pair()
    lines = start(ranks, network="Socket", adapters=None, environment=["NCCL_IB_HCA set to mlx5_9"])
    report = diagnose(lines + ring(ranks, "NET/Socket/0"))
    assert report.roots == ("rdma-device-absent",)
    assert "nccl-socket-fallback" in names(report)


def test_one_host_without_devices_is_named() -> None:
    a, b = pair()
    lines = start([a], nranks=2) + start([b], nranks=2, network="Socket", adapters=None)
    report = diagnose(lines)
    assert report.roots == ("rdma-device-absent",)
    (root,) = [f for f in report.findings if f.name == "rdma-device-absent"]
    assert "node-b" in root.title
    assert read(lines).network == "mixed"


def test_plugin_failure_explains_the_fallback() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket", adapters=None)
    lines += [
        a.warn(
            "NET/OFI Initializing plugin failed",
            "ncclResult_t nccl_net_ofi_init_v6(ncclDebugLogger_t):166",
        )
    ]
    report = diagnose(lines + ring((a, b), "NET/Socket/0"))
    assert report.roots == ("nccl-net-plugin-init-failed",)


def test_no_efa_device_in_the_pod() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket", adapters=None)
    lines += [
        r.warn("NET/OFI No eligible providers were found", "nccl_net_ofi_create_plugin:300")
        for r in (a, b)
    ]
    report = diagnose(lines + ring((a, b), "NET/Socket/0"))
    assert report.roots == ("rdma-device-absent",)
    assert {"nccl-net-plugin-init-failed", "nccl-socket-fallback"} <= names(report)


def test_efa_in_use_is_healthy() -> None:
    a, b = pair()
    lines = start((a, b), network="AWS Libfabric", adapters=None)
    lines += [a.info("NET/OFI Selected provider is efa, fabric is efa (found 32 nics)")]
    assert names(diagnose(lines + ring((a, b), "NET/AWS Libfabric/0/GDRDMA"))) == set()


def test_libfabric_over_tcp_is_a_fallback() -> None:
    a, b = pair()
    lines = start((a, b), network="AWS Libfabric", adapters=None)
    lines += [a.info("NET/OFI Selected Provider is tcp;ofi_rxm (found 2 nics)")]
    report = diagnose(lines + ring((a, b), "NET/AWS Libfabric/0"))
    assert "nccl-socket-fallback" in loud(report)


@pytest.mark.parametrize(
    "text", ["Error: network IB not found.", "Failed to initialize any NET plugin"]
)
def test_forced_network(text: str) -> None:
    a, b = pair()
    lines = [
        *start((a, b), network="IB", adapters=None),
        a.warn(text, "net.cc:1"),
        a.info("init.cc:1 -> 5"),
    ]
    assert diagnose(lines).roots == ("nccl-net-forced-unavailable",)


def test_ifname_no_match() -> None:
    a = Rank("pod-0", 0)
    lines = [
        a.info("NCCL_SOCKET_IFNAME set by environment to bond0"),
        a.warn("Bootstrap : no socket interface found", "bootstrap.cc:45"),
        a.info("init.cc:98 -> 3"),
    ]
    assert diagnose(lines).roots == ("nccl-ifname-no-match",)
    newer = [
        a.info("NCCL_SOCKET_IFNAME set by environment to bond0"),
        a.warn(
            "connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
            "misc/socket.cc:486",
        ),
        a.info("misc/socket.cc:4 -> 3"),
    ]
    assert diagnose(newer).roots == ("nccl-ifname-no-match",)


@pytest.mark.parametrize(
    ("value", "adapters", "found"),
    [
        ("mlx5_1", "[0]mlx5_1:1/IB [1]mlx5_10:1/IB", True),
        ("mlx5_1,mlx5_2", "[0]mlx5_1:1/IB [1]mlx5_2:1/IB [2]mlx5_11:1/RoCE", True),
        ("mlx5_1,mlx5_10", "[0]mlx5_1:1/IB [1]mlx5_10:1/IB", False),
        ("=mlx5_1", "[0]mlx5_1:1/IB", False),
        ("mlx5", "[0]mlx5_0:1/IB [1]mlx5_10:1/IB", False),
        ("mlx5_1:1", "[0]mlx5_1:1/IB", False),
    ],
)
def test_hca_prefix(value: str, adapters: str, found: bool) -> None:
    ranks = pair()
    lines = start(ranks, adapters=adapters, environment=[f"NCCL_IB_HCA set to {value}"]) + ring(
        ranks
    )
    assert ("nccl-hca-prefix-overmatch" in names(diagnose(lines))) is found


def test_a_host_with_fewer_adapters_is_named() -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(5)]
    lines = start(ranks[:4], nranks=5) + start(ranks[4:], nranks=5, adapters="[0]mlx5_0:1/IB")
    report = diagnose(lines + ring(ranks))
    assert report.roots == ("nccl-adapters-missing",)
    assert "node-4" in report.findings[0].title
    two = pair()
    assert (
        names(
            diagnose(
                start(two[:1], nranks=2)
                + start(two[1:], nranks=2, adapters="[0]mlx5_0:1/IB")
                + ring(two)
            )
        )
        == set()
    )


# --- GPUDirect RDMA ---


def test_far_adapters_refused_while_near_ones_work_is_fine() -> None:
    a, b = pair()
    lines = [
        *start((a, b)),
        a.info("GPU Direct RDMA Enabled for GPU 1b000 / HCA 0 (distance 3 <= 4), read 1"),
        a.info("GPU Direct RDMA Disabled for GPU 1b000 / HCA 1 (distance 7 > 4)"),
    ]
    assert names(diagnose(lines + ring((a, b)))) == set()


@pytest.mark.parametrize(
    ("version", "line", "distance"),
    [
        ("2.8.3", "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 6 > 4)", "SYS"),
        ("2.21.5", "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0x0 (distance 6 > 4)", "PHB"),
        ("2.26.2", "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 7 > 5)", "PHB"),
        (
            "2.29.3",
            "GPU Direct RDMA Disabled for GPU/0-18000 (rank 0) - NET/0-0 (distance 9 > 5)",
            "SYS",
        ),
    ],
)
def test_distance_is_decoded_by_version(version: str, line: str, distance: str) -> None:
    a, b = pair()
    lines = [*start((a, b), version=version), a.info(line), b.info(line)]
    report = diagnose(lines + ring((a, b), "NET/IB/0"))
    assert report.roots == ("gdr-disabled-distance",)
    assert f"are {distance} apart" in report.findings[0].title


@pytest.mark.parametrize("suffix", ["", " (no module)"])
def test_no_peermem(suffix: str) -> None:
    a, b = pair()
    lines = start((a, b)) + [
        r.info(f"NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'{suffix}") for r in (a, b)
    ]
    assert diagnose(lines + ring((a, b), "NET/IB/0")).roots == ("gdr-disabled-no-peermem",)


def test_no_peermem_on_one_host_names_that_host() -> None:
    a, b = pair()
    lines = [
        *start((a, b)),
        a.info("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
        b.info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ]
    lines += ring((a, b))
    lines = [line.replace("/GDRDMA", "") if line.startswith("node-b") else line for line in lines]
    report = diagnose(lines)
    assert report.roots == ("gdr-disabled-no-peermem",)
    assert "node-b" in report.findings[0].title
    assert "node-a" not in report.findings[0].title


def test_gdr_level_by_env() -> None:
    ranks = pair()
    env = ["NCCL_NET_GDR_LEVEL set by environment to LOC"]
    assert diagnose(start(ranks, environment=env) + ring(ranks, "NET/IB/0")).roots == (
        "gdr-disabled-by-env",
    )


def test_reads_disabled_by_env_or_by_default() -> None:
    ranks = pair()
    env = ["NCCL_NET_GDR_READ set by environment to 0."]
    channels = ring(ranks, "NET/IB/0", receive="NET/IB/0/GDRDMA")
    assert diagnose(start(ranks, environment=env) + channels).roots == ("gdr-read-disabled",)
    report = diagnose(start(ranks) + channels)
    assert names(report) == {"gdr-read-disabled"}
    assert report.findings[0].severity is Severity.INFO


def test_gdr_off_without_a_reason_is_not_given_one() -> None:
    ranks = pair()
    report = diagnose(start(ranks) + ring(ranks, "NET/IB/0"))
    assert names(report) == {"gdr-not-used"}


def test_one_host_of_many_without_gdr_is_named() -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(12)]
    lines = start(ranks, nnodes=12) + ring(ranks)
    lines = [line.replace("/GDRDMA", "") if line.startswith("node-7:") else line for line in lines]
    report = diagnose(lines)
    assert report.roots == ("gdr-partial",)
    assert "node-7" in report.findings[0].title
    assert read(lines).gdr == "partial"


def test_tcp_plugin() -> None:
    a, b = pair()
    lines = start((a, b), network="FastSocket", adapters=None)
    lines += [a.info("NET/FastSocket : GPU Direct RDMA Disabled for HCA 0 'eth0'")]
    report = diagnose(lines + ring((a, b), "NET/FastSocket/0"))
    assert names(report) == {"nccl-tcp-plugin-without-gdr"}


# --- fabric ---


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "ib-retry-exceeded"),
        ("NET/IB: Got completion from peer 10.0.0.2<41000> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80::1 remoteGidsfe80::2", "ib-retry-exceeded"),
        ("NET/IB: Got completion from peer 10.0.0.2<41000> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send hca mlx5_0", "ib-retry-exceeded"),
        ("NET/IB: Got completion from peer 10.0.0.2<41000> with status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) vendor_err=81 hca mlx5_0", "ib-local-protection-error"),
        ("NET/IB : Got completion from peer 10.0.0.2<41000> with error 13, opcode 1, len 2, vendor err 135", "ib-retry-exceeded"),
        ("NET/IB : Got completion from peer 10.0.0.2<41000> with error 10, opcode 1, len 2, vendor err 136", "ib-completion-error"),
        ("NET/IB : Got async event : port error", "ib-port-error"),
        ("NET/IB : mlx5_0:1 Got async event : port error", "ib-port-error"),
        ("NET/IB : mlx5_0:1 async fatal event : local catastrophic error", "ib-port-error"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "ib-modify-qp-timeout"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.1.1", "ib-modify-qp-timeout"),
        ("Call to ibv_modify_qp failed with error No such device", "ib-modify-qp-no-device"),
        ("Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID ::, remote GID ::", "gid-index-invalid"),
        ("Call to ibv_modify_qp failed with error Network is unreachable", "ib-modify-qp-unreachable"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "rdma-registration-enomem"),
        ("Call to ibv_create_cq failed with error Cannot allocate memory", "rdma-registration-enomem"),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", "rdma-registration-failed"),
        ("Mismatched NCCL version detected : rank 2 version 22602 rank 1 version 22304", "nccl-version-mismatch"),
        ("MNNVL (cliqueSize 4) is available but not working on this system.", "imex-channel-unavailable"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152", "nvls-bind-failed"),
        ("P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, and is probably due to a hardware issue.", "p2p-disabled"),
        ("Cuda failure 'out of memory'", "gpu-out-of-memory"),
        ("Failed to CUDA calloc 6291456 bytes", "gpu-out-of-memory"),
        ("Call to accept failed : Too many open files", "nccl-open-files-limit"),
        ("socketProgress: wrong magic 0 != 1", "nccl-bootstrap-crosstalk"),
        ("Message truncated : received 256 bytes instead of 4", "nccl-bootstrap-crosstalk"),
        ("Attribute arch of node cpu not found", "nccl-topology-file-invalid"),
        ("socketPollConnect: connect to 10.0.0.2<41234> exceeded error retry count after 34 attempts", "nccl-socket-connect-failed"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "nccl-duplicate-gpu"),
        ("Something nobody has seen before", "nccl-error"),
    ],
)  # fmt: skip
def test_each_failure_is_the_root(text: str, name: str) -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [
        a.warn(text),
        a.info("transport/net.cc:1 -> 2"),
        b.warn("Connection closed by remote peer node-a<4>"),
    ]
    report = diagnose(lines)
    assert report.roots == (name,)
    assert report.verdict == "failing"


def test_flush_and_closed_connections_never_lead() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [
        a.warn(
            "NET/IB : Got completion from peer 10.0.0.2<4> with error 5, opcode 1, len 0, vendor err 249"
        ),
        b.warn("Connection closed by remote peer node-a<4>"),
        b.info("misc/socket.cc:1 -> 6"),
    ]
    report = diagnose(lines)
    assert report.roots == ()
    assert {"ib-flush-error", "nccl-peer-connection-closed"} <= names(report)


def test_recovery_news_is_no_fault() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [
        a.warn("NET/IB : mlx5_0:1 Got async event : port active"),
        a.warn("NET/IB : mlx5_0:1 Got non-fatal async event: client reregistration(13)"),
        b.warn("NET/IB : mlx5_0:1 Got non-fatal async event: GID table changed(18)"),
    ]
    assert loud(diagnose(lines)) == set()


def test_a_port_that_comes_back_is_a_flap() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [
        a.warn(f"NET/IB : mlx5_0:1 Got async event : port {state}") for state in ("error", "active")
    ]
    report = diagnose(lines)
    assert report.roots == ("nic-link-flap",)
    assert "ib-port-error" in names(report)


def test_a_port_error_that_ends_the_job_is_no_flap() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [a.warn(f"NET/IB : Got async event : port {state}") for state in ("error", "active")]
    lines += [
        b.warn(
            "NET/IB : Got completion from peer 10.0.0.1<4> with error 12, opcode 1, len 0, vendor err 129"
        )
    ]
    report = diagnose(lines)
    assert report.roots == ("ib-port-error",)
    assert "nic-link-flap" not in names(report)


# --- limits, GPUs, start, collectives ---


@pytest.mark.parametrize(
    "text",
    [
        "Call to posix_fallocate failed : No space left on device",
        "Error: failed to extend /dev/shm/nccl-9qB2fW to 33030532 bytes",
        "Error: failed to extend /dev/shm/nccl-9qB2fW to 33030532 bytes, error: No space left on device (28)",
        "Error while creating shared memory segment /dev/shm/nccl-9qB2fW (size 33030528)",
        "Error while creating shared memory segment /dev/shm/nccl-9qB2fW (size 33030528), error: No space left on device (28)",
    ],
)  # fmt: skip
def test_shared_memory(text: str) -> None:
    a = Rank("pod", 0)
    assert diagnose([a.warn(text, "misc/shmutils.cc:87"), a.info("shm.cc:1 -> 2")]).roots == (
        "shm-too-small",
    )


def test_a_segment_that_a_peer_did_not_make_is_not_a_small_shm() -> None:
    a = Rank("pod", 0)
    lines = [
        a.warn(
            "Error: attaching to shared memory segment /dev/shm/nccl-abc (size 0) : No such file or directory",
            "misc/shmutils.cc:60",
        ),
        a.info("shm.cc:1 -> 2"),
    ]
    assert "shm-too-small" not in names(diagnose(lines))


def test_nvls_that_is_gone_without_is_a_warning() -> None:
    ranks = [Rank("box", 0), Rank("box", 1, device=1)]
    lines = [
        *start(ranks, nnodes=1),
        ranks[0].info(
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1 : CUDA error 401"
        ),
        ranks[0].info("Proceeding without NVLS support."),
        ranks[0].info("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
    ]
    report = diagnose(lines)
    assert report.roots == ("nvls-bind-failed",)
    assert report.verdict == "warning"


def test_nvls_not_available_is_normal() -> None:
    a, b = pair()
    assert (
        names(
            diagnose(
                [
                    *start((a, b)),
                    a.info("NVLS multicast support is not available on dev 0"),
                    *ring((a, b)),
                ]
            )
        )
        == set()
    )


def test_versions_differ_without_nccl_noticing() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines[1:1] = [a.info("NCCL version 2.22.3+cuda12.4"), b.info("NCCL version 2.23.4+cuda12.4")]
    assert diagnose(lines).roots == ("nccl-version-mismatch",)
    lines[1:3] = [a.info("NCCL version 2.22.3+cuda12.4"), b.info("NCCL version 2.22.3+cuda12.2")]
    assert names(diagnose(lines)) == set()


def test_connection_retries_that_succeed_are_nothing() -> None:
    a, b = pair()
    line = a.info(
        "socketPollConnect: connect to 10.0.0.2<4> returned Connection refused, retrying (1/34) after sleep for 100 msec"
    )
    assert names(diagnose([*start((a, b)), line, *ring((a, b))])) == set()
    assert diagnose([*start((a, b)), line]).roots == ("nccl-socket-connect-failed",)


def test_init_that_somebody_gave_up_waiting_for() -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(3)]
    lines = start(ranks, nranks=4)
    report = diagnose([*lines, TIMED_OUT])
    assert report.roots == ("nccl-init-incomplete",)
    assert "rank 3" in report.findings[0].title


@pytest.mark.parametrize("what", ["cut", "complete", "folded"])
def test_init_that_is_only_cut_off_is_not_hung(what: str) -> None:
    ranks = [Rank(f"node-{n}", n) for n in range(3)]
    lines = start(ranks, nranks=4 if what == "folded" else 3)
    if what == "complete":
        lines += [*ring(ranks), TIMED_OUT]
    if what == "folded":
        lines = [*[f"{line} [repeated 3x across cluster]" for line in lines], TIMED_OUT]
    assert "nccl-init-incomplete" not in names(diagnose(lines))


def test_partial_capture_does_not_call_the_others_dead() -> None:
    a = Rank("node-a", 0)
    lines = [*start([a], nranks=16), a.info(comm(a, 16) + "- Init COMPLETE")]
    lines += [a.info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"), TIMED_OUT]
    assert names(diagnose(lines)) == set()


def work(rank: int, enqueued: int, completed: int = 2213, form: str = "2.4") -> str:
    status = f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    return {
        "2.2": f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1] [PG 0 Rank {rank}] Timeout at NCCL work: 2214, {status}",
        "2.4": f"[rank{rank}]:[E418 19:33:52.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: 2214, {status}",
        "2.6": f"[rank{rank}]:[E418 19:33:52.1 ProcessGroupNCCL.cpp:2172] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: 2214 PG status: last enqueued work: {enqueued}, last completed work: {completed}",
    }[form]  # fmt: skip


def timeout(rank: int) -> str:
    return f"[rank{rank}]:[E418 19:33:52.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2214, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before timing out."


@pytest.mark.parametrize("form", ["2.2", "2.4", "2.6"])
def test_the_rank_that_never_came_is_named(form: str) -> None:
    lines = [
        timeout(0),
        work(0, 2216, form=form),
        timeout(1),
        work(1, 2216, form=form),
        work(2, 2213, form=form),
    ]
    report = diagnose(lines)
    assert report.roots == ("nccl-collective-timeout",)
    assert "rank 2 never entered" in report.findings[0].title


def test_nobody_behind_blames_nobody() -> None:
    report = diagnose([timeout(0), work(0, 2214), timeout(1), work(1, 2214)])
    assert "no rank heard of" in report.findings[0].title


def test_a_fabric_error_explains_the_timeout() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [
        a.warn(
            "NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 1, len 0, vendor err 129"
        )
    ]
    report = diagnose([*lines, timeout(1), work(1, 2214)])
    assert report.roots == ("ib-retry-exceeded",)


def test_forty_warnings_lead_with_the_first() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b))
    lines += [r.warn(f"strange thing number {'x' * n}") for n in range(20) for r in (a, b)]
    report = diagnose([*lines, a.info("init.cc:1 -> 3")])
    assert report.roots == ("nccl-error",)
    assert report.findings[0].evidence[0].value == a.warn("strange thing number").strip()


def test_a_warning_that_nothing_came_of_is_information() -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b)) + [a.warn("strange thing")]
    assert loud(diagnose(lines)) == set()


def test_p2p_switched_off_by_choice_is_not_a_fault() -> None:
    ranks = [Rank("box", 0), Rank("box", 1, device=1)]
    env = ["NCCL_P2P_LEVEL set by environment to LOC"]
    lines = start(ranks, nnodes=1, environment=env)
    lines += [ranks[0].info("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")]
    assert names(diagnose(lines)) == set()


def timed(
    seconds: list[float], form: str = "Bootstrap timings total {0} (create 0.1, recv {0})"
) -> list[str]:
    """A start in which each rank says how long it waited."""
    members = [Rank(f"n{number}", number) for number in range(len(seconds))]
    lines = []
    for rank, waited in zip(members, seconds, strict=True):
        text = form.format(waited, rank.rank, len(seconds))
        lines += start([rank], nranks=len(seconds))
        if text.startswith("Bootstrap"):
            lines.insert(-1, rank.info(text))
            continue
        lines.append(rank.info(text))
    return lines + ring(members)


INIT = "Init timings - ncclCommInitRank: rank {1} nranks {2} total {0} (kernels 0.2, bootstrap {0}, x 1)"


@pytest.mark.parametrize("form", [None, INIT])
@pytest.mark.parametrize(("waited", "severity"), [(15.5, Severity.INFO), (95.2, Severity.WARNING)])
def test_the_rank_that_waited_least_was_late(
    form: str | None, waited: float, severity: Severity
) -> None:
    seconds = [waited, waited + 0.1, 0.02, waited - 0.2]
    report = diagnose(timed(seconds, form) if form else timed(seconds))
    (late,) = [found for found in report.findings if found.name == "nccl-late-rank"]
    assert late.severity is severity
    assert "rank 2 on n2" in late.title
    assert "0.02" in str(late.evidence[0].value)


@pytest.mark.parametrize(
    "seconds",
    [
        [0.03, 0.031, 0.0001, 0.02],
        [20.0, 21.0, 19.0, 20.5],
        [20.0, 0.1],
        [20.0, 0.1, 0.1, 20.0],
    ],
    ids=["all at once", "all wait alike", "one of two always waits", "half of them"],
)
def test_nobody_was_late(seconds: list[float]) -> None:
    assert "nccl-late-rank" not in names(diagnose(timed(seconds)))


def stuck(rank: int, *, only: str = "") -> list[str]:
    """What the monitor of a watchdog prints: the first line alone up to PyTorch 2.5's way out."""
    head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank {rank}] "
    lines = [
        head + "Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        head + "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in"
        " monitoring enqueued collectives.",
    ]
    return [line for line in lines if only in line]


def test_the_rank_whose_own_watchdog_hangs_is_the_one_waited_for() -> None:
    report = diagnose([timeout(0), work(0, 2214), timeout(1), work(1, 2214), *stuck(2)])
    assert report.roots == ("nccl-process-unresponsive",)
    (root,) = [f for f in report.findings if f.name == "nccl-process-unresponsive"]
    assert root.title == "A rank does not answer: rank 2"
    assert "for 480 s" in root.detail


@pytest.mark.parametrize("only", ["Heartbeat", "got stuck"])
def test_either_line_of_the_monitor_tells(only: str) -> None:
    assert diagnose(stuck(3, only=only)).roots == ("nccl-process-unresponsive",)


def test_a_rank_that_hangs_in_ending_after_its_timeout_is_no_cause() -> None:
    report = diagnose([timeout(0), work(0, 2214), *stuck(0), timeout(1), *stuck(1)])
    assert report.roots == ("nccl-collective-timeout",)


RECORDED = [
    "Not all ranks joining collective 5 at entry 4",
    "group info: 0:default_pg",
    "collective: nccl:all_reduce",
    "missing ranks: {3}",
]


def test_flight_recorders_name_who_did_not_join() -> None:
    report = diagnose(RECORDED)
    assert report.roots == ("nccl-collective-timeout",)
    assert report.findings[0].title == "all_reduce 5 timed out: rank 3 never joined it"
    told = diagnose([timeout(0), work(0, 2214), timeout(1), work(1, 2214), *RECORDED])
    assert told.findings[0].title == "ALLREDUCE 2214 timed out: rank 3 never joined it"
    assert "By the flight recorders rank 3 never joined all_reduce 5" in told.findings[0].detail


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Cuda failure 220 'uncorrectable NVLink error detected during the execution'", "nvlink-error"),
        ("Cuda failure 'no CUDA-capable device is detected'", "no-devices"),
        ("Cuda failure 101 'invalid device ordinal'", "device-ordinal-invalid"),
        ("Cuda failure 1 'invalid argument'", "nccl-error"),
        ("Cuda failure 'initialization error'", "cuda-unknown-error"),
    ],
)  # fmt: skip
def test_what_cuda_says_has_its_own_name(said: str, name: str) -> None:
    a, b = pair()
    lines = start((a, b)) + ring((a, b)) + [a.warn(said, "init.cc:1"), a.info("init.cc:1 -> 1")]
    lines.append(b.warn("a warning that nobody knows"))
    report = diagnose(lines)
    assert report.roots == (name,)
    assert "node-a" in report.findings[0].detail + str(report.findings[0].evidence)


def test_an_import_of_memory_is_imex_only_where_nvlink_joins_the_hosts() -> None:
    a, b = pair()
    fails = [a.warn("Cuda failure 101 'invalid device ordinal'", "transport/p2p.cc:275")]
    fails.append(a.info("transport/p2p.cc:340 -> 1"))
    plain = start((a, b)) + fails
    assert diagnose(plain).roots == ("nccl-error",)
    joined = [line.replace("MNNVL 0", "MNNVL 1") for line in plain]
    assert diagnose(joined).roots == ("imex-channel-unavailable",)
    # Over NVLink TCP carries no data, whatever network stands ready.
    idle = [line.replace("MNNVL 0", "MNNVL 1") for line in start((a, b), network="Socket")]
    assert read(idle).network == "none"


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ("169.254.170.23<41233>", "on its own host alone"),
        ("172.17.0.1<41233>", "on its own host alone"),
        ("172.170.0.1<41233>", "nobody listens there"),
        ("10.0.0.2<41233>", "nobody listens there"),
    ],
)
def test_an_address_of_one_host_is_no_address_of_a_peer(peer: str, said: str) -> None:
    a, b = pair()
    line = f"socketStartConnect: Connect to {peer} failed : Connection refused"
    (found,) = diagnose([*start((a, b)), a.warn(line, "misc/socket.cc:476")]).findings
    assert (found.name, said in found.detail) == ("nccl-socket-connect-failed", True)


WORDINGS = {
    "NET/IBP : No device found.": "nccl-socket-fallback",
    "NET/IB: No device found.": "nccl-socket-fallback",
    "NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE.": (
        "nccl-error"
    ),
    "NET/IB : Local mergedDev mlx5_0+mlx5_1 has a different number of devices=2 as remote 1": (
        "nccl-error"
    ),
    "rx ctrl timeout cnt 3": "nccl-error",
    "Bootstrap: no socket interface found": "nccl-ifname-no-match",
    "Call to recv from 10.0.0.2<40000> failed : Connection reset by peer": (
        "nccl-peer-connection-closed"
    ),
    "Call to send failed : Broken pipe": "nccl-peer-connection-closed",
    "bootstrapCheckMagic: wrong type 4 != 3": "nccl-bootstrap-crosstalk",
    "Bootstrap Root : rank 1 of 2 ranks has already checked in": "nccl-bootstrap-crosstalk",
    "NCCL version mismatch with remote peer (22304 vs 22102)": "nccl-version-mismatch",
    "MNNVL available but not working. Check the IMEX channel configuration": (
        "imex-channel-unavailable"
    ),
    "run nvidia-imex-ctl -N": "imex-channel-unavailable",
    "Could not enable P2P between dev 0(=1b000) and dev 1(=2c000)": "p2p-disabled",
}


@pytest.mark.parametrize("said", WORDINGS)
def test_every_wording_leads_to_its_finding(said: str) -> None:
    a, b = pair()
    network = "Socket" if "No device" in said else "IB"
    lines = start((a, b), network=network, environment=["NCCL_IB_HCA set by environment to mlx5"])
    lines += [a.warn(said), a.info("init.cc:1 -> 3")]
    assert WORDINGS[said] in names(diagnose(lines))


def test_a_provider_that_libfabric_does_not_find() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket", adapters=None)
    lines.append(a.info("NET/OFI Unable to find a protocol that worked. Failing initialization."))
    assert "nccl-net-plugin-init-failed" in names(diagnose(lines))


def test_a_network_that_is_forced_is_named() -> None:
    a, b = pair()
    lines = start((a, b), network="Socket")
    lines.append(a.info("Comm config netName reset to NCCL_NET=Socket"))
    report = diagnose(lines)
    assert "NCCL_NET=Socket forces it" in report.findings[0].detail


def _efa_without_gdr(*said: str) -> list[str]:
    ranks = pair()
    lines = start(ranks, network="AWS Libfabric", adapters=None)
    for rank in ranks:
        peer = 1 - rank.rank
        lines += [rank.info(f"NET/OFI {text}") for text in said]
        for way in (
            f"{peer}[0] -> {rank.rank}[0] [receive]",
            f"{rank.rank}[0] -> {peer}[0] [send]",
        ):
            lines.append(rank.info(f"Channel 00/0 : {way} via NET/AWS Libfabric/0"))
    return lines


@pytest.mark.parametrize(
    "said",
    [
        "Could not disable CUDA API usage for HMEM, disabling GDR",
        "Need to force simple protocol: GDR not supported",
    ],
)
def test_a_plugin_that_says_gdr_is_not_supported_is_not_at_fault(said: str) -> None:
    (found,) = [f for f in diagnose(_efa_without_gdr(said)).findings if f.name == "gdr-not-used"]
    assert found.severity == "info"
    assert "nothing is to be repaired" in found.detail


@pytest.mark.parametrize(
    "said", ["Need to force simple protocol: byte delivery ordering not supported", "Initializing"]
)
def test_a_plugin_that_says_something_else_explains_no_missing_gdr(said: str) -> None:
    (found,) = [f for f in diagnose(_efa_without_gdr(said)).findings if f.name == "gdr-not-used"]
    assert found.severity == "warning"


def test_an_error_that_pytorch_quotes_counts_where_nobody_else_told_it() -> None:
    quoted = ["RuntimeError: NCCL error in: x.cpp:1", "Last error:",
              "Bootstrap : no socket interface found"]  # fmt: skip
    assert diagnose(quoted).roots == ("nccl-ifname-no-match",)
    told = pair()[0].warn("Bootstrap : no socket interface found", "bootstrap.cc:37")
    (found,) = [f for f in diagnose([told, *quoted]).findings if f.name == "nccl-ifname-no-match"]
    assert "on node-a" in found.detail
    other = ["RuntimeError: NCCL error in: x.cpp:1", "nvshmem: No socket interface found"]
    assert "nccl-ifname-no-match" not in names(diagnose(other))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NET/IB: Got completion from peer 10.0.0.4<41322> with status=12 opcode=0 len=0 vendor err"
         " 129 (Send) localGid fe80::1 remoteGidsfe80::2 hca mlx5_3", "ib-retry-exceeded"),
        ("socketStartConnect: Connect to 10.0.0.4<51123> failed : Connection refused",
         "nccl-socket-connect-failed"),
        ("socketPollConnect: connect to 10.0.0.4<5> returned Connection timed out, exceeded error"
         " retry count after 35 attempts", "nccl-socket-connect-failed"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
         "nccl-duplicate-gpu"),
        ("Call to ibv_modify_qp failed with error No such device", "ib-modify-qp-no-device"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "rdma-registration-enomem"),
        ("Failed to initialize any NET plugin", "nccl-net-forced-unavailable"),
        ("Mismatched NCCL version detected : rank 2 version 22602 rank 1 version 22304",
         "nccl-version-mismatch"),
    ],
)  # fmt: skip
def test_what_pytorch_quotes_is_all_of_nccl_that_many_logs_have(said: str, name: str) -> None:
    report = diagnose(
        [
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system"
            " error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2",
            "ncclSystemError: System call or external library call failed or device error.",
            "Last error:",
            said,
        ]
    )
    assert report.roots == (name,)
    told = " ".join(f"{finding.title} {finding.detail}" for finding in report.findings)
    assert "  " not in told
    assert " on ," not in told


def test_multicast_memory_by_the_place_that_the_warning_names() -> None:
    a, b = pair()
    lines = [*start((a, b)), a.warn("Cuda failure 401 'the operation'", "transport/nvls.cc:254")]
    assert diagnose([*lines, a.info("transport/nvls.cc:409 -> 1")]).roots == ("nvls-bind-failed",)
    lines[-1] = a.warn("Cuda failure 401 'the operation'", "enqueue.cc:254")
    assert "nvls-bind-failed" not in names(diagnose([*lines, a.info("enqueue.cc:40 -> 1")]))


_TWICE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"


def test_a_quote_is_shown_with_its_line() -> None:
    quoted = ["loss 1.0"] * 40000 + ["Last error:", "worker 3 ends", _TWICE]
    (found,) = diagnose([*quoted, "NCCL version 2.26.2"]).findings
    assert (found.name, found.evidence[0].object.rpartition(":")[2]) == (
        "nccl-duplicate-gpu",
        "40003",
    )
    assert diagnose([_TWICE, "NCCL version 2.26.2"]).findings == ()
