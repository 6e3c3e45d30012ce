"""`nvidia-smi topo -p2p` for `gpudoctor explain`."""

from __future__ import annotations

from gpudoctor.errors import InputError
from gpudoctor.facts.node import peer_access_text
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject, Subject
from gpudoctor.sources.text import TextInput


def _read(text: TextInput) -> Reading:
    content = text.read().decode("utf-8", "replace")
    found = peer_access_text.parse(content, Subject("Host", text.name), text.name)
    if found is None:
        raise InputError(f"{text.name}: no row of `nvidia-smi topo -p2p` (GPU0 X OK …)")
    return Reading(
        subject=ReportSubject(kind="PeerAccess", name=text.name),
        facts=(found,),
        published={"peer_access": {row.gpu: row.statuses for row in found.rows}},
        is_complete=lambda _kind: True,
    )


FORMAT = Format("peer-access", peer_access_text.rows_seen, _read)
