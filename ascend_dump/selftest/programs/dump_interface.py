"""The answers of torch_npu's dump interface to calls: codes, or the files of a kernel."""

import json
import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import torch

from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.kernel_dumps import KernelDumps

torch_npu: Any = import_module("torch_npu")
CODE = re.compile(r"error code is (\d{6})\b")


def code_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return 0, acl's code, or the message of an error without a code."""
    try:
        call(*arguments)
    except (RuntimeError, AssertionError) as error:
        match = CODE.search(str(error))
        return int(match[1]) if match else str(error).partition("\n")[0]
    return 0


def ask(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    torch_npu.npu.init_dump()
    facts["waiting_interface"] = not torch_npu.npu.is_initialized()
    torch_npu.npu.finalize_dump()
    torch.ones(4).npu().cpu()
    interface = KernelDumps(torch_npu, directory)
    utils = interface.utils
    good = interface.config("good")
    facts["set_dump_first"] = code_of(utils.set_dump, good)
    facts["checked_interface"] = isinstance(facts["set_dump_first"], int) and facts["set_dump_first"] != 0
    utils.init_dump()
    facts["init_dump_twice"] = code_of(utils.init_dump)
    facts["missing_file"] = code_of(utils.set_dump, str(directory / "missing.json"))
    facts["deep_file"] = code_of(utils.set_dump, interface.text("deep", '{"a":' * 11 + "1" + "}" * 11))
    facts["refused_file"] = code_of(utils.set_dump, interface.config("refused", dump_mode="everything"))
    facts["empty_file"] = code_of(utils.set_dump, interface.text("empty", ""))
    facts["set_after_refusal"] = code_of(utils.set_dump, good)
    utils.finalize_dump()
    facts["begin_again"] = bool(interface.files_of("again"))
    interface.dump(interface.config("first"), interface.config("second"))
    facts["set_again"] = {name: interface.has_files(name) for name in ("first", "second")}
    interface.dump(interface.config("kept"), interface.text("nothing", '{"dump": {}}'))
    facts["nothing_asked"] = interface.has_files("kept")
    items = [{"model_name": "none", "layer": ["none"]}]
    facts["single_operators"] = bool(interface.files_of("single", dump_step="7", dump_list=items))
    facts["kernel_level"] = {
        level: bool(interface.files_of(f"level_{level}", dump_level=level)) for level in ("op", "kernel")
    }
    questions = (empty_operator, sides_of_modes, generated_names)
    asked = {question.__name__: partial(question, interface) for question in questions}
    return {**facts, **ask_each(directory, asked)}


def empty_operator(interface: KernelDumps) -> dict[str, bool]:
    """Return True for the files of a kernel without an element, and of a kernel with one element."""
    return {
        name: bool(interface.files_of(f"of_{name}", launch=partial(add_one, size)))
        for name, size in (("empty", 0), ("other", 1))
    }


def add_one(size: int) -> None:
    """Add 1 to a tensor of this number of elements."""
    (torch.ones(size).npu() + 1).cpu()


def sides_of_modes(interface: KernelDumps) -> dict[str, list[str]]:
    """Return by mode the sides of the tensors of each file."""
    found = {}
    for mode in ("input", "output"):
        headers = [read_header(path) for path in interface.files_of(f"mode_{mode}", dump_mode=mode)]
        found[mode] = sorted({"+".join(sorted({tensor.io for tensor in header.tensors})) for header in headers})
    return found


def generated_names(interface: KernelDumps) -> list[str]:
    """Return the files of an operator whose API has no source in CANN's operator repositories."""
    x = torch.ones(4).npu()
    files = interface.files_of("generated", launch=lambda: torch._foreach_abs([x])[0].cpu())
    return [path.name for path in files]


if __name__ == "__main__":
    directory = Path(sys.argv[3])
    (directory / "truth.json").write_text(json.dumps({"facts": ask(directory)}))
