"""Probes of CANN's dump interface (init_dump, set_dump, finalize_dump): its return codes, and the files that it writes.

The facts come from `programs/dump_interface.py`, `acl_init.py` and `with_torchair.py`. The comment above each keyword
of `probes()` says what the fact contains; the keyword's value is the expected one.
"""

from __future__ import annotations

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

_NO_DUMP = Outcome("unknown", "the dump of acl.init wrote nothing")


def init_dump_after_init(evidence: Evidence) -> Outcome:
    """Judge init_dump after a dump of acl.init that wrote files: it succeeds (code 0)."""
    noted = fact(evidence, "init_dump_after_init")
    return outcome(not noted["code"], f"it returned {noted['code']}") if noted["files"] else _NO_DUMP


def finalize_ends_init(evidence: Evidence) -> Outcome:
    """Judge finalize_dump: it ends a dump of acl.init, so a model that is loaded later writes no more files."""
    noted = fact(evidence, "finalize_ends_init")
    if not noted["before"]:
        return _NO_DUMP
    if noted["code"]:
        return Outcome("unknown", f"finalize_dump returned {noted['code']}")
    return outcome(noted["before"] == noted["after"], f"{noted['before']} files before, {noted['after']} after it")


def empty_operator(evidence: Evidence) -> Outcome:
    """Judge a kernel whose tensors have no elements: it writes no file, though a kernel with an element does."""
    if fact(evidence, "empty_operator") == {"empty": False, "other": False}:
        return Outcome("unknown", "no kernel left a file")
    return judge_fact(evidence, "empty_operator", {"empty": False, "other": True})


PROBES = probes(
    empty_operator,
    finalize_ends_init,
    init_dump_after_init,
    # True if a second dump, after the first was ended by finalize_dump, wrote files.
    begin_again=True,
    # True if torch_npu.npu.utils.set_dump raised an error with a code.
    checked_interface=True,
    # The code of set_dump for a JSON file with eleven nested levels.
    deep_file=int(AclError.PARSE_FILE),
    # The code of set_dump for an empty file.
    empty_file=int(AclError.SUCCESS),
    # True if a second capture in the process dumped its graphs.
    graphs_again=True,
    # The code of a second init_dump.
    init_dump_twice=int(AclError.REPEAT_INITIALIZE),
    # The code of a second acl.init, which names a missing file.
    init_twice=int(AclError.REPEAT_INITIALIZE),
    # For each dump_level: True if a dump with it has files of an eager kernel.
    kernel_level={"op": False, "kernel": True},
    # The code of set_dump for a missing file.
    missing_file=int(AclError.INVALID_FILE),
    # True if files were written although a second set_dump requested nothing.
    nothing_asked=True,
    # The code of set_dump for an invalid dump_mode.
    refused_file=int(AclError.INVALID_DUMP_CONFIG),
    # The code of set_dump for a valid file, after it refused others.
    set_after_refusal=int(AclError.SUCCESS),
    # True if a directory has files, when set_dump named "first" and then "second" before the kernel was launched.
    set_again={"first": False, "second": True},
    # The code of set_dump without a preceding init_dump.
    set_dump_first=int(AclError.DUMP_NOT_RUN),
    # True if an eager kernel was dumped although dump_step and dump_list select other steps and layers.
    single_operators=True,
    # True if init_dump does not initialise the NPU before the program first uses it.
    waiting_interface=True,
)
