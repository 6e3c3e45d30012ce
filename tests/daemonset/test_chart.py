"""The chart, by helm itself: it is of the API's schema, and asks for no more than it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from daemonset import render
from gpudoctor import __version__
from gpudoctor.publish import metrics, names, nfd
from tests import helm

JSON = dict[str, Any]
LINES = ("1.34", "1.35", "1.36", "1.37")
EVERYTHING = (
    "--set=policies.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true",
    "--set=controller.taint=true,agent.appArmorProfile=Unconfined,agent.seLinuxOptions.type=spc_t",
    "--set=image.pullSecrets[0].name=registry,nvml.mode=runtimeClass",
)
VARIANTS = {
    "default": (),
    "everything": EVERYTHING,
    "cdi": ("--set=nvml.mode=cdi",),
    "nfd": ("--set=agent.nfd=true",),
    "nothing": (
        "--set=probes.containers=false,probes.kernelLog=false,probes.kubelet=false",
        "--set=networkPolicy.enabled=false,rbac.aggregateToView=false",
    ),
}
_OF_OTHERS = ("monitoring.coreos.com/",)


def pods(objects: list[JSON]) -> dict[str, JSON]:
    """Name of each workload -> spec of its pods."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("DaemonSet", "Deployment", "Job")
    }


def test_helm_lint_has_nothing_to_say() -> None:
    for options in VARIANTS.values():
        answer = helm.run("lint", "--strict", "--quiet", str(helm.CHART), *options)
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("line", LINES)
def test_is_rendered_for_each_line_and_the_same_for_all(line: str) -> None:
    assert helm.template(kubernetes=line) == helm.template()


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_is_of_the_schema(variant: str, line: str) -> None:
    objects = helm.template(*VARIANTS[variant])
    assert len(objects) > 15
    for one in objects:
        if not one["apiVersion"].startswith(_OF_OTHERS):
            kubernetes_validate.validate(one, line, strict=True)


def test_older_servers_are_refused() -> None:
    answer = helm.run("template", str(helm.CHART), "--kube-version", "1.33")
    assert answer.returncode
    assert ">=1.34.0" in answer.stderr


def test_the_version_is_the_programs() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_no_name_is_used_twice() -> None:
    keys = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in helm.template(*EVERYTHING)
    ]
    assert sorted(map(str, keys)) == sorted(map(str, set(keys)))


def test_the_plain_manifests_are_rendered_from_it() -> None:
    lying = {
        str(file.relative_to(render.MANIFESTS)): file.read_text(encoding="utf-8")
        for file in render.MANIFESTS.rglob("*.yaml")
    }
    assert lying == render.manifests(helm.program()), "run `make manifests`"


class TestValues:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ("agent.perod=30", "perod"),
            ("agent.period=1", "/agent/period"),
            ("agent.recursiveReadOnly=Disabled", "/agent/recursiveReadOnly"),
            ("agent.resources.limits.memory=lots", "/agent/resources/limits/memory"),
            ("agent.tolerations[0].operator=Exist", "/agent/tolerations/0/operator"),
            ("controller.brakeShare=0", "/controller/brakeShare"),
            ("controller.replicas=0", "/controller/replicas"),
            ("image.digest=sha256:12", "/image/digest"),
            ("image.repository=", "/image/repository"),
            ("kubelet.rootDir=var/lib", "/kubelet/rootDir"),
            ("nvml.mode=yes", "/nvml/mode"),
            ("networkPolicy.apiServerPorts[0]=0", "/networkPolicy/apiServerPorts/0"),
            ("serviceMonitor.interval=1", "/serviceMonitor/interval"),
            ("policies.enabled=maybe", "/policies/enabled"),
        ],
    )
    def test_wrong_ones_are_refused(self, wrong: str, said: str) -> None:
        answer = helm.run("template", str(helm.CHART), "--kube-version=1.37", f"--set={wrong}")
        assert answer.returncode
        assert said in answer.stderr

    def test_the_schema_knows_each_default_and_no_more(self) -> None:
        schema = json.loads((helm.CHART / "values.schema.json").read_text())
        values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(values, schema)
        assert set(schema["properties"]) - {"global"} == set(values)
        for name, part in values.items():
            assert set(schema["properties"][name]["properties"]) == set(part), name

    def test_each_is_used(self) -> None:
        values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
        used = "".join(file.read_text() for file in helm.CHART.glob("templates/**/*.*"))
        for name, part in values.items():
            for key in part:
                within = re.search(rf"with \.Values\.{name} ", used) is not None
                wanted = rf"\.{key}\b" if within else rf"\.Values\.{name}\.{key}\b"
                assert re.search(wanted, used), f"{name}.{key}"


class TestImage:
    def test_by_tag(self) -> None:
        [container] = pods(helm.template())["gpudoctor-agent"]["containers"]
        assert container["image"] == f"localhost/gpudoctor:{__version__}"

    def test_a_digest_wins(self) -> None:
        digest = f"sha256:{'0' * 64}"
        wanted = f"--set=image.repository=r.example.com:5000/g,image.tag=v1,image.digest={digest}"
        for spec in pods(helm.template(wanted)).values():
            assert spec["containers"][0]["image"] == f"r.example.com:5000/g@{digest}"


class TestPods:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_none_is_privileged(self, variant: str) -> None:
        found = pods(helm.template(*VARIANTS[variant]))
        assert {"gpudoctor-agent", "gpudoctor-controller", "gpudoctor-cleanup"} <= set(found)
        for name, spec in found.items():
            assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["priorityClassName"].startswith("system-")
            [container] = spec["containers"]
            context = container["securityContext"]
            assert context["privileged"] is False
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            allowed = {"SYS_PTRACE", "SYSLOG"} if name == "gpudoctor-agent" else set()
            assert set(context["capabilities"].get("add", [])) <= allowed
            assert not any("hostPort" in port for port in container.get("ports", []))
            if name not in ("gpudoctor-agent", "gpudoctor-nvml"):
                assert context["runAsNonRoot"] is True

    @pytest.mark.parametrize(
        ("probe", "capability"), [("containers", "SYS_PTRACE"), ("kernelLog", "SYSLOG")]
    )
    def test_a_probe_that_is_off_gives_up_its_capability(self, probe: str, capability: str) -> None:
        def capabilities(*options: str) -> set[str]:
            [container] = pods(helm.template(*options))["gpudoctor-agent"]["containers"]
            return set(container["securityContext"]["capabilities"].get("add", []))

        assert capabilities() == {"SYS_PTRACE", "SYSLOG"}
        assert capabilities(f"--set=probes.{probe}=false") == capabilities() - {capability}

    def test_nothing_of_the_host_is_writable_but_our_own_folder(self) -> None:
        writable = set()
        for name, spec in pods(helm.template(*EVERYTHING)).items():
            of_host = {
                v["name"]: v["hostPath"]["path"] for v in spec.get("volumes", []) if "hostPath" in v
            }
            for mount in spec["containers"][0].get("volumeMounts", []):
                if mount["name"] in of_host and not mount.get("readOnly"):
                    writable.add((name, of_host[mount["name"]]))
                assert mount.get("mountPropagation") is None
        assert {path for _, path in writable} == {"/run/gpudoctor"}

    def test_what_of_the_host_the_agent_sees(self) -> None:
        def seen(*options: str) -> dict[str, str]:
            spec = pods(helm.template(*options))["gpudoctor-agent"]
            [container] = spec["containers"]
            at = {mount["name"]: mount for mount in container["volumeMounts"]}
            paths = {
                v["name"]: v["hostPath"]["path"] for v in spec.get("volumes", []) if "hostPath" in v
            }
            # File systems that are mounted below these would stay writable.
            for name in ("proc", "sys", "dev"):
                assert at[name]["recursiveReadOnly"] == "IfPossible"
            return {path: at[name]["mountPath"] for name, path in paths.items()}

        always = {path: f"/host{path}" for path in ("/proc", "/sys", "/dev")}
        kubelet = {
            path: f"/host{path}"
            for path in ("/var/lib/kubelet/pod-resources", "/var/log/containers")
        }
        assert seen() == always | kubelet
        assert seen("--set=probes.kubelet=false") == always
        elsewhere = seen("--set=kubelet.rootDir=/var/lib/k0s/kubelet")
        assert elsewhere["/var/lib/k0s/kubelet/pod-resources"] == (
            "/host/var/lib/kubelet/pod-resources"
        )
        assert seen("--set=nvml.mode=cdi")["/run/gpudoctor"] == "/host/run/gpudoctor"

    def test_what_it_asks_for(self) -> None:
        [agent] = pods(helm.template())["gpudoctor-agent"]["containers"]
        assert agent["resources"] == {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"memory": "128Mi"},
        }

    def test_the_agent_stays_on_tainted_gpu_nodes(self) -> None:
        spec = pods(helm.template())["gpudoctor-agent"]
        assert {"nvidia.com/gpu", names.TAINT} <= {one["key"] for one in spec["tolerations"]}


class TestNodeFeatureDiscovery:
    def test_the_agent_may_not_write_nodes(self) -> None:
        objects = helm.template("--set=agent.nfd=true")
        rules = helm.only(objects, "ClusterRole", names.AGENT)["rules"]
        of_nodes = [rule for rule in rules if {"nodes", "nodes/status"} & set(rule["resources"])]
        assert [rule["verbs"] for rule in of_nodes] == [["get"]]

    def test_it_writes_where_nfd_reads(self) -> None:
        spec = pods(helm.template("--set=agent.nfd=true"))[names.AGENT]
        [folder] = [one["hostPath"]["path"] for one in spec["volumes"] if one["name"] == "nfd"]
        assert folder == nfd.FOLDER
        [container] = spec["containers"]
        assert "--nfd=/nfd" in container["args"]
        assert {"name": "nfd", "mountPath": "/nfd"} in container["volumeMounts"]


class TestNvml:
    def test_off(self) -> None:
        assert "gpudoctor-nvml" not in pods(helm.template())

    def test_by_runtime_class(self) -> None:
        objects = helm.template("--set=nvml.mode=runtimeClass,nvml.runtimeClassName=nvidia-legacy")
        spec = pods(objects)["gpudoctor-nvml"]
        assert spec["runtimeClassName"] == "nvidia-legacy"
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in spec["containers"][0]["env"]

    def test_by_cdi(self) -> None:
        writer = helm.only(helm.template("--set=nvml.mode=cdi"), "DaemonSet", "gpudoctor-nvml")
        template = writer["spec"]["template"]
        assert template["metadata"]["annotations"] == {"cdi.k8s.io/gpudoctor": "nvidia.com/gpu=all"}
        assert "runtimeClassName" not in template["spec"]

    def test_it_has_no_token_and_no_network(self) -> None:
        objects = helm.template("--set=nvml.mode=cdi")
        assert pods(objects)["gpudoctor-nvml"]["automountServiceAccountToken"] is False
        policy = helm.only(objects, "NetworkPolicy", "gpudoctor-nvml")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert not {"ingress", "egress"} & set(policy)

    def test_it_lets_go_of_the_driver_when_the_operator_pauses(self) -> None:
        spec = pods(helm.template("--set=nvml.mode=cdi"))["gpudoctor-nvml"]
        required = spec["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        [term] = required["nodeSelectorTerms"]
        for rule in term["matchExpressions"]:
            assert rule["operator"] == "NotIn"
            assert set(rule["values"]) == {"paused-for-driver-upgrade", "paused-for-mig-change"}


class TestNames:
    """What the chart repeats of the program's own names."""

    def test_accounts(self) -> None:
        objects = helm.template()
        for component in (names.AGENT, names.CONTROLLER):
            helm.only(objects, "ServiceAccount", component)
            assert pods(objects)[component]["serviceAccountName"] == component

    def test_in_the_policies(self) -> None:
        text = (helm.CHART / "templates" / "own-node.yaml").read_text()
        for name in (names.NODE_CONDITION, names.label(""), names.AGENT, names.CONTROLLER):
            assert f"'{name}'" in text or f":{name}'" in text or f':{name}"' in text
        assert names.agent_lease("n") == "agent-n"
        assert names.node_diagnosis("n") == "node-n"
        assert names.pod_diagnosis("p") == "pod-p"

    def test_long_names_begin_as_the_policies_have_it(self) -> None:
        limit = 247
        node = "n" * (limit + 1)
        for name, start in (
            (names.agent_lease(node), "agent-"),
            (names.node_diagnosis(node), "node-"),
        ):
            assert name.startswith(start + node[:200])
        assert names.agent_lease(node[:limit]) == f"agent-{node[:limit]}"


class TestRules:
    def test_metrics_of_the_rules_exist(self) -> None:
        rule = helm.only(helm.template(*EVERYTHING), "PrometheusRule", "gpudoctor")
        used = {
            name
            for group in rule["spec"]["groups"]
            for alert in group["rules"]
            for name in re.findall(r"gpudoctor_\w+", alert["expr"])
        }
        source = Path(metrics.__file__).read_text()
        known = {f"gpudoctor_{name}" for name in re.findall(r'"(\w+)"', source)}
        known |= {f"{name}_total" for name in known}
        assert used - known == set()
        assert len(used) >= 5

    def test_selectors_select(self) -> None:
        objects = helm.template(*EVERYTHING)
        service = helm.only(objects, "Service", "gpudoctor-metrics")
        monitor = helm.only(objects, "ServiceMonitor", "gpudoctor")
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert wanted <= service["metadata"]["labels"].items()
        for name in (names.AGENT, names.CONTROLLER):
            kind = "DaemonSet" if name == names.AGENT else "Deployment"
            spec = helm.only(objects, kind, name)["spec"]
            labels = spec["template"]["metadata"]["labels"].items()
            assert spec["selector"]["matchLabels"].items() <= labels
            assert service["spec"]["selector"].items() <= labels
            policy = helm.only(objects, "NetworkPolicy", name)["spec"]
            assert policy["podSelector"]["matchLabels"].items() <= labels


class TestReadme:
    TEXT = (helm.CHART.parent / "README.md").read_text(encoding="utf-8")

    def test_every_file_it_links_to_is_there(self) -> None:
        links = re.findall(r"\]\(([^)#:]+)[^)]*\)", self.TEXT)
        assert links
        assert [link for link in links if not (helm.CHART.parent / link).exists()] == []

    def test_every_value_it_names_is_one(self) -> None:
        values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
        named = re.findall(r"`(?:--set )?(\w+)\.(\w+)\b[^`]*`", self.TEXT)
        asked = [(part, key) for part, key in named if part in values and key != "yaml"]
        assert len(asked) > 10
        assert [(part, key) for part, key in asked if key not in values[part]] == []

    def test_every_mount_and_capability_is_explained(self) -> None:
        spec = pods(helm.template("--set=nvml.mode=cdi"))[names.AGENT]
        for volume in spec["volumes"]:
            if "hostPath" in volume:
                assert f"| `{volume['hostPath']['path']}` |" in self.TEXT
        [container] = spec["containers"]
        for capability in container["securityContext"]["capabilities"]["add"]:
            assert f"| `{capability}` |" in self.TEXT
