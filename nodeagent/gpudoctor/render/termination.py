"""The termination message of a container: what `kubectl describe pod` shows of its end.

All containers of a pod share 12 KiB of it and some tools cut it further, so the root cause
stands first and the whole stays within a kilobyte.
"""

from __future__ import annotations

from gpudoctor.render.clean import one_line
from gpudoctor.report import Finding, Report, Severity

MOST_BYTES = 1024


def message(report: Report, outcome: str) -> str:
    """Return the message: outcome, root cause with its runbook's code, detail, fix, and the rest.

    `outcome` is a word for how the command ends, such as `request` or `passed`.
    """
    lines = [f"gpudoctor preflight: {outcome}"]
    roots = [report.finding(root) for root in report.root_ids]
    for root in roots[:1]:
        lines[0] += f": {_line(root)}"
        lines += [root.detail, f"Fix ({root.audience}): {root.fix}"]
        lines.append(f"More: gpudoctor runbook {root.runbook}")
    lines += [f"Also: {_line(root)}" for root in roots[1:] if root.severity is not Severity.INFO]
    lines += [f"Unknown: {unknown.what}: {unknown.why}" for unknown in report.unknown]
    return _within(lines)


def _line(finding: Finding) -> str:
    return f"{finding.runbook} {finding.name}: {finding.title}"


def _within(lines: list[str]) -> str:
    """Join as many lines as fit; one that does not is cut at a character."""
    text = "\n".join(one_line(line) for line in lines)
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MOST_BYTES:
        return text
    ellipsis = " …"
    return raw[: MOST_BYTES - len(ellipsis.encode())].decode("utf-8", "ignore") + ellipsis
