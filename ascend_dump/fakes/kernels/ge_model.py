"""Read serialized GE graphs: the messages of metadef's ge_ir.proto, with the fields that running a graph needs.

The message classes are in a private descriptor pool, for the reasons that `cann.messages` gives. The bytes come from
a frontend in this process. Invalid bytes raise CorruptDump.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump import CorruptDump, NotSupported

__all__ = ["GeGraph", "GeOp", "RawTensor", "Source", "parse_model"]

_PACKAGE = "ascend_dump.ge"
_INT32, _INT64, _FLOAT, _BOOL = "TYPE_INT32", "TYPE_INT64", "TYPE_FLOAT", "TYPE_BOOL"
_STRING, _BYTES = "TYPE_STRING", "TYPE_BYTES"

#: Message -> its fields: (name, number, type, is repeated). A type that does not begin with TYPE_ is a message.
#: Enumerations are defined as int32: they are encoded alike, and unknown numbers are kept.
_FIELDS: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "ShapeDef": (("dim", 1, _INT64, True),),
    "TensorDescriptor": (
        ("name", 1, _STRING, False),
        ("dtype", 2, _INT32, False),
        ("shape", 3, "ShapeDef", False),
        ("layout", 4, _STRING, False),
    ),
    "TensorDef": (("desc", 1, "TensorDescriptor", False), ("data", 2, _BYTES, False)),
    "ListValue": (
        ("s", 2, _BYTES, True),
        ("i", 3, _INT64, True),
        ("f", 4, _FLOAT, True),
        ("b", 5, _BOOL, True),
        ("dt", 12, _INT64, True),
        ("val_type", 20, _INT32, False),
    ),
    "ListInt": (("list_i", 1, _INT64, True),),
    "ListListInt": (("list_list_i", 1, "ListInt", True),),
    "AttrDef": (
        ("list", 1, "ListValue", False),
        ("s", 2, _BYTES, False),
        ("i", 3, _INT64, False),
        ("f", 4, _FLOAT, False),
        ("b", 5, _BOOL, False),
        ("t", 12, "TensorDef", False),
        ("list_list_int", 14, "ListListInt", False),
        ("dt", 15, _INT64, False),
    ),
    "AttrEntry": (("key", 1, _STRING, False), ("value", 2, "AttrDef", False)),
    "OpDef": (
        ("name", 1, _STRING, False),
        ("type", 2, _STRING, False),
        ("input", 5, _STRING, True),
        ("attr", 10, "AttrEntry", True),
        ("input_desc", 33, "TensorDescriptor", True),
        ("output_desc", 34, "TensorDescriptor", True),
        ("subgraph_name", 35, _STRING, True),
    ),
    "GraphDef": (("name", 1, _STRING, False), ("op", 6, "OpDef", True), ("attr", 11, "AttrEntry", True)),
    "ModelDef": (("name", 1, _STRING, False), ("graph", 7, "GraphDef", True)),
}
#: The message of whose fields only one is set.
_ONEOF = "AttrDef"
#: Number in ListValue.val_type -> the field with the list.
_LISTS = {1: "s", 2: "i", 3: "f", 4: "b", 10: "dt"}
#: The output number that marks an input as a control edge.
_CONTROL = "-1"


class Source(NamedTuple):
    """An output of another operator: the operator's name, and the number of the output."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


class RawTensor(NamedTuple):
    """The value of a constant. dtype: number of its type in ge.proto.DataType, which headers of dump files use too."""

    dtype: int
    shape: tuple[int, ...]
    data: bytes


class GeOp(NamedTuple):
    """An operator of a graph.

    inputs  the sources of its inputs, None for an absent optional input; control edges are left out
    attrs   its attributes by name
    input_formats, output_formats  the layouts that the frontend describes, "" where it describes none
    """

    name: str
    type: str
    inputs: tuple[Optional[Source], ...]
    attrs: Mapping[str, Any]
    input_formats: tuple[str, ...] = ()
    output_formats: tuple[str, ...] = ()


class GeGraph(NamedTuple):
    """A graph. Its operators are in the order in which the frontend wrote them, in which they can be executed."""

    name: str
    ops: tuple[GeOp, ...]
    attrs: Mapping[str, Any]


def parse_model(serialized: bytes) -> GeGraph:
    """Return the graph of a serialized ge.proto.ModelDef.

    Raises CorruptDump for invalid bytes, NotSupported for more than one graph and for operators with subgraphs.
    """
    message, decode_error = _model_class()
    model = message()
    try:
        model.ParseFromString(serialized)
    except decode_error as error:
        raise CorruptDump(f"{len(serialized)} bytes are not a ge.proto.ModelDef: {error}") from None
    if len(model.graph) != 1:
        raise NotSupported(
            f"a model of {len(model.graph)} graphs cannot be run on the simulated device",
            hint="only models of one graph without control flow run here",
        )
    graph = model.graph[0]
    return GeGraph(graph.name, tuple(_read_op(op) for op in graph.op), _read_attrs(graph.attr))


def _read_op(op: Any) -> GeOp:
    if op.subgraph_name:
        raise NotSupported(
            f"{op.type} {op.name!r} has subgraphs, which cannot be run on the simulated device",
            hint="compile the model without control flow",
        )
    return GeOp(
        op.name,
        op.type,
        tuple(_read_inputs(op)),
        _read_attrs(op.attr),
        tuple(desc.layout for desc in op.input_desc),
        tuple(desc.layout for desc in op.output_desc),
    )


def _read_inputs(op: Any) -> Iterator[Optional[Source]]:
    for text in op.input:
        name, _, index = text.rpartition(":")
        if index == _CONTROL:
            continue
        if text and not (name and index.isascii() and index.isdecimal()):
            raise CorruptDump(
                f"{op.type} {op.name!r} has the input {text!r}, which is not `name:output` of an operator"
            )
        yield Source(name, int(index)) if text else None


def _read_attrs(entries: Any) -> dict[str, Any]:
    return {entry.key: _read_attr(entry.value) for entry in entries}


def _read_attr(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode("utf-8", "surrogateescape")
    if kind == "t":
        return RawTensor(value.t.desc.dtype, tuple(value.t.desc.shape.dim), value.t.data)
    if kind == "list":
        values = list(getattr(value.list, _LISTS.get(value.list.val_type) or _filled(value.list)))
        return [item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in values]
    if kind == "list_list_int":
        return [list(row.list_i) for row in value.list_list_int.list_list_i]
    return None if kind is None else getattr(value, kind)


def _filled(values: Any) -> str:
    """Return the name of the list field that is not empty. It is used for a list without `val_type`."""
    return next((name for name in _LISTS.values() if len(getattr(values, name))), "i")


@functools.cache
def _model_class() -> tuple[Any, type[Exception]]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise NotSupported(
            "reading a graph needs protobuf, which is not installed", hint="pip install protobuf"
        ) from None
    # A oneof lets us distinguish an attribute of 0 from an absent one. Proto3's `optional` could too, but needs a newer
    # protobuf.
    file = descriptor_pb2.FileDescriptorProto(name="ascend_dump/ge.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        definition = file.message_type.add(name=name)
        if name == _ONEOF:
            definition.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            added = definition.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if name == _ONEOF:
                added.oneof_index = 0
            if kind.startswith("TYPE_"):
                added.type = getattr(kinds, kind)
            else:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.ModelDef")
    if hasattr(message_factory, "GetMessageClass"):
        built = message_factory.GetMessageClass(descriptor)
    else:  # protobuf before 4.22
        built = message_factory.MessageFactory(pool).GetPrototype(descriptor)
    return built, message.DecodeError
