from __future__ import annotations

import math
import os

import numpy as np
import places
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import ReadError
from ascend_dump.native.cann.dump_file import Tensor
from ascend_dump.native.cann.statistics_csv import (
    HEADER,
    format_row,
    format_statistics,
    format_tensor,
    parse_statistics,
    read_statistics,
)

DATA = places.DATA / "cann"
NUMPY = {
    "DT_FLOAT": "<f4",
    "DT_FLOAT16": "<f2",
    "DT_DOUBLE": "<f8",
    "DT_INT8": "i1",
    "DT_UINT8": "u1",
    "DT_INT16": "<i2",
    "DT_UINT16": "<u2",
    "DT_INT32": "<i4",
    "DT_UINT32": "<u4",
    "DT_INT64": "<i8",
    "DT_UINT64": "<u8",
    "DT_BOOL": "?",
}


def test_numbers_are_printed_as_the_device_prints_them():
    lines = (DATA / "stats_cpu_vectors.tsv").read_text().splitlines()
    assert len(lines) == 19
    for line in lines:
        dtype, data, expected = line.split("\t")
        array = np.frombuffer(bytes.fromhex(data), NUMPY[dtype])
        assert ",".join(format_statistics(array)) == expected, line


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([math.nan, math.inf, -math.inf], "nan"),
        ([math.inf, -math.inf, math.nan], "-nan"),
        ([-math.inf, math.nan], "-inf"),
        ([1e308, 1e308], "1e+308"),
    ],
)
def test_mean_of_infinities(values, mean):
    assert format_statistics(np.array(values))[2] == mean


def test_the_mean_is_rounded_as_a_running_one():
    values = [101.34375, 95.0, 110.03125, 96.875, 101.9375, 98.28125, 110.28125, 100.46875, 104.53125, 94.625]
    assert f"{sum(values) / len(values):g}" == "101.338"
    assert format_statistics(np.array(values, "f4"))[2] == "101.337"


def rows(*lines, header=HEADER):
    return list(parse_statistics([header + "\n", *(line + "\n" for line in lines)]))


def test_rows_of_the_device_are_read():
    first, second, third = rows(
        "Input,0,24,DT_FLOAT,NCHW,1x2x3,3,-2.25,-nan,6,1,0,0",
        "Output,0,8,DT_INT64,ND,-,9223372036854775807,-5,1.5,1,0,0,0",
        "Output,1,4,-,-,2,,,,,,,",
    )
    assert (first.io, first.position, first.size, first.dtype, first.format) == ("input", 0, 24, "FLOAT", "NCHW")
    assert first.shape == (1, 2, 3)
    assert (first.max, first.min, first.elements, first.nan) == (3.0, -2.25, 6, 1)
    assert isinstance(first.max, float)
    assert first.avg is not None
    assert math.isnan(first.avg)
    assert (second.max, second.shape, second.failed) == (2**63 - 1, (), False)
    assert isinstance(second.max, int)
    assert (third.dtype, third.format, third.shape, third.failed, third.problem) == (None, None, (2,), True, "")


def test_chosen_statistics_of_the_ai_core_are_read_by_their_header():
    header = "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,l2norm"
    first, second, third = rows(
        "Output,0,24,FLOAT16,DHWCH,2x6,12,65504,1e+05",
        "Output,1,24,UNKNOW,UNKNOW,2x6,12,NA,NA",
        header,
        header=header,
    ) + rows("Output,0,24,DT_BF16,ND,12,1,2,3,12,0,0,0", header="")
    assert (first.elements, first.max, first.l2norm, first.min) == (12, 65504.0, 1e5, None)
    assert (first.dtype, first.format) == ("FLOAT16", "DHWCN")
    assert (second.failed, second.elements, second.dtype) == (True, 12, None)
    assert (third.dtype, third.avg, third.elements) == ("BF16", 3.0, 12)


def test_a_header_in_the_middle_changes_the_columns():
    found = rows(
        "Output,0,4,FLOAT,ND,1,5,5,5,1,0,0,0",
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Min Value",
        "Output,1,4,FLOAT,ND,1,1,7",
    )
    assert [(row.max, row.min) for row in found] == [(5.0, 5.0), (None, 7.0)]


@pytest.mark.parametrize(
    "line",
    [
        "Output,0,4,FLOAT,ND,1,5,5",
        "Output,x,4,FLOAT,ND,1,5,5,5,1,0,0,0",
        "Output,0,4,FLOAT,ND,1x-1,5,5,5,1,0,0,0",
        "Output,0,4,FLOAT,ND,1x,5,5,5,1,0,0,0",
        "Output,0,4,FLOAT,ND," + "1x" * 2000 + "1,5,5,5,1,0,0,0",
        "Output,0,4,FLOAT,ND,1,five,5,5,1,0,0,0",
        "Output,0,4,FLOAT,ND,1,1_0,5,5,1,0,0,0",
        "Output,0," + "9" * 5000 + ",FLOAT,ND,1,5,5,5,1,0,0,0",
        "garbage",
    ],
)
def test_an_unusable_line_is_a_row_with_a_problem(line):
    bad, good = rows(line, "Output,0,4,DT_FLOAT,ND,1,5,5,5,1,0,0,0")
    assert bad.problem
    assert bad.line == 2
    assert good.problem == ""


def test_a_foreign_text_gives_one_problem():
    found = list(parse_statistics(["a,b\n", "c,d\n"]))
    assert [bool(row.problem) for row in found] == [True]


@pytest.mark.parametrize(
    ("tensor", "payload", "line"),
    [
        (
            Tensor("input", 1, 1, 2, (2, 3), size=24),
            np.arange(6, dtype="f4"),
            "Input,1,24,DT_FLOAT,ND,2x3,5,0,2.5,6,0,0,0\n",
        ),
        # Padding counts: the device computes over the bytes it has.
        (Tensor("output", 0, 3, 0, (1,), size=3), b"\x01\x02\xff", "Output,0,3,DT_INT8,NCHW,1,2,-1,0.666667,3,0,0,0\n"),
        (Tensor("output", 0, 11, 2, (), size=1), b"\x01", "Output,0,1,DT_BOOL,ND,-,1,1,1,1,0,0,0\n"),
        (Tensor("output", 0, 1, 2, (6,), size=24), None, "Output,0,24,DT_FLOAT,ND,6,,,,,,,\n"),
        (Tensor("output", 0, 27, 41, (2,), size=4), b"\0" * 4, "Output,0,4,-,-,2,,,,,,,\n"),
        (Tensor("output", 0, 16, 29, (1,), size=8), b"\0" * 8, "Output,0,8,DT_COMPLEX64,FRACTAL_NZ,1,,,,,,,\n"),
    ],
)
def test_a_tensor_is_printed_as_the_device_prints_it(tensor, payload, line):
    assert format_tensor(tensor, payload) == line


shapes = st.lists(st.integers(0, 2**40), max_size=5)


@given(st.sampled_from(["input", "output"]), st.integers(0, 99), st.integers(0, 2**63), shapes)
def test_a_written_row_is_read_back(io, position, size, shape):
    statistics = format_statistics(np.arange(6, dtype="f4"))
    (row,) = rows(format_row(io, position, size, "DT_FLOAT", "ND", shape, statistics).rstrip("\n"))
    assert (row.io, row.position, row.size, row.dtype, row.max, row.avg) == (io, position, size, "FLOAT", 5.0, 2.5)
    # No dimensions and a lone element look alike in the file.
    assert row.shape == (tuple(shape) if shape else None)
    (blank,) = rows(format_row(io, position, size, "-", "-", shape, None).rstrip("\n"))
    assert (blank.failed, blank.problem, blank.elements) == (True, "", None)


@given(st.one_of(st.text(), st.lists(st.text("InputOutput,0123456789.x-eE", max_size=60)).map("\n".join)))
def test_any_text_gives_rows(text):
    for row in parse_statistics(("Input," + text).split("\n")):
        assert row.problem or row.io in ("input", "output")


def test_reading_a_file(tmp_path):
    path = tmp_path / "Add.a.1.2.1589195081588018.csv"
    path.write_bytes(HEADER.encode() + b"\nOutput,0,4,DT_\xff,ND,1,5,5,5,1,0,0,0\n")
    (row,) = read_statistics(path)
    assert (row.problem, row.max) == ("", 5)
    with pytest.raises(ReadError):
        list(read_statistics(tmp_path / "none.csv"))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ReadError, match="regular"):
        list(read_statistics(tmp_path / "pipe.csv"))
