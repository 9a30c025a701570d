from __future__ import annotations

import json
import struct

import places
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import CorruptDump
from ascend_dump.native.cann.names import DumpName, parse_name
from ascend_dump.native.cann.overflow import decode_overflow, describe_status, encode_overflow, find_operator

DATA = places.DATA / "cann"
RECORDS = sorted((DATA / "in_overflow").glob("Opdebug.*"))


def payload(path):
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def record(number):
    return decode_overflow(payload(next(path for path in RECORDS if f"OpDebug.{number}." in path.name)))


@pytest.mark.parametrize("path", sorted((DATA / "msaccucmp_overflow").glob("*.json")), ids=lambda path: path.name)
def test_document_equals_that_of_msaccucmp(path):
    source = DATA / "in_overflow" / path.name[: -len(".output.0.json")]
    text = json.dumps(decode_overflow(payload(source)).document, indent=4)
    assert text == path.read_text()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_encoding_gives_the_same_bytes(path):
    data = payload(path)
    assert len(data) == 2048
    assert encode_overflow(decode_overflow(data).document) == data


def test_units_that_overflowed_come_first():
    found = record(59)
    assert [unit.name for unit in found.units] == ["AI Core", "DHA Atomic Add", "L2 Atomic Add"]
    core = found.units[0]
    assert (core.model_id, core.stream_id, core.task_id, core.status) == (514, 563, 57, (32,))
    assert [unit.overflowed for unit in found.units] == [True, False, False]
    assert core.words == ("floating-point calculation (0x20)",)


def test_status_of_the_documents_example_in_words():
    (core,) = record(60).units
    assert core.status == (272,)
    assert core.words == (
        "integer add, subtract, multiply or multiply-accumulate (0x10)",
        "conversion from FP32 or signed 32-bit integer to FP16 (0x100)",
    )
    assert (core.context_id, core.thread_id) == (None, None)


def test_version_1_has_four_words_of_status_and_ids_of_context_and_thread():
    (core,) = record(61).units
    assert (core.name, core.context_id, core.thread_id, core.status) == ("AIV", 1, 2, (32, 0, 0, 1024))
    assert core.words == (
        "word 0: floating-point calculation (0x20)",
        "word 3: accumulation in the Cube unit (0x400)",
    )


def test_units_without_a_public_table_show_the_number():
    (sdma,) = record(63).units
    assert sdma.words == ("status 0x2 has no documented meaning for SDMA",)
    assert record(63).document["acc_list"]["data"]["dst_addr"] == "0xbbbb0000"
    assert describe_status("AIC", [0x21]) == (
        "floating-point calculation (0x20)",
        "status 0x1 has no documented meaning for AIC",
    )
    assert describe_status("AIC", [0]) == ()


def test_odd_records_are_decoded_and_said_to_be_odd():
    document = record(60).document
    document["version"] = 7
    document["acc_list"].update(valid=0, data_len=1)
    found = decode_overflow(encode_overflow(document))
    assert len(found.problems) == 3
    assert found.units[0].task_id == 57


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "2048 bytes"),
        (b"\0" * 2047, "2047"),
        (b"\0" * 4096, "4096"),
        (struct.pack("<I", 0x5A5A5A5A), "cut off inside its header"),
        (struct.pack("<6I", 0x5A5A5A5A, 0, 1, 4, 0, 88), "type 4"),
        (struct.pack("<6I", 0x5A5A5A5A, 0, 1, 0, 0, 88) + b"\0" * 87, "needs 112 bytes"),
        (struct.pack("<6I", 0x5A5A5A5A, 1, 1, 1, 0, 112) + b"\0" * 88, "needs 136 bytes"),
    ],
)
def test_what_is_no_record_is_corrupt(data, match):
    with pytest.raises(CorruptDump, match=match):
        decode_overflow(data)


words = st.integers(0, 2**64 - 1)


@given(st.sampled_from(["AIC", "AIV", "AICPU", "SDMA"]), st.integers(0, 1), st.lists(words, min_size=14, max_size=14))
def test_magic_layout_round_trips(kind, version, numbers):
    document = json.loads(json.dumps(record({"AIC": 60, "AIV": 61, "AICPU": 62, "SDMA": 63}[kind]).document))
    data = document["acc_list"]["data"]
    for field, number in zip(data, numbers):
        data[field] = hex(number) if isinstance(data[field], str) else number
    if kind in ("AIC", "AIV"):
        document["version"] = version
        data["status"] = numbers[10:] if version else numbers[10]
        document["acc_list"]["data_len"] = 112 if version else 88
    found = decode_overflow(encode_overflow(document))
    assert found.document == document
    assert found.problems == ()


@given(st.binary(max_size=2048), st.booleans(), st.integers(0, 2048))
def test_any_bytes_decode_or_are_corrupt(data, magic, size):
    data = (b"\x5a\x5a\x5a\x5a" if magic else b"") + data
    data = data[:size] if magic else (data * 2048)[:2048]
    try:
        found = decode_overflow(data)
    except CorruptDump:
        return
    assert found.units
    assert json.dumps(found.document)


def names(*texts):
    found = [parse_name(text) for text in texts]
    assert None not in found
    return [name for name in found if name is not None]


def test_operator_is_found_by_task_and_stream_beside_the_record():
    (core,) = record(60).units
    beside = names(
        "Opdebug.Node_OpDebug.57.563.1589195081588828",
        "Add.other.57.1.1589195081588817",
        "Pooling.pool1.57.563.1589195081588817",
    )
    found = find_operator(core, beside, 1589195081588828)
    assert found is not None
    assert found.op_name == "pool1"
    assert find_operator(core, beside[:2], 1589195081588828) is None


def test_of_several_runs_the_nearest_in_time_is_meant():
    (core,) = record(60).units
    beside = names(*(f"Pooling.pool1.57.563.15891950815888{second}" for second in ("10", "27", "90")))
    found = find_operator(core, beside, 1589195081588828)
    assert found == DumpName("device", "Pooling", "pool1", 1589195081588827, 57, 563)


def test_context_and_thread_must_match_where_the_record_has_them():
    (core,) = record(61).units
    stem = "Relu.r.57.563.1589195081588817"
    beside = names(stem, f"{stem}.4.1.1.0", f"{stem}.4.1.2.0")
    found = find_operator(core, beside, 0)
    assert found is not None
    assert (found.context_id, found.thread_id) == (1, 2)
    assert find_operator(core, beside[:2], 0) is None
