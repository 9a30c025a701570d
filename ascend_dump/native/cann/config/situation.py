"""Facts about the process and the model that determine the effect of settings.

Each fact may be unknown; a rule that needs an unknown fact reports nothing.
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
    """Facts about the process that will dump. None means unknown. A bool is True if the sentence about it is true.

    env, cwd      the environment and the working directory of that process
    planned       a dump path that is treated as existing, because it is created before CANN reads the configuration
    whole_run     the configuration is in force while the application runs, and not only during a block of it
    operators     the operators of the graph, in the order of execution
    dtypes        the data types of the graph's tensors, such as "float16"
    models        the names of the models
    container     the process runs in a container
    captured      operators run in a captured stream (aclgraph)
    step_counter  the model has a step counter
    static_shape  the whole graph has static shapes
    status_check  the model was converted with overflow detection (`--status_check=1`)
    exception_on  an exception dump is on already
    ge_options    the session options that are used besides the dump JSON
    acl_dump      a dump is configured through acl besides the session options
    free_bytes    the free space at the dump path; measured if unknown
    soc           the result of acl.get_soc_name; "" if unknown
    """

    env: Mapping[str, str] = MappingProxyType({})
    cwd: str = ""
    planned: str = ""
    whole_run: Optional[bool] = None
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
        """Return a situation with the environment and working directory of this process; all else is unknown."""
        return cls(env=dict(os.environ), cwd=os.getcwd())

    def names(self) -> dict[str, list[Node]]:
        """Return the operators by each name that GE compares: their names, and the names from before fusion."""
        by_name: dict[str, list[Node]] = {}
        for node in self.operators or ():
            for name in dict.fromkeys((node.name, *node.original_names)):
                by_name.setdefault(name, []).append(node)
        return by_name


def in_container(root: Path = Path("/")) -> bool:
    """Return True if this process runs in a container, judged by the files that container engines create."""
    if (root / ".dockerenv").exists() or (root / "run" / ".containerenv").exists():
        return True
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        text = (root / "proc" / "1" / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return _CONTROL_GROUPS.search(text) is not None
