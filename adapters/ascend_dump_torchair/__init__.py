"""The adapter for graphs that torchair compiles. They are dumped by CANN's own dump service.

torchair reads its options when the process builds its first graph, and keeps them from then on. So a capture has to
begin before the first graph is built. GE counts the steps: each execution of a graph is one step, counted from 0.

The target may be

    with capture(model, framework="torchair", steps="0|1"):      a module: it is compiled in place for the block,
        model(x)                                                 and is eager again after the block

    config = torchair.CompilerConfig()                           a config: its dump options are set for the block, and
    with capture(config, steps="0|1"):                           the program builds its backend from it
        backend = torchair.get_npu_backend(compiler_config=config)
        torch.compile(model, backend=backend)(x)

    with capture(framework="torchair", steps="0|1"):             neither: the options are set on every config that is
        main()                                                   passed to get_npu_backend in the block
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, Repeats, RunDirectory

if TYPE_CHECKING:
    from ascend_dump_torchair._session import TorchairSession
    from ascend_dump_torchair._settings import SettingsPlan

__all__ = ["TorchairAdapter", "check_options", "configure"]


class TorchairAdapter(Adapter):
    name = "torchair"
    framework = "torchair"
    # Lower than the priority of host adapters, so that a module is compiled only if framework="torchair" is given.
    priority = -1
    # A submodule, because torch_npu puts a proxy for torchair into sys.modules, which import hooks do not notice.
    process_hooks = ("torchair.npu_fx_compiler",)
    only_from_the_start = "torchair reads its dump options when the process builds its first graph"
    repeats = Repeats.NEVER
    #: The plan of the last check, reused by the following start.
    _plan: Optional[SettingsPlan] = None

    def accepts(self, target: Any) -> bool:
        from ascend_dump_torchair._config import is_config

        if target is None or is_config(target):
            return True
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(target, torch.nn.Module)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_torchair._check import check

        return check(request, target, run, self._plan_of(request, run))

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> TorchairSession:
        from ascend_dump_torchair._session import TorchairSession

        return TorchairSession(request, target, run, self._plan_of(request, run))

    def _plan_of(self, request: DumpRequest, run: RunDirectory) -> SettingsPlan:
        from ascend_dump_torchair._settings import SettingsPlan

        if self._plan is None or not self._plan.is_of(request, run):
            self._plan = SettingsPlan(request, run)
        return self._plan

    def counts_steps(self, target: Any) -> bool:
        return True

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_torchair._launcher import launch

        return launch(begin)


def configure(config: Any, request: DumpRequest) -> list[Problem]:
    """Set the dump options of a torchair.CompilerConfig permanently, as a request says.

    The dump is written to `request.path`, which is created if missing. Call this function before the first graph of the
    process is built. Returns the settings that torchair or GE will ignore, as a list of `Problem`. Raises ConfigError
    for settings that they refuse, NotSupported for settings that torchair does not have, WriteError if the path cannot
    be written.
    """
    from ascend_dump_torchair._configure import configure

    return configure(config, request)


def check_options(options: Any, *, mode: str = "max-autotune") -> list[Problem]:
    """Find options of `config.dump_config` that torchair or GE would refuse, or accept and ignore.

    options: a mapping of option names to values, as they would be assigned. mode: the mode of the CompilerConfig.
    """
    from ascend_dump.native.torchair.config.check import check_options

    return check_options(options, mode=mode)
