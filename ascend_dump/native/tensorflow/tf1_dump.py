"""Dump operators of TensorFlow on Ascend without ascend_dump. Needs Python 3.5 or later, and no packages.

    ascend-dump config --for tensorflow --path dumps --steps "0|2" -o dump.json      with ascend_dump, on any machine
    ascend-dump config --for tensorflow --standalone tf1_dump.py

    import tf1_dump                                                                  in the training script

    with tf1_dump.capture(session_config, "dump.json", ranks="7"):
        with tf.Session(config=session_config) as sess: ...

    run_config = NPURunConfig(dump_config=tf1_dump.dump_config("dump.json", ranks="7"), ...)

ascend-dump reads, converts and compares the dump: `ascend-dump ls dumps`. If RANK_ID is set, each rank writes into its
own directory below the dump path, because ranks that start in the same second would share GE's directory.
"""

import json
import logging
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

__all__ = ["DumpError", "SessionDump", "capture", "dump_config"]

OPTIMIZER = "NpuOptimizer"
SWITCHES = ("enable_dump", "enable_dump_debug")
#: The keys that only control the dump, with the field of AttrValue from which npu_bridge reads each of them.
DUMP_FIELDS = {
    "enable_dump": "b",
    "enable_dump_debug": "b",
    "dump_path": "s",
    "dump_step": "s",
    "dump_mode": "s",
    "dump_debug_mode": "s",
    "dump_data": "s",
    "dump_layer": "s",
    "quant_dumpable": "s",
}
#: Keys that may also be set for other purposes.
OTHER_FIELDS = {"enable_exception_dump": "i", "use_off_line": "b"}
_TYPES = {"b": bool, "i": int, "s": str}
#: RewriterConfig.OFF, which the documents also set for memory_optimization.
_OFF = 2

_Value = Union[bool, int, str]
_Settings = Union[str, "os.PathLike[str]", Mapping[str, _Value]]

_log = logging.getLogger("tf1_dump")


class DumpError(ValueError):
    """An error in the settings, the target or the environment."""


def capture(target: Any, settings: _Settings, ranks: str = "all") -> "SessionDump":
    """Return a context manager that dumps the sessions which are created from `target` in its block.

    target: a tf.ConfigProto, a tf.estimator.RunConfig or an NPURunConfig; it is restored at the end of the block.
    settings: the JSON file of `ascend-dump config --for tensorflow`, or its keys and values. ranks: values of RANK_ID
    with which a process dumps, such as "7" or "0|4-6". Raises DumpError.
    """
    return SessionDump(target, settings, ranks)


def dump_config(settings: _Settings, ranks: str = "all") -> Any:
    """Return npu_bridge's DumpConfig for `NPURunConfig(dump_config=...)`. On ranks not in `ranks` it dumps nothing.

    The directory of the dump is created if it is missing. Raises DumpError.
    """
    values = _read(settings)
    if not _is_selected(ranks):
        return _make_dump_config({"enable_dump": False})
    _make_directory(str(values["dump_path"]))
    return _make_dump_config(values)


class SessionDump:
    """A context manager that turns a dump on for a block; see `capture`.

    path    the directory of this rank; GE creates a directory in it for each session, named by the time
    active  True if this rank dumps
    """

    def __init__(self, target: Any, settings: _Settings, ranks: str = "all") -> None:
        self._values = _read(settings)
        self._target = target
        self._kind = _kind_of(target)
        self._armed = None  # type: Optional[Union[ArmedConfig, _ArmedAttribute]]
        self._earlier = []  # type: List[str]
        self.active = _is_selected(ranks)
        self.path = str(self._values["dump_path"])

    def __enter__(self) -> "SessionDump":
        if self.active and self._armed is None:
            _make_directory(self.path)
            self._earlier = os.listdir(self.path)
            self._armed = self._arm()
        return self

    def __exit__(self, *error: object) -> None:
        armed, self._armed = self._armed, None
        if armed is None:
            return
        armed.restore()
        # There is no warning for overflow detection, because it writes no files if nothing overflows.
        if self._values.get("enable_dump") and set(os.listdir(self.path)) <= set(self._earlier):
            reason = (
                "create the session inside the block, from the captured configuration; dump_step counts the runs of "
                "each graph from 0, and dump_layer needs exact names"
                if any(name in sys.modules for name in ("npu_bridge", "npu_device"))
                else "npu_bridge is not imported, and TensorFlow on the host ignores the settings"
            )
            _log.warning("nothing was dumped into %s: %s", self.path, reason)

    def _arm(self) -> "Union[ArmedConfig, _ArmedAttribute]":
        if self._kind == "NPURunConfig":
            return _ArmedAttribute(self._target, "_dump_config", _make_dump_config(self._values))
        if self._kind == "ConfigProto":
            return ArmedConfig(self._target, self._values)
        config = self._target._session_config
        if config is not None:
            return ArmedConfig(config, self._values)
        config = sys.modules["tensorflow"].compat.v1.ConfigProto()
        put(config, self._values)
        return _ArmedAttribute(self._target, "_session_config", config)


def _kind_of(target: Any) -> str:
    names = [base.__name__ for base in type(target).__mro__]
    for kind in ("ConfigProto", "NPURunConfig", "RunConfig"):
        if kind in names:
            return kind
    raise DumpError(
        "a dump of {} cannot be set up: give the tf.ConfigProto of the session, a tf.estimator.RunConfig or an "
        "NPURunConfig".format(type(target).__name__)
    )


def _read(settings: _Settings) -> Dict[str, _Value]:
    """Return the keys and values of settings. `dump_path` is the directory of this rank. Raises DumpError."""
    name = "the settings"
    content = settings  # type: Any
    if not isinstance(settings, Mapping):
        name = str(settings)
        try:
            with open(name, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            raise DumpError("{} cannot be read: {}".format(name, error))
    if not isinstance(content, Mapping):
        raise DumpError("{} has no object of keys and values: write it with `ascend-dump config`".format(name))
    values = dict(content)
    for key, value in values.items():
        field = DUMP_FIELDS.get(key) or OTHER_FIELDS.get(key)
        if field is None:
            raise DumpError("{}: {!r} is not a key of a dump: `ascend-dump check` explains it".format(name, key))
        if type(value) is not _TYPES[field]:
            raise DumpError("{}: {} is {!r}, expected {}".format(name, key, value, _TYPES[field].__name__))
    active = [switch for switch in SWITCHES if values.get(switch)]
    if len(active) != 1:
        word = "both {} and {} are".format(*SWITCHES) if active else "neither {} nor {} is".format(*SWITCHES)
        raise DumpError("{}: {} true: set one of them".format(name, word))
    if not values.get("dump_path"):
        raise DumpError("{}: no dump_path: name the directory of the dump".format(name))
    values["dump_path"] = os.path.join(os.path.abspath(values["dump_path"]), *_level_of_rank())
    return values


def _level_of_rank() -> Tuple[str, ...]:
    """Return the name of this rank's directory in a tuple; an empty tuple without RANK_ID."""
    rank = _number("RANK_ID")
    if rank is None:
        return ()
    return ("worldsize{}_global_rank{}".format(max(_number("RANK_SIZE") or 0, rank + 1), rank),)


def _number(variable: str) -> Optional[int]:
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdigit():
        raise DumpError("{} is {!r}: expected the number of a rank".format(variable, text))
    return int(text)


def _is_selected(ranks: str) -> bool:
    if ranks == "all":
        return True
    rank = _number("RANK_ID") or 0
    is_selected = False
    for part in ranks.replace(",", "|").split("|"):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            raise DumpError('ranks is {!r}: write "all", or ranks as in "7" or "0|4-6"'.format(ranks))
        is_selected = is_selected or int(first) <= rank <= int(last or first)
    return is_selected


def _make_directory(path: str) -> None:
    """Create a directory and its missing parents, readable by their owner only. Raises DumpError."""
    if os.path.isdir(path):
        return
    _make_directory(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        # Another rank may have created it.
        if not os.path.isdir(path):
            raise DumpError("{} cannot be created: {}".format(path, error.strerror))


def _make_dump_config(values: Mapping[str, _Value]) -> Any:
    module = sys.modules.get("npu_bridge.estimator.npu.npu_config")
    if module is None:
        raise DumpError("npu_bridge is not imported: from npu_bridge.npu_init import *")
    if "quant_dumpable" in values:
        raise DumpError("DumpConfig has no quant_dumpable: use NPURunConfig(quant_dumpable=...) instead")
    fields = {name: value for name, value in values.items() if name in DUMP_FIELDS}
    try:
        return module.DumpConfig(**fields)
    except TypeError as error:
        raise DumpError("this npu_bridge is too old for these settings: {}".format(error))


class _ArmedAttribute:
    """An attribute of a RunConfig that has another value until `restore`."""

    def __init__(self, target: Any, name: str, value: Any) -> None:
        self._target = target
        self._name = name
        self._before = vars(target).get(name)
        self._had = name in vars(target)
        vars(target)[name] = value

    def restore(self) -> None:
        if self._had:
            vars(self._target)[self._name] = self._before
        else:
            vars(self._target).pop(self._name, None)


# The functions below are about the entries of NpuOptimizer in a ConfigProto.


def entries(config: Any) -> List[Any]:
    """Return the entries of NpuOptimizer in order. The configuration is not changed."""
    return [entry for entry in config.graph_options.rewrite_options.custom_optimizers if entry.name == OPTIMIZER]


def plain(value: Any) -> Any:
    """Return the value of an AttrValue, from whichever field is set. Bytes are decoded. None if no field is set."""
    field = value.WhichOneof("value")
    if field is None:
        return None
    content = getattr(value, field)
    return os.fsdecode(content) if isinstance(content, bytes) else content


def effective(config: Any) -> Dict[str, Any]:
    """Return the values that npu_bridge reads. If several entries have a key, it reads the last one.

    (assumption npu_bridge.last_entry)
    """
    settings = {}  # type: Dict[str, Any]
    for entry in entries(config):
        for name, value in entry.parameter_map.items():
            settings[name] = plain(value)
    return settings


def conflict(settings: Mapping[str, Any], values: Mapping[str, _Value]) -> str:
    """Return the switch that is on in `settings`, if `values` turns on the other one, which excludes it; else ""."""
    for name in SWITCHES:
        if settings.get(name) is True and not values.get(name) and any(values.get(switch) for switch in SWITCHES):
            return name
    return ""


def put(config: Any, values: Mapping[str, _Value]) -> Any:
    """Set the keys in the last entry, and remove other dump settings from all entries. Return the last entry.

    If there is no entry, one is added, with the same additional settings as npu_config_proto makes. Raises DumpError if
    the configuration turns on a dump and `values` turns on overflow detection, or the other way round.
    """
    excluded = conflict(effective(config), values)
    if excluded:
        raise DumpError(
            "the configuration sets {0}, and enable_dump and enable_dump_debug exclude each other: remove {0}, or "
            "capture in two runs".format(excluded)
        )
    # npu_bridge checks each entry together with the switches in earlier entries. So all earlier dump settings are
    # removed from all entries.
    fields = [name for name in DUMP_FIELDS if name != "quant_dumpable" or name in values]
    optimizers = entries(config)
    for entry in optimizers:
        for name in fields:
            # Tested with `in`, because indexing a protobuf map creates the key.
            if name in entry.parameter_map:
                del entry.parameter_map[name]
    last = optimizers[-1] if optimizers else _add(config)
    for name, value in values.items():
        field = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"
        setattr(last.parameter_map[name], field, os.fsencode(value) if isinstance(value, str) else value)
    return last


def _add(config: Any) -> Any:
    rewriting = config.graph_options.rewrite_options
    entry = rewriting.custom_optimizers.add()
    entry.name = OPTIMIZER
    entry.parameter_map["use_off_line"].b = True
    rewriting.remapping = _OFF
    rewriting.memory_optimization = _OFF
    return entry


class ArmedConfig:
    """A ConfigProto of the user that has dump settings until `restore`."""

    def __init__(self, config: Any, values: Mapping[str, _Value]) -> None:
        self.config = config
        self._values = dict(values)
        self._before = type(config)()
        self._before.CopyFrom(config)
        put(config, values)
        self._after = type(config)()
        self._after.CopyFrom(config)

    def restore(self) -> None:
        """Remove the dump settings and restore earlier ones. Other changes of the program are preserved."""
        if self.config == self._after:
            self.config.CopyFrom(self._before)
            return
        old = entries(self._before)
        optimizers = self.config.graph_options.rewrite_options.custom_optimizers
        for index, entry in enumerate(entries(self.config)):
            was = old[index].parameter_map if index < len(old) else {}  # type: Any
            for name, value in self._values.items():
                if name in entry.parameter_map and plain(entry.parameter_map[name]) == value:
                    del entry.parameter_map[name]
            for name in DUMP_FIELDS:
                if name in was and name not in entry.parameter_map:
                    entry.parameter_map[name].CopyFrom(was[name])
        if not old:
            # The added entry is removed, unless the program has added settings to it.
            for index in reversed(range(len(optimizers))):
                if optimizers[index].name == OPTIMIZER and set(optimizers[index].parameter_map) <= {"use_off_line"}:
                    del optimizers[index]
