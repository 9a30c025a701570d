"""Facts about dumps of TensorFlow sessions that run on an NPU through npu_bridge.

Each question is a function, and its sessions dump to directories of their own. `probes_frameworks.py` lists the
expected answers.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.selftest.evidence import DeviceFile, device_files
from ascend_dump.selftest.program import ask_each

tensorflow: Any = import_module("tensorflow")
npu_init: Any = import_module("npu_bridge.npu_init")
tf: Any = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
if tf is not tensorflow:
    tf.disable_eager_execution()
X = np.arange(8, dtype="f4").reshape(2, 4)
#: The value of a variable before the run, and the number that the run adds to it.
BEFORE, ADDED = 1.0, 2.0
#: Number of iterations on the device in one `session.run`.
LOOP = 2


class Dumps:
    """Directories for the dumps of sessions, and the settings of these dumps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def root(self, name: str) -> Path:
        root = self.directory / name
        root.mkdir(exist_ok=True)
        return root

    def keys(self, name: str, **settings: Any) -> dict[str, Any]:
        """Return the dump settings of a session that dumps to the directory `name`. settings: additional settings."""
        return {"enable_dump": True, "dump_path": str(self.root(name)), "dump_mode": "all", **settings}

    def files(self, name: str) -> list[DeviceFile]:
        return [file for file in device_files(self.root(name)) if file.name is not None]

    def some_files(self, name: str) -> list[DeviceFile]:
        """Return the dump files in the directory `name`. Raises LookupError if there are none.

        The question then has no answer.
        """
        files = self.files(name)
        if not files:
            raise LookupError(f"the session {name!r} dumped nothing")
        return files


def make_config(*entries: dict[str, Any]) -> Any:
    """Return a ConfigProto with one NpuOptimizer for each dict of settings."""
    config = tf.ConfigProto()
    for keys in entries:
        entry = config.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = "NpuOptimizer"
        for key, value in {"use_off_line": True, **keys}.items():
            if isinstance(value, bool):
                entry.parameter_map[key].b = value
            elif isinstance(value, int):
                entry.parameter_map[key].i = value
            else:
                entry.parameter_map[key].s = value.encode()
    return npu_init.npu_config_proto(config)


@contextmanager
def opened(config: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a session with a new graph, and the graph's placeholder `x`, of the shape of `X`."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, X.shape, name="x")
        with tf.Session(config=config) as session:
            yield session, x


def run_once(config: Any) -> None:
    """Run one operator, a Relu, in a new session."""
    with opened(config) as (session, x):
        session.run(tf.nn.relu(x, name="relu"), {x: X})


def init_keys(dumps: Dumps) -> bool:
    """Return True if a session without dump settings dumped, because init_resource got dump settings before.

    This has to be the first question of the process, because the process initialises GE once.
    """
    with tf.Graph().as_default():
        session, shutdown = npu_init.init_resource(config=make_config(dumps.keys("init")))
        run_once(make_config({}))
        npu_init.shutdown_resource(session, shutdown)
        npu_init.close_session(session)
    run_once(make_config(dumps.keys("with_keys")))
    dumps.some_files("with_keys")
    return bool(dumps.files("init"))


def last_entry(dumps: Dumps) -> dict[str, bool]:
    """Return True if a session dumped, by the last of its two entries: "on" enables the dump, "off" disables it."""
    run_once(make_config(dumps.keys("last_off"), dumps.keys("last_off", enable_dump=False)))
    run_once(make_config(dumps.keys("last_on", enable_dump=False), dumps.keys("last_on")))
    dumped = {name: bool(dumps.files(f"last_{name}")) for name in ("on", "off")}
    if not any(dumped.values()):
        raise LookupError("neither session dumped anything")
    return dumped


def graph_names(dumps: Dumps) -> list[list[str]]:
    """Return the names of the dumped models of three sessions, one list for each session."""
    models = []
    for number in range(3):
        name = f"session_{number}"
        run_once(make_config(dumps.keys(name)))
        models.append(sorted({file.levels[1] for file in dumps.some_files(name)}))
    return models


def signatures(dumps: Dumps) -> list[list[str]]:
    """Return the dumped steps of each model of one session. The session ran two sets of fetches, and the first again.

    The device has a model for each set.
    """
    with opened(make_config(dumps.keys("signatures"))) as (session, x):
        fetches = tf.nn.relu(x, name="relu"), tf.matmul(x, x, transpose_b=True, name="product")
        for number in (0, 1, 0):
            session.run(fetches[number], {x: X})
    models: dict[str, set[str]] = {}
    for file in dumps.some_files("signatures"):
        models.setdefault("/".join(file.levels[:-1]), set()).add(file.levels[-1])
    return sorted(sorted(steps) for steps in models.values())


def fed_names(dumps: Dumps) -> list[str]:
    """Return the names of the dumped operators of type Data in the first session of `graph_names`, which feeds `x`."""
    return sorted({file.parsed.op_name for file in dumps.some_files("session_0") if file.parsed.op_type == "Data"})


def variable_values(dumps: Dumps) -> dict[str, list[float]]:
    """Return the dumped values of a variable, as input of the product that reads it and of the later `assign_add`."""
    with opened(make_config(dumps.keys("variables"))) as (session, x):
        variable = tf.get_variable("w", [4, 3], initializer=tf.constant_initializer(BEFORE), use_resource=False)
        product = tf.matmul(x, variable, name="product")
        with tf.control_dependencies([product]):
            added = tf.assign_add(variable, tf.constant(ADDED, tf.float32, [4, 3]), name="added")
        session.run(tf.global_variables_initializer())
        session.run([product, added], {x: X})
    values: dict[str, list[float]] = {}
    for name, index in (("product", 1), ("added", 0)):
        for file in dumps.some_files("variables"):
            if file.parsed.op_name != name:
                continue
            header = read_header(file.path)
            for tensor in header.tensors:
                if (tensor.io, tensor.index) == ("input", index):
                    values[name] = sorted(set(decode(header, tensor).ravel().tolist()))
    return values


def loop(dumps: Dumps) -> list[str]:
    """Return the dumped steps of an operator that runs `LOOP` iterations on the device in each of two runs."""
    util: Any = import_module("npu_bridge.estimator.npu.util")
    if not hasattr(util, "set_iteration_per_loop"):
        raise LookupError("npu_bridge has no set_iteration_per_loop")
    keys = dumps.keys("loop", enable_data_pre_proc=True, iterations_per_loop=LOOP)
    with opened(make_config(keys)) as (session, x):
        variable = tf.get_variable("w", [2, 4], initializer=tf.constant_initializer(BEFORE), use_resource=False)
        added = tf.assign_add(variable, x, name="added")
        session.run(tf.global_variables_initializer())
        operation = util.set_iteration_per_loop(session, added.op, LOOP)
        for _ in range(2):
            session.run(operation, {x: X})
    return sorted({file.levels[-1] for file in dumps.some_files("loop") if file.parsed.op_name == "added"})


def times_of_sessions(dumps: Dumps) -> int:
    """Return the number of time directories of two sessions with one dump path, started in different seconds."""
    for _ in range(2):
        start_second = int(time.time())
        run_once(make_config(dumps.keys("times")))
        while int(time.time()) == start_second:
            time.sleep(0.02)
    return len({file.time for file in dumps.some_files("times")})


def graph_texts(dumps: Dumps) -> bool:
    """Return True if a session with a dump writes the text of its graph.

    Raises LookupError if a session without a dump writes it too.
    """
    before = texts()
    run_once(make_config({}))
    if texts() - before:
        raise LookupError("GE writes graphs without a dump too, as the variable DUMP_GE_GRAPH requests")
    run_once(make_config(dumps.keys("texts")))
    dumps.some_files("texts")
    return bool(texts() - before)


def texts() -> set[Path]:
    """Return the paths of the graph texts below the working directory and the directories that variables name."""
    names = ("NPU_COLLECT_PATH", "DUMP_GRAPH_PATH", "ASCEND_WORK_PATH")
    directories = [Path(), *(Path(os.environ[name]) for name in names if os.environ.get(name))]
    return {path.resolve() for directory in directories for path in directory.rglob("ge_proto_*_Build.txt")}


def ask(directory: Path) -> dict[str, Any]:
    dumps = Dumps(directory)
    questions = (
        *(init_keys, last_entry, graph_names, signatures, fed_names, variable_values),
        *(times_of_sessions, graph_texts, loop),
    )
    return ask_each(directory, {question.__name__: partial(question, dumps) for question in questions})


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
