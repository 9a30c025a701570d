"""Rules for settings that have no effect because of the environment, the disk, the graph or the device's streams."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from ascend_dump.native.cann.config._access import items_of, objects_of, text_of, texts_of
from ascend_dump.native.cann.config._adump_subjects import dumping
from ascend_dump.native.cann.config._dump_path import is_ip_path, place_of
from ascend_dump.native.cann.config._subjects import GRAPH, AclSubject
from ascend_dump.native.cann.graph import why_no_dump
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["RULES"]

RULES = RuleTable(AclSubject.of_example)

_MEBIBYTE = 1 << 20

_DATA = "Data"
#: Data types for which the device computes statistics. In rows of other types the statistics are blank.
_WITH_STATISTICS = frozenset(
    (
        *("float64", "float32", "float16", "bfloat16", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
#: The exception scenes that adump accepts in the environment; it does not accept `lite_exception` there.
_ENV_SCENES = ("aic_err_brief_dump", "aic_err_norm_dump", "aic_err_detail_dump")


@RULES.rule(
    "ge-collect-path",
    "AD111",
    "if NPU_COLLECT_PATH is set, GE makes an exception dump and refuses any other dump",
    "GE dump_manager SetDumpConf",
    native="E10056",
    where="dump",
    trips=dumping(dump_list=[{}]).given(env={"NPU_COLLECT_PATH": "$DIR"}),
    passes=dumping(dump_list=[{}]).given(env={}),
)
def _collect_path(subject: AclSubject) -> Iterator[Hit]:
    if subject.ge.rule == "ge-collect-path":
        yield Hit(
            subject.ge.where,
            "NPU_COLLECT_PATH is set, which turns on exception dump: GE refuses this dump, acl reports success",
            "unset NPU_COLLECT_PATH in the process that dumps",
        )


@RULES.rule(
    "exception-path-moved",
    "AD114",
    "environment variables replace the path of an exception dump",
    "adump dump_config_converter ConvertDumpConfig",
    where="dump.dump_path",
    trips=dumping(dump_scene="aic_err_norm_dump").given(env={"ASCEND_WORK_PATH": "/elsewhere"}),
    passes=dumping(dump_scene="aic_err_norm_dump").given(env={}),
)
def _exception_path(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.exception_environment)
    path = text_of(subject.dump, "dump_path")
    if not (subject.exception and path):
        return
    for name in ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH"):
        value = subject.situation.env.get(name)
        if value and value != path:
            yield Hit(
                "dump.dump_path", f"{name}={value} is used instead of {path!r}", f"unset {name}, or set it to this path"
            )
            return


@RULES.rule(
    "exception-already-on",
    "AD114",
    "an exception dump that is on already is not changed",
    "adump dump_manager IsRepeatEnableException",
    where="dump.dump_scene",
    trips=Example({"dump": {"dump_scene": "aic_err_norm_dump"}}).given(env={"ASCEND_DUMP_SCENE": "aic_err_brief_dump"}),
    passes=Example({"dump": {"dump_scene": "aic_err_norm_dump"}}).given(env={"ASCEND_DUMP_SCENE": "lite_exception"}),
)
def _exception_on(subject: AclSubject) -> Iterator[Hit]:
    env = subject.situation.env
    by_env = env.get("ASCEND_DUMP_SCENE") in _ENV_SCENES or bool(env.get("NPU_COLLECT_PATH"))
    if subject.exception and (by_env or subject.situation.exception_on):
        which = "the environment (ASCEND_DUMP_SCENE or NPU_COLLECT_PATH)" if by_env else "an earlier configuration"
        yield Hit(
            "dump.dump_scene",
            f"{which} has turned on an exception dump; this scene is accepted and ignored",
            "unset the variables" if by_env else "set this scene before the earlier configuration",
        )


@RULES.rule(
    "environment-scene",
    "AD114",
    "ASCEND_DUMP_SCENE accepts three scenes; another one is ignored with a warning in the log",
    "adump dump_config_converter LoadDumpEnvVariables",
    where="ASCEND_DUMP_SCENE",
    trips=dumping(dump_list=[{}]).given(env={"ASCEND_DUMP_SCENE": "lite_exception"}),
    passes=dumping(dump_list=[{}]).given(env={"ASCEND_DUMP_SCENE": "aic_err_norm_dump"}),
)
def _environment_scene(subject: AclSubject) -> Iterator[Hit]:
    value = subject.situation.env.get("ASCEND_DUMP_SCENE")
    if value and value not in _ENV_SCENES:
        yield Hit(
            "ASCEND_DUMP_SCENE",
            f"{value!r} in the environment does not turn on an exception dump",
            f"give one of {', '.join(_ENV_SCENES)}",
        )


@RULES.rule(
    "disk-full",
    "AD114",
    "with less than 1 MiB of free space, data is lost; the only sign is an error in CANN's log",
    "adump file_utils IsDiskFull",
    where="dump.dump_path",
    trips=dumping(dump_list=[{}]).given(free_bytes=_MEBIBYTE - 1),
    passes=dumping(dump_list=[{}]).given(free_bytes=_MEBIBYTE),
)
def _disk_full(subject: AclSubject) -> Iterator[Hit]:
    path = text_of(subject.dump, "dump_path")
    if not (subject.asks and path) or is_ip_path(path):
        return
    free = subject.situation.free_bytes
    if free is None:
        directory = place_of(path, subject.situation.cwd, subject.situation.planned)
        try:
            free = shutil.disk_usage(directory).free
        except (OSError, ValueError):
            return
    if free < _MEBIBYTE:
        yield Hit(
            "dump.dump_path", f"only {free} bytes are free there: the dump is lost", "free space, or use another path"
        )


@RULES.rule(
    "operator-unknown",
    "AD114",
    "a name that no operator has, before or after fusion, selects nothing",
    "GE davinci_model; torchair user document for watcher_nodes",
    where="dump.dump_list[0].layer[1]",
    trips=dumping(dump_list=[{"layer": ["add", "cnov"]}]).given(operators=GRAPH),
    passes=dumping(dump_list=[{"layer": ["add", "relu1"]}]).given(operators=GRAPH),
)
def _operator_unknown(subject: AclSubject) -> Iterator[Hit]:
    if subject.situation.operators is None:
        return
    for where, key, name in _selected_names(subject):
        nodes = subject.nodes.get(name, ())
        if not nodes:
            yield Hit(where, f"the graph has no operator {name!r}", "take names from the graph: `ascend-dump ops`")
        elif key == "watcher_nodes" and all(node.name != name for node in nodes):
            yield Hit(
                where,
                f"{name!r} was fused into {nodes[0].name!r}; the watcher only knows names after fusion",
                f"write {nodes[0].name!r}",
            )


@RULES.rule(
    "operator-never-dumped",
    "AD114",
    "operators that run on the host, or whose attribute _no_task is set, write no file",
    "offline model user document",
    where="dump.dump_list[0].layer[1]",
    trips=dumping(dump_list=[{"layer": ["add", "if0"]}]).given(operators=GRAPH),
    passes=dumping(dump_list=[{"layer": ["add", "conv"]}]).given(operators=GRAPH),
)
def _never_dumped(subject: AclSubject) -> Iterator[Hit]:
    # (assumption ge.never_dumped)
    for where, _, name in _selected_names(subject):
        nodes = subject.nodes.get(name, ())
        reasons = [why_no_dump(node) for node in nodes if node.type != _DATA]
        if nodes and len(reasons) == len(nodes) and reasons[0] is not None and None not in reasons:
            yield Hit(
                where,
                f"{name!r} writes no file: {reasons[0].reason}",
                "select the operators before and after it",
                "" if reasons[0].certain else "warning",
            )


@RULES.rule(
    "data-needs-consumer",
    "AD114",
    "a Data operator is dumped only if an operator that reads it is selected",
    "offline model user document; GE data_dumper",
    where="dump.dump_list[0].layer[0]",
    trips=dumping(dump_list=[{"layer": ["x"]}]).given(operators=GRAPH),
    passes=dumping(dump_list=[{"layer": ["x", "conv"]}]).given(operators=GRAPH),
)
def _data_alone(subject: AclSubject) -> Iterator[Hit]:
    for index, item in items_of(subject.dump) if subject.selects else ():
        names = texts_of(item, "layer")
        layers = [(position, name, subject.nodes.get(name, ())) for position, name in enumerate(names)]
        if any(node.type != _DATA for _, _, nodes in layers for node in nodes):
            continue
        for position, name, nodes in layers:
            if nodes:
                yield Hit(
                    f"dump.dump_list[{index}].layer[{position}]",
                    f"{name!r} is a graph input; it is dumped only if an operator that reads it is selected",
                    "add the operator that reads it",
                )


@RULES.rule(
    "model-unknown",
    "AD114",
    "a name that no model has selects nothing",
    "GE dump_properties IsNeedDump",
    where="dump.dump_list[0].model_name",
    trips=dumping(dump_list=[{"model_name": "resnet"}]).given(models=["net"]),
    passes=dumping(dump_list=[{"model_name": "net"}]).given(models=["net"]),
)
def _model_unknown(subject: AclSubject) -> Iterator[Hit]:
    models = subject.situation.models
    for index, item in items_of(subject.dump) if models is not None and subject.selects else ():
        name = text_of(item, "model_name")
        if name and name not in (models or ()):
            yield Hit(
                f"dump.dump_list[{index}].model_name",
                f"there is no model {name!r}",
                f"known: {', '.join(models or ()) or 'none'}",
            )


@RULES.rule(
    "range-never-runs",
    "AD114",
    "a range dumps nothing or too much if its end runs before its begin, or if one of them does not exist",
    "GE dump_properties DumpProcFsmTransition",
    where="dump.dump_list[0].opname_range[0]",
    trips=dumping(
        dump_level="op", dump_list=[{"model_name": "m", "opname_range": [{"begin": "out", "end": "conv"}]}]
    ).given(operators=GRAPH),
    passes=dumping(
        dump_level="op", dump_list=[{"model_name": "m", "opname_range": [{"begin": "conv", "end": "conv"}]}]
    ).given(operators=GRAPH),
)
def _range_never_runs(subject: AclSubject) -> Iterator[Hit]:
    order = {node.name: position for position, node in enumerate(subject.situation.operators or ())}
    for index, item in items_of(subject.dump) if order and subject.selects else ():
        for position, entry in objects_of(item, "opname_range"):
            where = f"dump.dump_list[{index}].opname_range[{position}]"
            begin, end = text_of(entry, "begin"), text_of(entry, "end")
            if begin not in order:
                yield Hit(where, f"the graph has no operator {begin!r}: nothing is dumped", "take names from the graph")
            elif end not in order:
                yield Hit(
                    where,
                    f"the graph has no operator {end!r}: all operators after {begin!r} are dumped",
                    "take an existing name",
                )
            elif order[end] < order[begin]:
                yield Hit(where, f"{end!r} runs before {begin!r}: nothing is dumped", "swap begin and end")


@RULES.rule(
    "captured-stream",
    "AD114",
    "overflow and statistics dumps skip operators in captured streams",
    "adump dump_manager",
    where="dump.dump_debug",
    trips=dumping(dump_debug="on").given(captured=True),
    passes=dumping(dump_list=[{}]).given(captured=True),
)
def _captured(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.captured_scenes)
    if not subject.situation.captured:
        return
    if subject.overflow:
        yield Hit("dump.dump_debug", "captured streams (aclgraph) are skipped", "detect overflow without aclgraph")
    elif text_of(subject.dump, "dump_data") == "stats" and subject.selects:
        yield Hit("dump.dump_data", "there are no statistics of captured streams (aclgraph)", 'use "tensor"')


@RULES.rule(
    "no-step-counter",
    "AD114",
    "if `dump_step` is set, operators of a model without a step counter are not dumped",
    "aicpu_schedule dump_task",
    where="dump.dump_step",
    trips=dumping(dump_list=[{}], dump_step="0").given(step_counter=False),
    passes=dumping(dump_list=[{}]).given(step_counter=False),
)
def _no_step_counter(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.no_step_counter)
    if subject.situation.step_counter is False and text_of(subject.dump, "dump_step") and subject.selects:
        yield Hit("dump.dump_step", "the model has no step counter: nothing is dumped", 'remove "dump_step"')


@RULES.rule(
    "watcher-dynamic-shape",
    "AD114",
    "the watcher works for operators of static graphs only",
    "torchair user document, dump_config_path",
    where="dump.dump_scene",
    trips=dumping(dump_scene="watcher", dump_list=[{"layer": ["add"], "watcher_nodes": ["conv"]}]).given(
        static_shape=False
    ),
    passes=dumping(dump_scene="watcher", dump_list=[{"layer": ["add"], "watcher_nodes": ["conv"]}]).given(
        static_shape=True
    ),
)
def _watcher_dynamic(subject: AclSubject) -> Iterator[Hit]:
    if subject.watcher and subject.situation.static_shape is False:
        yield Hit("dump.dump_scene", "the graph has dynamic shapes: nothing is watched", "compile with static shapes")


@RULES.rule(
    "watcher-collective",
    "AD114",
    "after a collective operator the watched outputs are not written a second time",
    "torchair user document, dump_config_path",
    where="dump.dump_list[0].layer[0]",
    trips=dumping(dump_scene="watcher", dump_list=[{"layer": ["reduce"], "watcher_nodes": ["conv"]}]).given(
        operators=GRAPH
    ),
    passes=dumping(dump_scene="watcher", dump_list=[{"layer": ["add"], "watcher_nodes": ["conv"]}]).given(
        operators=GRAPH
    ),
)
def _watcher_collective(subject: AclSubject) -> Iterator[Hit]:
    for where, key, name in _selected_names(subject) if subject.watcher else ():
        if key == "layer" and any(node.type.startswith("Hcom") for node in subject.nodes.get(name, ())):
            yield Hit(
                where,
                f"{name!r} is a collective operator: no pair is written for it",
                "put another operator under layer",
            )


@RULES.rule(
    "watcher-suspect-first",
    "AD114",
    "an operator in `layer` that runs before every watched operator gives no pair to compare",
    "torchair user document, dump_config_path",
    where="dump.dump_list[0].layer[0]",
    trips=dumping(dump_scene="watcher", dump_list=[{"layer": ["conv"], "watcher_nodes": ["add"]}]).given(
        operators=GRAPH
    ),
    passes=dumping(dump_scene="watcher", dump_list=[{"layer": ["out"], "watcher_nodes": ["add"]}]).given(
        operators=GRAPH
    ),
)
def _suspect_first(subject: AclSubject) -> Iterator[Hit]:
    order = {node.name: position for position, node in enumerate(subject.situation.operators or ())}
    for index, item in items_of(subject.dump) if subject.watcher and order else ():
        watched = [order[name] for name in texts_of(item, "watcher_nodes") if name in order]
        for position, name in enumerate(texts_of(item, "layer")):
            if watched and name in order and order[name] < min(watched):
                yield Hit(
                    f"dump.dump_list[{index}].layer[{position}]",
                    f"{name!r} runs before every watched operator, so there are no outputs yet to compare",
                    "name operators in layer that run after the watched operators",
                )


@RULES.rule(
    "statistics-blank",
    "AD114",
    "statistics of some data types are blank",
    "aicpu_schedule dump_task",
    where="dump.dump_data",
    trips=dumping(dump_list=[{}], dump_data="stats").given(dtypes=["float16", "float8_e4m3fn"]),
    passes=dumping(dump_list=[{}], dump_data="tensor").given(dtypes=["float16", "float8_e4m3fn"]),
)
def _statistics_blank(subject: AclSubject) -> Iterator[Hit]:
    if text_of(subject.dump, "dump_data") != "stats" or not subject.selects:
        return
    odd = sorted(set(subject.situation.dtypes or ()) - _WITH_STATISTICS)
    if odd:
        yield Hit("dump.dump_data", f"statistics of {', '.join(odd)} are left blank", 'dump these with "tensor"')


@RULES.rule(
    "not-built-for-overflow",
    "AD114",
    "operators report overflow only if the model was converted with --status_check=1",
    "overflow user document",
    where="dump.dump_debug",
    trips=dumping(dump_debug="on").given(status_check=False),
    passes=dumping(dump_debug="on").given(status_check=True),
)
def _not_built(subject: AclSubject) -> Iterator[Hit]:
    if subject.overflow and subject.situation.status_check is not True:
        is_without = subject.situation.status_check is False
        yield Hit(
            "dump.dump_debug",
            "the model was converted without --status_check=1 and reports no overflow"
            if is_without
            else "only models converted with --status_check=1 report overflow",
            "convert the model with `atc --status_check=1`",
            "silent" if is_without else "warning",
        )


@RULES.rule(
    "container",
    "AD115",
    "the dump of offline models is not supported inside a container",
    "offline model user document",
    severity="warning",
    where="dump",
    trips=dumping(dump_list=[{}]).given(container=True),
    passes=dumping(dump_list=[{}]).given(container=False),
)
def _container(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.container)
    if subject.situation.container and subject.asks:
        yield Hit("dump", "the dump of offline models is not supported inside a container", "run on the host")


@RULES.rule(
    "options-outranked",
    "AD114",
    "a dump configured through acl replaces the session options `ge.exec.*`",
    "GE dump_manager GetDumpProperties",
    where="dump",
    trips=dumping(dump_list=[{}]).given(ge_options={"ge.exec.enableDump": "1"}),
    passes=dumping(dump_list=[{}]).given(ge_options={"ge.exec.enableDump": "0"}),
)
def _options_outranked(subject: AclSubject) -> Iterator[Hit]:
    # (assumption ge.acl_outranks_options)
    options = subject.situation.ge_options or {}
    if subject.ge.asked and subject.ge.accepted and "1" in (options.get(name) for name in _ENABLE_OPTIONS):
        yield Hit("dump", "the session options ge.exec.* also ask for a dump and are ignored", "use one of the two")


_ENABLE_OPTIONS = ("ge.exec.enableDump", "ge.exec.enableDumpDebug")


@RULES.rule(
    "models-too",
    "AD115",
    "dump_op_switch dumps every operator of every loaded model as well",
    "GE dump_callback, dump_manager",
    severity="warning",
    where="dump.dump_op_switch",
    trips=dumping(dump_list=[], dump_op_switch="on"),
    passes=dumping(dump_list=[{}]),
)
def _models_too(subject: AclSubject) -> Iterator[Hit]:
    switched = text_of(subject.dump, "dump_op_switch") == "on" and text_of(subject.dump, "dump_level") != "kernel"
    if switched and subject.selects and subject.ge.accepted and not subject.dump.get("dump_list"):
        yield Hit(
            "dump.dump_op_switch",
            "all operators of the models loaded in this process are dumped too",
            'name a model in "dump_list" to dump only that model',
        )


@RULES.rule(
    "every-step",
    "AD115",
    "without `dump_step` each execution of a model adds data to the dump",
    "offline model user document",
    severity="warning",
    where="dump.dump_step",
    trips=dumping(dump_list=[{}]).given(whole_run=True),
    passes=dumping(dump_list=[{}], dump_step="0").given(whole_run=True),
)
def _every_step(subject: AclSubject) -> Iterator[Hit]:
    models = subject.selects and subject.dump.get("dump_list")
    if subject.situation.whole_run and models and not subject.dump.get("dump_step"):
        message = "it is not set: each execution of a model adds data to the dump"
        yield Hit("dump.dump_step", message, 'set it, such as "0|3-5", or execute the model once')


@RULES.rule(
    "relative-path",
    "AD115",
    "a relative path starts at the working directory of the application",
    "adump dump_config_converter, adx_dump_record",
    severity="warning",
    where="dump.dump_path",
    trips=Example({"dump": {"dump_path": "here", "dump_list": [{}]}}).given(cwd="$DIR"),
    passes=dumping(dump_list=[{}]),
)
def _relative_path(subject: AclSubject) -> Iterator[Hit]:
    path = text_of(subject.dump, "dump_path")
    # Paths that begin with ~ or $ are left out, because adump refuses them.
    if path and path[0] not in "/$~" and not is_ip_path(path) and subject.asks:
        yield Hit(
            "dump.dump_path",
            f"{path!r} is relative to the working directory of the application (on a SoC, to its executable)",
            "write an absolute path",
        )


def _selected_names(subject: AclSubject) -> Iterator[tuple[str, str, str]]:
    """Yield (path of the key, key, operator's name) for each name in `layer` and `watcher_nodes`."""
    for index, item in items_of(subject.dump) if subject.selects else ():
        for key in ("layer", "watcher_nodes"):
            for position, name in enumerate(texts_of(item, key)):
                yield f"dump.dump_list[{index}].{key}[{position}]", key, name
