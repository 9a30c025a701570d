"""Statistics against their tensors: recorded numbers are intervals, and in no dialect do they prove a difference."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest
from host_dumps import item, line, model_directory, write_step
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.native.cann import dtypes
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.names import DumpName, build_name
from ascend_dump.native.cann.statistics_csv import HEADER, format_row
from ascend_dump.native.mindspore.names import NpyName
from ascend_dump.native.mindspore.names import build_name as build_npy_name
from ascend_dump.statistics import statistics
from ascend_dump.writing import HostWriter, Item

STAMP = 1589195081588018
Array = np.ndarray[Any, Any]
Write = Callable[[Path, Sequence[Array], int], None]

WHOLE = ("int8", "uint8", "int16", "int32", "uint32", "int64", "bool")
REAL = ("float16", "float32", "float64")
TYPES = {
    "cann": (*WHOLE, "uint64", *REAL),
    "mindspore on the host": (*WHOLE, *REAL, "bfloat16"),
    "mindspore on the device": (*WHOLE, *REAL, "bfloat16"),
    "msprobe": (*WHOLE, *REAL, "bfloat16", "complex64", "complex128"),
    "host": (*WHOLE, "uint64", *REAL, "bfloat16", "complex64"),
}


def array_of(random: np.random.Generator, dtype: str) -> Array:
    """Elements of all sizes, of one size, of two values, or around a large number; rarely NaN and Inf."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    shape = tuple(random.integers(1, 9, random.integers(0, 4)))
    if random.random() < 0.1:
        shape = (30_000,)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in WHOLE or dtype == "uint64":
        limits = np.iinfo(kind)
        low, high = limits.min, limits.max
        if random.random() < 0.7:
            low, high = max(low, -(10 ** int(random.integers(0, 8)))), min(high, 10 ** int(random.integers(1, 8)))
        return random.integers(low, high, shape, dtype=kind, endpoint=True)
    wide = random.standard_normal(shape)
    style = random.integers(0, 5)
    if style == 0:
        wide = wide * 10.0 ** random.integers(-40, 38, shape)
    elif style == 1:
        wide = np.where(wide > 0, 0.1, 1e4 * random.random())
    elif style == 2:
        wide = wide + 10.0 ** random.integers(1, 5)
    elif style == 3:
        wide = np.full(shape, -np.finfo(np.float32).max) if random.random() < 0.5 else np.full(shape, 0.1)
    if shape and random.random() < 0.1:
        wide.flat[random.integers(wide.size)] = random.choice([np.nan, np.inf, -np.inf])
    if kind.kind == "c":
        wide = wide + 1j * random.standard_normal(shape)
    return np.asarray(wide).astype(kind)


def sums_in_float32(array: Array) -> tuple[float, float]:
    """Mean and norm as eight lanes of a vector register sum them."""
    lanes = np.zeros((-(-array.size // 8), 8), np.float32)
    lanes.reshape(-1)[: array.size] = array.reshape(-1).astype(np.float32)
    square = np.cumsum(lanes * lanes, axis=0, dtype=np.float32)[-1].sum(dtype=np.float32)
    return float(np.mean(lanes.reshape(-1)[: array.size], dtype=np.float32)), float(np.sqrt(square))


def extremes(array: Array) -> tuple[Any, Any]:
    """Maximum and minimum of the elements that are numbers."""
    values = array.reshape(-1)
    if values.dtype.kind in "iub":
        return int(values.max()), int(values.min())
    values = values.astype(np.float64)
    values = values[~np.isnan(values)]
    return (float(values.max()), float(values.min())) if values.size else (np.nan, np.nan)


def printed(value: Any, width: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{width}g}"


def write_cann(root: Path, arrays: Sequence[Array], width: int) -> None:
    """Statistics, or the tensors where `width` is 0."""
    root.mkdir()
    for number, array in enumerate(arrays):
        name = DumpName("device", "Add", f"add{number}", STAMP + number, 3, 7)
        path = root / build_name(name)
        if not width:
            write(path, [tensor_of("output", 0, array, address=4096)], op_name=name.op_name, dump_time=name.timestamp)
            continue
        high, low = extremes(array)
        mean, norm = sums_in_float32(array) if number % 2 else np_sums(array)
        counts = [
            int(check(array).sum()) if array.dtype.kind == "f" else 0 for check in (np.isnan, np.isneginf, np.isposinf)
        ]
        numbers = [printed(high, width), printed(low, width), printed(mean, width), str(array.size), *map(str, counts)]
        row = format_row(
            "output",
            0,
            array.nbytes,
            f"DT_{dtypes.data_type(tensor_of('output', 0, array)[0].data_type).name}",
            "ND",
            array.shape,
            numbers,
        )
        path.with_name(f"{path.name}.csv").write_text(f"{HEADER},l2norm\n{row[:-1]},{printed(norm, width)}\n")


def np_sums(array: Array) -> tuple[float, float]:
    wide = array.reshape(-1).astype(np.float64)
    return float(wide.mean()), float(np.sqrt(np.square(wide).sum()))


def write_mindspore(root: Path, arrays: Sequence[Array], width: int, *, on_device: bool) -> None:
    here = root / "rank_0" / "Net" / "0" / "0"
    here.mkdir(parents=True)
    rows = [
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
        "Max Value,Min Value,Avg Value,L2Norm Value"
    ]
    for number, array in enumerate(arrays):
        label = {"bool": "Bool", "bfloat16": "BFloat16"}.get(array.dtype.name, array.dtype.name.capitalize())
        name = NpyName("Add", f"Default_Add-op{number}", 0, 0, STAMP + number, "output", 0, "DefaultFormat", label)
        if not width:
            stored = array.view(np.dtype("V2")) if array.dtype.name == "bfloat16" else array
            np.save(here / build_npy_name(name), stored)
            continue
        high, low = extremes(array)
        if on_device:
            mean, norm = sums_in_float32(array)
            if not array.shape:
                norm = float(array)
        else:
            (high, low), (mean, norm) = (float(high), float(low)), np_sums(array)
        if not np.isfinite(mean) and np.isnan(array.astype(np.float64)).any():
            high = low = np.nan
        texts = [printed(value, width) for value in (high, low, mean, norm)]
        if array.dtype.name == "bool" and on_device:
            texts = ["True", "False", "null", "null"]
        shape = '"(' + ",".join(map(str, array.shape)) + ')"'
        rows.append(
            f"Add,Default_Add-op{number},0,0,{STAMP + number},output,0,{array.nbytes},{label},{shape},{','.join(texts)}"
        )
    if width:
        (here / "statistic.csv").write_text("\n".join([*rows, ""]))


def write_msprobe(root: Path, arrays: Sequence[Array], width: int) -> None:
    here = root / "step0" / "rank0"
    values = here / "dump_tensor_data"
    values.mkdir(parents=True)
    data = {}
    for number, array in enumerate(arrays):
        entry: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": array.dtype.name, "shape": list(array.shape)}
        name = f"Mint.add.{number}.forward"
        if width:
            entry.update(zip(("Max", "Min", "Mean", "Norm"), msprobe_numbers(array)))
        else:
            entry["data_name"] = f"{name}.output.0.npy"
            np.save(values / entry["data_name"], array.astype("f4") if array.dtype.name == "bfloat16" else array)
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [entry]}
    head = {"task": "statistics" if width else "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    (here / "dump.json").write_text(json.dumps({**head, "data": data}))


def msprobe_numbers(array: Array) -> list[Any]:
    """As msprobe computes them: https://github.com/Ascend/msprobe, pytorch_processor.py."""
    if array.dtype.kind == "c":
        sizes = np.abs(array)
        return [float(sizes.max()), float(sizes.min()), float(sizes.mean()), None]
    if array.dtype.kind == "b":
        return [bool(array.any()), bool(array.all()), None, None]
    if not array.shape:
        return [array.astype(np.float64).item() if array.dtype.kind != "i" else array.item()] * 4
    narrow = array if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array.astype(np.float32)
    mean, norm = (float(np.asarray(value).astype(narrow.dtype)) for value in sums_in_float32(narrow))
    wide = narrow.astype(np.float64)
    return [float(wide.max()), float(wide.min()), mean, norm]


def write_host(root: Path, arrays: Sequence[Array], width: int) -> None:
    writer = HostWriter(model_directory(root), metadata={})
    items = []
    for number, array in enumerate(arrays):
        if width:
            engine = "numpy" if number % 2 else None
            count, *others = statistics(array, engine=engine)
            # Any selection of statistics may be recorded.
            selection = -1 if width == 6 else width * 7 + number
            chosen = [value if selection >> place & 1 else None for place, value in enumerate(others)]
            items.append(Item(line(f"add{number}", array, stats=(count, *chosen)), None))
        else:
            items.append(item(f"add{number}", array))
    write_step(writer, 0, *items)
    writer.close()


WRITERS: dict[str, Write] = {
    "cann": write_cann,
    "mindspore on the host": lambda *rest: write_mindspore(*rest, on_device=False),
    "mindspore on the device": lambda *rest: write_mindspore(*rest, on_device=True),
    "msprobe": write_msprobe,
    "host": write_host,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums overflow, as they do on a device
@pytest.mark.parametrize("dialect", WRITERS)
@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(6, 17))
def test_statistics_never_differ_from_their_tensors(
    dialect: str, seed: int, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    random = np.random.default_rng([seed, zlib.crc32(dialect.encode())])
    root = tmp_path_factory.mktemp("dumps")
    arrays = [array_of(random, dtype) for dtype in TYPES[dialect] for _ in range(4)]
    WRITERS[dialect](root / "statistics", arrays, width)
    WRITERS[dialect](root / "tensors", arrays, 0)
    for sides in (("statistics", "tensors"), ("tensors", "statistics")):
        found = ascend_dump.compare(root / sides[0], root / sides[1])
        pairs = [pair for pair in found.pairs if pair.verdict not in ("equal", "noise", "undecided")]
        assert not pairs, [(pair.record, pair.verdict, pair.reason) for pair in pairs]
        assert len(found.pairs) == len(arrays)


@pytest.mark.parametrize("dialect", WRITERS)
def test_what_is_further_apart_than_the_digits_tell_is_different(dialect: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(1000).astype(np.float32), random.integers(-99, 99, 1000), np.array([-3.0, -2.5])]
    WRITERS[dialect](tmp_path / "statistics", arrays, 6)
    for number, array in enumerate(arrays):
        changed = [one.copy() for one in arrays]
        changed[number][array.argmax()] += array.dtype.type(1 if array.dtype.kind == "i" else 1e-3)
        WRITERS[dialect](tmp_path / f"tensors{number}", changed, 0)
        found = ascend_dump.compare(tmp_path / "statistics", tmp_path / f"tensors{number}")
        verdicts = ["different" if place == number else "undecided" for place in range(len(arrays))]
        assert [pair.verdict for pair in found.pairs] == verdicts
        assert "statistics prove that elements differ" in found.pairs[number].reason


def test_a_norm_of_integers_is_rounded_too(tmp_path: Path) -> None:
    here = tmp_path / "statistics" / "rank_0" / "Net" / "0" / "0"
    here.mkdir(parents=True)
    header = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,L2Norm Value"
    row = f'Add,Default_Add-op0,0,0,{STAMP},output,0,8,Int32,"(2,)",2.23607'
    (here / "statistic.csv").write_text(f"{header}\n{row}\n")
    write_mindspore(tmp_path / "tensors", [np.array([1, 2], np.int32)], 0, on_device=True)
    [pair] = ascend_dump.compare(tmp_path / "statistics", tmp_path / "tensors").pairs
    assert (pair.verdict, pair.reason) == ("undecided", "statistics agree, which cannot prove that the tensors do")


def test_the_host_of_an_npu_prints_unsigned_integers_as_signed_ones(tmp_path: Path) -> None:
    array = np.array([2**32 - 1, 2**31], np.uint32)
    write_cann(tmp_path / "tensors", [array], 0)
    (tmp_path / "statistics").mkdir()
    [tensors] = (tmp_path / "tensors").iterdir()
    row = format_row("output", 0, 8, "DT_UINT32", "ND", (2,), ["-1", "-2147483648", "3.22123e+09", "2", "0", "0", "0"])
    (tmp_path / "statistics" / f"{tensors.name}.csv").write_text(f"{HEADER}\n{row}")
    [record] = ascend_dump.open(tmp_path / "statistics")
    assert record.statistics()[:3] == (2, 2**32 - 1, 2**31)
    assert ascend_dump.compare(tmp_path / "statistics", tmp_path / "tensors").verdict == "undecided"


def test_a_type_that_the_statistics_do_not_name_is_no_difference(tmp_path: Path) -> None:
    """The device prints `-` for the types behind its table."""
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    write_cann(tmp_path / "tensors", [array], 0)
    (tmp_path / "statistics").mkdir()
    [tensors] = (tmp_path / "tensors").iterdir()
    row = format_row("output", 0, 4, "-", "ND", (2,), ["1.5", "-2", "-0.25", "2", "0", "0", "0"])
    (tmp_path / "statistics" / f"{tensors.name}.csv").write_text(f"{HEADER}\n{row}")
    assert ascend_dump.compare(tmp_path / "statistics", tmp_path / "tensors").verdict == "undecided"
