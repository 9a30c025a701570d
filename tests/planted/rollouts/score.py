"""Measure `ascend_dump` on the set: score.py --kind correct|faults --every N --offset K [--only NAME] [--out FILE]

PYTHONPATH decides which tree of ascend_dump is measured.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rollout_pairs import hf
from rollout_pairs.cases import Case
from verify import load

import ascend_dump

SEEN = Path(__file__).with_name("seen.txt")
OUTCOMES = ("right", "later", "wrong", "none", "noise", "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["correct", "faults"], required=True)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all", help="cases in seen.txt or not")
    parser.add_argument("--every", type=int, default=1, help="take each N-th case")
    parser.add_argument("--offset", type=int, default=0, help="begin with this case")
    parser.add_argument("--only", default="", help="take the cases whose name contains this text")
    parser.add_argument("--out", help="append one line of JSON a case to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = chosen(options.kind, options.part)
    cases = [case for case in wanted[options.offset :: options.every] if options.only in case.name]
    results = []
    for case in cases:
        result = measure(case, options.kind)
        results.append(result)
        print(line(result), flush=True)
        if options.out:
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    print(summary(results, options.kind))
    sys.exit(not results)


def chosen(kind: str, part: str) -> list[Case]:
    """Return the cases of a part of the set: those that somebody has looked at, the others, or all."""
    seen = set(SEEN.read_text(encoding="utf-8").splitlines())
    return [case for case in load(kind) if part == "all" or (case.name in seen) == (part == "seen")]


def measure(case: Case, kind: str) -> dict[str, Any]:
    """Run and compare a pair, and return how the answer is to be judged."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    start = time.process_time()
    result: dict[str, Any] = {"name": case.name, "verdict": "", "outcome": "error", "origins": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            dumps = {side: str(folder / "dumps" / side) for side in ("actual", "reference")}
            ours, theirs = (recorder(path) for path in dumps.values())
            result["difference"] = hf.largest(*case.run(ours, theirs, folder))
            sides = (side.partition("@") for side in case.sides)
            paths = [f"{dumps[name]}{at}{step}" for name, at, step in sides]
            compare_start = time.process_time()
            comparison = ascend_dump.compare(*paths, **case.options)
            result["verdict"] = comparison.verdict
            result["origins"] = [describe(case, origin) for origin in comparison.origins]
            result["compare_seconds"] = round(time.process_time() - compare_start, 2)
            result["outcome"] = judge(kind, comparison.verdict, result["origins"])
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
            result["traceback"] = traceback.format_exc()
    result["seconds"] = round(time.process_time() - start, 2)
    return result


def recorder(path: str) -> hf.Record:
    """Return the function that starts a capture into a directory."""
    return lambda target: ascend_dump.capture(target, path=path, steps="0-99", quiet=True)


def describe(case: Case, origin: Any) -> dict[str, Any]:
    source = str(origin.source) if origin.source else None
    return {
        "op_name": origin.op_name,
        "module": origin.module,
        "source": source,
        "kind": origin.kind,
        "evidence": list(origin.evidence),
        "accepted": case.accepts(origin.op_name, origin.module, source),
    }


def judge(kind: str, verdict: str, origins: list[dict[str, Any]]) -> str:
    """Judge an answer.

    correct: right is equal or noise without an origin; wrong names an origin; none is any other verdict without one.
    faults: right has an accepted origin first, later has one behind others, wrong has others only; noise and none have
    no origin, and the verdict is noise or another one.
    """
    if kind == "correct":
        if origins:
            return "wrong"
        return "right" if verdict in ("equal", "noise") else "none"
    if not origins:
        return "noise" if verdict == "noise" else "none"
    if origins[0]["accepted"]:
        return "right"
    return "later" if any(origin["accepted"] for origin in origins) else "wrong"


def line(result: dict[str, Any]) -> str:
    """Return the line of a case."""
    text = f"{result['name']:44} {result['verdict']:10} {result['outcome']:6} {result['seconds']:6.1f} s"
    if result["origins"]:
        first = result["origins"][0]
        source = "/".join((first["source"] or "").split("/")[-1:])
        text += f"  {first['op_name']} [{first['module']}] {source} {first['kind']}"
    return text + (f"  {result['error']}" if "error" in result else "")


def summary(results: list[dict[str, Any]], kind: str) -> str:
    """Return the table behind the cases."""
    counts = Counter(result["outcome"] for result in results)
    verdicts = Counter(result["verdict"] or "error" for result in results)
    total = max(len(results), 1)
    seconds = sum(result["seconds"] for result in results) / total
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [f"{outcome:8} {counts[outcome]:4} {100 * counts[outcome] / total:6.1f} %" for outcome in OUTCOMES]
    verdict_text = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common())
    ending = f"verdicts: {verdict_text}\n{seconds:.1f} CPU seconds a case, {peak:.0f} MiB at most"
    return "\n".join(["", f"{kind}: {len(results)} cases", *rows, ending])


if __name__ == "__main__":
    main()
