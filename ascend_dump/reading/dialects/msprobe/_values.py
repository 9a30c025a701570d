"""Read the arguments and results in an entry of msprobe's index: tensors and other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ascend_dump.dump_format import Named, TensorOf, text_of

__all__ = ["MsprobeTensor", "call_of", "gradients_of", "tensors_of"]

#: Maximum number of levels of nested lists; arguments of operators have fewer.
_DEEPEST = 16
_SIDES = {"input_args": "input", "input_kwargs": "input", "parameters": "input", "input": "input", "output": "output"}
_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_NAMED = {
    "torch.dtype": "dtype",
    "mindspore.dtype": "dtype",
    "torch.device": "device",
    "torch.memory_format": "memory_format",
}


class MsprobeTensor(NamedTuple):
    """One tensor of an entry.

    io, index  as in `Record`
    path       msprobe's path of the argument, such as "1.2" or "parameters.weight"
    entry      the JSON object of the tensor
    """

    io: str
    index: int  # type: ignore[assignment]  # it hides tuple.index on purpose, as in Record
    path: str
    entry: Mapping[str, Any]


def tensors_of(value: Any) -> Iterator[MsprobeTensor]:
    """Yield the tensors of an entry of "data": first all inputs in order (parameters last), then all outputs."""
    if not isinstance(value, dict):
        return
    if _SIDES.keys() & value.keys():
        inputs = _Side("input")
        for key in ("input_args", "input", "input_kwargs"):
            yield from inputs.arguments(value.get(key), "")
        yield from inputs.arguments(value.get("parameters"), "parameters")
        yield from _Side("output").arguments(value.get("output"), "")
    elif is_tensor(value):
        yield MsprobeTensor("output", 0, "", value)
    else:
        # An entry for gradients of parameters, or for a value that was passed to `PrecisionDebugger.save`.
        yield from _Side("output").arguments(value, "")


def gradients_of(value: Any) -> Any:
    """Replace each list of one tensor by this tensor, in an entry for the gradients of parameters."""
    if not isinstance(value, dict):
        return value
    return {key: item[0] if isinstance(item, list) and len(item) == 1 else item for key, item in value.items()}


def is_tensor(value: Any) -> bool:
    """Return True if a value is the JSON object of a tensor."""
    return isinstance(value, dict) and isinstance(value.get("dtype"), str) and isinstance(value.get("shape"), list)


class _Side:
    """A counter that numbers the tensors among the inputs, or among the outputs.

    An argument takes one number. A list takes as many numbers as it has tensors, and at least one.
    """

    def __init__(self, io: str) -> None:
        self._io = io
        self._next = 0

    def arguments(self, value: Any, path: str) -> Iterator[MsprobeTensor]:
        for key, item in _items(value):
            before = self._next
            yield from self._inside(item, f"{path}.{key}" if path else key, 0)
            self._next = max(self._next, before + 1)

    def _inside(self, value: Any, path: str, depth: int) -> Iterator[MsprobeTensor]:
        if is_tensor(value):
            yield MsprobeTensor(self._io, self._next, path, value)
            self._next += 1
        elif depth < _DEEPEST and not _is_value(value):
            for key, item in _items(value):
                yield from self._inside(item, f"{path}.{key}", depth + 1)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        yield from ((str(number), item) for number, item in enumerate(value))
    elif isinstance(value, dict):
        yield from value.items()


def _is_value(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def call_of(name: str, value: Any) -> bytes:
    """Return the arguments of a call as text for `dump_format.read_call`; b"" if the entry is no call of a function.

    Positional arguments have the names "0", "1", …, because msprobe does not record their real names.
    """
    if not isinstance(value, dict) or not isinstance(value.get("input_args"), list):
        return b""
    numbers = {tensor.path: tensor.index for tensor in tensors_of(value) if tensor.io == "input"}
    arguments = [*_items(value["input_args"]), *_items(value.get("input_kwargs"))]
    texts = (f"{text_of(key)}:{text_of(_value(item, key, numbers, 0))}" for key, item in arguments)
    return f'{{"op":{text_of(name)},"args":{{{",".join(texts)}}}}}'.encode()


def _value(value: Any, path: str, numbers: Mapping[str, int], depth: int) -> Any:
    if is_tensor(value):
        # A tensor inside a value of another type has no record to refer to.
        return TensorOf("input", numbers[path]) if path in numbers else Named("object", "Tensor")
    if isinstance(value, list) and depth < _DEEPEST // 2:
        return [_value(item, f"{path}.{number}", numbers, depth + 1) for number, item in enumerate(value)]
    if not _is_value(value):
        return value if isinstance(value, (str, int, float, type(None))) else Named("object", type(value).__name__)
    kind, plain = value["type"], value.get("value", value.get("format"))
    if kind in _PLAIN and isinstance(plain, _PLAIN[kind]):
        return plain
    if kind in _NAMED and isinstance(plain, str):
        return Named(_NAMED[kind], plain)
    return _value(plain, path, numbers, depth + 1) if isinstance(plain, list) else Named("object", kind)
