"""Probes of exception dumps: what `programs/failing_kernel.py` noted of kernels that failed, each in a process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.native.cann.names import EXCEPTION_DIRECTORY
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = ["exception_environment", "exception_first", "exception_names", "initial_config"]

_DIRECTORY = re.escape("/".join(EXCEPTION_DIRECTORY)) + r"/\d+/"
_BRIEF = re.compile(_DIRECTORY + r"exception_info\.\d+\.\d+\.\d{17}", re.ASCII)
_NORM = re.compile(_DIRECTORY + r"(?!exception_info\.)[^./]+\.[^./]+\.\d+\.\d{17}", re.ASCII)
_NOTHING = Outcome("unknown", "no exception dump was written")


def _untried(evidence: Evidence, *questions: str) -> Optional[Outcome]:
    """The outcome where one of them has no answer."""
    missing = next((one for one in questions if one not in evidence.facts), None)
    return None if missing is None else judge_fact(evidence, missing, None)


def _are(paths: Iterable[str], pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, paths))


def _seen(paths: Iterable[str]) -> str:
    return ", ".join(paths) or "no file"


def exception_names(evidence: Evidence) -> Outcome:
    """The files of a brief dump, which torch_npu sets, and those of a normal one, which NPU_COLLECT_PATH sets."""
    untried = _untried(evidence, "failed_initial", "failed_collected")
    if untried is not None:
        return untried
    brief, norm = evidence.facts["failed_initial"], evidence.facts["failed_collected"]["named"]
    if not brief or not norm:
        return Outcome("unknown", f"brief: {_seen(brief)}; norm: {_seen(norm)}")
    good = _are(brief, _BRIEF) and _are(norm, _NORM)
    return Outcome("confirmed" if good else "refuted", f"{_seen(brief)}; {_seen(norm)}")


def exception_first(evidence: Evidence) -> Outcome:
    """Whether a dump that is set after that of aclInit was accepted, and which of the two wrote files."""
    untried = _untried(evidence, "failed_initial", "failed_later")
    if untried is not None:
        return untried
    if not evidence.facts["failed_initial"]:
        return Outcome("unknown", "torch_npu sets no exception dump of its own, so that the later one is the first")
    found: dict[str, Any] = evidence.facts["failed_later"]
    if found["refused"]:
        return Outcome("refuted", found["refused"])
    if not found["first"] and not found["later"]:
        return _NOTHING
    return Outcome("refuted" if found["later"] else "confirmed", _seen([*found["first"], *found["later"]]))


def exception_environment(evidence: Evidence) -> Outcome:
    """What NPU_COLLECT_PATH and ASCEND_DUMP_SCENE left in the directory that they name."""
    untried = _untried(evidence, "failed_collected", "failed_scene")
    if untried is not None:
        return untried
    found = [evidence.facts[name] for name in ("failed_collected", "failed_scene")]
    if not any(one["named"] or one["working"] for one in found):
        return _NOTHING
    good = all(_are(one["named"], _NORM) for one in found)
    return Outcome("confirmed" if good else "refuted", "; ".join(_seen(one["named"]) for one in found))


def initial_config(evidence: Evidence) -> Outcome:
    """What is left where nothing is set, and where TORCH_ACL_INIT_CONFIG_PATH names a file for a normal dump."""
    untried = _untried(evidence, "failed_initial", "failed_chosen")
    if untried is not None:
        return untried
    own, chosen = evidence.facts["failed_initial"], evidence.facts["failed_chosen"]
    if not own and not chosen["named"] and not chosen["working"]:
        return _NOTHING
    good = _are(own, _BRIEF) and _are(chosen["named"], _NORM) and not chosen["working"]
    seen = f"by itself: {_seen(own)}; by the file: {_seen(chosen['named'])}"
    return Outcome("confirmed" if good else "refuted", seen)
