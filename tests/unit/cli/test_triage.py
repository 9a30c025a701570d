"""`ascend-dump triage` and `ascend_dump.triage`: what is wrong, and the request that tells more."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from suspect_dumps import write_rows

import ascend_dump
from ascend_dump.analysis.suspects import RULES
from ascend_dump.cli import Exit, main


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A dump of statistics in which one operator grows at step 2."""
    write_rows(tmp_path / "dumps", RULES["growth"].trips)
    return tmp_path / "dumps"


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    write_rows(tmp_path / "healthy", RULES["growth"].passes)
    return tmp_path / "healthy"


class TestPython:
    def test_names_the_suspect_and_asks_for_its_tensors(self, grown: Path) -> None:
        found = ascend_dump.triage(grown)
        assert [(one.rule, one.op_name, one.step) for one in found.suspects] == [("growth", "0/mm_0", 2)]
        assert found.next is not None
        assert found.next.to_mapping() == {"path": f"{grown}_next", "steps": "2", "layers": ["0/mm_0"]}
        assert found.origins == ()
        assert found.cause is not None
        assert (found.cause.op_name, found.cause.op_type, found.cause.step) == ("0/mm_0", "aten::mm", 2)
        assert found.cause.evidence == (found.suspects[0].reason,)
        assert (found.rounds, found.confirmation) == ((), "")

    def test_asks_for_nothing_where_nothing_is_wrong(self, healthy: Path) -> None:
        found = ascend_dump.triage(ascend_dump.open(healthy))
        assert (found.suspects, found.next, found.reasons) == ((), None, ())
        assert "reference" in found.advice

    def test_asks_for_what_the_suspect_reads_from(self, tmp_path: Path) -> None:
        torch: Any = pytest.importorskip("torch")
        with ascend_dump.capture(path=tmp_path, data="stats") as cap:
            torch.exp(torch.ones(3) * 1000)
        found = ascend_dump.triage(cap.dump())
        assert (found.suspects[0].op_name, found.suspects[0].producers) == ("exp_0", ("mul_0",))
        assert found.next is not None
        assert found.next.layers == ("exp_0", "mul_0")

    def test_asks_for_nothing_where_the_tensors_are_there(self, tmp_path: Path) -> None:
        torch: Any = pytest.importorskip("torch")
        with ascend_dump.capture(path=tmp_path) as cap:
            torch.exp(torch.ones(3) * 1000)
        found = ascend_dump.triage(cap.path)
        assert found.suspects[0].rule == "non-finite"
        assert found.next is None
        assert found.advice.endswith(f"are in this dump: `ascend-dump show {cap.path} --op exp_0 --step 0`")

    def test_names_the_commands_that_show_tensors_of_both_sides(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("polars")
        torch: Any = pytest.importorskip("torch")
        wrong, right = tmp_path / "a wrong one", tmp_path / "right"
        for path, factor in ((right, 2.0), (wrong, 2.1)):
            with ascend_dump.capture(path=path):
                (torch.ones(100) * factor).sum()
        commands = [f"ascend-dump show {text} --op mul_0 --step 0" for text in (f"'{wrong}'", f"{right}")]
        assert main(["triage", str(wrong), str(right)]) == Exit.DIFFERENT
        out = capsys.readouterr().out
        assert [line[12:] for line in out.splitlines() if line.startswith("next ")] == commands
        assert out.endswith(f"the tensors of mul_0 are there: `{commands[0]}`, `{commands[1]}`\n")
        assert "capture(" not in out
        for command in commands:
            assert main(shlex.split(command)[1:]) == Exit.OK
            assert "mul_0.output.0" in capsys.readouterr().out

    def test_gives_the_origins_of_a_comparison(self, tmp_path: Path) -> None:
        pytest.importorskip("polars")
        torch: Any = pytest.importorskip("torch")
        for name, factor in (("right", 2.0), ("wrong", 2.1)):
            with ascend_dump.capture(path=tmp_path / name, data="stats"):
                (torch.ones(100) * factor).sum()
        found = ascend_dump.triage(tmp_path / "wrong", tmp_path / "right")
        assert [one.op_name for one in found.origins] == ["mul_0"]
        assert found.next is not None
        assert found.next.layers == ("mul_0",)
        assert found.cause is not None
        assert (found.cause.op_name, found.cause.evidence) == ("mul_0", found.origins[0].evidence)

    def test_refuses_settings_of_a_comparison_without_one(self, healthy: Path) -> None:
        with pytest.raises(ascend_dump.ConfigError, match="no reference is given"):
            ascend_dump.triage(healthy, rules={})

    def test_raises_where_there_is_no_dump(self, tmp_path: Path) -> None:
        with pytest.raises(ascend_dump.DumpNotFound):
            ascend_dump.triage(tmp_path / "none")


class TestCommand:
    def test_prints_suspects_and_exits_1(self, grown: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["triage", str(grown)]) == Exit.DIFFERENT
        out = capsys.readouterr().out
        assert "1. 0/mm_0 (aten::mm), step 2" in out
        assert "33.3 times that of earlier steps" in out
        assert "ASCEND_DUMP=path=" in out

    def test_exits_0_where_nothing_is_wrong(self, healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["triage", str(healthy)]) == Exit.OK
        assert "nothing looks wrong by itself" in capsys.readouterr().out

    def test_exits_3_where_not_everything_was_checked(self, healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        index = next(healthy.rglob("index.jsonl"))
        index.write_bytes(b"{\n" + index.read_bytes())
        assert main(["triage", str(healthy)]) == Exit.UNREADABLE
        assert "not checked: 1 record cannot be read" in capsys.readouterr().err

    def test_writes_a_document(self, grown: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["triage", str(grown), "--json"]) == Exit.DIFFERENT
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "ascend-dump/triage/1"
        assert document["suspects"][0]["rule"] == "growth"
        assert document["next"]["steps"] == "2"

    def test_writes_the_next_request_as_a_private_file(self, grown: Path, tmp_path: Path) -> None:
        file = tmp_path / "next.json"
        assert main(["triage", str(grown), "--next", str(file)]) == Exit.DIFFERENT
        assert ascend_dump.DumpRequest.from_file(file).layers == ("0/mm_0",)
        assert os.stat(file).st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(("framework", "key"), [("mindspore", "common_dump_settings"), ("acl", "dump")])
    def test_writes_it_in_the_words_of_a_framework(
        self, grown: Path, tmp_path: Path, framework: str, key: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "next.json"
        assert main(["triage", str(grown), "--next", str(file), "--for", framework]) == Exit.DIFFERENT
        assert key in json.loads(file.read_text())
        assert f"contains PyTorch's operator names: look up those of {framework} with" in capsys.readouterr().err

    def test_never_replaces_a_file(self, grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "next.json"
        file.write_text("mine")
        assert main(["triage", str(grown), "--next", str(file)]) == Exit.USAGE
        assert file.read_text() == "mine"
        assert "exists already" in capsys.readouterr().err

    @pytest.mark.parametrize("as_json", [True, False])
    def test_a_full_disk_does_not_lose_the_result(self, as_json: bool, grown: Path, tmp_path: Path) -> None:
        file = tmp_path / "next.json"
        words = ["triage", str(grown), "--next", str(file), *(["--json"] if as_json else [])]
        full = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, 0))"  # of pipes there is no limit
        code = f"import sys; from ascend_dump.cli import main; {full}; sys.exit(main({words!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == Exit.USAGE
        if as_json:
            document = json.loads(done.stdout)
            assert (document["written"], document["next"]["steps"]) == (None, "2")
        else:
            assert "1. 0/mm_0 (aten::mm), step 2" in done.stdout
            assert "next: ASCEND_DUMP=path=" in done.stdout
        assert f"error: {file} cannot be written: File too large [AD501]\n" in done.stderr
        assert list(tmp_path.glob("*next.json*")) == []

    def test_a_closed_pipe_does_not_lose_the_next_request(self, grown: Path, tmp_path: Path) -> None:
        file = tmp_path / "next.json"
        reads, writes = os.pipe()
        os.close(reads)
        with os.fdopen(writes, "wb") as stdout:
            done = subprocess.run(
                [sys.executable, "-m", "ascend_dump", "triage", str(grown), "--next", str(file)],
                stdout=stdout,
                check=False,
            )
        assert done.returncode == Exit.PIPE_CLOSED
        assert ascend_dump.DumpRequest.from_file(file).layers == ("0/mm_0",)

    @pytest.mark.parametrize("form", [[], ["--brief"], ["--json"]])
    def test_says_where_there_is_nothing_to_write(
        self, form: list[str], healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "next.json"
        assert main(["triage", str(healthy), "--next", str(file), *form]) == Exit.OK
        assert not file.exists()
        assert "nothing to dump next" in capsys.readouterr().err

    def test_the_next_request_can_be_pasted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_rows(Path("it's a dump"), RULES["growth"].trips)
        assert main(["triage", "it's a dump"]) == Exit.DIFFERENT
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
        (word,) = (word for word in shlex.split(line.replace(";", " ; ")) if word.startswith("ASCEND_DUMP="))
        assert word.startswith("ASCEND_DUMP=path=it's a dump_next")

    def test_counts_the_origins_that_are_not_shown(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        torch: Any = pytest.importorskip("torch")
        x = torch.arange(1.0, 4.0)
        for name, factors in (("actual", (2.0, 5.0, 7.0)), ("reference", (1.0, 3.0, 4.0))):
            with ascend_dump.capture(path=tmp_path / name):
                torch.mul(x, factors[0])
                torch.div(x, factors[1])
                torch.pow(x, factors[2])
        words = ["triage", str(tmp_path / "actual"), str(tmp_path / "reference")]
        assert main([*words, "-n", "1"]) == Exit.DIFFERENT
        assert "2 more origins not shown: use -n 3" in capsys.readouterr().out
        assert main(words) == Exit.DIFFERENT
        assert "not shown" not in capsys.readouterr().out

    def test_takes_the_steps_that_are_asked_for(self, grown: Path) -> None:
        assert main(["triage", str(grown), "--step", "0|1"]) == Exit.OK
