"""Which network carries the data between hosts, and which step towards RDMA failed.

NCCL tries, in this order: an external plugin, its own IB code (unless NCCL_IB_DISABLE), and
Socket, which always works. On a single host none of this matters, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checking import Result
from gpudoctor.facts.nccl.model import Event, Line, NcclLog
from gpudoctor.report import Certainty, Severity
from gpudoctor_checks.nccl_log import CHECKS, draft, hosts_of, is_set, lines_of, several

SOCKET = "Socket"
TCP_PLUGINS = ("FastSocket",)
_TCP_PROVIDERS = ("tcp", "sockets", "udp", "ofi_rxm", "net")
_PLUGIN_FAILURES = ("ofi-gdr", "ofi-no-provider", "plugin-init", "plugin-load")
_NO_NETWORK = ("net-missing", "net-none")


def over_tcp(log: NcclLog) -> bool:
    """Tell whether data between hosts goes over plain TCP, at least for some of them."""
    return log.multi_node is True and (
        log.network == SOCKET
        or any(use.network == SOCKET for use in log.net)
        or (log.network == "mixed" and any(name == SOCKET for _, name, _ in log.chosen))
        or bool(_tcp_provider(log))
    )


def _tcp_hosts(log: NcclLog) -> tuple[str, ...]:
    used = [use.host for use in log.net if use.network == SOCKET]
    chosen = [host for host, name, _ in log.chosen if name == SOCKET]
    return tuple(dict.fromkeys(used or chosen or hosts_of(_tcp_provider(log))))


def _tcp_lines(log: NcclLog) -> list[Line]:
    return [line for _, name, line in log.chosen if name == SOCKET] + [
        use.line for use in log.net if use.network == SOCKET
    ]


def _tcp_provider(log: NcclLog) -> tuple[Event, ...]:
    return tuple(
        event
        for event in log.of_kind("ofi-provider")
        if any(part in _TCP_PROVIDERS for part in event.values.get("provider", "").split(";"))
    )


def _disabled(log: NcclLog) -> bool:
    return is_set(log, "NCCL_IB_DISABLE")


@CHECKS.check(NcclLog)
def ib_disabled_by_env(log: NcclLog) -> Iterator[Result]:
    """NCCL_IB_DISABLE is set, and the data goes over TCP."""
    if over_tcp(log) and _disabled(log):
        settings = [s for s in log.setting("NCCL_IB_DISABLE") if s.value != "0"]
        hosts = tuple(host for setting in settings for host in setting.hosts)
        yield draft(
            log,
            "nccl-ib-disabled-by-env",
            f"NCCL_IB_DISABLE={settings[0].value} on {several(hosts, 'host')}: NCCL does not look"
            " for RDMA adapters at all, so the log cannot say whether there are any.",
            [setting.line for setting in settings],
            hosts=hosts,
        )


@CHECKS.check(NcclLog)
def device_open_failed(log: NcclLog) -> Iterator[Result]:
    """An adapter is listed in sysfs, but its device file cannot be opened."""
    events = log.of_kind("ib-open") or log.of_kind("ibv-open")
    if not events or log.multi_node is False:
        return
    devices = [event.values["device"] for event in events if "device" in event.values]
    what = several(devices, "device") or "an RDMA device"
    yield draft(
        log,
        "rdma-device-open-failed",
        f"ibv_open_device fails for {what} on {several(hosts_of(events), 'host')}: the adapter is"
        " listed in /sys/class/infiniband, but its /dev/infiniband/uverbs node is missing in the"
        " container or may not be opened.",
        lines_of((*events, *log.of_kind("ibv-open"))),
        hosts=hosts_of(events),
        values={"devices": what},
        severity=None if over_tcp(log) else Severity.WARNING,
    )


@CHECKS.check(NcclLog)
def library_missing(log: NcclLog) -> Iterator[Result]:
    """libibverbs cannot be loaded: the image lacks rdma-core."""
    events = log.of_kind("ib-library")
    if events and over_tcp(log):
        yield draft(
            log,
            "rdma-library-missing",
            f"libibverbs.so cannot be loaded on {several(hosts_of(events), 'host')}: the image"
            " has no rdma-core, so NCCL cannot see any adapter.",
            lines_of(events),
            hosts=hosts_of(events),
        )


@CHECKS.check(NcclLog)
def device_absent(log: NcclLog) -> Iterator[Result]:
    """NCCL finds no adapter where one was meant to be: asked for, or present on other hosts."""
    absent = [e for e in log.of_kind("ib-none") if e.host in _tcp_hosts(log)]
    no_provider = log.of_kind("ofi-no-provider")
    if not over_tcp(log) or log.of_kind("ib-open", "ibv-open", "ib-library"):
        return
    if no_provider:
        absent = list(no_provider)
    elif not absent or log.of_kind(*_PLUGIN_FAILURES) or not _rdma_was_meant(log):
        return
    asked = [s for s in log.settings if s.name == "NCCL_IB_HCA"]
    listed = [found for found in log.adapters if found.host not in hosts_of(absent)]
    why = "no adapter that NCCL may use"
    if asked:
        why += f" (NCCL_IB_HCA is {asked[0].value}: either nothing matches it, or nothing is there)"
    elif listed:
        why += f", while {several([found.host for found in listed], 'host')} lists some"
    yield draft(
        log,
        "rdma-device-absent",
        f"On {several(hosts_of(absent), 'host')} NCCL finds {why}: no device plugin resource in the"
        " pod, port down, or a RoCE netdev outside the pod's network namespace.",
        [*lines_of(absent), *(s.line for s in asked), *(found.line for found in listed[:1])],
        hosts=hosts_of(absent),
        values={"where": several(hosts_of(absent), "host")},
        certainty=Certainty.LIKELY,
    )


def _rdma_was_meant(log: NcclLog) -> bool:
    """Something says that RDMA was there or meant: variables, adapters, other hosts, node facts."""
    meant = any(s.name.startswith("NCCL_IB_") and s.name != "NCCL_IB_DISABLE" for s in log.settings)
    return (
        meant
        or is_set(log, "NCCL_IB_DISABLE", "0")
        or bool(log.adapters)
        or any(name not in (SOCKET, *TCP_PLUGINS) for _, name, _ in log.chosen)
        or bool(log.rdma_expected_by)
    )


@CHECKS.check(NcclLog)
def plugin_failed(log: NcclLog) -> Iterator[Result]:
    """A network plugin was loaded and gave up, or the loader refused it."""
    events = log.of_kind(*_PLUGIN_FAILURES)
    stopped = bool(log.of_kind(*_NO_NETWORK))
    if not events or not (stopped or (log.multi_node is not False and over_tcp(log))):
        return
    first = min(events, key=lambda event: (event.kind != "ofi-gdr", event.order))
    instance = first.values.get("type")
    reason = {
        "ofi-gdr": f"GPUDirect RDMA is unavailable on {instance or 'an instance type'} that has it"
        " (driver flavour, kernel or EFA module), and the plugin refuses to run without",
        "ofi-no-provider": "it finds no usable libfabric provider: no EFA device in the pod",
        "plugin-load": "the loader refuses its library, which was built for another image:"
        f" {first.values.get('reason', '')}",
    }.get(first.kind, "its initialisation fails")
    yield draft(
        log,
        "nccl-net-plugin-init-failed",
        f"The network plugin gives up on {several(hosts_of(events), 'host')}: {reason}.",
        lines_of(events),
        hosts=hosts_of(events),
        values={"plugin": "aws-ofi-nccl" if _is_ofi(log, events) else "The network plugin"},
    )


def _is_ofi(log: NcclLog, events: tuple[Event, ...]) -> bool:
    return any("OFI" in event.values.get("message", "") for event in (*events, *log.events))


@CHECKS.check(NcclLog)
def net_forced(log: NcclLog) -> Iterator[Result]:
    """NCCL_NET names a network that is not there."""
    events = log.of_kind(*_NO_NETWORK)
    if not events:
        return
    forced = log.of_kind("net-forced")
    names = [e.values["network"] for e in (*events, *forced) if "network" in e.values]
    wanted = names[0] if names else "the network asked for"
    yield draft(
        log,
        "nccl-net-forced-unavailable",
        f"{wanted} cannot be used on {several(hosts_of(events), 'host')}, and NCCL was told to use"
        " nothing else, so it gives up instead of falling back.",
        lines_of((*events, *forced)),
        hosts=hosts_of(events),
        values={"network": wanted},
    )


@CHECKS.check(NcclLog)
def socket_fallback(log: NcclLog) -> Iterator[Result]:
    """Data goes over TCP though RDMA was there or meant to be; if it was not: information."""
    if not over_tcp(log):
        return
    hosts = _tcp_hosts(log)
    step, lines = _failed_step(log)
    some = "" if log.network == SOCKET else "partly "
    if step is None and not _rdma_was_meant(log):
        yield draft(
            log,
            "nccl-socket-transport",
            f"{several(hosts, 'host')}: data between hosts goes over TCP sockets, and nothing in"
            " the log says that it should not.",
            _tcp_lines(log),
            hosts=hosts,
        )
        return
    expected = f" {log.rdma_expected_by[0]}." if log.rdma_expected_by else ""
    yield draft(
        log,
        "nccl-socket-fallback",
        f"Data between hosts goes {some}over TCP on {several(hosts, 'host')}. The step that failed:"
        f" {step or 'RDMA was meant to be used, and no adapter was found'}.{expected}"
        " TCP gives about 5 GB/s where one 200G rail gives 25.",
        [*_tcp_lines(log), *lines],
        hosts=hosts,
        severity=Severity.WARNING if _disabled(log) else None,
    )


def _failed_step(log: NcclLog) -> tuple[str | None, list[Line]]:
    """The first step of NCCL's way to RDMA that failed, with its lines."""
    if _disabled(log):
        return "NCCL_IB_DISABLE switches it off", [s.line for s in log.setting("NCCL_IB_DISABLE")]
    steps = (
        (_PLUGIN_FAILURES, "the network plugin could not start"),
        (("ib-library",), "libibverbs could not be loaded"),
        (("ib-open", "ibv-open"), "the adapter's device file could not be opened"),
    )
    for kinds, words in steps:
        events = log.of_kind(*kinds)
        if events:
            return words, lines_of(events)
    if _tcp_provider(log):
        provider = _tcp_provider(log)[0].values["provider"]
        return f"libfabric chose the provider {provider}, not efa", lines_of(_tcp_provider(log))
    forced = [e for e in log.of_kind("net-forced") if e.values.get("network") == SOCKET]
    if forced:
        return "NCCL_NET=Socket forces it", lines_of(forced)
    absent = [e for e in log.of_kind("ib-none") if e.host in _tcp_hosts(log)]
    if absent and _rdma_was_meant(log):
        filtered = log.setting("NCCL_IB_HCA")
        words = f" that NCCL_IB_HCA={filtered[0].value} lets through" if filtered else ""
        return f"no adapter{words} was found", lines_of(absent)
    return None, []


@CHECKS.check(NcclLog)
def ifname_no_match(log: NcclLog) -> Iterator[Result]:
    """NCCL_SOCKET_IFNAME leaves no interface for the control connections."""
    events = log.of_kind("ifname", "ifname-family")
    wanted = log.setting("NCCL_SOCKET_IFNAME")
    if not events or not (wanted or log.of_kind("ifname")):
        return
    value = wanted[0].value if wanted else ""
    said = f"NCCL_SOCKET_IFNAME={value} matches no" if value else "There is no usable"
    yield draft(
        log,
        "nccl-ifname-no-match",
        f"{said} interface on {several(hosts_of(events), 'host')}: NCCL cannot even open its"
        " control connections.",
        [*lines_of(events), *(setting.line for setting in wanted)],
        hosts=hosts_of(events),
        values={"value": value or "?"},
    )


@CHECKS.check(NcclLog)
def hca_overmatch(log: NcclLog) -> Iterator[Result]:
    """NCCL_IB_HCA names mlx5_1 and, being a prefix, takes mlx5_10 as well."""
    for setting in log.setting("NCCL_IB_HCA"):
        if setting.value[:1] in ("=", "^"):
            continue
        tokens = {token.partition(":")[0] for token in setting.value.split(",") if token}
        taken = {
            device: found
            for found in log.adapters
            if found.host in setting.hosts
            for name in found.devices
            if (device := name.partition(":")[0]) not in tokens
            and any(_longer_number(token, device) for token in tokens)
        }
        if taken:
            names = several(sorted(taken), "adapter")
            yield draft(
                log,
                "nccl-hca-prefix-overmatch",
                f"NCCL_IB_HCA={setting.value} is a prefix: it also takes {names}.",
                [setting.line, *(found.line for found in taken.values())],
                hosts=setting.hosts,
                values={"value": setting.value, "devices": names},
                fix=f"Set NCCL_IB_HCA=={setting.value}: the second = asks for exact names.",
            )


def _longer_number(token: str, device: str) -> bool:
    """mlx5_1 and mlx5_10, not mlx5 and mlx5_0."""
    rest = device.removeprefix(token)
    return token[-1:].isdigit() and device.startswith(token) and rest.isdigit()


@CHECKS.check(NcclLog)
def adapters_differ(log: NcclLog) -> Iterator[Result]:
    """One host uses fewer adapters than most others."""
    if len(log.adapters) < 3 or log.multi_node is not True:
        return
    counts = [len(found.devices) for found in log.adapters]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    fewer = [found for found in log.adapters if len(found.devices) < usual]
    if fewer and counts.count(usual) > len(counts) // 2:
        yield draft(
            log,
            "nccl-adapters-missing",
            f"On {several([found.host for found in fewer], 'host')} NCCL uses"
            f" {len(fewer[0].devices)} adapters where most hosts use {usual}: the ring is as slow"
            " as its slowest host.",
            [*(found.line for found in fewer), _example(log, usual)],
            hosts=[found.host for found in fewer],
            certainty=Certainty.LIKELY,
        )


def _example(log: NcclLog, usual: int) -> Line:
    return next(found.line for found in log.adapters if len(found.devices) == usual)
