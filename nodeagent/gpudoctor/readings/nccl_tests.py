"""nccl-tests output for `gpudoctor explain`, with the NCCL lines mixed into it."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.facts import nccl, nccl_tests
from gpudoctor.facts.acceptance import CollectiveRun
from gpudoctor.readings import Format, Reading, nccl_log
from gpudoctor.report import ReportSubject
from gpudoctor.sources.text import TextInput

_WEIGHT = 1000
"""A table of results is what the text is about, however many NCCL lines stand around it."""


def _matches(head: str) -> int:
    return nccl_tests.telling_lines(head) * _WEIGHT


def _read(text: TextInput) -> Reading:
    raw = text.read()
    results = nccl_tests.parse(raw.decode("utf-8", "replace"), text.name)
    log = nccl.parse([raw], text.name)
    if not results.runs and log.hosts:
        # The run ended, or the text, before its table: what there is to read is NCCL's.
        return nccl_log.reading(log)
    if not results.runs:
        raise InputError(f"{text.name}: no table of nccl-tests in it")
    facts: list[object] = []
    published: dict[str, Any] = {}
    if log.hosts:
        counts = {len(found.devices) for found in log.adapters}
        facts.append(msgspec.structs.replace(log, subject=results.subject))
        published["nccl"] = nccl_log.published(log)
        results = msgspec.structs.replace(
            results, adapters=counts.pop() if len(counts) == 1 else None
        )
    published["nccl_tests"] = [_published(run) for run in results.runs]
    return Reading(
        subject=ReportSubject("CollectiveResults", text.name),
        facts=(results, *facts),
        published=published,
        needed_unknown=all(not run.rows for run in results.runs),
    )


def _published(run: CollectiveRun) -> dict[str, Any]:
    largest = run.largest
    return {
        "collective": run.collective,
        "ranks": run.ranks,
        "nodes": len(run.hosts),
        "gpus": sorted({device.name for device in run.devices}),
        "rows": len(run.rows),
        "max_busbw_gbs": round(run.best_busbw, 2),
        "avg_busbw_gbs": run.average_busbw,
        "largest_size": largest.size if largest else None,
        "out_of_bounds": run.out_of_bounds,
    }


FORMAT = Format("nccl-tests", _matches, _read)
