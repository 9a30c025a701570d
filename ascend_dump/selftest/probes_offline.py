"""Probes of offline models: what `programs/offline_dumps.py` noted of one dump after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.native.cann import dtypes
from ascend_dump.native.cann.mapping import hashed_name
from ascend_dump.native.cann.names import sanitize, watch_name
from ascend_dump.native.cann.statistics_csv import HEADER
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import FAILED

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = [
    "address_path",
    "compact_indices",
    "data_operators",
    "disk_reserve",
    "last_item_wins",
    "layer_of_fused",
    "loaded_models_stop",
    "long_names",
    "name_characters",
    "no_step_counter",
    "original_dtype",
    "overflow_at_every_step",
    "path_characters",
    "set_before_load",
    "stats_chosen",
    "watch_final_names",
    "watch_names",
]

_File = Mapping[str, Any]

#: Characters of names about which the device could differ.
_SPECIAL = frozenset(" ./\\:")
#: Of the file of a model with a step counter: time, device, model, id and step.
_LEVELS = 5
#: Longer than what leaves room for the other fields of a file's name.
_LONG = 240
_CHOSEN = ",".join((*HEADER.split(",")[:6], "Count", "Max Value", "l2norm"))


class _Untried(Exception):
    """The evidence has no answer; the text says why."""


def _answer(evidence: Evidence, name: str) -> Any:
    """What the program noted. Raises _Untried if it noted nothing."""
    if name not in evidence.facts:
        raise _Untried(evidence.facts.get(FAILED, {}).get(name, "the program did not try it"))
    return evidence.facts[name]


def _files(evidence: Evidence, name: str) -> list[_File]:
    """The files of a dump. Raises _Untried if it was not tried or not accepted."""
    found = _answer(evidence, name)
    if found["code"]:
        raise _Untried(f"set_dump returned {found['code']}")
    files: list[_File] = found["files"]
    return files


def _operators(files: Iterable[_File]) -> set[str]:
    return {str(file.get("operator", "")) for file in files if file["type"] != "Data"}


def _of_operator(files: Iterable[_File], name: str) -> _File:
    """Raises _Untried if the operator has no file."""
    found = next((file for file in files if file.get("operator") == name), None)
    if found is None:
        raise _Untried(f"{name} has no file in that dump")
    return found


def _judged(good: bool, seen: object) -> Outcome:
    return Outcome("confirmed" if good else "refuted", str(seen))


def _probe(judge: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
    """Make a probe of the function: its outcome is "unknown" if the evidence has no answer."""

    @wraps(judge)
    def found(evidence: Evidence) -> Outcome:
        try:
            return judge(evidence)
        except _Untried as reason:
            return Outcome("unknown", str(reason))

    return found


# Names.


@_probe
def name_characters(evidence: Evidence) -> Outcome:
    """Names of files beside the names of the operators in their headers, and the level of a model with a dot."""
    files = [file for file in _files(evidence, "odd_names") if _SPECIAL & set(file.get("operator", ""))]
    if not files:
        raise _Untried("no operator has a name with such characters")
    for file in files:
        name, model = file["name"].split("."), file["levels"][2]
        if len(name) != 5 or name[1] != sanitize(file["operator"]) or sanitize(model) != model:
            return Outcome("refuted", f"{file['operator']!r} of {model!r} has the file {file['name']}")
    return Outcome("confirmed", f"{files[0]['operator']!r} has the file {files[0]['name']}")


@_probe
def long_names(evidence: Evidence) -> Outcome:
    """The name of the file of an operator with a long name, and what mapping.csv says of it."""
    files = [file for file in _files(evidence, "long_names") if len(file.get("operator", "")) > _LONG]
    if not files:
        raise _Untried("no operator has a long name")
    for file in files:
        if not file["original"]:
            return Outcome("refuted", f"mapping.csv does not name {file['name'][:40]}")
        place, rest = "/".join((file["root"], *file["levels"][:2])), "/".join((*file["levels"][2:], file["original"]))
        if file["name"] not in (hashed_name(f"{place}//{rest}"), hashed_name(f"{place}/{rest}")):
            return Outcome("refuted", f"{file['name']} is not the hash of {place}/{rest}")
    return Outcome("confirmed", f"{files[0]['name']} in mapping.csv")


@_probe
def watch_names(evidence: Evidence) -> Outcome:
    """The file that the watcher writes of the output of `first` after `second` ran."""
    files = _files(evidence, "watcher")
    own = _of_operator(_files(evidence, "whole"), "first")
    more = [file for file in files if file.get("operator") != "first"]
    if not more:
        raise _Untried("the watcher wrote nothing after the other operator")
    wanted = sanitize(watch_name("second", "first"))
    watched = next((file for file in files if file.get("operator") == "first"), own)
    good = all(
        file["name"].split(".")[:2] == [own["type"], wanted] and file["task"] != watched["task"] for file in more
    )
    return _judged(good, f"{more[0]['name']}, of {own['name']}")


@_probe
def watch_final_names(evidence: Evidence) -> Outcome:
    """What the watcher wrote of an operator by the name that it had before fusion."""
    if not _files(evidence, "watcher"):
        raise _Untried("the watcher wrote nothing of an operator by its final name either")
    found = [file["name"] for file in _files(evidence, "fused_watched")]
    return _judged(not found, f"{len(found)} files" + (f", such as {found[0]}" if found else ""))


# What a header has.


@_probe
def original_dtype(evidence: Evidence) -> Outcome:
    """The type in original_op, where GE and the dump number the type of the output differently."""
    origins = [one for file in _files(evidence, "whole") for one in file.get("origins", ()) if one["name"]]
    told = [one for one in origins if dtypes.to_ge(one["dumped_type"]) != one["dumped_type"]]
    if not told:
        raise _Untried("no output names its original operator")
    wrong = next((one for one in told if one["type"] != dtypes.to_ge(one["dumped_type"])), None)
    return Outcome("confirmed", f"{len(told)} outputs") if wrong is None else Outcome("refuted", str(wrong))


@_probe
def compact_indices(evidence: Evidence) -> Outcome:
    """The sizes of the inputs of `first`, of which a blacklist leaves out the first one."""
    whole = _of_operator(_files(evidence, "whole"), "first")["inputs"]
    left = _of_operator(_files(evidence, "blacklist"), "first")["inputs"]
    if left == whole:
        raise _Untried("the blacklist left nothing out")
    return _judged(left == whole[1:], f"sizes {left}, of {whole} the first one is left out")


@_probe
def stats_chosen(evidence: Evidence) -> Outcome:
    """The first line of statistics that dump_stats chose."""
    heads = {file["head"] for file in _files(evidence, "chosen") if "head" in file}
    if not heads:
        raise _Untried("no statistics were written")
    return _judged(heads == {_CHOSEN}, min(heads))


# What is dumped.


@_probe
def data_operators(evidence: Evidence) -> Outcome:
    """Files of type Data where the operator that reads the model's input is dumped, and where another is."""
    reader, other = _files(evidence, "one_layer"), _files(evidence, "last_layer")
    task = _of_operator(reader, "first")["task"]
    _of_operator(other, "second")
    tasks = {file["task"] for file in reader if file["type"] == "Data"}
    stray = [file["name"] for file in other if file["type"] == "Data"]
    if stray:
        return Outcome("refuted", f"{stray[0]}, although nothing that reads it was dumped")
    return _judged(tasks == {task}, f"Data of tasks {sorted(map(str, tasks))}, the reader has {task}")


@_probe
def last_item_wins(evidence: Evidence) -> Outcome:
    """The operators of a list of two items with one layer each."""
    _of_operator(_files(evidence, "one_layer"), "first")
    found = _operators(_files(evidence, "two_items"))
    return _judged(found == {"second"}, f"{sorted(found)} of first and second")


@_probe
def layer_of_fused(evidence: Evidence) -> Outcome:
    """Whether the name that an operator had before fusion selects it."""
    origins = _origins(_files(evidence, "fused_layer"))
    name = evidence.facts["fused_layer"]["layer"]
    if name not in _origins(_files(evidence, "whole")):
        raise _Untried("no operator was fused")
    return _judged(name in origins, f"layer {name} dumped {sorted(origins) or 'nothing'}")


def _origins(files: Iterable[_File]) -> set[str]:
    """Names that operators had before fusion."""
    return {one["name"] for file in files for one in file.get("origins", ())}


@_probe
def overflow_at_every_step(evidence: Evidence) -> Outcome:
    """Whether an overflow at step 0 is recorded with dump_step 5, as it is without."""
    if not _records(_files(evidence, "overflow")):
        raise _Untried("the overflow is not recorded without steps either")
    found = _records(_files(evidence, "overflow_of_step"))
    limited = len(_files(evidence, "other_step"))
    return _judged(found > 0, f"{found} records; without dump_debug dump_step 5 dumped {limited} files at step 0")


def _records(files: Iterable[_File]) -> int:
    return sum("opdebug" in file["name"].lower() for file in files)


@_probe
def no_step_counter(evidence: Evidence) -> Outcome:
    """Whether dump_step 0 leaves out the operators that are in no directory of a step in a dump of all steps."""
    uncounted = {file["operator"] for file in _files(evidence, "whole") if len(file["levels"]) < _LEVELS}
    if not uncounted:
        raise _Untried("every operator here has a step counter, as all models have in this version of GE")
    found = _operators(_files(evidence, "first_step")) & uncounted
    return _judged(not found, f"{len(found)} of {len(uncounted)} operators without a step counter are dumped")


@_probe
def set_before_load(evidence: Evidence) -> Outcome:
    """Files of a model that was loaded before set_dump, and of one that was loaded after it."""
    before, after, _ = _loaded(evidence)
    return _judged(before == 0, f"{before} files of the model loaded before, {after - before} of the one loaded after")


@_probe
def loaded_models_stop(evidence: Evidence) -> Outcome:
    """Files of a model that runs again after finalize_dump."""
    _, after, ended = _loaded(evidence)
    return _judged(ended == after, f"{ended - after} more files after finalize_dump")


def _loaded(evidence: Evidence) -> tuple[int, int, int]:
    before, after, ended = _answer(evidence, "loaded")
    if after == before:
        raise _Untried("the model that was loaded after set_dump wrote no files")
    return before, after, ended


@_probe
def path_characters(evidence: Evidence) -> Outcome:
    """The code for a path with a blank, and the number of files there."""
    if not _files(evidence, "whole"):
        raise _Untried("no dump wrote files")
    found = _answer(evidence, "blank directory")
    number = len(found["files"])
    return _judged(found["code"] == 0 and not number, f"set_dump returned {found['code']}, {number} files")


@_probe
def address_path(evidence: Evidence) -> Outcome:
    """The files below the working directory where the path begins with an address."""
    if not _files(evidence, "whole"):
        raise _Untried("no dump wrote files")
    return _judged(bool(_files(evidence, "address")), f"{len(_files(evidence, 'address'))} files")


@_probe
def disk_reserve(evidence: Evidence) -> Outcome:
    """The files of one model on a file system that has less than 1 MiB free, and on one with room."""
    found = _answer(evidence, "disk_reserve")
    if not found["roomy"]:
        raise _Untried("nothing was written where there is room either")
    seen = f"{found['tight']} files below 1 MiB, with room {found['roomy']} of {found['bytes']} bytes"
    return _judged(not found["tight"], seen)
