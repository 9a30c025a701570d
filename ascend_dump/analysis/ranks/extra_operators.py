"""Find operators that only some ranks run, between two operators that all ranks run.

Ranks may have lines of their own for good reasons: one writes a log, has the last layer, or gets a batch with padding.
So an operator at such a line is reported only if the other ranks pass the tensor on without it, and if it reads nothing
but that tensor and constants, or tensors that the other ranks compute too and read nowhere, such as a mask.

If one rank passes a tensor to a reader by a line of its own, and all others by another line that it does not run, this
is reported too, unless a rank goes another way in some steps: then the data decides.

Besides, an operator is reported that reads another tensor on one rank than on all others, such as a parameter before
its update, although this rank computes what the others read. Stages of pipelines may do so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ascend_dump.analysis.operators.names import is_source
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words, moment_of
from ascend_dump.analysis.ranks.data_flow.branches import other_branches
from ascend_dump.analysis.ranks.data_flow.code_sites import UNKNOWN, CodeSite, RankProgram, Sites, named
from ascend_dump.analysis.ranks.data_flow.detours import Detour, are_restored, passed_source
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.reading import Record

__all__ = ["ExtraOperators", "LineOfRanks"]

#: An operator with another input on one rank is reported only if at least this many other ranks agree.
_FEWEST_ALIKE = 2


class LineOfRanks(NamedTuple):
    """A line of the program that only some ranks run. operator: its first operator

    finding: at this operator, or if few ranks lack the line, at the operator of such a rank that reads its result
    """

    finding: RankFinding
    operator: Record


class ExtraOperators:
    """Gathers the operators of all ranks, in the order of the dump.

    most: An operator outside of the forward and the backward pass is left out if it runs before several calls of its
    reader, and before more than this share of these calls. Then it probably runs on a condition on data, such as the
    norm of gradients.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._programs: dict[RankRun, RankProgram] = {}
        self._sites = Sites()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        program = self._programs.get((first.rank, first.run))
        if program is None:
            program = self._programs[first.rank, first.run] = RankProgram(self._sites)
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
            for finding in (*_other_inputs(programs), *other_branches(programs)):
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

    def _of_launch(self, programs: dict[int, RankProgram]) -> Iterator[LineOfRanks]:
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
        self, programs: dict[int, RankProgram], ranks: tuple[int, ...], lines: set[str]
    ) -> Iterator[LineOfRanks]:
        """Yield the operators at lines that only these ranks run."""
        program = programs[ranks[0]]
        others = {rank: other for rank, other in programs.items() if rank not in ranks}
        detours: dict[str, list[Detour]] = {}
        for reader, node in program.nodes.items():
            if isinstance(reader, CodeSite) and reader.source in lines:
                continue
            for index, producers in node.producers.items():
                for extra in producers:
                    if isinstance(extra, CodeSite) and extra.source in lines:
                        detour = Detour(extra, program.source_of(extra, lines), reader, index)
                        if detour.source is None:
                            source = passed_source(detour, program.sources_of(extra, lines), others.values())
                            detour = detour._replace(source=source)
                        if detour.is_passed_by(others.values()) and all(extra in programs[it].nodes for it in ranks):
                            detours.setdefault(extra.source, []).append(detour)
        for line_detours in detours.values():
            if not self._depends_on_data(program, line_detours) and not are_restored(program, line_detours):
                yield _finding(programs, ranks, [*others], line_detours[0])

    def _depends_on_data(self, program: RankProgram, detours: Sequence[Detour]) -> bool:
        first = detours[0]
        if program.nodes[first.extra].record.phase in ("forward", "backward"):
            return False
        readers = {detour.reader for detour in detours if _call(detour.reader) == _call(first.reader)}
        alike = sum(_call(site) == _call(first.reader) for site in program.nodes)
        return len(readers) > 1 and len(readers) > self._most * alike


def _other_inputs(programs: Mapping[int, RankProgram]) -> list[RankFinding]:
    """Return the operators that read another tensor on one rank than on all others, in the order of execution."""
    if len(programs) < _FEWEST_ALIKE + 1 or any(program.has_messages for program in programs.values()):
        return []
    first, *peers = programs.values()
    findings = []
    for reader, node in first.nodes.items():
        if not isinstance(reader, CodeSite) or is_source(reader.op_type):
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
            is_computed = all(isinstance(site, CodeSite) and site in programs[rank].nodes for site in usual)
            is_other = {*map(_without_shapes, usual)}.isdisjoint(map(_without_shapes, producers[rank]))
            if is_computed and usual and is_other:
                record = programs[rank].nodes[reader].record
                peer_ranks = in_words([peer for peer in programs if peer != rank])
                reads = [_result(next(iter(sites), UNKNOWN)) for sites in (producers[rank], usual)]
                text = f"input {position} of {record.op_type} at {record.source} is {reads[0]} on rank {rank}, and "
                text += f"{reads[1]} on {peer_ranks}; rank {rank} runs {named(next(iter(usual)))} too"
                findings.append(RankFinding(record, text))
    return sorted(findings, key=lambda finding: moment_of(finding.record))


def _result(site: Hashable) -> str:
    """Return the tensor that a producer wrote, in words."""
    if isinstance(site, CodeSite):
        return f"the result of {site.op_type} at {site.source}"
    return "a tensor from before this step" if site == UNKNOWN else named(site)


def _without_shapes(site: Hashable) -> Hashable:
    """Return a site that is the same for batches of other sizes."""
    if not isinstance(site, CodeSite):
        return site
    return site.call, tuple(tensor._replace(shape=None) for tensor in site.tensors)


def _finding(
    programs: dict[int, RankProgram], ranks: Sequence[int], others: Sequence[int], detour: Detour
) -> LineOfRanks:
    record = programs[ranks[0]].first_of(detour.extra.source)
    between = f"between {named(detour.source)} and {named(detour.reader)}"
    if len(ranks) <= len(others):
        text = f"only {in_words(ranks)} run{'s' * (len(ranks) == 1)} {record.op_type} at {record.source}, {between}"
        text += f"; {in_words(others)} pass{'es' * (len(others) == 1)} the tensor on as it is"
        return LineOfRanks(RankFinding(record, text), record)
    reader = next(
        programs[rank].nodes[detour.reader].record for rank in others if detour.reader in programs[rank].nodes
    )
    text = f"{in_words(others)} run{'s' * (len(others) == 1)} no operator at {record.source}, {between}"
    return LineOfRanks(RankFinding(reader, f"{text}; {in_words(ranks)} run {record.op_type} there"), record)


def _call(site: Hashable) -> Hashable:
    return (site.op_type, site.source, site.phase) if isinstance(site, CodeSite) else "parameter"
