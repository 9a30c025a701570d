"""The protobuf messages of a dump file's header, built at run time.

The messages have the fields of CANN's `dump_data.proto` (used by the device) and of `dump_task.proto` (used by the
host); both encode common fields in the same way. The messages are in a private descriptor pool, so they do not conflict
with a framework that registers the same messages. There is no generated code, so any protobuf from 3.20 on works.

Two types differ from the .proto files, but have the same encoding. Enumerations are int32 here, because a newer CANN
may write unknown values. Texts are bytes here, because CANN does not ensure that a name is UTF-8, and protobuf would
refuse the whole header for an invalid one.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ascend_dump.errors import NotSupported

__all__ = ["Messages", "messages"]

_PACKAGE = "ascend_dump.cann"
_INT32, _UINT32, _UINT64, _BYTES = "TYPE_INT32", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BYTES"

#: By message: its fields as (name, number, type, repeated). A type without the prefix TYPE_ is the name of a message.
_FIELDS: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Shape": (("dim", 1, _UINT64, True),),
    "DimRange": (("dim_start", 1, _UINT64, False), ("dim_end", 2, _UINT64, False)),
    "OriginalOp": (
        ("name", 1, _BYTES, False),
        ("output_index", 2, _UINT32, False),
        ("data_type", 3, _INT32, False),
        ("format", 4, _INT32, False),
    ),
    "OpOutput": (
        ("data_type", 1, _INT32, False),
        ("format", 2, _INT32, False),
        ("shape", 3, "Shape", False),
        ("original_op", 4, "OriginalOp", False),
        ("data", 5, _BYTES, False),
        ("size", 6, _UINT64, False),
        ("original_shape", 7, "Shape", False),
        ("sub_format", 8, _INT32, False),
        ("address", 9, _UINT64, False),
        ("dim_range", 10, "DimRange", True),
        ("offset", 11, _UINT64, False),
        ("arg_index", 12, _UINT32, False),
    ),
    "OpInput": (
        ("data_type", 1, _INT32, False),
        ("format", 2, _INT32, False),
        ("shape", 3, "Shape", False),
        ("data", 4, _BYTES, False),
        ("size", 5, _UINT64, False),
        ("original_shape", 6, "Shape", False),
        ("sub_format", 7, _INT32, False),
        ("address", 8, _UINT64, False),
        ("offset", 9, _UINT64, False),
        ("arg_index", 10, _UINT32, False),
        ("input_type", 11, _UINT32, False),
    ),
    "OpBuffer": (("buffer_type", 1, _INT32, False), ("data", 2, _BYTES, False), ("size", 3, _UINT64, False)),
    "OpAttr": (("name", 1, _BYTES, False), ("value", 2, _BYTES, False)),
    "Workspace": (
        ("type", 1, _INT32, False),
        ("data", 2, _BYTES, False),
        ("size", 3, _UINT64, False),
        ("arg_index", 4, _UINT32, False),
    ),
    "DumpData": (
        ("version", 1, _BYTES, False),
        ("dump_time", 2, _UINT64, False),
        ("output", 3, "OpOutput", True),
        ("input", 4, "OpInput", True),
        ("buffer", 5, "OpBuffer", True),
        ("op_name", 6, _BYTES, False),
        ("attr", 7, "OpAttr", True),
        ("space", 8, "Workspace", True),
        ("dfx_message", 9, _BYTES, False),
    ),
}


class Messages(NamedTuple):
    """The class of the message DumpData, and the exception that its parser raises."""

    dump_data: Any
    decode_error: type[Exception]


@functools.cache
def messages() -> Messages:
    """Build the messages at the first call, and return them. Raises NotSupported if protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise NotSupported(
            "reading a CANN dump file needs protobuf, which is not installed", hint="pip install protobuf"
        ) from None
    file = descriptor_pb2.FileDescriptorProto(name="ascend_dump/cann.proto", package=_PACKAGE, syntax="proto3")
    field_type = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        definition = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
            added = definition.field.add(name=field, number=number, label=getattr(field_type, label))
            if kind.startswith("TYPE_"):
                added.type = getattr(field_type, kind)
            else:
                added.type = field_type.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.DumpData")
    if hasattr(message_factory, "GetMessageClass"):
        built = message_factory.GetMessageClass(descriptor)
    else:  # protobuf before 4.22
        built = message_factory.MessageFactory(pool).GetPrototype(descriptor)
    return Messages(built, message.DecodeError)
