"""DumpRequest: a framework-neutral, immutable description of a dump; and the name of each setting in each framework."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Optional, Union, get_args

from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError, NotSupported
from ascend_dump.statistics import ALL_STATISTICS
from ascend_dump.steps import Steps, StepsLike
from ascend_dump.storage import is_url
from ascend_dump.storage.files import read_regular

__all__ = [
    "ALIASES",
    "CHOICES",
    "FLAGS",
    "LISTS",
    "SPELLINGS",
    "Data",
    "DumpRequest",
    "FrameworkName",
    "Level",
    "Mode",
    "Scene",
    "Until",
    "decode_settings",
    "parse_size",
    "plain_value",
    "unknown_name",
    "value_from_word",
]

#: Our name of each setting, and the name in each framework. An empty string: the framework has no such setting.
SPELLINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        name: MappingProxyType(dict(zip(("cann", "ge", "torchair", "mindspore", "tensorflow"), spellings)))
        for name, spellings in {
            "path": ("dump_path", "ge.exec.dumpPath", "dump_path", "path", "dump_path"),
            "steps": ("dump_step", "ge.exec.dumpStep", "dump_step", "iteration", "dump_step"),
            "mode": ("dump_mode", "ge.exec.dumpMode", "dump_mode", "input_output", "dump_mode"),
            "layers": ("layer", "ge.exec.dumpLayer", "dump_layer", "kernels", "dump_layer"),
            "models": ("model_name", "", "", "net_name", ""),
            "data": ("dump_data", "ge.exec.dumpData", "dump_data", "saved_data", "dump_data"),
            "stats": ("dump_stats", "", "", "statistic_category", ""),
            "level": ("dump_level", "", "", "", ""),
            "scene": ("dump_scene", "", "", "op_debug_mode", ""),
            "watch": ("watcher_nodes", "", "", "", ""),
            "quant": ("", "ge.quant_dumpable", "quant_dumpable", "", "quant_dumpable"),
            "ranks": ("", "", "", "support_device", ""),
            "max_bytes": ("", "", "", "", ""),
            "keep": ("", "", "", "", ""),
            "until": ("", "", "", "", ""),
            "ignore": ("", "", "", "", ""),
            "label": ("", "", "", "", ""),
            "quiet": ("", "", "", "", ""),
            "strict": ("", "", "", "", ""),
            "options": ("", "", "", "", ""),
        }.items()
    }
)

#: Other names of settings, mapped to ours. They are accepted in files, in the environment and on the command line, but
#: not in Python.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        SPELLINGS[name][who]: name
        for who in ("tensorflow", "torchair", "cann")
        for name in SPELLINGS
        if SPELLINGS[name][who] and SPELLINGS[name][who] not in SPELLINGS
    }
)

Mode = Literal["input", "output", "all"]
Data = Literal["tensor", "stats", "full"]
Level = Literal["op", "kernel", "all", "module"]
Scene = Literal["overflow", "watch", "exception"]
Until = Literal["nonfinite"]
#: The names of this distribution's adapters. Other packages may register adapters, so any str is accepted.
FrameworkName = Union[Literal["acl", "mindspore", "tensorflow", "torch", "torch_npu", "torchair"], str]

#: The accepted values of each setting that has a fixed set of values. LISTS has the settings that take several names.
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mode": get_args(Mode),
        "data": get_args(Data),
        "level": get_args(Level),
        "scene": get_args(Scene),
        "until": get_args(Until),
    }
)
LISTS = ("layers", "models", "stats", "watch", "ignore")
#: The settings that are True or False.
FLAGS = ("quant", "quiet", "strict")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MAX_BYTES, _MAX_DIGITS, _MAX_SHOWN = 2**63 - 1, 30, 200
#: Maximum size of a file of settings, in bytes.
_MAX_FILE = 2**20
#: Maximum number of characters of a TOML file. Python's TOML parser takes microseconds per byte. For a dotted key its
#: time grows with the square of the number of parts (see _LONG_KEY).
_MAX_TOML = 2**18
#: A valid label. Selections use labels as patterns, in which `*`, `[` and `:` have a meaning, so a label has none.
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONG_KEY = re.compile(r"""(?<![\w."'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""")
_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")


@dataclasses.dataclass(frozen=True, init=False)
class DumpRequest:
    # Assigned, because the help texts of the command line are taken from it, and `python -OO` removes docstrings.
    __doc__ = """What to dump. Every field has a default; values are validated and normalised here.

    path       The directory to write to, created if missing; ~, $NAME and ${NAME} are expanded.
    steps      Steps to dump, counted from 0: "0|3-5|10" or "all"; on the host also "0-10000:1000" and "4000-".
    mode       Which tensors of an operator to dump: "input", "output" or "all".
    layers     Operators to dump: globs or `re:` patterns, all by default. MODEL:LAYER applies to one of `models` only.
    models     Names of the models to dump, if a process runs several; all by default. A model to which no pattern of
               `layers` applies is dumped completely.
    data       "tensor", "stats" (statistics only) or "full" (both).
    stats      Names of the statistics to record. By default those that need a single pass over the elements: all but
               "variance", "skewness" and "kurtosis".
    level      On NPUs "op", "kernel" or "all": operators, kernels or both. With PyTorch on the host also "module":
               inputs and outputs of modules only, forward and backward (with "stats" norms of parameters and gradients
               too).
    scene      Dump only operators that overflow ("overflow"), the watched operators ("watch") or operators that fail
               ("exception").
    watch      For scene="watch": operators whose output memory is checked for being overwritten.
    quant      Dump the tensors before quantisation too.
    ranks      Global ranks to dump, written as steps.
    max_bytes  Stop writing at about this size: an int, or text such as "20GB".
    keep       Keep only this number of recorded steps on disk: the oldest is removed once a newer one is complete.
    until      "nonfinite": stop recording after the first step that produces NaN or Inf.
    ignore     With until: operators whose NaN and Inf is expected and does not count: globs of names or types, modules,
               or FILE:LINE.
    label      A name for the dump, such as "update_actor": listings show it, `select(label=)` selects by it, and
               `compare` compares dumps with equal labels. Up to 64 letters, digits, "-" and "_".
    quiet      Print no summary at the end of a successful run.
    strict     Raise an exception for a failure, instead of logging it once and continuing. A program that was started
               by `ascend-dump run` or with ASCEND_DUMP then ends with exit code 2, and with 5 if nothing was recorded.
    options    Settings that only one adapter has.

    In Python `steps` and `ranks` may also be an int, a range or a list, and lists of names any iterable. Raises
    ConfigError naming the field, its value and the accepted values.

    >>> DumpRequest(steps=range(3), layers="*conv*").to_text()
    'steps=0-2,layers=*conv*'
    """

    path: Path
    steps: Steps
    mode: Mode
    layers: tuple[str, ...]
    models: tuple[str, ...]
    data: Data
    stats: tuple[str, ...]
    level: Level
    scene: Optional[Scene]
    watch: tuple[str, ...]
    quant: bool
    ranks: Steps
    max_bytes: Optional[int]
    keep: Optional[int]
    until: Optional[Until]
    ignore: tuple[str, ...]
    label: Optional[str]
    quiet: bool
    strict: bool
    options: Mapping[str, Any] = dataclasses.field(hash=False)

    def __init__(
        self,
        *,
        path: Union[str, os.PathLike[str]] = "dumps",
        steps: StepsLike = None,
        mode: Mode = "all",
        layers: Union[str, Iterable[str]] = (),
        models: Union[str, Iterable[str]] = (),
        data: Data = "tensor",
        stats: Union[str, Iterable[str]] = (),
        level: Level = "all",
        scene: Optional[Scene] = None,
        watch: Union[str, Iterable[str]] = (),
        quant: bool = False,
        ranks: StepsLike = None,
        max_bytes: Union[int, str, None] = None,
        keep: Union[int, str, None] = None,
        until: Optional[Until] = None,
        ignore: Union[str, Iterable[str]] = (),
        label: Optional[str] = None,
        quiet: bool = False,
        strict: bool = False,
        options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        choose = (("mode", mode), ("data", data), ("level", level), ("scene", scene), ("until", until))
        for name, value in choose:
            choices = CHOICES[name]
            if value not in choices and not (name in ("scene", "until") and value is None):
                raise _wrong(name, value, " or ".join(repr(choice) for choice in choices), choices)
            _put(self, name, value)
        for name, items in (
            *(("layers", layers), ("models", models), ("stats", stats)),
            *(("watch", watch), ("ignore", ignore)),
        ):
            _put(self, name, _names(name, items))
        for stat in self.stats:
            if stat not in ALL_STATISTICS:
                raise _wrong("stats", stat, ", ".join(ALL_STATISTICS), ALL_STATISTICS)
        if self.watch and scene != "watch":
            raise ConfigError(
                f"watch={list(self.watch)} was given with scene={scene!r}",
                hint="watch names the operators of scene='watch'; set both or neither",
            )
        for name, flag in (("quant", quant), ("quiet", quiet), ("strict", strict)):
            if not isinstance(flag, bool):
                raise _wrong(name, flag, "True or False", ())
            _put(self, name, flag)
        if not isinstance(options, (Mapping, type(None))):
            raise _wrong("options", options, "a mapping such as {'rehash': True}", ())
        _put(self, "path", _path(path))
        _put(self, "steps", Steps(steps))
        _put(self, "ranks", Steps(ranks, name="ranks"))
        _put(self, "max_bytes", None if max_bytes is None else parse_size(max_bytes))
        _put(self, "keep", None if keep is None else _number_of_steps(keep))
        if label is not None and not (isinstance(label, str) and _LABEL.fullmatch(label)):
            raise _wrong("label", label, "1 to 64 letters, digits, '-' and '_'", ())
        _put(self, "label", label)
        _put(self, "options", MappingProxyType(dict(options or {})))
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        """Raise ConfigError for `until` or `keep` in a scene where they have no effect, or `ignore` without `until`.

        With the option `outline`, the few numbers per step for `triage --run`, `ignore` has an effect too.
        """
        if self.ignore and self.until is None and "outline" not in self.options:
            raise ConfigError(
                f"ignore={list(self.ignore)} was given without until='nonfinite'",
                hint="set both; `ascend-dump overflow` and `triage --run` have --ignore too",
            )
        if self.until is not None and self.scene in ("watch", "exception"):
            raise ConfigError(
                f"until={self.until!r} was given with scene={self.scene!r}, which does not dump what steps compute",
                hint="leave one of them out",
            )
        if self.keep is not None and self.scene == "exception":
            raise ConfigError(
                f"keep={self.keep} was given with scene='exception', which writes nothing before something fails",
                hint="leave keep= out, or leave scene= out to have the steps before an exception",
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, origin: str = "") -> DumpRequest:
        """Create a request from a mapping of settings, whose keys are our names or aliases such as CANN's.

        origin: a prefix for messages, such as the name of a file. Raises ConfigError for an unknown name.
        """
        settings: dict[str, Any] = {}
        for spelling, value in values.items():
            name = spelling if spelling in SPELLINGS else ALIASES.get(spelling, "")
            if not name:
                raise unknown_name(spelling, origin=origin, aliases=True)
            if name in settings:
                raise ConfigError(
                    f"{origin}{spelling!r} and another spelling of {name!r} are both given",
                    hint=f"keep one of them, preferably {name!r}",
                )
            settings[name] = value
        return cls(**settings)

    @classmethod
    def from_file(cls, path: Union[str, os.PathLike[str]]) -> DumpRequest:
        """Create a request from a .json or .toml file; its settings may be in a table `ascend_dump`.

        Raises ConfigError.
        """
        file = Path(path)
        try:
            content = read_regular(file, _MAX_FILE + 1)
            text = content.decode("utf-8-sig")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8
            raise ConfigError(f"{file}: cannot be read: {error}", hint="give a JSON or TOML file in UTF-8") from None
        if len(content) > _MAX_FILE:
            raise ConfigError(
                f"{file}: larger than {_MAX_FILE} bytes, so it holds no settings",
                hint="give a JSON or TOML file with keys such as steps and path",
            )
        values = decode_settings(file, text)
        inner = values.get("ascend_dump", values) if isinstance(values, Mapping) else values
        if not isinstance(inner, Mapping):
            raise ConfigError(
                f"{file}: holds a {type(inner).__name__}, not settings", hint="write keys such as steps and path"
            )
        return cls.from_mapping(inner, origin=f"{file}: ")

    @classmethod
    def from_text(cls, text: str) -> DumpRequest:
        """Create a request from a value of ASCEND_DUMP: `1`, `steps=0|2-5,path=/d`, JSON, or a .json/.toml path.

        In a list, `;` separates the items. Options of an adapter are written `options.name=value`. Raises ConfigError.
        """
        text = text.strip()
        if text.lower() in _TRUE:
            return cls()
        if text.startswith("{"):
            try:
                decoded = json.loads(text)
            except ValueError as error:
                raise ConfigError(
                    f"{text[:_MAX_SHOWN]!r} is not JSON: {error}", hint='write {"steps": "0|1"} or steps=0|1'
                ) from None
            except RecursionError:
                raise _too_deep(f"{text[:40]!r}...") from None
            return cls.from_mapping(decoded)
        if "=" not in text:
            return cls.from_file(_path(text))
        values: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for part in text.split(","):
            spelling, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not spelling:
                raise ConfigError(
                    f"{part!r} in {text!r} is not name=value",
                    hint="write steps=0|2-5,path=/d; a value with a comma needs a JSON object or a file",
                )
            if spelling.startswith("options."):
                options[spelling[len("options.") :]] = plain_value(value)
                continue
            name = spelling if spelling in SPELLINGS else ALIASES.get(spelling, spelling)
            if spelling in values:
                raise ConfigError(f"{spelling!r} is given twice in {text!r}", hint="give each setting once")
            values[spelling] = value_from_word(name, value)
        if options:
            values["options"] = options
        return cls.from_mapping(values)

    def layers_of(self, model: str) -> tuple[str, ...]:
        """Return the patterns of `layers` that apply to a model: those without a model name and those with its name."""
        patterns = []
        for layer in self.layers:
            owner, colon, pattern = layer.partition(":")
            if not colon or owner == "re" or owner not in self.models:
                patterns.append(layer)
            elif owner == model:
                patterns.append(pattern)
        return tuple(patterns)

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as JSON values that `from_mapping` accepts."""
        plain: dict[str, Any] = {}
        defaults = _defaults()
        for name in SPELLINGS:
            value = getattr(self, name)
            if value == getattr(defaults, name):
                continue
            if isinstance(value, (Path, Steps)):
                value = str(value)
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            plain[name] = value
        return plain

    def to_text(self) -> str:
        """Return the value of ASCEND_DUMP for this request, in one line. `from_text` reads it back."""
        plain = self.to_mapping()
        simple = {name: ";".join(value) if isinstance(value, list) else value for name, value in plain.items()}
        words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in simple.items()]
        text = ",".join(words)
        # Settings that the short form cannot express, such as a comma in a path or options, are written as JSON.
        try:
            if "options" not in plain and (not plain or DumpRequest.from_text(text) == self):
                return text or "1"
        except ConfigError:
            pass
        return json.dumps(plain)

    def replace(self, **changes: Any) -> DumpRequest:
        return dataclasses.replace(self, **changes)


@functools.lru_cache(1)
def _defaults() -> DumpRequest:
    return DumpRequest()


def unknown_name(name: str, *, origin: str = "", aliases: bool = False) -> ConfigError:
    """Return the error for an unknown setting, or for an alias such as CANN's name.

    aliases: True if aliases are allowed, so that only unknown names are refused
    origin: a prefix for the message, such as the name of a file
    """
    if name in ALIASES and not aliases:
        return ConfigError(f"{name}= is a framework's spelling", hint=f"use `{ALIASES[name]}=`")
    guess = did_you_mean(name, [*SPELLINGS, *ALIASES] if aliases else SPELLINGS)
    return ConfigError(f"{origin}unknown setting {name!r}", hint=f"{guess}known: {', '.join(SPELLINGS)}")


def parse_size(value: Union[int, str]) -> int:
    """Return the number of bytes that an int, or a text such as `20GB` or `512 MiB`, stands for. Raises ConfigError."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
        # A limit on the digits, because int() raises ValueError for thousands of them.
        if match and match[2] in _UNITS and len(match[1]) <= _MAX_DIGITS:
            value = int(Fraction(match[1]) * _UNITS[match[2]])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_BYTES:
        raise _wrong("max_bytes", value, "a positive number of bytes below 2**63, or text such as '20GB'", ())
    return value


def _number_of_steps(value: Union[int, str]) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**18:
        raise _wrong("keep", value, "how many steps stay on disk, 1 or more", ())
    return value


def _put(request: DumpRequest, name: str, value: Any) -> None:
    object.__setattr__(request, name, value)  # the class is frozen, so plain assignment would fail


def _path(value: Any) -> Path:
    try:
        text = os.fspath(value)
    except TypeError:
        raise _wrong("path", value, "a path", ()) from None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise _wrong("path", value, "a non-empty path", ())
    if is_url(value):
        raise ConfigError(
            f"path={text!r} is an address, and a capture writes to this machine",
            hint=f"give a directory, and upload it later: `ascend-dump push DIRECTORY {text}`",
        )
    for whole, name, braced in re.findall(r"(\$(?:(\w+)|\{([^}]*)\}))", text, re.ASCII) if "$" in text else ():
        # Only for str: a Path may come from the file system, where a name may contain `$`.
        if (name or braced) not in os.environ and isinstance(value, str):
            raise ConfigError(
                f"path={text!r}: the environment variable in {whole} is not set",
                hint="set it, or write the path without it; in a Path object `$` is an ordinary character",
            )
    try:
        return Path(os.path.expandvars(text)).expanduser()
    except RuntimeError:
        raise ConfigError(f"path={text!r}: its ~ names no home directory", hint="write the whole path") from None


def _names(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    try:
        names = tuple(items)
    except TypeError:
        raise _wrong(name, value, "a name or a list of names", ()) from None
    for item in names:
        if not isinstance(item, str) or not item.strip():
            raise _wrong(name, item, "non-empty text", ())
    return names


def _wrong(name: str, value: object, expected: str, near: Iterable[str]) -> ConfigError:
    try:
        shown_value = repr(value)
    except ValueError:  # an int with more digits than Python converts to text
        shown_value = f"<{type(value).__name__}>"
    guess = did_you_mean(shown_value.strip("'"), near).rstrip() or f"give {name} as {expected}"
    shown = shown_value if len(shown_value) <= _MAX_SHOWN else f"{shown_value[:_MAX_SHOWN]}..."
    return ConfigError(f"{name}={shown}: expected {expected}", hint=guess)


def _too_deep(where: str) -> ConfigError:
    return ConfigError(f"{where}: nested too deep to be settings", hint="write keys such as steps and path")


def value_from_word(name: str, value: str) -> Any:
    """Return the value of a setting from its text in `ASCEND_DUMP` or on the command line."""
    if name in LISTS:
        return [item.strip() for item in value.split(";") if item.strip()]
    if name in FLAGS and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    return value


def plain_value(value: str) -> Any:
    """Return the text converted to True, False or an int if it is written like one, else the text itself."""
    low = value.lower()
    if low in _TRUE[1:] or low in _FALSE[1:]:
        return low in _TRUE
    return int(value) if re.fullmatch(r"-?\d{1,18}", value, re.ASCII) else value


def decode_settings(file: Path, text: str) -> Any:
    """Decode a file of settings, TOML or JSON by its suffix. Raises ConfigError."""
    try:
        if file.suffix == ".toml":
            return _toml(file, text)
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}", hint="check it with a JSON or TOML linter") from None
    except RecursionError:
        raise _too_deep(str(file)) from None


def _toml(file: Path, text: str) -> Any:
    if len(text) > _MAX_TOML:
        raise ConfigError(f"{file}: larger than {_MAX_TOML} characters", hint="write the same settings as JSON")
    if _LONG_KEY.search(text):
        raise _too_deep(str(file))
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]  # from Python 3.11 on
    except ImportError:
        try:
            import tomli as tomllib
        except ImportError:
            raise NotSupported(
                "TOML needs Python 3.11 or the package tomli", hint="write the same settings as JSON"
            ) from None
    return tomllib.loads(text)
