"""Measure `ascend_dump.compare` on the set: one line a case, and a table.

PYTHONPATH decides which tree of ascend_dump is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from framework_pairs.cases import CASES, Case
from framework_pairs.dumps import Dumps
from framework_pairs.judge import outcome, stages_of

import ascend_dump
from ascend_dump.cli import main as main_of_tool

_OUTCOMES = {
    "faults": ("right", "later", "wrong", "none", "noise", "error"),
    "correct": ("quiet", "different", "named", "error"),
}
_MOST_LINES = 25
_SEEN = Path(__file__).with_name("seen.txt")


def printed_lines(actual: Path, reference: Path) -> int:
    """Return the number of lines that the command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main_of_tool(["compare", str(actual), str(reference)])
    if code not in (0, 1):
        raise RuntimeError(f"the command ended with code {code}")
    return len(printed.getvalue().splitlines())


def _text(origin: Any) -> str:
    records = [record for record in (origin.pair.actual, origin.pair.reference) if record is not None]
    named = (f"{record.op_name} {'|'.join(sorted(stages_of(record)))}" for record in records)
    return f"{origin.kind}: {', '.join(named)}"


def measure(case: Case, dumps: Dumps, *, lines: bool = False) -> dict[str, Any]:
    """Compare the programs of a case, and judge the answer; `lines`: also count the printed lines."""
    result: dict[str, Any] = {"name": case.name, "fault": case.is_fault, "lines": 0, "origins": 0, "first": "-"}
    actual, reference = (dumps.path(program) for program in case.programs)
    try:
        comparison = ascend_dump.compare(str(actual), str(reference))
        result["lines"] = printed_lines(actual, reference) if lines else 0
    except Exception as error:
        traceback.print_exc(limit=-3)
        return {**result, "outcome": "error", "verdict": type(error).__name__}
    verdict, origins = str(comparison.verdict), comparison.origins
    result.update(outcome=outcome(case, verdict, origins), verdict=verdict, origins=len(origins))
    return {**result, "first": _text(origins[0]) if origins else "-"}


def chosen(kind: str, part: str, only: str) -> list[Case]:
    """Return the cases that are to be measured."""
    seen = set(_SEEN.read_text(encoding="utf-8").splitlines())
    wanted = [case for case in CASES if case.is_fault == (kind == "faults")]
    if part != "all":
        wanted = [case for case in wanted if (case.name in seen) == (part == "seen")]
    return [case for case in wanted if only in case.name]


def print_table(results: list[dict[str, Any]], kind: str) -> None:
    """Print the counts of outcomes for each pair of frameworks."""
    groups: dict[str, list[dict[str, Any]]] = {"all": results}
    for result in results:
        groups.setdefault(result["name"].split("/")[1], []).append(result)
    print(f"\n{'':20}" + "".join(f"{name:>11}" for name in ("cases", *_OUTCOMES[kind])))
    for name, group in groups.items():
        counts = Counter(result["outcome"] for result in group)
        print(f"{name:20}{len(group):>11}" + "".join(f"{counts[key]:>11}" for key in _OUTCOMES[kind]))
    if not any(result["lines"] for result in results):
        return
    short = sum(result["lines"] <= _MOST_LINES for result in results)
    print(f"at most {_MOST_LINES} lines: {short} of {len(results)}")


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where dumps and interpreters are."""
    parser.add_argument("--tensorflow", default="python", help="interpreter with TensorFlow 2.15")
    parser.add_argument("--mindspore", default="python", help="interpreter with MindSpore")
    parser.add_argument("--dumps", type=Path, help="folder in which dumps are kept for the next run")


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(_OUTCOMES), required=True)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all", help="cases in seen.txt or not")
    parser.add_argument("--only", default="", help="a part of names")
    parser.add_argument("--lines", action="store_true", help="also count the lines that the command prints")
    parser.add_argument("--out", type=Path, help="file to which each case is appended as a line of JSON")
    add_places(parser)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start, results = time.process_time(), []
    cases = chosen(arguments.kind, arguments.part, arguments.only)
    with tempfile.TemporaryDirectory(prefix="frameworks_") as folder:
        pythons = {"tensorflow": arguments.tensorflow, "mindspore": arguments.mindspore}
        dumps = Dumps(arguments.dumps or Path(folder), pythons)
        dumps.make(program for case in cases for program in case.programs)
        for case in cases:
            result = measure(case, dumps, lines=arguments.lines)
            results.append(result)
            line = "{outcome:10}{verdict:11}{name}  first {first}  {origins} origins, {lines} lines"
            print(line.format(**result), flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(result) + "\n")
    print_table(results, arguments.kind)
    print(f"{(time.process_time() - start) / max(len(results), 1):.1f} CPU seconds a case")


if __name__ == "__main__":
    main()
