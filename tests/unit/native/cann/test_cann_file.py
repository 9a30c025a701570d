"""The binary dump file: header, placement of payloads, writing, and hostile input."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump import AscendDumpError, CorruptDump, DumpNotFound, NotSupported, ReadError
from ascend_dump.native.cann import dump_file
from ascend_dump.native.cann.dump_file import (
    OriginalOp,
    Tensor,
    decode,
    payload,
    read_header,
    tensor_of,
    write,
    write_nano,
)

DATA = places.DATA / "cann"
FIXTURES = sorted((DATA / "in").iterdir())
TIME = 1589195081588018


def fixture(prefix: str) -> Path:
    (found,) = (path for path in FIXTURES if path.name.startswith(prefix))
    return found


def write_two(path: Path, **options: object) -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    second = np.arange(4, dtype=np.float16)
    tensors = [tensor_of("input", 0, first, address=0x1000), tensor_of("output", 0, second, address=0x2000)]
    write(path, tensors, op_name="conv1", dump_time=TIME, **options)
    return first, second


# reading real files


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_every_fixture_has_a_readable_header(path: Path) -> None:
    dump = read_header(path)
    assert dump.path == path
    assert dump.tensors
    assert dump.problems == ()
    blobs = [*dump.tensors, *dump.buffers, *dump.spaces]
    assert all(entry.length == entry.size and not entry.error for entry in blobs)
    assert blobs[-1].offset + blobs[-1].length == path.stat().st_size


def test_header_fields() -> None:
    dump = read_header(fixture("Add.Add_1"))
    assert (dump.version, dump.dump_time, dump.op_name, dump.nano) == ("2.0", TIME, "Add_1", False)
    assert [(tensor.io, tensor.index, tensor.shape) for tensor in dump.tensors] == [
        ("input", 0, (2, 3)),
        ("input", 1, (2, 3)),
        ("output", 0, (2, 3)),
    ]
    (output,) = dump.outputs
    assert output.original_op == OriginalOp("add", 0, 0, 2)
    assert output.address == 0x12C041202000
    assert len(dump.inputs) == 2
    # Inputs come first in the file although outputs come first in the header.
    assert dump.inputs[0].offset < dump.inputs[1].offset < output.offset
    np.testing.assert_array_equal(decode(dump, output), 2 * decode(dump, dump.inputs[0]) + 1)


def test_buffers_and_spaces_follow_the_outputs() -> None:
    dump = read_header(fixture("Fus.l1"))
    assert payload(dump, dump.buffers[0]).tobytes() == b"L1BUF" * 4
    assert payload(dump, dump.spaces[0]).tobytes() == b"hello log\0\0\0"
    assert (dump.buffers[0].kind, dump.spaces[0].kind) == ("l1buffer", "space")


def test_ffts_slicing_is_an_attribute() -> None:
    dump = read_header(next(path for path in FIXTURES if path.name.startswith("Relu")))
    ((name, value),) = dump.attrs
    assert name == "_sgt_json_info"
    assert '"threadMode": 1' in value


def test_nano() -> None:
    dump = read_header(fixture("Add.nano"))
    assert (dump.nano, dump.op_name, dump.dump_time) == (True, "nano_add", 1589195081588918)
    source, result = dump.tensors
    assert (source.io, result.io, source.data_type, result.shape) == ("input", "output", 1, (2, 3))
    assert result.original_op is not None
    assert result.original_op.name == "orig"
    np.testing.assert_array_equal(decode(dump, result), decode(dump, source) * 2)


def test_a_payload_is_mapped_not_copied() -> None:
    dump = read_header(fixture("MatMul.mm1"))
    raw = payload(dump, dump.outputs[0])
    assert not raw.flags.writeable
    assert not raw.flags.owndata
    array = decode(dump, dump.outputs[0])
    assert not array.flags.writeable
    assert not array.flags.owndata


# writing


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_written_again_it_is_byte_identical(path: Path, tmp_path: Path) -> None:
    dump = read_header(path)
    copy = tmp_path / path.name
    pairs = [(tensor, payload(dump, tensor) if tensor.length else None) for tensor in dump.tensors]
    if dump.nano:
        write_nano(copy, pairs, version=int(dump.version))
    else:
        # The fixtures were written by a program that, like the host writer, leaves empty shapes out.
        write(
            copy,
            pairs,
            op_name=dump.op_name,
            dump_time=dump.dump_time,
            buffers=[payload(dump, entry) for entry in dump.buffers],
            spaces=[payload(dump, entry) for entry in dump.spaces],
            attrs=dump.attrs,
            host=True,
        )
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_header_bytes_of_the_device_writer(tmp_path: Path) -> None:
    # By hand from dump_data.proto: fields in order of their numbers, defaults left out, both
    # shapes there although they are empty, dimensions packed.
    path = tmp_path / "dump"
    write(path, [tensor_of("output", 0, np.float32(1.5).reshape(()), address=0x10)], op_name="s", dump_time=5)
    tensor = b"\x08\x01" + b"\x10\x02" + b"\x1a\x00" + b"\x30\x04" + b"\x3a\x00" + b"\x48\x10"
    header = b"\x0a\x032.0" + b"\x10\x05" + b"\x1a" + bytes([len(tensor)]) + tensor + b"\x32\x01s"
    assert path.read_bytes() == struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.5)


def test_fields_of_the_host_writer_survive(tmp_path: Path) -> None:
    path = tmp_path / "exception_info.7.5.20260101010101001"
    raw = np.arange(16, dtype=np.uint8)
    args = Tensor("input", 0, 0, 0, (), size=16, input_type=1, arg_index=3)
    out = Tensor("output", 0, 1, 2, (4,), size=16, arg_index=4, dim_range=((1, 9),))
    write(
        path, [(args, raw), (out, raw)], op_name="", dump_time=TIME, spaces=[b"ws"], dfx_message="at pc 0x10", host=True
    )
    dump = read_header(path)
    assert dump.dfx_message == "at pc 0x10"
    assert (dump.inputs[0].input_type, dump.inputs[0].arg_index, dump.inputs[0].shape) == (1, 3, ())
    assert (dump.outputs[0].arg_index, dump.outputs[0].dim_range) == (4, ((1, 9),))
    # This writer records no address at all, and writes every payload.
    assert payload(dump, dump.inputs[0]).tobytes() == raw.tobytes()
    assert payload(dump, dump.spaces[0]).tobytes() == b"ws"


def test_a_composite_format_is_split(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    raw = np.zeros(4, np.uint8)
    # GE's composite: FRACTAL_Z, group 3, C0 16; the host writer stores it whole.
    write(path, [(Tensor("output", 0, 4, 4 | 3 << 8 | 5 << 24, (4,), size=4), raw)], op_name="", dump_time=1)
    tensor = read_header(path).tensors[0]
    assert (tensor.format, tensor.sub_format) == (4, 3)


dtypes = st.sampled_from(["float32", "float16", "int8", "uint64", "bool", "complex64"])
tensors = st.lists(
    st.tuples(
        st.sampled_from(["input", "output"]), dtypes, st.lists(st.integers(0, 4), max_size=4), st.integers(0, 40)
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(tensors, st.lists(st.binary(max_size=9), max_size=2), st.text(max_size=5), st.integers(0, 2**64 - 1))
def test_what_is_written_reads_back(tmp_path_factory, specs, extra, name, address) -> None:
    path = tmp_path_factory.getbasetemp() / "written"
    rng = np.random.default_rng(0)
    pairs = []
    for number, (io, dtype, shape, padding) in enumerate(specs):
        array = rng.integers(0, 2, shape).astype(dtype)
        tensor, data = tensor_of(io, number, array, address=address)
        padded = np.concatenate([data, np.full(padding, 7, np.uint8)])
        pairs.append((tensor._replace(size=padded.size), padded))
    write(path, pairs, op_name=name, dump_time=3, buffers=extra, spaces=extra, attrs=[("a", name)])
    dump = read_header(path)
    assert dump.problems == ()
    assert (dump.op_name, dump.attrs) == (name, (("a", name),))
    wanted = [pair for pair in pairs if pair[0].io == "input"] + [pair for pair in pairs if pair[0].io == "output"]
    assert len(dump.tensors) == len(wanted)
    for found, (tensor, data) in zip(dump.tensors, wanted):
        assert found.shape == tensor.shape
        assert payload(dump, found).tobytes() == data.tobytes()
        assert decode(dump, found).shape == tensor.shape
    for entries in (dump.buffers, dump.spaces):
        assert [payload(dump, entry).tobytes() for entry in entries] == extra


# files that do not fit their header


def test_null_addresses_have_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    first, second = np.arange(6, dtype=np.float32), np.arange(4, dtype=np.int32)
    lost = tensor_of("input", 1, first, address=0)[0]
    pairs = [tensor_of("input", 0, first, address=16), (lost, None), tensor_of("output", 0, second, address=32)]
    write(path, pairs, op_name="x", dump_time=1, spaces=[b"log"])
    dump = read_header(path)
    assert dump.problems == ()
    assert dump.tensors[1].size == 24
    assert dump.tensors[1].length == 0
    np.testing.assert_array_equal(decode(dump, dump.tensors[0]), first)
    np.testing.assert_array_equal(decode(dump, dump.tensors[2]), second)
    assert payload(dump, dump.spaces[0]).tobytes() == b"log"
    with pytest.raises(NotSupported, match=r"input 1 of .* its address was null"):
        decode(dump, dump.tensors[1])


def test_null_addresses_in_a_cut_file_lose_only_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    array = np.arange(6, dtype=np.float32)
    pairs = [tensor_of("input", 0, array, address=16), (tensor_of("input", 1, array)[0], None)]
    write(path, [*pairs, tensor_of("output", 0, array, address=32)], op_name="x", dump_time=1)
    os.truncate(path, path.stat().st_size - 3)
    dump = read_header(path)
    assert "declares 72 bytes of payload, the file has 45" in dump.problems[0]
    np.testing.assert_array_equal(decode(dump, dump.tensors[0]), array)
    for tensor in dump.tensors[1:]:
        with pytest.raises(CorruptDump, match="position in the file is unknown"):
            payload(dump, tensor)


def test_a_cut_file_loses_only_the_last_tensor(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    first, _ = write_two(path)
    os.truncate(path, path.stat().st_size - 1)
    dump = read_header(path)
    assert dump.problems == ("the header declares 32 bytes of payload, the file has 31",)
    np.testing.assert_array_equal(decode(dump, dump.tensors[0]), first)
    with pytest.raises(CorruptDump, match="output 0: the header says 8 bytes, the file has 7") as caught:
        decode(dump, dump.tensors[1])
    assert caught.value.offset == dump.tensors[1].offset


def test_a_file_appended_to_says_so_and_reads_the_first(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    first, second = write_two(path)
    size = path.stat().st_size
    write_two(path, append=True)
    dump = read_header(path)
    assert dump.problems == (f"the file was appended to: another dump follows at byte {size}, only the first is read",)
    np.testing.assert_array_equal(decode(dump, dump.tensors[0]), first)
    np.testing.assert_array_equal(decode(dump, dump.tensors[1]), second)


def test_bytes_after_the_last_payload_are_told(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    write_two(path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0" * 21)
    assert read_header(path).problems == (f"21 bytes follow the last payload, at byte {size}",)


def test_a_shape_larger_than_the_payload_is_corrupt() -> None:
    dump = read_header(fixture("Short"))
    with pytest.raises(CorruptDump, match=r"has 12 bytes, FLOAT of shape \(2, 3\) needs 24"):
        decode(dump, dump.tensors[0])


def test_padding_after_the_shape_is_cut() -> None:
    dump = read_header(fixture("Pad"))
    assert dump.tensors[0].length == 64
    np.testing.assert_array_equal(decode(dump, dump.tensors[0]), np.arange(6, dtype=np.float32).reshape(2, 3))


def test_more_than_two_gibibytes(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    size = (2 << 30) + 4096
    big = Tensor("input", 0, 3, 2, (size,), size=size, address=1)
    small = tensor_of("output", 0, np.arange(3, dtype=np.int16), address=2)
    write(path, [(big, None), (small[0], None)], op_name="big", dump_time=1)
    header = path.stat().st_size
    with path.open("r+b") as file:  # sparse: no block is allocated for the big payload
        file.seek(header + size)
        file.write(small[1].tobytes())
    dump = read_header(path)
    assert dump.problems == ()
    np.testing.assert_array_equal(decode(dump, dump.tensors[1]), [0, 1, 2])
    tracemalloc.start()
    array = decode(dump, dump.tensors[0])
    assert array.shape == (size,)
    assert array[-1] == 0
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("sizes", "null", "held", "lengths", "complete"),
    [
        ([4, 6], [False, False], 10, [4, 6], True),
        ([4, 6], [True, True], 10, [4, 6], True),  # no addresses recorded
        ([4, 6], [True, True], 0, [0, 0], True),  # nothing was written
        ([4, 6], [True, True], 5, [4, 1], False),
        ([4, 6, 2], [False, True, False], 6, [4, 0, 2], True),
        ([4, 6, 2], [False, True, False], 12, [4, 6, 2], True),
        ([4, 6, 2], [False, True, False], 9, [4, 0, 0], False),
        ([4, 0, 2], [False, True, False], 5, [4, 0, 1], False),
        ([], [], 0, [], True),
    ],
)
def test_placing(
    tmp_path: Path, sizes: list[int], null: list[bool], held: int, lengths: list[int], complete: bool
) -> None:
    """What has no address in the header may have a payload or none; the length of the file tells."""
    addresses = [0 if absent else 0x1000 for absent in null]
    arrays = [np.full(size, number, dtype=np.uint8) for number, size in enumerate(sizes)]
    tensors = [tensor_of("output", 0, array, address=address) for array, address in zip(arrays, addresses)]
    path = tmp_path / "dump"
    write(path, tensors, op_name="conv1", dump_time=TIME)
    start = path.stat().st_size - sum(sizes)
    os.truncate(path, start + held)
    dump = read_header(path)
    assert [tensor.length for tensor in dump.tensors] == lengths
    assert all(tensor.error or tensor.length in (size, 0) for tensor, size in zip(dump.tensors, sizes))
    assert all(start <= tensor.offset <= start + held - tensor.length for tensor in dump.tensors)
    expected = [] if complete else [f"the header declares {sum(sizes)} bytes of payload, the file has {held}"]
    assert list(dump.problems) == expected


# what is no dump file


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound):
        read_header(tmp_path / "no")


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptDump, match="not a regular file"):
        read_header(tmp_path / "pipe")
    with pytest.raises(CorruptDump, match="not a regular file"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are too few"),
        (b"\x08\0\0\0\0\0\0\0", "8 bytes are too few"),
        (b"\0" * 20, "declares a header of 0 bytes"),
        (b"\xff" * 20, "declares a header of 18446744073709551615 bytes, but only 12 follow"),
        (b"\x08\0\0\0\0\0\0\0" + b"\xff" * 8, "not a DumpData message"),
        (b"\x08\0\0\0\0\0\0\0" + b"\x5a" * 8, "its header is broken"),
    ],
)
def test_what_is_no_dump_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CorruptDump, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    header = b"\x0a\x032.0" + b"\x32\x03a\xff\xfe"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert read_header(path).op_name == r"a\xff\xfe"


def test_thousands_of_dimensions_are_cut_and_told(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    write(path, [(Tensor("output", 0, 1, 2, (1,) * 5000, size=4), b"\0" * 4)], op_name="", dump_time=1)
    dump = read_header(path)
    assert len(dump.tensors[0].shape) == dump_file.MAX_DIMS
    assert any("5000 dimensions" in problem for problem in dump.problems)


def test_more_entries_than_an_operator_has_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    header = b"\x22\x00" * (dump_file.MAX_ENTRIES + 1)
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CorruptDump, match="more entries"):
        read_header(path)


@pytest.mark.parametrize("dims", [(2**63, 2**63), (2**64 - 1,), (0, 2**64 - 1), (1,) * 60])
def test_absurd_dimensions(dims: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "dump"
    write(path, [(Tensor("output", 0, 1, 2, dims, size=4), b"\0" * 4)], op_name="", dump_time=1)
    dump = read_header(path)
    try:
        array = decode(dump, dump.tensors[0])
    except CorruptDump:
        return
    assert array.shape == dims  # numpy 2 has 64 dimensions


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    write_two(path)
    dump = read_header(path)
    os.truncate(path, 40)
    with pytest.raises(CorruptDump, match="shorter than when it was opened"):
        payload(dump, dump.tensors[0])


def touch_everything(path: Path) -> None:
    """Read all that a file offers; only typed errors may come out, and nothing larger than the file."""
    try:
        dump = read_header(path)
    except ReadError:
        return
    for tensor in dump.tensors:
        for wanted in (None, "original", "NCHW", "ND"):
            try:
                array = decode(dump, tensor, format=wanted)
            except AscendDumpError:
                continue
            # complex32 and packed types grow at most eightfold; padding of blocks is in the file.
            assert array.nbytes <= 64 * path.stat().st_size
    for entry in (*dump.buffers, *dump.spaces):
        try:
            payload(dump, entry)
        except AscendDumpError:
            continue


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_mutated_fixtures(path: Path, tmp_path: Path) -> None:
    rng = random.Random(path.name)
    original = path.read_bytes()
    mutant = tmp_path / path.name
    for _ in range(60):
        content = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            spot = rng.randrange(min(len(content), 120))
            kind = rng.random()
            if kind < 0.6:
                content[spot] = rng.randrange(256)
            elif kind < 0.8:
                del content[spot : spot + rng.randint(1, 9)]
            else:
                content[spot:spot] = rng.randbytes(rng.randint(1, 9))
        mutant.write_bytes(content[: rng.randint(1, len(content))] if rng.random() < 0.3 else content)
        touch_everything(mutant)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_random_headers(tmp_path_factory, header: bytes, nano: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    header = (b"\x5a" * 4 if nano else b"") + header
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"payload")
    touch_everything(path)
