"""Facts about dumps of TensorFlow functions on an NPU that npu_device opened."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from ascend_dump.selftest.evidence import device_files
from ascend_dump.selftest.program import ask_each

tf: Any = import_module("tensorflow")
npu_device: Any = import_module("npu_device")


def steps_of_calls(dumps: Path) -> list[str]:
    """Return the dumped steps of a function that is called three times, with step 1 selected."""
    dumps.mkdir()
    dump = npu_device.global_options().dump_config
    dump.enable_dump, dump.dump_path, dump.dump_step, dump.dump_mode = True, str(dumps), "1", "all"
    npu_device.open().as_default()
    call(3)
    steps = {file.levels[-1] for file in device_files(dumps)}
    if not steps:
        raise LookupError("the function dumped nothing")
    return sorted(steps)


def options_once(first: Path, second: Path) -> dict[str, bool]:
    """Return True for each directory to which a new function dumped.

    first: the dump path when the device was opened. second: the dump path that is set before the function runs.
    """
    second.mkdir()
    before = len(device_files(first))
    npu_device.global_options().dump_config.dump_path = str(second)
    call(3)
    dumped = {"first": len(device_files(first)) > before, "second": bool(device_files(second))}
    if not any(dumped.values()):
        raise LookupError("the second function dumped nothing")
    return dumped


def call(times: int) -> None:
    """Make a new function, and call it this many times."""
    function = tf.function(lambda x: tf.nn.relu(x * 2.0))
    for number in range(times):
        function(tf.constant([float(number), -1.0]))


def ask(directory: Path) -> dict[str, Any]:
    first, second = directory / "first", directory / "second"
    questions: dict[str, Callable[[], Any]] = {
        "steps_of_calls": partial(steps_of_calls, first),
        "options_once": partial(options_once, first, second),
    }
    return ask_each(directory, questions)


if __name__ == "__main__":
    ask(Path(sys.argv[3]))
