"""Probes of the dump interface itself: what it answered when a program on the device called it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = [
    "begin_again",
    "checked_interface",
    "deep_file",
    "empty_file",
    "empty_operator",
    "finalize_ends_init",
    "graphs_again",
    "init_dump_after_init",
    "init_dump_twice",
    "init_twice",
    "kernel_level",
    "missing_file",
    "nothing_asked",
    "refused_file",
    "set_after_refusal",
    "set_again",
    "set_dump_first",
    "single_operators",
    "waiting_interface",
]


def init_dump_twice(evidence: Evidence) -> Outcome:
    """The code of a second init_dump."""
    return judge_fact(evidence, "init_dump_twice", int(AclError.REPEAT_INITIALIZE))


def init_twice(evidence: Evidence) -> Outcome:
    """The code of a second acl.init, with a file that is not there."""
    return judge_fact(evidence, "init_twice", int(AclError.REPEAT_INITIALIZE))


def init_dump_after_init(evidence: Evidence) -> Outcome:
    """The code of init_dump where acl.init configured a dump that wrote files."""
    found = evidence.facts.get("init_dump_after_init")
    if not found:
        return judge_fact(evidence, "init_dump_after_init", found)
    if not found["files"]:
        return Outcome("unknown", "the dump of acl.init wrote nothing")
    return Outcome("refuted" if found["code"] else "confirmed", f"it returned {found['code']}")


def finalize_ends_init(evidence: Evidence) -> Outcome:
    """Whether a model loaded after finalize_dump is still dumped as acl.init configured."""
    found = evidence.facts.get("finalize_ends_init")
    if not found:
        return judge_fact(evidence, "finalize_ends_init", found)
    if not found["before"]:
        return Outcome("unknown", "the dump of acl.init wrote nothing")
    if found["code"]:
        return Outcome("unknown", f"finalize_dump returned {found['code']}")
    ended = found["before"] == found["after"]
    return Outcome("confirmed" if ended else "refuted", f"{found['before']} files before, {found['after']} after it")


def set_dump_first(evidence: Evidence) -> Outcome:
    """The code of set_dump without init_dump."""
    return judge_fact(evidence, "set_dump_first", int(AclError.DUMP_NOT_RUN))


def missing_file(evidence: Evidence) -> Outcome:
    """The code for a file that is not there."""
    return judge_fact(evidence, "missing_file", int(AclError.INVALID_FILE))


def deep_file(evidence: Evidence) -> Outcome:
    """The code for a file with eleven levels."""
    return judge_fact(evidence, "deep_file", int(AclError.PARSE_FILE))


def refused_file(evidence: Evidence) -> Outcome:
    """The code for a mode that does not exist."""
    return judge_fact(evidence, "refused_file", int(AclError.INVALID_DUMP_CONFIG))


def empty_file(evidence: Evidence) -> Outcome:
    """The code for an empty file."""
    return judge_fact(evidence, "empty_file", int(AclError.SUCCESS))


def set_after_refusal(evidence: Evidence) -> Outcome:
    """The code of a valid file after files that were refused."""
    return judge_fact(evidence, "set_after_refusal", int(AclError.SUCCESS))


def begin_again(evidence: Evidence) -> Outcome:
    """Whether files came after finalize_dump, init_dump and set_dump."""
    return judge_fact(evidence, "begin_again", True)


def set_again(evidence: Evidence) -> Outcome:
    """Whether kernels launched after the second set_dump were written to its directory only."""
    return judge_fact(evidence, "set_again", {"first": False, "second": True})


def nothing_asked(evidence: Evidence) -> Outcome:
    """Whether files came although the last configuration asks for nothing."""
    return judge_fact(evidence, "nothing_asked", True)


def single_operators(evidence: Evidence) -> Outcome:
    """Whether files came although dump_step and layer name other things."""
    return judge_fact(evidence, "single_operators", True)


def kernel_level(evidence: Evidence) -> Outcome:
    """Which levels dumped a kernel of aclnn."""
    return judge_fact(evidence, "kernel_level", {"op": False, "kernel": True})


def empty_operator(evidence: Evidence) -> Outcome:
    """Whether a kernel without elements writes a file, as a kernel with elements does."""
    found = judge_fact(evidence, "empty_operator", {"empty": False, "other": True})
    tried = evidence.facts.get("empty_operator")
    return Outcome("unknown", "no kernel left a file") if tried == {"empty": False, "other": False} else found


def checked_interface(evidence: Evidence) -> Outcome:
    """Whether torch_npu.npu.utils raised with a code."""
    return judge_fact(evidence, "checked_interface", True)


def waiting_interface(evidence: Evidence) -> Outcome:
    """Whether init_dump before anything used the NPU left it as it was."""
    return judge_fact(evidence, "waiting_interface", True)


def graphs_again(evidence: Evidence) -> Outcome:
    """Whether a second capture in one process dumped its graphs."""
    return judge_fact(evidence, "graphs_again", True)
