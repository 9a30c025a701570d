"""Measure `ascend_dump.compare` on the set: one line a case, and a table.

PYTHONPATH decides which tree of ascend_dump is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from program_pairs.answers import OUTCOMES, SETTINGS, entry, measure_all, print_table, printed_lines
from program_pairs.case import Case, build
from program_pairs.cases import CASES
from program_pairs.judge import found_of, module_names, outcome
from program_pairs.program import Program, run
from program_pairs.readers import first_readers

import ascend_dump

_SEEN = Path(__file__).with_name("seen.txt")


class Runner:
    """Runs pairs; keeps the dump of each reference."""

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, data
        self.references: dict[str, tuple[Path, Program]] = {}

    def _dump(self, program: Program, path: Path, options: dict[str, Any]) -> Path:
        settings = {**SETTINGS[self.data], **({"options": options} if options else {})}
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


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=sorted(SETTINGS), default="tensors")
    parser.add_argument("--kind", choices=sorted(OUTCOMES), required=True)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all", help="cases in seen.txt or not")
    parser.add_argument("--every", type=int, default=1, help="every N-th case")
    parser.add_argument("--offset", type=int, default=0, help="beginning with case K")
    parser.add_argument("--only", default="", help="the name of one case, or a part of names")
    parser.add_argument("--out", type=Path, help="file to which each case is appended as a line of JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.process_time()
    cases = chosen(arguments.kind, arguments.every, arguments.offset, arguments.only, arguments.part)
    with tempfile.TemporaryDirectory(prefix="two_heldout_") as folder, contextlib.ExitStack() as stack:
        out = stack.enter_context(arguments.out.open("a", encoding="utf-8")) if arguments.out else None
        results = measure_all(cases, Runner(Path(folder), arguments.data).compare, arguments.data, out)
    print_table(results, arguments.kind, time.process_time() - start)


if __name__ == "__main__":
    main()
