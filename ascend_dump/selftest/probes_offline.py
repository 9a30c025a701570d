"""Probes of dumps of offline models (.om files).

The facts come from `programs/offline_dumps.py`, and for a full disk from `programs/small_disk.py`. Most facts are the
return code of set_dump and the list of dump files. The model has the operators `first`, `sum`, `relu`, `twice` and
`second`, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ascend_dump.native.cann import dtypes
from ascend_dump.native.cann.mapping import hashed_name
from ascend_dump.native.cann.names import sanitize, watch_name
from ascend_dump.native.cann.statistics_csv import HEADER
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, Untried, fact, outcome, probes

__all__ = ["PROBES"]

_File = Mapping[str, Any]

#: Characters in names that the device may replace.
_SPECIAL = frozenset(" ./\\:")
#: Number of directories of a file of a model with a step counter: time, device, model, model id and step.
_LEVELS = 5
#: Length of an operator name above which it does not fit into a file name together with the other fields.
_LONG = 240
#: The expected first line of a table of statistics for which `dump_stats` chooses Max and L2norm.
_CHOSEN = ",".join((*HEADER.split(",")[:6], "Count", "Max Value", "l2norm"))


def _files(evidence: Evidence, name: str) -> list[_File]:
    """Return the files of the dump with this name. Raises Untried if it was not tried, or if set_dump refused it."""
    dump = fact(evidence, name)
    if dump["code"]:
        raise Untried(f"set_dump returned {dump['code']}")
    files: list[_File] = dump["files"]
    return files


def _operators(files: Iterable[_File]) -> set[str]:
    """Return the names of the operators that have files, without the inputs of the model (type Data)."""
    return {str(file.get("operator", "")) for file in files if file["type"] != "Data"}


def _of_operator(files: Iterable[_File], name: str) -> _File:
    """Return the file of an operator. Raises Untried if the operator has none."""
    match = next((file for file in files if file.get("operator") == name), None)
    if match is None:
        raise Untried(f"{name} has no file in that dump")
    return match


# Names.


def name_characters(evidence: Evidence) -> Outcome:
    """Judge how special characters of names appear in paths: as `sanitize` replaces them.

    The program names an operator and the model with such characters. The header contains the operator's original name.
    """
    files = [file for file in _files(evidence, "odd_names") if _SPECIAL & set(file.get("operator", ""))]
    if not files:
        raise Untried("no operator has a name with special characters")
    for file in files:
        name, model = file["name"].split("."), file["levels"][2]
        if len(name) != 5 or name[1] != sanitize(file["operator"]) or sanitize(model) != model:
            return Outcome("refuted", f"{file['operator']!r} of {model!r} has the file {file['name']}")
    return Outcome("confirmed", f"{files[0]['operator']!r} has the file {files[0]['name']}")


def long_names(evidence: Evidence) -> Outcome:
    """Judge the file of an operator with a long name: the file name is a hash, and mapping.csv has the original name.

    The hash is that of the whole path with the original name.
    """
    files = [file for file in _files(evidence, "long_names") if len(file.get("operator", "")) > _LONG]
    if not files:
        raise Untried("no operator has a long name")
    for file in files:
        if not file["original"]:
            return Outcome("refuted", f"mapping.csv does not name {file['name'][:40]}")
        root, path = "/".join((file["root"], *file["levels"][:2])), "/".join((*file["levels"][2:], file["original"]))
        if file["name"] not in (hashed_name(f"{root}//{path}"), hashed_name(f"{root}/{path}")):
            return Outcome("refuted", f"{file['name']} is not the hash of {root}/{path}")
    return Outcome("confirmed", f"{files[0]['name']} in mapping.csv")


def watch_names(evidence: Evidence) -> Outcome:
    """Judge the file that the watcher writes with the output of `first` after `second` ran.

    Its type is that of `first`, its name has both operators (`watch_name`), and its task differs from that of `first`.
    """
    files = _files(evidence, "watcher")
    whole = _of_operator(_files(evidence, "whole"), "first")
    later = [file for file in files if file.get("operator") != "first"]
    if not later:
        raise Untried("the watcher wrote nothing after the other operator")
    expected = sanitize(watch_name("second", "first"))
    watched = next((file for file in files if file.get("operator") == "first"), whole)
    is_expected = all(
        file["name"].split(".")[:2] == [whole["type"], expected] and file["task"] != watched["task"] for file in later
    )
    return outcome(is_expected, f"{later[0]['name']}, of {whole['name']}")


def watch_final_names(evidence: Evidence) -> Outcome:
    """Judge a watcher that names an operator by its name from before fusion: it writes nothing."""
    if not _files(evidence, "watcher"):
        raise Untried("the watcher wrote nothing of an operator by its final name either")
    names = [file["name"] for file in _files(evidence, "fused_watched")]
    return outcome(not names, f"{len(names)} files" + (f", such as {names[0]}" if names else ""))


# Contents of headers.


def original_dtype(evidence: Evidence) -> Outcome:
    """Judge the type in the header's `original_op`: it has GE's number, not the number that dumps use for the type.

    Only outputs of a type with different numbers can show this.
    """
    origins = [origin for file in _files(evidence, "whole") for origin in file.get("origins", ()) if origin["name"]]
    renumbered = [origin for origin in origins if dtypes.to_ge(origin["dumped_type"]) != origin["dumped_type"]]
    if not renumbered:
        raise Untried("no output names its original operator")
    wrong = next((origin for origin in renumbered if origin["type"] != dtypes.to_ge(origin["dumped_type"])), None)
    return Outcome("confirmed", f"{len(renumbered)} outputs") if wrong is None else Outcome("refuted", str(wrong))


def compact_indices(evidence: Evidence) -> Outcome:
    """Judge the inputs of `first` in a dump whose blacklist excludes input 0: the other inputs move up by one."""
    whole = _of_operator(_files(evidence, "whole"), "first")["inputs"]
    remaining = _of_operator(_files(evidence, "blacklist"), "first")["inputs"]
    if remaining == whole:
        raise Untried("the blacklist left nothing out")
    return outcome(remaining == whole[1:], f"sizes {remaining}, of {whole} the first one is left out")


def stats_chosen(evidence: Evidence) -> Outcome:
    """Judge the first line of a table of statistics with `dump_stats`: it is `_CHOSEN`."""
    heads = {file["head"] for file in _files(evidence, "chosen") if "head" in file}
    if not heads:
        raise Untried("no statistics were written")
    return outcome(heads == {_CHOSEN}, min(heads))


# Selection of operators.


def data_operators(evidence: Evidence) -> Outcome:
    """Judge the files of the model's input (type Data): they are written if the operator that reads it is dumped.

    They then have the task id of the reading operator. Without that operator, the dump has no such file.
    """
    reader, last = _files(evidence, "one_layer"), _files(evidence, "last_layer")
    task = _of_operator(reader, "first")["task"]
    _of_operator(last, "second")
    tasks = {file["task"] for file in reader if file["type"] == "Data"}
    stray = [file["name"] for file in last if file["type"] == "Data"]
    if stray:
        return Outcome("refuted", f"{stray[0]}, although nothing that reads it was dumped")
    return outcome(tasks == {task}, f"Data of tasks {sorted(map(str, tasks))}, the reader has {task}")


def last_item_wins(evidence: Evidence) -> Outcome:
    """Judge a `dump_list` of two items, one with `first` and one with `second` as layer: only the last item counts."""
    _of_operator(_files(evidence, "one_layer"), "first")
    operators = _operators(_files(evidence, "two_items"))
    return outcome(operators == {"second"}, f"{sorted(operators)} of first and second")


def layer_of_fused(evidence: Evidence) -> Outcome:
    """Judge a layer that is an operator's name from before fusion: it selects the fused operator."""
    origins = _origins(_files(evidence, "fused_layer"))
    name = evidence.facts["fused_layer"]["layer"]
    if name not in _origins(_files(evidence, "whole")):
        raise Untried("no operator was fused")
    return outcome(name in origins, f"layer {name} dumped {sorted(origins) or 'nothing'}")


def _origins(files: Iterable[_File]) -> set[str]:
    """Return the names that operators had before fusion, from the headers of the files."""
    return {origin["name"] for file in files for origin in file.get("origins", ())}


def overflow_at_every_step(evidence: Evidence) -> Outcome:
    """Judge overflow detection with dump_step 5: an overflow at step 0 is recorded nevertheless."""
    if not _records(_files(evidence, "overflow")):
        raise Untried("the overflow is not recorded without steps either")
    records = _records(_files(evidence, "overflow_of_step"))
    limited = len(_files(evidence, "other_step"))
    return outcome(records > 0, f"{records} records; without dump_debug dump_step 5 dumped {limited} files at step 0")


def _records(files: Iterable[_File]) -> int:
    """Return the number of overflow records."""
    return sum("opdebug" in file["name"].lower() for file in files)


def no_step_counter(evidence: Evidence) -> Outcome:
    """Judge operators of models without a step counter: with dump_step 0 they are not dumped.

    In a dump of all steps they are the operators whose files are in no step directory.
    """
    uncounted = {file["operator"] for file in _files(evidence, "whole") if len(file["levels"]) < _LEVELS}
    if not uncounted:
        raise Untried("every operator here has a step counter, as all models have in this version of GE")
    dumped = _operators(_files(evidence, "first_step")) & uncounted
    return outcome(not dumped, f"{len(dumped)} of {len(uncounted)} operators without a step counter are dumped")


def set_before_load(evidence: Evidence) -> Outcome:
    """Judge a model that was loaded before set_dump: it writes no files. A model that is loaded later does."""
    before, after, _ = _loaded(evidence)
    return outcome(before == 0, f"{before} files of the model loaded before, {after - before} of the one loaded after")


def loaded_models_stop(evidence: Evidence) -> Outcome:
    """Judge a model that runs again after finalize_dump: it writes no more files."""
    _, after, ended = _loaded(evidence)
    return outcome(ended == after, f"{ended - after} more files after finalize_dump")


def _loaded(evidence: Evidence) -> tuple[int, int, int]:
    """Return the number of files after each of three runs of a model.

    For the first run the model was loaded before set_dump, for the second run after it. The third run follows
    finalize_dump. Raises Untried if the second run wrote nothing.
    """
    before, after, ended = fact(evidence, "loaded")
    if after == before:
        raise Untried("the model that was loaded after set_dump wrote no files")
    return before, after, ended


def path_characters(evidence: Evidence) -> Outcome:
    """Judge a dump path with a blank: set_dump accepts it (code 0), but nothing is written."""
    if not _files(evidence, "whole"):
        raise Untried("no dump wrote files")
    dump = fact(evidence, "blank directory")
    number = len(dump["files"])
    return outcome(dump["code"] == 0 and not number, f"set_dump returned {dump['code']}, {number} files")


def address_path(evidence: Evidence) -> Outcome:
    """Judge a dump path that begins with an IP address: files are written below the working directory."""
    if not _files(evidence, "whole"):
        raise Untried("no dump wrote files")
    return outcome(bool(_files(evidence, "address")), f"{len(_files(evidence, 'address'))} files")


def disk_reserve(evidence: Evidence) -> Outcome:
    """Judge a file system with less than 1 MiB free: nothing is written there, although a larger one gets files."""
    counts = fact(evidence, "disk_reserve")
    if not counts["roomy"]:
        raise Untried("nothing was written where there is room either")
    seen = f"{counts['tight']} files with less than 1 MiB free, {counts['roomy']} ({counts['bytes']} bytes) with room"
    return outcome(not counts["tight"], seen)


PROBES = probes(
    address_path,
    compact_indices,
    data_operators,
    disk_reserve,
    last_item_wins,
    layer_of_fused,
    loaded_models_stop,
    long_names,
    name_characters,
    no_step_counter,
    original_dtype,
    overflow_at_every_step,
    path_characters,
    set_before_load,
    stats_chosen,
    watch_final_names,
    watch_names,
)
