"""Content for tests of pages: two dumps of a small program, one with a fault, and very many pairs without a dump."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import msgspec
import numpy as np
from host_dumps import TIME, put

from ascend_dump.reading import Record
from ascend_dump.report.page import PageContent, PageError, PageFinding, PageRow
from ascend_dump.statistics import Statistics
from ascend_dump.writing import HostWriter, Item, Line, Payload

LAYERS = 3
#: Names that a page must show as they are, and must not run, close or turn round.
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!-- <script> -->",
    "\"><img src=x onerror='window.hacked=3'>",
    "javascript:window.hacked=4",
    "abc\u202egnp.exe",
    "nul\0nul",
    "' OR 1=1 --",
    "&lt;b&gt;&#x3c;",
    "שלום/mm_0",
    "𝒳𝒴/mm_0",
    "[weird]*?/mm_0",
    "\x1b[31mred",
    "$title ${data} {{x}}",
    "caf\udce9/mm_0",
)


class _Program:
    """Runs a network of matrices in numpy and records what each operator reads and makes."""

    def __init__(self, rank: int, source: str) -> None:
        self.items: list[Item] = []
        self._rank = rank
        self._source = source
        self._storage: dict[int, int] = {}
        self._kept: list[np.ndarray] = []
        self._seq = 0

    def run(self, name: str, kind: str, inputs: list[np.ndarray], output: np.ndarray, phase: str, line: int) -> Any:
        module = name.rpartition("/")[0]
        stack = [f"{self._source}:{line} in forward", f"{self._source}:1 in main"]
        call = json.dumps({"op": kind, "args": {}, "stack": stack}, separators=(",", ":"))
        for io, arrays in (("input", inputs), ("output", [output])):
            for index, array in enumerate(arrays):
                self._kept.append(array)
                storage = self._storage.setdefault(id(array), len(self._storage))
                made = Line(self._seq, kind, name, io, index, TIME + self._seq, "float32", array.shape, array.nbytes)
                made.phase, made.module, made.source = phase, module, f"{self._source}:{line}"
                made.stride = tuple(step // array.itemsize for step in array.strides)
                made.storage, made.version = storage, 0
                if io == "input" and index == 0:
                    made.call = msgspec.Raw(call.encode())
                payload = Payload(array.tobytes(), 0, array.nbytes, "float32", array.shape)
                self.items.append(Item(made, payload))
        self._seq += 1
        return output


def write_training(
    root: Path, *, steps: int = 3, ranks: int = 2, fault: Optional[tuple[int, int]] = None, source: str = "model.py"
) -> Path:
    """A dump of some steps on some ranks. fault: the step and the rank from which on one operator is wrong by 1 %."""
    for rank in range(ranks):
        directory = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        directory.mkdir(parents=True)
        writer = HostWriter(directory, metadata={})
        for step in range(steps):
            wrong = fault is not None and step >= fault[0] and rank == fault[1]
            writer.begin_step(step)
            put(writer, *_step(rank, step, source, wrong=wrong))
            writer.end_step()
        writer.close()
    return root


def _step(rank: int, step: int, source: str, *, wrong: bool) -> list[Item]:
    random_numbers = np.random.default_rng((rank, step))
    weights = np.random.default_rng(0)
    program = _Program(rank, source)
    x = random_numbers.standard_normal((8, 24)).astype(np.float32)
    for layer in range(LAYERS):
        weight = (weights.standard_normal((24, 24)) / 5).astype(np.float32)
        made = x @ weight
        if wrong and layer == 1:
            made = made * np.float32(1.01)
        x = program.run(f"layers.{layer}.up/mm_0", "aten::mm", [x, weight], made, "forward", 3)
        x = program.run(f"layers.{layer}.act/tanh_0", "aten::tanh", [x], np.tanh(x), "forward", 4)
    for layer in reversed(range(LAYERS)):
        gradient = (1 - x * x).astype(np.float32)
        name = f"layers.{layer}.act/tanh_backward_0"
        x = program.run(name, "aten::tanh_backward", [x], gradient, "backward", 4)
    return program.items


class _Known:
    """A loader of records that have statistics and no values."""

    def __init__(self, found: Statistics) -> None:
        self._found = found

    def statistics(self, record: Record) -> Statistics:
        return self._found

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        from ascend_dump import NotSupported

        raise NotSupported("no values here")


def many_pairs(count: int) -> Iterator[PageRow]:
    """Pairs of a large model in two steps, four rows an operator: most equal, some noise, some different."""
    random_numbers = random.Random(0)
    for number in range(count):
        operator, position = divmod(number, 4)
        layer, kind = divmod(operator, 12)
        name = f"model.layers.{layer % 96}.{('self_attn', 'mlp', 'norm')[kind % 3]}/op_{kind}_{layer // 96}"
        draw = random_numbers.random()
        state = "equal" if draw < 0.5 else "noise" if draw < 0.9 else "different"
        size = random_numbers.lognormvariate(0, 2)
        found = [
            Statistics(4096, size * 3, -size * 2.9, random_numbers.gauss(0, size), size * 64, 0, 0, 0, 0, 0, 0)
            for _ in range(2)
        ]
        records = [
            Record(
                _Known(one),
                path=Path("index.jsonl"),
                op_type=f"aten::op_{kind}",
                op_name=name,
                io="input" if position < 3 else "output",
                index=position if position < 3 else 0,
                step=number * 2 // count,
                rank=0,
                dtype="bfloat16",
                shape=(4, 1024),
                nbytes=8192,
                phase="forward" if layer % 2 else "backward",
                module=name.partition("/")[0],
                source=f"/home/user/project/model/layer_{kind}.py:{100 + kind}",
                nth=operator,
                attrs={"storage": number % 5000, "version": number},
            )
            for one in found
        ]
        error = None
        if state != "equal":
            rel = math.exp(random_numbers.gauss(-9, 3))
            error = PageError(rel, rel * size, rel * 30, rel * size / 3, 1 - rel * rel, 4000, 4096, 0, (1, 2), ())
        reason = f"follows from an earlier difference (relative error {error.rel_l2:.2g})" if error else ""
        yield PageRow(records[0], records[1], state, reason, "dataflow, 95% sure", "identity", draw < 0.99, error)


def content_of_many(count: int) -> PageContent:
    """A page of `many_pairs`, with its first difference as the finding."""
    rows = list(many_pairs(count))
    first = next(row for row in rows if row.state == "different")
    finding = PageFinding(first.record.op_name, first.record, (("evidence", first.reason),))
    return PageContent("many pairs", rows, "different", "Something differs.", compared=True, findings=(finding,))


def content_of_hostile(names: tuple[str, ...] = (*HOSTILE, "long" * 2500)) -> PageContent:
    """A page on which every text of a dump is hostile."""
    rows, findings = [], []
    for number, name in enumerate(names):
        record = Record(
            _Known(Statistics(4, 1.0, 0.0, 0.5, 1.0, 0, 0, 0, 0, 0, 0)),
            path=Path("index.jsonl"),
            op_type=name,
            op_name=name,
            step=number,
            dtype="float32",
            shape=(4,),
            phase=name,
            module=name,
            source=f"{name}:1",
            model=name,
        )
        rows.append(PageRow(record, record, "different", name, name, name))
        findings.append(PageFinding(name, record, (("evidence", name), (name, name))))
    title, last = names[0], names[-1]
    return PageContent(
        title,
        rows,
        "different",
        " ".join(names),
        (("source", last),),
        last,
        True,
        tuple(findings),
        tuple(names),
        (("thresholds", last),),
    )
