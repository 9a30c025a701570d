"""Run the converters of the real torchair on the simulated NPU, each with its own cases, beside ATen on the CPU.

    python measure_converters.py VERSION [OPERATOR ...]         -> converters.json

A case is declared by the converter itself (`@declare_supported`), or, where it declares none, stands in
`converter_cases.py`. Its operator alone is the graph, converted as it stands; where the converter refuses that, the
graph is taken the way of `torch.compile`, on which torchair and PyTorch decompose operators.
"""

from __future__ import annotations

import gc
import json
import logging
import operator
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import converter_cases
import frontend
import torch
from torch._subclasses import FakeTensorMode

from ascend_dump import AscendDumpError, NotSupported
from ascend_dump.fakes.kernels.ge_model import parse_model

#: Operators of a graph that are no operators of the device.
_EDGES = ("Data", "RefData", "Const", "Constant", "NetOutput")
#: Samples of one distribution are farther apart than this, times sqrt(1/n + 1/m), once in a million (Kolmogorov).
_KOLMOGOROV = 2.7
#: Devices and what stands for them.
_HERE = {"npu": "cpu", "npu:0": "cpu"}
#: Their values are what the memory held.
UNDEFINED = ("aten.empty", "aten.new_empty")
#: Sizes from here on are divided by _SMALLER.
_LARGE, _SMALLER = 256, 64
#: What torch.testing.assert_close allows at a type, for each operator that the GE graph rounds after.
_ROUNDINGS = 3


class Outcome(NamedTuple):
    """What became of one case. result: a word of `converter_table`. types: of the GE operators that were emitted."""

    result: str
    detail: str = ""
    types: tuple[str, ...] = ()


class Recorder:
    """The types of the operators that torchair hands over, graph by graph."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        base = sys.modules["torchair.core._torchair"].TorchNpuGraphBase  # type: ignore[attr-defined]  # the stand-in
        original = base.load

        def load(graph: Any, serialized: bytes, *more: Any) -> None:
            self.types |= {op.type for op in parse_model(serialized).ops}
            original(graph, serialized, *more)

        base.load = load

    def taken(self) -> tuple[str, ...]:
        found = tuple(sorted(self.types.difference(_EDGES)))
        self.types.clear()
        return found


class Bench:
    """Runs cases in one process."""

    def __init__(self) -> None:
        import torchair
        from torchair.npu_fx_compiler import get_compiler

        self._recorder = Recorder()
        self._alone = get_compiler(torchair.CompilerConfig())
        self._decomposed = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())

    def measure(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        args = tuple(as_list(each, declared) for each, declared in zip(args, op._schema.arguments))
        first = self._one(self._convert_alone, op, args, kwargs)
        if first.result != "refused":
            return first
        second = self._one(self._convert_decomposed, op, args, kwargs)
        if second.result == "refused":
            return first
        return second._replace(detail=second.detail or "decomposed") if second.result == "equal" else second

    def _one(self, convert: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        try:
            run, flat = convert(op, args, kwargs)
        except Exception as error:  # whatever a converter raises is its refusal
            self._recorder.taken()
            return Outcome("refused", first_line(error))
        try:
            seed()
            found = run(*flat)
        except NotSupported as error:
            return Outcome("not simulated", first_line(error), self._recorder.taken())
        except (AscendDumpError, RuntimeError, IndexError, TypeError, AssertionError) as error:
            return Outcome("fails", first_line(error), self._recorder.taken())
        seed()
        try:
            wanted = op(*copied(args), **copied(kwargs))
        except (RuntimeError, IndexError) as error:
            return Outcome("no reference", first_line(error)[:60], self._recorder.taken())
        precision = [
            each.dtype for each in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)
        ]
        return Outcome(*compare(op, outputs(found), outputs(wanted), precision), self._recorder.taken())

    def _convert_alone(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        mode, flat, fakes = FakeTensorMode(), [], []
        graph = torch.fx.Graph()

        def place(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            node = graph.placeholder(f"arg{len(flat)}_1")
            node.meta["val"] = mode.from_tensor(value)
            flat.append(value.clone())
            fakes.append(node.meta["val"])
            return node

        nodes, more = mapped(args, place), mapped(kwargs, place)
        call = graph.call_function(op, nodes, more)
        known = {"args": mapped(nodes, _meta), "kwargs": mapped(more, _meta)}
        with mode:
            call.meta["val"] = op(*known["args"], **known["kwargs"])
        several = isinstance(call.meta["val"], (list, tuple))
        outputs = []
        for index, value in enumerate(call.meta["val"]) if several else ():
            outputs.append(graph.call_function(operator.getitem, (call, index)))
            outputs[-1].meta["val"] = value
        graph.output(tuple(outputs) if several else (call,))
        with mode:
            return self._alone(torch.fx.GraphModule({}, graph), fakes), flat

    def _convert_decomposed(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        flat: list[Any] = []
        graph = torch.fx.Graph()

        def place(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            flat.append(value.clone())
            return graph.placeholder(f"arg{len(flat) - 1}_1")

        call = graph.call_function(op, mapped(args, place), mapped(kwargs, place))
        graph.output((call,))
        mode = FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
        fakes = [mode.from_tensor(each, static_shapes=True) for each in flat]
        with torch._guards.tracing(torch._guards.TracingContext(mode)), torch.no_grad():
            run = self._decomposed(torch.fx.GraphModule({}, graph), fakes)
        return (lambda *inputs: run(*inputs)), flat


def _meta(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value


def mapped(value: Any, function: Any) -> Any:
    """`function` of every leaf of lists, tuples and dictionaries."""
    return torch.utils._pytree.tree_map(function, value)


def copied(value: Any) -> Any:
    return mapped(value, lambda each: each.clone() if isinstance(each, torch.Tensor) else each)


def seed() -> None:
    # torch.manual_seed also seeds every other device, which takes longer than most cases.
    torch._C.default_generator.manual_seed(0)


def as_list(value: Any, argument: Any) -> Any:
    """A number as the list that stands in a graph where the operator takes one."""
    return [value] if isinstance(value, int) and "List[int]" in str(argument.type) else value


def first_line(error: BaseException) -> str:
    """What it says, without the addresses and traces that differ from run to run."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"0x[0-9a-f]+", "0x", lines[0] if lines else type(error).__name__)[:200]


def outputs(found: Any) -> list[Any]:
    """Its tensors; None where an operator gives none in a place."""
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    return [each for one in found for each in (one if isinstance(one, (list, tuple)) else [one])]


def compare(op: Any, found: list[Any], wanted: list[Any], precision: list[torch.dtype]) -> tuple[str, str]:
    """Whether the graph gave what eager mode gives, and where it did not, what the difference is."""
    if len(found) != len(wanted):
        return "differs", f"{len(found)} outputs instead of {len(wanted)}"
    for index, (one, other) in enumerate(zip(found, wanted)):
        if other is None or (str(op), index) in converter_cases.OF_THE_DEVICE:
            continue
        if not isinstance(other, torch.Tensor):
            if one != other:
                return "differs", f"output {index} is {one}, not {other}"
            continue
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return (
                "differs",
                f"output {index} is {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}",
            )
        if str(op).startswith(UNDEFINED):
            continue
        drawn = torch.Tag.nondeterministic_seeded in op.tags
        told = same_distribution(one, other) if drawn else same_values(one, other, precision)
        if told:
            return "differs", f"output {index}: {told}"
    return "equal", ""


def same_values(one: torch.Tensor, other: torch.Tensor, precision: list[torch.dtype]) -> str:
    """ "" where the values agree as far as the rounding of several operators leaves them, in the coarsest type."""
    rtol = atol = 0.0
    if other.is_floating_point() or other.is_complex():
        rtol = _ROUNDINGS * max(
            torch.testing._comparison.default_tolerances(each)[0] for each in (other.dtype, *precision)
        )
        # What is left where terms cancel each other is as far off as they were.
        size = other[other.isfinite()].abs().double()
        atol = rtol * float(size.mean()) if size.numel() else 0.0
    try:
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


def same_distribution(one: torch.Tensor, other: torch.Tensor) -> str:
    """ "" where both may be samples of one distribution: the statistic of Kolmogorov and Smirnov."""
    if not other.numel():
        return ""
    one, other = one.double().flatten().sort().values, other.double().flatten().sort().values
    points = torch.cat((one, other))
    shares = [torch.searchsorted(each, points, right=True).double() / len(each) for each in (one, other)]
    distance = float((shares[0] - shares[1]).abs().max())
    limit = _KOLMOGOROV * (1 / len(one) + 1 / len(other)) ** 0.5
    return "" if distance <= limit else f"distance of the distributions {distance:.3f}, at most {limit:.3f}"


def as_tensor(spec: Any, scale: int) -> torch.Tensor:
    """A tensor that a declared case describes, as torchair's own test of its converters makes it."""
    if spec.value is not None:
        return torch.tensor(spec.value, dtype=spec.dtype)
    given = spec.dims[0] if spec.dims and isinstance(spec.dims[0], (list, tuple)) else spec.dims
    dims = [size // scale if size >= _LARGE else size for size in given]
    if spec.value_range is not None:
        low, high = spec.value_range
        return (torch.rand(dims) * (high - low) + low).to(spec.dtype)
    return torch.randn(dims).to(spec.dtype)


def declared_case(case: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a declared case; large ones smaller, where no other argument speaks of their sizes."""
    from torchair._ge_concrete_graph.supported_declaration import _TypedTensor

    leaves = torch.utils._pytree.tree_leaves((case.args, case.kwargs))
    sizes = [size for each in leaves if isinstance(each, _TypedTensor) for size in each.dims if isinstance(size, int)]
    bound = any(isinstance(each, int) and each >= _LARGE for each in leaves)
    scale = _SMALLER if max(sizes, default=0) >= _LARGE and not bound else 1
    seed()
    return mapped(
        (tuple(case.args), dict(case.kwargs)),
        lambda value: as_tensor(value, scale) if isinstance(value, _TypedTensor) else _HERE.get(str(value), value),
    )


def cases(op: Any, converter: Optional[Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for an operator, the same in every run."""
    seed()
    own = list(converter_cases.cases(str(op)))
    yield from own
    for case in () if own else getattr(converter, "supported_cases", None) or ():
        yield declared_case(case)


def operators(declared: Iterable[Any]) -> list[Any]:
    """ATen's core operators, and every other one with cases, by name."""
    found = {str(op): op for op in declared if isinstance(op, torch._ops.OpOverload)}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten":
            overload = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default", None)
            if overload is not None and torch.Tag.core in overload.tags:
                found[str(overload)] = overload
    for name in converter_cases.OPERATORS:
        packet, _, overload = name[len("aten.") :].partition(".")
        found[name] = getattr(getattr(torch.ops.aten, packet), overload)
    return [found[name] for name in sorted(found)]


def main(version: str, *only: str) -> None:
    with frontend.installed(version):
        from torchair._ge_concrete_graph.fx2ge_converter import _declare_supported_converters

        logging.disable(logging.CRITICAL)
        declared = _declare_supported_converters()
        bench = Bench()
        gc.freeze()  # what is loaded stays, and is much to look through
        report = {}
        for op in operators(declared):
            if only and str(op) not in only:
                continue
            outcomes = [bench.measure(op, args, kwargs) for args, kwargs in cases(op, declared.get(op))]
            core = torch.Tag.core in op.tags
            report[str(op)] = {"core": core, "declared": op in declared, "outcomes": outcomes}
    Path("converters.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
