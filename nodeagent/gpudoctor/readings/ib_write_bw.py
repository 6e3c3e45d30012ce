"""perftest's bandwidth programs for `gpudoctor explain`."""

from __future__ import annotations

from typing import Any

from gpudoctor.errors import InputError
from gpudoctor.facts import perftest
from gpudoctor.facts.acceptance import BandwidthRun
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject
from gpudoctor.sources.text import TextInput

_WEIGHT = 1000


def _read(text: TextInput) -> Reading:
    results = perftest.parse(text.read().decode("utf-8", "replace"), text.name)
    if not results.runs:
        raise InputError(f"{text.name}: no row of ib_write_bw in it")
    return Reading(
        subject=ReportSubject("CollectiveResults", text.name),
        facts=(results,),
        published={"ib_write_bw": [_published(run) for run in results.runs]},
    )


def _published(run: BandwidthRun) -> dict[str, Any]:
    best = max(run.rows, key=lambda row: row.size)
    return {
        "program": run.program,
        "device": run.device,
        "link": run.link,
        "mtu": run.mtu,
        "gid_index": run.gid_index,
        "size": best.size,
        "gbps": round(best.gbps, 1),
    }


FORMAT = Format("ib-write-bw", lambda head: perftest.telling_lines(head) * _WEIGHT, _read)
