"""Every configuration of the vectors, handed to the real parser again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from places import DATA
from processes import PROGRAMS, run_command

from ascend_dump.native.mindspore import Runtime, check_mindspore_config
from ascend_dump.native.mindspore.config.check import Known

VECTORS = [json.loads(line) for line in DATA.joinpath("mindspore/config_vectors.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What MindSpore did with each; one process that forks, because the import takes longest."""
    root = tmp_path_factory.mktemp("vectors")
    (root / "file").touch()
    cases = []
    for vector in VECTORS:
        out = root / vector["name"]
        out.mkdir()

        def put(text: str, out: Path = out) -> str:
            return text.replace("@OUT@", f"{out}/out").replace("@FILE@", f"{root}/file")

        config = put(vector["config"])
        (out / "dump.json").write_bytes(config.encode("latin-1" if "\0" in config else "utf-8"))
        env = {name: put(value) for name, value in vector["env"].items()}
        message = put(vector["message"] or "")
        cases.append(
            {"name": vector["name"], "file": f"{out}/dump.json", "out": str(out), "env": env, "expected": message}
        )
    text = "".join(json.dumps(case) + "\n" for case in cases)
    done = run_command(sys.executable, PROGRAMS / "replay.py", cwd=root, text=text)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {case["name"]: {**case, **answer} for case, answer in zip(cases, answers)}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_mindspore_says_what_was_recorded_and_the_check_agrees(vector, replayed):
    answer = replayed[vector["name"]]
    assert answer["message"].strip() == answer["expected"].strip()
    assert (answer["files"], answer["iterations"]) == (vector["files"], vector["iterations"])
    problems = check_mindspore_config(
        Path(answer["file"]), runtime=Runtime.named("cpu"), known=Known(env=answer["env"])
    )
    refusals = [problem.message for problem in problems if problem.severity == "error"]
    assert bool(refusals) == bool(answer["message"])
    if not answer["message"].startswith("Parse dump json failed"):
        assert [text.strip() for text in refusals] == [answer["message"].strip()][: len(refusals)]
