from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import places
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import AscendDumpError, CorruptDump, NotSupported, ReadError, UnknownFormat
from ascend_dump.native.cann.dump_file import Tensor, tensor_of, write
from ascend_dump.native.cann.mapping import hashed_name, mapping_line
from ascend_dump.native.cann.names import DumpLevels, DumpName, build_levels, build_name, watch_name
from ascend_dump.native.cann.overflow import encode_overflow
from ascend_dump.native.cann.statistics_csv import HEADER, format_row, format_statistics

DATA = places.DATA / "cann"
FIXTURES = sorted((DATA / "in").iterdir())
STAMP = 1589195081588018
RUN = "20260101010101"
ARRAY = np.arange(6, dtype="f4").reshape(2, 3)


def dump_op(directory, op_name="conv1", *, op_type="Conv2D", header_name=None, array=ARRAY, **fields):
    """Write a file as the device would: one input, one output."""
    name = DumpName("device", op_type, op_name, STAMP, 3, 7)._replace(**fields)
    path = Path(directory, build_name(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = [tensor_of("input", 0, array, address=0x1000), tensor_of("output", 0, array * 2, address=0x2000)]
    write(path, tensors, op_name=op_name if header_name is None else header_name, dump_time=name.timestamp)
    return path


def tree(root, **fields):
    place = DumpLevels(RUN, 0, "ge_default_1", 11, 0)._replace(**fields)
    return Path(root, *build_levels(place))


# the real files


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_every_record_of_every_fixture_tells_dtype_and_shape_truly(path):
    records = list(ascend_dump.open(path))
    assert records
    for record in records:
        if record.error is None and record.dtype != "hifloat4":
            array = record.numpy()
            assert (array.dtype.name, array.shape) == (record.dtype, record.shape)
        json.dumps(record.to_dict())


def test_the_directory_of_fixtures_lists_them_in_the_order_they_ran():
    dump = ascend_dump.open(DATA / "in")
    stamps = [record.timestamp for record in dump if record.device is None]
    assert stamps == sorted(stamps)
    assert len(stamps) > len(FIXTURES) - 2
    assert len({record.path for record in dump}) == len(FIXTURES)
    assert {record.op_name for record in dump.errors()} == {"complex32", "sh"}


def test_fields_of_a_record():
    record = next(iter(ascend_dump.open(DATA / "in").select(op="Add_1", io="output")))
    assert (record.op_type, record.op_name, record.io, record.index) == ("Add", "Add_1", "output", 0)
    assert (record.task_id, record.stream_id, record.timestamp) == (3, 7, STAMP)
    assert (record.dtype, record.shape, record.format, record.nbytes) == ("float32", (2, 3), "ND", 24)
    assert record.attrs["original_op"] == {"name": "add", "output_index": 0, "data_type": "FLOAT", "format": "ND"}
    assert record.attrs["address"] > 0
    assert record.statistics().count == 6


def test_low_precision_comes_as_ml_dtypes():
    dump = ascend_dump.open(DATA / "in")
    assert next(iter(dump.select(op="bf16"))).numpy().dtype == ml_dtypes.bfloat16
    values = next(iter(dump.select(op="e4m3fn"))).numpy()
    assert values.dtype == ml_dtypes.float8_e4m3fn
    assert np.isnan(values[0x7F].astype("f4"))


def test_the_original_layout_comes_when_asked_for():
    record = next(iter(ascend_dump.open(DATA / "in").select(op="conv1")))
    assert (record.format, record.shape) == ("NC1HWC0", (1, 2, 2, 3, 16))
    assert record.attrs["original_shape"] == [1, 20, 2, 3]
    expected = np.load(next((DATA / "msaccucmp_fmt").rglob("Conv2D.conv1*.npy")))
    np.testing.assert_array_equal(record.numpy(format="NCHW"), expected)
    with pytest.raises(AscendDumpError):
        record.numpy(format="FRACTAL_Z_G")


def test_buffers_and_workspaces_are_records_of_their_own():
    found = {record.io: record for record in ascend_dump.open(DATA / "in").select(op="l1")}
    assert set(found) == {"output", "buffer", "space"}
    assert bytes(found["buffer"].numpy()) == b"L1BUF" * 4
    assert bytes(found["space"].numpy()) == b"hello log\0\0\0"
    assert (found["space"].dtype, found["space"].shape, found["space"].nbytes) == ("uint8", (12,), 12)
    with pytest.raises(NotSupported):
        found["space"].numpy(format="NCHW")


def test_threads_of_a_sliced_operator_are_told_apart():
    records = list(ascend_dump.open(DATA / "in").select(op="relu_1", io="output"))
    assert [record.attrs["thread_id"] for record in records] == [0, 1]
    assert {record.attrs["context_id"] for record in records} == {487}
    assert json.loads(records[0].attrs["op_attrs"]["_sgt_json_info"])["slice_instance_num"] == 2


# trees


def test_the_levels_of_the_tree_become_fields(tmp_path):
    dump_op(tree(tmp_path, device=2, data_index=5, rank=3, world=8))
    for root in (tmp_path, tree(tmp_path, device=2, data_index=5, rank=3, world=8)):
        record = next(iter(ascend_dump.open(root)))
        assert (record.run, record.device, record.model, record.model_id) == (RUN, 2, "ge_default_1", 11)
        assert (record.step, record.rank) == (5, 3)


def test_the_same_operator_in_several_steps_devices_and_ranks_is_told_apart(tmp_path):
    places = [
        {"rank": rank, "world": 2, "device": device, "data_index": step}
        for rank in (0, 1)
        for device in (0, 1)
        for step in (0, 5, 10)
    ]
    for place in places:
        dump_op(tree(tmp_path, **place))
    dump = ascend_dump.open(tmp_path).select(io="output")
    keys = [(record.rank, record.device, record.step) for record in dump]
    assert keys == [(place["rank"], place["device"], place["data_index"]) for place in places]
    assert len(list(dump.select(step="5|10", rank=1, device=0))) == 2


def test_a_single_operator_has_no_model_and_no_step(tmp_path):
    dump_op(tmp_path / RUN / "1")
    record = next(iter(ascend_dump.open(tmp_path)))
    assert (record.run, record.device, record.model, record.model_id, record.step) == (RUN, 1, None, None, None)


def test_mindspores_step_level_is_the_step(tmp_path):
    for step in (0, 3):
        dump_op(tree(tmp_path, outer_step=step, data_index=step + 1))
    records = list(ascend_dump.open(tmp_path).select(io="output"))
    assert [record.step for record in records] == [0, 3]
    assert [record.attrs["data_index"] for record in records] == [1, 4]


def test_names_of_captured_streams_may_be_paths(tmp_path):
    name = DumpName("aclgraph", "aclnnAdd", "model.layers/0/add", STAMP, 3, 7, dump_number=4)
    dump_op(tmp_path / RUN / "0", **name._asdict())
    record = next(iter(ascend_dump.open(tmp_path)))
    assert (record.op_type, record.op_name, record.device, record.model) == (
        "aclnnAdd",
        "model.layers/0/add",
        0,
        None,
    )
    assert record.attrs["dump_number"] == 4


def test_the_name_is_the_one_in_the_header_and_selecting_by_it_opens_no_other_file(tmp_path):
    for number in range(3):
        dump_op(tmp_path, f"layers/{number}.attention/dense", timestamp=STAMP + number)
    os.truncate(next(path for path in tmp_path.iterdir() if "_2_" in path.name), 9)
    dump = ascend_dump.open(tmp_path)
    assert [record.op_name for record in dump.select(op="layers/0.*", io="output")] == ["layers/0.attention/dense"]
    assert not dump.select(op="layers/[01]*").errors()
    assert len(dump.select(op="layers/2*").errors()) == 1
    assert len(list(dump.select(op="re:layers/1", io="input"))) == 2
    assert not list(dump.select(op="layers_0*").select(io="output"))


def test_a_header_of_another_operator_does_not_rename_the_file(tmp_path):
    dump_op(tmp_path, "conv1", header_name="other")
    record = next(iter(ascend_dump.open(tmp_path)))
    assert (record.op_name, record.attrs["header_op_name"]) == ("conv1", "other")


# scenes


def test_a_watchers_file_tells_the_layer_and_the_watched_operator(tmp_path):
    dump_op(tmp_path, watch_name("A_To_B", "C"), op_type="Add")
    dump_op(tmp_path, "C", op_type="Add", timestamp=STAMP + 1)
    dump_op(tmp_path, "Cast_To_Half", op_type="Cast", timestamp=STAMP + 2)
    watched, plain, cast = ascend_dump.open(tmp_path).select(io="output")
    assert watched.attrs["scene"] == "watch"
    assert watched.attrs["watch"] == {"layer": "A_To_B", "watched": "C"}
    assert "scene" not in plain.attrs
    assert "scene" not in cast.attrs


def test_a_watchers_file_alone_is_one_too(tmp_path):
    path = dump_op(tmp_path, watch_name("A", "C"))
    assert next(iter(ascend_dump.open(path))).attrs["watch"] == {"layer": "A", "watched": "C"}


def test_overflow_records_are_decoded_and_lead_to_their_operator():
    records = [record for record in ascend_dump.open(DATA / "in_overflow") if record.attrs.get("scene") == "overflow"]
    assert [record.attrs["units"][0]["name"] for record in records] == ["AI Core", "AIC", "AIV", "AICPU", "SDMA"]
    assert records[0].attrs["overflow"] == json.loads(next((DATA / "msaccucmp_overflow").glob("*59*.json")).read_text())
    for record in records:
        (unit,) = record.attrs["units"]
        assert (unit["operator"] is None) == (unit["name"] == "AIV")
        if unit["operator"]:
            assert Path(unit["operator"]["path"]).name == "Pooling.pool1.57.563.1589195081588817"


def test_an_overflow_record_that_cannot_be_decoded_stays_readable(tmp_path):
    path = tmp_path / f"Opdebug.Node_OpDebug.59.3.{STAMP}"
    write(path, [tensor_of("output", 0, np.zeros(7, "u1"), address=1)], op_name="Node_OpDebug", dump_time=STAMP)
    (record,) = ascend_dump.open(path)
    assert record.attrs["scene"] == "overflow"
    assert "2048" in record.attrs["problems"][0]
    assert record.numpy().size == 7
    assert encode_overflow({})[:4] != b"ZZZZ"


def test_exception_dumps_are_known_by_their_place_and_time(tmp_path):
    place = tmp_path.joinpath(*build_levels(DumpLevels(device=3, exception=True)))
    brief = DumpName("brief", "exception_info", "", 20260101123456789, 9, 5)
    dump_op(place, header_name="conv1", **{**brief._asdict(), "op_name": ""})
    record = next(iter(ascend_dump.open(tmp_path)))
    assert (record.attrs["scene"], record.attrs["time"]) == ("exception", "20260101123456789")
    assert (record.op_name, record.device, record.task_id, record.stream_id) == ("conv1", 3, 9, 5)


# statistics


def write_statistics(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "\n" + "".join(lines))


def test_statistics_files_become_records_without_a_tensor(tmp_path):
    array = np.array([[1.5, math.nan, 3]], "f4")
    name = f"Conv2D.conv1.3.7.{STAMP}.csv"
    lines = (
        format_row("input", 0, 12, "DT_FLOAT", "NCHW", (1, 3), format_statistics(array)),
        format_row("output", 0, 24, "-", "ND", (6,), None),
        "Output,1\n",
    )
    write_statistics(tree(tmp_path, data_index=4) / name, *lines)
    first, blank, broken = ascend_dump.open(tmp_path)
    assert (first.op_type, first.op_name, first.io, first.step) == ("Conv2D", "conv1", "input", 4)
    assert (first.dtype, first.shape, first.format, first.nbytes) == ("float32", (1, 3), "NCHW", 12)
    found = first.statistics()
    assert (found.count, found.max, found.min, found.nan) == (3, 3.0, 1.5, 1)
    assert found.mean is not None
    assert math.isnan(found.mean)
    with pytest.raises(NotSupported, match="statistics only"):
        first.numpy()
    assert (blank.shape, blank.nbytes) == ((6,), 24)
    with pytest.raises(NotSupported, match="could not compute"):
        blank.statistics()
    with pytest.raises(CorruptDump, match="line 4"):
        broken.statistics()


def test_of_many_broken_lines_of_statistics_a_thousand_are_listed(tmp_path):
    write_statistics(tmp_path / f"Add.a.1.2.{STAMP}.csv", *["Output,1\n"] * 5000)
    errors = ascend_dump.open(tmp_path).errors()
    assert len(errors) == 1000
    assert "line 1001" in str(errors[-1].error)
    assert "no others after it are listed" in str(errors[-1].error)


def test_a_nan_in_front_hides_the_extremes_and_integers_stay_integers(tmp_path):
    lines = (
        format_row("output", 0, 12, "DT_FLOAT", "ND", (3,), format_statistics(np.array([math.nan, 1, 2], "f4"))),
        format_row("output", 1, 16, "DT_INT64", "ND", (2,), format_statistics(np.array([2**63 - 1, -5]))),
    )
    write_statistics(tmp_path / f"Add.a.1.2.{STAMP}.csv", *lines)
    hidden, whole = (record.statistics() for record in ascend_dump.open(tmp_path))
    assert (hidden.max, hidden.min) == (None, None)
    assert (whole.max, whole.min) == (2**63 - 1, -5)
    assert isinstance(whole.max, int)


# what is not CANN's


def test_foreign_files_are_left_to_others(tmp_path):
    names = (
        "file.custom.20260101123456789",
        "mapping.csv",
        "statistic.csv",
        "12345678901234567890",
    )
    for name in names:
        (tmp_path / name).write_text(f"12345678901234567890,Cast.op0.0.0.{STAMP}.input.0.DefaultFormat.Int8.npy\n")
    with pytest.raises(UnknownFormat):
        ascend_dump.open(tmp_path)
    path = dump_op(tmp_path)
    assert {record.path for record in ascend_dump.open(tmp_path)} == {path}


# long names


def test_renamed_files_are_read_under_the_name_in_the_mapping(tmp_path):
    place = tree(tmp_path)
    name = f"Conv2D.{'layer_' * 50}.3.7.{STAMP}"
    on_disk = hashed_name(f"/dump//{name}")
    path = dump_op(place, header_name="layer/" * 50)
    path.rename(place / on_disk)
    (place / "mapping.csv").write_text(mapping_line(on_disk, name) * 2 + "half a li")
    for root in (tmp_path, place / on_disk):
        record = next(iter(ascend_dump.open(root)))
        assert (record.op_type, record.op_name, record.task_id) == ("Conv2D", "layer/" * 50, 3)
        assert record.path == place / on_disk


def test_without_its_mapping_a_renamed_file_still_has_the_name_in_its_header(tmp_path):
    path = dump_op(tree(tmp_path), header_name="layer/0")
    path.rename(path.parent / "12345678901234567890")
    record = next(iter(ascend_dump.open(tmp_path)))
    assert (record.op_type, record.op_name, record.timestamp) == ("", "layer/0", STAMP)


def test_a_mapping_cannot_lead_out_of_its_directory(tmp_path, caplog):
    place = tree(tmp_path / "dump")
    dump_op(tmp_path, "secret")
    path = dump_op(place)
    path.rename(place / "12345678901234567890")
    outside = os.path.relpath(tmp_path, place)
    lines = f"12345678901234567890,../Add.a.1.2.{STAMP}\n{outside}/x,Add.b.1.2.{STAMP}\n"
    (place / "mapping.csv").write_text(lines)
    records = list(ascend_dump.open(tmp_path / "dump"))
    assert {record.path.parent for record in records} == {place}
    assert {record.op_name for record in records} == {"conv1"}
    assert "leads out" in caplog.text


# hostile files


def test_an_output_with_a_null_address_is_listed_and_not_an_error(tmp_path):
    path = tmp_path / f"Add.a.1.2.{STAMP}"
    missing = Tensor("output", 0, 1, 2, (2, 3), (2, 3), 24)
    present = tensor_of("output", 1, ARRAY, address=0x1000)
    write(path, [(missing, None), present], op_name="a", dump_time=STAMP)
    first, second = ascend_dump.open(path)
    assert first.error is None
    with pytest.raises(NotSupported, match="null"):
        first.numpy()
    np.testing.assert_array_equal(second.numpy(), ARRAY)


def test_a_short_payload_spoils_only_its_own_tensor(tmp_path):
    path = dump_op(tmp_path)
    os.truncate(path, path.stat().st_size - 4)
    good, bad = ascend_dump.open(path)
    np.testing.assert_array_equal(good.numpy(), ARRAY)
    assert isinstance(bad.error, CorruptDump)
    with pytest.raises(CorruptDump):
        bad.numpy()


def test_a_file_that_was_appended_to_reads_its_first_dump_and_says_so(tmp_path):
    path = dump_op(tmp_path)
    path.write_bytes(path.read_bytes() * 2)
    records = list(ascend_dump.open(path))
    assert len(records) == 2
    assert "appended" in records[0].attrs["problems"][0]


def test_absurd_dimensions_are_an_error_of_the_record(tmp_path):
    path = tmp_path / f"Add.a.1.2.{STAMP}"
    tensor = Tensor("output", 0, 1, 2, (2**64 - 1, 2**63), (), 4, address=1)
    write(path, [(tensor, b"\0" * 4)], op_name="a", dump_time=STAMP)
    (record,) = ascend_dump.open(path)
    assert isinstance(record.error, CorruptDump)
    assert (record.shape, record.nbytes) == (None, None)


def test_a_file_that_is_no_dump_is_one_unreadable_record(tmp_path):
    path = tmp_path / f"Add.a.1.2.{STAMP}"
    for content in (b"", b"text", b"\xff" * 64):
        path.write_bytes(content)
        (record,) = ascend_dump.open(tmp_path)
        assert isinstance(record.error, ReadError)
        assert (record.op_type, record.op_name, record.task_id, record.io) == ("Add", "a", 1, "")
        with pytest.raises(ReadError):
            record.numpy()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FIXTURES + sorted((DATA / "in_overflow").iterdir())), st.integers(0, 2**32))
def test_a_mutated_file_gives_records_or_typed_errors(tmp_path_factory, source, seed):
    draw = random.Random(seed)
    data = bytearray(source.read_bytes())
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(min(len(data), 160))
        data[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    if draw.random() < 0.3:
        del data[draw.randrange(len(data)) :]
    directory = tmp_path_factory.mktemp("mutated")
    (directory / source.name).write_bytes(data)
    for record in ascend_dump.open(directory):
        json.dumps(record.to_dict())
        for layout in (None, "NCHW", "original"):
            try:
                array = record.numpy(format=layout)
            except AscendDumpError:
                continue
            # hifloat8 and complex32 widen, formats may pad: never far from what the file holds.
            assert array.nbytes <= 64 * len(data) + 4096
