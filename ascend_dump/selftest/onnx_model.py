"""Write the network of the self-test as an ONNX file, and convert the file to an offline model with CANN's `atc`.

An ONNX file is a protobuf message. The field numbers below are those of ONNX's `onnx.proto` (IR version 7, opset 11).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ascend_dump.errors import AdapterError, FrameworkMissing

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OnnxNode", "convert_with_atc", "onnx_model"]

_FLOAT = 1
_IR_VERSION, _OPSET = 7, 11


class OnnxNode(NamedTuple):
    """An operator with one output. The output has the name of the operator.

    >>> OnnxNode("act", "Relu", ("x",)).type
    'Relu'
    """

    name: str
    type: str
    inputs: tuple[str, ...]


def onnx_model(
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, np.ndarray],
    nodes: Sequence[OnnxNode],
    outputs: Mapping[str, Sequence[int]],
) -> bytes:
    """Return the bytes of an ONNX file of a float32 network.

    inputs, outputs: shapes by name. constants: arrays by name, stored as float32.

    >>> onnx_model({"x": (1,)}, {}, [OnnxNode("y", "Relu", ("x",))], {"y": (1,)})[:2].hex()
    '0807'
    """
    graph = b"".join(
        (
            *(_bytes(1, _node(node)) for node in nodes),
            _text(2, "selftest"),
            *(_bytes(5, _tensor(name, array)) for name, array in constants.items()),
            *(_bytes(11, _value(name, shape)) for name, shape in inputs.items()),
            *(_bytes(12, _value(name, shape)) for name, shape in outputs.items()),
        )
    )
    return _number(1, _IR_VERSION) + _bytes(8, _text(1, "") + _number(2, _OPSET)) + _bytes(7, graph)


def convert_with_atc(model: bytes, om: Path, soc: str) -> None:
    """Convert an ONNX file to an offline model with `atc` of CANN's toolkit.

    model: bytes of the ONNX file. om: path of the offline model; the ONNX file is written beside it. soc: name of the
    chip, as returned by `acl.get_soc_name()`. Raises FrameworkMissing if `atc` is not on PATH, AdapterError if it
    fails.
    """
    atc = shutil.which("atc")
    if atc is None:
        raise FrameworkMissing(
            "atc is not on PATH: it is needed to make the offline model",
            hint="run `source set_env.sh` of CANN's toolkit",
        )
    source = om.with_suffix(".onnx")
    source.write_bytes(model)
    files = [f"--model={source}", "--framework=5", f"--output={om.with_suffix('')}", f"--soc_version={soc}"]
    # Without the precision mode, atc would convert the network to float16, and dumped values would differ.
    settings = ["--status_check=1", "--precision_mode=must_keep_origin_dtype"]
    completed = subprocess.run([atc, *files, *settings], cwd=om.parent, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise AdapterError(f"atc failed: {completed.stdout[-2000:]}", hint="read atc's log in ~/ascend/log")


def _node(node: OnnxNode) -> bytes:
    inputs = b"".join(_text(1, name) for name in node.inputs)
    return inputs + _text(2, node.name) + _text(3, node.name) + _text(4, node.type)


def _tensor(name: str, array: np.ndarray) -> bytes:
    dims = b"".join(_number(1, size) for size in array.shape)
    return dims + _number(2, _FLOAT) + _text(8, name) + _bytes(9, array.astype("<f4").tobytes())


def _value(name: str, shape: Sequence[int]) -> bytes:
    dims = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT) + _bytes(2, dims)))


# Encoding of protobuf fields: `_number` writes an integer, `_bytes` a message or array, `_text` a string.


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
