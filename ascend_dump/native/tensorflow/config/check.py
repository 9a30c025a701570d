"""Check the keys of NpuOptimizer: first by the bridge's rules, then by GE's rules for the options passed to GE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from ascend_dump.common.problem import Problem, worst_first
from ascend_dump.native.cann.config.ge_options import check_ge_options
from ascend_dump.native.cann.config.parse import Source, read_source
from ascend_dump.native.cann.config.situation import Situation
from ascend_dump.native.tensorflow.config._rules import RULES, ParameterSubject
from ascend_dump.native.tensorflow.config.keys import KEYS, MODES, VALUES, Value, fits

__all__ = ["check_parameters"]


def check_parameters(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Return problems: settings that the bridge or GE would refuse, or accept and ignore. Errors come first.

    source: a JSON object with the keys, as text, as a file, or decoded. Its values are true or false for keys with the
    field `b`, texts for `s` and numbers for `i`. Keys that do not concern a dump are not checked.
    """
    situation = Situation.here() if situation is None else situation
    parsed = read_source(source)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it is not an object of keys and values" if parsed.refusal is None else parsed.refusal.reason
        return [Problem("AD110", "error", reason, 'write {"enable_dump": true, "dump_path": "/d"}')]
    keys = parsed.value
    problems = list(RULES.problems(ParameterSubject(keys)))
    values = {name: value for name, value in keys.items() if name in KEYS and fits(KEYS[name], value)}
    problems += _of_ge(values, situation)
    return worst_first(problems)


def _of_ge(values: Mapping[str, Value], situation: Situation) -> Iterator[Problem]:
    """Yield the problems that GE's rules find, with the bridge's names of the keys."""
    # The longest names of GE are replaced first, because some are the beginning of others.
    names = {key.ge: name for name, key in sorted(KEYS.items(), key=lambda item: -len(item[1].ge)) if key.ge}
    settled = {name: value for name, value in values.items() if name not in MODES}
    for name, (switch, allowed) in MODES.items():
        # A wrong value is replaced, because it is reported already. A missing key gets the bridge's default.
        if values.get(switch) is True:
            settled[name] = values[name] if values.get(name) in allowed else allowed[-1]
        elif name in values and values.get("enable_dump" if name == "dump_mode" else switch) is not True:
            settled[name] = values[name]
    for name, values_of in VALUES.items():
        if settled.get(name, values_of[0]) not in values_of:
            del settled[name]
    options = {KEYS[name].ge: _text(value) for name, value in settled.items() if KEYS[name].ge}
    for problem in check_ge_options(options, situation=situation):
        where = names.get(problem.where, problem.where)
        message, hint = problem.message, problem.hint
        for ge, name in names.items():
            message = message.replace(ge, name)
            hint = hint.replace(f'"{ge}": "1"', f'"{name}": true').replace(ge, name)
        code = "AD291" if where == "enable_dump_debug" and problem.severity == "error" else problem.code
        yield problem._replace(where=where, message=message, hint=hint, code=code)


def _text(value: Value) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)
