"""Write the arguments of an operator as JSON for its first line, in the format of `ascend_dump.dump_format.read_call`.

This runs for every operator, so texts are cached. Calls share one text if their arguments have the same types, and
their arguments other than tensors have the same values.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import msgspec
import torch
import xxhash

from ascend_dump.dump_format import MOST_KEPT, SCALARS, Named, cut_text, text_of
from ascend_dump.writing import copy_memory

__all__ = ["Signature", "describe_call", "read_signature", "with_stack"]

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
#: If the text of the arguments has more than `_LONGEST` characters, arguments whose text has more than `_LONG` are
#: replaced by a mark, because a line of an index is limited to a megabyte.
_LONGEST = 1 << 18
_LONG = 1 << 12
#: Lists of these types have the same text in Python and in JSON (integer arguments of operators have 64 bits).
_SPELT_AS_JSON = frozenset((int, float))


#: Maximum number of texts cached per operator and argument types, because a program may pass a new value in every call.
_MOST_CACHED = 512
#: Types whose equal values always have the same text. int and float are not among them, because 1 == 1.0 == True.
_DISTINCT = frozenset((type(None), bool, torch.dtype, torch.device, torch.layout, torch.memory_format))
_LISTS_OF_INTEGERS = ("List[int]", "List[bool]", "Optional[List[int]]", "Optional[List[bool]]")


class _Pattern(msgspec.Struct, eq=False):
    """The cached texts of calls of an operator with the same argument types.

    plan  the positions of the arguments whose values are parts of the cache key, each with a function that returns the
          part for a value; None if texts are not cached
    """

    plan: Optional[list[tuple[int, Callable[[Any], Any]]]]
    texts: dict[Any, msgspec.Raw] = {}


class Signature(msgspec.Struct, eq=False):
    """The parts of an operator's schema that are needed to write its calls.

    head       the text up to the arguments
    keys       `"name":` of each argument, in order
    defaults   the text of each argument's default by name; None if the default is None or does not exist
    types      the type of each argument, as in the schema
    patterns   the cached texts, by the types of the positional arguments and the values of the keyword arguments
    outs       names of the `out=` arguments, which are recorded as outputs
    seeded     True if the operator draws random numbers
    unseeded   (position, name) of an argument such as `train`: if its value is 0 or False, a call draws no random
               numbers. None if there is no such argument
    """

    head: str
    keys: tuple[str, ...]
    defaults: dict[str, Optional[str]]
    types: tuple[str, ...]
    patterns: dict[Any, _Pattern]
    outs: tuple[str, ...]
    seeded: bool
    unseeded: Optional[tuple[int, str]]


def read_signature(func: Any) -> Signature:
    schema = func._schema
    keys, defaults, outs = [], {}, []
    unseeded = None
    for position, argument in enumerate(schema.arguments):
        keys.append(f'"{argument.name}":')
        value = argument.default_value
        defaults[argument.name] = None if value is None else _text(value)
        if argument.is_out:
            outs.append(argument.name)
        if argument.name in ("dropout_p", "dropout", "train", "training"):
            unseeded = unseeded or (position, argument.name)
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    types = tuple(str(argument.type) for argument in schema.arguments)
    return Signature(f'{{"op":"{func}","args":{{', tuple(keys), defaults, types, {}, tuple(outs), seeded, unseeded)


def describe_call(signature: Signature, args: Any, kwargs: Any) -> msgspec.Raw:
    """Return the arguments of an operator that is about to run, as JSON."""
    kinds: Any = tuple(map(type, args))
    if kwargs:
        if not _DISTINCT.issuperset(map(type, kwargs.values())):
            return _write(signature, args, kwargs)
        kinds = kinds, tuple(kwargs.items())
    pattern = signature.patterns.get(kinds)
    if pattern is None:
        if len(signature.patterns) >= _MOST_CACHED:
            signature.patterns.clear()
        pattern = signature.patterns[kinds] = _Pattern(None if signature.seeded else _plan(signature, args))
    if pattern.plan is None:
        return _write(signature, args, kwargs)
    key = tuple([part(args[position]) for position, part in pattern.plan])
    try:
        text = pattern.texts.get(key)
    except TypeError:  # symbolic sizes have no hash
        return _write(signature, args, kwargs)
    if text is None:
        text = _write(signature, args, kwargs)
        # A call with a float of value 0 is not cached: 0.0 and -0.0 are equal, but have different texts.
        if 0.0 not in key or not any(type(args[index]) is float for index, _ in pattern.plan):
            if len(pattern.texts) >= _MOST_CACHED:
                pattern.texts.clear()
            pattern.texts[key] = text
    return text


def with_stack(call: msgspec.Raw, stack: bytes) -> msgspec.Raw:
    """Return the call with its call stack (`CallSite.stack`); unchanged if the stack is empty."""
    return msgspec.Raw(bytes(call)[:-1] + b',"stack":' + stack + b"}") if stack and call else call


def _plan(signature: Signature, args: Any) -> Optional[list[tuple[int, Callable[[Any], Any]]]]:
    plan: list[tuple[int, Callable[[Any], Any]]] = []
    for position, (kind, value) in enumerate(zip(signature.types, args)):
        if isinstance(value, _Tensor) or value is None:
            continue
        if isinstance(value, (list, tuple)):
            if kind == "List[Tensor]":
                plan.append((position, len))
            elif kind in _LISTS_OF_INTEGERS:
                plan.append((position, tuple))
            else:
                return None
        elif type(value) in _DISTINCT or type(value) in (int, float, str):
            plan.append((position, _itself))
        else:
            return None
    return plan


def _itself(value: Any) -> Any:
    return value


def _write(signature: Signature, args: Any, kwargs: Any) -> msgspec.Raw:
    parts = []
    inputs = 0
    for key, value in zip(signature.keys, args):
        kind = type(value)
        if kind is _Tensor or kind is _Parameter:
            parts.append(f'{key}{{"input":{inputs}}}')
            inputs += 1
        else:
            make = _TEXTS.get(kind)
            if make is not None:
                parts.append(key + make(value))
            else:
                text, inputs = _with_tensors(value, "input", inputs)
                parts.append(key + text)
    for name, value in kwargs.items():
        if name not in signature.outs:
            text, inputs = _with_tensors(value, "input", inputs)
            parts.append(f'"{name}":{text}')
    written = 0
    for name in signature.outs:
        if name in kwargs:
            text, written = _with_tensors(kwargs[name], "output", written)
            parts.append(f'"{name}":{text}')
    if sum(map(len, parts)) > _LONGEST:
        parts = [part if len(part) <= _LONG else f"{part.partition(':')[0]}:{cut_text('[]', 0)}" for part in parts]
    omitted = list(signature.defaults.items())[len(args) :]
    parts += [f'"{name}":{text}' for name, text in omitted if text is not None and name not in kwargs]
    generator = _generator(signature, args, kwargs) if signature.seeded else ""
    return msgspec.Raw(f"{signature.head}{','.join(parts)}}}{generator}}}".encode())


def _with_tensors(value: Any, io: str, number: int) -> tuple[str, int]:
    """Return the text of an argument that may contain tensors, and the number of the next tensor."""
    kind = type(value)
    if kind is not list and kind is not tuple:
        return (f'{{"{io}":{number}}}', number + 1) if isinstance(value, _Tensor) else (_text(value), number)
    count = len(value)
    kinds = set(map(type, value))
    if kinds <= _SPELT_AS_JSON and count <= MOST_KEPT:
        text = str(value if kind is list else [*value])
        if "n" not in text:  # neither nan nor inf
            return text, number
    elif count and all(issubclass(item_type, _Tensor) for item_type in kinds):
        return f'{{"{io}s":[{number},{count}]}}', number + count
    texts: list[str] = []
    for item in value:
        text, number = _with_tensors(item, io, number)
        if len(texts) < MOST_KEPT:
            texts.append(text)
    text = f"[{','.join(texts)}]"
    return (cut_text(text, count) if count > MOST_KEPT else text), number


def _text(value: Any) -> str:
    make = _TEXTS.get(type(value))
    if make is not None:
        return make(value)
    if isinstance(value, (list, tuple)):
        return _with_tensors(value, "input", 0)[0]
    return text_of(value)


@functools.lru_cache(1024)
def _named(value: Any) -> str:
    kind = next(name for name, named_type in _NAMED.items() if isinstance(value, named_type))
    return SCALARS[Named](Named(kind, str(value).replace("torch.", "")))


def _symbolic(value: Any) -> str:
    """Return the text of a symbolic number: its value if PyTorch knows it, else the symbol."""
    number = value.node.maybe_as_int()
    return text_of(f"{value}" if number is None else number)


_NAMED: dict[str, type] = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_TEXTS: dict[type, Callable[[Any], str]] = {
    **{kind: text for kind, text in SCALARS.items() if kind not in (Named,)},
    **dict.fromkeys(_NAMED.values(), _named),
    torch.SymInt: _symbolic,
    torch.Generator: lambda value: SCALARS[Named](Named("generator", str(value.device))),
}


def _generator(signature: Signature, args: Any, kwargs: Any) -> str:
    """Return the text `,"generator":...` with the state of the generator; "" if this call draws no random numbers."""
    if signature.unseeded is not None:
        position, name = signature.unseeded
        if not (args[position] if position < len(args) else kwargs.get(name)):
            return ""
    generator = kwargs.get("generator")
    device = kwargs.get("device")
    if device is None and args and isinstance(args[0], _Tensor):
        device = None if args[0].is_cpu else args[0].device
    try:
        if generator is None:
            generator = _default_generator(device)
        kind = str(generator.device)
        state = generator.get_state()
        # The state is read by its address. `Tensor.numpy` would share the memory, and the session would treat it as
        # shared from then on.
        digest = xxhash.xxh3_128_hexdigest(copy_memory(state.data_ptr(), state.nbytes))
        offset = f',"offset":{generator.get_offset()}' if kind.startswith("cuda") else ""
    except (RuntimeError, AttributeError, IndexError, TypeError):
        # Other generators have no readable state.
        return f',"generator":{{"device":{text_of(str(device))}}}'
    return f',"generator":{{"device":"{kind}","hash":"{digest}","seed":{generator.initial_seed()}{offset}}}'


def _default_generator(device: Optional[torch.device]) -> torch.Generator:
    if device is None or device.type == "cpu":
        return torch.default_generator
    module: Any = getattr(torch, device.type)
    generator: torch.Generator = module.default_generators[device.index or 0]
    return generator
