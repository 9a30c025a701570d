"""What surrounds a configuration: facts that decide whether an accepted setting does anything.

Every fact has an "unknown" value, under which the rules that need it stay quiet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Optional

__all__ = ["Operator", "Situation"]


class Operator(NamedTuple):
    """One operator of a graph as GE executes it.

    no_task: its attribute `_no_task`, set on operators that never run on the device.
    original_names: names from before fusion, `_datadump_original_op_names`.
    dtypes: names such as "float16" of its tensors.
    """

    name: str
    type: str = ""
    no_task: bool = False
    original_names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


class Situation(NamedTuple):
    """Facts about the process that will dump; None means unknown.

    env, cwd: of that process. operators: of the graph, in execution order. models: the names its
    models can be selected by. container: it runs in one. captured: operators run in a captured
    stream (aclgraph). step_counter: the model has one. static_shape: of the whole graph.
    status_check: the model was built with overflow detection (`--status_check 1`).
    exception_on: an exception dump is on already. ge_options: session options given beside
    the JSON. acl_dump: a dump is set through acl beside the session options.
    """

    env: Mapping[str, str] = MappingProxyType({})
    cwd: str = ""
    operators: Optional[Sequence[Operator]] = None
    models: Optional[Sequence[str]] = None
    container: Optional[bool] = None
    captured: Optional[bool] = None
    step_counter: Optional[bool] = None
    static_shape: Optional[bool] = None
    status_check: Optional[bool] = None
    exception_on: Optional[bool] = None
    ge_options: Optional[Mapping[str, str]] = None
    acl_dump: Optional[bool] = None

    @classmethod
    def here(cls) -> Situation:
        """The environment and directory of this process, nothing else known."""
        return cls(env=dict(os.environ), cwd=os.getcwd())

    def named(self, name: str) -> list[Operator]:
        """The known operators GE matches `name` with: by final or original name."""
        return [one for one in self.operators or () if one.name == name or name in one.original_names]
