"""A comparison as JUnit XML for build servers: one test case for each operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from xml.etree import ElementTree

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.verdict import ORDER

__all__ = ["junit"]

#: Characters that XML 1.0 does not allow.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(pairs: Iterable[Pair], is_allowed: Callable[[Pair], bool]) -> bytes:
    """Return the document: operators with an unreadable tensor are errors, others that do not agree are failures.

    An operator agrees if all its tensors are equal or within rounding. Tensors that may be missing on one side are not
    judged; an operator that has only such tensors is skipped.
    """
    suite = ElementTree.Element("testsuite", name="ascend-dump compare")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for (rank, step, name), group in groupby(
        pairs, key=lambda pair: (pair.record.rank, pair.record.step, pair.record.op_name)
    ):
        tensors = list(group)
        counts["tests"] += 1
        case = ElementTree.SubElement(suite, "testcase", classname=_text(f"rank {rank}.step {step}"), name=_text(name))
        judged = [pair for pair in tensors if not is_allowed(pair)]
        if not judged:
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message="it may be missing on one side")
            continue
        worst = max(judged, key=lambda pair: ORDER.index(pair.verdict))
        if worst.verdict in ("equal", "noise"):
            continue
        kind = "errors" if worst.verdict == "unreadable" else "failures"
        counts[kind] += 1
        result = ElementTree.SubElement(case, kind[:-1], message=_text(f"{worst.verdict}: {worst.reason}"))
        result.text = _text("\n".join(f"{pair.record.label}: {pair.verdict}: {pair.reason}" for pair in tensors))
    for name, count in counts.items():
        suite.set(name, str(count))
    text: str = ElementTree.tostring(suite, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n".encode()


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
