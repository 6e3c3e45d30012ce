"""Files with Kubernetes objects in every form that people hand in, and what is no such file."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes.documents import read_objects

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer-0"}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
LIST = {"apiVersion": "v1", "kind": "List", "items": [POD, NODE], "metadata": {}}


def read(raw: bytes | str) -> list[Any]:
    content = raw.encode() if isinstance(raw, str) else raw
    return [msgspec.json.decode(found) for found in read_objects(content, "dump")]


def complaint(raw: bytes | str) -> str:
    with pytest.raises(InputError) as caught:
        read(raw)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("dump: ")
    return message


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (json.dumps(POD), [POD]),
        (json.dumps(LIST, indent=4), [POD, NODE]),
        (json.dumps([POD, NODE]), [POD, NODE]),
        (f"{json.dumps(POD)}\n{json.dumps(NODE)}\n", [POD, NODE]),
        (json.dumps(POD) + json.dumps(NODE), [POD, NODE]),
        (f"{json.dumps(POD)}\n---\n{json.dumps(NODE)}\n---\n", [POD, NODE]),
        (json.dumps(POD, indent=2) + "\n\n" + json.dumps(LIST, indent=2), [POD, POD, NODE]),
        (json.dumps({**LIST, "items": None}), []),
        (json.dumps({**LIST, "items": [None, POD]}), [POD]),
        (json.dumps({**LIST, "items": [LIST, POD]}), [POD, NODE, POD]),
        (yaml.safe_dump(POD), [POD]),
        (yaml.safe_dump_all([POD, NODE]), [POD, NODE]),
        (yaml.safe_dump(LIST), [POD, NODE]),
        (f"# saved\n---\n{yaml.safe_dump(POD)}---\n# nothing\n---\n", [POD]),
        ("%YAML 1.2\n---\nkind: Pod\n", [{"kind": "Pod"}]),
        (f"---\n{json.dumps(POD)}\n---\n{json.dumps(NODE)}\n", [POD, NODE]),
    ],
    ids=range(16),
)
def test_every_form_is_read(raw: str, expected: list[Any]) -> None:
    assert read(raw) == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", [json.dumps(LIST, indent=2), yaml.safe_dump(LIST)])
def test_byte_order_marks_and_windows_line_ends(encoding: str, text: str) -> None:
    assert read(text.replace("\n", "\r\n").encode(encoding)) == [POD, NODE]


def test_items_without_kind_take_that_of_their_list() -> None:
    raw = json.dumps(
        {"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}, {}]}
    )
    assert read(raw) == [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "Pod"},
    ]
    slices = {"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "items": [{}]}
    assert read(yaml.safe_dump(slices)) == [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("8", 8),
        ('"8"', "8"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("8k", "8k"),
        ("500m", "500m"),
        ("1e3", 1000.0),
        ("-0.5", -0.5),
        ("+7", 7),
        ("0x10", 16),
        (".5", 0.5),
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20T08:06:10Z", "2026-11-20T08:06:10Z"),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("", None),
        (".inf", ".inf"),
        ("1_000", "1_000"),
        ("{}", {}),
        ("[]", []),
        ("|\n  two\n  lines", "two\nlines\n"),
    ],
)
def test_yaml_scalars_are_what_json_would_hold(written: str, expected: object) -> None:
    [found] = read(f"kind: Pod\nvalue: {written}\n")
    assert found["value"] == expected
    assert type(found["value"]) is type(expected)


def test_numbers_keep_their_digits() -> None:
    [found] = read_objects(b"kind: Pod\ncpu: 1e3\nmemory: 12345678901234567890\n", "dump")
    assert bytes(found) == b'{"kind":"Pod","cpu":1e3,"memory":12345678901234567890}'


def test_anchors_and_merge_keys() -> None:
    raw = """
kind: List
items:
- &base {kind: Pod, labels: &labels {app: a, tier: b}}
- <<: *base
  labels: *labels
- kind: Pod
  labels: {<<: *labels, app: c}
"""
    assert [pod["labels"] for pod in read(raw)] == [
        {"app": "a", "tier": "b"},
        {"app": "a", "tier": "b"},
        {"app": "c", "tier": "b"},
    ]


def laughs() -> str:
    lines = ["kind: Pod", "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is empty"),
        (b"\n \t\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        ("# only this\n---\n", "only comments"),
        ("kind: Pod\nname: \x00\n", "line 2: binary data"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "line 1: binary data"),
        ("hello there\n", "line 1: a text, not a Kubernetes object"),
        ('{"kind": "Pod", "spec": {\n "a": [1, 2', "line 2: the JSON ends in the middle"),
        ('{"kind": "Pod",\n "a" 1}', "line 2: not valid JSON: expected ':'"),
        ('{"kind": "Pod"}\nTraceback', "line 2: not valid JSON: trailing characters"),
        ('{"kind": "Pod"}\n{"kind": "Node",\n}', "line 2: not valid JSON: trailing comma"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "{a: " * 200, "not valid JSON"),
        ("a: " + "[" * 200, "nested too deeply"),
        ('{"some": "thing"}', "no kind in it"),
        ('["a"]', "items[0] is not a Kubernetes object"),
        ('{"kind": "List", "items": {"a": 1}}', "items of a list are not a list"),
        ('{"kind": "List", "items": [{"a": 1}]}', "items[0] has no kind"),
        ("kind: Pod\nkind: Node\n", "line 2: the key 'kind' is there twice"),
        ("kind: Pod\nspec:\n\tcontainers: []\n", "line 3: a tab in the indentation"),
        ("kind: Pod\nspec: [a, b\nmore: c\n", "line 3: not valid YAML"),
        ("kind: !!python/object/apply:os.system [id]\n", "line 1: the tag !!python/object"),
        ("kind: Pod\nat: !!timestamp 2026-01-01\n", "line 2: the tag !!timestamp"),
        ("kind: Pod\na: *nowhere\n", "line 2: the alias *nowhere has no anchor"),
        ("kind: Pod\na: &a [*a]\n", "line 2: the alias *a has no anchor"),
        ("kind: Pod\n? [a, b]\n: c\n", "line 2: the key of a mapping is not a text"),
        ("kind: Pod\n<<: text\n", "line 2: << merges a mapping"),
        (laughs(), "aliases repeat too much"),
        (
            "NAME        READY   STATUS\ntrainer-0   0/1     Pending\n",
            "the table that `kubectl get`",
        ),
        ("NAMESPACE  NAME  READY\n", "the table that `kubectl get`"),
        ("LAST SEEN   TYPE      REASON\n", "the table that `kubectl get`"),
        ("Name:  trainer-0\nNamespace:  ml\n", "`gpudoctor explain` reads that"),
        ("Error from server (Forbidden): pods is forbidden\n", "an answer of kubectl"),
        ("No resources found in default namespace.\n", "an answer of kubectl"),
        (
            '{"kind": "Status", "code": 403, "message": "pods is forbidden: no"}',
            "an answer of the API server, not objects: pods is forbidden: no",
        ),
    ],
    ids=range(35),
)
def test_what_is_no_dump_is_said_in_one_line(raw: bytes | str, says: str) -> None:
    assert says in complaint(raw)


def test_what_is_not_utf8_does_no_harm() -> None:
    [found] = read(b'{"kind": "Pod", "message": "caf\xe9"}')
    assert found["message"] == "caf\N{REPLACEMENT CHARACTER}"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(JSON_VALUES, min_size=1, max_size=4))
def test_json_and_yaml_of_the_same_objects_read_alike(values: list[Any]) -> None:
    objects = [{"kind": "Thing", "value": value} for value in values]
    as_lines = "\n".join(json.dumps(value) for value in objects)
    as_yaml = yaml.safe_dump_all(objects, allow_unicode=False)
    assert read(as_lines) == objects
    assert read(as_yaml) == objects


@settings(deadline=None, max_examples=150)
@given(
    st.binary(max_size=200)
    | st.text(alphabet="{}[]:,\"'&*!-?|> \n\tk0e~.<", max_size=80).map(str.encode)
)
def test_anything_else_is_objects_or_an_input_error(raw: bytes) -> None:
    with contextlib.suppress(InputError):
        assert all(isinstance(found, dict) for found in read(raw))
