"""Print the operators of a graph for `ops`, independent of the format of the graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.failure import error_fields
from ascend_dump.errors import ReadError

__all__ = ["show"]

_Operator = TypeVar("_Operator")


def show(
    path: Path,
    model: str,
    operators: Sequence[_Operator],
    error: Optional[ReadError],
    *,
    titles: Sequence[str],
    cells: Callable[[_Operator], list[str]],
    fields: Callable[[_Operator], dict[str, Any]],
    as_json: bool,
) -> Exit:
    """Print operators as a table or a JSON document, then the error, and return the exit code.

    model   name of the model in the heading, "" if it has none
    error   the error that ended the reading of the graph early, or None
    titles  headings of the columns after the name
    cells   returns the cells of an operator
    fields  returns the JSON fields of an operator
    """
    if as_json:
        from ascend_dump.report.documents import write_document

        document = {"path": path, "model": model, "operators": map(fields, operators)}
        write_document(sys.stdout, "ops", {**document, "error": None if error is None else error_fields(error)})
    else:
        from ascend_dump.report.tables import Column, counted, escape, write_table

        print(escape(f"{path}: model {model}" if model else str(path)))
        count = write_table([Column("name", elastic=True), *map(Column, titles)], map(cells, operators), sys.stdout)
        print(f"\n{counted(count, 'operator')}" if count else "no operator matches")
    if error is None:
        return Exit.OK
    from ascend_dump.report.tables import escape_lines

    print(f"error: {escape_lines(str(error))}", file=sys.stderr)
    return exit_code(error)
