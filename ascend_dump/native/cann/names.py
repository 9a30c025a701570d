"""Parse and build the file names and directory levels of CANN dumps. No file is accessed.

The device writes files named `{op_type}.{op_name}.{task}.{stream}.{us}` (aicpu_schedule dump_task). The host writes
`{op_type}.{op_name}.{dump_number}.{task}.{stream}.{us}` for captured streams (adump dump_stream_info), and names with a
local time of 17 digits for exceptions (adump exception_dumper). us is the time in microseconds. Only the device
replaces dots and slashes in names of operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

__all__ = [
    "EXCEPTION_DIRECTORY",
    "OPDEBUG_NAME",
    "OPDEBUG_TYPE",
    "STEP_DIRECTORY",
    "DumpLevels",
    "DumpName",
    "EagerName",
    "build_levels",
    "build_name",
    "eager_name",
    "loosen_glob",
    "parse_levels",
    "parse_name",
    "sanitize",
    "watch_name",
    "watch_pairs",
]

OPDEBUG_TYPE = "Opdebug"
OPDEBUG_NAME = "Node_OpDebug"
#: The directory of exception dumps below the dump path. It has a directory per device.
EXCEPTION_DIRECTORY = ("extra-info", "data-dump")
#: The number of the task type FFTSPLUS in names of the device, and its text in names of the host.
FFTSPLUS = 4
_FFTSPLUS_LETTERS = "FFTSPLUS"

#: Number of digits of a timestamp: microseconds since the epoch have at least 14 (16 from 2001 to 2286), the local time
#: of an exception has 17.
_SHORTEST_STAMP = 14
_LOCAL_STAMP = 17
#: Maximum number of digits of an id, which is a uint32.
_LONGEST_ID = 10
_REPLACED = str.maketrans({" ": "_", ".": "_", "/": "_", "\\": "_"})
_WATCH = "_To_"
#: The content of a set `[...]` in a glob that has only letters and digits, so that `sanitize` changes none of them.
_SET_WITHOUT_REPLACED = re.compile(r"!?(?:[0-9]-[0-9]|[a-z]-[a-z]|[A-Z]-[A-Z]|[^\W_])+")


#: The op type in file names of eager operators, and the text that opbase writes if it knows no API (with its typo).
_EAGER_TYPE = re.compile(r"(aclnn\w+?|L2DfxAbscent)_(\d{1,20})(?:_(L[02]))?", re.ASCII)
_NO_API = "L2DfxAbscent"

#: The path of a step's directory below the dump path, with the number of the step as its group. torchair adds a level
#: for the rank.
#: (assumption torchair.levels)
STEP_DIRECTORY = re.compile(r"(?:worldsize\d+_global_rank\d+/)?\d{14}/\d{1,9}/[^/]+/\d{1,18}/(\d{1,18})", re.ASCII)


class DumpName(NamedTuple):
    """The fields of a file name. A field that the name lacks is None.

    form       "device" (usual), "old" (without a stream), "aclgraph" (a captured stream); for exceptions "brief",
               "normal", "callback" or "custom"
    timestamp  microseconds since the epoch. For exceptions the digits YYYYmmddHHMMSSmmm of a local time, except in CANN
               before about 2024-12
    task_type  4 for FFTS+; only then there are context_id, thread_id and device_id
    dump_number  only in the form "aclgraph"
    core_type, core_id  only in the form "callback"
    statistics   True for a CSV file with statistics
    """

    form: str
    op_type: str
    op_name: str
    timestamp: int
    task_id: Optional[int] = None
    stream_id: Optional[int] = None
    statistics: bool = False
    task_type: Optional[int] = None
    context_id: Optional[int] = None
    thread_id: Optional[int] = None
    device_id: Optional[int] = None
    dump_number: Optional[int] = None
    core_type: Optional[str] = None
    core_id: Optional[int] = None

    @property
    def local_time(self) -> bool:
        """True if `timestamp` is a local time, and not microseconds since the epoch."""
        return len(str(self.timestamp)) == _LOCAL_STAMP

    @property
    def exception(self) -> bool:
        return self.form in ("brief", "normal", "callback", "custom")

    @property
    def overflow(self) -> bool:
        """True for a file with an overflow record. Documents also spell its name OpDebug.Node_Opdebug."""
        return self.op_type.lower() == "opdebug" and self.op_name.lower() == "node_opdebug"


class EagerName(NamedTuple):
    """The fields in the file name of an eager operator.

    api        the API call, such as "aclnnAdd"; the type of the operator if its API was generated
    number     number of the API call, counted over all threads of the process. The files with the inputs and the
               outputs of a call have the same number, except for generated operators
    kernel     the kernel; None for a file of the API call itself, and for generated operators
    generated  True for an operator with a generated API, whose name opbase does not know
    """

    api: str
    number: int
    kernel: Optional[str] = None
    generated: bool = False


def eager_name(name: DumpName) -> Optional[EagerName]:
    """Return the fields of an eager operator's file name; None for files of other operators.

    opbase writes `{api}_{number}_L2.{api}` for an API call and `{api}_{number}_L0.{kernel}` for each kernel of the call
    (hicann/opbase aa3cd74, composite_op/aclnn_engine/op_dfx.cpp:815, 1131). For operators with a generated API it
    writes `L2DfxAbscent_{number}._L0{OpType}` (individual_op/executor/indv_dump.cpp:147). Inputs and outputs are in
    separate files (op_executor.cpp:987, common/inc/kernel_launcher.h:170), except for an overflow (op_dfx.cpp:1147) and
    for exceptions. The author of an operator chooses the name of its kernel.
    """
    if not name.op_type.startswith(("aclnn", _NO_API)):
        return None
    match = _EAGER_TYPE.fullmatch(name.op_type)
    if match is None:
        return None
    api, number, level = match[1], int(match[2]), match[3]
    if level is None:
        return EagerName(name.op_name.removeprefix("_L0") or api, number, generated=True) if api == _NO_API else None
    return EagerName(api, number, None if level == "L2" else name.op_name)


def sanitize(text: str) -> str:
    """Replace blanks, dots and slashes by `_`, as the device does in op types, op names and model names.

    (assumption cann.name_characters)
    """
    return text.translate(_REPLACED)


def loosen_glob(glob: str) -> str:
    """Return a glob for names that `sanitize` changed. It matches at least the names whose originals match `glob`."""
    out, position = "", 0
    while position < len(glob):
        char, end = glob[position], -1
        if char == "[":
            # As in fnmatch, a `]` directly after `[` or `[!` is a member of the set and does not end it.
            end = glob.find("]", position + (3 if glob[position + 1 : position + 2] == "!" else 2))
        if end > 0:
            chars = glob[position + 1 : end]
            out += f"[{chars}]" if _SET_WITHOUT_REPLACED.fullmatch(chars) else "?"
        else:
            out += "[[]" if char == "[" else sanitize(char)
        position = max(position, end) + 1
    return out


def parse_name(name: str) -> Optional[DumpName]:
    """Return the fields of a file name; None if CANN does not write such names.

    The name of a file of a captured stream may contain slashes: pass its path below the device's directory.

    (assumption cann.captured_name)
    (assumption cann.captured_characters)
    """
    statistics = name.endswith(".csv")
    fields = (name[:-4] if statistics else name).split(".")
    if len(fields) == 5 and len(fields[4]) < _LOCAL_STAMP:
        # The usual form is tested first, because a dump may have millions of such files.
        op_type, op_name, task, stream, stamp = fields
        if _is_stamp(stamp) and _is_id(task) and _is_id(stream) and op_type and op_name:
            return DumpName("device", op_type, op_name, int(stamp), int(task), int(stream), statistics)
        return None
    if len(fields) < 3 or not fields[0]:
        return None
    if len(fields) == 4 and not statistics and (fields[0] == "exception_info" or _EAGER_TYPE.fullmatch(fields[0])):
        # Exceptions of CANN before about 2024-12 have microseconds instead of a local time.
        return _parse_exception(fields) if _is_stamp(fields[3]) else None
    if len(fields[-1]) == _LOCAL_STAMP and _is_stamp(fields[-1]) and not statistics:
        return _parse_exception(fields)
    return _parse_data(fields, statistics)


def build_name(name: DumpName) -> str:
    """Return CANN's file name for these fields. Names of operators are sanitized in the forms that the device writes.

    (assumption cann.file_name)
    """
    if name.form == "brief":
        return f"{name.op_type}.{name.stream_id}.{name.task_id}.{name.timestamp}"
    if name.form == "callback":
        return f"{name.op_type}.{name.stream_id}.{name.task_id}.{name.core_type}.{name.core_id}.{name.timestamp}"
    if name.form == "custom":
        return f"{name.op_type}.custom.{name.timestamp}"
    if name.form == "normal":
        return f"{name.op_type}.{name.op_name}.{name.task_id}.{name.timestamp}"
    ids: list[object] = [name.task_id, name.stream_id, name.timestamp]
    task_type: object = name.task_type
    if name.form == "aclgraph":
        parts: list[object] = [name.op_type, name.op_name, name.dump_number, *ids]
        task_type = _FFTSPLUS_LETTERS
    elif name.form == "old":
        parts = [sanitize(name.op_type), sanitize(name.op_name), name.task_id, name.timestamp]
    else:
        parts = [sanitize(name.op_type), sanitize(name.op_name), *ids]
    if name.task_type is not None:
        parts += [task_type, name.context_id, name.thread_id, name.device_id]
    return ".".join(map(str, parts)) + (".csv" if name.statistics else "")


def watch_name(layer: str, watched: str) -> str:
    """Return the operator name of a file of the watcher, which has the output of `watched` after `layer` has run.

    (assumption cann.watch_name)
    """
    return f"{layer}{_WATCH}{watched}"


def watch_pairs(op_name: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs (layer, watched) that may have this name: several if an operator's name contains `_To_`."""
    position = op_name.find(_WATCH, 1)
    while position > 0:
        layer, watched = op_name[:position], op_name[position + len(_WATCH) :]
        if watched:
            yield layer, watched
        position = op_name.find(_WATCH, position + 1)


class DumpLevels(NamedTuple):
    """The fields of the directory levels above a file. A field without a level is None.

    run            the time at which the dump was turned on, `YYYYmmddHHMMSS`
    data_index     the step in GE's count
    outer_step     the training step, a level above the time; only in dumps of MindSpore through GE
    rank, world    the rank and the number of ranks, from `worldsize{N}_global_rank{R}`
    exception      True for the directory of exception dumps
    inner          levels that are a part of the operator's name, which contains slashes for captured streams
    """

    run: Optional[str] = None
    device: Optional[int] = None
    model: Optional[str] = None
    model_id: Optional[int] = None
    data_index: Optional[int] = None
    outer_step: Optional[int] = None
    rank: Optional[int] = None
    world: Optional[int] = None
    exception: bool = False
    inner: tuple[str, ...] = ()


def parse_levels(parts: Sequence[str], inside: Optional[int] = None) -> DumpLevels:
    """Return the fields of the levels above a file. parts: the levels, outermost first.

    inside: number of levels below the directory that the user opened; None: all levels. Levels above that directory are
    used only if the level of the time is among them: in a user's path such as `/data/3/0/` numbers mean something else.
    """
    inside = len(parts) if inside is None else inside
    rank, world = _rank_of(parts)
    for position in range(len(parts) - 1, -1, -1):
        if len(parts[position]) == 14 and _is_digits(parts[position]):
            above = parts[position - 1] if position > len(parts) - inside else ""
            outer = int(above) if _is_id(above) else None
            return _below_time(parts[position + 1 :])._replace(
                run=parts[position], outer_step=outer, rank=rank, world=world
            )
    if tuple(parts[-3:-1]) == EXCEPTION_DIRECTORY and _is_id(parts[-1]):
        return DumpLevels(device=int(parts[-1]), rank=rank, world=world, exception=True)
    model_levels = _model_levels(parts[len(parts) - min(inside, 4) :]) or DumpLevels()
    return model_levels._replace(rank=rank, world=world)


def build_levels(fields: DumpLevels) -> tuple[str, ...]:
    """Return the directory levels below the dump path, outermost first. (assumption torchair.rank_directory)"""
    levels: list[object] = []
    if fields.rank is not None:
        levels.append(f"worldsize{fields.world}_global_rank{fields.rank}")
    if fields.exception:
        return (*map(str, levels), *EXCEPTION_DIRECTORY, str(fields.device))
    levels += [level for level in (fields.outer_step, fields.run, fields.device) if level is not None]
    if fields.model is not None:
        levels += [sanitize(fields.model), fields.model_id]
        levels += [] if fields.data_index is None else [fields.data_index]
    return (*map(str, levels), *fields.inner)


def _parse_exception(fields: list[str]) -> Optional[DumpName]:
    stamp = int(fields[-1])
    first, ids = fields[0], fields[1:-1]
    if len(fields) == 4 and first == "exception_info" and all(map(_is_id, ids)):
        return DumpName("brief", first, "", stamp, int(ids[1]), int(ids[0]))
    if fields[-2] == "custom":
        return DumpName("custom", ".".join(fields[:-2]), "", stamp)
    if len(fields) == 6 and _is_id(ids[0]) and _is_id(ids[1]) and _is_id(ids[3]):
        return DumpName("callback", first, "", stamp, int(ids[1]), int(ids[0]), core_type=ids[2], core_id=int(ids[3]))
    op_name = ".".join(ids[:-1])
    if not _is_id(ids[-1]) or not op_name:
        return None
    return DumpName("normal", first, op_name, stamp, int(ids[-1]))


def _parse_data(fields: list[str], statistics: bool) -> Optional[DumpName]:
    if len(fields) >= 8 and all(map(_is_id, fields[-3:])) and _is_stamp(fields[-5]):
        letters = fields[-4] == _FFTSPLUS_LETTERS
        if letters or (len(fields[-4]) == 1 and _is_digits(fields[-4])):
            name = _parse_plain(fields[:-4], statistics)
            if name is None or letters is not (name.form == "aclgraph"):
                return None
            context, thread, device = map(int, fields[-3:])
            task_type = FFTSPLUS if letters else int(fields[-4])
            return name._replace(task_type=task_type, context_id=context, thread_id=thread, device_id=device)
    return _parse_plain(fields, statistics)


def _parse_plain(fields: list[str], statistics: bool) -> Optional[DumpName]:
    if not _is_stamp(fields[-1]) or len(fields[-1]) == _LOCAL_STAMP:
        return None
    # Ids are counted from the right, because names of captured streams may contain dots and numbers.
    ids = 0
    while ids < 3 and len(fields) - ids > 3 and _is_id(fields[-2 - ids]):
        ids += 1
    stamp, numbers = int(fields[-1]), [int(text) for text in fields[len(fields) - 1 - ids : -1]]
    op_type, op_name = fields[0], ".".join(fields[1 : len(fields) - 1 - ids])
    if not op_type or not op_name:
        return None
    if ids == 3:
        number, task, stream = numbers
        return DumpName("aclgraph", op_type, op_name, stamp, task, stream, statistics, dump_number=number)
    if ids == 0 or "." in op_name:
        return None
    if ids == 2:
        return DumpName("device", op_type, op_name, stamp, numbers[0], numbers[1], statistics)
    return DumpName("old", op_type, op_name, stamp, numbers[0], None, statistics)


def _below_time(levels: Sequence[str]) -> DumpLevels:
    if not levels:
        return DumpLevels()
    if not _is_id(levels[0]):
        return DumpLevels(inner=tuple(levels))
    return _model_levels(levels) or DumpLevels(device=int(levels[0]), inner=tuple(levels[1:]))


def _model_levels(levels: Sequence[str]) -> Optional[DumpLevels]:
    """Return the fields of the levels [device] / model / model_id [/ data_index]; None if the levels are not these."""
    device = None
    if levels and _is_id(levels[0]):
        device, levels = int(levels[0]), levels[1:]
    if len(levels) not in (2, 3) or not all(map(_is_id, levels[1:])):
        return None
    model = levels[0]
    if _is_digits(model) or sanitize(model) != model:
        return None
    index = int(levels[2]) if len(levels) == 3 else None
    return DumpLevels(device=device, model=model, model_id=int(levels[1]), data_index=index)


def _rank_of(parts: Sequence[str]) -> tuple[Optional[int], Optional[int]]:
    for part in parts:
        if part.startswith("worldsize"):
            world, separator, rank = part[len("worldsize") :].partition("_global_rank")
            if separator and _is_id(world) and _is_id(rank):
                return int(rank), int(world)
    return None, None


def _is_digits(text: str) -> bool:
    # isascii too, because isdecimal accepts the digits of all scripts.
    return text.isdecimal() and text.isascii()


def _is_id(text: str) -> bool:
    return len(text) <= _LONGEST_ID and text.isdecimal() and text.isascii()


def _is_stamp(text: str) -> bool:
    return _SHORTEST_STAMP <= len(text) <= _LOCAL_STAMP and text.isdecimal() and text.isascii()
