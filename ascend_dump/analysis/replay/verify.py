"""What running recorded operators again says of each of their outputs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

from ascend_dump.analysis.judging.output_verdict import judge_output, rounding_type
from ascend_dump.analysis.judging.term_magnitude import natural_scale
from ascend_dump.analysis.judging.verdict import Rules, worst
from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.analysis.operators.operator import Operator, operators
from ascend_dump.analysis.operators.undefined_outputs import why_undefined
from ascend_dump.analysis.replay.graph_nodes import CalledNode, GraphNodes
from ascend_dump.analysis.replay.reasons import NotRun, depends_on_type
from ascend_dump.analysis.replay.runner import Runner
from ascend_dump.dump_format import Arguments
from ascend_dump.errors import ConfigError, CorruptDump, NotSupported, ReadError
from ascend_dump.reading import Dump, Record, open_dump

__all__ = ["Refused", "Replay", "Replayed", "replay", "replay_operator"]

_TYPES = ("float64", "float32")
_Records = Union[Dump, str, "os.PathLike[str]", Iterable[Record]]


@dataclass(frozen=True)
class Replayed:
    """One recorded output, compared with the result of running its operator again from the recorded inputs.

    verdict  "equal" (the same bits), "noise" (within the rounding of its type), "different", "structure" (another
             type), "undecided" (PyTorch gets the same result in its type, but not in the higher precision) or
             "unreadable"
    reason   the verdict in words, with numbers
    measure  distance to the result in higher precision; None if it could not be run in it
    own      distance to the result in its own type; None if it could not be run in it
    node     for GE operators: the node of PyTorch's graph that was run, `addmm (aten.addmm.default)`
    """

    record: Record
    verdict: str
    reason: str
    measure: Optional[Measure] = None
    own: Optional[Measure] = None
    node: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        one = self.record
        place = {"step": one.step, "rank": one.rank, "op_name": one.op_name, "op_type": one.op_type}
        return {
            **place,
            "index": one.index,
            "module": one.module,
            "source": one.source,
            "node": self.node or None,
            "verdict": self.verdict,
            "reason": self.reason,
            "measure": None if self.measure is None else self.measure._asdict(),
            "own": None if self.own is None else self.own._asdict(),
        }


@dataclass(frozen=True)
class Refused:
    """An operator that was not run again.

    reason: one of `REASONS`. message: the reason in words, with details.
    """

    op_name: str
    op_type: str
    step: Optional[int]
    rank: Optional[int]
    reason: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """The refusal as plain values, for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Replay:
    """The operators of a dump, run again one by one.

    pairs    every output of the operators that were run, in their order
    refused  the operators that were not run, with the reason
    dtype    the type of higher precision

    >>> found = ascend_dump.replay("dumps")             # doctest: +SKIP
    >>> found.verdict, found.wrong                      # doctest: +SKIP
    """

    pairs: tuple[Replayed, ...]
    refused: tuple[Refused, ...]
    dtype: str

    @property
    def verdict(self) -> str:
        """The worst of all outputs; "unmatched" if no operator could be run again."""
        return worst([one.verdict for one in self.pairs])

    @property
    def counts(self) -> dict[str, int]:
        """How many outputs have each verdict."""
        return dict(Counter(one.verdict for one in self.pairs))

    @property
    def wrong(self) -> tuple[Replayed, ...]:
        """The outputs that differ from what their operator computes from the recorded inputs."""
        return tuple(one for one in self.pairs if one.verdict not in ("equal", "noise"))

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "dtype": self.dtype,
            "counts": self.counts,
            "pairs": [one.to_dict() for one in self.pairs],
            "refused": [one.to_dict() for one in self.refused],
        }

    def __repr__(self) -> str:
        return f"<Replay {self.verdict}: {len(self.pairs)} outputs, {len(self.refused)} operators not run>"


def replay(
    records: _Records,
    dtype: str = "float64",
    *,
    rules: Optional[Rules] = None,
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]] = None,
) -> Replay:
    """Run recorded ATen operators again on this host, in their own type and in higher precision.

    An operator that is `different` computed wrong values; one that only had wrong inputs is not. No reference is
    needed: PyTorch's kernels on this host are assumed to be correct.

    For GE operators the PyTorch nodes that torchair converted are run, if torchair's text of the graph is in the dump
    or beside it (`capture(..., options={"graph_dump": "py"})`).

    records  a dump, its path, or records: all of an operator, as `Dump.select(op=...)` gives them
    dtype    "float64" or "float32": the type that floating-point inputs are converted to
    rules    thresholds, as for `compare`
    watch    an iterator function that is given the operators and yields them on, for a progress display

    Tensors and arguments from the files are passed to PyTorch's kernels unchecked, so replay only dumps that you trust.
    Raises ConfigError for another dtype, FrameworkMissing without PyTorch, and what `open` raises.

    >>> found = ascend_dump.replay("dumps")             # doctest: +SKIP
    >>> [one.record.op_name for one in found.wrong]     # doctest: +SKIP
    """
    if dtype not in _TYPES:
        raise ConfigError(f"dtype={dtype!r} cannot be used for a replay", hint=f"expected one of {', '.join(_TYPES)}")
    chosen: Iterable[Record] = open_dump(records) if isinstance(records, (str, os.PathLike)) else records
    runner = Runner()
    used = rules or Rules()
    pairs: list[Replayed] = []
    refused: list[Refused] = []
    every = operators(chosen)
    graphs = GraphNodes(chosen, runner) if isinstance(chosen, Dump) else None
    done: set[Any] = set()
    for operator in every if watch is None else watch(every):
        pairs += [Replayed(one, "unreadable", str(one.error)) for one in operator.broken if one.error is not None]
        name, kind = operator.op_name, operator.op_type
        try:
            found = None if graphs is None else graphs.of(operator)
            if found is None:
                pairs += replay_operator(runner, operator, used, dtype)
            elif found.key not in done:
                # Several operators of GE are one node.
                done.add(found.key)
                name, kind = found.node.value.name, found.node.target
                pairs += _replay_node(runner, found.call(), used, dtype, f"{name} ({kind})")
        except NotRun as error:
            first = next(iter(operator.records))
            if error.reason == "unreadable":
                pairs += [Replayed(one, "unreadable", str(error)) for one in operator.outputs or [first]]
                continue
            refused.append(Refused(name, kind, first.step, first.rank, error.reason, str(error)))
    return Replay(tuple(pairs), tuple(refused), dtype)


def replay_operator(runner: Runner, operator: Operator, rules: Rules, dtype: str) -> list[Replayed]:
    """Run one operator again and judge its outputs. Raises NotRun."""
    call = _call(operator)
    outputs = [one for one in operator.outputs if why_undefined(operator, one) is None]
    if not outputs:
        raise NotRun("uninitialised" if operator.outputs else "outputs")
    own, wide, refusal = _both(runner, operator, call, dtype)
    found = []
    without_values = ""
    for output in outputs:
        try:
            array = output.numpy()
        except NotSupported as error:
            without_values = str(error)[:200]
            continue
        except ReadError as error:
            found.append(Replayed(output, "unreadable", str(error)))
            continue
        results = (wide.get(output.index), own.get(output.index))
        found.append(_judged(runner.version, operator, output, array, results, rules, refusal))
    if not found:
        raise NotRun("outputs", without_values)
    return found


def _replay_node(runner: Runner, node: CalledNode, rules: Rules, dtype: str, name: str) -> list[Replayed]:
    found = replay_operator(runner, node.operator, rules, dtype)
    return [replace(one, record=node.recorded[one.record.index], node=name) for one in found]


def _call(operator: Operator) -> Arguments:
    for record in operator.records:
        try:
            call = record.arguments
        except CorruptDump as error:
            raise NotRun("arguments", str(error)[:200]) from None
        if call is not None:
            return call
    raise NotRun("arguments")


def _both(
    runner: Runner, operator: Operator, call: Arguments, dtype: str
) -> tuple[dict[int, Any], dict[int, Any], str]:
    """The outputs in their own types and in the finer one, and why one of them is not there. Raises NotRun for both."""
    try:
        own = runner.run(operator, call, None)
    except NotRun as error:
        if error.reason != "kernel":
            raise
        return {}, runner.run(operator, call, dtype), f"not run in its own type, {error}"
    if depends_on_type(call):
        return own, {}, "it means another thing in a finer type"
    try:
        return own, runner.run(operator, call, dtype), ""
    except NotRun as error:
        return own, {}, f"not run in {dtype}, {error}"


def _judged(
    version: str,
    operator: Operator,
    output: Record,
    array: Any,
    results: tuple[Optional[Any], Optional[Any]],
    rules: Rules,
    refusal: str,
) -> Replayed:
    import numpy as np

    wide, own = results
    for result in (wide, own):
        if result is not None and result.shape != array.shape:
            reason = f"shape {list(array.shape)}, run again {list(result.shape)}"
            return Replayed(output, "structure", reason)
    said: dict[str, tuple[str, str]] = {}
    numbers: dict[str, Measure] = {}
    for name, result in (("wide", wide), ("own", own)):
        if result is None:
            continue
        if name == "own" and result.dtype != array.dtype:
            with np.errstate(all="ignore"):
                result = result.astype(array.dtype)
        if name == "wide":
            result = _overflowed(result, array.dtype)
        numbers[name] = measure(array, result)
        if name == "own" and not numbers[name].unequal and np.ascontiguousarray(array).tobytes() == result.tobytes():
            said[name] = ("equal", "")
        else:
            said[name] = _said(operator, output, numbers[name], rules, cast=name == "wide")
    verdict, reason = _verdict(said, version, output.dtype or "")
    if refusal:
        reason = f"{reason} ({refusal})"
    return Replayed(output, verdict, reason, numbers.get("wide"), numbers.get("own"))


def _said(operator: Operator, output: Record, numbers: Measure, rules: Rules, *, cast: bool) -> tuple[str, str]:
    dtype = rounding_type(operator, output)
    found = judge_output(operator, output, numbers, dtype, rules, cast=cast)
    if found[0] == "different" and not numbers.nonfinite:
        # It takes reading the inputs.
        scale = natural_scale(operator, output)
        if scale > numbers.rms:
            found = judge_output(operator, output, numbers, dtype, rules, cast=cast, scale=scale)
    return found


def _verdict(said: dict[str, tuple[str, str]], version: str, dtype: str) -> tuple[str, str]:
    wide, own = said.get("wide"), said.get("own")
    if wide is None or own is None:
        found = wide or own
        assert found is not None, "an operator that was run gave something"
        return found
    if wide[0] != "different":
        return ("equal", f"the same bits as PyTorch {version} gives here") if own[0] == "equal" else wide
    if own[0] == "different":
        return wide
    return "undecided", f"PyTorch {version} gives the same in {dtype}, and not in the finer type: {wide[1]}"


def _overflowed(result: Any, dtype: Any) -> Any:
    """The result with Inf (or NaN, of types without Inf) where the type of the record has no such large numbers."""
    import numpy as np

    if result.dtype == dtype or result.dtype.kind not in "fc":
        return result
    with np.errstate(all="ignore"):
        narrow = result.astype(dtype)
        lost = ~np.isfinite(narrow.astype(result.dtype)) & np.isfinite(result)
        return np.where(lost, narrow.astype(result.dtype), result) if lost.any() else result
