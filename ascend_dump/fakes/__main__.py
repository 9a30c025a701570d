"""`python -m ascend_dump.fakes torch_npu -- train.py …`: run a program on the simulated device.

Separate several fakes by commas. The arguments after `--` are those of `python train.py …`.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ascend_dump import ConfigError
from ascend_dump.fakes import FAKES, install

#: The installation. It is never ended, because functions that run at exit may still use tensors of the device.
_installed = contextlib.ExitStack()


def run(arguments: Sequence[str]) -> None:
    """Install the fakes, and run the program that the arguments name.

    Raises ConfigError for arguments without `--` or without a program, and if the program imports a module of which a
    fake exists but is not installed.
    """
    if len(arguments) < 3 or arguments[1] != "--":
        raise ConfigError(
            f"python -m ascend_dump.fakes needs fakes, `--` and a program, not {' '.join(arguments)!r}",
            hint=f"python -m ascend_dump.fakes torch_npu -- train.py; the fakes are {', '.join(FAKES)}",
        )
    program = arguments[2]
    sys.argv[:] = arguments[2:]
    sys.path[0] = str(Path(program).resolve().parent)
    _installed.enter_context(install(*arguments[0].split(",")))
    try:
        runpy.run_path(program, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in FAKES:
            raise
        raise ConfigError(
            f"{program} imports {error.name}, but the fake of it is not installed",
            hint=f"python -m ascend_dump.fakes {arguments[0]},{error.name} -- {program}",
        ) from error


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except ConfigError as error:
        sys.exit(str(error))
