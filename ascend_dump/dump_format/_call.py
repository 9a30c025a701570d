"""The arguments of an operator as JSON in a line of an index. A tensor is a reference to its record.

    {"op": "aten.sum.dim_IntList", "args": {"self": {"input": 0}, "dim": [1], "keepdim": false}}
    {"op": "aten.bernoulli_.float", "args": {"self": {"input": 0}, "p": 0.5}, "generator": {"device": "cpu", ...}}
    {"op": "aten.relu.default", "args": {"self": {"input": 0}}, "stack": ["m.py:7 in forward", "train.py:31 in main"]}

Values that do not exist in JSON are objects with one key, or with two keys for a shortened value:

    {"input": 3}, {"output": 0}            the tensor of that record of the same operator
    {"inputs": [3, 4]}                     a list of tensors: 4 of them from input 3 on ("outputs" likewise)
    {"dtype": "bfloat16"}                  also device, layout, memory_format, generator, object (name of its type)
    {"float": "nan"}                       also "inf" and "-inf"
    {"int": "18446744073709551616"}        an integer beyond 64 bits
    {"complex": [0.0, 1.0]}
    {"cut": [0, 1, 2], "length": 100000}   the beginning of a list or a text that is too long to be stored
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

import msgspec

from ascend_dump.dump_format._layout import encodable

__all__ = [
    "KINDS_OF_VALUES",
    "MOST_KEPT",
    "SCALARS",
    "Arguments",
    "Cut",
    "GeneratorState",
    "Named",
    "TensorOf",
    "cut_text",
    "plain_text",
    "read_call",
    "read_stack",
    "text_of",
]

#: Maximum number of values of a list, and of characters of a text; longer ones are cut.
MOST_KEPT = 4096
#: The values of `Named.kind`.
KINDS_OF_VALUES = ("dtype", "device", "layout", "memory_format", "generator", "object")
#: Maximum number of tensors in the lists of one call.
_MOST_TENSORS = 1 << 16
#: Maximum number of levels of nested lists; arguments of operators have fewer.
_DEEPEST = 8


class TensorOf(NamedTuple):
    """A tensor among the arguments: a reference to a record of the same operator."""

    io: str
    index: int  # type: ignore[assignment]  # it hides tuple.index on purpose, as in Record

    def __str__(self) -> str:
        return f"{self.io} {self.index}"


class Named(NamedTuple):
    """A value that is recorded by its name, such as `Named("dtype", "bfloat16")`. kind: one of `KINDS_OF_VALUES`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return self.name


class Cut(NamedTuple):
    """The beginning of a list or a text that was too long to be stored, and its original length."""

    values: Union[list[Any], str]
    length: int

    def __str__(self) -> str:
        return f"{plain_text(self.values)} and so on, {self.length} in all"


class GeneratorState(NamedTuple):
    """The state of a generator of random numbers before an operator.

    device  the generator's device
    hash    xxh3-128 of the state; "" if it could not be read
    seed    the last seed
    offset  count of numbers drawn since the seed was set; only generators of CUDA have one
    """

    device: str
    hash: str = ""
    seed: Optional[int] = None
    offset: Optional[int] = None


class Arguments(NamedTuple):
    """The arguments of a call of an operator.

    operator   name with overload, such as "aten.addmm.default"
    values     the arguments by their names in the operator's schema. Arguments that the call left out have their
               default values; those with the default None are missing. A value is None, bool, int, float, complex,
               str, `TensorOf`, `Named`, `Cut`, or a list of these
    generator  for operators that draw random numbers, else None
    """

    operator: str
    values: dict[str, Any]
    generator: Optional[GeneratorState] = None

    def name_of(self, io: str, index: int) -> Optional[str]:
        """Return the name of the argument that refers to a tensor's record, such as `weight` or `tensors[3]`, or None.

        >>> tensors = {"self": TensorOf("input", 0), "mat2": TensorOf("input", 1)}
        >>> Arguments("aten.mm.default", tensors).name_of("input", 1)
        'mat2'
        """
        return self.names().get((io, index))

    def names(self) -> dict[tuple[str, int], str]:
        """Return the names of all arguments that refer to records, by `io` and index. The first name counts."""
        names: dict[tuple[str, int], str] = {}
        for name, value in self._tensors():
            names.setdefault((value.io, value.index), name)
        return names

    def _tensors(self) -> Iterator[tuple[str, TensorOf]]:
        for name, value in self.values.items():
            if isinstance(value, TensorOf):
                yield name, value
            elif isinstance(value, list):
                yield from (
                    (f"{name}[{position}]", item) for position, item in enumerate(value) if isinstance(item, TensorOf)
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the values as in an index line, `{"op": ..., "args": {...}}`."""
        texts = {name: json.loads(text_of(value)) for name, value in self.values.items()}
        state = {} if self.generator is None else {"generator": self.generator._asdict()}
        return {"op": self.operator, "args": texts, **state}

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(f'{name}={plain_text(value)}' for name, value in self.values.items())})"


def plain_text(value: Any) -> str:
    """Return a value of `Arguments` as readable text: `[1, -1]`, `input 0`, `inputs 1-4`, `float32`."""
    if isinstance(value, (TensorOf, Named, Cut)):
        return str(value)
    if isinstance(value, list):
        tensors = [item for item in value if isinstance(item, TensorOf)]
        if 1 < len(tensors) == len(value):
            first = tensors[0]
            if tensors == [TensorOf(first.io, first.index + i) for i in range(len(tensors))]:
                return f"{first.io}s {first.index}-{tensors[-1].index}"
        return f"[{', '.join(map(plain_text, value))}]"
    return repr(value)


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'{{"float":"{value}"}}'


def _int_text(value: int) -> str:
    return str(value) if -(2**63) <= value < 2**63 else f'{{"int":"{value:d}"}}'


def _str_text(value: str) -> str:
    if len(value) > MOST_KEPT:
        return cut_text(_str_text(value[:MOST_KEPT]), len(value))
    return json.dumps(encodable(value))


def cut_text(beginning: str, length: int) -> str:
    """Return the JSON of a shortened value. beginning: its beginning as JSON; length: its original length."""
    return f'{{"cut":{beginning},"length":{length}}}'


#: By type: a function from a value to its JSON.
SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "null",
    bool: lambda value: "true" if value else "false",
    int: _int_text,
    float: _float_text,
    complex: lambda value: f'{{"complex":[{_float_text(value.real)},{_float_text(value.imag)}]}}',
    str: _str_text,
    Named: lambda value: f'{{"{value.kind}":{_str_text(value.name)}}}',
    TensorOf: lambda value: f'{{"{value.io}":{value.index}}}',
}


def text_of(value: Any) -> str:
    """Return the JSON of a value of `Arguments`. A value of another type becomes `{"object": name of its type}`."""
    make = SCALARS.get(type(value))
    if make is not None:
        return make(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, Cut):
        text = f"[{','.join(map(text_of, value[:MOST_KEPT]))}]"
        return cut_text(text, len(value)) if len(value) > MOST_KEPT else text
    if isinstance(value, Cut):
        return cut_text(text_of(value.values), value.length)
    return SCALARS[Named](Named("object", type(value).__name__))


@functools.lru_cache(64)
def read_call(text: bytes) -> Arguments:
    """Parse the text of `Line.call`. Raises ValueError if it is no call of an operator.

    The result is cached and shared by all records of a call; do not change it.
    """
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("op"), str)
        or not isinstance(document.get("args"), dict)
    ):
        raise ValueError('expected {"op": name, "args": values by name}')
    generator = document.get("generator")
    reader = _CallValues()
    values = {name: reader.read(value) for name, value in document["args"].items()}
    return Arguments(document["op"], values, None if generator is None else _generator(generator))


def read_stack(text: bytes) -> tuple[str, ...]:
    """Return the call stack in the text of `Line.call`, innermost first, as `file:line in function`; () without one.

    Raises ValueError if it is no call of an operator.
    """
    if b'"stack":' not in text:
        return ()
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    stack = document.get("stack", ()) if isinstance(document, dict) else None
    if not isinstance(stack, (list, tuple)) or not all(isinstance(function, str) for function in stack):
        raise ValueError("its call stack is not a list of strings")
    return tuple(stack)


def _generator(document: Any) -> GeneratorState:
    fields = document if isinstance(document, Mapping) else {}
    device, digest = fields.get("device"), fields.get("hash", "")
    seed, offset = fields.get("seed"), fields.get("offset")
    numbers = all(number is None or type(number) is int for number in (seed, offset))
    if not isinstance(device, str) or not isinstance(digest, str) or not numbers:
        raise ValueError("the state of its generator is damaged")
    return GeneratorState(device, digest, seed, offset)


class _CallValues:
    """A converter of the JSON values of one call to values of `Arguments`."""

    def __init__(self) -> None:
        #: Number of tensors that may still be created: a short text such as {"inputs": [0, 1000000]} can mean many.
        self._tensors = _MOST_TENSORS

    def read(self, item: Any, depth: int = 0) -> Any:
        if isinstance(item, list):
            if depth >= _DEEPEST:
                raise ValueError(f"lists are nested more than {_DEEPEST} deep")
            return [self.read(part, depth + 1) for part in item]
        if not isinstance(item, dict):
            return item
        if set(item) == {"cut", "length"}:
            beginning, length = item["cut"], item["length"]
            if isinstance(beginning, (list, str)) and type(length) is int:
                return Cut(self.read(beginning, depth + 1), length)
        elif len(item) == 1:
            [(kind, value)] = item.items()
            if kind in KINDS_OF_VALUES and isinstance(value, str):
                return Named(kind, value)
            if kind in ("input", "output") and _is_count(value):
                return TensorOf(kind, value)
            if kind in ("inputs", "outputs") and isinstance(value, list) and len(value) == 2:
                return self._row(kind[:-1], *value)
            if kind == "float" and value in ("nan", "inf", "-inf"):
                return float(value)
            if kind == "int" and isinstance(value, str) and len(value) <= MOST_KEPT:
                return int(value)
            if kind == "complex" and isinstance(value, list) and len(value) == 2:
                real, imaginary = (self.read(part, depth + 1) for part in value)
                if type(real) is float and type(imaginary) is float:
                    return complex(real, imaginary)
        raise ValueError(f"an argument is {json.dumps(item)[:100]}, which this version cannot read")

    def _row(self, io: str, start: Any, count: Any) -> list[TensorOf]:
        if not _is_count(start) or not _is_count(count):
            raise ValueError(f"a list of tensors is {json.dumps([start, count])[:100]}, expected [first index, count]")
        self._tensors -= count
        if self._tensors < 0:
            raise ValueError(f"it has more than {_MOST_TENSORS} tensors")
        return [TensorOf(io, start + i) for i in range(count)]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
