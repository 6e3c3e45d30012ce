"""The README says what is so: its answer is the real one, its files and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from gpudoctor import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_answer_it_shows_is_what_the_demo_prints() -> None:
    demo = next(
        line.strip()
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "check --pod" in line
    )
    arguments = demo.split("||")[0].split()[1:]
    answer = subprocess.run(
        [sys.executable, "-m", "gpudoctor", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = README.split("```")[1].strip("\n")
    assert shown == answer.stdout.strip("\n")


def test_every_command_is_listed_and_every_listed_one_exists() -> None:
    context = click.Context(cli.root)
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert listed == set(cli.root.list_commands(context))


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_first_screen_has_both_commands() -> None:
    first = "\n".join(README.splitlines()[:25])
    assert "make demo" in first
    assert "make test" in first
