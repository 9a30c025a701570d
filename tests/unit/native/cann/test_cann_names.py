from __future__ import annotations

import fnmatch
import os

import places
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from ascend_dump import ConfigError, ReadError
from ascend_dump.adapter import text_matcher
from ascend_dump.native.cann.mapping import (
    hashed_name,
    mapping_line,
    needs_mapping,
    parse_mapping,
    read_mapping,
    std_hash,
)
from ascend_dump.native.cann.names import (
    DumpLevels,
    DumpName,
    EagerName,
    build_levels,
    build_name,
    eager_name,
    loosen_glob,
    parse_levels,
    parse_name,
    sanitize,
    watch_name,
    watch_pairs,
)

DATA = places.DATA / "cann"
STAMP = 1589195081588018

ids = st.integers(0, 2**32 - 1)
stamps = st.integers(10**15, 10**16 - 1)
local_stamps = st.integers(10**16, 10**17 - 1)
any_text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=20)
plain_text = any_text.map(sanitize)
ffts = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"task_type": st.just(4), "context_id": ids, "thread_id": ids, "device_id": ids}),
)


@given(plain_text, plain_text, stamps, ids, ids, st.booleans(), ffts)
def test_device_name_round_trips(op_type, op_name, stamp, task, stream, statistics, suffix):
    name = DumpName("device", op_type, op_name, stamp, task, stream, statistics, **suffix)
    assert parse_name(build_name(name)) == name


@given(plain_text, plain_text, stamps, ids, ffts)
def test_old_name_without_stream_round_trips(op_type, op_name, stamp, task, suffix):
    name = DumpName("old", op_type, op_name, stamp, task, None, **suffix)
    assert parse_name(build_name(name)) == name


@given(plain_text, any_text, stamps, ids, ids, ids, ffts)
def test_captured_stream_keeps_dots_and_slashes(op_type, op_name, stamp, number, task, stream, suffix):
    name = DumpName("aclgraph", op_type, op_name, stamp, task, stream, dump_number=number, **suffix)
    written = build_name(name)
    assert op_name in written
    assert ("FFTSPLUS" in written.rsplit(str(stamp), 1)[1]) == bool(suffix)
    assert parse_name(written) == name


@given(plain_text, any_text.filter(lambda text: not text.endswith(".custom")), local_stamps, ids, ids)
def test_exception_names_round_trip(op_type, op_name, stamp, task, stream):
    brief = DumpName("brief", "exception_info", "", stamp, task, stream)
    assert build_name(brief) == f"exception_info.{stream}.{task}.{stamp}"
    assert parse_name(build_name(brief)) == brief
    kernel = DumpName("callback", op_type, "", stamp, task, stream, core_type="0", core_id=5)
    assert parse_name(build_name(kernel)) == kernel
    custom = DumpName("custom", op_type, "", stamp)
    assert parse_name(build_name(custom)) == custom
    written = build_name(DumpName("normal", op_type, sanitize(op_name), stamp, task))
    normal = parse_name(written)
    assert normal is not None
    assert normal.exception
    assert build_name(normal) == written


@given(any_text, any_text)
def test_device_replaces_only_blank_dot_and_slashes(op_type, op_name):
    parsed = parse_name(build_name(DumpName("device", op_type, op_name, STAMP, 1, 2)))
    assert parsed is not None
    assert (parsed.op_type, parsed.op_name) == (sanitize(op_type), sanitize(op_name))
    assert len(sanitize(op_name)) == len(op_name)
    assert all(a == b or (a in " ./\\" and b == "_") for a, b in zip(op_name, sanitize(op_name)))


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_none(text):
    parsed = parse_name(text)
    assert parsed is None or build_name(parsed)


@pytest.mark.parametrize(
    ("text", "op_name", "number"),
    [
        (f"Add.model.layer.0.add.0.3.7.{STAMP}", "model.layer.0.add", 0),
        (f"Add.layers.5.12.3.7.{STAMP}", "layers.5", 12),
        (f"aclnnAdd.a/b.c/d.1.3.7.{STAMP}", "a/b.c/d", 1),
    ],
)
def test_numbers_of_a_captured_stream_are_counted_from_the_right(text, op_name, number):
    parsed = parse_name(text)
    assert parsed is not None
    assert (parsed.form, parsed.op_name, parsed.dump_number) == ("aclgraph", op_name, number)
    assert (parsed.task_id, parsed.stream_id) == (3, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mapping.csv",
        "statistic.csv",
        "libfoo.so.1.2.3",
        "core.python.1234.1700000000",
        f"Add.Add_1.3.7.{STAMP}.output.0.npy",
        f"Cast.Default_Cast-op0.0.0.{STAMP}.input.0.DefaultFormat.BFloat16.npy",
        f"Opdebug.Node_OpDebug.59.3.{STAMP}.output.0.json",
        f"Add..3.7.{STAMP}",
        f".Add.3.7.{STAMP}",
        f"Add.Add_1.x.7.{STAMP}",
        f"Add.Add_1.12345678901.7.{STAMP}",
        f"Add.a.b.3.{STAMP}",
        f"Add.a.b.3.7.{STAMP}",
        "Add.Add_1.3.7.123456789012345678",
        "Add.Add_1.٣.7.1589195081588018",
        f"Relu.r.9.7.{STAMP}.FFTSPLUS.487.0.0",
        f"Relu.r.9.7.{STAMP}.44.487.0.0",
        "5.20260101123456789",
        "exception_info.x.20260101123456789",
    ],
)
def test_foreign_names_are_not_cann_names(text):
    assert parse_name(text) is None


def test_overflow_record_is_known_in_every_spelling():
    for text in (f"Opdebug.Node_OpDebug.59.3.{STAMP}", f"OpDebug.Node_Opdebug.59.{STAMP}"):
        parsed = parse_name(text)
        assert parsed is not None
        assert parsed.overflow
    ordinary = parse_name(f"Add.Node_OpDebug.59.3.{STAMP}")
    assert ordinary is not None
    assert not ordinary.overflow


def test_watch_pairs_lists_every_reading():
    assert list(watch_pairs(watch_name("A", "C"))) == [("A", "C")]
    assert list(watch_pairs("Cast_To_fp16_To_C")) == [("Cast", "fp16_To_C"), ("Cast_To_fp16", "C")]
    assert list(watch_pairs("_To_C")) == []
    assert list(watch_pairs("A_To_")) == []


places = st.builds(
    DumpLevels,
    run=st.just("20260101010101"),
    device=st.integers(0, 63),
    model=st.none(),
    model_id=st.none(),
    data_index=st.none(),
    outer_step=st.one_of(st.none(), st.integers(0, 10**6)),
    rank=st.none(),
    world=st.none(),
    exception=st.just(False),
    inner=st.just(()),
)
model_places = st.builds(
    DumpLevels,
    run=st.just("20260101010101"),
    device=st.integers(0, 63),
    model=plain_text.filter(lambda text: not text.isdecimal()),
    model_id=ids,
    data_index=st.one_of(st.none(), ids),
    outer_step=st.one_of(st.none(), st.integers(0, 10**6)),
    rank=st.integers(0, 9999),
    world=st.integers(1, 10000),
    exception=st.just(False),
    inner=st.just(()),
)


@given(st.one_of(places, model_places))
def test_place_round_trips_under_any_path(place):
    assert parse_levels(build_levels(place)) == place
    assert parse_levels(("/", "home", "user", "dumps", *build_levels(place))) == place


def test_exception_directory_and_inner_levels():
    place = DumpLevels(device=3, exception=True)
    assert build_levels(place) == ("extra-info", "data-dump", "3")
    assert parse_levels(("d", *build_levels(place))) == place
    captured = parse_levels(("20260101010101", "0", "aclnnAdd.model", "layer"))
    assert captured == DumpLevels(run="20260101010101", device=0, inner=("aclnnAdd.model", "layer"))


def test_levels_above_the_opened_directory_count_from_the_time_level_on():
    parts = ("data", "3", "20260101010101", "0", "m", "1", "7")
    assert parse_levels(parts, inside=6).outer_step == 3
    assert parse_levels(parts, inside=5).outer_step is None
    assert parse_levels(parts, inside=0).data_index == 7
    assert parse_levels(("home", "m", "1", "7"), inside=0) == DumpLevels()
    assert parse_levels(("home", "m", "1", "7"), inside=3).data_index == 7


@given(st.lists(st.text(max_size=16), max_size=8), st.integers(0, 8))
def test_any_levels_are_a_place(parts, own):
    place = parse_levels(parts, own)
    assert place.data_index is None or place.model is not None


def test_hash_equals_libstdcxx():
    lines = (DATA / "std_hash_vectors.tsv").read_bytes().splitlines()
    assert len(lines) == 4
    for line in lines:
        expected, _, text = line.partition(b"\t")
        assert std_hash(text) == int(expected)


def test_hash_input_is_the_path_for_data_and_the_name_for_exceptions():
    path = "/home/dump/20260101000000/0//m/1/0/AAAAAAAAAA.op.1.2.1589195081588018"
    assert hashed_name(path) == "11880813407872137183"
    assert hashed_name("/elsewhere/Add.x.1.2.3", exception=True) == "6231468535003820283"
    assert needs_mapping("é" * 128)
    assert not needs_mapping("a" * 255)


def test_mapping_skips_duplicates_and_refuses_what_leads_outside(tmp_path):
    name = f"Add.{'x' * 250}.3.7.{STAMP}"
    lines = [
        mapping_line("11", name),
        mapping_line("11", name),
        "\n",
        "garbage\n",
        ",\n",
        "../../etc/passwd,Add.a.1.2.1589195081588018\n",
        "12,../Add.a.1.2.1589195081588018\n",
        "..,x\n",
        "13,a,b,c\r\n",
        "11,other\n",
        "14,last line without end",
    ]
    (tmp_path / "mapping.csv").write_text("".join(lines))
    found = read_mapping(tmp_path / "mapping.csv")
    assert found.names == {"11": name, "13": "a,b,c", "14": "last line without end"}
    assert [text.split()[1] for text in found.refused] == ["4", "5", "6", "7", "8", "10"]


def test_of_many_lines_of_a_mapping_that_are_none_a_few_are_told(tmp_path):
    (tmp_path / "mapping.csv").write_text("\x7f\n" * 100_000 + "11,a\n")
    found = read_mapping(tmp_path / "mapping.csv")
    assert found.names == {"11": "a"}
    assert len(found.refused) == 21
    assert found.refused[-1] == "99980 further lines cannot be used either"


def test_mapping_that_is_no_regular_file_is_a_read_error(tmp_path):
    with pytest.raises(ReadError):
        read_mapping(tmp_path / "mapping.csv")
    os.mkfifo(tmp_path / "mapping.csv")
    with pytest.raises(ReadError, match="regular"):
        read_mapping(tmp_path / "mapping.csv")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_mapping_of_plain_names(data):
    names = parse_mapping(data.decode("utf-8", "surrogateescape").split("\n")).names
    assert not any("/" in name or name == ".." for pair in names.items() for name in pair)


@given(st.text("ab_./ *?[]!-", max_size=8), any_text | st.text("ab_./ []!-", max_size=8))
def test_a_loosened_glob_misses_no_sanitized_name(glob, name):
    try:
        matches = text_matcher(glob)
    except ConfigError:
        # A backward range, before Python 3.10.6.
        reject()
    if matches(name):
        assert text_matcher(loosen_glob(glob))(sanitize(name))


def test_a_loosened_glob_still_rules_names_out():
    assert loosen_glob("layers.[0-9a]/[!w_]*") == "layers_[0-9a]_?*"
    assert loosen_glob("[A-z][!a]") == "?[!a]"
    assert not fnmatch.fnmatchcase("layers_1_w", loosen_glob("layers.0/[wW]*"))
    assert loosen_glob("a[b") == "a[[]b"


def test_names_of_real_devices_are_read():
    """Names from logs of devices, documents and tests of CANN."""
    names = (DATA / "real_names.txt").read_text().splitlines()
    assert len(names) == 101
    converted = (".npy", ".bin", ".json", ".BF16", ".o")
    parsed = {name: parse_name(name) for name in names if not name.endswith(converted)}
    assert None not in parsed.values()
    exceptions = {name: fields for name, fields in parsed.items() if fields is not None and fields.exception}
    for name, fields in exceptions.items():
        assert build_name(fields) == name
    assert sum("exception_info" in name for name in exceptions) == 6
    brief = exceptions["exception_info.42.1.1726159207469285"]
    assert (brief.form, brief.stream_id, brief.task_id, brief.local_time) == ("brief", 42, 1, False)
    eager = {name: eager_name(fields) for name, fields in parsed.items() if fields is not None and eager_name(fields)}
    assert set(eager.values()) == {
        EagerName("aclnnBatchMatMul", 0),
        EagerName("aclnnIndexSelect", 0, "GatherV3AiCore"),
        EagerName("aclnnAbs", 0, "AbsAicore"),
        EagerName("aclnnMatmul", 4886226, "MatMulCommon"),
        EagerName("AddCustom", 12, generated=True),
    }
    older = parsed["aclnnMatmul_4886226_L0.MatMulCommon.3975510.1717053072064889"]
    assert (older.form, older.task_id, older.local_time) == ("normal", 3975510, False)
