"""Dump operators of TensorFlow on Ascend where ascend_dump cannot be imported: Python 3.5 and later, no packages.

    ascend-dump config --for tensorflow --path dumps --steps "0|2" -o dump.json      with ascend_dump, on any machine
    ascend-dump config --for tensorflow --standalone tf1_dump.py

    import tf1_dump                                                                  in the training script

    with tf1_dump.capture(session_config, "dump.json", ranks="7"):
        with tf.Session(config=session_config) as sess: ...

    run_config = NPURunConfig(dump_config=tf1_dump.dump_config("dump.json", ranks="7"), ...)

The dump is read, converted and compared by ascend-dump: `ascend-dump ls dumps`. Where RANK_ID is set, each rank writes
into a directory of its own below the dump path, because ranks that start in one second would share GE's directory.
"""

import json
import logging
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

__all__ = ["DumpError", "SessionDump", "capture", "dump_config"]

OPTIMIZER = "NpuOptimizer"
SWITCHES = ("enable_dump", "enable_dump_debug")
#: The keys that select what is dumped; the field of AttrValue from which the bridge reads each.
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
    """Return a context manager that dumps the sessions made in its block from `target`.

    target: a tf.ConfigProto, a tf.estimator.RunConfig or an NPURunConfig; it is as before when the block ends.
    settings: the JSON file of `ascend-dump config --for tensorflow`, or its keys and values. ranks: values of RANK_ID,
    such as "7" or "0|4-6". Raises DumpError.
    """
    return SessionDump(target, settings, ranks)


def dump_config(settings: _Settings, ranks: str = "all") -> Any:
    """Return npu_bridge's DumpConfig for `NPURunConfig(dump_config=...)`; one that dumps nothing on other ranks.

    The directory is created if missing. Raises DumpError.
    """
    values = _read(settings)
    if not _is_selected(ranks):
        return _make_dump_config({"enable_dump": False})
    _make_directory(str(values["dump_path"]))
    return _make_dump_config(values)


class SessionDump:
    """A dump that lasts for a block; see `capture`.

    path    the directory of this rank; GE creates a directory named by time in it for each session
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
        # An overflow detection writes nothing where nothing overflows.
        if self._values.get("enable_dump") and set(os.listdir(self.path)) <= set(self._earlier):
            reason = (
                "the session must be made in the block, from the captured configuration; dump_step counts the runs of "
                "each graph from 0, and dump_layer takes exact names"
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
    """Return the keys and values, with the directory of this rank as dump_path. Raises DumpError."""
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
    """Return the name of the directory of this rank, as ascend-dump has it; empty without RANK_ID."""
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
    """Create a directory, and those above it, readable by their owner only. Raises DumpError."""
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
        raise DumpError("DumpConfig has no quant_dumpable: give it to NPURunConfig(quant_dumpable=...)")
    fields = {name: value for name, value in values.items() if name in DUMP_FIELDS}
    try:
        return module.DumpConfig(**fields)
    except TypeError as error:
        raise DumpError("this npu_bridge is too old for these settings: {}".format(error))


class _ArmedAttribute:
    """An attribute of a RunConfig, replaced until `restore`."""

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


# The entries of NpuOptimizer in a ConfigProto.


def entries(config: Any) -> List[Any]:
    """Return the entries of NpuOptimizer, in order. Reading creates nothing."""
    return [entry for entry in config.graph_options.rewrite_options.custom_optimizers if entry.name == OPTIMIZER]


def plain(value: Any) -> Any:
    """Return the value of an AttrValue: bytes are decoded, a value in the wrong field keeps its type."""
    field = value.WhichOneof("value")
    if field is None:
        return None
    content = getattr(value, field)
    return os.fsdecode(content) if isinstance(content, bytes) else content


def effective(config: Any) -> Dict[str, Any]:
    """Return the value that the bridge reads for each key that is set: that of the last entry with it.

    (assumption npu_bridge.last_entry)
    """
    settings = {}  # type: Dict[str, Any]
    for entry in entries(config):
        for name, value in entry.parameter_map.items():
            settings[name] = plain(value)
    return settings


def conflict(settings: Mapping[str, Any], values: Mapping[str, _Value]) -> str:
    """Return the switch in `settings` that excludes those in `values`; "" if there is none."""
    for name in SWITCHES:
        if settings.get(name) is True and not values.get(name) and any(values.get(switch) for switch in SWITCHES):
            return name
    return ""


def put(config: Any, values: Mapping[str, _Value]) -> Any:
    """Set the keys in the last entry, and remove other dump settings from all entries.

    Without an entry one is added, with the other settings of npu_config_proto. Raises DumpError if the configuration
    detects overflow and `values` dump, or the other way round.
    """
    excluded = conflict(effective(config), values)
    if excluded:
        raise DumpError(
            "the configuration sets {0}, and enable_dump and enable_dump_debug exclude each other: take {0} out, or "
            "capture in two runs".format(excluded)
        )
    # The bridge checks each entry with the switches of earlier ones, so no entry may retain a part of the settings.
    fields = [name for name in DUMP_FIELDS if name != "quant_dumpable" or name in values]
    optimizers = entries(config)
    for entry in optimizers:
        for name in fields:
            # Indexing would create the key.
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
    """Settings in a user's ConfigProto until `restore`."""

    def __init__(self, config: Any, values: Mapping[str, _Value]) -> None:
        self.config = config
        self._values = dict(values)
        self._before = type(config)()
        self._before.CopyFrom(config)
        put(config, values)
        self._after = type(config)()
        self._after.CopyFrom(config)

    def restore(self) -> None:
        """Remove the settings; later changes of the program are preserved."""
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
            # The added entry is removed, unless other settings were put into it.
            for index in reversed(range(len(optimizers))):
                if optimizers[index].name == OPTIMIZER and set(optimizers[index].parameter_map) <= {"use_off_line"}:
                    del optimizers[index]
