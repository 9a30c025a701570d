"""Read the arguments and results in a record of msprobe: tensors and other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ascend_dump.dump_format import Named, TensorOf, text_of

__all__ = ["MsprobeTensor", "call_of", "gradients_of", "tensors_of"]

#: The most levels of nested lists; operators have fewer.
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
    """One tensor of a record: its side, its number on that side, msprobe's path, and its entry in the file."""

    io: str
    index: int  # type: ignore[assignment]  # it hides tuple.index on purpose, as in Record
    path: str
    entry: Mapping[str, Any]


def tensors_of(value: Any) -> Iterator[MsprobeTensor]:
    """Yield the tensors of a record in `data`, each side in order, parameters after the arguments."""
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
        # The gradients of parameters, and what `PrecisionDebugger.save` was given.
        yield from _Side("output").arguments(value, "")


def gradients_of(value: Any) -> Any:
    """Return the record of the gradients of parameters, which has a list of one tensor for each, as one of tensors."""
    if not isinstance(value, dict):
        return value
    return {key: item[0] if isinstance(item, list) and len(item) == 1 else item for key, item in value.items()}


def is_tensor(value: Any) -> bool:
    """Return True if an entry is that of a tensor, of whatever class."""
    return isinstance(value, dict) and isinstance(value.get("dtype"), str) and isinstance(value.get("shape"), list)


class _Side:
    """Counts the arguments of one side: each counts one, and a list as many as it has tensors, but at least one."""

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
    """Return the arguments of the call as `dump_format.read_call` reads them; empty if it is no call of a function.

    msprobe knows no names of positional arguments: these are "0", "1", …
    """
    if not isinstance(value, dict) or not isinstance(value.get("input_args"), list):
        return b""
    numbers = {tensor.path: tensor.index for tensor in tensors_of(value) if tensor.io == "input"}
    arguments = [*_items(value["input_args"]), *_items(value.get("input_kwargs"))]
    texts = (f"{text_of(key)}:{text_of(_value(item, key, numbers, 0))}" for key, item in arguments)
    return f'{{"op":{text_of(name)},"args":{{{",".join(texts)}}}}}'.encode()


def _value(value: Any, path: str, numbers: Mapping[str, int], depth: int) -> Any:
    if is_tensor(value):
        # A tensor inside a value of another type is no record.
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
