"""What torchair or GE would refuse in the options of `config.dump_config`, or accept without doing it.

Sources: torchair 2.13, configs/_option_base.py and configs/dump_config.py (what an option takes); GE dump_properties
(what GE takes afterwards). torchair itself is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Optional

from ascend_dump._problem import Problem, worst_first
from ascend_dump.native.cann.config import Situation, check_acl_config, check_ge_options
from ascend_dump.native.cann.config.parse import Source, read_source
from ascend_dump.native.torchair.config.build import ACLGRAPH, LAYERS

__all__ = ["check_file", "check_options", "of_working_directory", "takes_steps"]

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "enable_dump": False,
        "dump_path": "./",
        "dump_mode": "all",
        "quant_dumpable": False,
        "dump_step": "",
        "dump_layer": "",
        "dump_data": "tensor",
        "dump_config_path": None,
        "data_dump_stage": "optimized",
    }
)
_VALUES = {
    "enable_dump": (False, True),
    "quant_dumpable": (False, True),
    "dump_mode": ("input", "output", "all"),
    "dump_data": ("tensor", "stats"),
    "data_dump_stage": ("original", "optimized"),
}
_MODES = ("max-autotune", *ACLGRAPH)
_GE = {
    "dump_path": "ge.exec.dumpPath",
    "dump_mode": "ge.exec.dumpMode",
    "dump_step": "ge.exec.dumpStep",
    "dump_layer": "ge.exec.dumpLayer",
    "dump_data": "ge.exec.dumpData",
}
_IGNORED_BY_ACLGRAPH = ("dump_mode", "quant_dumpable", "dump_step", "dump_layer", "dump_data")
_STEP_PART = re.compile(r"\d+(?:-\d\d+)*(?:-\d+)?")
#: With so many digits before something wrong, torchair's regular expression takes longer than a second.
_SLOW_DIGITS = 16
#: A number that a capital follows: where two names have lost the blank between them.
_GLUED = re.compile(r"_\d+(?=[A-Z])")


def check_file(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Check options written as a JSON object, or the dump JSON that `dump_config_path` names.

    The object may also hold `mode`, the mode of the CompilerConfig. Arguments as for `check_acl_config`.
    """
    parsed = read_source(source)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it holds no object of options and values" if parsed.refusal is None else parsed.refusal.reason
        return [Problem("AD110", "error", reason, 'write {"enable_dump": true, "dump_path": "/home/dump"}')]
    if "dump" in parsed.value:
        return check_acl_config(source, all=all, situation=situation)
    options = dict(parsed.value)
    return check_options(options, mode=options.pop("mode", "max-autotune"), situation=situation)


def check_options(
    options: Mapping[str, Any], *, mode: str = "max-autotune", situation: Optional[Situation] = None
) -> list[Problem]:
    """Everything wrong with these options, errors first. situation: of the process; by default this one."""
    here = Situation.here() if situation is None else situation
    found = list(_refused(options, here.cwd))
    if mode not in _MODES:
        found.append(_refusal("mode", f"{mode!r} is not one of {', '.join(_MODES)}", "give one of them"))
    wrong = {problem.where for problem in found if problem.severity == "error"}
    usable = {name: value for name, value in options.items() if name in DEFAULTS and name not in wrong}
    found += _silent(usable, mode, here)
    return worst_first(found)


def takes_steps(text: str) -> bool:
    """Whether torchair takes this `dump_step`, found in linear time; "1-23-4" is 1-2 and 3-4 to it."""
    body = text[:-1] if text.endswith("\n") else text
    if not body:
        return True
    parts = body.split("|")
    if not parts[-1]:
        parts.pop()
    return all(_STEP_PART.fullmatch(part) for part in parts)


def _refused(options: Mapping[str, Any], cwd: str) -> Iterator[Problem]:
    for name, value in options.items():
        if name not in DEFAULTS:
            yield _refusal(name, f"dump_config has no option {name!r}", f"it has {', '.join(DEFAULTS)}")
        elif name in _VALUES:
            if not isinstance(value, (bool, int, str)) or value not in _VALUES[name]:
                choices = ", ".join(map(repr, _VALUES[name]))
                yield _refusal(name, f"{value!r} is not one of {choices}", "give one of them")
        elif name == "dump_path":
            if not isinstance(value, str) or not value or not os.path.isdir(os.path.join(cwd, value)):
                hint = "create it first, torchair does not; the default is './'"
                yield _refusal(name, f"{value!r} is no existing directory", hint)
        elif name == "dump_config_path":
            yield from _refused_file(value, cwd)
        elif name == "dump_step":
            yield from _refused_steps(value)
        else:
            yield from _refused_layers(value)


def _refused_file(value: Any, cwd: str) -> Iterator[Problem]:
    name = "dump_config_path"
    if value is None:
        return
    if not isinstance(value, str) or not value.endswith(".json"):
        yield _refusal(name, f"{value!r} is no name that ends in .json", "give the file such a name, in small letters")
    elif not os.path.isfile(os.path.join(cwd, value)):
        yield _refusal(name, f"{value!r} is no existing file", "write it first: `ascend-dump config --for acl -o FILE`")


def _refused_steps(value: Any) -> Iterator[Problem]:
    name, hint = "dump_step", "write numbers and ranges joined by one bar, such as 0|3-5|10"
    if not isinstance(value, str):
        yield _refusal(name, f"{value!r} is no text", "give '' for every step: None is refused, although documented")
    elif takes_steps(value):
        return
    elif re.search(rf"\d{{{_SLOW_DIGITS}}}", value):
        message = (
            f"{value[:40]!r}: torchair looks at it with a regular expression that takes seconds here, ten times "
            "longer for every two digits more, and then refuses it"
        )
        yield Problem("AD244", "error", message, hint, name)
    else:
        yield _refusal(name, f"{value!r} is not what torchair takes", hint)


def _refused_layers(value: Any) -> Iterator[Problem]:
    name = "dump_layer"
    if not isinstance(value, str):
        yield _refusal(name, f"{value!r} is no text", "give '' for every operator")
        return
    # torchair's `$` lets a newline at the end pass, and GE separates names by any blank.
    wrong = sorted({letter for letter in value.rstrip("\n") if not LAYERS.fullmatch(letter)})
    if wrong or value.endswith("\n\n"):
        message = f"{value!r} has {' '.join(map(repr, wrong or ['the newline']))}, which torchair refuses"
        hint = "separate names by blanks; a name with other characters needs a dump JSON (dump_config_path)"
        yield Problem("AD245", "error", message, hint, name)
        return
    for each in value.split():
        if _GLUED.search(each):
            message = f"{each!r} looks like two names; GE compares whole names, so nothing would be dumped for it"
            yield Problem("AD245", "warning", message, "put a blank between two names", name)


def _silent(options: Mapping[str, Any], mode: str, here: Situation) -> Iterator[Problem]:
    changed = [name for name, value in options.items() if value != DEFAULTS[name]]
    on = bool(options.get("enable_dump", False))
    file = options.get("dump_config_path")
    if not on:
        for name in changed:
            if name not in ("enable_dump", "dump_config_path"):
                yield Problem("AD252", "silent", "it does nothing while enable_dump is off", _HINT_ENABLE, name)
    if file is not None:
        yield from check_acl_config(os.path.join(here.cwd, file), situation=here)
    if not on:
        return
    if file is not None:
        message = (
            "it is given together with enable_dump. A torchair that writes ./ge_dump_data_json lets the options win, "
            "an older one the file"
        )
        yield Problem("AD242", "silent", message, "use one of the two; the file can say more", "dump_config_path")
    if mode in ACLGRAPH:
        for name in changed:
            if name in _IGNORED_BY_ACLGRAPH:
                message = f"the mode {mode} ignores it: outputs of all nodes are saved at every execution"
                yield Problem("AD249", "silent", message, "leave it out, or use the mode max-autotune", name)
        return
    if "data_dump_stage" in changed:
        message = f"the mode {mode} ignores it; only {' and '.join(ACLGRAPH)} have stages"
        yield Problem("AD249", "silent", message, "leave it out", "data_dump_stage")
    yield from _of_ge(options, here)
    yield from of_working_directory(here.cwd)


_HINT_ENABLE = "set enable_dump = True"


def _of_ge(options: Mapping[str, Any], here: Situation) -> Iterator[Problem]:
    """What GE says to options that torchair takes; it is asked when the first graph is built."""
    given = {**DEFAULTS, **options}
    asked = {key: str(given[name]) for name, key in _GE.items() if given[name] != ""}
    names = {key: name for name, key in _GE.items()}
    for problem in check_ge_options({"ge.exec.enableDump": "1", **asked}, situation=here):
        where = names.get(problem.where, problem.where)
        if where == "dump_step" and problem.severity == "error":
            message = f"torchair takes it, but GE refuses it when the first graph is built: {problem.message}"
            problem = problem._replace(code="AD244", message=message)
        yield problem._replace(where=where)


def of_working_directory(cwd: str) -> Iterator[Problem]:
    """The JSON that newer torchairs write into the working directory."""
    folder = os.path.join(cwd, "ge_dump_data_json")
    place = folder if os.path.isdir(folder) else cwd
    message = "torchair writes the dump settings to ge_dump_data_json/ in the working directory and hands that on"
    if not os.access(place, os.W_OK | os.X_OK):
        hint = "run where this user may write, or use a dump JSON (dump_config_path)"
        yield Problem("AD246", "error", f"{message}, but {place!r} cannot be written", hint, "dump_path")
    else:
        yield Problem("AD246", "warning", message, "remove it after the run; give each run a directory", "dump_path")


def _refusal(name: str, message: str, hint: str) -> Problem:
    return Problem("AD243", "error", f"torchair refuses it: {message}", hint, name)
