"""Facts about the exception dump of a failing kernel.

After the failure, the process can no longer use the device. So each question has a process of its own. Its answers
are paths relative to the directory of the dump.
"""

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

#: An index far outside of a table of eight rows.
FAR = 1 << 28
#: Variables that change the exception dump. They are removed before a question sets its own.
VARIABLES = (
    *("ASCEND_DUMP_SCENE", "ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH"),
    "TORCH_ACL_INIT_CONFIG_PATH",
)


def fail(before: Any = lambda torch_npu: None) -> Any:
    """Import torch_npu, let a kernel read beyond the end of a tensor, and return the result of `before`.

    before: called with the module torch_npu before the kernel runs. Raises LookupError if the kernel did not fail.
    """
    torch_npu: Any = import_module("torch_npu")
    result = before(torch_npu)
    try:
        torch.nn.functional.embedding(torch.tensor([FAR]).npu(), torch.ones(8, 16).npu())
        torch_npu.npu.synchronize()
    except RuntimeError:
        return result
    raise LookupError("an index out of range did not let the kernel fail")


def new_directory(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


def dump_files(root: Path) -> list[str]:
    """Return the files of an exception dump below `root`, without the binaries of the kernel (`.o`)."""
    files = (path for path in (root / "extra-info").rglob("*") if path.is_file() and path.suffix != ".o")
    return sorted(str(path.relative_to(root)) for path in files)


def initial(directory: Path) -> list[str]:
    """Return the files in the working directory, with torch_npu's default configuration."""
    fail()
    return dump_files(Path())


def later(directory: Path) -> dict[str, Any]:
    """Set a second exception dump, after the one of aclInit.

    refused  first line of the error of set_dump, "" if there is none
    first    files of the first dump, in the working directory
    later    files in the directory of the second dump
    """
    root = new_directory(directory, "set")
    config = directory / "later.json"
    config.write_text(json.dumps({"dump": {"dump_scene": "aic_err_norm_dump", "dump_path": str(root)}}))

    def set_dump(torch_npu: Any) -> str:
        torch.ones(1).npu()
        try:
            torch_npu.npu.utils.init_dump()
            torch_npu.npu.utils.set_dump(str(config))
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        return ""

    return {"refused": fail(set_dump), "first": dump_files(Path()), "later": dump_files(root)}


def by_variables(directory: Path, **variables: str) -> dict[str, list[str]]:
    """Set environment variables, and return the files of the dump.

    variables: values, in which `{}` stands for a new directory. named: files in this directory. working: files in the
    working directory.
    """
    named = new_directory(directory, "named")
    os.environ.update({name: value.format(named) for name, value in variables.items()})
    fail()
    return {"named": dump_files(named), "working": dump_files(Path())}


def collected(directory: Path) -> dict[str, list[str]]:
    return by_variables(directory, NPU_COLLECT_PATH="{}")


def scene(directory: Path) -> dict[str, list[str]]:
    return by_variables(directory, ASCEND_DUMP_SCENE="aic_err_norm_dump", ASCEND_DUMP_PATH="{}")


def chosen(directory: Path) -> dict[str, list[str]]:
    """Let aclInit read another configuration, which requests a norm dump."""
    config = directory / "initial.json"
    settings = {"dump_scene": "aic_err_norm_dump", "dump_path": str(directory / "named")}
    config.write_text(json.dumps({"dump": settings, "defaultDevice": {"default_device": "0"}}))
    return by_variables(directory, TORCH_ACL_INIT_CONFIG_PATH=str(config))


def norm_early(directory: Path) -> list[str]:
    """Return the files of a norm exception dump that is set before the first operator. aclInit sets no dump."""
    return by_set_dump(directory, operators=0)


def norm_late(directory: Path) -> list[str]:
    """Return the files of a norm exception dump that is set after the first operator."""
    return by_set_dump(directory, operators=1)


def by_set_dump(directory: Path, *, operators: int) -> list[str]:
    """Return the files of an exception dump by set_dump. operators: number of operators that run before set_dump."""
    root, initial, config = new_directory(directory, "set"), directory / "initial.json", directory / "norm.json"
    initial.write_text(json.dumps({"defaultDevice": {"default_device": "0"}}))
    config.write_text(json.dumps({"dump": {"dump_scene": "aic_err_norm_dump", "dump_path": str(root)}}))
    os.environ["TORCH_ACL_INIT_CONFIG_PATH"] = str(initial)

    def set_dump(torch_npu: Any) -> None:
        x = torch.ones(1).npu()
        for _ in range(operators):
            (x + 1).cpu()
        torch_npu.npu.utils.init_dump()
        torch_npu.npu.utils.set_dump(str(config))

    fail(set_dump)
    return dump_files(root)


def ask(question: str, directory: Path) -> dict[str, Any]:
    for name in VARIABLES:
        os.environ.pop(name, None)
    questions = (initial, later, collected, scene, chosen, norm_early, norm_late)
    asked = {
        answer.__name__: partial(answer, directory.resolve()) for answer in questions if answer.__name__ == question
    }
    return ask_each(directory, {f"failed_{name}": answer for name, answer in asked.items()})


if __name__ == "__main__":
    ask(sys.argv[2][len(INTERFACE) :], Path(sys.argv[3]))
