"""Probes of exception dumps: the files that CANN writes when a kernel fails.

CANN has several kinds of them. The file of a *brief* dump is named `exception_info.…`, that of a *norm* dump after the
type of the kernel. The facts come from `programs/failing_kernel.py`, which lets one kernel fail in each of its
processes, and notes the paths of the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ascend_dump.native.cann.names import EXCEPTION_DIRECTORY
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, outcome, probes

__all__ = ["PROBES"]

_DIRECTORY = re.escape("/".join(EXCEPTION_DIRECTORY)) + r"/\d+/"
_BRIEF = re.compile(_DIRECTORY + r"exception_info\.\d+\.\d+\.\d{17}", re.ASCII)
_NORM = re.compile(_DIRECTORY + r"(?!exception_info\.)[^./]+\.[^./]+\.\d+\.\d{17}", re.ASCII)
#: The file of an eager operator in a norm dump.
_KERNEL = re.compile(_DIRECTORY + r"aclnn\w+_\d+_L0\.[^./]+\.\d+\.\d{17}", re.ASCII)
_NOTHING = Outcome("unknown", "no exception dump was written")


def _has(paths: Iterable[str], pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, paths))


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(paths) or "no file"


def exception_names(evidence: Evidence) -> Outcome:
    """Judge the file names of a brief dump, torch_npu's default, and of a norm dump, requested by NPU_COLLECT_PATH."""
    brief, norm = fact(evidence, "failed_initial"), fact(evidence, "failed_collected")["named"]
    if not brief or not norm:
        return Outcome("unknown", f"brief: {_listed(brief)}; norm: {_listed(norm)}")
    return outcome(_has(brief, _BRIEF) and _has(norm, _KERNEL), f"{_listed(brief)}; {_listed(norm)}")


def exception_first(evidence: Evidence) -> Outcome:
    """Judge a second exception dump, set after the one of aclInit: it is accepted, but only the first writes files."""
    initial, later = fact(evidence, "failed_initial"), fact(evidence, "failed_later")
    if not initial:
        return Outcome("unknown", "torch_npu sets no exception dump at aclInit, so no dump can be a second one")
    if later["refused"]:
        return Outcome("refuted", later["refused"])
    if not later["first"] and not later["later"]:
        return _NOTHING
    return outcome(not later["later"], _listed([*later["first"], *later["later"]]))


def exception_environment(evidence: Evidence) -> Outcome:
    """Judge the norm dumps that NPU_COLLECT_PATH or ASCEND_DUMP_SCENE requests: both write to the named directory."""
    runs = [fact(evidence, name) for name in ("failed_collected", "failed_scene")]
    if not any(run["named"] or run["working"] for run in runs):
        return _NOTHING
    return outcome(all(_has(run["named"], _NORM) for run in runs), "; ".join(_listed(run["named"]) for run in runs))


def initial_config(evidence: Evidence) -> Outcome:
    """Judge the dump of torch_npu's default configuration, and of one that TORCH_ACL_INIT_CONFIG_PATH names.

    The default writes a brief dump. The other configuration requests a norm dump, and it replaces the default: nothing
    is written to the working directory.
    """
    default, chosen = fact(evidence, "failed_initial"), fact(evidence, "failed_chosen")
    if not default and not chosen["named"] and not chosen["working"]:
        return _NOTHING
    good = _has(default, _BRIEF) and _has(chosen["named"], _NORM) and not chosen["working"]
    return outcome(good, f"by default: {_listed(default)}; by the file: {_listed(chosen['named'])}")


PROBES = probes(exception_environment, exception_first, exception_names, initial_config)
