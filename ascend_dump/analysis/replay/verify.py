"""Run recorded operators again and judge their outputs."""

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

__all__ = ["Refused", "Replay", "Replayed", "arguments_of", "replay", "replay_operator"]

_TYPES = ("float64", "float32")
_Records = Union[Dump, str, "os.PathLike[str]", Iterable[Record]]


@dataclass(frozen=True)
class Replayed:
    """One recorded output, compared with the result of running its operator again from the recorded inputs.

    verdict  "equal" (the same bits), "noise" (within the rounding of its type), "different", "structure" (another
             shape), "undecided" (PyTorch gets the same result in its type, but not in the higher precision) or
             "unreadable"
    reason   the verdict in words, with numbers
    measure  distance to the result in higher precision; None if the operator could not be run in higher precision
    own      distance to the result in the operator's own type; None if the operator could not be run in this type
    node     for GE operators: the node of PyTorch's graph that was run, `addmm (aten.addmm.default)`
    """

    record: Record
    verdict: str
    reason: str
    measure: Optional[Measure] = None
    own: Optional[Measure] = None
    node: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        record = self.record
        return {
            "step": record.step,
            "rank": record.rank,
            "op_name": record.op_name,
            "op_type": record.op_type,
            "index": record.index,
            "module": record.module,
            "source": record.source,
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
        """Return the refusal as plain values, for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Replay:
    """The operators of a dump, run again one by one.

    pairs    the outputs that were compared or cannot be read, in the order of their operators
    refused  the operators that were not run, with the reason
    dtype    the type of higher precision

    >>> result = ascend_dump.replay("dumps")            # doctest: +SKIP
    >>> result.verdict, result.wrong                    # doctest: +SKIP
    """

    pairs: tuple[Replayed, ...]
    refused: tuple[Refused, ...]
    dtype: str

    @property
    def verdict(self) -> str:
        """Return the worst verdict of all outputs; "unmatched" if no operator could be run again."""
        return worst([pair.verdict for pair in self.pairs])

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of outputs by verdict."""
        return dict(Counter(pair.verdict for pair in self.pairs))

    @property
    def wrong(self) -> tuple[Replayed, ...]:
        """Return the outputs that were not found equal to the result of their operator, up to rounding."""
        return tuple(pair for pair in self.pairs if pair.verdict not in ("equal", "noise"))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "dtype": self.dtype,
            "counts": self.counts,
            "pairs": [pair.to_dict() for pair in self.pairs],
            "refused": [refusal.to_dict() for refusal in self.refused],
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

    An output is "different" if its operator computed wrong values from its recorded inputs. It is not "different" if
    only the inputs were wrong. No reference is needed: PyTorch's kernels on this host are assumed to be correct.

    For GE operators the PyTorch nodes that torchair converted are run, if torchair's text of the graph is in the dump
    or beside it (`capture(..., options={"graph_dump": "py"})`).

    records  a dump, its path, or records; they must include all records of an operator, as `Dump.select(op=...)` does
    dtype    "float64" or "float32": the type that floating-point inputs are converted to
    rules    thresholds, as for `compare`
    watch    a function that receives the iterator of operators and yields them on, for a progress display

    Tensors and arguments from the files are passed to PyTorch's kernels unchecked, so replay only dumps that you trust.
    Raises ConfigError for another dtype, FrameworkMissing without PyTorch, and the errors of `open`.

    >>> result = ascend_dump.replay("dumps")            # doctest: +SKIP
    >>> [pair.record.op_name for pair in result.wrong]  # doctest: +SKIP
    """
    if dtype not in _TYPES:
        raise ConfigError(f"dtype={dtype!r} cannot be used for a replay", hint=f"expected one of {', '.join(_TYPES)}")
    chosen: Iterable[Record] = open_dump(records) if isinstance(records, (str, os.PathLike)) else records
    runner = Runner()
    rules = rules or Rules()
    pairs: list[Replayed] = []
    refused: list[Refused] = []
    members = operators(chosen)
    graphs = GraphNodes(chosen, runner) if isinstance(chosen, Dump) else None
    done: set[Any] = set()
    for operator in members if watch is None else watch(members):
        pairs += [Replayed(record, "unreadable", str(record.error)) for record in operator.broken if record.error]
        name, kind = operator.op_name, operator.op_type
        try:
            node = None if graphs is None else graphs.of(operator)
            if node is None:
                pairs += replay_operator(runner, operator, rules, dtype)
            elif node.key not in done:
                # Several GE operators may come from one node, which is run once.
                done.add(node.key)
                name, kind = node.node.value.name, node.node.target
                pairs += _replay_node(runner, node.call(), rules, dtype, f"{name} ({kind})")
        except NotRun as error:
            first = next(iter(operator.records))
            if error.reason == "unreadable":
                pairs += [Replayed(record, "unreadable", str(error)) for record in operator.outputs or [first]]
                continue
            refused.append(Refused(name, kind, first.step, first.rank, error.reason, str(error)))
    return Replay(tuple(pairs), tuple(refused), dtype)


def replay_operator(runner: Runner, operator: Operator, rules: Rules, dtype: str) -> list[Replayed]:
    """Run one operator again and judge its outputs. Raises NotRun."""
    call = arguments_of(operator)
    outputs = [record for record in operator.outputs if why_undefined(operator, record) is None]
    if not outputs:
        raise NotRun("uninitialised" if operator.outputs else "outputs")
    plain, wide, refusal = _both(runner, operator, call, dtype)
    replayed = []
    missing = ""
    for output in outputs:
        try:
            array = output.numpy()
        except NotSupported as error:
            missing = str(error)[:200]
            continue
        except ReadError as error:
            replayed.append(Replayed(output, "unreadable", str(error)))
            continue
        results = (wide.get(output.index), plain.get(output.index))
        replayed.append(_judged(runner.version, operator, output, array, results, rules, refusal))
    if not replayed:
        raise NotRun("outputs", missing)
    return replayed


def _replay_node(runner: Runner, node: CalledNode, rules: Rules, dtype: str, name: str) -> list[Replayed]:
    outputs = replay_operator(runner, node.operator, rules, dtype)
    return [replace(output, record=node.recorded[output.record.index], node=name) for output in outputs]


def arguments_of(operator: Operator) -> Arguments:
    """Return the recorded arguments of an operator. Raises NotRun without them."""
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
    """Return the outputs in their own types and in finer ones, and the reason if one of them is missing.

    Raises NotRun if the operator cannot be run at all.
    """
    try:
        plain = runner.run(operator, call, None)
    except NotRun as error:
        if error.reason != "kernel":
            raise
        return {}, runner.run(operator, call, dtype), f"not run in its own type, {error}"
    if depends_on_type(call):
        return plain, {}, "its result means something else in a finer type"
    try:
        return plain, runner.run(operator, call, dtype), ""
    except NotRun as error:
        return plain, {}, f"not run in {dtype}, {error}"


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

    wide, plain = results
    for result in (wide, plain):
        if result is not None and result.shape != array.shape:
            reason = f"shape {list(array.shape)}, run again {list(result.shape)}"
            return Replayed(output, "structure", reason)
    verdicts: dict[str, tuple[str, str]] = {}
    numbers: dict[str, Measure] = {}
    for name, result in (("wide", wide), ("own", plain)):
        if result is None:
            continue
        if name == "own" and result.dtype != array.dtype:
            with np.errstate(all="ignore"):
                result = result.astype(array.dtype)
        if name == "wide":
            result = _overflowed(result, array.dtype)
        numbers[name] = measure(array, result)
        if name == "own" and not numbers[name].unequal and np.ascontiguousarray(array).tobytes() == result.tobytes():
            verdicts[name] = ("equal", "")
        else:
            verdicts[name] = _judged_measure(operator, output, numbers[name], rules, cast=name == "wide")
    verdict, reason = _verdict(verdicts, version, output.dtype or "")
    if refusal:
        reason = f"{reason} ({refusal})"
    return Replayed(output, verdict, reason, numbers.get("wide"), numbers.get("own"))


def _judged_measure(
    operator: Operator, output: Record, numbers: Measure, rules: Rules, *, cast: bool
) -> tuple[str, str]:
    dtype = rounding_type(operator, output)
    verdict = judge_output(operator, output, numbers, dtype, rules, cast=cast)
    if verdict[0] == "different" and not numbers.nonfinite:
        # This reads the inputs, so it is done for differences only.
        scale = natural_scale(operator, output)
        if scale > numbers.rms:
            verdict = judge_output(operator, output, numbers, dtype, rules, cast=cast, scale=scale)
    return verdict


def _verdict(verdicts: dict[str, tuple[str, str]], version: str, dtype: str) -> tuple[str, str]:
    wide, plain = verdicts.get("wide"), verdicts.get("own")
    if wide is None or plain is None:
        result = wide or plain
        assert result is not None, "an operator that was run has a result"
        return result
    if wide[0] != "different":
        return ("equal", f"the same bits as PyTorch {version} on this host") if plain[0] == "equal" else wide
    if plain[0] == "different":
        return wide
    return "undecided", f"PyTorch {version} returns the same in {dtype}, but not in the finer type: {wide[1]}"


def _overflowed(result: Any, dtype: Any) -> Any:
    """Return the result with Inf (or NaN) for numbers beyond the range of the record's type."""
    import numpy as np

    if result.dtype == dtype or result.dtype.kind not in "fc":
        return result
    with np.errstate(all="ignore"):
        narrow = result.astype(dtype)
        lost = ~np.isfinite(narrow.astype(result.dtype)) & np.isfinite(result)
        return np.where(lost, narrow.astype(result.dtype), result) if lost.any() else result
