"""Whether what the ranks have of a collective call is what they put in: no reference is needed for that.

What is moved has to be there bit by bit. What is reduced is reduced again in float64, and each element may be off by
what rounding to the type of the tensor makes of as many terms as there are ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind
from ascend_dump.analysis.numerics.measure import measure
from ascend_dump.analysis.ranks.collective_calls import CallPart
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RankFinding", "check_call", "content_of_record", "in_words", "minority"]

#: What a reduction may do where the framework does not say; PyTorch's own reductions are sums.
_OPERATIONS = ("sum", "avg", "max", "min", "product")

#: The share of elements of a message that may be damaged, where no other message of the two ranks arrived whole.
_MOST_DAMAGED = 0.5


class RankFinding(NamedTuple):
    """Something that is not the same on ranks where it has to be; the reason names ranks, group and numbers."""

    record: Record
    reason: str


def check_call(parts: Sequence[CallPart]) -> tuple[list[RankFinding], Optional[str]]:
    """What is wrong with a call, and why it could not be checked where it could not.

    Where not all tensors of all ranks are there, results that have to be the same on all ranks are held against each
    other, by their content or their statistics.
    """
    parts = sorted(parts, key=lambda one: one.rank)
    kind, members = parts[0].told.kind, parts[0].members
    why: Optional[str]
    try:
        found = _recomputed(kind, {part.rank: part for part in parts}, members)
    except AscendDumpError as error:
        why = error.message
    except (ValueError, TypeError, MemoryError) as error:  # tensors that do not fit each other
        why = str(error)
    else:
        return found, None
    if kind in ("all_reduce", "all_gather", "broadcast"):
        return _disagreeing(parts), f"{parts[0].named}: {why}"
    return [], f"{parts[0].named}: {why}"


def content_of_record(record: Record) -> Any:
    """What equal tensors have in common: their content, or else their statistics; None where nothing is known."""
    content = record.content
    if content is not None:
        return content
    try:
        found = record.recorded_statistics()
    except AscendDumpError:
        return None
    return None if found is None else (record.dtype, record.shape, *map(str, found))


def minority(contents: dict[int, Any]) -> tuple[int, ...]:
    """The ranks that have something else than most; of two alone the second, of which nobody knows more."""
    counted = Counter(contents.values())
    if len(counted) < 2:
        return ()
    [(most, count), *others] = counted.most_common()
    if 2 * count > len(contents) or (len(contents) == 2 and not others[1:]):
        return tuple(rank for rank, content in sorted(contents.items()) if content != most)
    return ()


def in_words(ranks: Sequence[int]) -> str:
    from ascend_dump.dump_format import ranks_text

    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(sorted(ranks))}"


def _disagreeing(parts: Sequence[CallPart]) -> list[RankFinding]:
    for at in range(max(len(part.got) for part in parts)):
        records = {part.rank: part.got[at] for part in parts if at < len(part.got)}
        contents = {rank: content_of_record(record) for rank, record in records.items()}
        known = {rank: content for rank, content in contents.items() if content is not None}
        wrong = minority(known)
        if wrong:
            others = in_words([rank for rank in known if rank not in wrong])
            return [
                RankFinding(
                    records[rank],
                    f"{records[rank].label} of rank {rank} differs from that of {others}: {parts[0].named}",
                )
                for rank in wrong
            ]
    return []


def _recomputed(kind: str, parts: dict[int, CallPart], members: tuple[int, ...]) -> list[RankFinding]:
    """Raises AscendDumpError for what is not there, or not known."""
    if kind in ("send", "recv"):
        return _message(parts)
    root = next(iter(parts.values())).told.root
    if kind == "barrier":
        return []
    givers = [root] if kind in ("broadcast", "scatter") and root is not None else list(members)
    missing = [rank for rank in givers if rank not in parts]
    if missing:
        raise NotSupported(f"the part of {in_words(missing)} is not in the dump")
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        return _reduced(kind, parts, members)
    inputs = {rank: [record.numpy() for record in parts[rank].given] for rank in givers}
    found = []
    for rank, part in parts.items():
        if not part.got or (kind == "gather" and rank != root):
            continue
        expected = _moved(kind, inputs, members, rank, root, len(part.got))
        for record, (array, giver) in zip(part.got, expected):
            found += _unequal(part, record, array, giver, members)
    return found


def _message(parts: dict[int, CallPart]) -> list[RankFinding]:
    sender = next((part for part in parts.values() if part.told.kind == "send"), None)
    receiver = next((part for part in parts.values() if part.told.kind == "recv"), None)
    if sender is None or receiver is None:
        raise NotSupported("the other side is not in the dump")
    found = []
    for given, got in zip(sender.given, receiver.got):
        if not receiver.sure and measure(got.numpy(), given.numpy()).share > _MOST_DAMAGED:
            raise NotSupported(
                "no received message equals the one sent: the steps of the two ranks may begin at different messages"
            )
        found += _unequal(receiver, got, given.numpy(), sender.rank)
    return found


def _unequal(
    part: CallPart, record: Record, expected: np.ndarray, giver: Optional[int], members: Sequence[int] = ()
) -> list[RankFinding]:
    """giver: None where each member gave a part, one after the other."""
    import numpy as np

    got = record.numpy()
    if got.size != expected.size:
        raise NotSupported(f"{record.label} has {got.size} elements of {expected.size}")
    if np.array_equal(_bits(got), _bits(expected)):
        return []
    found = measure(got, expected.reshape(got.shape))
    if giver is None:
        first = int((_bits(got) != _bits(expected)).argmax()) // got.itemsize
        giver = members[first * len(members) // got.size]
    numbers = _numbers(found, got, expected)
    reason = f"{record.label} of rank {part.rank} is not what rank {giver} gave: {numbers}; {part.named}"
    return [RankFinding(record, reason)]


def _numbers(found: Any, got: np.ndarray, expected: np.ndarray) -> str:
    at = found.at
    if at is None:
        return f"{found.unequal} of {found.count} elements have other bits"
    place = list(at)
    a, b = got[at], expected.reshape(got.shape)[at]
    return f"{found.unequal} of {found.count} elements differ, most at {place}: {a!s} instead of {b!s}"


def _bits(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _moved(
    kind: str, inputs: dict[int, list[np.ndarray]], members: tuple[int, ...], rank: int, root: Optional[int], count: int
) -> list[tuple[np.ndarray, Optional[int]]]:
    """What a rank has to get, tensor by tensor, and which rank gave it; None: each a part, one after the other."""
    import numpy as np

    own = members.index(rank)
    size = len(members)
    if kind == "broadcast":
        if root is None:
            raise NotSupported("the dump does not say which rank broadcasts")
        return [(array, root) for array in inputs[root]]
    if kind == "scatter":
        if root is None or len(inputs[root]) != size:
            raise NotSupported("the dump does not say what was scattered")
        return [(inputs[root][own], root)]
    if kind in ("all_gather", "gather"):
        one = {len(arrays) for arrays in inputs.values()}
        if one == {1} and count == size:
            return [(inputs[member][0], member) for member in members]
        if one == {count}:
            return [
                (np.concatenate([inputs[member][at].reshape(-1) for member in members]), None) for at in range(count)
            ]
    if kind == "all_to_all":
        if all(len(arrays) == size for arrays in inputs.values()) and count == size:
            return [(inputs[member][own], member) for member in members]
        sizes = {tuple(array.size for array in arrays) for arrays in inputs.values()}
        if count == len(next(iter(sizes))) == len(sizes) == 1 and next(iter(sizes))[0] % size == 0:
            chunks = [np.split(inputs[member][0].reshape(-1), size)[own] for member in members]
            return [(np.concatenate(chunks), None)]
    raise NotSupported(f"{kind} of these tensors is not recomputed")


def _reduced(kind: str, parts: dict[int, CallPart], members: tuple[int, ...]) -> list[RankFinding]:
    """Recompute a reduction in float64 and hold what each rank got against it."""
    told = next(iter(parts.values())).told
    inputs = {rank: _flat(parts[rank].given) for rank in members}
    if len({(array.size, array.dtype.name) for array in inputs.values()}) != 1:
        raise NotSupported("ranks gave tensors of different sizes or types")
    results = _results(kind, parts, members, inputs[members[0]].size)
    reductions = (told.reduce,) if told.reduce else _OPERATIONS
    if not set(reductions) <= set(_OPERATIONS):
        raise NotSupported(f"the reduction {told.reduce!r} is not recomputed")
    operation, wrong = reductions[0], dict.fromkeys(results, _Apart(0, 0, 0.0, 0))
    for one in reductions:
        reduced = _Reduced.of(list(inputs.values()), one)
        failed = {rank: reduced.apart(*result) for rank, result in results.items()}
        # Of those that are tried, the one that fits most ranks is what was asked for.
        failing = {rank: apart for rank, apart in failed.items() if apart is not None}
        if one == reductions[0] or len(failing) < len(wrong):
            operation, wrong = one, failing
        if not failing:
            return []
    if len(wrong) < len(results):
        right = in_words([one for one in results if one not in wrong])
        return [_wrong(parts[rank], operation, f"{apart}; that of {right} is right") for rank, apart in wrong.items()]
    # All have the same wrong result: one place stands for it.
    rank, how = _culprit(inputs, results, operation)
    name = operation if told.reduce or how else "sum, mean, largest, smallest or product"
    at = next(iter(wrong)) if rank is None or rank not in wrong else rank
    return [_wrong(parts[at], name, f"{wrong[at]}; so it is on all recorded ranks of the group{how}")]


def _wrong(part: CallPart, name: str, how: str) -> RankFinding:
    record = part.got[0]
    start = f"{record.label} of rank {part.rank} is not the {name} of what {in_words(part.members)} gave"
    return RankFinding(record, f"{start}: {how}; {part.named}")


def _results(
    kind: str, parts: dict[int, CallPart], members: tuple[int, ...], size: int
) -> dict[int, tuple[np.ndarray, slice]]:
    """What each rank got, and which part of the whole that is."""
    results: dict[int, tuple[np.ndarray, slice]] = {}
    for rank, part in parts.items():
        if part.got and not (kind == "reduce" and rank != part.told.root):
            got = _flat(part.got)
            start = members.index(rank) * got.size if kind == "reduce_scatter" else 0
            if got.size * (len(members) if kind == "reduce_scatter" else 1) != size:
                raise NotSupported(f"rank {rank} got {got.size} elements of {size}")
            results[rank] = got, slice(start, start + got.size)
    return results


class _Apart(NamedTuple):
    """How a result is wrong: how many elements are, and the one that is most."""

    wrong: int
    at: int
    expected: float
    got: Any

    def __str__(self) -> str:
        return (
            f"{self.wrong} elements are beyond rounding, most at {self.at}: {self.got!s} instead of {self.expected:.6g}"
        )


class _Reduced(NamedTuple):
    """A reduction in float64, and how far off rounding may make each element of it.

    Whatever the order, n - 1 additions in a type of unit u are off by (n - 1) u times the sum of the sizes at most, to
    first order; one more rounding stores it (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    """

    made: np.ndarray
    allowed: np.ndarray
    kind: Optional[FloatKind]

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], operation: str) -> _Reduced:
        kind = float_kind(arrays[0].dtype.name)
        if kind is None:
            return cls(_reduce(arrays, operation)[0].astype("float64"), _zeros(arrays[0].size), None)
        made, sizes = _reduce([array.astype("float64") for array in arrays], operation)
        roundings = 0 if operation in ("max", "min") else len(arrays) + 1
        allowed = roundings * (
            kind.unit * sizes + math.ldexp(1.0, kind.lowest - kind.mantissa) * _growth(arrays, operation)
        )
        return cls(made, allowed, kind)

    def apart(self, got: np.ndarray, chosen: slice) -> Optional[_Apart]:
        """How a result differs from this part beyond rounding, None where it does not."""
        import numpy as np

        made, allowed, values = self.made[chosen], self.allowed[chosen], got.astype(np.float64)
        with np.errstate(all="ignore"):
            excess = np.abs(values - made) - allowed
            finite = np.isfinite(values) & np.isfinite(made)
            bad = np.where(finite, excess > 0, np.isfinite(values) != np.isfinite(made))
            if self.kind is not None:  # a sum that the type cannot hold
                largest = math.ldexp(2 - 2 * self.kind.unit, 1 - self.kind.lowest)
                bad &= finite | (np.abs(made) + allowed < largest) | np.isfinite(values)
        if not bad.any():
            return None
        at = int(np.where(bad, np.where(np.isfinite(excess), excess, np.inf), -np.inf).argmax())
        return _Apart(int(bad.sum()), at, float(made[at]), got[at])


def _culprit(
    inputs: dict[int, np.ndarray], results: dict[int, tuple[np.ndarray, slice]], operation: str
) -> tuple[Optional[int], str]:
    """Whose part is missing from a sum, or in it twice, if that explains what all ranks got."""
    import numpy as np

    if operation not in ("sum", "avg"):
        return None, ""
    share = len(inputs) if operation == "avg" else 1
    reduced = _Reduced.of(list(inputs.values()), operation)
    for rank, given in inputs.items():
        for sign, words in ((-1, "missing"), (1, "in it twice")):
            with np.errstate(all="ignore"):
                other = reduced._replace(made=reduced.made + sign * given.astype(np.float64) / share)
            if all(other.apart(*result) is None for result in results.values()):
                return rank, f", as if the part of rank {rank} were {words}"
    return None, ""


def _growth(arrays: Sequence[np.ndarray], operation: str) -> np.ndarray:
    """By what factor an error of one step may grow in the following ones: in a product by the factors that are left."""
    import numpy as np

    if operation != "product":
        return np.ones(1)
    with np.errstate(all="ignore"):
        found: np.ndarray = np.multiply.reduce([np.maximum(np.abs(array.astype("float64")), 1.0) for array in arrays])
        return found


def _zeros(size: int) -> np.ndarray:
    import numpy as np

    return np.zeros(size)


def _reduce(arrays: Sequence[np.ndarray], operation: str) -> tuple[np.ndarray, np.ndarray]:
    """The result, and the size that it has where terms do not cancel."""
    import numpy as np

    with np.errstate(all="ignore"):
        sizes = sum((np.abs(array) for array in arrays), np.zeros(arrays[0].shape))
        if operation in ("sum", "avg"):
            total = sum(arrays, np.zeros(arrays[0].shape))
            return (total / len(arrays), sizes / len(arrays)) if operation == "avg" else (total, sizes)
        function: Any = {"max": np.maximum, "min": np.minimum, "product": np.multiply}[operation]
        made = function.reduce(arrays)
        return made, np.abs(made)


def _flat(records: Sequence[Record]) -> np.ndarray:
    import numpy as np

    if not records:
        raise NotSupported("nothing of it is recorded")
    arrays = [record.numpy().reshape(-1) for record in records]
    if any(array.dtype.kind not in "fiubV" for array in arrays) or len({array.dtype for array in arrays}) != 1:
        raise NotSupported(f"{arrays[0].dtype.name} is not recomputed")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
