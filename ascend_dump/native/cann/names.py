"""File names and directory levels of a CANN dump: parse and build, without touching a file.

The device writes `{op_type}.{op_name}.{task}.{stream}.{us}` (aicpu_schedule dump_task). The host writes
`{op_type}.{op_name}.{dump_number}.{task}.{stream}.{us}` for captured streams (adump dump_stream_info), and names with a
local time of 17 digits for exceptions (adump exception_dumper). Only the device replaces dots and slashes in names of
operators.
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
#: The directory below the dump path; it has a directory with files for each device.
EXCEPTION_DIRECTORY = ("extra-info", "data-dump")
#: The number of the task type FFTSPLUS, and its name in files of the host.
FFTSPLUS = 4
_FFTSPLUS_LETTERS = "FFTSPLUS"

#: Microseconds since the epoch have at least 14 digits (15 since 1973, 16 until 2286); the local time of an exception
#: has 17.
_SHORTEST_STAMP = 14
_LOCAL_STAMP = 17
#: uint32 ids have at most 10 digits.
_LONGEST_ID = 10
_REPLACED = str.maketrans({" ": "_", ".": "_", "/": "_", "\\": "_"})
_WATCH = "_To_"
#: A set of letters and digits in a glob, which `sanitize` does not change.
_SET_WITHOUT_REPLACED = re.compile(r"!?(?:[0-9]-[0-9]|[a-z]-[a-z]|[A-Z]-[A-Z]|[^\W_])+")


#: The op type of a file of an eager operator, and the API name where opbase knows none (spelled so).
_EAGER_TYPE = re.compile(r"(aclnn\w+?|L2DfxAbscent)_(\d{1,20})(?:_(L[02]))?", re.ASCII)
_NO_API = "L2DfxAbscent"

#: The path of the directory of one step of a model below a dump path, which has the level of a rank where torchair
#: dumps; the last group is the number of the step.
#: (assumption torchair.levels)
STEP_DIRECTORY = re.compile(r"(?:worldsize\d+_global_rank\d+/)?\d{14}/\d{1,9}/[^/]+/\d{1,18}/(\d{1,18})", re.ASCII)


class DumpName(NamedTuple):
    """The fields of a file name.

    form       "device" (the usual one), "old" (no stream), "aclgraph" (a captured stream), or an
               exception: "brief", "normal", "callback", "custom"
    timestamp  microseconds since the epoch; for an exception the digits YYYYmmddHHMMSSmmm of local time, but
               microseconds too in CANN before about 2024-12
    task_type  4 for FFTS+; then context_id, thread_id and device_id are set
    dump_number  only in form "aclgraph"; core_type and core_id only in form "callback"
    statistics   the file is a statistics CSV
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
        """Return True if `timestamp` has the digits of a local time."""
        return len(str(self.timestamp)) == _LOCAL_STAMP

    @property
    def exception(self) -> bool:
        return self.form in ("brief", "normal", "callback", "custom")

    @property
    def overflow(self) -> bool:
        """Return True if the file is an overflow record; documents also spell it OpDebug.Node_Opdebug."""
        return self.op_type.lower() == "opdebug" and self.op_name.lower() == "node_opdebug"


class EagerName(NamedTuple):
    """The fields in the names of a file of an eager operator.

    api      the API call, such as "aclnnAdd"; the operator itself if opbase knows no API
    number   counts the API calls of the process, of all threads; inputs and outputs of a call have the same, but for
             generated operators
    kernel   the kernel of the file; None for the tensors of the API call, and for generated operators
    """

    api: str
    number: int
    kernel: Optional[str] = None
    generated: bool = False


def eager_name(name: DumpName) -> Optional[EagerName]:
    """Return the names of an eager operator; None for files of other operators.

    opbase writes `{api}_{number}_L2.{api}` for an API call and `{api}_{number}_L0.{kernel}` for each of its kernels
    (hicann/opbase aa3cd74, composite_op/aclnn_engine/op_dfx.cpp:815, 1131), and `L2DfxAbscent_{number}._L0{OpType}` for
    operators with a generated API (individual_op/executor/indv_dump.cpp:147). Each writes inputs and outputs apart
    (op_executor.cpp:987, common/inc/kernel_launcher.h:170), and both in one file only on overflow (op_dfx.cpp:1147) and
    for exceptions. A kernel's name is what the author of the operator called it.
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
    """Return a glob for sanitized names: it matches at least every name whose original matches `glob`."""
    out, position = "", 0
    while position < len(glob):
        char, end = glob[position], -1
        if char == "[":
            # As in fnmatch, a `]` directly after the beginning of a set is a member of the set.
            end = glob.find("]", position + (3 if glob[position + 1 : position + 2] == "!" else 2))
        if end > 0:
            chars = glob[position + 1 : end]
            out += f"[{chars}]" if _SET_WITHOUT_REPLACED.fullmatch(chars) else "?"
        else:
            out += "[[]" if char == "[" else sanitize(char)
        position = max(position, end) + 1
    return out


def parse_name(name: str) -> Optional[DumpName]:
    """Read a file name; None if CANN does not write such names.

    The name of a captured stream may contain slashes: give the path below the device's directory.

    (assumption cann.captured_name)
    (assumption cann.captured_characters)
    """
    statistics = name.endswith(".csv")
    fields = (name[:-4] if statistics else name).split(".")
    if len(fields) == 5 and len(fields[4]) < _LOCAL_STAMP:
        # The usual form first: a dump has up to millions of files.
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
    """Write a file name as CANN does: names are sanitized in the forms that the device writes.

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
    """Return the op name of a watcher file: the output of `watched` as it was after `layer` ran.

    (assumption cann.watch_name)
    """
    return f"{layer}{_WATCH}{watched}"


def watch_pairs(op_name: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs (layer, watched) that a name may mean; several if the name of an operator contains `_To_`."""
    position = op_name.find(_WATCH, 1)
    while position > 0:
        layer, watched = op_name[:position], op_name[position + len(_WATCH) :]
        if watched:
            yield layer, watched
        position = op_name.find(_WATCH, position + 1)


class DumpLevels(NamedTuple):
    """The fields of the directory levels above a file; None if there is no such level.

    run            `YYYYmmddHHMMSS`: when the dump was turned on
    data_index     the step as GE counts it
    outer_step     the training step; only in MindSpore's GE trees, above the level of the time
    rank, world    from `worldsize{N}_global_rank{R}`
    exception      the directory of exception dumps
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
    """Read the levels above a file, outermost first.

    inside: the number of the last levels that are below the directory that the user opened; None for all. Levels above
    that directory are used only from the level of the time on, because in a path such as `/data/3/0/` of the user the
    numbers mean something else.
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
    # Counted from the right, because names of captured streams may contain dots and numbers.
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
    """Read [device] / model / model_id [/ data_index]; None if the levels differ from that."""
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
    # isdecimal alone accepts the digits of other scripts.
    return text.isdecimal() and text.isascii()


def _is_id(text: str) -> bool:
    return len(text) <= _LONGEST_ID and text.isdecimal() and text.isascii()


def _is_stamp(text: str) -> bool:
    return _SHORTEST_STAMP <= len(text) <= _LOCAL_STAMP and text.isdecimal() and text.isascii()
