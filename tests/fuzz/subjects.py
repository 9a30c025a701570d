"""The subjects of a campaign: each reader with whole files to begin from."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec
import numpy as np
from places import DATA

from ascend_dump import AscendDumpError

__all__ = ["Subject", "subjects"]

#: Of a dump with more records these are read.
_MOST_RECORDS = 60
_NOTHING: Mapping[str, bytes] = {}


class Subject(NamedTuple):
    """One reader. use: reads what lies at a path; raises only errors of ours, where it is right.

    seeds: whole files, by the place of each below the directory that is read.
    beside: files that stay whole.
    """

    name: str
    use: Callable[[Path], None]
    seeds: dict[str, bytes]
    beside: Mapping[str, bytes] = _NOTHING
    #: Whether `use` is given the file itself, not the directory above all.
    alone: bool = True


def subjects() -> list[Subject]:
    """Every reader of dumps, of graphs and of settings."""
    return [*_dialects(), *_parsers(), *_languages(), *_settings()]


def use_dump(place: Path) -> None:
    """Everything that a tool does with the records of a dump."""
    from ascend_dump.reading import open_dump

    dump = open_dump(place)
    repr(dump)
    dump.runs()
    if find_spec("polars") is not None:
        dump.catalog().collect()
    for record in islice(dump, _MOST_RECORDS):
        repr(record)
        hash(record)
        json.dumps(record.to_dict())
        reads = (record.numpy, record.statistics, partial(record.numpy, format="NCHW"), partial(_arguments, record))
        for call in reads:
            try:
                call()
            except AscendDumpError:
                continue


def use_repeated_steps(place: Path) -> None:
    """The catalog of steps that repeat each other, which has to be the same by the compiled function and without it."""
    from ascend_dump.reading import catalog, open_dump

    frames = []
    usual = catalog._MANY
    for many in (0, sys.maxsize):
        catalog._MANY = many
        try:
            frames.append(open_dump(place).catalog().collect())
        finally:
            catalog._MANY = usual
    assert list(map(repr, frames[0].rows())) == list(map(repr, frames[1].rows()))


def _arguments(record: Any) -> str:
    return str(record.arguments)


def use_all(read: Callable[[Path], Iterable[Any]], path: Path) -> None:
    for one in read(path):
        repr(one)


def _dialects() -> Iterator[Subject]:
    cann = DATA / "cann"
    statistics = {"Add.Add_9.3.7.1589195081588999.csv": _CANN_STATISTICS}
    yield _dump("cann dump files", {**_below(cann / "in"), **statistics})
    yield _dump("cann overflow files", _below(cann / "in_overflow"))
    overflows = {f"rank_0/Net/0/0/{name}": data for name, data in _below(cann / "msaccucmp_overflow").items()}
    yield _dump("mindspore overflow files", overflows)
    for name in ("bf16", "longname"):
        tree = _below(DATA / "mindspore" / name)
        tensors = dict([(one, data) for one, data in tree.items() if one.endswith(".npy")][:6])
        tensors["rank_0/Net/7/7/statistic.csv"] = _MINDSPORE_STATISTICS
        others = {one: data for one, data in tree.items() if not one.endswith(".npy")}
        yield _dump(f"mindspore tree {name}", {**tensors, **others}, beside={**tensors, **others})
    host = _host()
    yield _dump("host dump", host, beside=host)
    indexes = {f"{one}.gz": gzip.compress(data) for one, data in host.items() if one.endswith("index.jsonl")}
    others = {one: data for one, data in host.items() if not one.endswith("index.jsonl")}
    yield _dump("compressed indexes", indexes, beside={**indexes, **others})
    if find_spec("polars") is not None and find_spec("numba") is not None:
        repeated = _repeated_steps()
        yield Subject("repeated steps", use_repeated_steps, repeated, beside=repeated, alone=False)
    shard = {Path(one).name: data for one, data in host.items() if one.endswith(".safetensors")}
    yield _dump("safetensors", shard)
    yield _dump("torchair npy", _torchair_npy())
    converted = _converted()
    yield _dump("converted files", converted, beside=converted)
    yield _dump("torchair pt", _torchair_pt())
    msprobe = _archived(DATA / "msprobe.tar.gz", "msprobe/debug_save", "msprobe/xor_L1")
    yield _dump("msprobe dump", msprobe, beside=msprobe)
    yield _dump("sglang", _sglang())
    tfdbg = _archived(DATA / "tfdbg.tar.gz", "tfdbg/hook", "tfdbg/watch_fn")
    yield _dump("tfdbg dump", tfdbg, beside=tfdbg)
    graphs = _below(DATA / "torchair_graph")
    npy = {f"worldsize1_global_rank0/graph_1/{one}": data for one, data in _torchair_npy().items()}
    yield Subject("torchair graph beside a dump", use_dump, graphs, npy, alone=False)


def _parsers() -> Iterator[Subject]:
    from ascend_dump.native.cann.graph import graph_name, read_graph
    from ascend_dump.native.cann.mapping import read_mapping
    from ascend_dump.native.cann.statistics_csv import read_statistics as read_cann
    from ascend_dump.native.mindspore.graph import read_ir
    from ascend_dump.native.mindspore.statistics_csv import read_statistics as read_mindspore
    from ascend_dump.native.torchair.graph import read_torchair_graph

    graphs = _below(DATA / "ge_proto")
    yield Subject("ge graph", partial(use_all, read_graph), graphs)
    yield Subject("ge graph name", partial(use_all, graph_name), graphs)
    yield Subject("torchair graph", partial(use_all, read_torchair_graph), _below(DATA / "torchair_graph"))
    ir = {path.name: path.read_bytes() for path in sorted((DATA / "mindspore").rglob("*.ir"))[:6]}
    yield Subject("mindspore graph", partial(use_all, read_ir), ir)
    mapping = {"mapping.csv": next((DATA / "mindspore" / "longname").rglob("mapping.csv")).read_bytes()}
    yield Subject("mapping", partial(use_all, read_mapping), mapping)
    yield Subject("cann statistics", partial(use_all, read_cann), {"a.csv": _CANN_STATISTICS})
    yield Subject("mindspore statistics", partial(use_all, read_mindspore), {"statistic.csv": _MINDSPORE_STATISTICS})


def _languages() -> Iterator[Subject]:
    from ascend_dump.adapter import DumpRequest
    from ascend_dump.native.languages import languages

    request = DumpRequest(path="dumps", steps="0|3-5", mode="all")
    for name in languages():
        built = dict(languages()[name].build(request))
        seeds = {"0.json": json.dumps(built).encode()}
        for number, example in enumerate(_examples(name)):
            text = example if isinstance(example, str) else json.dumps(example)
            seeds[f"{number + 1}.json"] = text.encode()
        yield Subject(f"check {name}", partial(use_language, name), seeds)


def use_language(name: str, path: Path) -> None:
    """Check a file as `ascend-dump check` does."""
    from ascend_dump.native.cann.config.parse import read_source
    from ascend_dump.native.cann.config.situation import Situation
    from ascend_dump.native.languages import Surroundings, languages, recognise

    known = languages()
    recognise(known.values(), read_source(path).value, path.suffix)
    for problem in known[name].check(path, Surroundings(Situation.here())):
        repr(problem)


def _settings() -> Iterator[Subject]:
    from ascend_dump.adapter import DumpRequest

    request = DumpRequest(path="dumps", steps="0|3-5", layers=["a", "b"], options={"file_format": "npy", "on": "cpu"})
    toml = b'path = "dumps"\nsteps = "0|3-5"\nlayers = ["a", "b"]\n[options]\non = "cpu"\n'
    files = {"a.json": json.dumps(request.to_mapping(), default=str).encode(), "a.toml": toml}
    yield Subject("settings file", use_settings_file, files)
    yield Subject(
        "settings text", use_settings_text, {"text": request.to_text().encode(), "more": b"steps=0|2,path=/d"}
    )


def use_settings_file(path: Path) -> None:
    from ascend_dump.adapter import DumpRequest

    repr(DumpRequest.from_file(path))


def use_settings_text(path: Path) -> None:
    """As the variable ASCEND_DUMP, whose length the system bounds."""
    from ascend_dump.adapter import DumpRequest

    DumpRequest.from_text(path.read_bytes()[: 1 << 17].decode("utf-8", "surrogateescape")).to_text()


def _examples(language: str) -> list[Any]:
    """The configurations on which the rules of a language are tried."""
    import ascend_dump.native.cann.config.silent as silent
    import ascend_dump.native.mindspore.config.check as mindspore
    import ascend_dump.native.scenes as scenes
    import ascend_dump.native.tensorflow.config._rules as tensorflow

    tables: dict[str, Any] = {"acl": silent.SILENT, "mindspore": mindspore.RULES, "tensorflow": tensorflow.RULES}
    rules = [*tables.get(language, scenes.SCENES).values()]
    found = [case.config for rule in rules for case in (rule.trips, rule.passes)]
    return [json.loads(text) for text in dict.fromkeys(json.dumps(one) for one in found)][:60]


def _dump(name: str, seeds: dict[str, bytes], beside: Optional[dict[str, bytes]] = None) -> Subject:
    return Subject(name, use_dump, seeds, beside or {}, alone=False)


def _below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _sglang() -> dict[str, bytes]:
    """A document with a tensor, as torch.save writes it."""
    storage = "ctorch\nFloatStorage\n"
    pickle = (
        "\x80\x02}(X\x05\x00\x00\x00valuectorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        + storage
        + "X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
        "X\x04\x00\x00\x00meta](K\x01NX\x01\x00\x00\x00aeu."
    )
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("x/data.pkl", pickle.encode("latin-1"))
        archive.writestr("x/data/0", struct.pack("<2f", 1, 2))
    return {"dump/step=0___rank=0___dump_index=1___name=x.pt": made.getvalue()}


def _archived(path: Path, *directories: str) -> dict[str, bytes]:
    """The files below some directories of an archive."""
    with tarfile.open(path) as archive:
        found = [one for one in archive.getmembers() if one.isfile() and one.name.startswith(directories)]
        return {one.name: file.read() for one in found for file in (archive.extractfile(one),) if file}


_CALLS = (
    b'{"op":"aten.add.Tensor","args":{"self":{"input":0},"alpha":{"float":"nan"},"dtype":{"dtype":"float32"}}}',
    b'{"op":"aten.rand.default","args":{"size":[2,3]},"generator":{"device":"cpu","hash":"00","seed":5}}',
    b'{"op":"aten._foreach_mul.ScalarList","args":{"self":{"inputs":[0,9]},"scalars":{"cut":[1.5],"length":5000}}}',
)


def _host() -> dict[str, bytes]:
    from host_dumps import item, model_directory, write_step

    from ascend_dump.writing import HostWriter

    root = Path(tempfile.mkdtemp())
    try:
        writer = HostWriter(model_directory(root), metadata={})
        arrays = [np.arange(12, dtype=dtype).reshape(3, 4) for dtype in ("f4", "f8", "i4", "u1", "c8", "f2")]
        for step in range(2):
            items = [item(f"layer/{one.dtype}_0", one, index=step) for one in arrays]
            for number, one in enumerate(items):
                one.line.call = msgspec.Raw(_CALLS[number % len(_CALLS)])
            write_step(writer, step, *items)
        writer.close()
        return _below(root)
    finally:
        shutil.rmtree(root)


def _repeated_steps() -> dict[str, bytes]:
    """Three steps with the lines of 40 operators, which differ in times, hashes, versions and statistics."""
    from host_dumps import RUN

    from ascend_dump.dump_format import Line

    steps = {}
    for step in range(3):
        lines = []
        for number in range(80):
            name = f"layers.{number // 2}/add_0"
            time = 10**15 + 1000 * step + number // 2
            io = "output" if number % 2 else "input"
            line = Line(number // 2, "aten::add", name, io, 0, time, "float32", (2, 2), 16, stride=(2, 1))
            line.storage, line.address, line.version, line.hash = number, 2**40 + step, step, f"{number + step:032x}"
            line.stats = (4, 1.5 + step / 3, -1e-7 / (step + 1), None if number % 7 else "nan", 2.0, 0, 0, 0)
            line.shard, line.offset = f"{step}/tensors-00000.safetensors", 100 + 16 * number
            line.blob = (line.offset, 16)
            if not number % 2:
                line.call = msgspec.Raw(
                    b'{"op":"aten.add.Scalar","args":{"self":{"input":0},"other":0.%d}}' % (step + 1)
                )
            lines.append(msgspec.json.encode(line) + b"\n")
        steps[f"{RUN.as_posix()}/{step}/index.jsonl"] = b"".join(lines)
    return steps


def _converted() -> dict[str, bytes]:
    from ascend_dump.converting.convert import Options, convert_all, find_tasks

    root = Path(tempfile.mkdtemp())
    try:
        for kind, folder in (("npy", "in_overflow"), ("npz", "in"), ("bin", "in"), ("txt", "in")):
            tasks = islice(find_tasks([DATA / "cann" / folder], root / kind), 4)
            for _ in convert_all(tasks, Options(type=kind), jobs=1):
                pass
        return _below(root)
    finally:
        shutil.rmtree(root)


def _torchair_npy() -> dict[str, bytes]:
    values = {"aten.addmm.default.INPUT.0": np.arange(6, dtype="f2").reshape(2, 3), "aten.sum.INPUT.0.1": np.array(3)}
    values["aten.relu.OUTPUT.0"] = np.zeros((2, 0, 4), "f4")
    values["aten.view.INPUT.1"] = np.array("text")
    values["aten.list.INPUT.1"] = np.array([None, {}], dtype=object)
    root = Path(tempfile.mkdtemp())
    try:
        for number, (name, value) in enumerate(values.items()):
            np.save(root / f"node_{number}-{name}.2026112101524148626{number}.npy", value)
        return _below(root)
    finally:
        shutil.rmtree(root)


def _torchair_pt() -> dict[str, bytes]:
    """A file as torch.save writes it, without needing torch."""
    root = Path(tempfile.mkdtemp())
    try:
        path = root / "relu_device_0_3.pt"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("relu/data.pkl", _PICKLE)
            file.writestr("relu/byteorder", "little")
            file.writestr("relu/data/0", struct.pack("<6f", *range(6)))
            file.writestr("relu/version", "3\n")
        return _below(root)
    finally:
        shutil.rmtree(root)


_CANN_STATISTICS = (
    b"Input/Output,Index,Data Size,Data Type,Format,Shape,"
    b"Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count\n"
    b"Input,0,24,FLOAT,ND,2x3,5,0,2.5,6,0,0,0\nOutput,0,24,FLOAT,ND,2x3,nan,-inf,,6,1,1,0\n"
)
_MINDSPORE_STATISTICS = (
    b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value\n"
    b'Add,Default_Add-op0,0,0,1795226242824853,input,0,24,float32,"(2,3)",5,0,7.4\n'
    b'Add,Default_Add-op0,0,0,1795226242824853,output,0,24,float32,"(2,3)",inf,nan,inf\n'
)
#: torch.save of a float32 tensor of shape (2, 3).
_PICKLE = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nq\x02"
    b"X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04K\x06tq\x05QK\x00K\x02K\x03\x86q\x06K\x03K\x01\x86q\x07\x89"
    b"ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."
)
