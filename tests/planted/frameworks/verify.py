"""Verify without the tool that correct pairs compute the same, and that faults do not."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from framework_pairs.cases import CASES, Case
from framework_pairs.dumps import Dumps
from score import add_places, chosen

#: Correct pairs differ by less than 3e-6; the smallest fault, the approximation of GELU, by 2e-5.
_LARGEST_OF_CORRECT = 1e-5


def difference(case: Case, dumps: Dumps) -> float:
    """Return the largest difference of losses and parameters, relative to the norm of the losses or parameter."""
    actual, reference = (dumps.results(program) for program in case.programs)
    largest = 0.0
    for name, value in reference.items():
        other = actual.get(name)
        if other is None or other.size != value.size:
            # Matrices and kernels have other layouts; a bias may be missing.
            largest = max(largest, 1.0 if other is not None else 0.0)
            continue
        x, y = np.sort(other.ravel().astype("f8")), np.sort(value.ravel().astype("f8"))
        largest = max(largest, float(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1.0)))
    return largest


def main() -> None:
    """Print each case that is not what it is said to be, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all")
    parser.add_argument("--verbose", action="store_true", help="print all cases")
    add_places(parser)
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="frameworks_") as folder:
        pythons = {"tensorflow": arguments.tensorflow, "mindspore": arguments.mindspore}
        dumps = Dumps(arguments.dumps or Path(folder), pythons)
        cases = [case for kind in ("correct", "faults") for case in chosen(kind, arguments.part, "")]
        dumps.make(program for case in cases for program in case.programs)
        for case in cases:
            found = difference(case, dumps)
            is_as_said = (found > _LARGEST_OF_CORRECT) == case.is_fault
            wrong += not is_as_said
            if not is_as_said or arguments.verbose:
                print(f"{'ok' if is_as_said else 'NOT AS SAID':12}{found:.1e}  {case.name}", flush=True)
    print(f"{len(cases)} of {len(CASES)} cases, {wrong} not as said")


if __name__ == "__main__":
    main()
