"""Verify without the tool: one rank computes what N ranks compute, and each fault changes the results.

python verify.py [--ranks 2|4] [--only NAME]

NAME is that of a program, or PROGRAM.FAULT.
"""

from __future__ import annotations

import argparse

import torch
from rank_programs import programs
from rank_programs.common import PROGRAMS
from rank_programs.judge import marked_lines
from rank_programs.launch import RunError, run

#: How many times the tolerance of its program a fault has to exceed.
MARGIN = 20


def distance(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two results, relative to the largest value of each tensor."""
    named = [(key, key if key in others else key.partition(" of rank ")[0]) for key in some]
    if {other for _, other in named} != others.keys():
        return float("inf")
    return max(
        float((some[key] - others[other]).abs().max() / (others[other].abs().max() + 1e-9)) for key, other in named
    )


def without_truth() -> list[str]:
    """Return the faults that no code plants, or that no finding could be right about."""
    found = []
    for name, program in PROGRAMS.items():
        for key, fault in program.faults.items():
            is_marked = bool(marked_lines(program, key))
            text = program.file.read_text()
            if f'planted("{key}")' not in text and key not in ("wrong-group", "world"):
                found.append(f"{name}.{key} is not planted")
            if not (is_marked or fault.at or fault.kinds):
                found.append(f"{name}.{key} has no place")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=programs.__doc__)
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    wanted, _, fault = given.only.partition(".")
    bad = len(without_truth())
    print("\n".join(without_truth()))
    for world in given.ranks or (2, 4):
        for name, program in PROGRAMS.items():
            if world not in program.ranks or (wanted and name != wanted):
                continue
            try:
                healthy = run(name, world=world, keep=True)
                again = run(name, world=world, keep=True)
                lines = [("repeated", max(map(distance, again, healthy)), "=0")]
                if program.one:
                    one = run(name, world=1, keep=True)[0]
                    lines.append(("one rank", max(distance(result, one) for result in healthy), "<="))
            except RunError as failure:
                print(f"FAILED {name} {world}\n{failure}", flush=True)
                bad += 1
                continue
            for key, planted in program.faults.items():
                if world not in planted.ranks or (fault and key != fault):
                    continue
                try:
                    broken = run(name, key, world=world, keep=True)
                    # A program that hangs has no results, and `run` has verified that it did not end.
                    lines.append((key, max(map(distance, broken, healthy)) if broken else float("inf"), ">"))
                except RunError as failure:
                    print(f"FAILED {name}.{key} {world}\n{failure}", flush=True)
                    bad += 1
            for label, value, sign in lines:
                good = {
                    "=0": value == 0,
                    "<=": value <= program.tolerance,
                    ">": value > min(0.2, MARGIN * program.tolerance),
                }[sign]
                bad += not good
                print(f"{'ok' if good else 'BAD':4}{world} {name}.{label:20} {value:.2g}", flush=True)
    print(f"{bad} bad")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
