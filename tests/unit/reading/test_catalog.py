"""The catalog: the records as columns, kept beside large dumps and never trusted when it does not fit."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any, Optional

import pytest
from host_dumps import model_directory
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from places import DATA

import ascend_dump
from ascend_dump import AscendDumpError, NotSupported
from ascend_dump.reading import FIELDS, Record
from ascend_dump.statistics import Statistics

polars = pytest.importorskip("polars")

LARGE = 20_000


def step_of(root: Path) -> Path:
    step = model_directory(root) / "0"
    step.mkdir()
    return step


def simple_line(number: int, **more: Any) -> bytes:
    fields = {
        "seq": number,
        "op_type": "aten::mul",
        "op_name": f"layers.{number % 7}/mul_{number}",
        "io": "output",
        "index": 0,
        "time": 1_700_000_000_000_000 + number,
        "dtype": "float32",
        "shape": [number % 5, 2],
        "nbytes": 8 * (number % 5),
        "hash": f"{number:032x}",
        **more,
    }
    return json.dumps(fields).encode() + b"\n"


@pytest.fixture(scope="module")
def lines() -> bytes:
    return b"".join(map(simple_line, range(LARGE)))


@pytest.fixture
def large(tmp_path: Path, lines: bytes) -> Path:
    root = tmp_path / "dump"
    (step_of(root) / "index.jsonl").write_bytes(lines)
    return root


def frame_of(root: Path, **selection: Any) -> Any:
    return ascend_dump.open(root).select(**selection).catalog().collect()


def rows_of(root: Path, **selection: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame_of(root, **selection).to_dicts()
    return rows


def expected(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in FIELDS}
    row["path"] = str(record.path)
    row["shape"] = None if record.shape is None else list(record.shape)
    row["error"] = None if record.error is None else str(record.error)
    try:
        found: Optional[Statistics] = record.recorded_statistics()
    except AscendDumpError:
        found = None
    row.update(dict.fromkeys(Statistics._fields) if found is None else found._asdict())
    if "storage" in record.attrs:
        for name in ("hash", "storage", "version", "seq"):
            row[name] = record.attrs[name]
        row["stride"] = list(record.attrs["stride"])
        row["argument"] = record.argument
    return row


def plain(value: Any, name: str) -> Any:
    """As a column holds it: a whole number of 64 bits, or a float."""
    if name in ("max", "min", "mean", "l2norm") and value is not None:
        value = float(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    # As text, because NaN differs from itself, and 0.0 equals -0.0.
    return repr(value) if isinstance(value, float) else value


def assert_same(root: Path, **selection: Any) -> None:
    dump = ascend_dump.open(root).select(**selection)
    records = list(dump)
    batches = list(dump.batches())
    assert [record for batch in batches for record in batch] == records
    assert sum(map(len, batches)) == len(records)
    assert all((one.rank, one.step) == (batch.rank, batch.step) for batch in batches for one in batch)
    assert list(dump.where(polars.col("io").is_null() | polars.lit(True))) == records
    outputs = dump.where(polars.col("io") == "output", polars.col("error").is_null())
    wanted = [record for record in records if record.io == "output" and record.error is None]
    assert list(outputs) == wanted
    assert outputs.catalog().collect().height == len(wanted)
    assert [record for batch in outputs.batches() for record in batch] == wanted
    rows = rows_of(root, **selection)
    assert len(rows) == len(records)
    for row, record in zip(rows, records):
        for name, value in expected(record).items():
            assert plain(row[name], name) == plain(value, name), (name, record)


numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.none(), st.sampled_from(["nan", "inf", "-inf", "x"]), st.booleans()
)
line_fields = st.fixed_dictionaries(
    {
        "seq": st.integers(0, 5),
        "op_type": st.sampled_from(["aten::add", "aten::mm"]),
        "op_name": st.text(max_size=5),
        "io": st.sampled_from(["input", "output"]),
        "index": st.integers(0, 2**63),
        "time": st.integers(0, 2**50),
        "dtype": st.sampled_from(["float32", "bits8"]),
        "shape": st.lists(st.integers(0, 2**63 - 1), max_size=3),
        "nbytes": st.integers(0, 100),
    },
    optional={
        "module": st.text(max_size=3),
        "source": st.text(max_size=3),
        "stride": st.lists(st.integers(-5, 5), max_size=3),
        "storage": st.integers(-1, 4),
        "version": st.integers(-1, 4),
        "hash": st.sampled_from(["", "ab"]),
        "shard": st.sampled_from(["0/tensors-00000.safetensors", "../../etc/passwd", ""]),
        "stats": st.lists(numbers, min_size=1, max_size=11),
        "skipped": st.sampled_from(["", "too large"]),
        "quantization": st.fixed_dictionaries({"scale": st.floats(0, 1)}),
        "origin": st.booleans(),
        "argument": st.sampled_from(["", "indices"]),
        "parameter": st.sampled_from(["", "fc.weight"]),
        "call": st.sampled_from(
            [
                {"op": "aten.add.Tensor", "args": {"self": {"input": 0}, "other": {"input": 1}}},
                {"op": "aten.cat.default", "args": {"tensors": {"inputs": [0, 3]}}},
                {"op": 1},
                [],
            ]
        ),
    },
)


def encoded(fields: dict[str, Any]) -> bytes:
    """Return a line. NaN and Inf are texts."""
    stats = [str(one) if isinstance(one, float) and one - one != 0 else one for one in fields.get("stats", ())]
    return json.dumps({**fields, "stats": stats} if stats else fields).encode()


@st.composite
def index_files(draw: st.DrawFn, given: Optional[list[dict[str, Any]]] = None) -> bytes:
    lines = list(map(encoded, draw(st.lists(line_fields, max_size=6)) if given is None else given))
    junk = [
        b"",
        b"{",
        b"[]",
        b'{"seq": 1}',
        b"{}{}",
        b"{\n}",
        b" ",
        b"\xff",
        simple_line(3).strip() + simple_line(4).strip(),
    ]
    for at, text in draw(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(junk)), max_size=2)):
        lines.insert(at, text)
    text = b"\n".join(lines)
    return text + draw(st.sampled_from([b"", b"\n", b'\n{"seq": 1, "op_'])) if lines else b""


_LINE = (
    b'{"seq": 0, "op_type": "aten::add", "op_name": "", "io": "input", "index": 0, "time": 0, "dtype": "float32",'
    b' "shape": [], "nbytes": 0, "stats": %s}\n'
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@example(text=_LINE % b'[0, 0, null, 0, null, "nan"]')
@example(text=_LINE % b"[0, 0, null, 0, null, 1.5]")
@given(text=index_files())
def test_it_says_what_the_records_say(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    root = tmp_path_factory.mktemp("dump")
    (step_of(root) / "index.jsonl").write_bytes(text)
    assert_same(root)
    assert_same(root, op="*a*", index="0-9", io="output")
    assert_same(root, step=0)


_few = st.integers(0, 2)
_counts = st.lists(_few | st.none(), max_size=6)
#: Fields of lines that can be read. Few values, so that many lines have some in common.
readable_fields = st.fixed_dictionaries(
    {
        "seq": _few,
        "op_type": st.sampled_from(["aten::add", "aten::mm"]),
        "op_name": st.sampled_from(["a", "b"]),
        "io": st.sampled_from(["input", "output", "buffer"]),
        "index": _few,
        "time": _few,
        "dtype": st.sampled_from(["float32", "int64"]),
        "shape": st.lists(_few, max_size=2),
        "nbytes": _few,
        "hash": st.sampled_from(["", "ab"]),
        "argument": st.sampled_from(["", "", "indices"]),
    },
    optional={
        "stride": st.lists(_few, max_size=2),
        "parameter": st.sampled_from(["", "fc.weight"]),
        "stats": st.tuples(_few, st.sampled_from([0.0, -0.0, 0, 1.5, "nan", None]), _counts).map(
            lambda it: [it[0], it[1], 1.0, it[1], 2.0, *it[2]]
        ),
        "call": st.sampled_from(
            [
                {"op": "aten.add.Tensor", "args": {"self": {"input": 0}, "other": {"input": 1}}},
                {"op": "aten.cat.default", "args": {"tensors": {"inputs": [0, 3]}}},
                {"op": 1},
            ]
        ),
    },
)


def step_of_call(name: str, *times: int) -> bytes:
    """Return a step with an operator whose first line has its arguments. name: that of the second one"""
    call = {"op": "aten.add.Tensor", "args": {"out": {"input": 0}, name: {"input": 1}}}
    more: list[dict[str, Any]] = [{"call": call}, {}]
    lines = (simple_line(0, io="input", **{"index": at, "time": times[at], **more[at]}) for at in (0, 1))
    return b"".join(lines)


@st.composite
def repeated_steps(draw: st.DrawFn) -> list[bytes]:
    """Indexes of steps that repeat the first one, but for a few lines. Some of them are damaged."""
    first = draw(st.lists(readable_fields, min_size=1, max_size=8))
    steps = []
    for _ in range(draw(st.integers(2, 5))):
        lines = [dict(fields) for fields in first]
        for at, fields in draw(st.lists(st.tuples(st.integers(0, 7), readable_fields), max_size=2)):
            names = draw(st.sets(st.sampled_from(sorted(fields))))
            lines[at % len(lines)].update({name: fields[name] for name in names})
        is_damaged = draw(st.integers(0, 5)) == 0
        later = draw(st.integers(0, 5))
        for fields in lines:
            fields["time"] += later
        whole = b"".join(encoded(fields) + b"\n" for fields in lines)
        steps.append(draw(index_files(lines)) if is_damaged else whole)
    return steps


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@example(steps=[step_of_call("self", 0, 0), step_of_call("self", 5, 6)], rows=3)
@example(steps=[step_of_call("self", 0, 0), step_of_call("mat", 0, 0)], rows=1)
@example(steps=[_LINE % b"[1, 0.0, 0.0, 0.0, 0.0]", _LINE % b"[1, -0.0, 0.0, 0.0, 0.0]"], rows=3)
@given(steps=repeated_steps(), rows=st.integers(1, 9))
def test_steps_that_repeat(tmp_path_factory: pytest.TempPathFactory, steps: list[bytes], rows: int) -> None:
    root = tmp_path_factory.mktemp("dump")
    model = model_directory(root)
    for number, text in enumerate(steps):
        (model / str(number)).mkdir()
        (model / str(number) / "index.jsonl").write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.reading.catalog.ROWS", rows)
        assert_same(root)


def test_a_line_is_one_record_wherever_the_index_is_cut(tmp_path: Path) -> None:
    """Lines of some blocks are decoded together: as many records as lines are not one in each."""
    lines = [simple_line(n, stats=[n % 5, 1.5, "-inf" if n % 700 == 1 else 0, None, "nan"]) for n in range(3000)]
    first, second = (line.strip() for line in lines[1500:1502])
    for at, text in (
        (300, first.replace(b", ", b",\n", 1) + b"\n" + first + second + b"\n"),  # 3 records in 3 lines
        (1100, b'{"a": {}\n' + first[1:] + b"\n" + first + second + b"\n"),
        (1800, first.replace(b"}", b', "unknown": {"b": {}\n}}') + b"\n" + first + second + b"\n"),
        (2500, simple_line(7, stats=[1, 1.0, 1.0, 1.0, 1.0, 0.5])),
        (2600, simple_line(7, blob=[1, 2, 3])),
    ):
        lines[at] = text
    index = step_of(tmp_path) / "index.jsonl"
    index.write_bytes(b"".join(lines))
    assert index.stat().st_size > 2 << 18, "several blocks"
    assert_same(tmp_path)
    assert sum(record.error is not None for record in ascend_dump.open(tmp_path)) >= 9


@pytest.mark.parametrize("name", ["cann", "mindspore"])
def test_it_says_what_the_records_of_other_dialects_say(name: str) -> None:
    assert_same(DATA / name)
    assert_same(DATA / name, op="*a*", index="0")


def test_calls_of_a_decorated_function_are_the_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    @ascend_dump.capture(path=tmp_path / "dump", framework="torch")
    def work(x: Any) -> Any:
        return x + 1

    for _ in range(2):
        work(torch.ones(2))
    work.capture.stop()
    assert {row["step"] for row in rows_of(tmp_path / "dump")} == {0, 1}
    assert_same(tmp_path / "dump")
    assert_same(tmp_path / "dump", step=1)


def parts(root: Path) -> list[Path]:
    return sorted((root / ".ascend-dump-catalog").glob("*"))


class TestKeeping:
    def test_a_small_one_is_not_kept(self, tmp_path: Path) -> None:
        (step_of(tmp_path) / "index.jsonl").write_bytes(simple_line(1))
        assert len(rows_of(tmp_path)) == 1
        assert not parts(tmp_path)

    def test_a_large_one_is_kept_beside_the_dump_and_is_private(self, large: Path) -> None:
        first = frame_of(large)
        found = parts(large)
        assert [path.name for path in found] == ["catalog.json", "part-00000.parquet"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        assert stat.S_IMODE(found[0].parent.stat().st_mode) == 0o700
        before = [path.stat().st_mtime_ns for path in found]
        assert frame_of(large).equals(first)
        assert [path.stat().st_mtime_ns for path in parts(large)] == before, "it is read, not made again"
        assert len(ascend_dump.open(large)) == LARGE, "it is no part of the dump"

    def test_a_selection_reads_it(self, large: Path) -> None:
        frame_of(large)
        wanted = rows_of(large, op="layers.3/*")
        assert wanted
        assert all(row["op_name"].startswith("layers.3/") for row in wanted)

    @pytest.mark.parametrize("spelling", ["absolute", "relative", "."])
    def test_paths_are_as_the_dump_was_opened(
        self, large: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
    ) -> None:
        frame_of(large)
        before = parts(large)[0].stat().st_mtime_ns
        monkeypatch.chdir(large.parent if spelling == "relative" else large)
        root = {"absolute": large, "relative": Path(large.name), ".": Path(".")}[spelling]
        assert frame_of(root)["path"][5] == str(next(iter(ascend_dump.open(root))).path)
        assert parts(large)[0].stat().st_mtime_ns == before

    def test_it_is_made_anew_when_a_file_changed(self, large: Path) -> None:
        frame_of(large)
        [index] = large.rglob("index.jsonl")
        with open(index, "ab") as file:
            file.write(simple_line(LARGE))
        assert len(frame_of(large)) == LARGE + 1

    @pytest.mark.parametrize("damage", ["truncated", "flipped", "link", "writable", "manifest", "other version"])
    def test_one_that_does_not_fit_is_made_anew(self, large: Path, tmp_path: Path, damage: str) -> None:
        expected = frame_of(large)
        manifest, part = parts(large)
        data = part.read_bytes()
        if damage == "truncated":
            part.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            part.write_bytes(data[:100] + bytes([data[100] ^ 255]) + data[101:])
        elif damage == "link":
            part.rename(tmp_path / "elsewhere")
            part.symlink_to(tmp_path / "elsewhere")
        elif damage == "writable":
            part.chmod(0o666)
        elif damage == "manifest":
            manifest.write_text("[" * 10_000)
        else:
            manifest.write_text(manifest.read_text().replace('"ascend-dump/catalog/', '"ascend-dump/catalog/0'))
        inode = manifest.stat().st_ino
        assert frame_of(large).equals(expected)
        assert parts(large)[0].stat().st_ino != inode
        assert [path for path in large.iterdir() if path.name.startswith(".ascend-dump-catalog.")] == []

    def test_a_link_in_its_place_is_not_followed(self, large: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (large / ".ascend-dump-catalog").symlink_to(elsewhere)
        assert len(frame_of(large)) == LARGE
        assert not list(elsewhere.iterdir())

    def test_what_a_killed_process_left_goes_a_day_later(self, large: Path) -> None:
        left, made_now = large / ".ascend-dump-catalog.old", large / ".ascend-dump-catalog.new"
        for draft in (left, made_now):
            draft.mkdir()
            (draft / "part-00000.parquet").write_bytes(b"PAR1")
        os.utime(left, (1, 1))
        frame_of(large)
        assert (left.exists(), made_now.exists()) == (False, True)

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
    def test_where_others_can_exchange_it_it_is_kept_in_the_cache_directory(
        self, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        large.chmod(mode)
        first = frame_of(large)
        assert not parts(large)
        assert list((tmp_path / "cache").rglob("*.parquet"))
        assert frame_of(large).equals(first)

    def test_that_of_a_read_only_dump_is_kept_in_the_cache_directory(
        self, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: Any
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        read_only(large)
        first = frame_of(large)
        assert not parts(large)
        assert [path.suffix for path in sorted((tmp_path / "cache").rglob("*.*")) if path.is_file()] == [
            ".json",
            ".parquet",
        ]
        assert frame_of(large).equals(first)

    @pytest.fixture
    def two_parts(self, tmp_path: Path, lines: bytes) -> Path:
        """Write an index with more than the 131,072 rows that a catalog writes together."""
        (step_of(tmp_path) / "index.jsonl").write_bytes(lines * 7)
        return tmp_path

    @pytest.mark.parametrize("written", [0, 1])
    def test_on_a_full_disk_it_is_not_kept(
        self, two_parts: Path, monkeypatch: pytest.MonkeyPatch, written: int
    ) -> None:
        """polars raises a ComputeError with the text of the operating system's error."""
        expected = frame_of(two_parts)
        assert [path.name for path in parts(two_parts)[1:]] == ["part-00000.parquet", "part-00001.parquet"]
        [index] = two_parts.rglob("index.jsonl")
        os.utime(index, ns=(1, 1))
        write, left = polars.DataFrame.write_parquet, [written]

        def refuse(frame: Any, path: Path, **settings: Any) -> None:
            if not left[0]:
                path.write_bytes(b"PAR1")
                raise polars.exceptions.ComputeError("No space left on device (os error 28)")
            left[0] -= 1
            write(frame, path, **settings)

        monkeypatch.setattr(polars.DataFrame, "write_parquet", refuse)
        assert frame_of(two_parts).equals(expected)
        assert not left[0]
        assert [path for path in two_parts.iterdir() if path.name.startswith(".ascend-dump-catalog.")] == []

    def test_nothing_is_left_behind_where_reading_ends_early(self, two_parts: Path) -> None:
        read = 0

        def stop(parts: Any) -> Any:
            nonlocal read
            for part in parts:
                read += part.height
                if read > 135_000:
                    raise KeyboardInterrupt
                yield part

        before = threading.enumerate()
        with pytest.raises(KeyboardInterrupt):
            ascend_dump.open(two_parts).catalog(watch=stop)
        assert threading.enumerate() == before
        assert [path for path in two_parts.iterdir() if path.name.startswith(".ascend-dump-catalog")] == []

    @pytest.fixture
    def read_only(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Whoever runs the tests as root may write everywhere, so the refusal is played."""
        import tempfile

        make = tempfile.mkdtemp

        def protect(root: Path) -> None:
            def refuse(*args: Any, **settings: Any) -> str:
                if Path(settings["dir"]) == root:
                    raise PermissionError(13, "Permission denied", str(root))
                return make(*args, **settings)

            monkeypatch.setattr(tempfile, "mkdtemp", refuse)

        return protect


def test_without_polars_it_says_what_to_install(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    dump = ascend_dump.open(large)
    with pytest.raises(NotSupported, match=r"needs polars(?s:.*)pip install 'ascend-dump\[analyze\]'"):
        dump.catalog()
    assert len(dump) == LARGE


class TestStatisticsThatWereNotRecorded:
    """`where` compares columns of statistics; nulls compare with nothing, which looks like a healthy dump."""

    NAN = polars.col("nan") > 0

    def dump(self, root: Path, *found: Any, **selection: Any) -> ascend_dump.Dump:
        lines = [simple_line(1 + at, **({} if one is None else {"stats": one})) for at, one in enumerate(found)]
        (step_of(root) / "index.jsonl").write_bytes(b"".join(lines))
        return ascend_dump.open(root).select(**selection)

    def test_none_at_all(self, tmp_path: Path) -> None:
        dump = self.dump(tmp_path, None, None)
        message = r"uses nan, which no record(?s:.*)data='full'.*to_frame\(stats=True\)"
        for read in (list, len, lambda one: one.catalog().collect(), lambda one: one.to_frame()):
            with pytest.raises(NotSupported, match=message):
                read(dump.where(self.NAN))
        assert len(dump.where(polars.col("nan").is_null())) == 2, "that is what was asked for"
        assert len(dump.where(polars.col("nbytes") < 0)) == 0
        assert len(dump.select("nothing").where(self.NAN)) == 0

    def test_one_of_them(self, tmp_path: Path) -> None:
        dump = self.dump(tmp_path, (2, 1.0, 0.0, *[None] * 8))
        assert len(dump.where(polars.col("max") > 2)) == 0
        with pytest.raises(NotSupported, match="uses nan, which"):
            len(dump.where(self.NAN))

    def test_those_that_there_are_tell(self, tmp_path: Path) -> None:
        healthy, empty = (2, 1.0, 0.0, 0.5, 1.0, 0, 0, 0, 1, 1, 0), (0, None, None, None, 0.0, *[0] * 6)
        dump = self.dump(tmp_path, None, healthy, empty)
        assert len(dump.where(self.NAN)) == 0
        assert len(dump.where(polars.col("count") == 0, polars.col("max") > 1)) == 0

    def test_where_all_is_nan_or_empty_nothing_is_missing(self, tmp_path: Path) -> None:
        nan, empty = (2, None, None, "nan", "nan", 2, 0, 0, 0, 0, 0), (0, None, None, None, 0.0, *[0] * 6)
        dump = self.dump(tmp_path, nan, empty)
        assert len(dump.where(polars.col("max") > 1)) == 0
        assert len(dump.where(self.NAN)) == 1


def test_a_dump_opened_in_the_middle_of_a_run(tmp_path: Path) -> None:
    step = step_of(tmp_path)
    (step / "index.jsonl").write_bytes(
        b"".join(simple_line(n, shard="1/tensors-00000.safetensors") for n in range(LARGE))
    )
    rows = ascend_dump.open(step).catalog().collect()
    assert rows["path"][0] == os.fspath(step.parent / "1" / "tensors-00000.safetensors")
    assert not parts(step), "paths that lead out of it would not fit another spelling"
