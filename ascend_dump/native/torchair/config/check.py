"""Check the options of `config.dump_config`: first by torchair's rules, then by GE's rules for the same settings.

Source of GE's rules: GE dump_properties. torchair is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ascend_dump.common.problem import Problem, worst_first
from ascend_dump.native.cann.config import Situation, check_acl_config, check_ge_options
from ascend_dump.native.cann.config.parse import Source, read_source
from ascend_dump.native.torchair.config._rules import DEFAULTS, REFUSED, SILENT, OptionsSubject, takes_steps
from ascend_dump.native.torchair.config.build import ACLGRAPH

__all__ = ["check_file", "check_options", "check_working_directory", "takes_steps"]

_GE_OPTIONS = {
    "dump_path": "ge.exec.dumpPath",
    "dump_mode": "ge.exec.dumpMode",
    "dump_step": "ge.exec.dumpStep",
    "dump_layer": "ge.exec.dumpLayer",
    "dump_data": "ge.exec.dumpData",
}


def check_file(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Check options written as a JSON object, or the dump JSON that `dump_config_path` names.

    The object may also have `mode`, the mode of the CompilerConfig. Arguments as for `check_acl_config`; `all` concerns
    the dump JSON only, because all problems of options are always returned.
    """
    situation = Situation.here() if situation is None else situation
    parsed = read_source(source)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it is not an object of options and values" if parsed.refusal is None else parsed.refusal.reason
        return [Problem("AD110", "error", reason, 'write {"enable_dump": true, "dump_path": "/home/dump"}')]
    if "dump" in parsed.value:
        return check_acl_config(source, all=all, situation=_graph_situation(situation))
    options = dict(parsed.value)
    return check_options(options, mode=options.pop("mode", "max-autotune"), situation=situation)


def check_options(
    options: Mapping[str, Any], *, mode: str = "max-autotune", situation: Optional[Situation] = None
) -> list[Problem]:
    """Return all problems of the options, errors first. mode: the mode of the CompilerConfig.

    situation: as for `check_acl_config`
    """
    situation = Situation.here() if situation is None else situation
    problems = list(REFUSED.problems(OptionsSubject(options, mode, situation.cwd)))
    wrong = {problem.where for problem in problems}
    usable = {name: value for name, value in options.items() if name not in wrong}
    subject = OptionsSubject(usable, mode, situation.cwd)
    problems += SILENT.problems(subject)
    if usable.get("dump_config_path") is not None:
        file = os.path.join(situation.cwd, usable["dump_config_path"])
        problems += check_acl_config(file, all=True, situation=_graph_situation(situation))
    if subject.on and mode not in ACLGRAPH:
        problems += _ge_problems(usable, situation)
    return worst_first(problems)


def _graph_situation(situation: Situation) -> Situation:
    """Return the situation for graphs that torchair compiles.

    The check for containers, which concerns offline models only, is off, and overflow detection is compiled in.
    """
    return situation._replace(container=False, status_check=True)


def check_working_directory(cwd: str) -> list[Problem]:
    """Return the problems of the working directory `cwd`, in which torchair writes a JSON of the dump settings."""
    return list(SILENT["torchair-working-directory"].problems(OptionsSubject({"enable_dump": True}, "", cwd)))


def _ge_problems(options: Mapping[str, Any], situation: Situation) -> Iterator[Problem]:
    """Yield the problems that GE finds, when it builds the first graph, in options that torchair accepts."""
    settings = {**DEFAULTS, **options}
    ge_settings = {key: str(settings[name]) for name, key in _GE_OPTIONS.items() if settings[name] != ""}
    names = {key: name for name, key in _GE_OPTIONS.items()}
    for problem in check_ge_options({"ge.exec.enableDump": "1", **ge_settings}, situation=situation):
        where = names.get(problem.where, problem.where)
        if where == "dump_step" and problem.severity == "error":
            message = f"torchair accepts it, but GE refuses it when the first graph is built: {problem.message}"
            problem = problem._replace(code="AD244", message=message)
        yield problem._replace(where=where)
