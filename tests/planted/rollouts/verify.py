"""Check the cases numerically, without the tool: `python verify.py [--kind correct|faults] [--only NAME]`.

The two sides of a correct pair agree to rounding, those of a fault differ by far more. A line that fails ends with "!".
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from rollout_pairs import correct, faults, hf
from rollout_pairs.cases import Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["correct", "faults"])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else ["correct", "faults"]
    failures = 0
    for kind in kinds:
        for case in load(kind):
            if options.only not in case.name:
                continue
            torch.manual_seed(0)
            try:
                with tempfile.TemporaryDirectory() as folder:
                    difference = hf.largest(*case.run(lambda _: hf.nothing(), lambda _: hf.nothing(), Path(folder)))
            except Exception as error:
                print(f"{kind} {case.name:40} {type(error).__name__}: {str(error)[:200]} !", flush=True)
                failures += 1
                continue
            is_good = difference <= case.bound if kind == "correct" else difference >= case.bound
            failures += not is_good
            print(f"{kind} {case.name:40} {difference:8.1e} {case.bound:8.1e}{'' if is_good else ' !'}", flush=True)
    sys.exit(failures > 0)


def load(kind: str) -> list[Case]:
    """Return the cases of a kind."""
    return (correct if kind == "correct" else faults).cases()


if __name__ == "__main__":
    main()
