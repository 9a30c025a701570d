"""Simulated devices that violate an assumption: for each probe the part of the device, and what it does instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Private: a probe that has to refute needs a device that is otherwise, which no user has.
from ascend_dump.fakes.acl.process import AclProcess
from ascend_dump.fakes.device import _api_calls, _arming, _files, _model, _service
from ascend_dump.fakes.device import disk as _disk
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.native.cann import dtypes, names
from ascend_dump.native.cann.config import ge

__all__ = ["OTHER_ACL", "OTHER_DUMPS", "at_step_0", "capture_every_dump", "write_empty_operators"]


def keep_a_gap(model: Any, node: Any, inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """A blacklist that leaves an input without bytes in its place."""
    settings = model.arming.ge
    if any(settings.names.values()):
        inputs = [(inputs[0][0]._replace(size=0), b""), *inputs[1:]]
    return inputs, outputs


def of_own_task(service: Any, call: Any, folder: str, model: Any, producers: Any, arming: Any) -> None:
    """The data operator has a file under a task of its own."""
    write_producers(service, call._replace(task=call.task + 100), folder, model, producers, arming)


at_step = _model.LoadedModel.at_step
capture, operator_file = _api_calls.ApiReports.capture, _service.operator_file
write_producers = _service.DumpService._write_producers
select, absolute, judge_ge = _model.select, _arming._absolute, _arming.judge_ge
detects, is_watched = _model.LoadedModel.detects, _model.LoadedModel.is_watched


def by_final_names(settings: Any, ops: Any, model: str, om_name: str) -> Any:
    return select(settings, [op._replace(original_names=()) for op in ops], model, om_name)


def first_item(config: Any, verdict: Any, *, env: Any = None) -> Any:
    """GE takes the first of several items."""
    items = config["dump"].get("dump_list") or []
    return judge_ge({"dump": {**config["dump"], "dump_list": items[:1]}}, verdict, env=env)


def all_items(config: Any, verdict: Any, *, env: Any = None) -> Any:
    """GE takes the layers of all items."""
    items = config["dump"].get("dump_list") or []
    if len(items) > 1:
        items = [{"layer": [layer for item in items for layer in item["layer"]]}]
    return judge_ge({"dump": {**config["dump"], "dump_list": items}}, verdict, env=env)


def elsewhere(path: str, cwd: str) -> str:
    return f"{cwd}/elsewhere" if path.startswith("127.") else absolute(path, cwd)


def at_selected_steps(self: Any) -> bool:
    assert detects.fget is not None
    return bool(detects.fget(self)) and not self.arming.ge.step


def without_a_colon(text: str) -> str:
    return text.translate(str.maketrans(" ./\\:", "_____"))


def watches_by_any_name(self: Any, node: Any, step: Any) -> bool:
    return any(is_watched(self, node._replace(name=name), step) for name in (node.name, *node.original_names))


def at_step_0(model: Any, step: Any) -> bool:
    """No step counter is taken for step 0."""
    return bool(at_step(model, step or 0))


def write_empty_operators(disk: Any, folder: str, name: Any, header_name: str, tensors: Any, **others: Any) -> None:
    operator_file(disk, folder, name, header_name, tensors, **others)
    if not any(tensor.size for tensor, _ in tensors):
        disk.write_text(f"{folder}/{name.op_type}.{name.op_name}.0.0.{name.timestamp}", "empty")


def capture_every_dump(calls: Any, call: Any, arming: Any, *, stream: int) -> Any:
    return capture(calls, call, arming and arming._replace(kernels=True, data="tensor"), stream=stream)


def loads_before(npu: Npu, config: Any) -> int:
    """A dump that reaches the models that are loaded already."""
    code = arm_acl(npu, config)
    for model in npu._models.values():
        fresh = _model.LoadedModel(
            model.model_id, model.name, "", list(model.nodes.values()), npu._acl, status_check=True, static_shape=True
        )
        npu._models[model.model_id] = fresh
    return code


def initial_dump_stays(process: AclProcess) -> int:
    process._dump_begun = False
    return 0


arm_acl = Npu.arm_acl
OTHER_DUMPS: list[tuple[str, Any, str, Any]] = [
    ("address_path", _arming, "_absolute", elsewhere),
    ("compact_indices", _model.LoadedModel, "leave_out", lambda self, *args: keep_a_gap(self, *args)),
    ("data_operators", _service.DumpService, "_write_producers", lambda self, *args: None),
    ("data_operators", _service.DumpService, "_write_producers", of_own_task),
    ("last_item_wins", _arming, "judge_ge", first_item),
    ("last_item_wins", _arming, "judge_ge", all_items),
    ("layer_of_fused", _model, "select", by_final_names),
    ("loaded_models_stop", Npu, "disarm_acl", lambda self: None),
    ("long_names", _disk, "hashed_name", lambda path, exception: names.sanitize(path)[-200:]),
    ("long_names", _disk.Disk, "_append_mapping", lambda self, directory, lines: None),
    ("name_characters", names, "sanitize", without_a_colon),
    ("name_characters", names, "sanitize", lambda text: text.replace("/", "_")),
    ("original_dtype", dtypes, "to_ge", lambda number: number),
    ("overflow_at_every_step", _model.LoadedModel, "detects", property(at_selected_steps)),
    ("path_characters", ge, "_takes_path", lambda path: True),
    ("set_before_load", Npu, "arm_acl", loads_before),
    ("stats_chosen", _files, "_statistics", lambda tensors, chosen: _files.HEADER + "\n"),
    ("watch_final_names", _model.LoadedModel, "is_watched", watches_by_any_name),
    ("watch_names", _service, "watch_name", lambda layer, watched: f"{watched}_To_{layer}"),
]

acl_init = AclProcess.init


def reads_file_first(process: AclProcess, config: Any = None) -> int:
    return acl_init(process, config) if config is None or Path(config).is_file() else 100003


OTHER_ACL: list[tuple[str, Any, str, Any]] = [
    ("finalize_ends_init", AclProcess, "finalize_dump", initial_dump_stays),
    ("init_dump_after_init", AclProcess, "init_dump", lambda process: 100002),
    ("init_twice", AclProcess, "init", reads_file_first),
]
