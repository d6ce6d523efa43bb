"""The report as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from safecache._version import __version__
from safecache.cli.html.facts import Facts
from safecache.errors import printable

__all__ = ["render"]


def render(facts: Facts) -> str:
    """The page. Names and texts in it may be of anybody: they are no markup there, and no control characters."""
    environment = Environment(
        loader=PackageLoader("safecache.cli.html", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    lookups, hits = (
        sum(numbers) for numbers in zip(*((each.lookups, each.hits) for each in facts.caches), strict=True)
    )
    return environment.get_template("page.html.j2").render(facts=facts, version=__version__, lookups=lookups, hits=hits)
