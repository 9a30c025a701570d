"""Facts about dumps of MindSpore on Ascend.

A process of MindSpore reads one dump JSON. So each question has a process of its own, except the questions of
`ask_of_samples`, which share one configuration.
"""

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import numpy as np

from ascend_dump.native.cann.names import parse_name as parse_file
from ascend_dump.native.mindspore.names import NpyName, parse_name
from ascend_dump.native.mindspore.runtime import parse_version
from ascend_dump.selftest.processes import INTERFACE
from ascend_dump.selftest.program import ask_each
from ascend_dump.storage.files import read_small

#: Number of elements in a sample of a tensor, and number of iterations that are dumped.
SAMPLE, ITERATIONS = 8, 2
#: The first version of MindSpore in which jit_level O2 dumps nothing.
NEWER = (2, 6)
#: Maximum number of bytes that are read of a table of statistics.
LONGEST_TABLE = 1 << 20
#: The number of an iteration that no dump JSON selects.
FAR = 1000
X = np.linspace(1, 2, 32, dtype="f4").reshape(4, 8)


class Dumped:
    """The dump of this process: it writes the dump JSON, imports MindSpore, and runs a network.

    e2e     further keys of `e2e_dump_settings`; None leaves the whole block out
    mode    the value of `op_debug_mode`
    level   MindSpore's jit_level
    common  further keys of `common_dump_settings`
    """

    def __init__(
        self, directory: Path, *, e2e: Optional[dict[str, Any]], mode: int = 0, level: str = "O0", **common: Any
    ) -> None:
        self.root = directory / "dumped"
        self.net: Any = None
        settings = {"dump_mode": 0, "path": str(self.root), "net_name": "Net", "iteration": "0|1|2", "kernels": []}
        settings.update(saved_data="tensor", input_output=0, support_device=list(range(8)), op_debug_mode=mode)
        blocks: dict[str, Any] = {"common_dump_settings": {**settings, **common}}
        if e2e is not None:
            blocks["e2e_dump_settings"] = {"enable": True, "trans_flag": True, **e2e}
        file = directory / "dump.json"
        file.write_text(json.dumps(blocks))
        os.environ["MINDSPORE_DUMP_CONFIG"] = str(file)
        self.mindspore: Any = import_module("mindspore")
        self.mindspore.set_context(mode=self.mindspore.GRAPH_MODE, jit_config={"jit_level": level})
        self.mindspore.set_device("Ascend")

    def run(self, x: np.ndarray, *, times: int = 1) -> None:
        """Run the network `times` times; each run is one iteration.

        The network multiplies `x` by 2 in float32, applies Relu, and multiplies by 2 again in bfloat16.
        """
        ms = self.mindspore
        cell: Any = ms.nn.Cell

        class Doubled(cell):  # type: ignore[misc]  # a class of the imported module
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
        names = {path: parse_name(path.name) for path in sorted(self.root.rglob("*.npy"))}
        return {path: name for path, name in names.items() if name is not None}

    def some_tensors(self) -> dict[Path, NpyName]:
        """Return the dumped tensors: the parsed file name by path. Raises LookupError if there are none."""
        tensors = self.tensors()
        if not tensors:
            raise LookupError("MindSpore dumped no tensor")
        return tensors


# Questions that share one process, which dumps samples of tensors.


def tree(dumped: Dumped) -> dict[str, Any]:
    """Return the layout of the dump.

    rank        names in the directory `rank_0`
    tensors     directories with tensors
    parameters  number of dumped parameters
    """
    dumped.run(X, times=ITERATIONS)
    tensors = dumped.some_tensors()
    directories = {path.relative_to(dumped.root).parts[:-1] for path in tensors}
    return {
        "rank": sorted(path.name for path in (dumped.root / "rank_0").glob("*")),
        "tensors": sorted("/".join(directory) for directory in directories),
        "parameters": sum(name.op_type == "Parameter" for name in tensors.values()),
    }


def stored_types(dumped: Dumped) -> dict[str, list[str]]:
    """Return the types of the arrays in the files, by the type in the file name."""
    types_by_name: dict[str, set[str]] = {}
    for path, name in dumped.some_tensors().items():
        try:
            stored = str(np.load(path, allow_pickle=False).dtype)
        except ValueError:  # bfloat16 is stored unchanged
            stored = "a type that NumPy does not have"
        types_by_name.setdefault(name.dtype or "", set()).add(stored)
    return {name: sorted(types) for name, types in sorted(types_by_name.items())}


def sampled(dumped: Dumped) -> dict[str, Any]:
    """Return the shape of the dumped float32 arrays, and True if one has the first elements of the network's input.

    If the arrays have several shapes, the one with the most dimensions is returned.
    """
    tensors = dumped.some_tensors().items()
    arrays = [np.load(path, allow_pickle=False) for path, name in tensors if str(name.dtype).lower() == "float32"]
    first = X.ravel()[:SAMPLE]
    shape = max((array.shape for array in arrays), key=lambda shape: (len(shape), shape))
    return {"shape": list(shape), "first": any(np.array_equal(array, first) for array in arrays)}


def paused(dumped: Dumped) -> bool:
    """Return True if an iteration that is not selected, between two selected ones, wrote no tensor.

    Raises LookupError if the second selected iteration wrote nothing.
    """
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


# Questions that have a process of their own.


def overflowed(directory: Path) -> list[str]:
    """Return the types of the operators that overflow detection dumps.

    The first product overflows, and later operators propagate its Inf.
    """
    dumped = Dumped(directory, mode=3, e2e={})
    dumped.run(np.full_like(X, 3e38))
    return sorted({name.op_type for name in dumped.some_tensors().values()})


def without_e2e(directory: Path) -> bool:
    """Return True if a configuration without e2e_dump_settings dumped a tensor."""
    dumped = Dumped(directory, e2e=None)
    dumped.run(X)
    return bool(dumped.tensors())


def graph_engine(directory: Path) -> bool:
    """Return True if jit_level O2 wrote a file."""
    dumped = Dumped(directory, level="O2", e2e={})
    dumped.run(X)
    return any(path.is_file() for path in dumped.root.rglob("*"))


def device_statistics(directory: Path) -> dict[str, bool]:
    """Return True for each requested category that has a column in the statistics that the device computes."""
    categories = ["max", "md5", "l2norm", "nan count"]
    dumped = Dumped(
        directory,
        e2e={"stat_calc_mode": "device"},
        saved_data="statistic",
        statistic_category=categories,
        input_output=2,
    )
    dumped.run(X)
    tables = sorted(dumped.root.rglob("statistic.csv"))
    if not tables:
        raise LookupError("MindSpore wrote no statistics")
    columns = read_small(tables[0], LONGEST_TABLE).decode(errors="replace").partition("\n")[0].lower().split(",")
    return {name: any(column.startswith(name) for column in columns) for name in categories}


def older_layout(directory: Path) -> list[str]:
    """Return the directories with dump files under jit_level O2.

    Raises LookupError for MindSpore 2.6 and newer, which dump nothing under O2.
    """
    dumped = Dumped(directory, level="O2", e2e={})
    version = str(dumped.mindspore.__version__)
    if (parse_version(version) or NEWER) >= NEWER:
        raise LookupError(f"MindSpore {version} dumps nothing under O2; versions below 2.6 do")
    dumped.run(X)
    directories = {
        path.parent for path in dumped.root.rglob("*") if path.is_file() and parse_file(path.name) is not None
    }
    if not directories:
        raise LookupError(f"MindSpore {version} dumped nothing under O2")
    return sorted(str(parent.relative_to(dumped.root)) for parent in directories)


def ask(question: str, directory: Path) -> dict[str, Any]:
    if question == "samples":
        return ask_of_samples(directory)
    questions = (overflowed, without_e2e, graph_engine, device_statistics, older_layout)
    by_name = {answer.__name__: answer for answer in questions}
    return ask_each(directory, {question: partial(by_name[question], directory)})


if __name__ == "__main__":
    ask(sys.argv[2][len(INTERFACE) :], Path(sys.argv[3]))
