"""What torch_npu's dump interface answers: each call on its own, with one kernel behind it where files tell."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import torch

torch_npu: Any = import_module("torch_npu")
CODE = re.compile(r"error code is (\d{6})\b")


class Interface:
    """The calls, and the directories that dumps go to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.utils = torch_npu.npu.utils

    def config(self, name: str, **settings: Any) -> str:
        """A dump JSON for kernels, into a directory of its own."""
        place = self.directory / name
        place.mkdir(exist_ok=True)
        keys = {"dump_path": str(place), "dump_mode": "all", "dump_op_switch": "on", "dump_list": [], **settings}
        return self.text(name, json.dumps({"dump": keys}))

    def text(self, name: str, content: str) -> str:
        file = self.directory / f"{name}.json"
        file.write_text(content)
        return str(file)

    def has_files(self, name: str) -> bool:
        return any(path.is_file() for path in (self.directory / name).rglob("*"))

    def dump(self, *configs: str) -> None:
        """Set these files one after the other, launch a kernel, and end the dump."""
        self.utils.init_dump()
        try:
            for config in configs:
                self.utils.set_dump(config)
            (torch.ones(4).npu() + 1).cpu()
            torch_npu.npu.synchronize()
        finally:
            self.utils.finalize_dump()

    def files_of(self, name: str, **settings: Any) -> bool:
        self.dump(self.config(name, **settings))
        return self.has_files(name)


def code_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """0, acl's code, or what was raised without one."""
    try:
        call(*arguments)
    except (RuntimeError, AssertionError) as error:
        found = CODE.search(str(error))
        return int(found[1]) if found else str(error).partition("\n")[0]
    return 0


def ask(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    torch_npu.npu.init_dump()
    facts["waiting_interface"] = not torch_npu.npu.is_initialized()
    torch_npu.npu.finalize_dump()
    torch.ones(4).npu().cpu()
    interface = Interface(directory)
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
    facts["begin_again"] = interface.files_of("again")
    interface.dump(interface.config("first"), interface.config("second"))
    facts["set_again"] = {name: interface.has_files(name) for name in ("first", "second")}
    interface.dump(interface.config("kept"), interface.text("nothing", '{"dump": {}}'))
    facts["nothing_asked"] = interface.has_files("kept")
    other = [{"model_name": "none", "layer": ["none"]}]
    facts["single_operators"] = interface.files_of("single", dump_step="7", dump_list=other)
    facts["kernel_level"] = {
        level: interface.files_of(f"level_{level}", dump_level=level) for level in ("op", "kernel")
    }
    return facts


if __name__ == "__main__":
    place = Path(sys.argv[3])
    (place / "truth.json").write_text(json.dumps({"facts": ask(place)}))
