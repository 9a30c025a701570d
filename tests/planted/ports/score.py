"""Measure `ascend_dump.compare` on the set: one line a case, and a table.

PYTHONPATH selects the tree of ascend_dump that is measured.
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
from port_programs.cases import CASES, Case, build_port, build_reference
from port_programs.judge import outcome
from port_programs.program import Program
from program_pairs.answers import OUTCOMES, SETTINGS, entry, measure_all, print_table, printed_lines
from program_pairs.judge import found_of

import ascend_dump

_SEEN = Path(__file__).with_name("seen.txt")
_STEPS = 2


class Runner:
    """Runs pairs; keeps the dump of the last reference."""

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, data
        self.network = ""
        self.names: set[str] = set()

    def _dump(self, program: Program, path: Path) -> set[str]:
        """Dump the program, and return the paths of its modules."""
        shutil.rmtree(path, ignore_errors=True)
        with ascend_dump.capture(program.model, steps="0|1", path=str(path), quiet=True, **SETTINGS[self.data]):
            program.train(_STEPS)
        return {name for name, _ in program.model.named_modules()}

    def compare(self, case: Case) -> dict[str, Any]:
        """Run the port, compare it, and judge the answer."""
        reference_path, path = self.folder / "reference", self.folder / "port"
        if case.network != self.network:
            self.names = self._dump(build_reference(case), reference_path)
            self.network = case.network
        names = self._dump(build_port(case), path) | self.names
        comparison = ascend_dump.compare(str(path), str(reference_path))
        lines = printed_lines(path, reference_path)
        origins = [found_of(origin, "") for origin in comparison.origins]
        verdict = str(comparison.verdict)
        return entry(case, outcome(case, verdict, origins, names, self.data), verdict, origins, lines)


def chosen(kind: str, every: int, offset: int, only: str, part: str = "all") -> list[Case]:
    """Return the cases that are to be measured."""
    seen = set(_SEEN.read_text(encoding="utf-8").splitlines())
    cases = [case for case in CASES if case.is_fault == (kind == "faults")]
    if part != "all":
        cases = [case for case in cases if (case.name in seen) == (part == "seen")]
    if only:
        return [case for case in cases if case.name == only] or [case for case in cases if only in case.name]
    return cases[offset::every]


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
    with tempfile.TemporaryDirectory(prefix="ports_") as folder, contextlib.ExitStack() as stack:
        out = stack.enter_context(arguments.out.open("a", encoding="utf-8")) if arguments.out else None
        results = measure_all(cases, Runner(Path(folder), arguments.data).compare, arguments.data, out)
    print_table(results, arguments.kind, time.process_time() - start)


if __name__ == "__main__":
    main()
