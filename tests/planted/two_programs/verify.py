"""Verify without the tool that harmless edits change nothing, and that faults change the results."""

from __future__ import annotations

import argparse
import time
import traceback
import warnings

import torch
from program_pairs.case import Case
from program_pairs.cases import CASES
from program_pairs.measure import complaint


def _with_parts(cases: list[Case]) -> list[Case]:
    """Return the cases, and the harmless part of each fault as a case of its own."""
    all_cases = {case.name: case for case in cases}
    for case in cases:
        part = Case(case.network, tuple(edit for edit in case.edits if edit.truth is None))
        if case.is_fault and part.edits:
            all_cases.setdefault(part.name, part)
    return list(all_cases.values())


def main() -> None:
    """Print each case that is not what it is said to be, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name")
    parser.add_argument("--verbose", action="store_true", help="print all cases")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong, start = 0, time.process_time()
    cases = _with_parts([case for case in CASES if arguments.only in case.name])
    for case in cases:
        try:
            text, found = complaint(case)
        except Exception:
            wrong += 1
            print(f"ERROR {case.name}\n{traceback.format_exc(limit=-3)}", flush=True)
            continue
        wrong += bool(text)
        if text or arguments.verbose:
            kind = "fault" if case.is_fault else "harmless"
            print(
                f"{text or 'ok':28} {kind:9} outputs {found.outputs:.1e} gradients {found.gradients:.1e} "
                f"updates {found.updates:.1e} average {found.average:.1e}  {case.name}",
                flush=True,
            )
    seconds = time.process_time() - start
    print(f"{len(cases)} cases, {wrong} not as said, {seconds / max(len(cases), 1):.2f} CPU seconds a case")


if __name__ == "__main__":
    main()
