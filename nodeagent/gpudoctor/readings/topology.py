"""`nvidia-smi topo -m` for `gpudoctor explain`."""

from __future__ import annotations

from gpudoctor.errors import InputError
from gpudoctor.facts.node import topology_text
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject, Subject
from gpudoctor.sources.text import TextInput


def _read(text: TextInput) -> Reading:
    content = text.read().decode("utf-8", "replace")
    topology = topology_text.parse(content, Subject("Host", text.name))
    if topology is None:
        raise InputError(f"{text.name}: no header line of `nvidia-smi topo -m` (GPU0 GPU1 …)")
    return Reading(
        subject=ReportSubject(kind="Topology", name=text.name),
        facts=(topology,),
        published={"topology": topology.published()},
        needed_unknown=bool(topology.broken) or not topology.matrix,
    )


FORMAT = Format("topology", topology_text.rows_seen, _read)
