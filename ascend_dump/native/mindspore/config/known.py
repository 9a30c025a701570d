"""The value that the rules for a dump JSON check: the parsed file, the device, and facts about the program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ascend_dump.native.mindspore.config.dump_json import read_text
from ascend_dump.native.mindspore.config.keys import COMMON, E2E
from ascend_dump.native.mindspore.config.settings import DumpJsonReading, DumpJsonSettings
from ascend_dump.native.mindspore.graph import has_complex, is_heterogeneous
from ascend_dump.native.mindspore.runtime import Runtime
from ascend_dump.native.rules import Example

__all__ = ["DumpJson", "Known", "example", "known_of_graph"]


class Known(NamedTuple):
    """Facts about the program that will dump. None means unknown; a rule that needs an unknown fact reports nothing.

    env             the environment
    operators       full names of the operators, from an earlier dump
    pynative        True if operators run one by one
    complex         True if there are tensors of complex numbers
    graphs          number of graphs that the program compiles
    device_id       the device of this process
    sink            True if the program trains with dataset_sink_mode
    sink_size       number of steps of each sink; -1 for an epoch
    heterogeneous   True if some operators run on another device
    prints          True if there is an operator Print
    exception_dump  the value of the key `exception_dump` in set_context(ascend_config=…)
    """

    env: Optional[Mapping[str, str]] = None
    operators: Optional[Sequence[str]] = None
    pynative: Optional[bool] = None
    complex: Optional[bool] = None
    graphs: Optional[int] = None
    device_id: Optional[int] = None
    sink: Optional[bool] = None
    sink_size: Optional[int] = None
    heterogeneous: Optional[bool] = None
    prints: Optional[bool] = None
    exception_dump: Optional[str] = None


def known_of_graph(path: Path) -> Known:
    """Return facts about a program from an `.ir` file of a dump and the files next to it.

    `graphs` is the number of files with the execution history of a graph. The bodies of loops have no such file.
    """
    histories = (path.parent.parent / "execution_order").glob("ms_global_execution_order_graph_*.csv")
    graphs = sum(1 for _ in histories) or None
    return Known(complex=has_complex(path), graphs=graphs, heterogeneous=is_heterogeneous(path))


class DumpJson(NamedTuple):
    """A dump JSON as MindSpore reads it. where: the runtime that reads it. known: facts about the program."""

    reading: DumpJsonReading
    where: Runtime
    known: Known

    @classmethod
    def of_example(cls, tried: Example) -> DumpJson:
        """Return the subject of an example. Its facts are "on", a name in `RUNTIMES`, and fields of `Known`."""
        facts = dict(tried.facts)
        where = Runtime.named(facts.pop("on", "ascend"))
        known = Known(**{"env": {}, **facts})
        return cls(read_text(json.dumps(tried.config).encode(), runtime=where, env=known.env), where, known)

    @property
    def settings(self) -> DumpJsonSettings:
        return self.reading.settings

    @property
    def common(self) -> Mapping[str, Any]:
        return self._block(COMMON)

    @property
    def e2e(self) -> Mapping[str, Any]:
        return self._block(E2E)

    def _block(self, name: str) -> Mapping[str, Any]:
        value = self.reading.value
        block = value.get(name) if isinstance(value, dict) else None
        return block if isinstance(block, dict) else {}


def example(on: str = "ascend", *, e2e: Optional[Mapping[str, Any]] = None, **common: Any) -> Example:
    """Return a dump JSON that MindSpore accepts, with these settings, as an example for a rule.

    on: the runtime; for jit_level O2 the block `e2e_dump_settings` is left out
    """
    settings = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": "$DIR",
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **common,
    }
    content: dict[str, Any] = {COMMON: settings}
    if on not in ("ascend-o2", "ascend-ge"):
        content[E2E] = {"enable": True, **(e2e or {})}
    return Example(content, {"on": on})
