"""The report as one HTML page that needs nothing else: styles inline, no script, no request.

Needs Jinja2, which the extra `html` installs; everything from outside is escaped by it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TextIO

from gpudoctor.render.clean import clean
from gpudoctor.report import Report

_TEMPLATE = "report.html.j2"


class MissingLibraryError(Exception):
    """Jinja2 is not installed: the message says how to get it."""


def render(report: Report, stream: TextIO) -> None:
    """Write the page; MissingLibraryError without Jinja2."""
    try:
        import jinja2
    except ImportError:
        raise MissingLibraryError("-o html needs Jinja2: pip install 'gpudoctor[html]'") from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["clean"] = clean
    source = files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    template = environment.from_string(source)
    stream.write(template.render(report=report) + "\n")
