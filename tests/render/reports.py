"""Reports to render: one pod with two causes and a chain, a healthy one, and a fleet."""

from __future__ import annotations

from gpudoctor.report import (
    Audience,
    Blame,
    Certainty,
    Evidence,
    Finding,
    Fixes,
    Layer,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Unknown,
    Verdict,
)

POD = Subject("Pod", "trainer-0", "ml")
ASK = Fixes(user="Ask for it.")


def finding(
    name: str,
    title: str,
    *,
    code: str = "WKL004",
    severity: Severity = Severity.ERROR,
    certainty: Certainty = Certainty.CERTAIN,
    detail: str = "",
    evidence: tuple[Evidence, ...] = (),
    explains: tuple[str, ...] = (),
    caused_by: tuple[str, ...] = (),
    fixes: Fixes = ASK,
    audience: Audience = Audience.USER,
    subject: Subject = POD,
) -> Finding:
    return Finding(
        id=f"{name}@{subject}",
        code=code,
        name=name,
        layer=Layer(code.rstrip("0123456789")),
        severity=severity,
        certainty=certainty,
        blame=Blame.REQUEST,
        subject=subject,
        title=title,
        detail=detail or f"Why {title}.",
        evidence=evidence,
        explains=explains,
        caused_by=caused_by,
        audience=audience,
        fix=getattr(fixes, audience) or "",
        fixes=fixes,
        runbook=code,
    )


def two_causes() -> Report:
    request = finding(
        "rdma-not-requested",
        "ml/trainer-0 does not ask for the RDMA devices its node offers",
        severity=Severity.WARNING,
        detail="gpu-1 offers rdma/hca, and no container asks for it, so /dev/infiniband is not "
        "in its containers.",
        evidence=(
            Evidence("Node/gpu-1", "status.allocatable[rdma/hca]", "8 of capacity 8", "offered"),
            Evidence("log ml/trainer-0/main:212", value="NET/IB : No device\nUsing Socket"),
            Evidence("Pod/ml/trainer-0", "spec.containers[*].resources", "no rdma/hca"),
        ),
        explains=("nccl-no-ib-device@Pod/ml/trainer-0",),
        fixes=Fixes(
            user="Add to the container:\n  resources:\n    limits:\n      rdma/hca: 1",
            admin="Deny such pods with the admission policy, so that the next one says it at once.",
        ),
    )
    no_device = finding(
        "nccl-no-ib-device",
        "NCCL finds no InfiniBand device",
        code="NCL002",
        severity=Severity.WARNING,
        explains=("nccl-socket@Pod/ml/trainer-0",),
        caused_by=(request.id,),
    )
    socket = finding(
        "nccl-socket",
        "NCCL runs over TCP sockets on eth0",
        code="NCL001",
        severity=Severity.WARNING,
        caused_by=(no_device.id,),
    )
    driver = finding(
        "driver-too-old",
        "The driver of gpu-1 is too old for the image's CUDA 13.1",
        code="DRV001",
        certainty=Certainty.LIKELY,
        fixes=Fixes(user="Use an image with CUDA 12.", admin="Upgrade the driver to 590 or later."),
        audience=Audience.ADMIN,
        subject=Subject("Node", "gpu-1"),
    )
    note = finding(
        "shm-default",
        "/dev/shm of ml/trainer-0 is the default 64 MiB",
        code="WKL001",
        severity=Severity.INFO,
        certainty=Certainty.POSSIBLE,
    )
    return Report(
        subject=ReportSubject("Pod", "trainer-0", "ml", "gpu-1"),
        observed_at="2026-11-20T08:20:02Z",
        verdict=Verdict.FAILING,
        roots=(driver.name, request.name),
        root_ids=(driver.id, request.id),
        findings=(driver, request, no_device, socket, note),
        unknown=(Unknown("log ml/trainer-0/main!previous", "403 forbidden: get pods/log in ml"),),
    )


def plain(verdict: Verdict, name: str = "trainer-0", kind: str = "Pod") -> Report:
    return Report(
        subject=ReportSubject(kind, name, "ml" if kind == "Pod" else None),
        observed_at=None,
        verdict=verdict,
        roots=(),
        root_ids=(),
        findings=(),
        unknown=(),
    )


def fleet() -> Report:
    """30 healthy nodes, 20 of one fault, an odd one, and one that cannot be judged."""

    def faulty(number: int, name: str, title: str) -> Report:
        node = Subject("Node", f"gpu-{number}")
        fault = finding(name, title.format(node=node.name), code="HW001", subject=node)
        return Report(
            subject=ReportSubject("Node", node.name),
            observed_at=None,
            verdict=Verdict.FAILING,
            roots=(fault.name,),
            root_ids=(fault.id,),
            findings=(fault,),
            unknown=(),
        )

    unknown = Report(
        subject=ReportSubject("Node", "gpu-99"),
        observed_at=None,
        verdict=Verdict.UNKNOWN,
        roots=(),
        root_ids=(),
        findings=(),
        unknown=(Unknown("Node/gpu-99", "its status is not in the input"),),
    )
    return Report(
        subject=ReportSubject("Nodes", "all"),
        observed_at="2026-11-20T08:20:02Z",
        verdict=Verdict.FAILING,
        roots=(),
        root_ids=(),
        findings=(),
        unknown=(),
        children=(
            *(plain(Verdict.HEALTHY, f"gpu-{number}", "Node") for number in range(1, 31)),
            *(faulty(n, "ib-port-down", "A port of {node} is down") for n in range(31, 51)),
            faulty(51, "gpu-fell-off-bus", "A GPU of {node} fell off the bus"),
            unknown,
        ),
    )
