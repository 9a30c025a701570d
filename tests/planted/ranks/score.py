"""Score the tool on the programs of this set.

python score.py --kind healthy|faults --way alone|same|one --ranks 2|4
                [--part all|seen|unseen] [--every N] [--offset K] [--only NAME] [--out FILE.jsonl]

alone  `triage` of the dump
same   `compare` with a healthy run of as many ranks
one    `compare` with a healthy run of one rank

NAME is that of a program, or PROGRAM.FAULT. PYTHONPATH decides which tree of ascend_dump is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rank_programs import programs
from rank_programs.analysis import AnalysisError, analysed
from rank_programs.common import PROGRAMS
from rank_programs.judge import judged
from rank_programs.launch import RunError, run

ORDER = ("right", "later", "silent", "wrong-blame", "wrong", "different", "error")
SEEN = Path(__file__).with_name("seen.txt")


def cases(kind: str, way: str, ranks: int) -> list[tuple[str, str]]:
    """Return programs and faults, in the order of the registry."""
    found = []
    for name, program in PROGRAMS.items():
        if ranks not in program.ranks or (way == "one" and not program.one):
            continue
        if kind == "healthy":
            found.append((name, ""))
        else:
            for fault, planted in program.faults.items():
                if ranks in planted.ranks and (way == "alone" or not planted.hangs):
                    found.append((name, fault))
    return found


class Dumps:
    """Healthy dumps, made once per program and number of ranks; only those of the last program are kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[tuple[str, int, int], tempfile.TemporaryDirectory[str]] = {}

    def healthy(self, name: str, world: int, number: int = 0) -> str:
        for key in [key for key in self._made if key[0] != name]:
            self._made.pop(key).cleanup()
        key = name, world, number
        if key not in self._made:
            made = tempfile.TemporaryDirectory(dir=self.root)
            run(name, world=world, path=made.name)
            self._made[key] = made
        return self._made[key].name


def score(name: str, fault: str, way: str, ranks: int, dumps: Dumps) -> dict[str, Any]:
    """Run and judge one case."""
    start = time.monotonic()
    verdict, findings = "", []
    with tempfile.TemporaryDirectory(dir=dumps.root) as broken:
        try:
            if fault:
                run(name, fault, world=ranks, path=broken)
                dump = broken
            else:
                dump = dumps.healthy(name, ranks)
            reference = None
            if way != "alone":
                reference = dumps.healthy(name, 1 if way == "one" else ranks, 0 if fault else 1)
            verdict, findings = analysed(dump, reference)
            answer = judged(findings, verdict, PROGRAMS[name], fault, way)
        except (RunError, AnalysisError) as failure:
            answer, verdict = "error", str(failure).strip().splitlines()[-1]
    return {
        "name": f"{name}.{fault}" if fault else name,
        "ranks": ranks,
        "way": way,
        "alone": bool(fault) and PROGRAMS[name].faults[fault].alone,
        "what": PROGRAMS[name].faults[fault].what if fault else "",
        "verdict": verdict,
        "answer": answer,
        "findings": findings[:8],
        "seconds": round(time.monotonic() - start, 1),
    }


def printed(row: dict[str, Any]) -> str:
    first = ""
    if row["findings"]:
        one = row["findings"][0]
        source = Path(str(one["source"])).name
        first = f"| {one['kind']} {one['op_name']} ({one['op_type']}) rank {one['rank']} {source}: {one['text'][:110]}"
    return f"{row['answer']:12}{row['name']:36}{row['ranks']}  {row['seconds']:5.1f} s  {row['verdict'][:70]} {first}"


def summary(rows: list[dict[str, Any]], kind: str, way: str, ranks: int) -> str:
    """Return a table of the answers; faults that the dump alone cannot show are counted apart."""
    groups = [("all", rows)]
    if kind == "faults" and way == "alone":
        groups.append(("can be known", [row for row in rows if row["alone"]]))
        groups.append(("cannot", [row for row in rows if not row["alone"]]))
    lines = [f"{kind}, {way}, {ranks} ranks", f"{'':14}{'cases':>7}" + "".join(f"{name:>13}" for name in ORDER)]
    for label, members in groups:
        counts = Counter(row["answer"] for row in members)
        lines.append(f"{label:14}{len(members):7}" + "".join(f"{counts[name]:13}" for name in ORDER))
    for label, members in groups:
        if members:
            share = sum(row["answer"] == "right" for row in members) / len(members)
            lines.append(f"{label}: right {100 * share:.1f} %")
    seconds = sum(row["seconds"] for row in rows) / max(1, len(rows))
    return "\n".join([*lines, f"{seconds:.1f} s a case"])


def main() -> None:
    parser = argparse.ArgumentParser(description=programs.__doc__)
    parser.add_argument("--kind", choices=("healthy", "faults"), required=True)
    parser.add_argument("--way", choices=("alone", "same", "one"), required=True)
    parser.add_argument("--ranks", type=int, choices=(2, 4), required=True)
    parser.add_argument("--part", choices=("all", "seen", "unseen"), default="all")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen = cases(given.kind, given.way, given.ranks)
    if given.only:
        chosen = [(name, fault) for name, fault in chosen if given.only in (name, f"{name}.{fault}")]
    if given.part != "all":
        seen = set(SEEN.read_text(encoding="utf-8").splitlines())
        wanted = given.part == "seen"
        chosen = [(name, fault) for name, fault in chosen if ((f"{name}.{fault}" if fault else name) in seen) == wanted]
    rows = []
    with tempfile.TemporaryDirectory() as root:
        dumps = Dumps(Path(root))
        for name, fault in chosen[given.offset :: given.every]:
            row = score(name, fault, given.way, given.ranks, dumps)
            rows.append(row)
            print(printed(row), flush=True)
            if given.out:
                with given.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
    print(summary(rows, given.kind, given.way, given.ranks))


if __name__ == "__main__":
    main()
