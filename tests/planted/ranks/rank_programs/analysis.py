"""Call the tool in a process of its own, and return its findings as plain values."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
import traceback
from pathlib import Path
from typing import Any

#: Seconds after which an analysis is stopped.
LIMIT = 300
#: Findings that are looked at.
MOST = 40


class AnalysisError(Exception):
    """The tool raised an exception, or did not end."""


def analysed(dump: str, reference: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the verdict and the findings of `triage`, or of `compare` if there is a reference."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "answer")
        process = multiprocessing.get_context("fork").Process(target=_analyse, args=(dump, reference, answer))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
            raise AnalysisError(f"no answer after {LIMIT} s")
        if not answer.exists():
            raise AnalysisError(f"exit code {process.exitcode}")
        found = json.loads(answer.read_text())
        if "error" in found:
            raise AnalysisError(found["error"])
        return found["verdict"], found["findings"]


def _analyse(dump: str, reference: str | None, answer: Path) -> None:
    try:
        found = _triage(dump) if reference is None else _comparison(dump, reference)
    except BaseException:
        found = {"error": traceback.format_exc()}
    answer.write_text(json.dumps(found))
    os._exit(0)


def _triage(dump: str) -> dict[str, Any]:
    import ascend_dump

    found = ascend_dump.triage(dump)
    findings = [_finding(one, one.rule, one.reason, "") for one in found.suspects[:MOST]]
    return {"verdict": f"{len(found.suspects)} suspects", "findings": findings}


def _comparison(dump: str, reference: str) -> dict[str, Any]:
    import ascend_dump

    found = ascend_dump.compare(dump, reference)
    findings = []
    for one in found.origins[:MOST]:
        parameter = getattr(one.pair.record, "parameter", None)
        findings.append(_finding(one, one.kind, "; ".join(one.evidence), parameter or ""))
    return {"verdict": found.verdict, "findings": findings}


def _finding(one: Any, kind: str, text: str, parameter: str) -> dict[str, Any]:
    """Return a finding; `place` is what patterns of the truth are searched in."""
    record = one.record if hasattr(one, "record") else one.pair.record
    # Suspects say the tensor in their reason, and neighbouring operators, which are no place of a fault. The evidence
    # of origins speaks of other operators too.
    said = re.sub(r"\b(aten|c10d)::\w+", "", text) if hasattr(one, "record") else parameter
    return {
        "kind": kind,
        "op_name": one.op_name,
        "op_type": one.op_type,
        "module": one.module,
        "source": one.source,
        "step": one.step,
        "rank": record.rank,
        "text": text,
        "place": f"{one.op_name} {one.op_type} {one.module or ''} {said}",
    }
