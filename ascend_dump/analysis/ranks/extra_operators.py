"""Find operators that only some ranks run, between two operators that all ranks run.

Ranks may have lines of their own for good reasons: one writes a log, has the last layer, or gets a batch with padding.
So an operator at such a line is reported only if the other ranks pass the tensor on without it, and if it reads nothing
but that tensor and constants.

Besides, an operator is reported that reads another tensor on one rank than on all others, such as a parameter before
its update, although this rank computes what the others read. Stages of pipelines may do so.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.memory_writes import MemoryWrites
from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun, RunTensor
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.reading import Record

__all__ = ["ExtraOperators"]

#: The producer of an input that no recorded operator wrote.
_UNKNOWN = ("unknown",)
#: Maximum number of results of a site that are kept.
_MOST_RESULTS = 256
#: Maximum number of steps whose writes are kept: a call that returns nothing on its rank, such as a gather, may be in
#: the dump only after later steps.
_MOST_STEPS = 4
#: An operator with another input on one rank is reported only if at least this many other ranks agree.
_FEWEST_ALIKE = 2


class LineOfRanks(NamedTuple):
    """A line of the program that only some ranks run. operator: its first operator

    finding: at this operator, or if few ranks lack the line, at the operator of such a rank that reads its result
    """

    finding: RankFinding
    operator: Record


class _SiteTensor(NamedTuple):
    """A tensor of an operator. parameter: its name, as far as it is known in this step"""

    io: str
    position: Optional[int]
    parameter: Optional[str]
    shape: Optional[tuple[int, ...]]

    def is_same(self, other: _SiteTensor) -> bool:
        """Return True if both are one tensor of an operator, apart from a name that is unknown."""
        is_named = self.parameter is not None and other.parameter is not None
        return self == (other if is_named else other._replace(parameter=self.parameter))


class _CodeSite:
    """An operator at a line of the program, identified alike on all ranks. tensors: its parameters and shapes.

    `_Sites` has one object for each, so sites are equal only if they are the same object.
    """

    __slots__ = ("module", "op_type", "phase", "source", "tensors")

    def __init__(self, first: Record, tensors: tuple[_SiteTensor, ...]) -> None:
        self.op_type = first.op_type
        self.source = first.source or ""
        self.module = first.module or ""
        self.phase = first.phase or ""
        self.tensors = tensors

    @property
    def call(self) -> Hashable:
        """A key that is the same for all tensors."""
        return self.op_type, self.source, self.module, self.phase


class _Sites:
    """The sites of all ranks."""

    def __init__(self) -> None:
        self._sites: dict[Hashable, _CodeSite] = {}

    def of(self, run: OperatorRun) -> _CodeSite:
        """Return the site of an operator."""
        first = run.first
        tensors = [(record.io, record.index, name, record.shape) for record, _, name in run.tensors]
        key = (first.op_type, first.source or "", first.module or "", first.phase or "", *tensors)
        site = self._sites.get(key)
        if site is None:
            named = (_SiteTensor(io, index, name or None, shape) for io, index, name, shape in tensors)
            site = self._sites[key] = _CodeSite(first, tuple(named))
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
        return ("parameter", tensor.name) if tensor.name else _UNKNOWN


class _SiteInputs:
    """A site on one rank: its first record, and for each input the sites that wrote the tensor.

    results: steps and contents that it wrote outside of the passes, of its first calls
    """

    __slots__ = ("producers", "record", "results")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.producers: dict[int, set[Hashable]] = {}
        self.results: set[Hashable] = set()


class _RankProgram:
    """The data flow between the sites of one rank."""

    def __init__(self, sites: _Sites) -> None:
        self.nodes: dict[Hashable, _SiteInputs] = {}
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
            node = self.nodes[site] = _SiteInputs(first)
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
        """End a step: note the last writers of the parameters, which the next step reads."""
        step = self._steps.pop(number)
        for record in step.parameters.values():
            writer = step.writer_of(record, record.attrs.get("storage", -1))
            if writer is not None:
                node = self.nodes.setdefault(("parameter", record.parameter), _SiteInputs(record))
                node.producers.setdefault(0, set()).add(writer)

    def first_of(self, line: str) -> Record:
        """Return the first record at a line of the program."""
        records = (
            node.record for site, node in self.nodes.items() if isinstance(site, _CodeSite) and site.source == line
        )
        return min(records, key=_moment)

    def source_of(self, site: Hashable, lines: set[str]) -> Optional[Hashable]:
        """Return the only site outside of these lines whose results reach the inputs of a site.

        Sites at these lines are followed back to their own inputs. None if there are several sites, or if the origin of
        an input is unknown.
        """
        sources: set[Hashable] = set()
        seen, remaining = {site}, [site]
        while remaining:
            for producers in self.nodes[remaining.pop()].producers.values():
                for producer in producers - seen:
                    if isinstance(producer, _CodeSite) and producer.source in lines:
                        seen.add(producer)
                        remaining.append(producer)
                    else:
                        sources.add(producer)
        first = next(iter(sources), None)
        return None if _UNKNOWN in sources or not all(_is_same_site(first, source) for source in sources) else first

    def are_restored(self, detours: Sequence[_Detour]) -> bool:
        """Return True if extra operators write what was there before in the step, as after an evaluation."""
        written = set[Hashable]().union(*(self.nodes[detour.extra].results for detour in detours))
        # The names of a site's tensors may be known in some steps only.
        calls = {detour.source.call for detour in detours if isinstance(detour.source, _CodeSite)}
        sources = (node for site, node in self.nodes.items() if isinstance(site, _CodeSite) and site.call in calls)
        before = set[Hashable]().union(*(source.results for source in sources))
        return bool(written) and written <= before


class ExtraOperators:
    """Gathers the operators of all ranks, in the order of the dump.

    most: An operator outside of the forward and the backward pass is left out if it runs before several calls of its
    reader, and before more than this share of these calls. Then it probably runs on a condition on data, such as the
    norm of gradients.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._programs: dict[RankRun, _RankProgram] = {}
        self._sites = _Sites()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        program = self._programs.get((first.rank, first.run))
        if program is None:
            program = self._programs[first.rank, first.run] = _RankProgram(self._sites)
        program.look_at(run)

    def findings(self) -> Iterator[RankFinding]:
        """Yield each line that only some ranks run, at its first operator or at the reader of a rank that lacks it.

        Then yield the first operator of each rank that reads another tensor, apart from ranks with such lines.
        """
        reported = set()
        for line in self.lines():
            reported.add(line.finding.record.rank)
            yield line.finding
        for programs in ranks_of_launches(self._programs):
            for finding in _other_inputs(programs):
                if finding.record.rank not in reported:
                    reported.add(finding.record.rank)
                    yield finding

    def lines(self) -> Iterator[LineOfRanks]:
        """Yield each line that only some ranks run."""
        for program in self._programs.values():
            program.end_steps()
        for programs in ranks_of_launches(self._programs):
            if len(programs) > 1:
                yield from self._of_launch(programs)

    def _of_launch(self, programs: dict[int, _RankProgram]) -> Iterator[LineOfRanks]:
        ranks_of_line: dict[str, list[int]] = {}
        for rank, program in sorted(programs.items()):
            for line in program.lines:
                ranks_of_line.setdefault(line, []).append(rank)
        lines_of_ranks: dict[tuple[int, ...], set[str]] = {}
        for line, ranks in ranks_of_line.items():
            if len(ranks) < len(programs):
                lines_of_ranks.setdefault(tuple(ranks), set()).add(line)
        for some, lines in sorted(lines_of_ranks.items()):
            yield from self._of_lines(programs, some, lines)

    def _of_lines(
        self, programs: dict[int, _RankProgram], ranks: tuple[int, ...], lines: set[str]
    ) -> Iterator[LineOfRanks]:
        """Yield the operators at lines that only these ranks run."""
        program = programs[ranks[0]]
        others = {rank: other for rank, other in programs.items() if rank not in ranks}
        detours: dict[str, list[_Detour]] = {}
        for reader, node in program.nodes.items():
            if isinstance(reader, _CodeSite) and reader.source in lines:
                continue
            for index, producers in node.producers.items():
                for extra in producers:
                    if isinstance(extra, _CodeSite) and extra.source in lines:
                        detour = _Detour(extra, program.source_of(extra, lines), reader, index)
                        if detour.is_passed_by(others.values()) and all(extra in programs[it].nodes for it in ranks):
                            detours.setdefault(extra.source, []).append(detour)
        for line_detours in detours.values():
            if not self._depends_on_data(program, line_detours) and not program.are_restored(line_detours):
                yield _finding(programs, ranks, [*others], line_detours[0])

    def _depends_on_data(self, program: _RankProgram, detours: Sequence[_Detour]) -> bool:
        first = detours[0]
        if program.nodes[first.extra].record.phase in ("forward", "backward"):
            return False
        readers = {detour.reader for detour in detours if _call(detour.reader) == _call(first.reader)}
        alike = sum(_call(site) == _call(first.reader) for site in program.nodes)
        return len(readers) > 1 and len(readers) > self._most * alike


class _Detour(NamedTuple):
    """A tensor that passes through extra operators: from its source to the input at `position` of its reader.

    extra: the last of these operators
    """

    extra: _CodeSite
    source: Optional[Hashable]
    reader: Hashable
    position: int

    def is_passed_by(self, programs: Iterable[_RankProgram]) -> bool:
        """Return True if a program has the reader, and all programs with the reader pass the tensor to it directly."""
        nodes = [program.nodes[self.reader] for program in programs if self.reader in program.nodes]
        return (
            bool(nodes)
            and self.source is not None
            and all(self.source in node.producers.get(self.position, ()) for node in nodes)
        )


def _other_inputs(programs: Mapping[int, _RankProgram]) -> list[RankFinding]:
    """Return the operators that read another tensor on one rank than on all others, in the order of execution."""
    if len(programs) < _FEWEST_ALIKE + 1 or any(program.has_messages for program in programs.values()):
        return []
    first, *peers = programs.values()
    findings = []
    for reader, node in first.nodes.items():
        if not isinstance(reader, _CodeSite) or is_source(reader.op_type):
            continue
        if not all(reader in program.nodes for program in peers):
            continue
        for position in node.producers:
            producers = {
                rank: frozenset(program.nodes[reader].producers.get(position, ())) for rank, program in programs.items()
            }
            # Two groups of ranks, and one of them is a single rank.
            [usual, count], *differing = Counter(producers.values()).most_common()
            if len(differing) != 1 or count < len(programs) - 1:
                continue
            rank = next(rank for rank, of_rank in producers.items() if of_rank != usual)
            is_computed = all(isinstance(site, _CodeSite) and site in programs[rank].nodes for site in usual)
            is_other = {*map(_without_shapes, usual)}.isdisjoint(map(_without_shapes, producers[rank]))
            if is_computed and usual and is_other:
                record = programs[rank].nodes[reader].record
                peer_ranks = in_words([peer for peer in programs if peer != rank])
                reads = [_result(next(iter(sites), _UNKNOWN)) for sites in (producers[rank], usual)]
                text = f"input {position} of {record.op_type} at {record.source} is {reads[0]} on rank {rank}, and "
                text += f"{reads[1]} on {peer_ranks}; rank {rank} runs {_named(next(iter(usual)))} too"
                findings.append(RankFinding(record, text))
    return sorted(findings, key=lambda finding: _moment(finding.record))


def _result(site: Hashable) -> str:
    """Return the tensor that a producer wrote, in words."""
    if isinstance(site, _CodeSite):
        return f"the result of {site.op_type} at {site.source}"
    return "a tensor from before this step" if site == _UNKNOWN else _named(site)


def _moment(record: Record) -> tuple[int, int]:
    return -1 if record.step is None else record.step, _number_of(record)


@functools.lru_cache(maxsize=1024)
def _is_view(op_type: str) -> bool:
    return is_view(operator_class(op_type))


def _number_of(record: Record) -> int:
    return int(record.attrs.get("seq") or 0)


def _is_same_site(site: Hashable, other: Hashable) -> bool:
    """Return True if sites are equal, apart from the names of parameters that are known in some steps only."""
    if not (isinstance(site, _CodeSite) and isinstance(other, _CodeSite)) or site.call != other.call:
        return site == other
    pairs = zip(site.tensors, other.tensors)
    return len(site.tensors) == len(other.tensors) and all(tensor.is_same(other) for tensor, other in pairs)


def _without_shapes(site: Hashable) -> Hashable:
    """Return a site that is the same for batches of other sizes."""
    if not isinstance(site, _CodeSite):
        return site
    return site.call, tuple(tensor._replace(shape=None) for tensor in site.tensors)


def _add_copy(run: OperatorRun, step: _StepWrites) -> None:
    """Note a view, or a copy such as `clone`: who reads its result reads what wrote its input."""
    if run.inputs:
        source = run.inputs[0]
        for record, storage, _ in run.outputs:
            if storage >= 0 and storage != source.storage:
                step.add_write(record, storage, step.producer_of(source, run.number), run.number)


def _call(site: Hashable) -> Hashable:
    return (site.op_type, site.source, site.phase) if isinstance(site, _CodeSite) else "parameter"


def _finding(
    programs: dict[int, _RankProgram], ranks: Sequence[int], others: Sequence[int], detour: _Detour
) -> LineOfRanks:
    record = programs[ranks[0]].first_of(detour.extra.source)
    between = f"between {_named(detour.source)} and {_named(detour.reader)}"
    if len(ranks) <= len(others):
        text = f"only {in_words(ranks)} run{'s' * (len(ranks) == 1)} {record.op_type} at {record.source}, {between}"
        text += f"; {in_words(others)} pass{'es' * (len(others) == 1)} the tensor on as it is"
        return LineOfRanks(RankFinding(record, text), record)
    reader = next(
        programs[rank].nodes[detour.reader].record for rank in others if detour.reader in programs[rank].nodes
    )
    text = f"{in_words(others)} run{'s' * (len(others) == 1)} no operator at {record.source}, {between}"
    return LineOfRanks(RankFinding(reader, f"{text}; {in_words(ranks)} run {record.op_type} there"), record)


def _named(site: Optional[Hashable]) -> str:
    if isinstance(site, _CodeSite):
        return site.op_type
    return f"the value of {site[1]}" if isinstance(site, tuple) else "the next step"
