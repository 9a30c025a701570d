"""Find a step that got the same inputs and parameters as an earlier step, but has other results.

The inputs of a step are the tensors that its operators read and that no operator of the step wrote before: the request,
the parameters, and whatever the program keeps between steps. Where all of them have equal bytes, a program without
random numbers has to give equal results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.reading import Dump, Record

if TYPE_CHECKING:
    from ascend_dump.analysis.compare import Comparison

__all__ = ["ChangedRepeat", "RepeatedStep", "RepeatedSteps", "first_changed_repeat"]

#: Maximum number of pairs of steps that are compared.
_MOST_COMPARED = 4
#: Kinds of origins that mean another request or random numbers.
_EXPECTED = ("random", "input", "parameter", "unknown", "uninitialised")


class RepeatedStep(NamedTuple):
    """A step of a rank whose inputs have the same bytes as the inputs of an earlier step. Other tensors differ."""

    step: int
    earlier: int
    rank: Optional[int]


class ChangedRepeat(NamedTuple):
    """A step that repeats an earlier one, with other results. comparison: with the earlier step as the reference."""

    repeat: RepeatedStep
    comparison: Comparison


class RepeatedSteps:
    """Gathers the steps of a dump, operator by operator in the order of the dump, and finds those that are repeated."""

    def __init__(self) -> None:
        self.found: list[RepeatedStep] = []
        self._step: Optional[_DigestedStep] = None
        #: By rank and digest of the inputs: the first step with them, and the digest of all its records.
        self._first: dict[tuple[Optional[int], bytes], tuple[int, bytes]] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """Add the records of one run of an operator."""
        first = members[0]
        if first.step is None:
            return
        key = (first.run, first.rank, first.step)
        if self._step is None or self._step.key != key:
            self.end()
            self._step = _DigestedStep(key, first.step, first.rank)
        self._step.add(members)

    def end(self) -> None:
        """End the last step; call it after the last operator, before `found` is used."""
        step, self._step = self._step, None
        digests = None if step is None else step.digests()
        if step is None or digests is None:
            return
        inputs, content = digests
        earlier, earlier_content = self._first.setdefault((step.rank, inputs), (step.number, content))
        if earlier_content != content:
            self.found.append(RepeatedStep(step.number, earlier, step.rank))


class _DigestedStep:
    """The hashes of the tensors of a step of one rank: of its inputs, and of all records."""

    def __init__(self, key: tuple[Any, ...], number: int, rank: Optional[int]) -> None:
        self.key, self.number, self.rank = key, number, rank
        self._inputs: list[str] = []
        self._content: list[str] = []
        self._written: set[str] = set()
        self._is_hashed = True

    def add(self, members: Sequence[Record]) -> None:
        if not self._is_hashed:
            return
        for record in members:
            digest = record.attrs.get("hash")
            if record.error is not None or (not digest and record.io == "input"):
                self._is_hashed = False
                self._inputs, self._content, self._written = [], [], set()
                return
            self._content.append(f"{record.op_name}\0{record.io}\0{record.index}\0{digest}\n")
            if record.io != "input":
                self._written.add(str(digest))
            elif digest not in self._written:
                self._inputs.append(f"{record.shape}\0{digest}\n")

    def digests(self) -> Optional[tuple[bytes, bytes]]:
        """Return the digests of the inputs and of all records.

        None if an input has no hash, a record cannot be read, or the step has no input.
        """
        import xxhash

        if not self._is_hashed or not self._inputs:
            return None
        texts = ("".join(parts).encode("utf-8", "replace") for parts in (self._inputs, self._content))
        inputs, content = map(xxhash.xxh3_128_digest, texts)
        return inputs, content


def first_changed_repeat(dump: Dump, repeats: Iterable[RepeatedStep]) -> Optional[ChangedRepeat]:
    """Return the first of these steps whose results differ from those of the earlier step by more than rounding.

    Reads the tensors of both steps.
    """
    from ascend_dump.analysis.compare import compare

    for repeat in list(repeats)[:_MOST_COMPARED]:
        comparison = compare(*(dump.select(step=number, rank=repeat.rank) for number in (repeat.step, repeat.earlier)))
        if comparison.origins and not any(origin.kind in _EXPECTED for origin in comparison.origins):
            return ChangedRepeat(repeat, comparison)
    return None
