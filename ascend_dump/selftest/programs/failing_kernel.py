"""What an exception dump leaves of a kernel that fails. It ends the device for a process, so each question is one."""

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_dump.selftest.processes import INTERFACE
from ascend_dump.selftest.program import ask_each

#: Far outside of a table of eight rows.
FAR = 1 << 28
#: What else would say where an exception dump goes.
VARIABLES = (
    *("ASCEND_DUMP_SCENE", "ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH"),
    "TORCH_ACL_INIT_CONFIG_PATH",
)


def fail(before: Any = lambda torch_npu: None) -> Any:
    """Import torch_npu, and let a kernel read what is not there. before: is called with torch_npu before that.

    Raises LookupError where the kernel did not fail.
    """
    torch_npu: Any = import_module("torch_npu")
    found = before(torch_npu)
    try:
        torch.nn.functional.embedding(torch.tensor([FAR]).npu(), torch.ones(8, 16).npu())
        torch_npu.npu.synchronize()
    except RuntimeError:
        return found
    raise LookupError("an index out of range did not let the kernel fail")


def place_of(directory: Path, name: str) -> Path:
    found = directory / name
    found.mkdir()
    return found


def left(place: Path) -> list[str]:
    """The files of an exception dump below a directory, without those of the kernel itself."""
    found = (path for path in (place / "extra-info").rglob("*") if path.is_file() and path.suffix != ".o")
    return sorted(str(path.relative_to(place)) for path in found)


def initial(directory: Path) -> list[str]:
    """Where nothing is set: what is in the working directory."""
    fail()
    return left(Path())


def later(directory: Path) -> dict[str, Any]:
    """Where a second exception dump is set: what it returned, what is in the working directory and in that of it."""
    place = place_of(directory, "set")
    config = directory / "later.json"
    config.write_text(json.dumps({"dump": {"dump_scene": "aic_err_norm_dump", "dump_path": str(place)}}))

    def set_dump(torch_npu: Any) -> str:
        torch.ones(1).npu()
        try:
            torch_npu.npu.utils.init_dump()
            torch_npu.npu.utils.set_dump(str(config))
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        return ""

    return {"refused": fail(set_dump), "first": left(Path()), "later": left(place)}


def by_variables(directory: Path, **variables: str) -> dict[str, list[str]]:
    """With these variables and a directory of its own as `{}`: what is in that directory, and in the working one."""
    place = place_of(directory, "named")
    os.environ.update({name: value.format(place) for name, value in variables.items()})
    fail()
    return {"named": left(place), "working": left(Path())}


def collected(directory: Path) -> dict[str, list[str]]:
    return by_variables(directory, NPU_COLLECT_PATH="{}")


def scene(directory: Path) -> dict[str, list[str]]:
    return by_variables(directory, ASCEND_DUMP_SCENE="aic_err_norm_dump", ASCEND_DUMP_PATH="{}")


def chosen(directory: Path) -> dict[str, list[str]]:
    """With another file for aclInit."""
    config = directory / "initial.json"
    settings = {"dump_scene": "aic_err_norm_dump", "dump_path": str(directory / "named")}
    config.write_text(json.dumps({"dump": settings, "defaultDevice": {"default_device": "0"}}))
    return by_variables(directory, TORCH_ACL_INIT_CONFIG_PATH=str(config))


def ask(question: str, directory: Path) -> dict[str, Any]:
    for name in VARIABLES:
        os.environ.pop(name, None)
    questions = (initial, later, collected, scene, chosen)
    asked = {one.__name__: partial(one, directory.resolve()) for one in questions if one.__name__ == question}
    return ask_each(directory, {f"failed_{name}": answer for name, answer in asked.items()})


if __name__ == "__main__":
    ask(sys.argv[2][len(INTERFACE) :], Path(sys.argv[3]))
