"""The subject of the rules for a dump JSON: the file as MindSpore reads it, the device, and the program."""

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
    """Facts about the program that will dump; None means unknown, and rules that need the fact report nothing.

    operators: full names of its operators, from an earlier dump. pynative: operators run one by one. complex: it has
    tensors of complex numbers. graphs: the number of graphs that it compiles. device_id: the device of this process.
    sink: it trains with dataset_sink_mode. sink_size: the steps of each sink, -1 for an epoch. heterogeneous: some
    operators run on another device. prints: it has the operator Print. exception_dump: the value of that key in
    set_context(ascend_config=…).
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
    """Facts about a program from an `.ir` file of a dump and the files in its directory.

    graphs: the number of graphs with a file of their execution history; the bodies of loops have no such file.
    """
    histories = (path.parent.parent / "execution_order").glob("ms_global_execution_order_graph_*.csv")
    graphs = sum(1 for _ in histories) or None
    return Known(complex=has_complex(path), graphs=graphs, heterogeneous=is_heterogeneous(path))


class DumpJson(NamedTuple):
    """A dump JSON as MindSpore reads it, with the device and the program."""

    reading: DumpJsonReading
    where: Runtime
    known: Known

    @classmethod
    def of_example(cls, tried: Example) -> DumpJson:
        """facts: "on", a name of `RUNTIMES`, and the fields of `Known`."""
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
    """Return a dump JSON that MindSpore accepts, with these settings; it has no block for kernels run whole (O2)."""
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
