"""Lines of results, and their table; for sets whose cases have a `name`, `is_fault` and `truth.visible`."""

from __future__ import annotations

import contextlib
import io
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from ascend_dump.cli import main as main_of_tool
from program_pairs.judge import Found

SETTINGS: dict[str, dict[str, Any]] = {
    "tensors": {"data": "tensor"},
    "statistics": {"data": "stats"},
    "modules": {"data": "tensor", "level": "module"},
}
OUTCOMES = {
    "faults": ("right", "module-right", "later", "wrong", "none", "noise", "error"),
    "harmless": ("quiet", "different", "named", "error"),
}
_MOST_LINES, _MOST_ORIGINS = 25, 10


def printed_lines(actual: Path, reference: Path) -> int:
    """Return the number of lines that the command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main_of_tool(["compare", str(actual), str(reference)])
    if code not in (0, 1):
        raise RuntimeError(f"the command ended with code {code}")
    return len(printed.getvalue().splitlines())


def entry(case: Any, result: str, verdict: str, origins: list[Found], lines: int) -> dict[str, Any]:
    """Return the line of a case as plain values."""
    first = origins[0] if origins else None
    return {
        "name": case.name,
        "fault": case.is_fault,
        "visible": case.truth.visible,
        "verdict": verdict,
        "outcome": result,
        "origins": len(origins),
        "first": first.name if first else "-",
        "module": first.module if first else "-",
        "line": first.line if first else "-",
        "kind": first.kind if first else "-",
        "lines": lines,
    }


def measure_all(
    cases: Iterable[Any], compare: Callable[[Any], dict[str, Any]], data: str, out: TextIO | None
) -> list[dict[str, Any]]:
    """Measure cases one after the other; print each, and append it to `out`."""
    results = []
    for case in cases:
        try:
            result = compare(case)
        except Exception as error:
            traceback.print_exc(limit=-3)
            result = entry(case, "error", type(error).__name__, [], 0)
        results.append(result)
        print(
            "{outcome:13}{verdict:11}{name}  first {first}  module {module}  {line}  {kind}  "
            "{origins} origins, {lines} lines".format(**result),
            flush=True,
        )
        if out is not None:
            out.write(json.dumps({"data": data, **result}) + "\n")
            out.flush()
    return results


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "0 of 0"


def print_table(results: list[dict[str, Any]], kind: str, seconds: float) -> None:
    """Print the counts of outcomes and the length of the answers."""
    groups = {"all": results}
    if kind == "faults":
        groups["shown by modules"] = [result for result in results if result["visible"]]
        groups["outside of modules"] = [result for result in results if not result["visible"]]
    print(f"\n{'':20}" + "".join(f"{name:>14}" for name in ("cases", *OUTCOMES[kind])))
    for name, group in groups.items():
        counts = Counter(result["outcome"] for result in group)
        print(f"{name:20}{len(group):>14}" + "".join(f"{counts[key]:>14}" for key in OUTCOMES[kind]))
    answered = [result for result in results if result["outcome"] != "error"]
    best = OUTCOMES[kind][0]
    for name, group in groups.items():
        print(f"{best}, {name}: {_share(sum(result['outcome'] == best for result in group), len(group))}")
    short = sum(result["lines"] <= _MOST_LINES for result in answered)
    print(f"at most {_MOST_LINES} lines: {_share(short, len(answered))}")
    few = sum(result["origins"] <= _MOST_ORIGINS for result in answered)
    print(f"at most {_MOST_ORIGINS} origins: {_share(few, len(answered))}")
    print(f"{seconds / max(len(results), 1):.1f} CPU seconds a case")
