"""Measure `ascend_dump.compare` on the set: one line a case, and a table.

PYTHONPATH decides which tree of ascend_dump is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from program_pairs.case import Case, build
from program_pairs.cases import CASES
from program_pairs.judge import Found, found_of, module_names, outcome
from program_pairs.program import Program, run
from program_pairs.readers import first_readers

import ascend_dump
from ascend_dump.cli import main as main_of_tool

_SETTINGS: dict[str, dict[str, Any]] = {
    "tensors": {"data": "tensor"},
    "statistics": {"data": "stats"},
    "modules": {"data": "tensor", "level": "module"},
}
_OUTCOMES = {
    "faults": ("right", "module-right", "later", "wrong", "none", "noise", "error"),
    "harmless": ("quiet", "different", "named", "error"),
}
_MOST_LINES, _MOST_ORIGINS = 25, 10
_SEEN = Path(__file__).with_name("seen.txt")


class Runner:
    """Runs pairs; keeps the dump of each reference."""

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, data
        self.references: dict[str, tuple[Path, Program]] = {}

    def _dump(self, program: Program, path: Path, options: dict[str, Any]) -> Path:
        settings = {**_SETTINGS[self.data], **({"options": options} if options else {})}
        run(program, ascend_dump.capture(program.model, steps="0|1", path=str(path), quiet=True, **settings))
        return path

    def reference(self, network: str, options: dict[str, Any]) -> tuple[Path, Program]:
        """Return the dump of a network as it is."""
        key = f"{network} {sorted(options.items())}"
        if key not in self.references:
            program = build(network, ())
            path = self.folder / f"reference_{len(self.references)}"
            self.references[key] = (self._dump(program, path, options), program)
        return self.references[key]

    def compare(self, case: Case) -> dict[str, Any]:
        """Run the changed program, compare it, and judge the answer."""
        actual = build(case.network, case.edits)
        reference_path, reference = self.reference(case.network, actual.capture_options)
        path = self.folder / "actual"
        try:
            self._dump(actual, path, actual.capture_options)
            comparison = ascend_dump.compare(str(path), str(reference_path))
            lines = printed_lines(path, reference_path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        origins = [found_of(origin, actual.module_prefix) for origin in comparison.origins]
        verdict = str(comparison.verdict)
        needed = self.data == "modules" and case.is_fault
        readers = first_readers(case) if needed else set()
        result = outcome(case, verdict, origins, module_names(actual, reference), readers)
        return entry(case, result, verdict, origins, lines)


def printed_lines(actual: Path, reference: Path) -> int:
    """Return the number of lines that the command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main_of_tool(["compare", str(actual), str(reference)])
    if code not in (0, 1):
        raise RuntimeError(f"the command ended with code {code}")
    return len(printed.getvalue().splitlines())


def entry(case: Case, result: str, verdict: str, origins: list[Found], lines: int) -> dict[str, Any]:
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


def chosen(kind: str, every: int, offset: int, only: str, part: str = "all") -> list[Case]:
    """Return the cases that are to be measured."""
    seen = set(_SEEN.read_text(encoding="utf-8").splitlines())
    wanted = [case for case in CASES if case.is_fault == (kind == "faults")]
    if part != "all":
        wanted = [case for case in wanted if (case.name in seen) == (part == "seen")]
    if only:
        exact = [case for case in wanted if case.name == only]
        return exact or [case for case in wanted if only in case.name]
    return wanted[offset::every]


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "0 of 0"


def print_table(results: list[dict[str, Any]], kind: str, seconds: float) -> None:
    """Print the counts of outcomes and the length of the answers."""
    groups = {"all": results}
    if kind == "faults":
        groups["shown by modules"] = [result for result in results if result["visible"]]
        groups["outside of modules"] = [result for result in results if not result["visible"]]
    print(f"\n{'':20}" + "".join(f"{name:>14}" for name in ("cases", *_OUTCOMES[kind])))
    for name, group in groups.items():
        counts = Counter(result["outcome"] for result in group)
        print(f"{name:20}{len(group):>14}" + "".join(f"{counts[key]:>14}" for key in _OUTCOMES[kind]))
    answered = [result for result in results if result["outcome"] != "error"]
    best = _OUTCOMES[kind][0]
    for name, group in groups.items():
        print(f"{best}, {name}: {_share(sum(result['outcome'] == best for result in group), len(group))}")
    short = sum(result["lines"] <= _MOST_LINES for result in answered)
    print(f"at most {_MOST_LINES} lines: {_share(short, len(answered))}")
    few = sum(result["origins"] <= _MOST_ORIGINS for result in answered)
    print(f"at most {_MOST_ORIGINS} origins: {_share(few, len(answered))}")
    print(f"{seconds / max(len(results), 1):.1f} CPU seconds a case")


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=sorted(_SETTINGS), default="tensors")
    parser.add_argument("--kind", choices=sorted(_OUTCOMES), required=True)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all", help="cases in seen.txt or not")
    parser.add_argument("--every", type=int, default=1, help="every N-th case")
    parser.add_argument("--offset", type=int, default=0, help="beginning with case K")
    parser.add_argument("--only", default="", help="the name of one case, or a part of names")
    parser.add_argument("--out", type=Path, help="file to which each case is appended as a line of JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start, results = time.process_time(), []
    cases = chosen(arguments.kind, arguments.every, arguments.offset, arguments.only, arguments.part)
    with tempfile.TemporaryDirectory(prefix="two_heldout_") as folder, contextlib.ExitStack() as stack:
        out = stack.enter_context(arguments.out.open("a", encoding="utf-8")) if arguments.out else None
        runner = Runner(Path(folder), arguments.data)
        for case in cases:
            try:
                result = runner.compare(case)
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
                out.write(json.dumps({"data": arguments.data, **result}) + "\n")
                out.flush()
    print_table(results, arguments.kind, time.process_time() - start)


if __name__ == "__main__":
    main()
