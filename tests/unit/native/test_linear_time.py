"""Texts that made readers take time, or memory, that grows with the square of their length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ascend_dump import AscendDumpError
from ascend_dump.native.cann.graph import read_graph
from ascend_dump.native.mindspore.config.select import regex_refusal
from ascend_dump.native.mindspore.graph import read_ir
from ascend_dump.native.mindspore.statistics_csv import read_statistics
from ascend_dump.native.tensorflow.options import exact_names
from ascend_dump.native.torchair.fx import read_fx_graph
from ascend_dump.native.torchair.graph import read_torchair_graph

#: With it every text here took from 5 s to minutes; now none takes more than one.
LENGTH = 300_000
MOST_SECONDS = 4.0
STATISTICS = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value\n"
    "Add,Default_Add-op0,0,0,1795226242824853,input,0,24,float32,(2),5\n"
)
FX = "from torchair import x\n## FX Code: a: torch.float32[2] = torch.ops.aten.copy_.default("
GE = 'graph {\n  name: "g"\n  op {\n    name: "b"\n    output_desc {\n      attr {\n        '


def repeated(text: str) -> str:
    return text * (LENGTH // len(text))


def named_outputs() -> str:
    outputs = ", ".join(f"v{number}" for number in range(LENGTH // 10))
    return f'from torchair import x\n[{outputs}] = ge.Split(x, node_name="{repeated("N")}")\n'


TEXTS = {
    "blanks in statistics of MindSpore": (read_statistics, STATISTICS + repeated(" ") + "x\n"),
    "places in an ir": (read_ir, "# Fullname with scope: (a)\n" + repeated("# In file ") + "\n"),
    "names in an ir": (read_ir, "# Fullname with scope: (a)\n" + repeated("Fullname with scope: (") + "\n"),
    "a stack in an ir": (read_ir, "# Fullname with scope: (a)\n" + 8 * repeated("# In file a.py:1,\n")),
    "a copy in a graph of torchair": (read_torchair_graph, f"{FX}b: {repeated('z')}\n"),
    "outputs of an operator with a long name": (read_torchair_graph, named_outputs()),
    "operators of one node": (read_fx_graph, FX + "b)\n" + repeated("a = ge.B()\n")),
    "a number in a graph of torchair": (read_fx_graph, f"{FX}{repeated('9')}x)\n"),
    "quotes in a graph of GE": (read_graph, "graph { op { name: " + repeated('\\"') + "\n"),
    "blanks in a graph of GE": (read_graph, f'{GE}key: "_fx_tensor_name" value{repeated(" ")}x\n      }}\n    }}\n'),
    "brackets in names of layers": (lambda path: exact_names(path.read_text()), repeated("[")),
    "brackets in an expression": (
        lambda path: regex_refusal(path.read_text()),
        f"name-regex({repeated('[a')[: LENGTH // 4]})",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_hostile_text_takes_time_for_its_length_alone(tmp_path: Path, case: str) -> None:
    read: Callable[[Path], Any] = TEXTS[case][0]
    path = tmp_path / "dynamo_optimized_graph_1_rank_0_pid_7_ts_20261121015259103066.py"
    path.write_text(TEXTS[case][1])
    begin = time.thread_time()
    try:
        content = read(path)
        if isinstance(content, Iterable):
            list(content)
    except AscendDumpError as error:
        str(error)
    assert time.thread_time() - begin < MOST_SECONDS
