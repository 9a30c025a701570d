"""Dialects that other packages register: read like ours, and no harm to others when they are broken."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from interpreters import lay_out, register
from places import DATA, REPOSITORY

import ascend_dump
from ascend_dump import ReadError
from ascend_dump.cli import Exit, main


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample dialect installed into this process, and a dump in its format, beside a file of CANN."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(lay_out(REPOSITORY / "examples" / "14_own_dialect", site)))
    root = tmp_path / "dump"
    place = root / "worldsize2_global_rank1"
    place.mkdir(parents=True)
    content = {"shape": [2, 2], "values": [1, 2, 3, float("nan")]}
    (place / "probe_0_MatMul_fc.json").write_text(json.dumps(content))
    (place / "probe_1_Relu_act.json").write_text(json.dumps({"shape": [3], "values": [0]}))
    (place / "notes.json").write_text("{}")
    shutil.copy(DATA / "cann" / "in" / "Add.Add_1.3.7.1589195081588018", root)
    return root


def test_a_third_party_dialect_is_read_as_ours_are(probe: Path) -> None:
    dump = ascend_dump.open(probe)
    found = {record.op_name: record for record in dump}
    assert found.keys() == {"Add_1", "fc", "act"}
    assert (found["fc"].rank, found["fc"].step, found["fc"].shape) == (1, 0, (2, 2))
    np.testing.assert_array_equal(found["fc"].numpy(), [[1, 2], [3, np.nan]])
    assert found["fc"].statistics().nan == 1
    [broken] = dump.errors()
    assert "1 values for shape (3,)" in str(broken.error)
    assert [record.op_name for record in dump.select("fc", step=0, rank=1)] == ["fc"]


def test_the_command_line_reads_it_too(probe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(probe), "--op", "fc"]) == Exit.OK
    assert "MatMul" in capsys.readouterr().out
    assert main(["stats", str(probe), "--op", "fc", "--nonfinite", "--json"]) == Exit.OK
    [row] = json.loads(capsys.readouterr().out)["records"]
    assert (row["op_name"], row["statistics"]["nan"]) == ("fc", 1)
    main(["doctor", "--json"])
    dialects = json.loads(capsys.readouterr().out)["dialects"]
    assert [one for one in dialects if one["distribution"]] == [
        {"name": "probe", "distribution": "ascend-dump-probe", "version": "0.4.0"}
    ]


#: What an author may get wrong, as a change of the sound dialect.
LOADING = {
    "cannot be imported": ("import json\n", "import no_such_module_of_anybody\n"),
    "ends the program": ("import json\n", "import json\nraise SystemExit(3)\n"),
    "names nothing": ("DIALECT = _ProbeDialect()", "OTHER = _ProbeDialect()"),
    "is a class": ("DIALECT = _ProbeDialect()", "DIALECT = _ProbeDialect"),
    "has no scan": ("def scan(", "def search("),
}
SCANNING = {
    "raises": ("found = {name", "1 / 0; found = {name"),
    "returns nothing": ("return [_ProbeFile", "return None; return [_ProbeFile"),
    "returns no entries": ("return [_ProbeFile(directory, match)", "return [str(match)"),
    "has an order that cannot be sorted": ("rank=rank_of(directory.parts))", "rank=0, order='first')"),
    "counts steps in text": ("step=int(step)", "step=step"),
}
READING = {
    "raises": ("known: dict", "1 / 0; known: dict"),
    "yields text": ("yield Record(_LOADER", "yield 'a record'; yield Record(_LOADER"),
    "raises after a record": (
        "**known)\n\n\nclass _ProbeLoader",
        "**known)\n        raise KeyError(1)\n\n\nclass _ProbeLoader",
    ),
}
VALUES = {
    "raises": ("return np.array(", "raise IndexError; return np.array("),
    "raises for statistics": (
        "-> Optional[Statistics]:\n        return None",
        "-> Optional[Statistics]:\n        return record.no",
    ),
}


def break_dialect(probe: Path, fault: tuple[str, str]) -> None:
    module = probe.parent / "site" / "ascend_dump_probe.py"
    old, new = fault
    text = module.read_text()
    assert text.count(old) == 1
    module.write_text(text.replace(old, new))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test imports the dialect as it is then."""
    monkeypatch.delitem(sys.modules, "ascend_dump_probe", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize("fault", [*LOADING.values(), *SCANNING.values()], ids=[*LOADING, *SCANNING])
def test_a_broken_one_is_named_and_the_rest_is_read(
    probe: Path, fault: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    break_dialect(probe, fault)
    (probe / "probe_2_Relu_other.json").write_text("{}")
    assert {record.op_name for record in ascend_dump.open(probe)} == {"Add_1"}
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "the dialect probe" in warning.getMessage()


@pytest.mark.parametrize("fault", READING.values(), ids=[*READING])
def test_a_file_that_it_fails_to_read_is_a_record_with_an_error(probe: Path, fault: tuple[str, str]) -> None:
    break_dialect(probe, fault)
    dump = ascend_dump.open(probe)
    assert [record.op_name for record in dump if record.error is None][:1] == ["Add_1"]
    errors = [record for record in dump.select("fc") if record.error is not None]
    assert [record.op_name for record in errors] == ["fc"]
    with pytest.raises(ReadError, match=r"probe_0_MatMul_fc\.json: the dialect probe could not read this file"):
        errors[0].numpy()


@pytest.mark.parametrize("fault", VALUES.values(), ids=[*VALUES])
def test_values_that_it_fails_to_read_are_a_typed_error(
    probe: Path, fault: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    break_dialect(probe, fault)
    [record] = ascend_dump.open(probe).select("fc")
    with pytest.raises(ReadError, match="the dialect probe could not read this file"):
        record.statistics()
    assert main(["stats", str(probe)]) == Exit.UNREADABLE
    said = capsys.readouterr()
    assert "Add_1" in said.out
    assert "the dialect probe" in said.err


def test_it_may_not_take_files_that_are_ours(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours are asked first, whatever the name of the other one."""
    greedy = tmp_path / "greedy"
    greedy.mkdir()
    (greedy / "greedy_dialect.py").write_text(
        "class DIALECT:\n    name = 'greedy'\n    def scan(self, directory):\n"
        "        return [], {*directory.names, 'one that is not there'}\nDIALECT = DIALECT()\n"
    )
    register(greedy, "greedy-1", "ascend_dump.dialects", "a", "greedy_dialect:DIALECT")
    monkeypatch.syspath_prepend(str(greedy))
    assert {record.op_name for record in ascend_dump.open(probe)} == {"Add_1"}
