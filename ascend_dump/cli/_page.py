"""What the verbs that show a page share: the dumps, and what is looked for in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import click

from ascend_dump._errors import ConfigError
from ascend_dump.cli._reading import open_selected, progress, selector_options

if TYPE_CHECKING:
    from ascend_dump.report.page import PageContent

__all__ = ["content_of", "page_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS = (
    selector_options("op", "step", "rank"),
    click.option("--mapping", metavar="FILE", help="JSON object: operator names of DUMP and their names in REFERENCE."),
    click.option("--rules", metavar="FILE", help="TOML or JSON: thresholds, as for `ascend-dump compare`."),
    click.option(
        "--sources", metavar="DIR", default=".", show_default=True, help="Show lines of Python files below DIR."
    ),
    click.option("--no-sources", is_flag=True, help="Do not show lines of source files."),
    click.option(
        "--noise",
        metavar="DUMP",
        help="Another run of REFERENCE: smaller differences than between these two are noise.",
    ),
)


def page_options(function: _Function) -> _Function:
    """Add DUMP, REFERENCE and what a comparison takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    function = click.argument("reference", type=click.Path(), required=False)(function)
    return click.argument("dump", type=click.Path())(function)


def content_of(
    dump: str,
    reference: Optional[str],
    *,
    mapping: Optional[str],
    rules: Optional[str],
    noise: Optional[str],
    **selectors: Optional[str],
) -> PageContent:
    """Look through the dump, or compare it with the reference. Raises what these raise."""
    from ascend_dump.analysis.triage import triage

    opened = open_selected(dump, selectors)
    if reference is None:
        for name, value in (("mapping", mapping), ("rules", rules), ("noise", noise)):
            if value is not None:
                raise ConfigError(f"--{name} is for a comparison, and no REFERENCE is given", hint="give REFERENCE too")
        return triage(opened, watch=lambda passed: progress(passed, "records")).to_page()
    from ascend_dump.cli.compare import read_mapping

    found = triage(
        opened,
        open_selected(reference, selectors),
        watch=lambda passed: progress(passed, "records read and compared"),
        mapping=read_mapping(mapping),
        rules=rules,
        noise=None if noise is None else open_selected(noise, selectors),
    )
    return found.to_page()
