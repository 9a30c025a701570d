"""The programs and commands of `ascend-dump help recipes`, taken from the pages and run with the real packages."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.cli.shared.help_texts import topic_text, topics

# Those of the packages, which differ from release to release.
pytestmark = pytest.mark.filterwarnings("default")

INDENT = "    "


class Recipe(NamedTuple):
    """A page that is run: the package it is for, and an operator with its number of calls in step 1 of a rank."""

    package: str
    op: str = ""
    calls: int = 0
    labels: tuple[str, ...] = ()


RECIPES = {
    "trainer": Recipe("transformers", "*embed_tokens/embedding*", 2),
    "accelerate": Recipe("accelerate", "0/addmm*", 2),
    "lightning": Recipe("lightning", "*addmm*", 2),
    "peft": Recipe("peft", "*embed_tokens/embedding*", 1),
    "trl": Recipe("trl", labels=("rollout", "update_actor")),
    "deepspeed": Recipe("deepspeed", "*0/addmm*", 2),
    "megatron": Recipe("megatron.core", "*word_embeddings/embedding*", 1),
    "ray": Recipe("ray", labels=("compute_log_prob", "update_actor")),
}
#: Those that leave nothing behind in the process that they run in.
IN_PROCESS = ("trainer", "accelerate", "lightning")
for name in IN_PROCESS:
    pytest.importorskip(RECIPES[name].package)


def blocks(text: str) -> list[str]:
    """Return the indented blocks of a page."""
    indented = re.findall(r"(?:^ {4}.*\n|^\n(?=\n* {4}))+", text, re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in indented]


def program_of(name: str) -> str:
    (program,) = [block for block in blocks(topic_text(f"recipe-{name}").text) if block.startswith("# train.py\n")]
    assert len(program.splitlines()) <= 42, "a page is read, not scrolled"
    return program


def captured_program(name: str) -> str:
    """Return the program of a page with the lines of the block behind it, which end with a line of the program.

    If `...` follows that line, the rest of the program is in the block too.
    """
    program, found = program_of(name), blocks(topic_text(f"recipe-{name}").text)
    if "ascend_dump.capture" in program:
        return program
    snippet = found[found.index(program) + 1]
    assert "ascend_dump.capture" in snippet
    header, lines = snippet.splitlines(), program.splitlines()
    has_rest = header[-1].strip() == "..."
    line = header.pop(-2).strip() if has_rest else header.pop().strip()
    begin = lines.index(line)
    if has_rest:
        header.pop()
    end = len(lines) if has_rest else begin + 1
    indent = INDENT if header[0].startswith("with ") else ""
    body = [f"{indent}{text}" if text else "" for text in lines[begin:end]]
    return "\n".join(["import ascend_dump", *lines[:begin], *header, *body, *lines[end:], ""])


def next_commands(name: str) -> list[str]:
    _, _, text = topic_text(f"recipe-{name}").text.partition("## Run next\n")
    return [line.strip() for line in text.splitlines() if line.startswith(f"{INDENT}ascend-dump ")]


def check(name: str, *, labels: tuple[str, ...] = ()) -> None:
    """Look at the dump in the working directory, and run the commands of the page in it."""
    recipe = RECIPES[name]
    dump = ascend_dump.open("dumps")
    assert [run.state.value for run in dump.runs()] == ["complete"] * len(dump.runs())
    assert sorted(dump.labels) == sorted(labels or [""])
    if recipe.op:
        called = dump.select(step=1, rank=0, op=recipe.op, io="output", phase="forward")
        assert len({record.op_name for record in called}) == recipe.calls
        assert len(dump.select(step=1, op="*add*", phase="other")) > 0, "the optimizer belongs to the step"
        assert dump.steps == [1]
    shutil.copytree("dumps", "reference")
    commands = next_commands(name)
    assert commands
    for command in commands:
        if labels or "--label" not in command:
            assert main(shlex.split(command)[1:]) == 0, command


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", IN_PROCESS)
def test_the_lines_of_the_page_capture_the_program(name: str, directory: Path) -> None:
    (directory / "train.py").write_text(captured_program(name))
    runpy.run_path("train.py", run_name="__main__")
    check(name)


def run_shell(command: str) -> None:
    """Run a command line with the programs of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PATH": path, "MASTER_ADDR": "localhost", "MASTER_PORT": "29531"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"


def command_of(name: str) -> str:
    lines = [line for block in blocks(topic_text(f"recipe-{name}").text) for line in block.splitlines()]
    return next(line for line in lines if line.startswith("ASCEND_DUMP=") and line.endswith(" train.py"))


#: Those without such a command, or whose program test_launchers.py runs on several ranks.
RUN_ELSEWHERE = ("ray", "trainer")


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in RUN_ELSEWHERE])
def test_the_command_of_the_page_captures_the_plain_program(name: str, directory: Path) -> None:
    (directory / "train.py").write_text(program_of(name))
    run_shell(command_of(name))
    if name == "trl":
        assert ascend_dump.open("dumps").steps == [0]
    else:
        check(name)


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - set(IN_PROCESS)))
def test_the_lines_of_the_page_capture_the_program_in_processes(name: str, directory: Path) -> None:
    (directory / "train.py").write_text(captured_program(name))
    launcher = re.sub(r"^ASCEND_DUMP=\S* ", "", command_of(name)) if name != "ray" else "python train.py"
    run_shell(launcher)
    check(name, labels=RECIPES[name].labels)


def test_each_page_says_whether_it_was_run() -> None:
    pages = {one.code: one.text for one in topics() if one.code.startswith("recipe-")}
    index = topic_text("recipes").text
    for code, text in pages.items():
        name = code.partition("-")[2]
        (row,) = [line for line in index.splitlines() if line.startswith(f"| `{code}` |")]
        body = text.split("\n\n", 2)[1]
        assert (name in RECIPES) == body.startswith("Run with ") != body.startswith("Not run")
        assert row.endswith("| no |") == (name not in RECIPES)
        assert ("## Capture\n" in text, "## How steps count\n" in text, "## Run next\n" in text) == (True,) * 3


def test_the_pod_template_of_kubernetes_is_yaml_with_a_mounted_path() -> None:
    import yaml

    blocks = re.findall(r"^(?:    .*\n)+", topic_text("recipe-kubernetes").text, re.MULTILINE)
    [template] = [block for block in map(textwrap.dedent, blocks) if block.startswith("spec:")]
    spec = yaml.safe_load(template)["spec"]
    [container] = spec["containers"]
    [variable] = container["env"]
    [mount] = container["volumeMounts"]
    assert variable["name"] == "ASCEND_DUMP"
    path = ascend_dump.DumpRequest.from_text(variable["value"]).path
    assert str(path).startswith(mount["mountPath"])
    assert mount["name"] in {volume["name"] for volume in spec["volumes"]}
