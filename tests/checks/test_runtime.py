"""Image, runtime class, handler, sandbox and networks: from placement to the first instruction."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.kubernetes import refusals
from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.facts.kubernetes.situation import RefusedPod
from gpudoctor.report import Report, Subject
from gpudoctor_checks import runtime
from tests import kubernetes_objects as k8s
from tests.kubernetes_objects import Object, ask, finding_of, loud, shown, told

GPU = "nvidia.com/gpu"


def starting(**more: Any) -> Object:
    """A pod on its node whose container waits to be made."""
    status = k8s.container_status(state={"waiting": {"reason": "ContainerCreating"}})
    return k8s.pod(**({"node": "gpu-1", "statuses": [status]} | more))


def sandbox(pod: Object, message: str, reason: str = "FailedCreatePodSandBox") -> Object:
    return k8s.event(pod, reason, message, component="kubelet", count=4)


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}


class TestImagePull:
    NAME = "image-pull-failing"

    def ask(self, message: str, reason: str = "ImagePullBackOff", *events: Object) -> Report:
        waiting = {"waiting": {"reason": reason, "message": message}}
        pod = starting(statuses=[k8s.container_status(state=waiting)])
        return ask(pod, k8s.node(), *events)

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            ("no match for platform in manifest", "no image for this CPU architecture"),
            ("no matching manifest for linux/arm64", "no image for this CPU architecture"),
            ("failed to authorize: 401 Unauthorized", "access to it is refused"),
            ("pull access denied, repository does not exist", "access to it is refused"),
            ("manifest unknown: manifest unknown", "there is no such image or tag"),
            ("example/train:1: not found", "there is no such image or tag"),
            ("toomanyrequests: limit", "the registry's rate limit is reached"),
            ("x509: signed by unknown authority", "the registry's certificate is not trusted"),
            ("write layer: no space left on device", "the node's disk is full"),
            ("dial tcp: lookup r: no such host", "the registry cannot be reached"),
            ("dial tcp 10.0.0.1:443: i/o timeout", "the registry cannot be reached"),
            ("couldn't parse image reference", "its name is not valid"),
            ("Back-off pulling image", "ImagePullBackOff"),
        ],
    )
    def test_reasons(self, message: str, reason: str) -> None:
        report = self.ask(message)
        found = finding_of(report, "image-pull-failing")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert found.title == f"Image example/train:1 of team/train-0 cannot be pulled: {reason}"
        assert shown(found) == ("Pod/team/train-0 status.containerStatuses[main] ImagePullBackOff")
        assert found.evidence[0].note == message

    def test_the_event_says_more(self) -> None:
        pod = starting()
        said = 'Failed to pull image "example/train:1": 429 toomanyrequests'
        other = 'Failed to pull image "example/sidecar:1": x509: bad certificate'
        events = [k8s.event(pod, "Failed", text, component="kubelet") for text in (said, other)]
        found = finding_of(self.ask("Back-off", "ErrImagePull", *events), self.NAME)
        assert found.title.endswith("the registry's rate limit is reached")
        assert shown(found).splitlines()[1:] == [f"Event/team/train-0 Failed {said}"]

    def test_newest_of_its_events_is_shown(self) -> None:
        pod = starting()
        said = [f'Failed to pull image "example/train:1": {why}' for why in ("EOF", "not found")]
        events = [
            k8s.event(pod, "Failed", text, component="kubelet", seen=f"2026-11-20T08:2{n}:00Z")
            for n, text in enumerate(said)
        ]
        found = finding_of(self.ask("Back-off", "ErrImagePull", *events), self.NAME)
        assert shown(found).splitlines()[1:] == [f"Event/team/train-0 Failed {said[1]}"]

    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            ("ErrImagePull", True),
            ("ImagePullBackOff", True),
            ("InvalidImageName", True),
            ("ErrImageNeverPull", True),
            ("ContainerCreating", False),
            ("CreateContainerError", False),
            ("CrashLoopBackOff", False),
        ],
    )
    def test_states(self, reason: str, expected: bool) -> None:
        assert (self.NAME in loud(self.ask("x", reason))) is expected

    def test_first_container_that_waits_is_named(self) -> None:
        statuses = [
            k8s.container_status("a", state={"running": {}}, ready=True),
            k8s.container_status("b", state={"waiting": {"reason": "ErrImagePull"}}),
        ]
        containers = [k8s.container(name, image=f"example/{name}") for name in ("a", "b")]
        report = ask(starting(containers=containers, statuses=statuses), k8s.node())
        assert "Image example/b of" in finding_of(report, self.NAME).title


class TestRuntimeHandler:
    NAME = "runtime-handler-missing"
    MESSAGE = (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox "
        'runtime: no runtime for "nvidia" is configured'
    )

    def test_words(self) -> None:
        pod = starting(spec={"runtimeClassName": "nvidia-gpu"})
        report = ask(pod, k8s.node(), sandbox(pod, self.MESSAGE))
        found = finding_of(report, "runtime-handler-missing")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == (self.NAME,)
        assert shown(found).splitlines() == [
            f"Event/team/train-0 FailedCreatePodSandBox (x4) {self.MESSAGE}",
            "Pod/team/train-0 spec.runtimeClassName nvidia-gpu",
        ]
        assert "of gpu-1 has no handler 'nvidia', which the pod's RuntimeClass nvidia-gpu" in (
            found.detail
        )
        assert "cni-failure" not in names(report)

    def test_without_a_class(self) -> None:
        pod = starting()
        found = finding_of(ask(pod, sandbox(pod, self.MESSAGE)), self.NAME)
        assert "spec.runtimeClassName not set" in shown(found)

    @pytest.mark.parametrize("state", [{"running": {}}, {"terminated": {"exitCode": 0}}])
    def test_overcome_once_a_container_has_started(self, state: Object) -> None:
        pod = starting(statuses=[k8s.container_status(state=state)], phase="Running")
        assert self.NAME not in names(ask(pod, k8s.node(), sandbox(pod, self.MESSAGE)))

    def test_other_words(self) -> None:
        pod = starting()
        report = ask(pod, k8s.node(), sandbox(pod, "failed to reserve sandbox name"))
        assert names(report) & {self.NAME, "cni-failure"} == set()


class TestRuntimeClass:
    NAME = "runtimeclass-missing"
    MESSAGE = 'pods "train-0" is forbidden: pod rejected: RuntimeClass "nvidia" not found'

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (MESSAGE, True),
            ('pod rejected: RuntimeClass.node.k8s.io "nvidia" not found', True),
            ('failed to get RuntimeClass "nvidia" object not found', True),
            ('failed to get runtimeclass "nvidia": not found', False),
            ('runtimeclass.node.k8s.io "nvidia" not found', True),
            ('configmap "nvidia" not found', False),
        ],
    )
    def test_event_of_the_controller(self, message: str, expected: bool) -> None:
        pod = starting(
            meta={"ownerReferences": [k8s.owner("ReplicaSet", "train")]},
            spec={"runtimeClassName": "nvidia"},
        )
        about = k8s.custom("apps/v1", "ReplicaSet", "train", "team")
        report = ask(pod, k8s.node(), k8s.event(about, "FailedCreate", message))
        assert (self.NAME in loud(report)) is expected
        if expected:
            found = finding_of(report, "runtimeclass-missing")
            assert told(found) == ("error", "certain", "Pod/team/train-0")
            assert shown(found).splitlines() == [
                f"Event/team/train FailedCreate (x3) {message}",
                "Pod/team/train-0 spec.runtimeClassName nvidia",
            ]
            assert found.title == "RuntimeClass nvidia is missing for team/train-0"

    def test_pod_that_was_never_made(self) -> None:
        about = Subject("ReplicaSet", "train", "team")
        meta = k8s.cluster(k8s.event(k8s.pod(), "FailedCreate", "x")).events[0].meta
        events = [
            Event(meta=meta, about=about, reason="FailedCreate", message=text)
            for text in (self.MESSAGE.replace("nvidia", "older"), self.MESSAGE, "quota")
        ]
        refused = RefusedPod(Subject("Pod", "train-0", "team"), tuple(refusals.of_events(events)))
        drafts = list(runtime.runtime_class_of_refused(refused))
        assert [draft.values for draft in drafts] == [  # type: ignore[union-attr]
            {"class": "nvidia", "pod": "Pod/team/train-0"}
        ]
        other = RefusedPod(about, refused.refusals[2:])
        assert list(runtime.runtime_class_of_refused(other)) == []

    PLUGIN_LINE = "could not load NVML library: libnvidia-ml.so.1: cannot open shared object file"

    @pytest.mark.parametrize(
        ("line", "runtime_class", "expected"),
        [
            (PLUGIN_LINE, None, True),
            ("Incompatible platform detected", None, True),
            ("Incompatible strategy detected auto", None, True),
            (PLUGIN_LINE, "nvidia", False),
            ("has no MIG devices configured", None, False),
            ("Failed to initialize NVML: ERROR_UNKNOWN", None, False),
        ],
    )
    def test_device_plugin_without_class(
        self, line: str, runtime_class: str | None, expected: bool
    ) -> None:
        spec = {"runtimeClassName": runtime_class} if runtime_class else {}
        plugin = k8s.daemon_pod(spec=spec)
        pod = k8s.pod(conditions=k8s.pending("0/1 nodes are available: 1 Insufficient x."))
        node = k8s.node(allocatable={}, labels={"nvidia.com/gpu.present": "true"})
        key = "gpu-operator/nvidia-device-plugin-gpu-1"
        logs = {f"{key}/nvidia-device-plugin": f"{line}\n"}
        report = ask(pod, node, k8s.daemon(), plugin, logs=logs)
        assert (self.NAME in loud(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert told(found) == ("error", "likely", f"Pod/{key}")
            assert shown(found).splitlines()[-1] == f"Pod/{key} spec.runtimeClassName not set"
            assert found.evidence[0].value == line
            running = k8s.pod(node="gpu-1", phase="Running")
            assert self.NAME not in loud(ask(running, node, k8s.daemon(), plugin, logs=logs))

    @pytest.mark.parametrize("with_class", ["gpu-1", "gpu-2"])
    def test_the_plugin_that_complains_is_the_one_without_class(self, with_class: str) -> None:
        plugins = [
            k8s.daemon_pod(
                on=node, spec={"runtimeClassName": "nvidia"} if node == with_class else {}
            )
            for node in ("gpu-1", "gpu-2")
        ]
        pod = k8s.pod(conditions=k8s.pending("0/2 nodes are available: 2 Insufficient x."))
        key = f"gpu-operator/nvidia-device-plugin-{with_class}/nvidia-device-plugin"
        report = ask(pod, k8s.daemon(), *plugins, logs={key: self.PLUGIN_LINE})
        assert self.NAME not in names(report)

    @pytest.mark.parametrize("words", ["driver not loaded", "Driver/library version mismatch"])
    def test_library_that_was_found_needs_no_class(self, words: str) -> None:
        pod = k8s.pod(conditions=k8s.pending("0/1 nodes are available: 1 Insufficient x."))
        key = "gpu-operator/nvidia-device-plugin-gpu-1/nvidia-device-plugin"
        log = f"Incompatible platform detected\nnvml error: {words}\n"
        report = ask(pod, k8s.daemon(), k8s.daemon_pod(), logs={key: log})
        assert self.NAME not in names(report)

    @pytest.mark.parametrize(
        ("limits", "runtime_class", "expected"),
        [
            ({GPU: "1"}, None, True),
            ({GPU: "1"}, "nvidia", False),
            ({"cpu": "1"}, None, False),
        ],
    )
    def test_pod_without_class(
        self, limits: Object, runtime_class: str | None, expected: bool
    ) -> None:
        log = "RuntimeError: Found no NVIDIA driver on your system. Please check\n"
        pod = k8s.pod(
            limits=limits,
            node="gpu-1",
            phase="Running",
            statuses=[k8s.container_status(**k8s.crashing())],
            spec={"runtimeClassName": runtime_class} if runtime_class else {},
        )
        report = ask(pod, k8s.node(), logs={"team/train-0/main": log})
        assert (self.NAME in loud(report)) is expected
        if expected:
            found = finding_of(report, self.NAME)
            assert told(found)[1:] == ("likely", "Pod/team/train-0")
            assert "has no NVIDIA libraries" in found.detail


ANNOTATION = "k8s.v1.cni.cncf.io/networks"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


def attached(wanted: str = "team/roce", limits: Object | None = None, **more: Any) -> Object:
    return starting(limits=limits, meta={"annotations": {ANNOTATION: wanted}}, **more)


def definition(
    resource: str | None = "example.com/roce", name: str = "roce", namespace: str = "team"
) -> Object:
    annotations = {RESOURCE: resource} if resource else {}
    return k8s.custom(
        "k8s.cni.cncf.io/v1",
        "NetworkAttachmentDefinition",
        name,
        namespace,
        annotations=annotations,
    )


class TestNetworks:
    @pytest.mark.parametrize(
        ("message", "shown_name"),
        [
            (
                "cannot find a network-attachment-definition (roce) in namespace (team): "
                'network-attachment-definitions.k8s.cni.cncf.io "roce" not found',
                "roce",
            ),
            ('network-attachment-definition "team/roce" not found', "team/roce"),
            ("cannot find get a network-attachment-definition", "team/roce"),
        ],
    )
    def test_network_that_does_not_exist(self, message: str, shown_name: str) -> None:
        pod = attached()
        report = ask(pod, k8s.node(), sandbox(pod, f"plugin type=multus failed: {message}"))
        found = finding_of(report, "network-attachment-missing")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("network-attachment-missing",)
        assert f"names network {shown_name}, and there is no NetworkAttachmentDefinition" in (
            found.detail
        )
        assert "One of that name" not in found.detail
        assert f"metadata.annotations[{ANNOTATION}] team/roce" in shown(found)

    def test_network_of_that_name_elsewhere(self) -> None:
        pod = attached("roce")
        other = definition(namespace="net")
        message = 'network-attachment-definitions.k8s.cni.cncf.io "roce" not found'
        found = finding_of(ask(pod, other, sandbox(pod, message)), "network-attachment-missing")
        assert found.detail.endswith("One of that name is net/roce.")

    def test_the_annotation_is_gone(self) -> None:
        pod = starting()
        message = "cannot find get a network-attachment-definition"
        found = finding_of(ask(pod, sandbox(pod, message)), "network-attachment-missing")
        assert "names network a network, and there is no" in found.detail
        assert "networks] not set" in shown(found)

    DEVICE = (
        "[team/train-0/uid-1:roce]: error adding container to network: SRIOV-CNI failed to load "
        "netconf: VF pci addr is required"
    )

    def test_network_without_its_device(self) -> None:
        pod = attached("other/plain, team/roce")
        report = ask(
            pod,
            k8s.node(),
            definition(),
            definition("example.com/b", "b"),
            sandbox(pod, self.DEVICE),
        )
        found = finding_of(report, "multus-attachment-without-device")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("multus-attachment-without-device",)
        assert shown(found).splitlines() == [
            f"Event/team/train-0 FailedCreatePodSandBox (x4) {self.DEVICE}",
            f"Pod/team/train-0 metadata.annotations[{ANNOTATION}] other/plain, team/roce",
            "NetworkAttachmentDefinition/team/roce "
            f"metadata.annotations[{RESOURCE}] example.com/roce",
            "Pod/team/train-0 spec.containers[*].resources no example.com/roce",
        ]
        assert found.title == (
            "team/train-0 attaches team/roce, but does not ask for its device example.com/roce"
        )

    @pytest.mark.parametrize(
        "words",
        [
            'specify either "device", "hwaddr", "kernelpath" or "pciBusID"',
            "pciaddress required",
            "failed to find the deviceID",
            "no device ID given",
        ],
    )
    def test_words_of_the_plugins(self, words: str) -> None:
        pod = attached()
        report = ask(pod, k8s.node(), definition(), sandbox(pod, f"[team/x/1:roce]: {words}"))
        assert report.roots == ("multus-attachment-without-device",)

    def test_two_networks_the_one_that_failed_is_named(self) -> None:
        pod = attached("team/first, team/roce")
        objects = [definition("example.com/first", "first"), definition()]
        report = ask(pod, k8s.node(), *objects, sandbox(pod, self.DEVICE))
        assert "attaches team/roce" in finding_of(report, "multus-attachment-without-device").title

    def test_definition_that_the_input_lacks(self) -> None:
        pod = attached()
        report = ask(pod, k8s.node(), sandbox(pod, self.DEVICE), complete=False)
        found = finding_of(report, "multus-attachment-without-device")
        assert told(found) == ("error", "likely", "Pod/team/train-0")
        assert "does not ask for its device resource" in found.detail

    def test_no_harm_yet_is_information(self) -> None:
        report = ask(attached(), k8s.node(), definition())
        found = finding_of(report, "multus-attachment-without-device")
        assert told(found) == ("info", "certain", "Pod/team/train-0")
        assert report.roots == ()

    @pytest.mark.parametrize(
        ("limits", "objects"),
        [
            ({"example.com/roce": "1"}, [definition()]),
            (None, [definition(None)]),
            (None, [definition(name="other")]),
            (None, [definition(namespace="aaa"), definition(namespace="zzz")]),
            (None, []),
        ],
        ids=["asked-for", "needs-none", "other-name", "other-namespace", "unknown-network"],
    )
    def test_near_misses(self, limits: Object | None, objects: list[Object]) -> None:
        report = ask(attached(limits=limits), k8s.node(), *objects)
        assert "multus-attachment-without-device" not in names(report)

    def test_network_plugin(self) -> None:
        pod = starting()
        message = (
            'failed to setup network for sandbox "1a": plugin type="calico" failed (add): '
            "connection is unauthorized"
        )
        report = ask(pod, k8s.node(), sandbox(pod, message))
        found = finding_of(report, "cni-failure")
        assert told(found) == ("error", "certain", "Pod/team/train-0")
        assert report.roots == ("cni-failure",)
        assert found.title.endswith("cannot be set up: calico: connection is unauthorized")
        assert shown(found) == f"Event/team/train-0 FailedCreatePodSandBox (x4) {message}"

    def test_long_and_bare_messages(self) -> None:
        pod = starting()
        found = finding_of(ask(pod, sandbox(pod, "CNI: " + "x" * 200)), "cni-failure")
        assert found.title.endswith(": " + "x" * 80)
        bare = finding_of(ask(pod, sandbox(pod, "cni broke")), "cni-failure")
        assert bare.title.endswith(": cni broke")

    def test_overcome(self) -> None:
        pod = starting(
            statuses=[k8s.container_status(ready=True, state={"running": {}})], phase="Running"
        )
        assert "cni-failure" not in names(ask(pod, k8s.node(), sandbox(pod, "CNI failed")))

    def test_other_events_are_not_about_the_sandbox(self) -> None:
        pod = starting()
        event = sandbox(pod, "CNI failed", "FailedMount")
        assert "cni-failure" not in names(ask(pod, k8s.node(), event))
        event = sandbox(pod, "CNI failed", "Failed")
        assert "cni-failure" not in names(ask(pod, k8s.node(), event))
