"""psutil about real processes, limits and interfaces; and any answer that it may give."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node import machine, process, system
from gpudoctor.facts.node.model import NodeFacts, Process
from gpudoctor.facts.node.system import System
from gpudoctor.report import Subject
from gpudoctor.sources.host import own
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.system import read_system
from tests import parts
from tests.hanging import mounted

PLENTY_S = 30.0
CHILD = [sys.executable, "-P", "-m", "gpudoctor.sources.system_child"]


def answered(*command: str, **more: Any) -> System:
    done = subprocess.run(command, capture_output=True, text=True, check=True, **more)
    return system.parse(done.stdout)


def test_limits_are_those_that_the_kernel_has_for_us() -> None:
    answer = read_system(PLENTY_S, "limits")
    assert not isinstance(answer, str)
    with LiveHost() as live:
        told = process.read_process(live, "self")
    limits = system.parse(answer.text).limits
    assert limits is not None
    assert limits["memlock"] == (told.memlock_soft, told.memlock_hard)
    assert limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_lowered_limit_is_seen() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    limits = answered(*CHILD, "limits", preexec_fn=lower).limits
    assert limits is not None
    assert limits["memlock"] == (65536, 65536)


def test_limits_stand_in_where_proc_is_masked() -> None:
    told = system.parse(json.dumps(["limits", {"memlock": [65536, -1], "nofile": [1, 2]}]))
    facts = NodeFacts(subject=Subject("Host", "test"), process=Process(pid="self"))
    seen = machine.with_system(RecordedHost({}), facts, told).process
    assert seen is not None
    assert (seen.memlock_soft, seen.memlock_hard) == (65536, -1)
    read = Process(pid="self", memlock_soft=1, memlock_hard=1)
    kept = machine.with_system(
        RecordedHost({}), NodeFacts(subject=facts.subject, process=read), told
    )
    assert kept.process == read, "what /proc says of us comes first"
    first = NodeFacts(subject=facts.subject, process=Process(pid="1"))
    assert machine.with_system(RecordedHost({}), first, told).process == first.process


def test_interfaces_are_those_of_our_network_namespace() -> None:
    unshare = parts.program("unshare", "util-linux")
    try:
        told = answered(unshare, "-n", *CHILD, "interfaces")
    except subprocess.CalledProcessError as error:
        parts.missing(f"the right to make a network namespace (root): {error.stderr}")
    lo = next(one for one in told.interfaces or () if one.name == "lo")
    assert (lo.up, lo.addresses) == (False, ()), "nobody has switched it on there"
    here = next(one for one in own.interfaces() if one["name"] == "lo")
    assert here["up"]
    assert "127.0.0.1" in here["addresses"]


def test_who_waits_in_the_kernel(tmp_path: Path) -> None:
    with mounted(tmp_path, "/data") as point:
        waits = subprocess.Popen(["cat", str(point / "data" / "model.bin")])
        while not Path(f"{point}.asked").exists():
            assert waits.poll() is None, "it has to reach the file system"
        waits.kill()  # from now on it waits for the file system alone, which never answers
        while own_state(waits.pid) != "D":
            assert waits.poll() is None
        told = answered(*CHILD, "waiting").waiting or ()
        assert (waits.pid, "cat") in {(one.pid, one.name) for one in told}
        assert os.getpid() not in {one.pid for one in told}
    waits.wait(PLENTY_S)


def own_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "name", "pid", "addresses", "memlock", "pci"]), inner
        )
    ),
    max_leaves=8,
)
SECTION = st.sampled_from(["devices", "interfaces", "limits", "waiting", "?", "other"])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.text(max_size=30), st.tuples(SECTION, JSON).map(json.dumps)), max_size=12)
)
def test_any_answer_is_taken(lines: list[str]) -> None:
    told = system.parse("\n".join(lines))
    facts = NodeFacts(subject=Subject("Host", "test"), process=Process(pid="self"), hcas=())
    machine.with_system(RecordedHost({}), facts, told)


def test_what_was_not_answered_is_unknown_with_its_reason() -> None:
    told = system.parse('["?", "devices"]\n["devices", {"error": "ImportError: no libudev"}]\n'
                        '["?", "interfaces"]\n["interf')  # fmt: skip
    assert {(one.what, one.why) for one in told.unknown} == {
        ("devices of this machine", "ImportError: no libudev"),
        ("interfaces of this machine", "no answer in time"),
    }


@pytest.mark.parametrize("section", ["devices", "interfaces", "limits", "waiting"])
def test_no_section_takes_the_others_with_it(section: str) -> None:
    told = answered(*CHILD, "nonsense", section)
    assert told.unknown == ()
    assert getattr(told, section) is not None
