"""Convert a DumpRequest to CANN's dump JSON, or to GE's session options.

`OPTIONS` lists the `options` of a request. A request that CANN cannot express raises an error. Settings that CANN would
accept and ignore are converted nevertheless; `check_acl_config` and `check_ge_options` report them. `ranks` and
`max_bytes` are not converted: the capture applies them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.common.patterns import text_matcher
from ascend_dump.errors import ConfigError, NotSupported

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest
    from ascend_dump.steps import Steps

__all__ = ["OPTIONS", "acl_config", "ge_options"]

#: The names that `DumpRequest.options` may contain for CANN, with their help texts.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "op_switch": "True: also dump single-operator calls; 'only': dump these calls and no models",
        "kernel_data": "the data that kernels print: all, or a list of printf, tensor, assert, timestamp with commas",
        "exception": "for scene='exception': brief, norm, detail or lite",
        "optype_blacklist": "tensors left out by operator type: [{'name': 'Add', 'pos': ['input0']}]",
        "opname_blacklist": "tensors left out by operator name",
        "opname_range": "operators from begin to end in execution order: [{'begin': 'a', 'end': 'b'}]",
        "debug_mode": "for scene='overflow' through session options: all, aicore_overflow or atomic_overflow",
    }
)

_EXCEPTIONS = {
    "brief": "aic_err_brief_dump",
    "norm": "aic_err_norm_dump",
    "detail": "aic_err_detail_dump",
    "lite": "lite_exception",
}
_STATS = {
    "max": "Max",
    "min": "Min",
    "mean": "Avg",
    "nan": "Nan",
    "neginf": "Negative Inf",
    "posinf": "Positive Inf",
    "l2norm": "L2norm",
}
_LISTS = ("optype_blacklist", "opname_blacklist", "opname_range")


def acl_config(
    request: DumpRequest, *, names: Optional[Iterable[str]] = None, known_options: Iterable[str] = ()
) -> dict[str, Any]:
    """Build the content of an acl.json: `{"dump": {...}}`.

    names: the names of the graph's operators, to which patterns in `layers` and `watch` are expanded; without them a
    pattern raises NotSupported. known_options: names of options that other parts of the adapter use. Raises
    ConfigError for an unknown option or a wrong value.
    """
    options = _options(request, known_options)
    if request.quant:
        raise NotSupported(
            "quant=True: the dump JSON has no such setting", hint="set ge.quant_dumpable when the model is compiled"
        )
    dump: dict[str, Any] = {"dump_path": os.fspath(request.path)}
    if request.scene == "exception":
        dump["dump_scene"] = _exception(options)
        return {"dump": dump}
    if request.scene == "overflow":
        dump["dump_debug"] = "on"
        # adump ignores the steps for overflow detection, which the check reports, but GE passes them on.
        dump.update(_steps(request.steps))
        return {"dump": dump}
    operators = None if names is None else list(names)
    dump["dump_list"] = (
        _watch_list(request, operators) if request.scene == "watch" else _dump_list(request, options, operators)
    )
    # The watcher writes only outputs: adump refuses other modes.
    dump["dump_mode"] = "output" if request.scene == "watch" else request.mode
    dump["dump_level"] = request.level
    dump["dump_data"] = _data(request)
    if request.stats:
        dump["dump_stats"] = _stats(request.stats)
    if request.scene == "watch":
        dump["dump_scene"] = "watcher"
    else:
        dump["dump_op_switch"] = "on" if _op_switch(options) else "off"
    dump.update(_steps(request.steps))
    if "kernel_data" in options:
        dump["dump_kernel_data"] = _text(options, "kernel_data")
    return {"dump": dump}


def ge_options(
    request: DumpRequest, *, names: Optional[Iterable[str]] = None, known_options: Iterable[str] = ()
) -> dict[str, str]:
    """Build GE's session options; arguments as for `acl_config`.

    With session options whole operators of all models are dumped, never single kernels. Raises NotSupported for
    settings that only the dump JSON can express.
    """
    options = _options(request, known_options)
    _refuse_json_only(request, options)
    session: dict[str, str] = {"ge.quant_dumpable": "1"} if request.quant else {}
    if request.scene == "exception":
        kinds = {"norm": "1", "brief": "2", "lite": "2"}
        kind = str(options.get("exception", "norm"))
        if kind not in kinds:
            raise NotSupported(
                f"session options have no exception dump {kind!r}", hint="use norm or brief, or acl.json"
            )
        return {**session, "ge.exec.enable_exception_dump": kinds[kind]}
    session["ge.exec.dumpPath"] = os.fspath(request.path)
    if request.scene == "overflow":
        session["ge.exec.enableDumpDebug"] = "1"
        session["ge.exec.dumpDebugMode"] = str(options.get("debug_mode", "all"))
    else:
        session["ge.exec.enableDump"] = "1"
        session["ge.exec.dumpMode"] = request.mode
        session["ge.exec.dumpData"] = _data(request)
        layers = _names("layers", request.layers, None if names is None else list(names))
        for layer in layers:
            if layer != "".join(layer.split()):
                raise NotSupported(f"layers={layer!r}: GE separates names by blanks", hint="use acl.json for this name")
        if layers:
            session["ge.exec.dumpLayer"] = " ".join(layers)
    if not request.steps.all:
        session["ge.exec.dumpStep"] = request.steps.to_ge_option()
    return session


def _refuse_json_only(request: DumpRequest, options: Mapping[str, Any]) -> None:
    unsupported = {
        "scene='watch'": request.scene == "watch",
        "models": bool(request.models),
        "stats": bool(request.stats),
        "level='kernel'": request.level == "kernel",
        **{f"options[{name!r}]": name in options for name in (*_LISTS, "op_switch", "kernel_data")},
    }
    for what, is_requested in unsupported.items():
        if is_requested:
            raise NotSupported(f"GE session options cannot express {what}", hint="use a dump JSON (acl.json) for it")


def _options(request: DumpRequest, known_options: Iterable[str]) -> Mapping[str, Any]:
    if request.level == "module":
        raise NotSupported(
            "level='module': CANN dumps operators and kernels, not modules",
            hint="capture a PyTorch model with framework='torch', which records on the host; or select with layers=",
        )
    for name in request.options:
        if name not in OPTIONS and name not in set(known_options):
            raise ConfigError(f"options: {name!r} is unknown", hint=f"known: {', '.join(OPTIONS)}")
    return request.options


def _exception(options: Mapping[str, Any]) -> str:
    kind = options.get("exception", "norm")
    if kind in _EXCEPTIONS:
        return _EXCEPTIONS[kind]
    if kind in _EXCEPTIONS.values():
        return str(kind)
    raise ConfigError(f"options['exception']={kind!r}: no such kind", hint=f"give one of {', '.join(_EXCEPTIONS)}")


def _dump_list(
    request: DumpRequest, options: Mapping[str, Any], operators: Optional[list[str]]
) -> list[dict[str, Any]]:
    if _op_switch(options) == "only":
        if request.layers or request.models:
            raise ConfigError(
                "options['op_switch']='only' dumps no model, but layers or models are given",
                hint="use op_switch=True, or leave layers and models out",
            )
        return []
    lists = {name: _objects(options, name) for name in _LISTS if name in options}
    items: list[dict[str, Any]] = []
    for model in request.models or ("",):
        layers = _names("layers", request.layers_of(model), operators)
        named = {"model_name": model} if model else {}
        items.append({**named, **({"layer": layers} if layers else {}), **lists})
    return items


def _watch_list(request: DumpRequest, operators: Optional[list[str]]) -> list[dict[str, Any]]:
    if not request.watch:
        raise ConfigError("scene='watch' needs watch=", hint="name the operators whose output may be overwritten")
    if request.models:
        raise NotSupported("the watcher covers all models", hint="leave models= out with scene='watch'")
    item = {"watcher_nodes": _names("watch", request.watch, operators)}
    layers = _names("layers", request.layers, operators)
    return [{"layer": layers, **item} if layers else item]


def _names(field: str, texts: Iterable[str], operators: Optional[list[str]]) -> list[str]:
    """Return exact names: patterns are expanded to the operators of the graph, because CANN compares exact names."""
    names: list[str] = []
    for text in texts:
        if not text.startswith("re:") and not re.search(r"[*?]|\[.*\]", text):
            names.append(text)
            continue
        if operators is None:
            raise NotSupported(
                f"{field}={text!r}: CANN compares exact names and the operators of the graph are not known here",
                hint="list the names, as `ascend-dump ops` shows them, or give the graph (`config --graph`)",
            )
        matches = text_matcher(text)
        chosen = [name for name in operators if matches(name)]
        if not chosen:
            raise ConfigError(f"{field}={text!r} matches no operator of the graph", hint="see `ascend-dump ops`")
        names += chosen
    return list(dict.fromkeys(names))


def _steps(steps: Steps) -> dict[str, str]:
    return {} if steps.all else {"dump_step": steps.to_cann()}


def _data(request: DumpRequest) -> str:
    if request.data == "full":
        raise NotSupported(
            "CANN dumps tensors or statistics, not both at once",
            hint="use data='tensor' and compute the statistics when reading, or capture twice",
        )
    return request.data


def _stats(stats: Iterable[str]) -> list[str]:
    for name in stats:
        if name not in _STATS:
            raise NotSupported(
                f"CANN has no statistic {name!r}",
                hint=f"it has {', '.join(_STATS)}; dump with data='tensor' to compute others when reading, with "
                "ascend_dump.statistics",
            )
    return [_STATS[name] for name in stats]


def _op_switch(options: Mapping[str, Any]) -> object:
    value = options.get("op_switch", False)
    if not isinstance(value, bool) and value != "only":
        raise ConfigError(f"options['op_switch']={value!r}: expected True, False or 'only'", hint=OPTIONS["op_switch"])
    return value


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options[name]
    if not isinstance(value, str):
        raise ConfigError(f"options[{name!r}]={value!r}: expected text", hint=OPTIONS[name])
    return value


def _objects(options: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = options[name]
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in value):
        raise ConfigError(f"options[{name!r}]={value!r}: expected a list of objects", hint=OPTIONS[name])
    return [dict(entry) for entry in value]
