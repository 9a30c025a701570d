"""Find suspects by comparing ranks: wrong results of collectives, differing copies, and differing programs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ascend_dump.analysis.ranks import (
    CallBook,
    ChangedParameters,
    CollectiveOrder,
    ExtraOperators,
    GradientFactors,
    LeftOutTensors,
    OtherArguments,
    OtherOperators,
    PartPositions,
    RepeatedParts,
    Replicas,
    ShardUpdates,
    TensorUpdates,
    UnreducedTerms,
    WrongReductions,
    check_call,
    launches,
)
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import Finder, MeasuredRun, SuspectRule
from ascend_dump.dump_format import CollectiveCall, Placement
from ascend_dump.reading import Record

__all__ = [
    "BETWEEN_RANKS",
    "COLLECTIVE_ORDER",
    "DISAGREEMENT",
    "EXTRA_OPERATOR",
    "GRADIENT_FACTOR",
    "OTHER_ARGUMENT",
    "REPEATED_PART",
    "REPLICAS",
    "SHARD_UPDATE",
    "UNREDUCED_TERM",
    "WRONG_REDUCTION",
]

#: Parts of the names of collectives with equal results on every rank of their group.
_SAME = ("allreduce", "all_reduce", "allgather", "all_gather", "broadcast")
#: Prefix of FSDP2's operators that prepare such collectives. Their results are the part of one rank, so they differ.
_PREPARES = "fsdp::"


@functools.lru_cache(maxsize=4096)
def _gives_the_same(op_type: str) -> bool:
    kind = op_type.lower()
    return any(name in kind for name in _SAME) and not kind.startswith(_PREPARES)


class _DisagreementFinder(Finder):
    """A comparison of the results of collectives at the end, because ranks are read one after the other."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._book = CallBook()
        #: By call, and then by rank: the results in dumps that do not record groups.
        self._results: dict[Any, dict[int, Record]] = {}

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        first = run.first
        self._book.look_at(run.records)
        if first.rank is not None and _gives_the_same(first.op_type):
            for record in run.records:
                attrs = record.attrs
                if record.io == "output" and attrs.get("hash") and "collective" not in attrs:
                    key = (first.run, first.model, first.step, first.op_type, first.op_name, record.index, record.shape)
                    self._results.setdefault(key, {})[first.rank] = record
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        self._book.end()
        for parts in self._book.calls.values():
            if len(parts) > 1:
                sightings, _ = check_call(parts)
                yield from sightings
        launch = launches((rank, key[0]) for key, ranks in self._results.items() for rank in ranks)
        results: dict[Any, dict[int, Record]] = {}
        for key, ranks in self._results.items():
            for rank, record in ranks.items():
                results.setdefault((launch[rank, key[0]], *key[1:]), {})[rank] = record
        for ranks in results.values():
            contents = Counter(record.attrs["hash"] for record in ranks.values())
            agree = contents.most_common(1)[0][1] if contents else 0
            for rank, record in sorted(ranks.items()):
                # If all ranks have different results, each may be a group of its own. Two ranks are taken as one group.
                if contents[record.attrs["hash"]] == 1 and len(contents) > 1 and (agree > 1 or len(ranks) == 2):
                    other_ranks = ", ".join(str(other_rank) for other_rank in sorted(ranks) if other_rank != rank)
                    reason = f"{record.label} of rank {rank} differs from that of rank {other_ranks}"
                    undecided = "two ranks cannot tell which one is wrong: " if len(ranks) == 2 else ""
                    yield record, undecided + reason
                    break


class _CollectiveOrderFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._order = CollectiveOrder()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._order.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._order.findings()


class _ReplicasFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._replicas = Replicas()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._replicas.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._replicas.findings()


class _ExtraOperatorFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._operators = ExtraOperators(threshold)
        self._left_out = LeftOutTensors()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._operators.look_at(run)
        self._left_out.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._operators.findings()
        yield from self._left_out.findings()


class _UnreducedTermFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._terms = UnreducedTerms()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._terms.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._terms.findings()


class _WrongReductionFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._reductions = WrongReductions()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._reductions.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._reductions.findings()


class _RepeatedPartFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._parts = RepeatedParts(threshold)
        self._positions = PartPositions(threshold)

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._parts.look_at(run)
        self._positions.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._parts.findings()
        yield from self._positions.findings()


class _OtherArgumentFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._arguments = OtherArguments(threshold)
        self._operators = OtherOperators()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._arguments.look_at(run)
        self._operators.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._arguments.findings()
        yield from self._operators.findings()


class _GradientFactorFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._factors = GradientFactors(threshold)

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._factors.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._factors.findings()


class _ShardUpdateFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._shards = ShardUpdates(threshold)
        self._tensors = TensorUpdates(threshold)
        self._changed = ChangedParameters()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        self._shards.look_at(run)
        self._tensors.look_at(run)
        self._changed.look_at(run)
        return ()

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._shards.findings()
        yield from self._tensors.findings()
        yield from self._changed.findings()


def _on_ranks(alike: int) -> tuple[Row, ...]:
    """Return the result of a collective on four ranks. On the last `alike` ranks it has another content.

    Two ranks against two may be two groups.
    """
    return tuple(
        Row("c10d::allreduce_", "allreduce__0", "output", values(1), rank=rank, hash=f"{rank >= 4 - alike}")
        for rank in range(4)
    )


def _parameters(alike: int) -> tuple[Row, ...]:
    """Return a parameter on four ranks. On the last `alike` ranks it has another content."""
    return tuple(
        Row("aten::t", "fc/t_0", "input", values(1), rank=rank, hash=f"{rank >= 4 - alike}", requires_grad=True)
        for rank in range(4)
    )


DISAGREEMENT = SuspectRule(
    "disagreement",
    0,
    "no threshold: contents are the same or not; sums are compared with sums in float64, up to rounding",
    _DisagreementFinder,
    trips=_on_ranks(1),
    passes=_on_ranks(2),
)


def _reductions(completed: int) -> tuple[Row, ...]:
    """Return three reductions on two ranks; the second rank lacks the last one, and the first completes so many."""
    return tuple(
        Row("c10d::allreduce_", f"r_{number}", io, values(1), rank=rank, source="t.py:1",
            collective=CollectiveCall("all_reduce", "0", "0-1", number))
        for rank, count in ((0, 3), (1, 2))
        for number in range(count)
        for io in ("input", "output")
        if io == "input" or number < completed
    )  # fmt: skip


COLLECTIVE_ORDER = SuspectRule(
    "collective-order",
    60,
    "seconds for which a rank of a running program waits",
    _CollectiveOrderFinder,
    trips=_reductions(2),
    passes=_reductions(3),
)
REPLICAS = SuspectRule(
    "replicas",
    0,
    "no threshold: contents are the same or not",
    _ReplicasFinder,
    trips=_parameters(1),
    passes=_parameters(2),
)


def _clipped(count: int) -> tuple[Row, ...]:
    """Return gradients of three parameters on two ranks. Only the second rank scales the first `count` of them."""
    rows: list[Row] = []
    for rank in (0, 1):
        for storage, name in enumerate(("a", "b", "c")):
            gradient: dict[str, Any] = {"rank": rank, "storage": storage, "parameter": f"{name}.grad"}
            rows.append(
                Row("aten::mm", f"{name}/mm_0", "output", values(1), phase="backward", source="t.py:1", **gradient)
            )
            if rank == 1 and storage < count:
                rows += [
                    Row("aten::mul_", f"mul__{storage}", io, values(1), phase="other", source="t.py:2", **gradient)
                    for io in ("input", "output")
                ]
            rows.append(
                Row("c10d::allreduce_", f"r_{storage}", "input", values(1), phase="other", source="t.py:3", **gradient)
            )
    return tuple(rows)


EXTRA_OPERATOR = SuspectRule(
    "extra-operator",
    0.5,
    "an operator that runs before more than this share of the calls that read its result depends on the data",
    _ExtraOperatorFinder,
    trips=_clipped(1),
    passes=_clipped(3),
)


def _updated(*factors: float) -> tuple[Row, ...]:
    """Return the update of a tensor that is divided over ranks: each rank multiplies its part by its factor."""
    part = Placement(ranks="0-3", mesh=(4,), axes=("shard 0",), shape=(4000,))
    return tuple(
        Row(
            "aten::mul_",
            "mul__0",
            io,
            values(1),
            phase="other",
            rank=rank,
            source="t.py:1",
            call=f'{{"op":"aten.mul_.Tensor","args":{{"self":{{"input":0}},"other":{factor}}}}}'
            if io == "input"
            else "",
            placement=part,
        )
        for rank, factor in enumerate(factors)
        for io in ("input", "output")
    )


SHARD_UPDATE = SuspectRule(
    "shard-update",
    1e-6,
    "relative difference between ranks of the numbers with which they update their parts of one tensor",
    _ShardUpdateFinder,
    trips=_updated(0.999, 0.999, 0.999, 0.998),
    passes=_updated(0.999, 0.999, 0.999, 0.9990001),
)


def _reduced(*factors: float) -> tuple[Row, ...]:
    """Return gradients of parameters on two ranks, which are added up and then multiplied by one factor each."""
    rows = []
    for rank in (0, 1):
        for number, factor in enumerate(factors):
            gradient: dict[str, Any] = {"phase": "other", "rank": rank, "parameter": f"{number}.grad"}
            local, mean = values(rank + 1.0, same=True), values(3 * factor, same=True)
            rows.append(Row("c10d::allreduce_", f"r_{number}", "input", local, hash=f"{rank}", **gradient))
            rows.append(Row("aten::add_", f"a_{number}", "input", mean, index=1, hash=f"mean {factor}", **gradient))
    return tuple(rows)


GRADIENT_FACTOR = SuspectRule(
    "gradient-factor",
    3,
    "number of parameters with the usual factor, for each parameter with another factor",
    _GradientFactorFinder,
    trips=_reduced(0.5, 1.0, 0.5, 0.5),
    passes=_reduced(0.5, 1.0, 0.5),
)


def _residual(is_reduced: bool) -> tuple[Row, ...]:
    """Return a residual connection on two ranks with the same data. Its branch is a term of a sum over the ranks."""
    rows = []
    for rank in (0, 1):
        term, total = f"term {rank}", "sum"
        call = CollectiveCall("all_reduce", "0", "0-1", 0)
        reduced: dict[str, Any] = {"collective": call, "storage": 3, "rank": rank}
        read: dict[str, Any] = {"storage": 3, "hash": total} if is_reduced else {"storage": 2, "hash": term}
        rows += [
            Row("aten::mul", "mul_0", "input", values(1), storage=0, hash="data", rank=rank),
            Row("aten::mul", "mul_0", "input", values(1), index=1, storage=9, requires_grad=True, rank=rank),
            Row("aten::mul", "mul_0", "output", values(1), storage=1, hash="whole", rank=rank),
            Row("aten::mm", "mm_0", "input", values(1), storage=1, hash="whole", rank=rank),
            Row(
                "aten::mm",
                "mm_0",
                "input",
                values(1),
                index=1,
                storage=10,
                hash=f"part {rank}",
                requires_grad=True,
                rank=rank,
            ),
            Row("aten::mm", "mm_0", "output", values(1), storage=2, hash=term, rank=rank),
            Row("aten::clone", "clone_0", "input", values(1), storage=2, hash=term, rank=rank),
            Row("aten::clone", "clone_0", "output", values(1), storage=3, hash=term, rank=rank),
            Row("c10d::allreduce_", "r_0", "input", values(1), hash=term, **reduced),
            Row("c10d::allreduce_", "r_0", "output", values(1), hash=total, **reduced),
            Row("aten::add", "add_0", "input", values(1), storage=1, hash="whole", rank=rank),
            Row("aten::add", "add_0", "input", values(1), index=1, rank=rank, **read),
            Row("aten::add", "add_0", "output", values(1), storage=4, hash=f"out {rank}", rank=rank),
        ]
    return tuple(rows)


UNREDUCED_TERM = SuspectRule(
    "unreduced-term",
    0,
    "no threshold: contents are the same or not",
    _UnreducedTermFinder,
    trips=_residual(False),
    passes=_residual(True),
)


def _normed(eps: float) -> tuple[Row, ...]:
    """Return a norm on two ranks with different data. The second rank has another epsilon."""
    rows = []
    for rank, number in enumerate((1e-5, eps)):
        call = f'{{"op":"aten::native_layer_norm","args":{{"input":{{"input":0}},"eps":{number}}}}}'
        site: dict[str, Any] = {"module": "norm", "source": "model.py:7", "rank": rank, "call": call}
        for io in ("input", "output"):
            rows.append(Row("aten::native_layer_norm", "norm/norm_0", io, values(1), hash=f"{rank} {io}", **site))
    return tuple(rows)


OTHER_ARGUMENT = SuspectRule(
    "other-argument",
    1e-6,
    "relative difference between ranks of a number that sets how an operator works",
    _OtherArgumentFinder,
    trips=_normed(1e-2),
    passes=_normed(1.0000001e-5),
)


def _gradient_reduction(operation: str) -> tuple[Row, ...]:
    """Return the reduction of a gradient on two ranks."""
    call = CollectiveCall("all_reduce", "0", "0-1", 0, operation)
    return tuple(
        Row("c10d::allreduce_", "r_0", io, values(1), phase="other", rank=rank, storage=1, parameter="w.grad",
            hash=f"{io} {rank if io == 'input' else ''}", collective=call)
        for rank in (0, 1)
        for io in ("input", "output")
    )  # fmt: skip


WRONG_REDUCTION = SuspectRule(
    "wrong-reduction",
    0,
    "no threshold: names, ranks and contents are the same or not",
    _WrongReductionFinder,
    trips=_gradient_reduction("max"),
    passes=_gradient_reduction("sum"),
)


def _split(*contents: str) -> tuple[Row, ...]:
    """Return a parameter on several ranks, with these contents."""
    return tuple(
        Row("aten::t", "fc/t_0", "input", values(1), rank=rank, hash=content, requires_grad=True, parameter="fc.weight",
            source="t.py:1")
        for rank, content in enumerate(contents)
    )  # fmt: skip


REPEATED_PART = SuspectRule(
    "repeated-part",
    4,
    "minimum number of ranks: all but one have parts of their own",
    _RepeatedPartFinder,
    trips=_split("a", "b", "b", "c"),
    passes=_split("a", "b", "b", "a"),
)
#: The rules that compare a rank with others, apart from DISAGREEMENT, which compares the parts of one call.
BETWEEN_RANKS = (
    EXTRA_OPERATOR,
    OTHER_ARGUMENT,
    REPLICAS,
    SHARD_UPDATE,
    GRADIENT_FACTOR,
    UNREDUCED_TERM,
    WRONG_REDUCTION,
)
