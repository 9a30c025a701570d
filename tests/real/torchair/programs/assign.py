"""Assign every value of a table to every option of a CompilerConfig, and write down what happens.

python assign.py VERSION        ("fake" for the fake torchair) -> outcomes.json
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import frontend

#: Python expressions: what options take, what is close to it, and what no option takes.
TABLE = """
    None True False 0 1 2 -1 -2 64 2**63-1 2**63 0.0 1.5 '' 'x' '\\u0020' '1' '0' 'True' 'False' 'None' b'all' [] [1,2]
    ['a'] (1,) {} {'a':1} len object
    'input' 'output' 'all' 'ALL' 'tensor' 'stats' 'original' 'optimized' 'txt' 'pbtxt' 'py' 'npy' 'csv' 'auto' 'jit'
    'max-autotune' 'reduce-overhead' 'npugraph_ex' 'eager' 'zip' 'product' 'BFS' 'DFS' 'RDFS' 'StableRDFS' 'O1' 'O3'
    'a' '0|3-5|10' '0|1' '5' '1|' '|' '||' '1||2' '0-' '-1' '1-2-3' '5-2' '3-3' '1-2|' '1-23-4' '1,2' '0|1\\n' '\\n'
    '\u2460' '\u0663' 'Add_1' 'MatMul_Add/a.b' 'Add-1' 'Add,Mul' 'a:0' '"a"' 'Add_1\\n' 'Add\\tMul' '\u7b97'
    'Add_1\\u0020Mul_1' 'a\\u0020b/c.d\\\\e' 'folder' './folder' 'folder/' 'missing' 'file.json' 'file.txt'
    'empty.json' 'folder.json' 'FILE.JSON' '~' '/' '.' '..'
"""
VALUES = TABLE.split()
UNKNOWN = "bogus"
SEQUENCES = 150


def make_files() -> None:
    os.mkdir("folder")
    os.mkdir("folder.json")
    for name, text in (("file.json", "{}"), ("file.txt", "{}"), ("empty.json", ""), ("FILE.JSON", "{}")):
        with open(name, "w") as file:
            file.write(text)


def options_of(holder: Any, prefix: str = "") -> Iterator[str]:
    """The dotted name of every option and section."""
    for name, value in vars(holder).items():
        if name == "_fixed_attrs":
            continue
        yield prefix + name
        if hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "optional"):
            yield from options_of(value, f"{prefix}{name}.")


def assign(config: Any, name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        config = getattr(config, section)
    setattr(config, last, value)


def read(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return [plain(config), bool(config)]


def plain(value: Any) -> str:
    if hasattr(value, "optional") and hasattr(value, "value"):
        return f"option {value.value!r}"
    # Functions and sections have addresses.
    return type(value).__name__ if " object at 0x" in repr(value) else repr(value)


def as_dict(config: Any) -> Any:
    return attempt(lambda: [{key: plain(value) for key, value in each.items()} for each in config.as_dict()])


def attempt(call: Any) -> Any:
    try:
        return ["ok", call()]
    except Exception as error:
        text = str(error)
        message, traceback, _ = text.partition("\nTraceback")
        # The tail with the traceback, the time and the process belongs to torchair's errors alone.
        tail = bool(traceback) and text.endswith("ERR03005 GRAPH internal error")
        return ["error", type(error).__name__, message.strip(), tail]


def assigned(config_class: Any, name: str, value: str) -> Any:
    config = config_class()

    def call() -> Any:
        assign(config, name, eval(value))
        return [read(config, name), as_dict(config)]

    return attempt(call)


def sequence(config_class: Any, names: list[str], seed: int) -> Any:
    """Several assignments one after another to one CompilerConfig, and whether it still equals a new one."""
    choose = random.Random(seed)
    config = config_class()
    outcomes = []
    for _ in range(6):
        name, value = choose.choice(names), choose.choice(VALUES)
        outcomes.append(attempt(lambda name=name, value=value: assign(config, name, eval(value))))
    return [outcomes, as_dict(config), attempt(lambda: config == config_class())]


def main(version: str) -> None:
    make_files()
    with frontend.installed(version):
        import torchair

        config_class = torchair.CompilerConfig
        names = sorted(options_of(config_class()))
        sections = ["", *(name for name in names if any(other.startswith(f"{name}.") for other in names))]
        unknown = [f"{section}.{UNKNOWN}".lstrip(".") for section in sections]
        found = {
            "options": names,
            "defaults": {name: read(config_class(), name) for name in names},
            "default": as_dict(config_class()),
            "assigned": {
                f"{name} = {value}": assigned(config_class, name, value)
                for name in [*names, *unknown]
                for value in VALUES
            },
            "sequences": [sequence(config_class, names, seed) for seed in range(SEQUENCES)],
            "hash": attempt(lambda: hash(config_class())),
            "positional": attempt(lambda: torchair.get_npu_backend(config_class())),
        }
    with open("outcomes.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
