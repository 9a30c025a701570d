"""Rules for options of `config.dump_config` that torchair refuses, or accepts and ignores.

Sources: torchair 2.13, configs/_option_base.py and configs/dump_config.py. The rules do not import torchair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

from ascend_dump.native.cann.config import Situation
from ascend_dump.native.rules import Example, Hit, RuleTable
from ascend_dump.native.torchair.config.build import ACLGRAPH, LAYERS

__all__ = ["DEFAULTS", "REFUSED", "SILENT", "OptionsSubject", "takes_steps"]

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
_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "enable_dump": (False, True),
        "quant_dumpable": (False, True),
        "dump_mode": ("input", "output", "all"),
        "dump_data": ("tensor", "stats"),
        "data_dump_stage": ("original", "optimized"),
    }
)
_MODES = ("max-autotune", *ACLGRAPH)
_IGNORED_BY_ACLGRAPH = ("dump_mode", "quant_dumpable", "dump_step", "dump_layer", "dump_data")
#: A part of `dump_step` between bars. It matches the same texts as torchair's `^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$`, but
#: without backtracking.
_STEP_PART = re.compile(r"\d+(?:-\d\d+)*(?:-\d+)?")
#: From this number of digits before a wrong character on, torchair's regular expression takes longer than a second.
_SLOW_DIGITS = 16
#: A number followed by a capital letter: probably two names without the blank between them.
_GLUED = re.compile(r"_\d+(?=[A-Z])")


class OptionsSubject(NamedTuple):
    """The options by name, with the mode of the CompilerConfig and the working directory."""

    options: Mapping[str, Any]
    mode: str
    cwd: str

    @classmethod
    def of_example(cls, example: Example) -> OptionsSubject:
        options = dict(example.config)
        return cls(options, options.pop("mode", "max-autotune"), Situation(**example.facts).cwd)

    @property
    def on(self) -> bool:
        return bool(self.options.get("enable_dump", False))

    @property
    def changed(self) -> list[str]:
        return [name for name, value in self.options.items() if name in DEFAULTS and value != DEFAULTS[name]]


#: Rules for values that torchair refuses with an exception when they are assigned.
REFUSED = RuleTable(OptionsSubject.of_example)
#: Rules for values that torchair accepts, but ignores or misreads.
SILENT = RuleTable(OptionsSubject.of_example)

_Find = Callable[[OptionsSubject], Iterable[Hit]]
_DUMPS: Mapping[str, Any] = MappingProxyType({"enable_dump": True, "dump_path": "$DIR"})


def _dumping(**options: Any) -> Example:
    """Return an example with these options and an enabled dump into the working directory."""
    return Example({**_DUMPS, **options}).given(cwd="$DIR")


def _refusal(
    id: str, about: str, where: str, *, trips: Example, passes: Example, code: str = "AD243"
) -> Callable[[_Find], _Find]:
    source = "torchair configs/_option_base.py, configs/dump_config.py"
    return REFUSED.rule(
        f"torchair-{id}", code, about, source, severity="error", where=where, trips=trips, passes=passes
    )


def _refused(name: str, message: str, hint: str) -> Hit:
    return Hit(name, f"torchair refuses it: {message}", hint)


@_refusal(
    "unknown",
    "an option that dump_config does not have cannot be assigned",
    "dump_steps",
    trips=_dumping(dump_steps="0"),
    passes=_dumping(dump_step="0"),
)
def _unknown(subject: OptionsSubject) -> Iterator[Hit]:
    for name in subject.options:
        if name not in DEFAULTS:
            yield _refused(name, f"dump_config has no option {name!r}", f"it has {', '.join(DEFAULTS)}")


@_refusal(
    "value",
    "some options accept only listed values, such as input, output and all for dump_mode",
    "dump_mode",
    trips=_dumping(dump_mode="outputs"),
    passes=_dumping(dump_mode="output"),
)
def _value(subject: OptionsSubject) -> Iterator[Hit]:
    for name, allowed in _VALUES.items():
        value = subject.options.get(name, allowed[0])
        if not isinstance(value, (bool, int, str)) or value not in allowed:
            yield _refused(name, f"{value!r} is not one of {', '.join(map(repr, allowed))}", "choose one of them")


@_refusal(
    "path",
    "dump_path has to be an existing directory",
    "dump_path",
    trips=_dumping(dump_path="$DIR/none"),
    passes=_dumping(),
)
def _path(subject: OptionsSubject) -> Iterator[Hit]:
    path = subject.options.get("dump_path", ".")
    if not isinstance(path, str) or not path or not os.path.isdir(os.path.join(subject.cwd, path)):
        hint = "create it first, torchair does not; the default is './'"
        yield _refused("dump_path", f"{path!r} is no existing directory", hint)


@_refusal(
    "file",
    "dump_config_path has to be an existing file with a name that ends in .json",
    "dump_config_path",
    trips=Example({"dump_config_path": "$DIR/none.json"}),
    passes=Example({"dump_config_path": None}),
)
def _file(subject: OptionsSubject) -> Iterator[Hit]:
    name = "dump_config_path"
    value = subject.options.get(name)
    if value is None:
        return
    if not isinstance(value, str) or not value.endswith(".json"):
        yield _refused(
            name, f"{value!r} does not end in .json", "rename the file so that it ends in .json (lower case)"
        )
    elif not os.path.isfile(os.path.join(subject.cwd, value)):
        yield _refused(name, f"{value!r} is no existing file", "write it first: `ascend-dump config --for acl -o FILE`")


_STEPS = "write numbers and ranges joined by one bar, such as 0|3-5|10"


@_refusal(
    "steps",
    "dump_step is a list of numbers and ranges",
    "dump_step",
    trips=_dumping(dump_step="0-"),
    passes=_dumping(dump_step="0|3-5"),
)
def _steps(subject: OptionsSubject) -> Iterator[Hit]:
    value = subject.options.get("dump_step", "")
    if not isinstance(value, str):
        hint = "use '' for every step: None is refused, although documented"
        yield _refused("dump_step", f"{value!r} is no text", hint)
    elif not takes_steps(value) and not _is_slow(value):
        yield _refused("dump_step", f"{value!r} is not a list of steps", _STEPS)


@_refusal(
    "steps-slow",
    "torchair's check of dump_step takes seconds if a wrong character follows 16 or more digits",
    "dump_step",
    trips=_dumping(dump_step="1234567890123456x"),
    passes=_dumping(dump_step="1234567890123456"),
    code="AD244",
)
def _slow_steps(subject: OptionsSubject) -> Iterator[Hit]:
    value = subject.options.get("dump_step", "")
    if isinstance(value, str) and not takes_steps(value) and _is_slow(value):
        message = (
            f"{value[:40]!r}: torchair refuses this value only after seconds: its regular expression backtracks, "
            "ten times longer for two more digits"
        )
        yield Hit("dump_step", message, _STEPS)


def _is_slow(steps: str) -> bool:
    return re.search(rf"\d{{{_SLOW_DIGITS}}}", steps) is not None


def takes_steps(text: str) -> bool:
    """Return True if torchair accepts a value of `dump_step`. Unlike torchair's own check this is always fast.

    torchair needs no bar between ranges: it reads "1-23-4" as 1-2 and 3-4.
    """
    body = text[:-1] if text.endswith("\n") else text
    if not body:
        return True
    parts = body.split("|")
    if not parts[-1]:
        parts.pop()
    return all(_STEP_PART.fullmatch(part) for part in parts)


@_refusal(
    "layers-text",
    "dump_layer must be a string",
    "dump_layer",
    trips=_dumping(dump_layer=["Add_1"]),
    passes=_dumping(dump_layer="Add_1"),
)
def _layers_text(subject: OptionsSubject) -> Iterator[Hit]:
    value = subject.options.get("dump_layer", "")
    if not isinstance(value, str):
        yield _refused("dump_layer", f"{value!r} is no text", "use '' for every operator")


@_refusal(
    "layers",
    'names in dump_layer may contain only letters, digits and _ " / \\ .',
    "dump_layer",
    trips=_dumping(dump_layer="Add_1,Mul_1"),
    passes=_dumping(dump_layer="Add_1 Mul_1"),
    code="AD245",
)
def _layers(subject: OptionsSubject) -> Iterator[Hit]:
    value = subject.options.get("dump_layer", "")
    wrong = _wrong_letters(value) if isinstance(value, str) else []
    if wrong:
        message = f"{value!r} has {' '.join(map(repr, wrong))}, which torchair refuses"
        hint = "separate names by blanks; a name with other characters needs a dump JSON (dump_config_path)"
        yield Hit("dump_layer", message, hint)


def _wrong_letters(layers: str) -> list[str]:
    # A newline at the end is accepted by `$` in torchair's regular expression, and GE splits names at white space.
    letters = sorted({letter for letter in layers.rstrip("\n") if not LAYERS.fullmatch(letter)})
    return letters or (["the newline"] if layers.endswith("\n\n") else [])


@SILENT.rule(
    "torchair-layers-glued",
    "AD245",
    "two names without a blank between them are one name, and no operator has it",
    "GE dump_properties; the sample of torchair's document",
    severity="warning",
    where="dump_layer",
    trips=_dumping(dump_layer="Add_1Mul_1 Add2"),
    passes=_dumping(dump_layer="Add_1 Mul_1 Add2"),
)
def _glued(subject: OptionsSubject) -> Iterator[Hit]:
    for name in subject.options.get("dump_layer", "").split():
        if _GLUED.search(name):
            message = f"{name!r} looks like two names; GE compares whole names, so nothing would be dumped for it"
            yield Hit("dump_layer", message, "write a blank between two names")


@_refusal(
    "mode",
    "a CompilerConfig has three modes",
    "mode",
    trips=_dumping(mode="max-auto"),
    passes=_dumping(mode="max-autotune"),
)
def _mode(subject: OptionsSubject) -> Iterator[Hit]:
    if subject.mode not in _MODES:
        yield _refused("mode", f"{subject.mode!r} is not one of {', '.join(_MODES)}", "choose one of them")


@SILENT.rule(
    "torchair-off",
    "AD252",
    "without enable_dump, every dump option except dump_config_path is ignored",
    "torchair configs/dump_config.py",
    where="dump_step",
    trips=Example({"dump_step": "0"}),
    passes=_dumping(dump_step="0"),
)
def _off(subject: OptionsSubject) -> Iterator[Hit]:
    for name in () if subject.on else subject.changed:
        if name not in ("enable_dump", "dump_config_path"):
            yield Hit(name, "it does nothing while enable_dump is off", "set enable_dump = True")


@SILENT.rule(
    "torchair-two-ways",
    "AD242",
    "if both a dump JSON and enable_dump are set, one of them is ignored, depending on the version",
    "torchair _ge_concrete_graph/fx2ge_converter.py; GE dump_manager",
    where="dump_config_path",
    trips=_dumping(dump_config_path="dump.json"),
    passes=Example({"dump_config_path": "dump.json"}),
)
def _two_ways(subject: OptionsSubject) -> Iterator[Hit]:
    if subject.on and subject.options.get("dump_config_path") is not None:
        message = (
            "it is set together with enable_dump. Versions of torchair that write ./ge_dump_data_json use the options, "
            "older ones the file"
        )
        yield Hit("dump_config_path", message, "use one of the two; the file has more settings")


@SILENT.rule(
    "torchair-aclgraph",
    "AD249",
    "the aclgraph modes save the outputs of all nodes at every execution",
    "torchair configs/dump_config.py, _acl_concrete_graph/utils.py",
    where="dump_mode",
    trips=_dumping(dump_mode="input", mode="npugraph_ex"),
    passes=_dumping(dump_mode="input"),
)
def _aclgraph(subject: OptionsSubject) -> Iterator[Hit]:
    for name in subject.changed if subject.on and subject.mode in ACLGRAPH else ():
        if name in _IGNORED_BY_ACLGRAPH:
            message = f"the mode {subject.mode} ignores it: outputs of all nodes are saved at every execution"
            yield Hit(name, message, "leave it out, or use the mode max-autotune")


@SILENT.rule(
    "torchair-stage",
    "AD249",
    "only the aclgraph modes have stages",
    "torchair configs/dump_config.py",
    where="data_dump_stage",
    trips=_dumping(data_dump_stage="original"),
    passes=_dumping(data_dump_stage="original", mode="npugraph_ex"),
)
def _stage(subject: OptionsSubject) -> Iterator[Hit]:
    if subject.on and subject.mode not in ACLGRAPH and "data_dump_stage" in subject.changed:
        message = f"the mode {subject.mode} ignores it; only {' and '.join(ACLGRAPH)} have stages"
        yield Hit("data_dump_stage", message, "leave it out")


@SILENT.rule(
    "torchair-working-directory",
    "AD246",
    "newer versions write a JSON of the dump settings into the working directory, and pass it to acl",
    "torchair _ge_concrete_graph/fx2ge_converter.py _set_dump_options_json",
    severity="warning",
    where="dump_path",
    trips=_dumping(),
    passes=_dumping(mode="npugraph_ex"),
)
def _working_directory(subject: OptionsSubject) -> Iterator[Hit]:
    if not subject.on or subject.mode in ACLGRAPH:
        return
    folder = os.path.join(subject.cwd, "ge_dump_data_json")
    directory = folder if os.path.isdir(folder) else subject.cwd
    message = "torchair writes the dump settings to ge_dump_data_json/ in the working directory and passes it to acl"
    if not os.access(directory, os.W_OK | os.X_OK):
        hint = "run in a writable directory, or use a dump JSON (dump_config_path)"
        yield Hit("dump_path", f"{message}, but {directory!r} cannot be written", hint, "error")
    else:
        yield Hit(
            "dump_path",
            message,
            "delete ge_dump_data_json/ after the run, and give each run a working directory of its own",
        )
