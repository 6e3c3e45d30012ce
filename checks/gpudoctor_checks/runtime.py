"""Between scheduling and the first instruction: image, runtime class, sandbox, networks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checking import CheckSet, Result, finding
from gpudoctor.facts.kubernetes.components import Role, troubles
from gpudoctor.facts.kubernetes.model import Event
from gpudoctor.facts.kubernetes.situation import PodSituation, RefusedPod
from gpudoctor.report import Certainty, Evidence, Severity
from gpudoctor_checks import let_in, supply

CHECKS = CheckSet()

_PULL_REASONS = (
    (
        r"no match for platform|no matching manifest|exec format",
        "no image for this CPU architecture",
    ),
    (r"unauthorized|denied|authentication required|forbidden|403|401", "access to it is refused"),
    (r"not found|manifest unknown|does not exist|404", "there is no such image or tag"),
    (r"toomanyrequests|rate limit|429", "the registry's rate limit is reached"),
    (r"x509|certificate", "the registry's certificate is not trusted"),
    (r"no space left|disk", "the node's disk is full"),
    (
        r"no such host|timeout|timed out|connection refused|i/o|EOF|unreachable",
        "the registry cannot be reached",
    ),
    (r"invalid reference|InvalidImageName|couldn't parse", "its name is not valid"),
)
# As text: re compiles, once, what there is a message for.
_NO_RUNTIME = r"no runtime for \"?(?P<handler>[^\"\s]+?)\"? is configured"
_NO_CLASS = r"(?i)RuntimeClass\S*\s+\"?(?P<name>[^\"\s]+?)\"?(?: object)? not found"
_NO_DEVICE = (
    r"(?i)specify either \"?device\"?, \"?hwaddr\"?, \"?kernelpath\"? or \"?pciBusID\"?"
    r"|VF pci addr is required|pciaddress required|failed to find .*deviceID"
    r"|no device ID|deviceID is required"
)
_NO_NETWORK = (
    r"(?i)network-attachment-definitions?(?:\.k8s\.cni\.cncf\.io)? \"?(?P<name>[\w./-]+)\"?"
    r" not found"
    r"|cannot find a network-attachment-definition \((?P<other>[^)]+)\)"
    r"|cannot find get a network-attachment-definition"
)
_ATTACHMENT = r"\[(?P<namespace>[\w.-]+)/[^\]\s:]+?(?:/[\w-]+)?:(?P<network>[\w./-]+)\]"
_NETWORK_PLUGIN = (
    r"(?i)failed to setup network|plugin type=|CNI|cni|NetworkPluginNotReady|network plugin"
)


@CHECKS.check(PodSituation)
def image_pull(situation: PodSituation) -> Iterator[Result]:
    """A container waits for an image that the node cannot pull."""
    pod = situation.pod
    for trouble in troubles(pod):
        container = pod.container(trouble.container)
        if trouble.kind != "image" or container is None:
            continue
        said = [
            event
            for event in situation.events_with("Failed", "ErrImagePull", "InspectFailed")
            if "image" in event.message.lower() and container.image in event.message
        ]
        text = " ".join([trouble.message, *(event.message for event in said)])
        reason = next(
            (words for pattern, words in _PULL_REASONS if re.search(pattern, text, re.IGNORECASE)),
            trouble.reason,
        )
        yield finding(
            "image-pull-failing",
            pod.subject,
            f"Container {trouble.container} waits for {container.image}: {reason}.",
            Evidence(pod.meta.path, trouble.field, trouble.reason, trouble.message or None),
            *(Evidence(event.path, event.reason, event.message) for event in said[-1:]),
            values={"image": container.image, "pod": pod.meta.short, "reason": reason},
        )
        return


def _sandbox_events(situation: PodSituation) -> tuple[Event, ...]:
    """Sandbox failures that still hold: none once a container has started."""
    if any(status.state.kind in ("running", "terminated") for status in situation.pod.statuses):
        return ()
    return situation.events_with("FailedCreatePodSandBox", "FailedCreatePodContainer", "Failed")


@CHECKS.check(PodSituation)
def runtime_handler(situation: PodSituation) -> Iterator[Result]:
    """The node's container runtime does not know the handler that the RuntimeClass names."""
    for event in reversed(_sandbox_events(situation)):
        match = re.search(_NO_RUNTIME, event.message)
        if match:
            node = situation.pod.node or "the node"
            yield finding(
                "runtime-handler-missing",
                situation.subject,
                f"The container runtime of {node} has no handler {match['handler']!r}, which the "
                f"pod's RuntimeClass {situation.pod.runtime_class or ''} asks for.",
                Evidence(event.path, f"{event.reason} (x{event.count})", event.message),
                Evidence(
                    situation.pod.meta.path,
                    "spec.runtimeClassName",
                    situation.pod.runtime_class or "not set",
                ),
                values={"handler": match["handler"], "node": node},
                related=(situation.node.subject,) if situation.node else (),
            )
            return


@CHECKS.check(RefusedPod)
def runtime_class_of_refused(refused: RefusedPod) -> Iterator[Result]:
    """The API server refuses to make the pod, because its RuntimeClass does not exist."""
    for refusal in reversed(refused.refusals):
        match = re.search(_NO_CLASS, refusal.message)
        if match:
            yield finding(
                "runtimeclass-missing",
                refused.subject,
                f"RuntimeClass {match['name']!r} does not exist, so {refusal.about.kind} "
                f"{refusal.about.name} cannot make its pods.",
                refusal.evidence,
                values={"class": match["name"], "pod": str(refused.subject)},
                related=(refusal.about,),
            )
            return


@CHECKS.check(PodSituation)
def runtime_class(situation: PodSituation) -> Iterator[Result]:
    """The pod names a RuntimeClass that does not exist, or GPU software runs without one."""
    pod = situation.pod
    for event in reversed((*situation.events, *situation.owner_events)):
        match = re.search(_NO_CLASS, event.message)
        if match:
            yield finding(
                "runtimeclass-missing",
                pod.subject,
                f"RuntimeClass {match['name']!r} does not exist in the cluster.",
                Evidence(event.path, f"{event.reason} (x{event.count})", event.message),
                Evidence(pod.meta.path, "spec.runtimeClassName", pod.runtime_class or "not set"),
                values={"class": match["name"], "pod": pod.meta.short},
                related=(event.about,),
            )
            return
    yield from _plugin_without_class(situation)
    yield from _pod_without_class(situation)


def _plugin_without_class(situation: PodSituation) -> Iterator[Result]:
    """The device plugin finds no driver library, and runs without the nvidia runtime."""
    if not supply.is_waiting_for_a_node(situation):
        return
    for component in situation.components:
        if component.role is not Role.DEVICE_PLUGIN:
            continue
        for plugin in component.pods:
            lines = [
                line
                for line in situation.component_lines
                if line.pod == plugin.subject
                and (
                    (line.line.kind == "plugin-nvml" and "load NVML library" in line.line.text)
                    or (line.line.kind == "plugin-strategy" and "Incompatible" in line.line.text)
                )
            ]
            # Where the library says what is wrong with the driver, it was found.
            found = any(
                line.pod == plugin.subject
                and line.line.kind in ("driver-missing", "driver-mismatch")
                for line in situation.component_lines
            )
            if lines and not found and plugin.runtime_class is None:
                yield finding(
                    "runtimeclass-missing",
                    plugin.subject,
                    f"The device plugin on {plugin.node} finds no NVIDIA libraries and has no "
                    "runtimeClassName: where nvidia is not the node's default runtime, nothing "
                    "puts them into its container.",
                    *(line.evidence for line in lines[:2]),
                    Evidence(plugin.meta.path, "spec.runtimeClassName", "not set"),
                    values={"class": "nvidia", "pod": plugin.meta.short},
                    related=(situation.subject,),
                    certainty=Certainty.LIKELY,
                )
                return


def _pod_without_class(situation: PodSituation) -> Iterator[Result]:
    """The pod was given GPUs and finds no driver library in its container."""
    pod = situation.pod
    lines = [found for found in situation.lines if found.line.kind == "driver-not-in-container"]
    given = set(supply.gpu_requests(situation)) - set(let_in.ungiven(situation))
    if lines and given and pod.runtime_class is None and pod.node:
        yield finding(
            "runtimeclass-missing",
            pod.subject,
            f"The pod was given GPUs on {pod.node}, but its container has no NVIDIA libraries, and "
            "it names no RuntimeClass: the node's default runtime is probably not nvidia.",
            lines[-1].evidence,
            Evidence(pod.meta.path, "spec.runtimeClassName", "not set"),
            values={"class": "nvidia", "pod": pod.meta.short},
            certainty=Certainty.LIKELY,
        )


@CHECKS.check(PodSituation)
def networks(situation: PodSituation) -> Iterator[Result]:
    """The sandbox's network cannot be made: a device, a definition, or the plugin itself lacks."""
    pod = situation.pod
    events = [e for e in _sandbox_events(situation) if e.reason == "FailedCreatePodSandBox"]
    said = next((e for e in reversed(events) if re.search(_NO_NETWORK, e.message)), None)
    if said is not None:
        match = re.search(_NO_NETWORK, said.message)
        name = (match["name"] or match["other"]) if match else None
        wanted = [f"{a.namespace}/{a.name}" for a in situation.attachments]
        shown = name or ", ".join(wanted) or "a network"
        bare = shown.rpartition("/")[2]
        elsewhere = [n.meta.short for n in situation.networks if n.meta.name == bare]
        hint = f" One of that name is {', '.join(elsewhere[:2])}." if elsewhere else ""
        yield finding(
            "network-attachment-missing",
            pod.subject,
            f"The pod's annotation names network {shown}, and there is no "
            "NetworkAttachmentDefinition of that name in the namespace that it means (the pod's "
            f"own, {pod.meta.namespace}, unless it is written namespace/name).{hint}",
            Evidence(said.path, f"{said.reason} (x{said.count})", said.message),
            _annotation(situation),
            values={"pod": pod.meta.short, "network": shown},
        )
        return
    without_device = next((e for e in reversed(events) if re.search(_NO_DEVICE, e.message)), None)
    if without_device is not None:
        yield from _without_device(situation, without_device)
        return
    plain = next((e for e in reversed(events) if re.search(_NETWORK_PLUGIN, e.message)), None)
    if plain is not None and not re.search(_NO_RUNTIME, plain.message):
        yield finding(
            "cni-failure",
            pod.subject,
            f"The network of the pod's sandbox cannot be made on {pod.node}.",
            Evidence(plain.path, f"{plain.reason} (x{plain.count})", plain.message),
            values={"pod": pod.meta.short, "reason": _last_clause(plain.message)},
            related=(situation.node.subject,) if situation.node else (),
        )


_PLUGIN = re.compile(r"plugin type=\"(?P<type>[^\"]+)\"")


def _last_clause(message: str) -> str:
    """The innermost plugin and error of a wrapped message, short enough for a title."""
    clause = message.strip().rpartition(": ")[2].strip(" '\"")[:80] or message[:80]
    named = _PLUGIN.findall(message)
    return f"{named[-1]}: {clause}" if named else clause


def _annotation(situation: PodSituation) -> Evidence:
    wanted = ", ".join(f"{a.namespace}/{a.name}" for a in situation.attachments)
    path = "metadata.annotations[k8s.v1.cni.cncf.io/networks]"
    return Evidence(situation.pod.meta.path, path, wanted or "not set")


def _without_device(situation: PodSituation, event: Event) -> Iterator[Result]:
    pod = situation.pod
    match = re.search(_ATTACHMENT, event.message)
    named = match["network"] if match else ""
    unserved = list(unserved_networks(situation))
    definition, resource = next(
        ((d, r) for d, r in unserved if d.rpartition("/")[2] in named or not named),
        unserved[0] if unserved else (named or "a network", "its device resource"),
    )
    yield finding(
        "multus-attachment-without-device",
        pod.subject,
        f"The pod attaches network {definition}, whose plugin needs a device, and does not ask for "
        f"{resource}; so the plugin was given none.",
        Evidence(event.path, f"{event.reason} (x{event.count})", event.message),
        _annotation(situation),
        *_definition_evidence(situation, definition),
        Evidence(pod.meta.path, "spec.containers[*].resources", f"no {resource}"),
        values={"pod": pod.meta.short, "network": definition, "resource": resource},
        leans_on=() if unserved else ("NetworkAttachmentDefinition",),
    )


def _definition_evidence(situation: PodSituation, name: str) -> Iterator[Evidence]:
    for network in situation.networks:
        if network.meta.short == name and network.resource:
            path = "metadata.annotations[k8s.v1.cni.cncf.io/resourceName]"
            yield Evidence(network.meta.path, path, network.resource)


def unserved_networks(situation: PodSituation) -> Iterator[tuple[str, str]]:
    """Yield network and resource of attachments whose device the pod does not ask for."""
    for attachment in situation.attachments:
        for network in situation.networks:
            if (
                network.meta.name == attachment.name
                and network.meta.namespace == attachment.namespace
                and network.resource
                and not situation.pod.requests.get(network.resource)
            ):
                yield network.meta.short, network.resource


@CHECKS.check(PodSituation)
def attachment_advice(situation: PodSituation) -> Iterator[Result]:
    """An attachment without its device that has done no visible harm yet."""
    harmed = any(re.search(_NO_DEVICE, e.message) for e in _sandbox_events(situation))
    for network, resource in unserved_networks(situation):
        if not harmed:
            yield finding(
                "multus-attachment-without-device",
                situation.subject,
                f"The pod attaches network {network} and does not ask for {resource}.",
                _annotation(situation),
                *_definition_evidence(situation, network),
                values={
                    "pod": situation.pod.meta.short,
                    "network": network,
                    "resource": resource,
                },
                severity=Severity.INFO,
            )
            return
