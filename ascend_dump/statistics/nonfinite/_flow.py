"""Follow NaN and Inf through the memory of a step, from their producers to the operators that turn them finite."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Optional, TypeVar

__all__ = ["Flow", "FlowEnd", "FlowTensor"]

_Root = TypeVar("_Root", bound=Hashable)

#: Maximum number of results that are followed in a step. If a step has more, all its roots (see `FlowEnd`) count as
#: remaining.
_MOST = 1 << 14
#: Operators of a gradient scaler. They leave NaN in gradients, but the scaler then skips the optimizer step, so that no
#: operator reads these gradients.
_REFUSING = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_non_finite_check_and_unscale_")


class FlowTensor(NamedTuple):
    """An input or output of an operator.

    memory     (address of its storage, first byte, end) of its range in the storage; None if it is unknown
    storage    a number that identifies the storage. An address does not: a later storage may get the same address
    nonfinite  True if it has NaN or Inf
    floating   True if its type can have NaN
    """

    memory: Optional[tuple[int, int, int]]
    storage: Optional[int]
    nonfinite: bool
    floating: bool


@dataclass(frozen=True)
class FlowEnd(Generic[_Root]):
    """The roots of a step, in the order of running. Roots are the operators that produced NaN or Inf.

    remaining  the roots with NaN or Inf that still exists at the end of the step
    ended      all other roots: operators with finite results consumed their NaN or Inf
    """

    remaining: tuple[_Root, ...]
    ended: tuple[_Root, ...]


@dataclass(eq=False)
class _Result(Generic[_Root]):
    """A tensor with NaN or Inf.

    is_read  True if an operator with floating-point outputs has read the tensor
    is_seen  True if an operator without outputs has read the tensor: it passes the values to the program
    """

    tensor: FlowTensor
    roots: frozenset[_Root]
    is_read: bool = False
    is_seen: bool = False


class Flow(Generic[_Root]):
    """Follows NaN and Inf through a step. `look_at` has to be called for all operators, in the order of running.

    NaN and Inf end if all operators that read them have finite results, such as `nan_to_num` and `where`. NaN and Inf
    that no operator has read remain at the end of the step: they may be in a parameter, or in a number that the
    program prints.
    """

    def __init__(self) -> None:
        self._results: dict[Optional[int], list[_Result[_Root]]] = {}
        self._count = 0
        self._roots: dict[_Root, None] = {}

    @property
    def is_active(self) -> bool:
        """True if an operator of this step has produced NaN or Inf."""
        return bool(self._roots)

    def look_at(
        self, op_type: str, inputs: Sequence[FlowTensor], outputs: Sequence[FlowTensor], root: Optional[_Root]
    ) -> frozenset[_Root]:
        """Add an operator, and return the roots of the NaN and Inf in its results.

        root  identifies the operator; it becomes a root if its outputs have NaN or Inf and its inputs have none. None
              for an operator that creates a mask: it never becomes a root
        """
        read = [result for tensor in inputs if tensor.nonfinite for result in self._overlapping(tensor)]
        nonfinite = [tensor for tensor in outputs if tensor.nonfinite]
        roots: frozenset[_Root] = frozenset().union(*(result.roots for result in read))
        if nonfinite and not roots and root is not None:
            roots = frozenset((root,))
            self._roots.setdefault(root)
        if nonfinite or any(tensor.floating for tensor in outputs):
            for result in read:
                result.is_read = True
        elif not outputs:
            for result in read:
                result.is_seen = True
        if self._count:
            self._forget_overwritten([tensor for tensor in outputs if not tensor.nonfinite])
        if nonfinite and roots:
            is_refused = op_type.rpartition("::")[2].partition(".")[0] in _REFUSING
            for tensor in nonfinite:
                address = None if tensor.memory is None else tensor.memory[0]
                self._results.setdefault(address, []).append(_Result(tensor, roots, is_read=is_refused))
            self._count += len(nonfinite)
        return roots

    def end(self) -> FlowEnd[_Root]:
        """Return the roots of the step, and begin the next step."""
        remaining = {
            root
            for results in self._results.values()
            for result in results
            if result.is_seen or not result.is_read
            for root in result.roots
        }
        if self._count > _MOST:
            remaining.update(self._roots)
        end = FlowEnd(
            tuple(root for root in self._roots if root in remaining),
            tuple(root for root in self._roots if root not in remaining),
        )
        self._results, self._count, self._roots = {}, 0, {}
        return end

    def _overlapping(self, tensor: FlowTensor) -> list[_Result[_Root]]:
        if tensor.memory is None or self._count > _MOST:
            return []
        return [result for result in self._results.get(tensor.memory[0], ()) if _shared(result, tensor)[0]]

    def _forget_overwritten(self, tensors: Sequence[FlowTensor]) -> None:
        """Drop the results whose memory one of these tensors overwrites completely, unless `is_seen`."""
        for tensor in tensors:
            results = self._results.get(tensor.memory[0]) if tensor.memory is not None else None
            if results:
                results[:] = [result for result in results if result.is_seen or not _is_covered(result, tensor)]


def _shared(result: _Result[Any], tensor: FlowTensor) -> tuple[int, int]:
    """Return (number of bytes that a result shares with a tensor, size of the result); (0, 1) if they share none."""
    mine, memory = result.tensor.memory, tensor.memory
    if mine is None or memory is None or result.tensor.storage != tensor.storage:
        return 0, 1
    return max(min(mine[2], memory[2]) - max(mine[1], memory[1]), 0), mine[2] - mine[1]


def _is_covered(result: _Result[Any], tensor: FlowTensor) -> bool:
    shared, nbytes = _shared(result, tensor)
    return shared == nbytes
