"""Check a dump JSON: find settings that MindSpore refuses, with its messages, and settings that it ignores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.common.problem import Problem, worst_first
from ascend_dump.native.mindspore.config import _rules_devices, _rules_program
from ascend_dump.native.mindspore.config._rules_program import KEY_RULES, PYNATIVE_HIT
from ascend_dump.native.mindspore.config.dump_json import read_file, read_text
from ascend_dump.native.mindspore.config.keys import COMMON, E2E
from ascend_dump.native.mindspore.config.known import DumpJson, Known, known_of_graph
from ascend_dump.native.mindspore.config.settings import DumpJsonReading
from ascend_dump.native.mindspore.runtime import Runtime
from ascend_dump.native.rules import RuleTable

if TYPE_CHECKING:
    from ascend_dump.native.cann.config import Situation

__all__ = ["PYNATIVE", "RULES", "DumpJson", "Known", "check_mindspore_config", "known_of_graph"]

Source = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any]]

#: The rules for a file that MindSpore accepts.
RULES = RuleTable(DumpJson.of_example, _rules_devices.RULES, _rules_program.RULES)
#: The problem of a program that runs operators one by one.
PYNATIVE = Problem("AD279", "warning", PYNATIVE_HIT.message, PYNATIVE_HIT.hint)

_HINTS = {
    "path": "give an absolute path of letters, digits, - _ and / only; a link with such a name may lead elsewhere",
    "iteration": 'write 0|3-5|10 without blanks, or "all"',
    "net_name": "use letters, digits, - and _",
    "overflow_number": "remove it, also when it is 0",
    "saved_data": "dump tensors, and compute statistics when reading",
    "dump_mode": "use 0 for all operators, 1 for those in kernels",
    "file_format": "remove it, or write npy or bin",
    "kernels": "write a list; the expression in name-regex(...) must be one of C++ (ECMAScript)",
    "support_device": "write a list of numbers, such as [0, 1]",
    "": "write one JSON object, see the documents of MindSpore's Dump",
}


def check_mindspore_config(
    source: Source,
    *,
    all: bool = False,
    situation: Optional[Situation] = None,
    runtime: Optional[Runtime] = None,
    known: Optional[Known] = None,
) -> list[Problem]:
    """Return the problems of a dump JSON: settings that MindSpore would refuse, or accept and ignore.

    source: a path, the content of a file (bytes), or its decoded value
    all: return all errors; otherwise only the first one, at which MindSpore stops
    situation: has the environment and the operators, if `known` lacks them
    runtime: the device and jit_level; by default Ascend with O0 or O1, or with O2 if the file has the form for O2
    known: facts about the program
    Errors come first, then ignored settings, then warnings.
    """
    facts = known or Known()
    if situation is not None:
        operators = None if situation.operators is None else [node.name for node in situation.operators]
        facts = facts._replace(env=facts.env or situation.env, operators=facts.operators or operators)
    where = runtime
    if where is None:
        where = _guess(_read(source, Runtime(), facts.env).value)
    reading = _read(source, where, facts.env)
    problems = [_refusal(*refusal) for refusal in (reading.refusals if all else reading.refusals[:1])]
    subject = DumpJson(reading, where, facts)
    problems += KEY_RULES.problems(subject)
    if not reading.refusals:
        problems += RULES.problems(subject)
    return worst_first(problems)


def _read(source: Source, runtime: Runtime, env: Optional[Mapping[str, str]]) -> DumpJsonReading:
    if isinstance(source, Mapping):
        source = json.dumps(source).encode()
    if isinstance(source, bytes):
        return read_text(source, runtime=runtime, env=env)
    return read_file(os.fspath(source), runtime=runtime, env=env)


def _guess(value: Any) -> Runtime:
    """Return the likely runtime of a file.

    It is jit_level O2 up to MindSpore 2.5 if the file has file_format but no e2e_dump_settings, else O0 or O1.
    """
    common = value.get(COMMON) if isinstance(value, dict) else None
    if isinstance(common, dict) and "file_format" in common and E2E not in value:
        return Runtime.named("ascend-o2")
    return Runtime()


def _refusal(message: str, where: str) -> Problem:
    key = where.rpartition(".")[2].partition("[")[0]
    return Problem("AD270", "error", message, _HINTS.get(key, f"correct {key}"), where, "RuntimeError")
