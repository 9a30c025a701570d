"""Opening, ordering and narrowing dumps, whatever their dialect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Callable

import pytest
from tiny_dialect import install, write

import ascend_dump
from ascend_dump import ConfigError, CorruptDump, Dump, DumpNotFound, NotSupported, ReadError, Record, UnknownFormat
from ascend_dump.reading import FIELDS, Entry, rank_of


@pytest.fixture(autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path_factory.mktemp("site") / "packages", monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two ranks, two steps, one file that is broken."""
    root = tmp_path / "dump"
    for rank in (0, 1):
        for step in (0, 1):
            place = root / f"worldsize2_global_rank{rank}" / "run_a"
            write(place, f"{step}.MatMul.layer~fc1.input.0", [1, 2, 3])
            write(place, f"{step}.MatMul.layer~fc1.output.0", [4, 5])
            write(place, f"{step}.Relu.layer~act.output.0", [0, float(step)])
    write(root / "worldsize2_global_rank1" / "run_a", "1.Add.sum.output.0", None)
    return root


class Opens:
    """Counts the files this process opens, by whatever call."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.active = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event == "open":
            self.names.append(str(arguments[0]))


_opens = Opens()
sys.addaudithook(_opens)


@pytest.fixture
def opens() -> Iterator[list[str]]:
    _opens.names = []
    _opens.active = True
    yield _opens.names
    _opens.active = False


def labels(dump: Dump) -> list[str]:
    return [record.label for record in dump]


# Opening


def test_records_come_rank_by_rank_and_step_by_step(root: Path) -> None:
    dump = ascend_dump.open(root)
    places = [(record.rank, record.step) for record in dump]
    assert places == sorted(places)
    assert len(dump) == len(places) == 13
    assert {record.run for record in dump} == {"a"}
    assert repr(dump) == f"<Dump {root}: steps 0-1, ranks 0-1, 9 operators, 13 records>"
    assert (dump.steps, dump.ranks, dump.modules) == ([0, 1], [0, 1], ["layer"])
    assert dump.select(op="sum").errors()
    assert dump.select(op="layer/act", rank="1").ranks == [1]


def test_a_list_reads_each_file_once(root: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.reading._dump._SOON", 60.0)
    dump = ascend_dump.open(root)
    opens.clear()
    assert sum(1 for _ in dump) == 13
    once = sorted(opens)
    opens.clear()
    assert len(list(dump)) == 13
    assert sorted(opens) == once != []
    # What the length was asked for once does not stay.
    monkeypatch.setattr("ascend_dump.reading._dump._SOON", 0.0)
    assert len(dump) == len(list(dump.select(step="0"))) + len(list(dump.select(step="1"))) == 13
    write(root / "worldsize2_global_rank0" / "run_a", "0.Relu.layer~act.output.0", None)
    assert [record.error is None for record in dump].count(False) == 2


def test_the_length_of_a_long_dump_keeps_no_records(
    root: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascend_dump.reading._dump._MOST_AHEAD", 12)
    dump = ascend_dump.open(root)
    opens.clear()
    assert sum(1 for _ in dump) == 13
    once = sorted(opens)
    opens.clear()
    assert len(dump) == sum(1 for _ in dump) == 13
    assert sorted(opens) == sorted(once * 2)


def test_a_directory_inside_a_dump_still_says_its_rank(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = root / "worldsize2_global_rank1" / "run_a"
    assert {(record.rank, record.run) for record in ascend_dump.open(inner)} == {(1, "a")}
    monkeypatch.chdir(inner)
    assert {record.rank for record in ascend_dump.open(".")} == {1}
    [record] = ascend_dump.open("0.Relu.layer~act.output.0.tiny")
    assert (record.rank, record.run, record.op_name) == (1, "a", "layer/act")


def test_opening_and_selecting_open_no_file(tmp_path: Path, opens: list[str]) -> None:
    place = tmp_path / "worldsize1_global_rank0"
    place.mkdir()
    for number in range(5000):
        (place / f"{number % 10}.Add.op{number}.output.0.tiny").touch()
    opens.clear()
    dump = ascend_dump.open(tmp_path)
    some = dump.select(op="op1*", step="3|5")
    assert some.known_values("rank") == {0}
    assert some.known_values("step") == {3, 5}
    assert some.known_values("module") == {None}
    with pytest.raises(ConfigError, match="no field 'stepp'"):
        some.known_values("stepp")
    assert "5000 files" in repr(dump)
    assert [name for name in opens if name.startswith(str(tmp_path))] == []


def test_only_files_whose_names_may_match_are_opened(root: Path, opens: list[str]) -> None:
    [record] = ascend_dump.open(root).select(op="*/act", step=1, rank=0)
    assert record.op_type == "Relu"
    assert {Path(name).name for name in opens if name.endswith(".tiny")} == {"1.Relu.layer~act.output.0.tiny"}


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda path: path / "missing", DumpNotFound, "no such file or directory"),
        (lambda path: path, DumpNotFound, "holds no files"),
        (lambda path: (path / "a.txt").write_text("x") and path, UnknownFormat, "a dump in 1 file .*tiny"),
        (lambda path: (path / "a.txt").write_text("x") and path / "a.txt", UnknownFormat, "a dump in 1 file "),
        (lambda path: (path / "a.txt").write_text("x") and path / "a.txt" / "b", DumpNotFound, "not a directory"),
        (lambda path: f"{path}\0", DumpNotFound, "null"),
    ],
    ids=["missing", "empty", "foreign", "foreign file", "below a file", "NUL"],
)
def test_what_is_no_dump_says_why(
    tmp_path: Path, make: Callable[[Path], Any], kind: type[ReadError], text: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(kind, match=f"(?s){text}") as caught:
        ascend_dump.open(path)
    assert caught.value.hint
    assert str(path) in str(caught.value)


def test_a_dump_without_a_record_is_an_empty_dump(tmp_path: Path) -> None:
    (tmp_path / "tiny.ignored").touch()
    dump = ascend_dump.open(tmp_path)
    assert (len(dump), bool(dump), list(dump)) == (0, False, [])


def test_links_and_pipes_inside_are_passed_over(root: Path, tmp_path: Path) -> None:
    before = labels(ascend_dump.open(root))
    secret = write(tmp_path / "elsewhere", "0.Secret.secret.output.0", [1])
    (root / "linked_directory").symlink_to(tmp_path / "elsewhere")
    (root / "circle").symlink_to(root)
    (root / secret.name).symlink_to(secret)
    (root / "dangling.tiny").symlink_to(tmp_path / "nothing")
    os.mkfifo(root / "0.Pipe.pipe.output.0.tiny")
    assert labels(ascend_dump.open(root)) == before
    # The path itself may be a link: the user gave it.
    (tmp_path / "latest").symlink_to(root)
    assert labels(ascend_dump.open(tmp_path / "latest")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every directory")
def test_a_directory_that_cannot_be_listed_is_not_forgotten(root: Path) -> None:
    closed = root / "worldsize2_global_rank0"
    closed.chmod(0)
    try:
        [record] = ascend_dump.open(root).select(rank=0)
    finally:
        closed.chmod(0o700)
    assert isinstance(record.error, ReadError)


def test_a_directory_that_fails_to_list_is_one_unreadable_record(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("rank0"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    dump = ascend_dump.open(root)
    [lost] = dump.select(rank=0)
    assert "cannot be listed: Permission denied" in str(lost.error)
    assert lost.path.name == "worldsize2_global_rank0"
    with pytest.raises(ReadError, match="AD400"):
        lost.numpy()
    assert len(dump.select(rank=1)) == 7


# Selecting


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"op": "layer/*"}, 12),
        ({"op": "*/fc[12]"}, 8),
        ({"op": "fc1"}, 0),
        ({"op": "LAYER/*"}, 0),
        ({"op": "re:fc\\d$"}, 8),
        ({"op_type": "Relu"}, 4),
        ({"op_type": "re:^(Relu|MatMul)$"}, 12),
        ({"step": "0-1"}, 12),
        ({"step": [1]}, 6),
        ({"step": range(1)}, 6),
        ({"step": "all"}, 12),
        ({"rank": 1, "io": "input"}, 2),
        ({"index": 0}, 12),
        ({"index": 1}, 0),
        ({"phase": "forward"}, 12),
        ({"phase": "back*"}, 0),
        ({"module": "layer"}, 12),
        ({"run": "a"}, 12),
        ({"run": "b"}, 0),
        ({"model": "*"}, 12),
        ({"model": "x"}, 0),
    ],
    ids=str,
)
def test_select(root: Path, selection: dict[str, Any], expected: int) -> None:
    readable = [record for record in ascend_dump.open(root).select(**selection) if record.error is None]
    assert len(readable) == expected


def test_selections_add_up(root: Path) -> None:
    dump = ascend_dump.open(root)
    twice = dump.select(step=1).select("*fc1", io="output")
    assert labels(twice) == ["layer/fc1.output.0"] * 2
    assert labels(dump.select(step=0).select(step=1)) == []
    assert len(dump) == 13


def test_an_unreadable_record_stays_unless_its_name_rules_it_out(root: Path) -> None:
    dump = ascend_dump.open(root)
    # It may be an input, or of any module: nobody can tell.
    for kept in ({"io": "input"}, {"index": 3}, {"module": "sum"}, {"op": "sum"}, {"rank": 1, "step": 1}):
        assert [record.op_name for record in dump.select(**kept).errors()] == ["sum"], kept
    for ruled_out in ({"op": "layer/*"}, {"rank": 0}, {"step": 0}, {"op_type": "Relu"}):
        assert dump.select(**ruled_out).errors() == [], ruled_out


@pytest.mark.parametrize(
    ("selection", "code"), [({"op": "re:("}, "AD103"), ({"step": "0,1"}, "AD102"), ({"index": -1}, "AD102")], ids=str
)
def test_a_selection_that_cannot_be_understood(root: Path, selection: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ascend_dump.open(root).select(**selection)
    assert caught.value.code == code
    assert next(iter(selection)) in str(caught.value) or "re:(" in str(caught.value)


@pytest.mark.parametrize(("name", "guess"), [("op_name", "did you mean op="), ("ranks", "did you mean 'rank'")])
def test_an_argument_that_select_lacks(root: Path, name: str, guess: str) -> None:
    with pytest.raises(TypeError, match=f"select\\(\\) has no argument {name}=; {guess}"):
        ascend_dump.open(root).select(**{name: "x"})  # type: ignore[arg-type]


@pytest.mark.parametrize("selection", [{"io": "outputs"}, {"phase": "fwd"}, {"io": "re:^out$"}, {"io": "IN*"}], ids=str)
def test_a_selection_that_no_dump_can_match_is_refused(root: Path, selection: dict[str, str]) -> None:
    [(name, value)] = selection.items()
    with pytest.raises(ConfigError, match=f"{name}='.*' matches no value of {name}(?s:.*)expected '") as caught:
        ascend_dump.open(root).select(**selection)
    assert value in str(caught.value)
    assert not len(ascend_dump.open(root).select(io="space", phase="other").select("x")), "this dump merely lacks them"


# Records


def test_a_record_has_every_field_and_its_values(root: Path) -> None:
    record = next(iter(ascend_dump.open(root).select(op="*fc1", io="output")))
    assert record.numpy().tolist() == [4.0, 5.0]
    assert record.statistics().max == 5.0
    assert (record.dtype, record.shape, record.nbytes) == ("float32", (2,), 8)
    assert record.task_id is None
    fields = record.to_dict()
    assert tuple(fields) == FIELDS
    assert fields["path"] == str(record.path)
    assert fields["shape"] == [2]
    assert repr(record) == "<Record step 0 layer/fc1.output.0 float32[2]>"
    with pytest.raises(TypeError, match="colour"):
        Record(None, path=root, colour="red")


def test_an_unreadable_record_says_why_when_it_is_read(root: Path) -> None:
    [broken] = ascend_dump.open(root).errors()
    assert isinstance(broken.error, CorruptDump)
    assert "(unreadable)" in repr(broken)
    assert (broken.io, broken.label) == ("", "sum")
    assert "not a list of numbers" in broken.to_dict()["error"]
    for read in (broken.numpy, broken.statistics):
        with pytest.raises(CorruptDump, match="at byte 0: not a list of numbers"):
            read()


def test_a_record_without_values(tmp_path: Path) -> None:
    write(tmp_path, "0.Add.sum.output.0", "bare")
    [record] = ascend_dump.open(tmp_path)
    assert record.error is None
    with pytest.raises(NotSupported, match="holds no tensor"):
        record.numpy()


def test_records_are_equal_when_they_are_the_same_place(root: Path) -> None:
    first, second = list(ascend_dump.open(root)), list(ascend_dump.open(root))
    assert first == second
    assert len(set(first) | set(second)) == len(first)
    assert first[0] != first[1]
    assert first[0] != "layer/fc1"
    other = Record(None, path=first[0].path, **{**_fields(first[0]), "step": 99})
    assert other != first[0]
    assert ascend_dump.open(root) != ascend_dump.open(root)


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS if name != "path"}


# Frames and notebooks


def test_to_frame_has_one_row_per_record(root: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = ascend_dump.open(root).select(rank=0).to_frame()
    assert frame.columns == list(FIELDS)
    assert frame.height == 6
    assert frame["op_name"].to_list()[0] == "layer/fc1"
    assert frame["shape"].to_list()[0] == [3]
    assert frame.schema["shape"] == polars.List(polars.Int64)
    assert frame["task_id"].null_count() == 6


def test_to_frame_without_polars_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(NotSupported, match=r"needs polars(?s:.*)pip install 'ascend-dump\[analyze\]'"):
        ascend_dump.open(root).to_frame()


class Cells(HTMLParser):
    """Checks that tags are closed in order; collects what stands in cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows = 0
        self.tags: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.rows += tag == "tr"
        self.tags.add(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


TABLE_TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_notebooks_show_a_small_escaped_table(tmp_path: Path) -> None:
    for number in range(60):
        write(tmp_path, f"{number}.Add.<script>op{number:02}&.output.0", [1])
    dump = ascend_dump.open(tmp_path)
    html = dump._repr_html_()
    seen = Cells(html)
    assert seen.rows == 51
    assert "<script>op00&" in seen.text
    assert "the first 50 records" in seen.text
    assert "op55" not in html
    assert "http" not in html
    assert seen.tags == TABLE_TAGS
    few = Cells(dump.select(step="0-2")._repr_html_())
    assert few.rows == 4
    assert "the first " not in few.text
    one = Cells(next(iter(dump))._repr_html_())
    assert one.tags == TABLE_TAGS
    assert "float32" in one.text
    assert "task_id" not in one.text


def test_notebooks_show_why_a_record_cannot_be_read(root: Path) -> None:
    [broken] = ascend_dump.open(root).errors()
    assert "not a list of numbers" in Cells(broken._repr_html_()).text


def test_rank_of() -> None:
    assert rank_of(("a", "worldsize8_global_rank3", "b")) == 3
    assert rank_of(("a", "xworldsize8_global_rank3", "worldsize8_global_rank")) is None
    assert rank_of(()) is None


def test_an_entry_of_a_dialect_must_say_how_it_is_read() -> None:
    with pytest.raises(NotImplementedError):
        list(Entry(Path("x")).records())
