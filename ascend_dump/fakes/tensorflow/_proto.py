"""ConfigProto and the messages in it, for the fake TensorFlow.

They are protobuf messages with the fields and field numbers of TensorFlow. So they behave as the real ones: a value of
`parameter_map` is a oneof, reading a missing key creates it, the field `s` takes bytes, and the serialized form is the
same. Fields other than settings of sessions and graphs are left out; protobuf keeps them as unknown fields. Source:
tensorflow core/protobuf/config.proto, rewriter_config.proto and core/framework/attr_value.proto.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["messages"]

#: Numbers of types and labels in a FieldDescriptorProto of protobuf.
_TYPES = {"double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_MESSAGE, _ENUM, _OPTIONAL, _REPEATED = 11, 14, 1, 3

_TOGGLE = "RewriterConfig.Toggle"
_TOGGLES = {
    "layout_optimizer": 1,
    "constant_folding": 3,
    "shape_optimization": 13,
    "remapping": 14,
    "common_subgraph_elimination": 24,
    "arithmetic_optimization": 7,
    "dependency_optimization": 8,
    "loop_optimization": 9,
    "function_optimization": 10,
    "debug_stripper": 11,
    "scoped_allocator_optimization": 15,
    "pin_to_host_optimization": 18,
    "implementation_selector": 22,
    "auto_mixed_precision": 23,
}

#: Message -> its fields: name -> number and type. A "*" before the type marks a repeated field.
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "AttrValue": {
        "s": (2, "bytes"),
        "i": (3, "int64"),
        "f": (4, "float"),
        "b": (5, "bool"),
        "placeholder": (9, "string"),
        "list": (1, "AttrValue.ListValue"),
    },
    "AttrValue.ListValue": {"s": (2, "*bytes"), "i": (3, "*int64"), "f": (4, "*float"), "b": (5, "*bool")},
    "RewriterConfig": {
        **{name: (number, _TOGGLE) for name, number in _TOGGLES.items()},
        "disable_model_pruning": (2, "bool"),
        "disable_meta_optimizer": (19, "bool"),
        "fail_on_optimizer_errors": (21, "bool"),
        "min_graph_nodes": (17, "int32"),
        "meta_optimizer_iterations": (12, "RewriterConfig.NumIterationsType"),
        "memory_optimization": (4, "RewriterConfig.MemOptType"),
        "memory_optimizer_target_node_name_scope": (6, "string"),
        "meta_optimizer_timeout_ms": (20, "int64"),
        "optimizers": (100, "*string"),
        "custom_optimizers": (200, "*RewriterConfig.CustomGraphOptimizer"),
    },
    "RewriterConfig.CustomGraphOptimizer": {
        "name": (1, "string"),
        "parameter_map": (2, "*RewriterConfig.CustomGraphOptimizer.ParameterMapEntry"),
    },
    "RewriterConfig.CustomGraphOptimizer.ParameterMapEntry": {"key": (1, "string"), "value": (2, "AttrValue")},
    "OptimizerOptions": {
        "do_common_subexpression_elimination": (1, "bool"),
        "do_constant_folding": (2, "bool"),
        "max_folded_constant_in_bytes": (6, "int64"),
        "do_function_inlining": (4, "bool"),
        "opt_level": (3, "OptimizerOptions.Level"),
        "global_jit_level": (5, "OptimizerOptions.GlobalJitLevel"),
    },
    "GraphOptions": {
        "enable_recv_scheduling": (2, "bool"),
        "optimizer_options": (3, "OptimizerOptions"),
        "build_cost_model": (4, "int64"),
        "build_cost_model_after": (9, "int64"),
        "infer_shapes": (5, "bool"),
        "place_pruned_graph": (6, "bool"),
        "enable_bfloat16_sendrecv": (7, "bool"),
        "timeline_step": (8, "int32"),
        "rewrite_options": (10, "RewriterConfig"),
    },
    "GPUOptions": {
        "per_process_gpu_memory_fraction": (1, "double"),
        "allocator_type": (2, "string"),
        "allow_growth": (4, "bool"),
        "visible_device_list": (5, "string"),
    },
    "ConfigProto": {
        "device_count": (1, "*ConfigProto.DeviceCountEntry"),
        "intra_op_parallelism_threads": (2, "int32"),
        "inter_op_parallelism_threads": (5, "int32"),
        "use_per_session_threads": (9, "bool"),
        "placement_period": (3, "int32"),
        "device_filters": (4, "*string"),
        "gpu_options": (6, "GPUOptions"),
        "allow_soft_placement": (7, "bool"),
        "log_device_placement": (8, "bool"),
        "graph_options": (10, "GraphOptions"),
        "operation_timeout_in_ms": (11, "int64"),
        "isolate_session_state": (15, "bool"),
    },
    "ConfigProto.DeviceCountEntry": {"key": (1, "string"), "value": (2, "int32")},
    "RunOptions": {"trace_level": (1, "RunOptions.TraceLevel"), "timeout_in_ms": (2, "int64")},
    "RunMetadata": {},
}
_ENUMS: dict[str, dict[str, int]] = {
    "RewriterConfig.Toggle": {"DEFAULT": 0, "ON": 1, "OFF": 2, "AGGRESSIVE": 3},
    "RewriterConfig.NumIterationsType": {"DEFAULT_NUM_ITERS": 0, "ONE": 1, "TWO": 2},
    "RewriterConfig.MemOptType": {
        "DEFAULT_MEM_OPT": 0,
        "NO_MEM_OPT": 1,
        "MANUAL": 2,
        "HEURISTICS": 3,
        "SWAPPING_HEURISTICS": 4,
        "RECOMPUTATION_HEURISTICS": 5,
        "SCHEDULING_HEURISTICS": 6,
    },
    "RunOptions.TraceLevel": {"NO_TRACE": 0, "SOFTWARE_TRACE": 1, "HARDWARE_TRACE": 2, "FULL_TRACE": 3},
    "OptimizerOptions.Level": {"L1": 0, "L0": -1},
    "OptimizerOptions.GlobalJitLevel": {"DEFAULT": 0, "OFF": -1, "ON_1": 1, "ON_2": 2},
}


@functools.lru_cache(maxsize=1)
def messages() -> dict[str, Any]:
    """Return the classes of the messages that are not nested in another one, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="stand_in.proto", package="tensorflow", syntax="proto3")
    definitions: dict[str, Any] = {}
    for name in _FIELDS:
        parent, _, local_name = name.rpartition(".")
        siblings = definitions[parent].nested_type if parent else file.message_type
        definitions[name] = siblings.add(name=local_name)
        if local_name.endswith("Entry"):
            definitions[name].options.map_entry = True
    for name, values in _ENUMS.items():
        parent, _, local_name = name.rpartition(".")
        enum = definitions[parent].enum_type.add(name=local_name)
        for value_name, number in values.items():
            enum.value.add(name=value_name, number=number)
    definitions["AttrValue"].oneof_decl.add(name="value")
    for name, fields in _FIELDS.items():
        _add_fields(name, definitions[name], fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = {}
    for name in _FIELDS:
        if "." not in name:
            descriptor = pool.FindMessageTypeByName(f"tensorflow.{name}")
            if hasattr(message_factory, "GetMessageClass"):
                classes[name] = message_factory.GetMessageClass(descriptor)
            else:  # protobuf before 4.22
                classes[name] = message_factory.MessageFactory(pool).GetPrototype(descriptor)
            classes[name].__module__ = "tensorflow.core.protobuf.config_pb2"
    return classes


def _add_fields(name: str, message: Any, fields: dict[str, tuple[int, str]]) -> None:
    for field, (number, kind) in fields.items():
        label = _REPEATED if kind.startswith("*") else _OPTIONAL
        plain = kind.lstrip("*")
        added = message.field.add(name=field, number=number, label=label)
        if plain in _TYPES:
            added.type = _TYPES[plain]
        else:
            added.type = _ENUM if plain in _ENUMS else _MESSAGE
            added.type_name = f".tensorflow.{plain}"
        if name == "AttrValue":
            added.oneof_index = 0
