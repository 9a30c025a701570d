"""Our `--msaccucmp-compat` output against the real converter's, byte for byte, and reading what we write."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import places
import pytest

from ascend_dump import AscendDumpError

# Private: each converter of its table is held against the real one.
from ascend_dump.converting._msaccucmp_values import _CONVERTERS
from ascend_dump.converting.convert import Options
from ascend_dump.converting.msaccucmp import convert_file_compat
from ascend_dump.native.cann import dtypes, formats
from ascend_dump.native.cann.dump_file import OriginalOp, Tensor, tensor_of, write, write_nano

pytestmark = pytest.mark.skipif(find_spec("msprobe") is None, reason="mindstudio-probe is not installed")

DATA = places.DATA / "cann"
RUNNER = Path(__file__).with_name("run_converter.py")


def run_real(jobs: list[dict]) -> list[int]:
    path = Path(jobs[0]["out"]).parent / "jobs.json"
    path.write_text(json.dumps(jobs))
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, RUNNER, path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def tree(path: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in sorted(path.iterdir())}


def compare(jobs: list[dict], tmp_path: Path) -> None:
    """Run both on every job, then hold the outputs against each other.

    float8 first: once a bfloat16 has made the real converter load ml_dtypes, numpy knows the name
    float8_e5m2, and it no longer stops at one in a bin file.
    """
    jobs.sort(key=lambda job: not re.search(r"\.(t3[45]_|e5m2|e4m3)", job["file"]))
    for number, job in enumerate(jobs):
        job["out"] = str(tmp_path / f"theirs{number}")
    codes = run_real(jobs)
    differences = []
    for number, (job, code) in enumerate(zip(jobs, codes)):
        ours = tmp_path / f"ours{number}"
        ours.mkdir()
        shape = tuple(map(int, job["shape"].split(","))) if "shape" in job else ()
        options = Options(type=job.get("type", "npy"), format=job.get("format"), shape=shape)
        try:
            result = convert_file_compat(Path(job["file"]), ours, options)
            failed = bool(result.failures)
        except AscendDumpError as error:
            failed, result = True, error
        theirs = tree(Path(job["out"])) if os.path.isdir(job["out"]) else {}
        if tree(ours) != theirs:
            differences.append((Path(job["file"]).name, job, code, sorted(theirs), sorted(tree(ours)), result))
        # A failure of theirs is one of ours; the other way round they only print an error.
        assert failed or code == 0, (job, code)
        shutil.rmtree(ours)
    assert not differences, "\n".join(map(str, differences[:10]))


def test_every_fixture(tmp_path: Path) -> None:
    files = [*(DATA / "in").iterdir(), *(DATA / "in_overflow").iterdir()]
    jobs = [{"file": str(file), "type": type_} for file in files for type_ in ("npy", "bin")]
    compare(jobs, tmp_path)


def test_every_fixture_in_every_layout(tmp_path: Path) -> None:
    targets = ["NCHW", "NHWC", "ND", "HWCN", "FRACTAL_Z"]
    jobs = [{"file": str(file), "format": target} for file in (DATA / "in").iterdir() for target in targets]
    compare(jobs, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_generated_files_of_every_type(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    jobs = []
    for value in range(43):
        for count in range(4):
            shape = tuple(int(length) for length in rng.integers(0 if count == 3 else 1, 5, rng.integers(0, 5)))
            bits = dtypes.data_type(value).bits or 8
            size = (int(np.prod(shape)) * bits + 7) // 8 + int(rng.integers(-2, 3) if count == 2 else 0)
            payload = rng.integers(0, 2 if value == 11 else 256, max(size, 0), dtype=np.uint8)
            tensor = Tensor("output", 0, value, 2, shape, shape, payload.size)
            path = tmp_path / f"Cast.t{value}_{count}.1.1.1589195081588018"
            write(path, [(tensor, payload)], op_name="t", dump_time=1)
            jobs += [{"file": str(path), "type": type_} for type_ in ("npy", "bin")]
    compare(jobs, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_generated_files_of_every_layout(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    jobs = []
    for number, (source, target) in enumerate(sorted(_CONVERTERS)):
        for variant in range(5):
            groups = int(rng.choice([0, 0, 1, 2, 4]))
            plain = rng.standard_normal(rng.integers(1, 20, 5 if source == "NDC1HWC0" else 4)).astype(np.float16)
            layout = "NCDHW" if source == "NDC1HWC0" else "NCHW"
            array = plain
            if source in ("NC1HWC0", "NDC1HWC0", "FRACTAL_Z"):
                array = formats.convert(plain, layout, source)
            elif source == "FRACTAL_NZ":
                plain = plain[tuple([0] * (variant % 3))]
                array = formats.convert(plain, "ND", source)
            original = plain.shape if variant else tuple(reversed(plain.shape))
            tensors = [
                tensor_of(
                    "output",
                    0,
                    array,
                    format=formats.format_number(source),
                    original_shape=() if variant == 4 else original,
                    sub_format=groups if variant == 3 else 0,
                )
            ]
            path = tmp_path / f"Conv.c{number}_{variant}.1.1.1589195081588018"
            write(path, tensors, op_name="c", dump_time=1)
            jobs.append({"file": str(path), "format": target})
            jobs.append({"file": str(path), "format": target, "type": "bin"})
            if source == "FRACTAL_NZ" and plain.ndim > 1:
                jobs.append({"file": str(path), "format": target, "shape": ",".join(map(str, plain.shape))})
    compare(jobs, tmp_path)


def test_files_we_write_are_read_identically(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.int64), np.float16([[1.5]])]
    pairs = [
        tensor_of("input", 0, arrays[0], address=1),
        tensor_of("input", 1, arrays[1], address=2),
        tensor_of("output", 0, arrays[2], address=3, original_op=OriginalOp("x/y", 1, 0, 2)),
    ]
    plain = tmp_path / "Add.a.1.1.1589195081588018"
    nano = tmp_path / "Add.n.1.1.1589195081588018"
    options = {"op_name": "a", "dump_time": 1589195081588018, "buffers": [b"l1"], "spaces": [b"log"]}
    write(plain, pairs, **options)
    write_nano(nano, pairs)
    for number, file in enumerate((plain, nano)):
        out = tmp_path / f"out{number}"
        assert run_real([{"file": str(file), "out": str(out)}]) == [0]
        for (io, index), array in zip((("input", 0), ("input", 1), ("output", 0)), arrays):
            np.testing.assert_array_equal(np.load(out / f"{file.name}.{io}.{index}.npy"), array)
    assert (tmp_path / "out0" / f"{plain.name}.l1buffer.0.bin").read_bytes() == b"l1"
    assert (tmp_path / "out0" / f"{plain.name}.space.0.bin").read_bytes() == b"log"
