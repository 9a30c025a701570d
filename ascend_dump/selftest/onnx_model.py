"""The network of the self-test as an ONNX file, and its conversion to an offline model by `atc` of CANN.

Fields are numbered as in ONNX's `onnx.proto` (IR version 7, opset 11).
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
    """An operator; its output has the same name.

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
    """Return the content of an ONNX file of a float32 network. inputs, outputs: name -> shape.

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
    """Convert an ONNX file to an offline model with `atc` of CANN's toolkit. soc: the result of acl.get_soc_name().

    Raises FrameworkMissing if there is no atc, AdapterError if it fails.
    """
    atc = shutil.which("atc")
    if atc is None:
        raise FrameworkMissing(
            "atc is not on PATH: it is needed to make the offline model", hint="source set_env.sh of CANN's toolkit"
        )
    source = om.with_suffix(".onnx")
    source.write_bytes(model)
    files = [f"--model={source}", "--framework=5", f"--output={om.with_suffix('')}", f"--soc_version={soc}"]
    # By default atc computes in float16: the values in the dump would differ from those of the program.
    settings = ["--status_check=1", "--precision_mode=must_keep_origin_dtype"]
    completed = subprocess.run([atc, *files, *settings], cwd=om.parent, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise AdapterError(f"atc failed: {completed.stdout[-2000:]}", hint="see its log in ~/ascend/log")


def _node(node: OnnxNode) -> bytes:
    inputs = b"".join(_text(1, name) for name in node.inputs)
    return inputs + _text(2, node.name) + _text(3, node.name) + _text(4, node.type)


def _tensor(name: str, array: np.ndarray) -> bytes:
    dims = b"".join(_number(1, size) for size in array.shape)
    return dims + _number(2, _FLOAT) + _text(8, name) + _bytes(9, array.astype("<f4").tobytes())


def _value(name: str, shape: Sequence[int]) -> bytes:
    dims = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT) + _bytes(2, dims)))


# The wire format of protobuf.


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
