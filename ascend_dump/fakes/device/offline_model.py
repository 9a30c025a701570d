"""Offline models for the simulated device: JSON files in place of the `.om` files that atc makes.

    {
      "model": "net",                       # the directory of its dump
      "inputs":  [{"name": "x", "shape": [1, 4], "dtype": "float32"}],
      "nodes": [
        {"name": "w",    "type": "Const",  "const": {"dtype": "float32", "shape": [4, 2], "values": [...]}},
        {"name": "dense", "type": "MatMul", "inputs": ["x:0", "w:0"], "attrs": {"transpose_x1": false}},
        {"name": "act",  "type": "Relu",   "inputs": ["dense:0"], "original_names": ["dense/BiasAdd", "act"]}
      ],
      "outputs": ["act:0"],
      "status_check": true                  # built with atc --status_check=1: operators report overflow
    }

Nodes are in execution order. An input of a node is `name:index`, where name is an input of the model or an earlier
node, and index is the number of its output. Types and attributes are those of GE operators; `fakes.kernels.npu_ops`
lists the types that can be computed. A constant has a type, a shape, and either `values` (a flat list in C order) or
`data` (base64 of the little-endian bytes). `status_check` is optional; in a node, `original_names`, `no_task`, `attrs`
and `inputs` are optional.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np

from ascend_dump import ConfigError, CorruptDump, DumpNotFound, NotSupported, ReadError
from ascend_dump.fakes.device.select import NodeInfo

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["OfflineModel", "OfflineNode", "TensorSpec", "check", "find_dtype", "load", "save"]

_Path = Union[str, "os.PathLike[str]"]

_MAX_BYTES = 1 << 30
#: Maximum number of elements of a tensor, because all tensors of a model are allocated when it runs.
_MAX_ELEMENTS = 1 << 28
_HINT = "the form is described in ascend_dump.fakes.device.offline_model"


class TensorSpec(NamedTuple):
    """An input of a model. dtype: the name of its type in numpy or ml_dtypes."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class OfflineNode(NamedTuple):
    """An operator of a model.

    inputs          `name:output` of the operators that produce them
    const           the value of a Const, None for other operators
    original_names  names of the operators from before fusion
    no_task         True if the device runs no task for it
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = {}
    const: Optional[_Array] = None
    original_names: tuple[str, ...] = ()
    no_task: bool = False


class OfflineModel(NamedTuple):
    """An offline model.

    model         its name, which is also a directory of its dump
    nodes         its operators, in execution order
    outputs       `name:output` of the operators that produce them
    status_check  True if operators report overflow
    """

    model: str
    inputs: tuple[TensorSpec, ...]
    nodes: tuple[OfflineNode, ...]
    outputs: tuple[str, ...]
    status_check: bool = False

    def node_infos(self) -> tuple[NodeInfo, ...]:
        """Return the operators for `Npu.load_model`. The inputs of the model are operators of type Data."""
        data = [NodeInfo(spec.name, "Data") for spec in self.inputs]
        nodes = [NodeInfo(node.name, node.type, node.inputs, node.original_names, node.no_task) for node in self.nodes]
        return (*data, *nodes)


def save(model: OfflineModel, path: _Path) -> None:
    """Write a model. Raises ConfigError for a model that cannot be loaded."""
    document = _document(model)
    check(document)
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(source: Union[_Path, bytes]) -> OfflineModel:
    """Read a model from a file, or from its content.

    Raises DumpNotFound, ReadError for an unreadable file, CorruptDump for an invalid model.
    """
    path = None if isinstance(source, bytes) else os.fspath(source)
    data = source if isinstance(source, bytes) else _read(source)
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptDump(f"not an offline model of the simulated device: {error}", path=path, hint=_HINT) from None
    try:
        return check(document)
    except ConfigError as error:
        raise CorruptDump(f"not a valid offline model: {error.message}", path=path, hint=error.hint) from None


def check(document: Any) -> OfflineModel:
    """Return the model in a decoded JSON document. Raises ConfigError that names the first error in it.

    The types of operators are checked when the model runs, not here.
    """
    root = _mapping(document, "the document")
    name = _text(root, "model", "the document")
    inputs = tuple(
        _input(_mapping(item, "an input"), f"inputs[{index}]") for index, item in _enumerated(root, "inputs")
    )
    nodes = tuple(_node(_mapping(item, "a node"), f"nodes[{index}]") for index, item in _enumerated(root, "nodes"))
    outputs = tuple(_port(item, f"outputs[{index}]") for index, item in _enumerated(root, "outputs"))
    names: set[str] = set()
    for spec in inputs:
        _add(names, spec.name, "inputs")
    for node in nodes:
        for port in node.inputs:
            if port.rpartition(":")[0] not in names:
                raise _invalid(f"node {node.name!r} reads {port!r}, but no input and no earlier node has that name")
        _add(names, node.name, "nodes")
    for port in outputs:
        if port.rpartition(":")[0] not in names:
            raise _invalid(f"the output is {port!r}, but no input and no node has that name")
    if not outputs:
        raise _invalid("it has no outputs")
    return OfflineModel(name, inputs, nodes, outputs, root.get("status_check") is True)


def find_dtype(name: str, where: str = "a tensor") -> np.dtype[Any]:
    """Return the numpy or ml_dtypes type with this name.

    where: what has the type, for the message. Raises ConfigError if CANN has no such type, or if its values cannot be
    decoded.
    """
    from ascend_dump.native.cann import dtypes

    for number in range(43):
        kind = dtypes.data_type(number)
        if kind.numpy == name and kind.bits >= 8:
            try:
                dtype: np.dtype[Any] = dtypes.decode(np.empty(0, np.uint8), number, (0,)).dtype
            except NotSupported as error:
                raise _invalid(f"{where}: {error.message}") from None
            return dtype
    raise _invalid(f"{where} has the type {name!r}, unknown to CANN: write float32, float16, int32, …")


def _read(path: _Path) -> bytes:
    try:
        if not os.path.isfile(path):
            raise DumpNotFound("there is no such model file", path=path)
        if os.path.getsize(path) > _MAX_BYTES:
            raise CorruptDump("larger than 1 GiB: not an offline model of the simulated device", path=path)
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"cannot be read: {error}", path=path) from None


def _document(model: OfflineModel) -> dict[str, Any]:
    nodes = []
    for node in model.nodes:
        entry: dict[str, Any] = {"name": node.name, "type": node.type, "inputs": list(node.inputs)}
        entry.update({"attrs": dict(node.attrs)} if node.attrs else {})
        entry.update({"original_names": list(node.original_names)} if node.original_names else {})
        entry.update({"no_task": True} if node.no_task else {})
        if node.const is not None:
            native = node.const.astype(node.const.dtype.newbyteorder("="))  # every host of CANN is little-endian
            data = base64.b64encode(native.tobytes()).decode()
            entry["const"] = {"dtype": node.const.dtype.name, "shape": list(node.const.shape), "data": data}
        nodes.append(entry)
    return {
        "model": model.model,
        "inputs": [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in model.inputs],
        "nodes": nodes,
        "outputs": list(model.outputs),
        "status_check": model.status_check,
    }


def _input(entry: Mapping[str, Any], where: str) -> TensorSpec:
    dtype = _text(entry, "dtype", where)
    find_dtype(dtype, where)
    return TensorSpec(_text(entry, "name", where), _shape(entry, where), dtype)


def _node(entry: Mapping[str, Any], where: str) -> OfflineNode:
    name, kind = _text(entry, "name", where), _text(entry, "type", where)
    const = None
    if kind in ("Const", "Constant"):
        const = _const(_mapping(entry.get("const"), f"{where}.const"), f"{where}.const")
    originals = tuple(item for _, item in _enumerated(entry, "original_names", required=False))
    if not all(isinstance(item, str) for item in originals):
        raise _invalid(f"{where}.original_names has an item that is not text")
    return OfflineNode(
        name,
        kind,
        tuple(_port(item, f"{where}.inputs[{index}]") for index, item in _enumerated(entry, "inputs", required=False)),
        _mapping(entry.get("attrs", {}), f"{where}.attrs"),
        const,
        originals,
        entry.get("no_task") is True,
    )


def _const(entry: Mapping[str, Any], where: str) -> _Array:
    dtype, shape = find_dtype(_text(entry, "dtype", where), where), _shape(entry, where)
    count = math.prod(shape)
    try:
        if "data" in entry:
            raw = base64.b64decode(_text(entry, "data", where), validate=True)
            if len(raw) != count * dtype.itemsize:
                raise _invalid(f"{where}.data has {len(raw)} bytes, the shape needs {count * dtype.itemsize}")
            return np.frombuffer(raw, dtype).reshape(shape)
        values = [value for _, value in _enumerated(entry, "values")]
        if len(values) != count:
            raise _invalid(f"{where}.values has {len(values)} numbers, the shape needs {count}")
        return np.array(values, dtype).reshape(shape)
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise _invalid(f"{where}: {error}") from None


def _shape(entry: Mapping[str, Any], where: str) -> tuple[int, ...]:
    dims = tuple(dim for _, dim in _enumerated(entry, "shape"))
    if not all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in dims) or len(dims) > 25:
        raise _invalid(f"{where}.shape is not a list of at most 25 sizes")
    if math.prod(dims) > _MAX_ELEMENTS:
        raise _invalid(f"{where}.shape has more than {_MAX_ELEMENTS} elements")
    return dims


def _port(value: Any, where: str) -> str:
    if isinstance(value, str):
        name, colon, index = value.rpartition(":")
        if colon and name and index.isascii() and index.isdecimal() and len(index) < 6:
            return value
    raise _invalid(f"{where} is {value!r}, not `name:output`")


def _enumerated(entry: Mapping[str, Any], key: str, *, required: bool = True) -> list[tuple[int, Any]]:
    value = entry.get(key, None if required else [])
    if not isinstance(value, list):
        raise _invalid(f"{key!r} is {'missing' if key not in entry else 'not a list'}")
    return list(enumerate(value))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(f"{where} is not a JSON object")
    return value


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise _invalid(f"{where} has no text under the key {key!r}")
    return value


def _add(names: set[str], name: str, where: str) -> None:
    if name in names:
        raise _invalid(f"two of {where} are called {name!r}")
    names.add(name)


def _invalid(message: str) -> ConfigError:
    return ConfigError(message, hint=_HINT)
