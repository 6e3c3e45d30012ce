"""Limits, probes, environment, engine flags and ends of containers: harm, and what does none."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.kubernetes import parse
from gpudoctor.report import Report, Verdict
from gpudoctor_checks import workload
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"
MAIN = "team/train-0/main"
SHM_MOUNT = [{"name": "dshm", "mountPath": "/dev/shm"}]
SHM_VOLUME = {"name": "dshm", "emptyDir": {"medium": "Memory"}}


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


def running(name: str = "train-0", gpus: int = 1, **more: Any) -> Object:
    """A pod whose one container runs and is ready."""
    own = more.pop("container", {})
    return k8s.pod(
        name,
        containers=[k8s.container(limits={GPU: str(gpus)} | own.pop("limits", {}), **own)],
        node="gpu-1",
        phase="Running",
        conditions=[k8s.condition("Ready", "True")],
        statuses=[k8s.container_status(ready=True, state={"running": {}})],
        **more,
    )


def crashed(name: str = "train-0", gpus: int = 1, end: Object | None = None, **more: Any) -> Object:
    """The same in CrashLoopBackOff."""
    pod = running(name, gpus, **more)
    pod["status"]["conditions"] = [k8s.condition("Ready", "False")]
    pod["status"]["containerStatuses"] = [k8s.container_status(**k8s.crashing(**(end or {})))]
    return pod


class TestShm:
    NAME = "shm-too-small"
    LINE = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible"

    def test_log_shows_it(self) -> None:
        container = {"args": ["vllm", "serve", "--tensor-parallel-size", "1"]}
        report = ask(crashed(container=container), k8s.node(), logs={MAIN: f"start\n{self.LINE}\n"})
        found = finding_of(report, "shm-too-small")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"log {MAIN}:2 {self.LINE}",
            "Pod/team/train-0 spec.volumes, volumeMounts [/dev/shm] not mounted: default 64 MiB",
            "Pod/team/train-0 spec.containers[main].args --tensor-parallel-size 1",
        ]
        assert "its /dev/shm is 64 MiB." in found.detail
        assert "emptyDir: {medium: Memory, sizeLimit: 16Gi}" in found.fix

    @pytest.mark.parametrize(
        ("volume", "size"),
        [
            (SHM_VOLUME, "as large as memory allows"),
            (
                {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                "1024 MiB",
            ),
        ],
    )
    def test_mounted_and_still_too_small(self, volume: Object, size: str) -> None:
        pod = crashed(container={"volumeMounts": SHM_MOUNT}, spec={"volumes": [volume]})
        found = finding_of(ask(pod, k8s.node(), logs={MAIN: self.LINE}), self.NAME)
        assert f"is {size}." in found.detail
        assert "[/dev/shm] emptyDir with medium Memory" in shown(found)

    @pytest.mark.parametrize(
        ("gpus", "more", "expected"),
        [
            (2, {}, True),
            (1, {}, False),
            (2, {"spec": {"hostIPC": True}}, False),
            (
                2,
                {"container": {"volumeMounts": SHM_MOUNT}, "spec": {"volumes": [SHM_VOLUME]}},
                False,
            ),
            (
                2,
                {
                    "container": {"volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm/"}]},
                    "spec": {"volumes": [SHM_VOLUME]},
                },
                False,
            ),
            (2, {"container": {"volumeMounts": [{"name": "x", "mountPath": "/cache"}]}}, True),
        ],
        ids=["two", "one", "host-ipc", "mounted", "slash", "other-mount"],
    )
    def test_default_size_without_harm_is_information(
        self, gpus: int, more: Object, expected: bool
    ) -> None:
        report = ask(running(gpus=gpus, **more), k8s.node())
        assert (self.NAME in names(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert told(found) == ("info", "possible", "Pod/team/train-0")
            assert "has 2 GPUs and the default /dev/shm of 64 MiB." in found.detail
            assert report.verdict is Verdict.HEALTHY

    @pytest.mark.parametrize(
        ("volume", "limit"),
        [
            ({"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, 2**30),
            (SHM_VOLUME, None),
            ({"name": "dshm", "emptyDir": {"sizeLimit": "1Gi"}}, None),
            ({"name": "dshm", "hostPath": {"path": "/dev/shm"}}, None),
            ({"name": "other", "emptyDir": {}}, None),
        ],
    )
    def test_limit(self, volume: Object, limit: int | None) -> None:
        obj = running(container={"volumeMounts": SHM_MOUNT}, spec={"volumes": [volume]})
        pod = parse.pod(obj)
        assert workload.shm_limit(pod, pod.containers[0]) == limit


class TestOomKilled:
    NAME = "oom-killed"

    def oom(self, finished: str = "2026-11-20T08:25:00Z", **more: Any) -> Object:
        end = {"reason": "OOMKilled", "code": 137, "finishedAt": finished}
        return crashed(end=end | {"startedAt": "2026-11-20T08:00:00Z"}, **more)

    def test_words(self) -> None:
        pod = self.oom(container={"limits": {"memory": "16Gi"}})
        report = ask(pod, k8s.node())
        found = finding_of(report, "oom-killed")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.containerStatuses[main].lastState.terminated exitCode 137, "
            "reason OOMKilled, lived 1500 s, 7 restarts",
            "Pod/team/train-0 spec.containers[main].resources.limits.memory 16.0 GiB",
        ]
        assert "not of the GPU." in found.detail
        assert "/dev/shm" not in found.detail

    def test_shared_memory_counts_too(self) -> None:
        pod = self.oom(container={"volumeMounts": SHM_MOUNT}, spec={"volumes": [SHM_VOLUME]})
        found = finding_of(ask(pod, k8s.node()), self.NAME)
        assert found.detail.endswith("What it writes to /dev/shm counts, too.")
        assert "than the node had left (it has no limit)" in found.detail
        assert found.fix.startswith("Give the container a memory request and limit")

    def test_container_that_has_just_ended(self) -> None:
        pod = running()
        end = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        pod["status"] |= {
            "phase": "Failed",
            "containerStatuses": [k8s.container_status(state=end)],
        }
        found = finding_of(ask(pod, k8s.node()), self.NAME)
        assert (
            "status.containerStatuses[main].state.terminated exitCode 137, reason OOMKilled, 0"
            in (shown(found))
        )

    @pytest.mark.parametrize(
        ("finished", "severity"),
        [
            ("2026-11-20T07:29:59Z", "warning"),
            ("2026-11-20T07:30:00Z", "error"),
            ("2026-11-20T08:20:00Z", "error"),
            (None, "error"),
        ],
    )
    def test_ready_again_for_more_than_an_hour(self, finished: str | None, severity: str) -> None:
        pod = self.oom(finished or "")
        status = pod["status"]["containerStatuses"][0]
        status |= {"ready": True, "state": {"running": {"startedAt": k8s.CREATED}}}
        event = k8s.event(pod, "Pulled", "x", seen=k8s.NOW)
        found = finding_of(ask(pod, k8s.node(), event), self.NAME)
        assert told(found)[0] == severity

    @pytest.mark.parametrize(("reason", "code"), [("Error", 137), ("OOMKilled", 0)])
    def test_near_misses(self, reason: str, code: int) -> None:
        pod = crashed(end={"reason": reason, "code": code})
        assert self.NAME not in names(ask(pod, k8s.node()))


LIVENESS = {"periodSeconds": 10, "failureThreshold": 3, "initialDelaySeconds": 30}


class TestLiveness:
    NAME = "liveness-kills-loading-model"
    SAID = "Container main failed liveness probe, will be restarted"

    def pod(
        self, lived: str = "08:01:00", code: int = 137, probes: Object | None = None, **end: Any
    ) -> Object:
        return crashed(
            end={
                "code": code,
                "startedAt": "2026-11-20T08:00:00Z",
                "finishedAt": f"2026-11-20T{lived}Z",
            }
            | end,
            container={"livenessProbe": LIVENESS} if probes is None else probes,
        )

    def ask(self, pod: Object, said: str | None = None, **more: Any) -> Report:
        event = k8s.event(pod, "Killing", said or self.SAID, type="Normal", component="kubelet")
        unhealthy = k8s.event(pod, "Unhealthy", "Liveness probe failed: refused")
        return ask(pod, k8s.node(), event, unhealthy, **more)

    def test_words(self) -> None:
        line = "Loading safetensors checkpoint shards:  40% Completed"
        report = self.ask(self.pod(), logs={MAIN: line})
        found = finding_of(report, "liveness-kills-loading-model")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"Event/team/train-0 Killing (x3) {self.SAID}",
            "Pod/team/train-0 status.containerStatuses[main].lastState.terminated exitCode 137, "
            "reason Error, lived 60 s, 7 restarts",
            "Pod/team/train-0 spec.containers[main] no startupProbe; initialDelaySeconds 30, "
            "periodSeconds 10, failureThreshold 3: 60 s in all",
            "Event/team/train-0 Unhealthy Liveness probe failed: refused",
            f"log {MAIN}:1 {line}",
        ]
        assert "stops main after 60 s" in found.detail

    @pytest.mark.parametrize(
        ("lived", "expected"),
        [("08:01:00", True), ("08:02:10", True), ("08:02:11", False), ("08:30:00", False)],
    )
    def test_budget_and_grace(self, lived: str, expected: bool) -> None:
        assert (self.NAME in names(self.ask(self.pod(lived)))) is expected

    @pytest.mark.parametrize(("lived", "expected"), [("08:11:10", True), ("08:11:11", False)])
    def test_startup_probe_adds_to_the_budget(self, lived: str, expected: bool) -> None:
        startup = {"periodSeconds": 12, "failureThreshold": 30}
        probes = {"livenessProbe": LIVENESS, "startupProbe": startup}
        report = self.ask(self.pod(lived, probes=probes), self.SAID.replace("liveness", "startup"))
        assert (self.NAME in names(report)) is expected
        if expected:
            text = "startupProbe; initialDelaySeconds 0, periodSeconds 12, failureThreshold 30: 360"
            assert text in shown(finding_of(report, self.NAME))

    @pytest.mark.parametrize(
        ("code", "expected"), [(137, True), (143, True), (1, False), (139, False)]
    )
    def test_exit_codes(self, code: int, expected: bool) -> None:
        assert (self.NAME in names(self.ask(self.pod(code=code)))) is expected

    def test_ends_well_when_it_is_told_to(self) -> None:
        """A server that leaves with 0 on SIGTERM, and is started again."""
        pod = self.pod(code=0)
        assert self.ask(pod).roots == (self.NAME,)
        assert self.NAME not in names(ask(pod, k8s.node()))
        pod["status"]["containerStatuses"][0].update(ready=True, state={"running": {}})
        assert self.NAME not in names(self.ask(pod))

    @pytest.mark.parametrize(
        ("status", "name"),
        [("404", "application-error"), ("401", "application-error"), ("503", NAME), ("429", NAME)],
    )
    @pytest.mark.parametrize("code", [0, 137])
    def test_the_server_answers_the_probe(self, status: str, name: str, code: int) -> None:
        pod = self.pod(code=code)
        killing = k8s.event(pod, "Killing", self.SAID, type="Normal", component="kubelet")
        said = f"Liveness probe failed: HTTP probe failed with statuscode: {status}"
        report = ask(pod, k8s.node(), killing, k8s.event(pod, "Unhealthy", said))
        assert report.roots == (name,)
        if name != self.NAME:
            found = finding_of(report, name)
            assert told(found)[:2] == ("error", "likely")
            assert "its probe asks for what the server does not have" in found.title
            assert said in shown(found)

    def test_a_readiness_probe_that_is_answered_ends_nothing(self) -> None:
        pod = self.pod()
        said = "Readiness probe failed: HTTP probe failed with statuscode: 404"
        late = k8s.event(pod, "Unhealthy", said, seen="2026-11-20T08:29:00Z")
        killing = k8s.event(pod, "Killing", self.SAID, type="Normal", component="kubelet")
        assert ask(pod, k8s.node(), killing, late).roots == (self.NAME,)

    def test_times_that_are_not_known(self) -> None:
        pod = self.pod(startedAt=None)
        assert self.NAME in names(self.ask(pod))

    def test_near_misses(self) -> None:
        assert self.NAME not in names(self.ask(self.pod(reason="OOMKilled")))
        assert self.NAME not in names(self.ask(self.pod(probes={})))
        assert self.NAME not in names(self.ask(self.pod(), "Stopping container main"))
        assert self.NAME not in names(self.ask(self.pod(), "sidecar failed liveness probe"))
        assert self.NAME not in names(ask(self.pod(), k8s.node()))


class TestTensorParallel:
    NAME = "tensor-parallel-exceeds-gpus"

    def test_words(self) -> None:
        line = "ValueError: Tensor parallel size (8) cannot be larger than the number of GPUs (4)"
        container = {"args": ["vllm", "serve", "m", "--tensor-parallel-size=8"]}
        report = ask(crashed(gpus=4, container=container), k8s.node(), logs={MAIN: line})
        found = finding_of(report, "tensor-parallel-exceeds-gpus")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 spec.containers[main] --tensor-parallel-size=8",
            "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 4",
            f"log {MAIN}:1 {line}",
        ]
        assert "is told to use 8 GPUs (--tensor-parallel-size=8) and the pod has 4." in found.detail
        assert found.title == "team/train-0 is told to use 8 GPUs and has 4"

    @pytest.mark.parametrize(
        ("args", "gpus", "expected"),
        [
            (["vllm", "-tp", "4"], 4, False),
            (["vllm", "-tp", "5"], 4, True),
            (["vllm", "-tp", "3"], 4, False),
            (["vllm", "-tp", "2", "-pp", "2"], 4, False),
            (["vllm", "-tp", "4", "-pp", "2"], 4, True),
            (["vllm", "-tp", "2", "-dp", "4"], 4, True),
            (["torchrun", "--nproc-per-node=4"], 4, False),
            (["torchrun", "--nproc-per-node=5"], 4, True),
            (["torchrun", "--nnodes=2", "--nproc-per-node=4"], 4, False),
            (["vllm", "--nnodes=2", "-tp", "8"], 4, False),
            (["vllm", "--nnodes=2", "-tp", "9"], 4, True),
            (["vllm", "-tp", "8", "--distributed-executor-backend", "ray"], 4, False),
            (["vllm", "-tp", "8"], 0, False),
            (["python", "x.py", "--max", "8"], 4, False),
        ],
    )
    def test_boundary(self, args: list[str], gpus: int, expected: bool) -> None:
        pod = crashed(gpus=gpus, container={"args": args})
        report = ask(pod, k8s.node())
        assert (self.NAME in loud(report)) is expected
        if expected:
            assert told(finding_of(report, self.NAME))[:2] == ("error", "likely")

    def test_without_harm_it_is_information(self) -> None:
        report = ask(running(gpus=4, container={"args": ["vllm", "-tp", "8"]}), k8s.node())
        assert told(finding_of(report, self.NAME))[:2] == ("info", "likely")

    def test_gpus_of_the_other_container_count(self) -> None:
        containers = [
            k8s.container("launcher", {}, args=["vllm", "-tp", "8"]),
            k8s.container("worker", {GPU: "8"}),
        ]
        pod = k8s.pod(containers=containers, node="gpu-1", phase="Running")
        assert self.NAME not in names(ask(pod, k8s.node()))

    @pytest.mark.parametrize(
        ("meta", "expected"),
        [
            ({"annotations": {"leaderworkerset.sigs.k8s.io/size": "2"}}, False),
            ({"annotations": {"leaderworkerset.sigs.k8s.io/size": "1"}}, True),
            ({"annotations": {"leaderworkerset.sigs.k8s.io/size": "0"}}, True),
            ({"annotations": {"leaderworkerset.sigs.k8s.io/size": "many"}}, True),
            ({"labels": {"ray.io/cluster": "c"}}, False),
        ],
    )
    def test_groups(self, meta: Object, expected: bool) -> None:
        pod = crashed(gpus=4, container={"args": ["vllm", "-tp", "8"]}, meta=meta)
        assert (self.NAME in loud(ask(pod, k8s.node()))) is expected

    @pytest.mark.parametrize(("wanted", "expected"), [("8", False), ("9", True)])
    def test_peers_are_a_group(self, wanted: str, expected: bool) -> None:
        labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
        pods = [
            crashed(name, 4, container={"args": ["vllm", "-tp", wanted]}, meta={"labels": labels})
            for name in ("train-0", "train-1")
        ]
        report = ask(*pods, k8s.node())
        assert (self.NAME in loud(report)) is expected
        if expected:
            detail = finding_of(report, self.NAME).detail
            assert detail.endswith("and the pod has 4 in a group of 2.")


OOM_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TAKEN = (
    "ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired "
    "GPU memory utilization (0.9, 71.3 GiB)"
)


class TestGpuMemory:
    def test_words(self) -> None:
        container = {"args": ["vllm", "--gpu-memory-utilization", "0.95"]}
        log = f"{OOM_LINE}\n"
        report = ask(crashed(container=container), k8s.node(), logs={MAIN: log})
        found = finding_of(report, "gpu-out-of-memory")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("gpu-out-of-memory",)
        assert shown(found).splitlines() == [
            f"log {MAIN}:1 {OOM_LINE}",
            "Pod/team/train-0 spec.containers[main].args --gpu-memory-utilization 0.95",
        ]
        assert "gpu-memory-leak" not in names(report)

    def test_caught_by_the_program(self) -> None:
        report = ask(running(), k8s.node(), logs={MAIN: OOM_LINE})
        assert "gpu-out-of-memory" not in names(report)

    def test_other_error(self) -> None:
        report = ask(crashed(), k8s.node(), logs={MAIN: "ValueError: memory of the past\n"})
        assert "gpu-out-of-memory" not in names(report)

    @pytest.mark.parametrize(
        ("free", "total", "expected"),
        [
            ("12.5", "79.1", True),
            ("79.9", "100", True),
            ("80.0", "100", False),
            ("90.0", "100", False),
            ("0", "0", False),
            ("1.2.3", "100", False),
        ],
    )
    def test_leak(self, free: str, total: str, expected: bool) -> None:
        line = TAKEN.format(free=free, total=total)
        report = ask(crashed(), k8s.node(), logs={MAIN: line})
        assert ("gpu-memory-leak" in names(report)) is expected
        if expected:
            found = finding_of(report, "gpu-memory-leak")
            assert told(found) == ("error", "likely", "Node/gpu-1")
            assert report.roots == ("gpu-memory-leak",)
            assert f"Only {free} of {total} GiB were free" in found.detail
            assert shown(found).splitlines() == [
                f"log {MAIN}:1 {line}",
                "Pod/team/train-0 spec.containers[main].resources.limits[nvidia.com/gpu] 1",
            ]

    @pytest.mark.parametrize(
        ("limits", "labels"),
        [
            ({GPU: "1"}, {"nvidia.com/gpu.sharing-strategy": "time-slicing"}),
            ({"nvidia.com/gpu.shared": "1"}, {}),
            ({"nvidia.com/mig-1g.10gb": "1"}, {}),
            ({GPU: "1", "nvidia.com/gpumem": "4000"}, {}),
            ({"cpu": "1"}, {}),
        ],
    )
    def test_card_that_is_shared_is_no_leak(self, limits: Object, labels: Object) -> None:
        pod = crashed(gpus=0)
        pod["spec"]["containers"] = [k8s.container(limits=limits)]
        line = TAKEN.format(free="1", total="80")
        report = ask(pod, k8s.node(labels=labels), logs={MAIN: line})
        assert "gpu-memory-leak" not in names(report)

    def test_another_pod_that_takes_gpus_by_hand(self) -> None:
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        thief = k8s.pod(
            "thief",
            "other",
            containers=[k8s.container("sh", {}, env=env)],
            node="gpu-1",
            phase="Running",
        )
        line = TAKEN.format(free="1", total="80")
        report = ask(crashed(), thief, k8s.node(), logs={MAIN: line})
        found = finding_of(report, "device-plugin-bypass-env")
        assert str(found.subject) == "Pod/other/thief"
        assert report.roots == ("device-plugin-bypass-env",)
        assert "gpu-memory-leak" not in names(report)


class TestBypass:
    NAME = "device-plugin-bypass-env"

    def pod(self, value: str, gpus: int, fails: bool = False) -> Object:
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
        return (crashed if fails else running)(gpus=gpus, container={"env": env})

    @pytest.mark.parametrize(
        ("value", "gpus", "fails", "severity", "words"),
        [
            ("all", 0, False, "warning", "asks for no GPU and takes them past the scheduler"),
            ("all", 1, False, "warning", "asks for 1 GPUs and sees what NVIDIA_VISIBLE_DEVICES"),
            ("all", 7, False, "warning", "asks for 7 GPUs"),
            ("all", 8, False, "info", "asks for 8 GPUs"),
            ("none", 1, False, "warning", "asks for 1 GPUs and hides them from itself"),
            ("void", 1, True, "error", "hides them from itself"),
            ("", 1, True, "error", "hides them from itself"),
            (" None ", 1, True, "error", "hides them from itself"),
            ("none", 0, False, None, ""),
            ("void", 0, False, None, ""),
        ],
    )
    def test_values(
        self, value: str, gpus: int, fails: bool, severity: str | None, words: str
    ) -> None:
        report = ask(self.pod(value, gpus, fails), k8s.node())
        assert (self.NAME in names(report)) is (severity is not None)
        if severity:
            found = finding_of(report, "device-plugin-bypass-env")
            assert told(found) == (severity, "certain", "Pod/team/train-0")
            assert words in found.detail
            path = "Pod/team/train-0 spec.containers[main]"
            assert shown(found).splitlines()[:2] == [
                f"{path}.env[NVIDIA_VISIBLE_DEVICES] {value}",
                f"{path}.resources.limits {gpus} GPUs",
            ]
            assert ("status.allocatable[nvidia.com/gpu] 8" in shown(found)) is (gpus == 0)

    @pytest.mark.parametrize(
        ("owner", "gpus", "fails", "severity"),
        [
            ("DaemonSet/gpu-exporter", 0, False, "info"),
            ("DaemonSet/gpu-exporter", 1, False, "warning"),
            ("DaemonSet/gpu-exporter", 0, True, "warning"),
            ("ReplicaSet/notebook-6d5f", 0, False, "warning"),
        ],
    )
    def test_exporter_of_each_node(self, owner: str, gpus: int, fails: bool, severity: str) -> None:
        pod = self.pod("all", gpus, fails)
        kind, _, name = owner.partition("/")
        pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
        assert told(finding_of(ask(pod, k8s.node()), self.NAME))[0] == severity

    def test_without_the_variable(self) -> None:
        assert self.NAME not in names(ask(running(), k8s.node()))

    def test_unknown_node(self) -> None:
        report = ask(self.pod("all", 8))
        assert told(finding_of(report, self.NAME))[0] == "warning"


RDMA_NODE = k8s.node(allocatable={GPU: "8", "rdma/hca": "63"})
JOB = {"jobset.sigs.k8s.io/jobset-name": "train"}
ON_SOCKETS = (
    "train-0:9:9 [0] NCCL INFO NET/IB : No device found.\n"
    "train-0:9:9 [0] NCCL INFO Using network Socket\n"
)
ON_IB = "train-0:9:9 [0] NCCL INFO Using network IB\n"


class TestRdmaNotRequested:
    NAME = "rdma-not-requested"

    def pods(self, **more: Any) -> list[Object]:
        return [
            running("train-0", 8, meta={"labels": JOB}, **more),
            running("train-1", 8, meta={"labels": JOB}),
        ]

    def test_on_sockets(self) -> None:
        report = ask(*self.pods(), RDMA_NODE, logs={MAIN: ON_SOCKETS})
        found = finding_of(report, "rdma-not-requested")
        assert told(found) == ("warning", "certain", "Pod/team/train-0")
        assert self.NAME in report.roots
        lines = shown(found).splitlines()
        assert "Pod/team/train-0 spec.containers[*].resources no rdma/hca" in lines
        assert "Node/gpu-1 status.allocatable[rdma/hca] 63 of capacity 63" in lines
        assert "Pod/team/train-1 spec.nodeName gpu-1" in lines
        assert any("NET/IB : No device found" in line for line in lines)
        assert "gpu-1 offers rdma/hca, and no container of the pod asks for it" in found.detail
        assert found.fix == "Add rdma/hca: 1 to resources.limits (and requests) of the container."

    def test_nothing_shows_harm(self) -> None:
        found = finding_of(ask(*self.pods(), RDMA_NODE), self.NAME)
        assert told(found) == ("info", "possible", "Pod/team/train-0")
        assert "Nothing read so far shows which network NCCL uses" in found.detail

    @pytest.mark.parametrize(
        ("more", "node", "logs"),
        [
            ({}, RDMA_NODE, {MAIN: ON_IB}),
            ({}, k8s.node(), {}),
            ({}, k8s.node(allocatable={GPU: "8", "rdma/hca": "0"}), {}),
            ({"container": {"limits": {"rdma/hca": "1"}}}, RDMA_NODE, {}),
            ({"container": {"securityContext": {"privileged": True}}}, RDMA_NODE, {}),
            (
                {"spec": {"volumes": [{"name": "i", "hostPath": {"path": "/dev/infiniband/"}}]}},
                RDMA_NODE,
                {},
            ),
            (
                {"spec": {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}},
                RDMA_NODE,
                {},
            ),
        ],
        ids=["on-ib", "none", "zero", "asked", "privileged", "host-path", "claim"],
    )
    def test_near_misses(self, more: Object, node: Object, logs: dict[str, str]) -> None:
        assert self.NAME not in names(ask(*self.pods(**more), node, logs=logs))

    def test_one_pod_alone(self) -> None:
        assert self.NAME not in names(ask(running(gpus=8), RDMA_NODE))
        report = ask(running(gpus=8), RDMA_NODE, logs={MAIN: ON_SOCKETS})
        assert told(finding_of(report, self.NAME))[0] == "warning"

    def test_peer_without_gpus_is_no_peer(self) -> None:
        pods = [running("train-0", 8, meta={"labels": JOB}), running("x", 0, meta={"labels": JOB})]
        assert self.NAME not in names(ask(*pods, RDMA_NODE))

    def test_pod_without_gpus_and_ended_pod(self) -> None:
        assert self.NAME not in names(ask(running(gpus=0), RDMA_NODE, logs={MAIN: ON_SOCKETS}))
        pod = running(gpus=8)
        pod["status"]["phase"] = "Succeeded"
        assert self.NAME not in names(ask(pod, RDMA_NODE, logs={MAIN: ON_SOCKETS}))

    def test_the_pods_own_network_counts_not_its_peers(self) -> None:
        peer = ON_IB.replace("train-0", "train-1")
        logs = {MAIN: ON_SOCKETS, "team/train-1/main": peer}
        assert told(finding_of(ask(*self.pods(), RDMA_NODE, logs=logs), self.NAME))[0] == "warning"
        swapped = {MAIN: ON_IB, "team/train-1/main": ON_SOCKETS.replace("train-0", "train-1")}
        assert self.NAME not in names(ask(*self.pods(), RDMA_NODE, logs=swapped))

    @pytest.mark.parametrize(("log", "expected"), [(ON_SOCKETS, True), (ON_IB, False)])
    def test_unknown_node(self, log: str, expected: bool) -> None:
        report = ask(*self.pods(), logs={MAIN: log})
        assert self.NAME not in names(report)
        assert ("Node/gpu-1" in [unknown.what for unknown in report.unknown]) is expected


RDMA = {"rdma/hca": "1"}
MEMLOCK_LINE = "ibv_reg_mr failed with error Cannot allocate memory"
LOCK = {"capabilities": {"add": ["IPC_LOCK"]}}


class TestMemlock:
    NAMES = frozenset({"missing-ipc-lock", "memlock-limit-nonroot"})

    @pytest.mark.parametrize(
        ("security", "spec", "name"),
        [
            ({}, {}, "missing-ipc-lock"),
            (LOCK, {}, None),
            ({"capabilities": {"add": ["CAP_IPC_LOCK"]}}, {}, None),
            ({"capabilities": {"add": ["ALL"]}}, {}, None),
            ({"capabilities": {"add": ["SYS_PTRACE"]}}, {}, "missing-ipc-lock"),
            ({"privileged": True}, {}, None),
            (LOCK | {"runAsUser": 1000}, {}, "memlock-limit-nonroot"),
            (LOCK | {"runAsUser": 0}, {"securityContext": {"runAsUser": 1000}}, None),
            (LOCK, {"securityContext": {"runAsUser": 1000}}, "memlock-limit-nonroot"),
            (LOCK | {"runAsNonRoot": True}, {}, "memlock-limit-nonroot"),
            (LOCK, {"securityContext": {"runAsNonRoot": True}}, "memlock-limit-nonroot"),
            (LOCK, {"hostUsers": False}, "memlock-limit-nonroot"),
            ({}, {"hostUsers": False}, "memlock-limit-nonroot"),
        ],
    )
    @pytest.mark.parametrize("harmed", [True, False], ids=["harm", "no-harm"])
    def test_contexts(self, security: Object, spec: Object, name: str | None, harmed: bool) -> None:
        pod = running(gpus=1, container={"limits": RDMA, "securityContext": security}, spec=spec)
        report = ask(pod, RDMA_NODE, logs={MAIN: MEMLOCK_LINE} if harmed else {})
        assert names(report) & self.NAMES == ({name} if name else set())
        if name:
            found = finding_of(report, name)
            expected = ("error", "likely") if harmed else ("info", "possible")
            assert told(found) == (*expected, "Pod/team/train-0")
            assert (f"log {MAIN}:1 {MEMLOCK_LINE}" in shown(found)) is harmed

    def test_words(self) -> None:
        pod = running(container={"limits": RDMA, "securityContext": LOCK | {"runAsUser": 1000}})
        found = finding_of(ask(pod, RDMA_NODE), "memlock-limit-nonroot")
        assert "runs as a user other than root (it has the capability, which does not" in (
            found.detail
        )
        where = "Pod/team/train-0 spec.containers[main].securityContext"
        assert shown(found).splitlines() == [
            f"{where}.capabilities.add IPC_LOCK",
            f"{where}.runAsUser 1000",
        ]
        bare = finding_of(ask(running(container={"limits": RDMA}), RDMA_NODE), "missing-ipc-lock")
        assert "runs as root without capability IPC_LOCK" in bare.detail
        assert f"{where}.capabilities.add none added" in shown(bare)
        assert f"{where}.runAsUser None" in shown(bare)

    def test_second_container_without_the_capability(self) -> None:
        containers = [
            k8s.container(name, {GPU: "1"} | RDMA, securityContext=security)
            for name, security in (("right", LOCK), ("wrong", {}))
        ]
        pod = k8s.pod(containers=containers, node="gpu-1", phase="Running")
        found = finding_of(ask(pod, RDMA_NODE), "missing-ipc-lock")
        assert "Container wrong uses RDMA" in found.detail

    def test_pod_without_rdma(self) -> None:
        assert names(ask(running(), k8s.node())) & self.NAMES == set()


class TestInterface:
    NAME = "nccl-env-names-missing-device"
    STATUS = "k8s.v1.cni.cncf.io/network-status"

    def pod(
        self, value: str, variable: str = "NCCL_SOCKET_IFNAME", net: str = "", **more: Any
    ) -> Object:
        annotations = {self.STATUS: net} if net else {}
        annotations |= more.pop("annotations", {})
        env = [{"name": variable, "value": value}]
        return running(container={"env": env}, meta={"annotations": annotations}, **more)

    @pytest.mark.parametrize(
        ("value", "missing"),
        [
            ("eth0", False),
            ("eth", False),
            ("eth1", True),
            ("=eth", True),
            ("=eth0", False),
            ("=eth0:1", False),
            ("lo", False),
            ("ib0,eth0", False),
            ("ib0, ib1", True),
            ("^eth", True),
            ("^docker,lo", False),
            ("^=eth0", True),
            ("^=eth", False),
            ("", False),
        ],
    )
    def test_the_rule_of_nccl(self, value: str, missing: bool) -> None:
        report = ask(self.pod(value), k8s.node())
        assert (self.NAME in names(report)) is missing
        if missing:
            found = finding_of(report, "nccl-env-names-missing-device")
            assert told(found) == ("info", "likely", "Pod/team/train-0")

    def test_words(self) -> None:
        net = '[{"name": "cni", "interface": "eth0"}, {"name": "team/roce", "interface": "net1"}]'
        report = ask(self.pod("bond0", net=net), k8s.node())
        found = finding_of(report, self.NAME)
        assert "matches none of the pod's interfaces (eth0, lo, net1)." in found.detail
        assert shown(found).splitlines() == [
            "Pod/team/train-0 spec.containers[main].env[NCCL_SOCKET_IFNAME] bond0",
            f"Pod/team/train-0 metadata.annotations[{self.STATUS}] eth0, net1",
        ]
        assert self.NAME not in names(ask(self.pod("net1", net=net), k8s.node()))
        alone = finding_of(ask(self.pod("bond0"), k8s.node()), self.NAME)
        assert f"annotations[{self.STATUS}] not set: eth0 alone" in shown(alone)

    @pytest.mark.parametrize(
        ("variable", "expected"),
        [("GLOO_SOCKET_IFNAME", True), ("UCX_NET_DEVICES", True), ("NCCL_IB_HCA", False)],
    )
    def test_variables(self, variable: str, expected: bool) -> None:
        assert (self.NAME in names(ask(self.pod("bond0", variable), k8s.node()))) is expected

    def test_harm(self) -> None:
        pod = self.pod("bond0")
        pod["status"] |= {
            "conditions": [k8s.condition("Ready", "False")],
            "containerStatuses": [k8s.container_status(**k8s.crashing())],
        }
        report = ask(pod, k8s.node())
        assert told(finding_of(report, self.NAME))[:2] == ("error", "likely")
        line = "train-0:9:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
        proved = ask(pod, k8s.node(), logs={MAIN: line})
        assert told(finding_of(proved, self.NAME))[:2] == ("error", "certain")

    def test_near_misses(self) -> None:
        assert self.NAME not in names(ask(self.pod("bond0", spec={"hostNetwork": True})))
        wanted = {"k8s.v1.cni.cncf.io/networks": "team/roce"}
        assert self.NAME not in names(ask(self.pod("net1", annotations=wanted), k8s.node()))


PEER_LINE = "RuntimeError: [1] Connection closed by peer"


class TestPeerFailedFirst:
    NAME = "peer-pod-failed-first"

    def pod(
        self, name: str, finished: str | None, reason: str = "OOMKilled", **more: Any
    ) -> Object:
        if finished is None:
            return running(name, meta={"labels": JOB})
        end = {"code": 137, "reason": reason, "finishedAt": f"2026-11-20T{finished}Z"} | more
        return crashed(name, end=end, meta={"labels": JOB})

    def test_words(self) -> None:
        own = self.pod("train-0", "08:10:05", "Error", code=1)
        objects = [own, self.pod("train-1", "08:10:00"), self.pod("train-2", "08:10:03")]
        report = ask(*objects, k8s.node(), logs={MAIN: PEER_LINE})
        found = finding_of(report, "peer-pod-failed-first")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            "Pod/team/train-1 status.containerStatuses[main] OOMKilled, exit code 137, "
            "2026-11-20T08:10:00+00:00",
            f"log {MAIN}:1 {PEER_LINE}",
            "Pod/team/train-0 status.containerStatuses[main].lastState.terminated exitCode 1, "
            "reason Error, 7 restarts",
        ]
        assert "gpudoctor check --pod team/train-1" in found.detail

    @pytest.mark.parametrize(
        ("own", "peer", "expected"),
        [
            ("08:10:01", "08:10:00", True),
            ("08:10:00", "08:10:00", False),
            ("08:10:00", "08:10:01", False),
            ("08:10:00", None, False),
        ],
    )
    def test_order(self, own: str, peer: str | None, expected: bool) -> None:
        report = ask(self.pod("train-0", own), self.pod("train-1", peer), k8s.node())
        assert (self.NAME in names(report)) is expected

    def test_pod_that_hangs_and_says_so(self) -> None:
        objects = [self.pod("train-0", None), self.pod("train-1", "08:10:00")]
        assert self.NAME not in names(ask(*objects, k8s.node()))
        report = ask(*objects, k8s.node(), logs={MAIN: PEER_LINE})
        assert told(finding_of(report, self.NAME))[0] == "error"

    def test_peers_that_do_not_count(self) -> None:
        own = self.pod("train-0", "08:10:05")
        well = self.pod("train-1", "08:10:00", "Completed", code=0)
        assert self.NAME not in names(ask(own, well, k8s.node()))
        stranger = self.pod("train-1", "08:10:00")
        stranger["metadata"]["labels"] = {}
        assert self.NAME not in names(ask(own, stranger, k8s.node()))
        timeless = self.pod("train-1", "08:10:00", finishedAt=None)
        assert self.NAME not in names(ask(own, timeless, k8s.node()))


class TestUnexplained:
    def test_application_error(self) -> None:
        line = "ValueError: batch size must be positive"
        pod = crashed(end={"message": "see log"})
        report = ask(pod, k8s.node(), logs={MAIN: f"Traceback\n{line}\n"})
        found = finding_of(report, "application-error")
        assert told(found) == ("error", "likely", "Pod/team/train-0")
        assert report.roots == ("application-error",)
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.containerStatuses[main].lastState.terminated exitCode 1, "
            "reason Error, 7 restarts",
            f"log {MAIN}:2 {line}",
        ]
        assert found.evidence[0].note == "see log"
        assert "Its log was not read" not in found.detail
        assert "ended with exit code 1;" in found.detail
        assert line in found.title

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (139, "with a segmentation fault (SIGSEGV)"),
            (132, "with an instruction that this CPU does not have (SIGILL)"),
            (134, "with abort (SIGABRT)"),
            (2, "with exit code 2"),
        ],
    )
    def test_without_a_log(self, code: int, words: str) -> None:
        found = finding_of(ask(crashed(end={"code": code}), k8s.node()), "application-error")
        assert told(found)[1] == "possible"
        assert words in found.detail
        assert "Its log was not read." in found.detail

    @pytest.mark.parametrize(
        "end", [{"code": 128}, {"reason": "ContainerStatusUnknown", "code": 137}]
    )
    def test_ends_that_are_not_the_programs(self, end: Object) -> None:
        report = ask(crashed(end=end), k8s.node())
        assert report.roots == ("insufficient-evidence",)

    @pytest.mark.parametrize(("code", "signal"), [(137, "SIGKILL"), (143, "SIGTERM")])
    def test_killed_from_outside(self, code: int, signal: str) -> None:
        pod = crashed(end={"code": code})
        report = ask(pod, k8s.node())
        found = finding_of(report, "insufficient-evidence")
        assert report.roots == ("insufficient-evidence",)
        assert f"Somebody sent {signal} to container main (exit code {code}" in found.detail
        assert f"exitCode {code}, reason Error, 7 restarts" in shown(found)
        noted = crashed(end={"code": code, "message": "said"})
        assert finding_of(ask(noted, k8s.node()), "insufficient-evidence").evidence[0].note == (
            "said"
        )
        own = ask(pod, k8s.node(), logs={MAIN: "ValueError: bad\n"})
        assert own.roots == ("application-error",)

    def test_insufficient_evidence(self) -> None:
        pod = k8s.pod(node="gpu-1", meta={"creationTimestamp": "2026-11-20T05:00:00Z"})
        event = k8s.event(pod, "Scheduled", "assigned", type="Normal", seen=k8s.NOW)
        report = ask(pod, k8s.node(), event)
        found = finding_of(report, "insufficient-evidence")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert shown(found).splitlines() == [
            "Pod/team/train-0 status.phase Pending on gpu-1",
            "Event/team/train-0 Scheduled assigned",
        ]
        assert "it has not started on gpu-1" in found.detail

    def test_scheduler_that_says_nothing_known(self) -> None:
        pod = k8s.pod(limits={}, conditions=k8s.pending("no luck today"))
        found = finding_of(ask(pod, k8s.node()), "insufficient-evidence")
        assert "no luck today" in shown(found)

    def test_well_pods_have_neither(self) -> None:
        report = ask(running(), k8s.node())
        assert names(report) & {"application-error", "insufficient-evidence"} == set()
        assert report.verdict is Verdict.HEALTHY
