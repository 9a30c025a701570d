"""How MindSpore on Ascend handles one dump JSON. It reads it once per process, so each question is a process."""

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from ascend_dump.native.cann.names import parse_name as parse_file
from ascend_dump.native.mindspore.names import NpyName, parse_name
from ascend_dump.native.mindspore.runtime import parse_version
from ascend_dump.selftest.processes import INTERFACE
from ascend_dump.selftest.program import ask_each
from ascend_dump.storage.files import read_small

#: So many elements of a tensor are kept, and so many iterations run while there is a dump.
SAMPLE, ITERATIONS = 8, 2
#: The first version in which jit_level O2 dumps nothing.
NEWER = (2, 6)
#: Bytes of a table of statistics.
LONGEST_TABLE = 1 << 20
#: An iteration that no setting selects.
FAR = 1000
X = np.linspace(1, 2, 32, dtype="f4").reshape(4, 8)


class Dumped:
    """A process with one dump JSON, and what it dumps.

    mode: `op_debug_mode`. e2e: more keys of `e2e_dump_settings`, None for no such block. common: more keys of
    `common_dump_settings`.
    """

    def __init__(
        self, directory: Path, *, e2e: Optional[dict[str, Any]], mode: int = 0, level: str = "O0", **common: Any
    ) -> None:
        self.root = directory / "dumped"
        self.net: Any = None
        wanted = {"dump_mode": 0, "path": str(self.root), "net_name": "Net", "iteration": "0|1|2", "kernels": []}
        wanted.update(saved_data="tensor", input_output=0, support_device=list(range(8)), op_debug_mode=mode)
        blocks: dict[str, Any] = {"common_dump_settings": {**wanted, **common}}
        if e2e is not None:
            blocks["e2e_dump_settings"] = {"enable": True, "trans_flag": True, **e2e}
        file = directory / "dump.json"
        file.write_text(json.dumps(blocks))
        os.environ["MINDSPORE_DUMP_CONFIG"] = str(file)
        self.mindspore: Any = import_module("mindspore")
        self.mindspore.set_context(mode=self.mindspore.GRAPH_MODE, jit_config={"jit_level": level})
        self.mindspore.set_device("Ascend")

    def run(self, x: np.ndarray, *, times: int = 1) -> None:
        """Multiply by 2, in float32 and in bfloat16, and continue with the products; each is one iteration."""
        ms = self.mindspore
        cell: Any = ms.nn.Cell

        class Doubled(cell):  # type: ignore[misc]  # the class is known when it runs
            def __init__(self) -> None:
                super().__init__()
                self.factor = ms.Parameter(ms.Tensor(np.float32(2)), name="factor")
                self.relu = ms.nn.ReLU()

            def construct(self, x: Any) -> Any:
                x = self.relu(x * self.factor)
                return ms.ops.cast(x, ms.bfloat16) * ms.ops.cast(self.factor, ms.bfloat16)

        if self.net is None:
            self.net = Doubled()
        for _ in range(times):
            self.net(ms.Tensor(x))
        wait = getattr(getattr(ms, "runtime", None), "synchronize", None)
        if wait is not None:
            wait()

    def tensors(self) -> dict[Path, NpyName]:
        found = {path: parse_name(path.name) for path in sorted(self.root.rglob("*.npy"))}
        return {path: name for path, name in found.items() if name is not None}

    def some_tensors(self) -> dict[Path, NpyName]:
        """The dumped tensors. Raises LookupError if there are none, so that the question has no answer."""
        found = self.tensors()
        if not found:
            raise LookupError("MindSpore dumped no tensor")
        return found


# One process with samples of tensors.


def tree(dumped: Dumped) -> dict[str, Any]:
    """The directories of the rank, those of tensors below them, and what is written of parameters."""
    dumped.run(X, times=ITERATIONS)
    found = dumped.some_tensors()
    places = {path.relative_to(dumped.root).parts[:-1] for path in found}
    return {
        "rank": sorted(path.name for path in (dumped.root / "rank_0").glob("*")),
        "tensors": sorted("/".join(place) for place in places),
        "parameters": sum(name.op_type == "Parameter" for name in found.values()),
    }


def stored_types(dumped: Dumped) -> dict[str, list[str]]:
    """The array types by the type in the file name."""
    found: dict[str, set[str]] = {}
    for path, name in dumped.some_tensors().items():
        try:
            stored = str(np.load(path, allow_pickle=False).dtype)
        except ValueError:  # a bfloat16 that is stored as such
            stored = "a type that NumPy does not have"
        found.setdefault(name.dtype or "", set()).add(stored)
    return {name: sorted(types) for name, types in sorted(found.items())}


def sampled(dumped: Dumped) -> dict[str, Any]:
    """The longest shape of a float32, and whether one holds the first elements of the network's input."""
    found = dumped.some_tensors().items()
    arrays = [np.load(path, allow_pickle=False) for path, name in found if str(name.dtype).lower() == "float32"]
    first = X.ravel()[:SAMPLE]
    shape = max((array.shape for array in arrays), key=lambda shape: (len(shape), shape))
    return {"shape": list(shape), "first": any(np.array_equal(array, first) for array in arrays)}


def paused(dumped: Dumped) -> bool:
    """Whether an iteration that is not selected left no tensor, between selected ones that did."""
    native = import_module("mindspore._c_expression")
    counts = [len(dumped.some_tensors())]
    for iteration in (FAR, 0):
        native._set_init_iter(iteration)
        dumped.run(X)
        counts.append(len(dumped.tensors()))
    if counts[1] > counts[0]:
        return False
    if counts[2] == counts[1]:
        raise LookupError("a selected iteration dumped nothing")
    return True


def ask_of_samples(directory: Path) -> dict[str, Any]:
    dumped = Dumped(directory, e2e={"sample_mode": 1, "sample_num": SAMPLE})
    questions = (tree, stored_types, sampled, paused)
    return ask_each(directory, {question.__name__: partial(question, dumped) for question in questions})


# Processes of one question.


def overflowed(directory: Path) -> list[str]:
    """The types of dumped operators, where the first product overflowed and others propagated it."""
    dumped = Dumped(directory, mode=3, e2e={})
    dumped.run(np.full_like(X, 3e38))
    return sorted({name.op_type for name in dumped.some_tensors().values()})


def without_e2e(directory: Path) -> bool:
    """Whether a configuration without that block dumped a tensor."""
    dumped = Dumped(directory, e2e=None)
    dumped.run(X)
    return bool(dumped.tensors())


def graph_engine(directory: Path) -> bool:
    """Whether jit_level O2 wrote a file."""
    dumped = Dumped(directory, level="O2", e2e={})
    dumped.run(X)
    return any(path.is_file() for path in dumped.root.rglob("*"))


def device_statistics(directory: Path) -> dict[str, bool]:
    """Which of the categories that were asked for have a column in the statistics that the device computed."""
    asked = ["max", "md5", "l2norm", "nan count"]
    dumped = Dumped(
        directory, e2e={"stat_calc_mode": "device"}, saved_data="statistic", statistic_category=asked, input_output=2
    )
    dumped.run(X)
    tables = sorted(dumped.root.rglob("statistic.csv"))
    if not tables:
        raise LookupError("MindSpore wrote no statistics")
    columns = read_small(tables[0], LONGEST_TABLE).decode(errors="replace").partition("\n")[0].lower().split(",")
    return {name: any(column.startswith(name) for column in columns) for name in asked}


def older_layout(directory: Path) -> list[str]:
    """The directories of what jit_level O2 dumped, below the path. Raises LookupError where the version has no such
    dump."""
    dumped = Dumped(directory, level="O2", e2e={})
    version = str(dumped.mindspore.__version__)
    if (parse_version(version) or NEWER) >= NEWER:
        raise LookupError(f"MindSpore {version} dumps nothing under O2; versions below 2.6 do")
    dumped.run(X)
    found = {path.parent for path in dumped.root.rglob("*") if path.is_file() and parse_file(path.name) is not None}
    if not found:
        raise LookupError(f"MindSpore {version} dumped nothing under O2")
    return sorted(str(place.relative_to(dumped.root)) for place in found)


def ask(question: str, directory: Path) -> dict[str, Any]:
    if question == "samples":
        return ask_of_samples(directory)
    questions: tuple[Callable[[Path], Any], ...] = (
        *(overflowed, without_e2e, graph_engine),
        *(device_statistics, older_layout),
    )
    by_name = {one.__name__: one for one in questions}
    return ask_each(directory, {question: partial(by_name[question], directory)})


if __name__ == "__main__":
    ask(sys.argv[2][len(INTERFACE) :], Path(sys.argv[3]))
