"""Pages of dumps and comparisons as files: what is in them, what is left out, and what happens where none can be."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import HOSTILE, content_of_hostile, many_pairs, write_training

import ascend_dump
from ascend_dump import ConfigError, WriteError
from ascend_dump.adapter import DumpRequest
from ascend_dump.report.page import STATES, PageContent, PageFinding, PageRow, build_page, write_page
from ascend_dump.report.page.columns import NULL, ColumnPack, TextTable, front_coded
from ascend_dump.report.page.rows import RowTable
from ascend_dump.report.page.tensors import heat_map, value_histogram


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("dumps")
    return write_training(root / "actual", fault=(1, 1)), write_training(root / "reference")


def unpacked(html: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The head and the columns of a page."""
    [packed] = re.findall(r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]*)</script>', html)
    content = gzip.decompress(base64.b64decode(packed))
    length = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + length])
    columns, place = {}, 4 + length
    for column in head["columns"]:
        columns[column["name"]] = content[place : place + column["bytes"]]
        place += column["bytes"]
    assert place == len(content)
    return head, columns


def decoded(coded: list[Any]) -> list[str]:
    """Texts of a front-coded list, as a browser reads it: in units of UTF-16."""
    found, before = [], b""
    for common, rest in zip(coded[::2], coded[1::2]):
        before = before[: 2 * common] + rest.encode("utf-16-le", "surrogatepass")
        found.append(before.decode("utf-16-le", "surrogatepass"))
    return found


class TestColumns:
    @given(st.lists(st.text()))
    def test_texts_come_back(self, texts: list[str]) -> None:
        assert decoded(json.loads(json.dumps(front_coded(texts)))) == texts

    def test_equal_beginnings_are_written_once(self) -> None:
        assert front_coded(["layers.0/mm", "layers.0/add", "layers.1/mm"]) == [0, "layers.0/mm", 9, "add", 7, "1/mm"]

    @given(st.lists(st.one_of(st.none(), st.floats(width=32))))
    def test_floats_keep_what_they_are_and_what_is_not_known(self, values: list[Any]) -> None:
        pack = ColumnPack()
        pack.floats("x", values)
        content = gzip.decompress(base64.b64decode(pack.packed({})))
        planes = np.frombuffer(content[len(content) - 4 * len(values) :], np.uint8).reshape(4, len(values))
        bits = np.ascontiguousarray(planes.T)
        for value, one, raw in zip(values, bits.view("<f4").reshape(-1), bits.view("<u4").reshape(-1)):
            assert (raw == NULL) == (value is None)
            if value is not None:
                assert float(one) == value or (one != one and value != value)

    def test_a_text_that_is_too_long_is_cut_and_counted(self) -> None:
        table = TextTable()
        number = table.number("x" * 20_000)
        assert table.texts()[number].endswith("… (20000 characters)")
        assert table.cut == 1


class TestContent:
    def test_a_comparison_has_its_rows_and_details(self, dumps: tuple[Path, Path], tmp_path: Path) -> None:
        found = ascend_dump.compare(*dumps)
        page = found.save(tmp_path / "page.html")
        head, columns = unpacked(page.read_text(encoding="utf-8"))
        assert head["rows"] == len(found.pairs)
        names = [state.name for state in STATES]
        assert [names[number] for number in columns["state"]] == [pair.verdict for pair in found.pairs]
        first = found.origins[0].pair
        [place] = [number for number, pair in enumerate(found.pairs) if pair is first]
        detail = head["details"][str(place)]
        assert head["first"] == place
        assert first.measure is not None
        assert sum(detail["ulp"]) == sum(first.measure.ulp)
        assert sum(detail["values"]["actual"]["counts"]) == first.measure.count
        assert detail["heat"]["high"] == pytest.approx(first.measure.max_abs)

    def test_an_input_knows_the_row_that_made_it(self, dumps: tuple[Path, Path]) -> None:
        records = list(ascend_dump.open(dumps[0]))
        rows = [PageRow(record, None) for record in records]
        head, columns = unpacked(build_page(PageContent("t", rows, "nothing found", "s")).html)
        kind = next(one["kind"] for one in head["columns"] if one["name"] == "producer")
        producers = np.frombuffer(columns["producer"], np.uint8)
        assert kind == "u1"
        for record, producer in zip(records, producers):
            if record.io == "input" and "tanh_0" in record.op_name:
                made = records[producer - 1]
                assert (made.io, made.step, made.rank) == ("output", record.step, record.rank)
                assert made.op_name == record.op_name.replace("act/tanh", "up/mm")
                assert np.array_equal(made.numpy(), record.numpy())

    def test_scopes_of_names_stand_for_modules(self) -> None:
        rows = list(many_pairs(8))
        for row in rows:
            assert row.actual is not None
            row.actual.module, row.actual.op_name = None, "gradients/layer1/MatMul_1"
        head, columns = unpacked(build_page(PageContent("t", rows, "equal", "s", compared=True)).html)
        assert decoded(json.loads(columns["scopes"])) == ["", "gradients/layer1"]
        assert decoded(json.loads(columns["modules"])) == [""]
        assert head["rows"] == 8

    def test_the_next_command_asks_for_tensors_where_there_are_none(self, tmp_path: Path) -> None:
        torch: Any = pytest.importorskip("torch")
        for name, scale in (("actual", 1.5), ("reference", 1.0)):
            with ascend_dump.capture(path=tmp_path / name, data="stats"):
                torch.tanh(torch.ones(3) * scale)
        found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
        command = found.to_page().command
        assert command.startswith("ASCEND_DUMP=")
        request = DumpRequest.from_text(shlex.split(command)[0].partition("=")[2])
        assert request.data == "tensor"
        assert request.layers

    def test_a_triage_names_its_suspect(self, tmp_path: Path) -> None:
        torch: Any = pytest.importorskip("torch")
        with ascend_dump.capture(path=tmp_path / "dumps") as cap:
            torch.exp(torch.ones(3) * 1000)
        found = ascend_dump.triage(cap.path)
        text = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
        assert "exp_0 (aten::exp) is the first suspect" in text
        head, columns = unpacked(text)
        names = [state.name for state in STATES]
        assert [names[number] for number in columns["state"]].count("suspect") == 1
        assert not head["compared"]

    def test_only_its_own_script_may_run(self) -> None:
        html = build_page(content_of_hostile()).html
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
        assert policy is not None
        assert "default-src 'none'" in policy[1]
        assert "unsafe" not in policy[1]
        assert "http" not in policy[1]
        scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(scripts[-1].encode()).digest()).decode()
        assert len(scripts) == 1
        assert f"script-src 'sha256-{digest}'" in policy[1]
        assert not re.search(r"<(img|iframe|object|embed|link [^>]*href=\"(?!data:,))", html)

    @pytest.mark.parametrize("name", HOSTILE)
    def test_names_are_text(self, name: str) -> None:
        html = build_page(content_of_hostile((name,))).html
        if "<" in name:
            assert name not in html
        assert "\0" not in html
        assert "\u202e" not in html

    def test_what_cannot_be_read_is_named(self, dumps: tuple[Path, Path], tmp_path: Path) -> None:
        root = write_training(tmp_path / "broken", steps=1, ranks=1)
        [shard] = root.rglob("*.safetensors")
        with shard.open("r+b") as file:
            file.truncate(shard.stat().st_size // 2)
        page = ascend_dump.triage(root).save(tmp_path / "page.html")
        text = page.read_text(encoding="utf-8")
        assert re.search(r"\d+ records cannot be read", text)
        assert "AD4" in text


class TestManyRows:
    def test_rows_without_a_finding_are_joined(self) -> None:
        rows = list(many_pairs(4000))
        content = PageContent("many", rows, "different", "s", compared=True)
        table = RowTable(content.rows, [], most=2000)
        different = sum(row.state == "different" for row in rows)
        assert len(table.rows) <= 2000
        assert sum(row.state == "different" for row in table.rows) == different
        assert sum(table.covers) + sum(map(_left_out, table.notes)) == 4000
        assert any("joined" in note for note in table.notes)

    def test_the_page_says_how_many_rows_and_findings_it_leaves_out(self) -> None:
        rows = list(many_pairs(1200))
        findings = tuple(PageFinding(f"finding {at}", row.record, ()) for at, row in enumerate(rows[:300]))
        html = build_page(PageContent("t", rows, "different", "s", compared=True, findings=findings)).html
        assert "finding 199" in html
        assert "finding 200" not in html
        assert "100 more are not listed here" in html
        assert "<dd>1200 of 1200</dd>" in html
        assert re.search(r"The 40 of 1200 rows", html)

    def test_what_is_to_be_looked_at_is_read_first(self, dumps: tuple[Path, Path]) -> None:
        found = ascend_dump.compare(*dumps)
        content = found.to_page()
        first = found.origins[0].pair
        assert first.actual is not None
        table = RowTable(content.rows, [first.actual], most_read=12 * (first.actual.nbytes or 0))
        read = [at for at in range(table.count) if table.statistics(at) is not None]
        assert 0 < len(read) < table.count // 2
        assert next(at for at, row in enumerate(table.rows) if row.actual is first.actual) in read
        assert any(note.startswith("statistics of") for note in table.notes)

    def test_producers_of_rows_that_are_gone_are_gone(self) -> None:
        table = RowTable(many_pairs(4000), [], most=1000)
        assert all(-1 <= producer < len(table.rows) for producer in table.producer)


def _left_out(note: str) -> int:
    found = re.match(r"(\d+) rows with the best states", note)
    return int(found[1]) if found else 0


class TestTensors:
    @given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=200))
    def test_a_histogram_counts_every_finite_value_in_its_bin(self, values: list[float]) -> None:
        array = np.array(values, dtype=np.float32)
        finite = array[np.isfinite(array)].astype(np.float64)
        found = value_histogram(array, None)
        if not finite.size:
            assert found is None
            return
        assert found is not None
        assert sum(found["actual"]["counts"]) == finite.size
        assert found["actual"]["nonfinite"] == array.size - finite.size
        assert (found["low"], found["high"]) == (finite.min(), finite.max())

    @pytest.mark.parametrize(
        "shape", [(), (1,), (7,), (4096,), (10_000,), (3, 5), (200, 130), (2, 3, 70, 65), (1, 1, 9)]
    )
    def test_a_map_keeps_the_largest(self, shape: tuple[int, ...]) -> None:
        array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        found = heat_map(np.asarray(array))
        assert found is not None
        assert found["rows"] <= 64
        assert found["columns"] <= 64
        cells = base64.b64decode(found["cells"])
        assert len(cells) == found["rows"] * found["columns"]
        assert max(cells) == 254
        assert found["high"] == np.abs(array.astype(np.float64)).max()

    def test_a_map_of_differences_shows_where(self) -> None:
        reference = np.ones((64, 64), dtype=np.float32)
        actual = reference.copy()
        actual[3, 5], actual[10, 20] = 2, np.nan
        found = heat_map(actual, reference)
        assert found is not None
        cells = np.frombuffer(base64.b64decode(found["cells"]), np.uint8).reshape(64, 64)
        assert cells[3, 5] == 254
        assert cells[10, 20] == 255
        assert np.count_nonzero(cells) == 2

    def test_what_has_no_numbers_has_no_pictures(self) -> None:
        words = np.array([b"ab", b"c"])
        assert heat_map(words) is None
        assert value_histogram(words, None) is None
        assert heat_map(np.zeros((0, 3))) is None
        assert heat_map(np.zeros(3), np.zeros(4)) is None


class TestFiles:
    CONTENT = PageContent("t", (), "equal", "s")

    def test_only_its_owner_may_read_it(self, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        write_page(self.CONTENT, page)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert [one.name for one in tmp_path.iterdir()] == ["page.html"]

    @pytest.mark.parametrize("name", ["missing/page.html", "x" * 300 + ".html", "nul\0.html"])
    def test_what_cannot_be_written_is_told(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(WriteError, match="the page cannot be written"):
            write_page(self.CONTENT, f"{tmp_path}/{name}")
        assert not list(tmp_path.iterdir())

    def test_a_full_disk_leaves_the_old_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = tmp_path / "page.html"
        page.write_text("old")

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(WriteError, match="No space left"):
            write_page(self.CONTENT, page)
        assert page.read_text() == "old"
        assert [one.name for one in tmp_path.iterdir()] == ["page.html"]

    def test_another_suffix_is_refused(self, dumps: tuple[Path, Path], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"page\.pdf"):
            ascend_dump.triage(dumps[0]).save(tmp_path / "page.pdf")

    def test_source_lines_come_from_below_the_directory_only(self, tmp_path: Path) -> None:
        inside, outside = tmp_path / "project", tmp_path / "secret.py"
        inside.mkdir()
        (inside / "model.py").write_text("first\nsecond line\n")
        (inside / "notes.txt").write_text("not Python\n")
        (inside / "link.py").symlink_to(outside)
        outside.write_text("secret\n")
        sources = [f"{inside}/model.py:2", f"{outside}:1", f"{inside}/../secret.py:1", f"{inside}/link.py:1"]
        sources += [f"{inside}/notes.txt:1", "model.py:1", f"{inside}/model.py:99", "/etc/passwd:1", "x", ":", "a.py:²"]
        records = list(many_pairs(len(sources)))
        for row, source in zip(records, sources):
            row.record.source = source
        head, _ = unpacked(build_page(PageContent("t", records, "equal", "s"), sources=inside).html)
        assert sorted(head["excerpts"]) == sorted([f"{inside}/model.py:2", "model.py:1"])
        assert head["excerpts"][f"{inside}/model.py:2"] == {"first": 1, "line": 2, "lines": ["first", "second line"]}

    def test_a_saved_page_shows_lines_of_the_program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "model.py").write_text("import numpy\n\n\ny = x @ weight\n")
        dumps = [write_training(tmp_path / name, ranks=1, source=f"{tmp_path}/model.py") for name in ("a", "b")]
        monkeypatch.chdir(tmp_path)
        for found in (ascend_dump.compare(*dumps), ascend_dump.triage(dumps[0])):
            shown, hidden = (
                unpacked(found.save(tmp_path / "x.html", **settings).read_text(encoding="utf-8"))[0]["excerpts"]
                for settings in ({}, {"sources": None})
            )
            assert f"{tmp_path}/model.py:4" in shown
            assert hidden == {}

    def test_a_page_tells_how_its_dumps_were_made(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        model = torch.nn.Linear(2, 2)
        for name in ("a", "b"):
            with ascend_dump.capture(model, path=tmp_path / name, steps="0-1", data="stats", quiet=True):
                model(torch.ones(1, 2))
        compared = ascend_dump.compare(tmp_path / "a", tmp_path / "b").to_page()
        alone = ascend_dump.triage(tmp_path / "a").to_page()
        for content, names in ((compared, ("actual run 1", "reference run 1")), (alone, ("run 1",))):
            made = dict(content.provenance)
            for name in names:
                assert made[name].endswith(": complete")
            assert "steps='0-1'" in made[f"{names[0]}, request"]
            assert f"torch {torch.__version__}" in made[f"{names[0]}, versions"]
            assert f"{names[0]}, command" in made

    @pytest.mark.parametrize(("value", "left_out"), [(1.0, False), (float("nan"), True)])
    def test_a_page_of_statistics_tells_that_its_findings_have_no_histograms(
        self, tmp_path: Path, value: float, left_out: bool
    ) -> None:
        torch = pytest.importorskip("torch")
        with ascend_dump.capture(path=tmp_path / "a", data="stats", quiet=True):
            torch.relu(torch.full((2, 2), value))
        html = build_page(ascend_dump.triage(tmp_path / "a").to_page()).html
        assert ("the dump has no values of the rows to look at first" in html) == left_out

    def test_what_to_run_next_is_the_command_of_the_dump(self, tmp_path: Path) -> None:
        dump = write_training(tmp_path / "d", ranks=1)
        [run] = (tmp_path / "d").glob("*/*/")
        manifest = {"schema": "ascend-dump/host/1", "state": "complete", "command": ["train.py", "--name", "a b"]}
        (run / "manifest.json").write_text(json.dumps(manifest))
        found = ascend_dump.triage(dump)
        asked = dataclasses.replace(found, next=DumpRequest(steps="3"))
        assert asked.to_page().command.endswith(" python train.py --name 'a b'")

    def test_rows_carry_the_call_stack(self, dumps: tuple[Path, Path]) -> None:
        records = ascend_dump.open(dumps[0])
        _, columns = unpacked(build_page(PageContent("t", [PageRow(one, None) for one in records], "", "s")).html)
        stacks = decoded(json.loads(columns["stacks"]))
        assert {"\n".join(one.stack) for one in records} == set(stacks[1:])
        assert columns["stack"][0] == 1


class TestNotebook:
    def test_a_comparison_is_shown_compactly(self, dumps: tuple[Path, Path]) -> None:
        shown = ascend_dump.compare(*dumps)._repr_html_()
        assert "layers.1.up/mm_0" in shown
        assert "<svg" in shown
        assert "<script" not in shown
        assert len(shown) < 100_000

    def test_and_a_triage(self, dumps: tuple[Path, Path]) -> None:
        shown = ascend_dump.triage(dumps[0])._repr_html_()
        assert "nothing found" in shown
        assert "<svg" in shown
