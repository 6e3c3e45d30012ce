"""Inputs that people hand in: plain, compressed, with byte order marks, unreadable."""

from __future__ import annotations

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from gpudoctor.errors import InputError
from gpudoctor.sources.text import HEAD_BYTES, TextInput, as_utf8, open_input


def test_plain_and_gzip_read_alike(tmp_path: Path) -> None:
    content = b"NCCL INFO line\n" * 20_000
    for name, raw in (("plain", content), ("packed", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(raw)
        with open_input(str(path)) as text:
            assert text.head == content[:HEAD_BYTES]
            assert text.read() == content


def test_a_pipe_that_starts_with_one_line() -> None:
    reading, writing = os.pipe()
    lines = [b"Name: a\n", b"Namespace: b\n"]

    def write() -> None:
        with io.FileIO(writing, "w") as pipe:
            for line in lines:
                pipe.write(line)

    writer = threading.Thread(target=write)
    writer.start()
    with TextInput("-", io.FileIO(reading)) as text:
        assert text.head == b"".join(lines)
        assert text.read() == b"".join(lines)
    writer.join()


def test_text_by_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        path.write_bytes("größe\n".encode(encoding))
        with open_input(str(path)) as text:
            assert text.text() == "größe\n"
    assert as_utf8(b"caf\xe9") == "caf\N{REPLACEMENT CHARACTER}".encode()
    assert as_utf8(("ä" * 1_500_000).encode()) == ("ä" * 1_500_000).encode()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        open_input(str(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        open_input(str(tmp_path / "absent"))
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"x" * 100_000)[:60])
    with pytest.raises(InputError, match="cannot be read"), open_input(str(broken)) as text:
        text.read()
