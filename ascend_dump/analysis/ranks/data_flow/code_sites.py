"""The data flow between the lines of the program on one rank, with names that are the same on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.memory_writes import MemoryWrites
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun, RunTensor
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.ranks.collective_results import moment_of
from ascend_dump.reading import Record

__all__ = ["UNKNOWN", "CodeSite", "RankProgram", "SiteInputs", "Sites", "is_same_site", "named"]

#: The producer of an input that no recorded operator wrote.
UNKNOWN = ("unknown",)
#: Maximum number of results of a site that are kept.
_MOST_RESULTS = 256
#: Maximum number of steps whose writes are kept: a call that returns nothing on its rank, such as a gather, may be in
#: the dump only after later steps.
_MOST_STEPS = 4


class SiteTensor(NamedTuple):
    """A tensor of an operator. parameter: its name, as far as it is known in this step"""

    io: str
    position: Optional[int]
    parameter: Optional[str]
    shape: Optional[tuple[int, ...]]

    def is_same(self, other: SiteTensor) -> bool:
        """Return True if both are one tensor of an operator, apart from a name that is unknown."""
        is_named = self.parameter is not None and other.parameter is not None
        return self == (other if is_named else other._replace(parameter=self.parameter))


class CodeSite:
    """An operator at a line of the program, identified alike on all ranks. tensors: its parameters and shapes.

    `Sites` has one object for each, so sites are equal only if they are the same object.
    """

    __slots__ = ("module", "op_type", "phase", "source", "tensors")

    def __init__(self, first: Record, tensors: tuple[SiteTensor, ...]) -> None:
        self.op_type = first.op_type
        self.source = first.source or ""
        self.module = first.module or ""
        self.phase = first.phase or ""
        self.tensors = tensors

    @property
    def call(self) -> Hashable:
        """A key that is the same for all tensors."""
        return self.op_type, self.source, self.module, self.phase


class Sites:
    """The sites of all ranks."""

    def __init__(self) -> None:
        self._sites: dict[Hashable, CodeSite] = {}

    def of(self, run: OperatorRun) -> CodeSite:
        """Return the site of an operator."""
        first = run.first
        tensors = [(record.io, record.index, name, record.shape) for record, _, name in run.tensors]
        key = (first.op_type, first.source or "", first.module or "", first.phase or "", *tensors)
        site = self._sites.get(key)
        if site is None:
            named = (SiteTensor(io, index, name or None, shape) for io, index, name, shape in tensors)
            site = self._sites[key] = CodeSite(first, tuple(named))
        return site


class _StepWrites(MemoryWrites):
    """The last writes of a step, and its parameters by name."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[str, Record] = {}

    def producer_of(self, tensor: RunTensor, number: int) -> Hashable:
        """Return the last site that wrote a tensor before an operator, or the parameter that it is.

        number: that of the operator in its step
        """
        site = self.writer_of(tensor.record, tensor.storage, number)
        if site is not None:
            return site
        return ("parameter", tensor.name) if tensor.name else UNKNOWN


class SiteInputs:
    """A site on one rank: its first record, and for each input the sites that wrote the tensor.

    results: steps and contents that it wrote outside of the passes, of its first calls
    steps: the steps in which it runs
    """

    __slots__ = ("producers", "record", "results", "steps")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.producers: dict[int, set[Hashable]] = {}
        self.results: set[Hashable] = set()
        self.steps: set[Optional[int]] = set()


class RankProgram:
    """The data flow between the sites of one rank."""

    def __init__(self, sites: Sites) -> None:
        self.nodes: dict[Hashable, SiteInputs] = {}
        self.lines: set[str] = set()
        self.has_messages = False
        self._sites = sites
        self._steps: dict[Optional[int], _StepWrites] = {}

    def look_at(self, run: OperatorRun) -> None:
        first = run.first
        step = self._steps.get(first.step)
        if step is None:
            if len(self._steps) == _MOST_STEPS:
                self._end_step(next(iter(self._steps)))
            step = self._steps[first.step] = _StepWrites()
        if run.is_collective and first.op_type.startswith(("c10d::send", "c10d::recv")):
            self.has_messages = True
        if first.source:
            self.lines.add(first.source)
        if run.is_named:
            for record, _, name in run.tensors:
                if name and " of " not in name and not name.endswith(".grad"):
                    step.parameters.setdefault(name, record)
        if _is_view(first.op_type):
            _add_copy(run, step)
            return
        site = self._sites.of(run)
        node = self.nodes.get(site)
        if node is None:
            node = self.nodes[site] = SiteInputs(first)
        node.steps.add(first.step)
        for tensor in run.read_inputs:
            position = tensor.record.index or 0
            producers = node.producers.get(position)
            if producers is None:
                producers = node.producers[position] = set()
            producers.add(step.producer_of(tensor, run.number))
        for record, storage, _ in run.outputs:
            if storage >= 0:
                step.add_write(record, storage, site, run.number)
            if first.phase == "other" and len(node.results) < _MOST_RESULTS:
                content = record.content
                if content is not None:
                    node.results.add((record.step, content))

    def end_steps(self) -> None:
        """End all steps."""
        for step in [*self._steps]:
            self._end_step(step)

    def _end_step(self, number: Optional[int]) -> None:
        """End a step: note the last writers of the parameters for the next step."""
        step = self._steps.pop(number)
        for record in step.parameters.values():
            writer = step.writer_of(record, record.attrs.get("storage", -1))
            if writer is not None:
                node = self.nodes.setdefault(("parameter", record.parameter), SiteInputs(record))
                node.producers.setdefault(0, set()).add(writer)

    def first_of(self, line: str) -> Record:
        """Return the first record at a line of the program."""
        records = (
            node.record for site, node in self.nodes.items() if isinstance(site, CodeSite) and site.source == line
        )
        return min(records, key=moment_of)

    def source_of(self, site: Hashable, lines: set[str]) -> Optional[Hashable]:
        """Return the only site outside of these lines whose results reach the inputs of a site.

        None if there are several sites, or if the origin of an input is unknown.
        """
        sources = self.sources_of(site, lines)
        first = next(iter(sources), None)
        return None if UNKNOWN in sources or not all(is_same_site(first, source) for source in sources) else first

    def sources_of(self, site: Hashable, lines: set[str]) -> set[Hashable]:
        """Return the sites outside of these lines whose results reach the inputs of a site.

        Sites at these lines are followed back to their own inputs.
        """
        sources: set[Hashable] = set()
        seen, remaining = {site}, [site]
        while remaining:
            for producers in self.nodes[remaining.pop()].producers.values():
                for producer in producers - seen:
                    if isinstance(producer, CodeSite) and producer.source in lines:
                        seen.add(producer)
                        remaining.append(producer)
                    else:
                        sources.add(producer)
        return sources

    def reads(self, site: Hashable) -> bool:
        """Return True if an operator reads a result of a site."""
        return any(site in producers for node in self.nodes.values() for producers in node.producers.values())


def is_same_site(site: Hashable, other: Hashable) -> bool:
    """Return True if sites are equal, apart from the names of parameters that are known in some steps only."""
    if not (isinstance(site, CodeSite) and isinstance(other, CodeSite)) or site.call != other.call:
        return site == other
    pairs = zip(site.tensors, other.tensors)
    return len(site.tensors) == len(other.tensors) and all(tensor.is_same(other) for tensor, other in pairs)


def named(site: Optional[Hashable]) -> str:
    if isinstance(site, CodeSite):
        return site.op_type
    return f"the value of {site[1]}" if isinstance(site, tuple) else "the next step"


@functools.lru_cache(maxsize=1024)
def _is_view(op_type: str) -> bool:
    return is_view(operator_class(op_type))


def _add_copy(run: OperatorRun, step: _StepWrites) -> None:
    """Note a view, or a copy such as `clone`: its producer is that of its input."""
    if run.inputs:
        source = run.inputs[0]
        for record, storage, _ in run.outputs:
            if storage >= 0 and storage != source.storage:
                step.add_write(record, storage, step.producer_of(source, run.number), run.number)
