"""Planted faults, the share of them whose operator a comparison names first, and runs that differ by rounding alone.

Usage: bench_faults.py [SEEDS [PROGRAM [KIND]]]     (default 3 seeds of each kind for each program)
       bench_faults.py roundings [PROGRAM [ROUNDING]]

At least 95 % of the faults are to be right, and none of the runs that differ by rounding alone may have an origin.
Measured with PyTorch 2.13: 282 of 282 faults of 14 kinds in 7 programs; no origin in 63 runs of 9 kinds of rounding. Of
7 programs as graphs that PyTorch's tables of decompositions took apart, 5 have none; the transformer has one, behind a
bias whose gradient is rounding alone, and the one in bfloat16 has 18, because the graph computes in float32 in between.
The row `torch.compile` runs operator by operator, because a capture makes no use of compiled code in its steps.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import ascend_dump

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from compare_faults import KINDS, judged, plant, sites
from compare_programs import PROGRAMS
from compare_roundings import ROUNDINGS, reference_of


def roundings(only_program: str = "", only: str = "") -> int:
    """Print what is said of runs that differ by rounding alone; how many of them have an origin, or are different."""
    total, right = Counter[str](), Counter[str]()
    wrong: list[str] = []
    for name, program in PROGRAMS.items():
        for rounding in ROUNDINGS:
            if only_program not in name or only not in rounding:
                continue
            with tempfile.TemporaryDirectory() as directory:
                reference = reference_of(rounding, program, Path(directory) / "reference")
                ROUNDINGS[rounding](program, Path(directory) / "actual")
                found = ascend_dump.compare(Path(directory) / "actual", reference)
            total[rounding] += 1
            if found.origins or found.verdict not in ("equal", "noise", "unmatched"):
                origins = [(one.kind, one.step, one.op_name, *one.evidence) for one in found.origins[:4]]
                wrong.append(f"{name}, {rounding}: {found.verdict} {found.counts} {origins}")
            else:
                right[rounding] += 1
    print(f"\n{'rounding alone':40}{'right':>7}{'of':>6}")
    for rounding in total:
        print(f"{rounding:40}{right[rounding]:7}{total[rounding]:6}")
    print(f"{'all':40}{sum(right.values()):7}{sum(total.values()):6}")
    for line in wrong:
        print("wrong:", line)
    return len(wrong)


def main(seeds: int = 3, only_program: str = "", only_kind: str = "") -> float:
    total, right = Counter[str](), Counter[str]()
    seconds: list[float] = []
    missed: list[str] = []
    for program in PROGRAMS:
        if only_program not in program:
            continue
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            known = sites(PROGRAMS[program], directory / "reference")
            for kind in KINDS:
                for seed in range(seeds if only_kind in kind else 0):
                    fault = plant(program, kind, seed, known, directory)
                    if fault is None:
                        break
                    start = time.perf_counter()
                    found = ascend_dump.compare(fault.actual, directory / "reference")
                    seconds.append(time.perf_counter() - start)
                    total[kind] += 1
                    total[program] += 1
                    said = judged(fault, found)
                    right[kind] += not said
                    right[program] += not said
                    if said:
                        missed.append(f"{program}, {kind} {seed}: {fault.what}, step {fault.step}: {said}")
                    shutil.rmtree(fault.actual)
    print(f"{'kind of fault':20}{'right':>7}{'of':>6}")
    for name in (*KINDS, "", *PROGRAMS, ""):
        print(f"{name:20}{right[name]:7}{total[name]:6}" if total[name] else "")
    found, planted = (sum(counts[kind] for kind in KINDS) for counts in (right, total))
    print(f"{'all':20}{found:7}{planted:6}   {found / max(planted, 1):.1%}")
    print(f"median of a comparison: {median(seconds):.2f} s")
    for line in missed:
        print("missed:", line)
    return found / max(planted, 1)


if __name__ == "__main__":
    if sys.argv[1:2] != ["roundings"]:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, *sys.argv[2:4])
    if len(sys.argv) < 2 or sys.argv[1] == "roundings":
        roundings(*sys.argv[2:4])
