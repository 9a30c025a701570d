"""Probes of the dump interface: its answers to calls of a program on the device."""

from __future__ import annotations

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

_NO_DUMP = Outcome("unknown", "the dump of acl.init wrote nothing")


def init_dump_after_init(evidence: Evidence) -> Outcome:
    """Judge the code of init_dump after acl.init configured a dump that wrote files."""
    noted = fact(evidence, "init_dump_after_init")
    return outcome(not noted["code"], f"it returned {noted['code']}") if noted["files"] else _NO_DUMP


def finalize_ends_init(evidence: Evidence) -> Outcome:
    """Judge the files of a model that is loaded after finalize_dump ended a dump of acl.init."""
    noted = fact(evidence, "finalize_ends_init")
    if not noted["before"]:
        return _NO_DUMP
    if noted["code"]:
        return Outcome("unknown", f"finalize_dump returned {noted['code']}")
    return outcome(noted["before"] == noted["after"], f"{noted['before']} files before, {noted['after']} after it")


def empty_operator(evidence: Evidence) -> Outcome:
    """Judge the files of a kernel without elements, if a kernel with elements writes a file."""
    if fact(evidence, "empty_operator") == {"empty": False, "other": False}:
        return Outcome("unknown", "no kernel left a file")
    return judge_fact(evidence, "empty_operator", {"empty": False, "other": True})


PROBES = probes(
    empty_operator,
    finalize_ends_init,
    init_dump_after_init,
    # Files were written after finalize_dump, init_dump and set_dump.
    begin_again=True,
    # torch_npu.npu.utils raised an error with a code.
    checked_interface=True,
    # The code for a file with eleven levels.
    deep_file=int(AclError.PARSE_FILE),
    # The code for an empty file.
    empty_file=int(AclError.SUCCESS),
    # A second capture in one process dumped its graphs.
    graphs_again=True,
    # The code of a second init_dump.
    init_dump_twice=int(AclError.REPEAT_INITIALIZE),
    # The code of a second acl.init, with a missing file.
    init_twice=int(AclError.REPEAT_INITIALIZE),
    # The levels that dumped a kernel of aclnn.
    kernel_level={"op": False, "kernel": True},
    # The code for a missing file.
    missing_file=int(AclError.INVALID_FILE),
    # Files were written although the last configuration requests nothing.
    nothing_asked=True,
    # The code for a mode that does not exist.
    refused_file=int(AclError.INVALID_DUMP_CONFIG),
    # The code of a valid file after refused files.
    set_after_refusal=int(AclError.SUCCESS),
    # The directories with kernels that were launched after the second set_dump.
    set_again={"first": False, "second": True},
    # The code of set_dump without init_dump.
    set_dump_first=int(AclError.DUMP_NOT_RUN),
    # Files were written although dump_step and layer name other steps and layers.
    single_operators=True,
    # The NPU was not initialised by init_dump before its first use.
    waiting_interface=True,
)
