"""Functions that write the tables of cases."""

from __future__ import annotations

from program_pairs.case import Case, Edit

CASES: list[Case] = []


def cases(network: str, *table: Edit | tuple[Edit, ...]) -> None:
    """Add cases of a network: each an edit, or several that are made together."""
    for entry in table:
        CASES.append(Case(network, entry if isinstance(entry, tuple) else (entry,)))
