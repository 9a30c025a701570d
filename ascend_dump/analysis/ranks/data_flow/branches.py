"""Find a line that one rank runs in place of the line of all others, between two operators that all ranks run.

The line may depend on the data. So each rank has to go its way in all steps, and at least two other ranks the
usual way. Stages of pipelines have lines of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple, Optional

from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words, moment_of
from ascend_dump.analysis.ranks.data_flow.code_sites import CodeSite, RankProgram, is_same_site, named

__all__ = ["other_branches"]

#: Minimum number of other ranks that go the usual way.
_FEWEST_ALIKE = 2
#: Minimum number of steps in which ranks go their ways.
_FEWEST_STEPS = 2


class _Branch(NamedTuple):
    """The line that passes a tensor to its reader on one rank. source: the operator that made it before this line"""

    line: str
    source: Hashable


def other_branches(programs: Mapping[int, RankProgram]) -> Iterator[RankFinding]:
    """Yield the first line of each rank that it alone runs, in place of a line of the others."""
    if len(programs) < _FEWEST_ALIKE + 1 or any(program.has_messages for program in programs.values()):
        return
    for rank, program in programs.items():
        peers = {peer: peer_program for peer, peer_program in programs.items() if peer != rank}
        lines = program.lines.difference(*(peer.lines for peer in peers.values()))
        # Operators at these lines are followed back, so the reader is none of them.
        readers = [site for site in program.nodes if not (isinstance(site, CodeSite) and site.source in lines)]
        findings = []
        for reader in readers:
            for position, producers in program.nodes[reader].producers.items():
                [extra] = producers if len(producers) == 1 else [None]
                if not isinstance(extra, CodeSite) or extra.source not in lines:
                    continue
                branch = _branch(program, reader, position)
                usual = {_branch(peer, reader, position) for peer in peers.values()}
                if branch is not None and len(usual) == 1:
                    finding = _finding(program, rank, reader, branch, next(iter(usual)), [*peers])
                    findings += [] if finding is None else [finding]
        yield from sorted(findings, key=lambda finding: moment_of(finding.record))[:1]


def _branch(program: RankProgram, reader: Hashable, position: int) -> Optional[_Branch]:
    """Return the line that passes a tensor to a reader; None if it is not the same in all its steps."""
    node = program.nodes.get(reader)
    producers = set() if node is None else node.producers.get(position, set())
    [producer] = producers if len(producers) == 1 else [None]
    if node is None or not isinstance(producer, CodeSite) or producer not in program.nodes:
        return None
    if len(node.steps) < _FEWEST_STEPS or program.nodes[producer].steps != node.steps:
        return None
    source = program.source_of(producer, {producer.source})
    return _Branch(producer.source, source) if isinstance(source, CodeSite) else None


def _finding(
    program: RankProgram, rank: int, reader: Hashable, branch: _Branch, usual: Optional[_Branch], peers: list[int]
) -> Optional[RankFinding]:
    if usual is None or usual.line in program.lines or not is_same_site(branch.source, usual.source):
        return None
    record = program.first_of(branch.line)
    text = (
        f"between {named(branch.source)} and {named(reader)}, rank {rank} runs {record.op_type} at {record.source}, "
        f"and {in_words(peers)} run {usual.line} in its place, in all steps"
    )
    return RankFinding(record, text)
