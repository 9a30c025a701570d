"""Verify the results of collectives: the outputs of a call have to follow from the inputs of its ranks.

Tensors that are only moved have to arrive bit by bit. Reductions are computed again in float64; each element may have
the rounding error of a sum with one term per rank. No reference is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind
from ascend_dump.analysis.numerics.measure import measure
from ascend_dump.analysis.ranks.collective_calls import CallPart
from ascend_dump.analysis.ranks.uneven_exchanges import other_room, received_rows, sent_rows
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RankFinding", "check_call", "content_of_record", "in_words", "minority", "moment_of"]

#: Candidates for a reduction that the framework does not name; PyTorch's own reductions are sums.
_OPERATIONS = ("sum", "avg", "max", "min", "product")

#: If no message between two ranks arrived unchanged, two messages in which more than this share of elements differ are
#: not taken as the two sides of one message.
_MOST_DAMAGED = 0.5


class RankFinding(NamedTuple):
    """A wrong tensor of a rank. The reason names ranks, group and numbers."""

    record: Record
    reason: str


def check_call(parts: Sequence[CallPart]) -> tuple[list[RankFinding], Optional[str]]:
    """Return the wrong results of a call, and the reason if it could not be verified.

    If tensors of a rank are missing, the call cannot be computed again. Then only results that have to be equal on all
    ranks are compared with each other, by their contents or statistics.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    kind, members = parts[0].call.kind, parts[0].members
    error_text: Optional[str]
    try:
        findings = _recomputed(kind, {part.rank: part for part in parts}, members)
    except AscendDumpError as error:
        error_text = error.message
    except (ValueError, TypeError, MemoryError) as error:  # tensors of sizes that do not match
        error_text = str(error)
    else:
        return findings, None
    if kind in ("all_reduce", "all_gather", "broadcast"):
        return _disagreeing(parts), f"{parts[0].named}: {error_text}"
    return [], f"{parts[0].named}: {error_text}"


def content_of_record(record: Record) -> Any:
    """Return a value that is equal for equal tensors: the content, else the statistics; None if none is recorded."""
    content = record.content
    if content is not None:
        return content
    try:
        statistics = record.recorded_statistics()
    except AscendDumpError:
        return None
    return None if statistics is None else (record.dtype, record.shape, *map(str, statistics))


def minority(contents: dict[int, Any]) -> tuple[int, ...]:
    """Return the ranks that differ from more than half of all ranks; () if no content has such a majority.

    Of two ranks that differ, the second is returned, although either may be wrong.
    """
    counted = Counter(contents.values())
    if len(counted) < 2:
        return ()
    [(most, count), *smaller] = counted.most_common()
    if 2 * count > len(contents) or (len(contents) == 2 and not smaller[1:]):
        return tuple(rank for rank, content in sorted(contents.items()) if content != most)
    return ()


def moment_of(record: Record) -> tuple[int, int]:
    """Return a key that sorts records in the order in which their operators ran on a rank."""
    return -1 if record.step is None else record.step, int(record.attrs.get("seq") or 0)


def in_words(ranks: Sequence[int]) -> str:
    from ascend_dump.dump_format import ranks_text

    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(sorted(ranks))}"


def _disagreeing(parts: Sequence[CallPart]) -> list[RankFinding]:
    for index in range(max(len(part.outputs) for part in parts)):
        records = {part.rank: part.outputs[index] for part in parts if index < len(part.outputs)}
        contents = {rank: content_of_record(record) for rank, record in records.items()}
        available = {rank: content for rank, content in contents.items() if content is not None}
        wrong = minority(available)
        if wrong and len(available) > 2:
            majority = in_words([rank for rank in available if rank not in wrong])
            return [
                RankFinding(
                    records[rank],
                    f"{records[rank].label} of rank {rank} differs from that of {majority}: {parts[0].named}",
                )
                for rank in wrong
            ]
        if len({*available.values()}) > 1:
            record = records[[*available][-1]]
            return [RankFinding(record, f"{_undecided(record, available)}: {parts[0].named}")]
    return []


def _undecided(record: Record, contents: dict[int, Any]) -> str:
    """Return the sentence about ranks that differ without a majority."""
    if len(contents) == 2:
        return f"two ranks cannot tell which one is wrong: {record.label} differs between {in_words([*contents])}"
    ranks_of_content: dict[Any, list[int]] = {}
    for rank, content in sorted(contents.items()):
        ranks_of_content.setdefault(content, []).append(rank)
    against = " against ".join(in_words(ranks) for ranks in ranks_of_content.values())
    return f"{record.label} has {len(ranks_of_content)} values, {against}"


def _recomputed(kind: str, parts: dict[int, CallPart], members: tuple[int, ...]) -> list[RankFinding]:
    """Return the wrong results. Raises AscendDumpError if the call cannot be computed again."""
    if kind in ("send", "recv"):
        return _message(parts)
    root = next(iter(parts.values())).call.root
    if kind == "barrier":
        return []
    senders = [root] if kind in ("broadcast", "scatter") and root is not None else list(members)
    missing = [rank for rank in senders if rank not in parts]
    if missing:
        raise NotSupported(f"the part of {in_words(missing)} is not in the dump")
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        return _reduced(kind, parts, members)
    inputs = {rank: [record.numpy() for record in parts[rank].inputs] for rank in senders}
    findings = []
    for rank, part in parts.items():
        if not part.outputs or (kind == "gather" and rank != root):
            continue
        splits = {member: sent_rows(parts[member]) for member in senders} if kind == "all_to_all" else {}
        if any(splits.values()) and len(part.outputs) == 1:
            reason = other_room(part, splits)
            if reason is not None:
                findings.append(RankFinding(part.outputs[0], reason))
                continue
            expected = [_Expected.of(received_rows(inputs, splits, members, rank))]
        else:
            expected = _moved(kind, inputs, members, rank, root, len(part.outputs))
        for record, right in zip(part.outputs, expected):
            findings += _unequal(part, record, right)
    return findings


def _message(parts: dict[int, CallPart]) -> list[RankFinding]:
    sender = next((part for part in parts.values() if part.call.kind == "send"), None)
    receiver = next((part for part in parts.values() if part.call.kind == "recv"), None)
    if sender is None or receiver is None:
        raise NotSupported("its sender or its receiver is not in the dump")
    findings = []
    for sent, received in zip(sender.inputs, receiver.outputs):
        if not receiver.is_certain and measure(received.numpy(), sent.numpy()).share > _MOST_DAMAGED:
            raise NotSupported(
                "no received message equals a sent one: the steps of the two ranks may begin at different messages"
            )
        findings += _unequal(receiver, received, _Expected.of({sender.rank: sent.numpy()}))
    return findings


class _Expected(NamedTuple):
    """The correct elements of an output. senders: in their order, (rank, number of elements that it sends)."""

    values: np.ndarray
    senders: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, parts: Mapping[int, np.ndarray]) -> _Expected:
        """Join the parts one after the other; a single part keeps its shape."""
        import numpy as np

        arrays = [*parts.values()]
        joined = arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1) for array in arrays])
        return cls(joined, tuple((rank, array.size) for rank, array in parts.items()))

    def sender_of(self, element: int) -> int:
        for rank, size in self.senders:
            if element < size:
                return rank
            element -= size
        raise NotSupported(f"no rank sends element {element}")


def _unequal(part: CallPart, record: Record, expected: _Expected) -> list[RankFinding]:
    """Return a finding if an output differs in any bit; else an empty list."""
    import numpy as np

    output, values = record.numpy(), expected.values
    if output.size != values.size:
        raise NotSupported(f"{record.label} has {output.size} elements of {values.size}")
    if np.array_equal(_bits(output), _bits(values)):
        return []
    numbers = measure(output, values.reshape(output.shape))
    sender = expected.sender_of(int((_bits(output) != _bits(values)).argmax()) // output.itemsize)
    text = _numbers(numbers, output, values)
    reason = f"{record.label} of rank {part.rank} differs from the input of rank {sender}: {text}; {part.named}"
    return [RankFinding(record, reason)]


def _numbers(numbers: Any, output: np.ndarray, expected: np.ndarray) -> str:
    index = numbers.at
    if index is None:
        return f"{numbers.unequal} of {numbers.count} elements have other bits"
    position = list(index)
    a, b = output[index], expected.reshape(output.shape)[index]
    return f"{numbers.unequal} of {numbers.count} elements differ, most at {position}: {a!s} instead of {b!s}"


def _bits(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _moved(
    kind: str, inputs: dict[int, list[np.ndarray]], members: tuple[int, ...], rank: int, root: Optional[int], count: int
) -> list[_Expected]:
    """Return the correct outputs of a rank."""
    import numpy as np

    position = members.index(rank)
    size = len(members)
    if kind == "broadcast":
        if root is None:
            raise NotSupported("the dump does not record the rank that broadcasts")
        return [_Expected.of({root: array}) for array in inputs[root]]
    if kind == "scatter":
        if root is None or len(inputs[root]) != size:
            raise NotSupported("the dump does not record the tensors that were scattered")
        return [_Expected.of({root: inputs[root][position]})]
    if kind in ("all_gather", "gather"):
        counts = {len(arrays) for arrays in inputs.values()}
        if counts == {1} and count == size:
            return [_Expected.of({member: inputs[member][0]}) for member in members]
        if counts == {count}:
            return [_Expected.of({member: inputs[member][i] for member in members}) for i in range(count)]
    if kind == "all_to_all":
        if all(len(arrays) == size for arrays in inputs.values()) and count == size:
            return [_Expected.of({member: inputs[member][position]}) for member in members]
        sizes = {tuple(array.size for array in arrays) for arrays in inputs.values()}
        if count == len(next(iter(sizes))) == len(sizes) == 1 and next(iter(sizes))[0] % size == 0:
            chunks = {member: np.split(inputs[member][0].reshape(-1), size)[position] for member in members}
            return [_Expected.of(chunks)]
    raise NotSupported(f"{kind} of these tensors is not recomputed")


def _reduced(kind: str, parts: dict[int, CallPart], members: tuple[int, ...]) -> list[RankFinding]:
    """Compute a reduction again in float64, and compare the output of each rank with the result."""
    call = next(iter(parts.values())).call
    inputs = {rank: _flat(parts[rank].inputs) for rank in members}
    if len({(array.size, array.dtype.name) for array in inputs.values()}) != 1:
        raise NotSupported("the inputs of the ranks have different sizes or types")
    results = _results(kind, parts, members, inputs[members[0]].size)
    reductions = (call.reduce,) if call.reduce else _OPERATIONS
    if not set(reductions) <= set(_OPERATIONS):
        raise NotSupported(f"the reduction {call.reduce!r} is not recomputed")
    operation, wrong = reductions[0], dict.fromkeys(results, _Apart(0, 0, 0.0, 0))
    for candidate in reductions:
        reduced = _Reduced.of(list(inputs.values()), candidate)
        failed = {rank: reduced.apart(*result) for rank, result in results.items()}
        # The candidate that fits the results of most ranks is taken as the reduction of the program.
        failing = {rank: apart for rank, apart in failed.items() if apart is not None}
        if candidate == reductions[0] or len(failing) < len(wrong):
            operation, wrong = candidate, failing
        if not failing:
            return []
    if len(wrong) < len(results):
        right = in_words([candidate for candidate in results if candidate not in wrong])
        return [_wrong(parts[rank], operation, f"{apart}; that of {right} is right") for rank, apart in wrong.items()]
    # The results of all ranks are wrong: report that once.
    rank, reason = _culprit(inputs, results, operation)
    name = operation if call.reduce or reason else "sum, mean, largest, smallest or product"
    shown = next(iter(wrong)) if rank is None or rank not in wrong else rank
    return [_wrong(parts[shown], name, f"{wrong[shown]}; all recorded ranks of the group have it{reason}")]


def _wrong(part: CallPart, name: str, reason: str) -> RankFinding:
    record = part.outputs[0]
    start = f"{record.label} of rank {part.rank} is not the {name} of the inputs of {in_words(part.members)}"
    return RankFinding(record, f"{start}: {reason}; {part.named}")


def _results(
    kind: str, parts: dict[int, CallPart], members: tuple[int, ...], size: int
) -> dict[int, tuple[np.ndarray, slice]]:
    """Return the output of each rank, and the slice of the whole result that it corresponds to."""
    results: dict[int, tuple[np.ndarray, slice]] = {}
    for rank, part in parts.items():
        if part.outputs and not (kind == "reduce" and rank != part.call.root):
            output = _flat(part.outputs)
            start = members.index(rank) * output.size if kind == "reduce_scatter" else 0
            if output.size * (len(members) if kind == "reduce_scatter" else 1) != size:
                raise NotSupported(f"the output of rank {rank} has {output.size} elements of {size}")
            results[rank] = output, slice(start, start + output.size)
    return results


class _Apart(NamedTuple):
    """The error of a result: the number of wrong elements, and the worst one."""

    wrong: int
    position: int
    expected: float
    output: Any

    def __str__(self) -> str:
        worst = f"most at {self.position}: {self.output!s} instead of {self.expected:.6g}"
        return f"{self.wrong} elements are beyond rounding, {worst}"


class _Reduced(NamedTuple):
    """A reduction in float64, and the largest rounding error of each element.

    In any order, n - 1 additions in a type of unit u have an error of at most (n - 1) u times the sum of the sizes, to
    first order; storing the sum rounds once more (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    """

    result: np.ndarray
    allowed: np.ndarray
    kind: Optional[FloatKind]

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], operation: str) -> _Reduced:
        kind = float_kind(arrays[0].dtype.name)
        if kind is None:
            return cls(_reduce(arrays, operation)[0].astype("float64"), _zeros(arrays[0].size), None)
        result, sizes = _reduce([array.astype("float64") for array in arrays], operation)
        roundings = 0 if operation in ("max", "min") else len(arrays) + 1
        allowed = roundings * (
            kind.unit * sizes + math.ldexp(1.0, kind.lowest - kind.mantissa) * _growth(arrays, operation)
        )
        return cls(result, allowed, kind)

    def apart(self, output: np.ndarray, chosen: slice) -> Optional[_Apart]:
        """Return the error of a result against a part of the reduction; None if it is within rounding."""
        import numpy as np

        result, allowed, values = self.result[chosen], self.allowed[chosen], output.astype(np.float64)
        with np.errstate(all="ignore"):
            excess = np.abs(values - result) - allowed
            finite = np.isfinite(values) & np.isfinite(result)
            bad = np.where(finite, excess > 0, np.isfinite(values) != np.isfinite(result))
            if self.kind is not None:  # an infinite result is right if the sum may be too large for the type
                largest = math.ldexp(2 - 2 * self.kind.unit, 1 - self.kind.lowest)
                bad &= finite | (np.abs(result) + allowed < largest) | np.isfinite(values)
        if not bad.any():
            return None
        index = int(np.where(bad, np.where(np.isfinite(excess), excess, np.inf), -np.inf).argmax())
        return _Apart(int(bad.sum()), index, float(result[index]), output[index])


def _culprit(
    inputs: dict[int, np.ndarray], results: dict[int, tuple[np.ndarray, slice]], operation: str
) -> tuple[Optional[int], str]:
    """Return the rank whose input a sum lacks or has twice, and the sentence about it.

    (None, "") if that does not explain the outputs of all ranks.
    """
    import numpy as np

    if operation not in ("sum", "avg"):
        return None, ""
    share = len(inputs) if operation == "avg" else 1
    reduced = _Reduced.of(list(inputs.values()), operation)
    for rank, array in inputs.items():
        for sign, error in ((-1, "missing"), (1, "in it twice")):
            with np.errstate(all="ignore"):
                candidate = reduced._replace(result=reduced.result + sign * array.astype(np.float64) / share)
            if all(candidate.apart(*result) is None for result in results.values()):
                return rank, f", as if the part of rank {rank} were {error}"
    return None, ""


def _growth(arrays: Sequence[np.ndarray], operation: str) -> np.ndarray:
    """Return the factor by which the error of one step may grow in later steps: only a product multiplies it."""
    import numpy as np

    if operation != "product":
        return np.ones(1)
    with np.errstate(all="ignore"):
        factors: np.ndarray = np.multiply.reduce([np.maximum(np.abs(array.astype("float64")), 1.0) for array in arrays])
        return factors


def _zeros(size: int) -> np.ndarray:
    import numpy as np

    return np.zeros(size)


def _reduce(arrays: Sequence[np.ndarray], operation: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the result, and the size that it would have if no terms cancelled."""
    import numpy as np

    with np.errstate(all="ignore"):
        sizes = sum((np.abs(array) for array in arrays), np.zeros(arrays[0].shape))
        if operation in ("sum", "avg"):
            total = sum(arrays, np.zeros(arrays[0].shape))
            return (total / len(arrays), sizes / len(arrays)) if operation == "avg" else (total, sizes)
        function: Any = {"max": np.maximum, "min": np.minimum, "product": np.multiply}[operation]
        result = function.reduce(arrays)
        return result, np.abs(result)


def _flat(records: Sequence[Record]) -> np.ndarray:
    import numpy as np

    if not records:
        raise NotSupported("none of its tensors is recorded")
    arrays = [record.numpy().reshape(-1) for record in records]
    if any(array.dtype.kind not in "fiubV" for array in arrays) or len({array.dtype for array in arrays}) != 1:
        raise NotSupported(f"{arrays[0].dtype.name} is not recomputed")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
