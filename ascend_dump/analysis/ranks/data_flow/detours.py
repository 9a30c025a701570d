"""Tensors that one rank passes to a reader by operators that other ranks do not run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.ranks.data_flow.code_sites import CodeSite, RankProgram

__all__ = ["Detour", "are_restored", "passed_source"]


class Detour(NamedTuple):
    """A tensor that passes through extra operators: from its source to the input at `position` of its reader.

    extra: the last of these operators
    """

    extra: CodeSite
    source: Optional[Hashable]
    reader: Hashable
    position: int

    def is_passed_by(self, programs: Iterable[RankProgram]) -> bool:
        """Return True if a program has the reader, and all programs with the reader pass the tensor to it directly."""
        nodes = [program.nodes[self.reader] for program in programs if self.reader in program.nodes]
        return (
            bool(nodes)
            and self.source is not None
            and all(self.source in node.producers.get(self.position, ()) for node in nodes)
        )


def passed_source(detour: Detour, sources: set[Hashable], programs: Iterable[RankProgram]) -> Optional[Hashable]:
    """Return the source of an extra operator that other ranks pass on without it, if they do not use its other inputs.

    They compute these inputs too, and read one of them nowhere.
    """
    programs = [program for program in programs if detour.reader in program.nodes]
    passed = [source for source in sources if detour._replace(source=source).is_passed_by(programs)]
    if len(passed) != 1:
        return None
    rest = sources - {passed[0]}
    for program in programs:
        if not all(isinstance(source, CodeSite) and source in program.nodes for source in rest):
            return None
        if all(program.reads(source) for source in rest):
            return None
    return passed[0]


def are_restored(program: RankProgram, detours: Sequence[Detour]) -> bool:
    """Return True if extra operators write what was there before in the step, as after an evaluation."""
    written = set[Hashable]().union(*(program.nodes[detour.extra].results for detour in detours))
    # The names of a site's tensors may be known in some steps only.
    calls = {detour.source.call for detour in detours if isinstance(detour.source, CodeSite)}
    sources = (node for site, node in program.nodes.items() if isinstance(site, CodeSite) and site.call in calls)
    before = set[Hashable]().union(*(source.results for source in sources))
    return bool(written) and written <= before
