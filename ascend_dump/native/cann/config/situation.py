"""What surrounds a configuration: facts that decide whether an accepted setting does anything.

Every fact has an "unknown" value, under which the rules that need it stay quiet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Optional

from ascend_dump.native.cann.graph import Node

__all__ = ["Situation", "in_container"]

_CONTROL_GROUPS = re.compile(r"docker|kubepods|containerd|libpod|lxc")


class Situation(NamedTuple):
    """Facts about the process that will dump; None means unknown.

    env, cwd: of that process. planned: the dump path that is made before CANN looks at it: it counts as
    existing. operators: of the graph, in execution order. dtypes: names such as
    "float16" of its tensors. models: the names its models can be selected by. container: it runs in
    one. captured: operators run in a captured stream (aclgraph). step_counter: the model has one.
    static_shape: of the whole graph. status_check: the model was built with overflow detection
    (`--status_check 1`). exception_on: an exception dump is on already. ge_options: session options
    given beside the JSON. acl_dump: a dump is set through acl beside the session options. free_bytes: at
    the dump path; looked up there when unknown. soc: what acl.get_soc_name returns.
    """

    env: Mapping[str, str] = MappingProxyType({})
    cwd: str = ""
    planned: str = ""
    operators: Optional[Sequence[Node]] = None
    dtypes: Optional[Sequence[str]] = None
    models: Optional[Sequence[str]] = None
    container: Optional[bool] = None
    captured: Optional[bool] = None
    step_counter: Optional[bool] = None
    static_shape: Optional[bool] = None
    status_check: Optional[bool] = None
    exception_on: Optional[bool] = None
    ge_options: Optional[Mapping[str, str]] = None
    acl_dump: Optional[bool] = None
    free_bytes: Optional[int] = None
    soc: str = ""

    @classmethod
    def here(cls) -> Situation:
        """The environment and directory of this process, nothing else known."""
        return cls(env=dict(os.environ), cwd=os.getcwd())

    def names(self) -> dict[str, list[Node]]:
        """The known operators by every name GE matches: the final one and those from before fusion."""
        found: dict[str, list[Node]] = {}
        for node in self.operators or ():
            for name in dict.fromkeys((node.name, *node.original_names)):
                found.setdefault(name, []).append(node)
        return found


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process runs in a container, by the marks that the engines leave."""
    if (root / ".dockerenv").exists() or (root / "run" / ".containerenv").exists():
        return True
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        text = (root / "proc" / "1" / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return _CONTROL_GROUPS.search(text) is not None
