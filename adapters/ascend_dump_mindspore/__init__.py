"""Dumps of MindSpore's graphs by its own Dump, on Ascend (jit_level O0 and O1), GPU and CPU.

MindSpore reads its dump JSON once in a process: when the first operator runs, the first graph is compiled or
`mindspore.communication.init` is called. A capture must start before that; it sets MINDSPORE_DUMP_CONFIG and needs
no other change of the program. Steps are MindSpore's iterations. Every graph that the process compiles is dumped, not
only those of the target; `layers` selects operators.

When the block ends, the dump is paused: MindSpore's iteration counter is set to a number that `steps` does not
select. A second capture in the same process resumes it into a directory of its own; since the configuration cannot
be read again, its settings must be the same.

Graphs must not run in several threads at once while MindSpore dumps: its Dump, with or without this adapter, then
crashes (2.10.0 on a CPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, Repeats, RunDirectory

if TYPE_CHECKING:
    from ascend_dump_mindspore._session import MindSporeSession

__all__ = ["MindSporeAdapter"]


class MindSporeAdapter(Adapter):
    name = "mindspore"
    framework = "mindspore"
    # In a process with MindSpore its own dump has more than that of another framework.
    priority = 3
    process_hooks = ("mindspore",)
    only_from_the_start = "MindSpore reads its dump configuration once, when its first operator runs"
    repeats = Repeats.RESUMED

    def accepts(self, target: Any) -> bool:
        from ascend_dump_mindspore._runtime import is_target

        return target is None or is_target(target)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_mindspore._check import check

        return check(request, target)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> MindSporeSession:
        from ascend_dump_mindspore._session import MindSporeSession

        return MindSporeSession(request, target, run)

    def counts_steps(self, target: Any) -> bool:
        return True

    def launch(self, begin: Begin) -> None:
        from ascend_dump_mindspore._launcher import launch

        launch(begin)
