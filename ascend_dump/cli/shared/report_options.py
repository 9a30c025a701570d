"""Parts that the verbs with an HTML report share: options, and the search for findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar

import click

from ascend_dump.cli.shared.reading import lost_of, open_selected, progress, selector_options, with_existing_values
from ascend_dump.errors import ConfigError, DumpNotFound

if TYPE_CHECKING:
    from ascend_dump.reading import LostRecords
    from ascend_dump.report.page import PageContent

__all__ = ["ReportInput", "analyse_dump", "page_options"]

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
        help="Another run of REFERENCE: differences no larger than between these two runs are noise.",
    ),
)


def page_options(function: _Function) -> _Function:
    """Add DUMP, REFERENCE and the options of a comparison to a verb."""
    for option in reversed(_OPTIONS):
        function = option(function)
    function = click.argument("reference", type=click.Path(), required=False)(function)
    return click.argument("dump", type=click.Path())(function)


class ReportInput(NamedTuple):
    """The content of a report, and the runs of its dumps whose records were lost."""

    content: PageContent
    lost: list[LostRecords]


def analyse_dump(
    dump: str,
    reference: Optional[str],
    *,
    mapping: Optional[str],
    rules: Optional[str],
    noise: Optional[str],
    **selectors: Optional[str],
) -> ReportInput:
    """Search the dump for suspects, or compare it with the reference, and return the content of the report.

    Raises the errors of `triage`, and DumpNotFound if no record matches the selectors.
    """
    from ascend_dump.analysis.triage import triage
    from ascend_dump.cli.compare import read_mapping

    if reference is None:
        for name, value in (("mapping", mapping), ("rules", rules), ("noise", noise)):
            if value is not None:
                raise ConfigError(f"--{name} is for a comparison, and no REFERENCE is given", hint="give REFERENCE too")
    dumps = [open_selected(path, selectors) for path in (dump, reference, noise) if path is not None]
    settings: dict[str, Any] = {}
    if reference is not None:
        settings = {"mapping": read_mapping(mapping), "rules": rules, "noise": None if noise is None else dumps[2]}
    what = "records" if reference is None else "records read and compared"
    with with_existing_values(selectors):
        chosen = dumps[0].selection_text
        if chosen and not dumps[0]:
            raise DumpNotFound(f"holds no records with {chosen}", path=dumps[0].root)
        findings = triage(*dumps[:2], watch=lambda passed: progress(passed, what), **settings)
    return ReportInput(findings.to_page(), lost_of(dumps))
