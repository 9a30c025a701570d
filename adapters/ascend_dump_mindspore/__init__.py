"""The adapter for MindSpore. MindSpore's own Dump writes the operators of graphs.

It does so on Ascend (jit_level O0 and O1), GPU and CPU.

MindSpore reads its dump JSON once per process: when the first operator runs, when the first graph is compiled, or when
`mindspore.communication.init` is called. A capture must start before that. It sets MINDSPORE_DUMP_CONFIG; the program
need not be changed. Steps are MindSpore's iterations. All graphs that the process compiles are dumped, not only those
of the target. `layers` selects operators.

When the block ends, the dump is paused: MindSpore's iteration counter is set to a number that `steps` does not select.
A second capture in the same process resumes the dump, into a directory of its own. Its settings must be the same,
because MindSpore does not read the configuration again.

Graphs must not run in several threads at the same time while MindSpore dumps, because its Dump then crashes, with or
without this adapter (2.10.0 on a CPU).
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
    # Higher than the priority of host adapters: in a process with MindSpore, its dump contains the most.
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
