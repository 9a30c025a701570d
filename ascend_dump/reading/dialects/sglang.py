"""Dialect `sglang`: dumps of SGLang's dumper (also used with Megatron), and of SGLang's older forward hook.

    {experiment}/step={s}___rank={r}___dump_index={n}___name={name}[___recompute_status=…][___{context}={value}…].pt
    TP{t}_PP{p}_Rank{r}_pid{pid}/Pass{n}.pt

Sources: SGLang, `srt/debug_utils/dumper.py` (file names `_format_tags`, contents `_dump_single`, names of hooks
`_NonIntrusiveDumper`); for the hook, published descriptions of its files, which are dictionaries from module to tensor
or list. Not tested with dumps of a running SGLang. For readers:

- `op_name` is the name that the program passed to the dumper, with the context in the file name (`x[layer_id=3]`).
  Files named `non_intrusive__…` are inputs and outputs of modules. Files named `grad__…` are gradients; their phase is
  "backward".
- Records are sorted by the dump index. If a name of a module occurs again in a step, a new run of the module begins.
- `run` is the name of the directory, if that is `dump_{time}`. The dumper creates such a directory at each start unless
  the user sets another name.
- A file of the dumper contains one value, and a file of the hook many. Tensors are read; other values are only listed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._pt_items import items_as_records

__all__ = ["DIALECT"]

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_HOOK = re.compile(r"(?:(.+)\.)?(inputs|output)(?:\.(.+))?")
_PROCESS = re.compile(r"TP(\d{1,9})_PP(\d{1,9})_Rank(\d{1,9})_pid\d+", re.ASCII)
_PASS = re.compile(r"Pass(\d{5,18})\.pt", re.ASCII)
_KNOWN = ("step", "rank", "dump_index", "name", "recompute_status")


class _Tags(NamedTuple):
    """The fields of a file name of the dumper.

    number          the dump index
    context_values  the other fields, such as `layer_id` and `recompute_status`
    """

    step: Optional[int]
    rank: Optional[int]
    number: int
    name: str
    context_values: dict[str, str]

    @classmethod
    def of(cls, file: str) -> Optional[_Tags]:
        if not file.endswith(".pt") or "dump_index=" not in file:
            return None
        tags: dict[str, str] = {}
        last = ""
        for part in file[: -len(".pt")].split("___"):
            key, separator, value = part.partition("=")
            if separator:
                tags[key], last = value, key
            elif last:  # a part of a value that contains the separator
                tags[last] += f"___{part}"
        index = tags.get("dump_index", "")
        if not tags.get("name") or not _NUMBER.fullmatch(index):
            return None
        step, rank = (int(tags[key]) if _NUMBER.fullmatch(tags.get(key, "")) else None for key in ("step", "rank"))
        context = {key: value for key, value in tags.items() if key not in ("step", "rank", "dump_index", "name")}
        return cls(step, rank, int(index), tags["name"], context)

    @property
    def context(self) -> str:
        listed = (f"{key}={value}" for key, value in self.context_values.items() if key not in _KNOWN)
        return f"[{','.join(listed)}]" if self.context_values.keys() - {*_KNOWN} else ""


class _Runs:
    """A counter of the runs of an operator in a step: a tensor that the current run already has begins the next run."""

    def __init__(self) -> None:
        self._number = 0
        self._seen: set[tuple[str, str]] = set()

    def number_for(self, tags: _Tags) -> int:
        tensor = (tags.name, tags.context)
        if tensor in self._seen:
            self._number += 1
            self._seen.clear()
        self._seen.add(tensor)
        return self._number


class _SglangDialect:
    name = "sglang"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        process = _PROCESS.fullmatch(directory.parts[-1]) if directory.parts else None
        if process is not None:
            passes = {name: parsed for name in directory.names for parsed in (_PASS.fullmatch(name),) if parsed}
            return [_HookedPass(directory, name, process, int(parsed[1])) for name, parsed in passes.items()], {*passes}
        tags = [(parsed, name) for name in directory.names for parsed in (_Tags.of(name),) if parsed is not None]
        tags.sort(key=lambda pair: (pair[0].number, pair[1]))
        run = directory.parts[-1] if directory.parts and directory.parts[-1].startswith("dump_") else None
        counts: dict[tuple[Any, ...], _Runs] = defaultdict(_Runs)
        entries: list[Entry] = []
        for parsed, name in tags:
            runs = counts[parsed.step, parsed.rank, _parsed_name(parsed)["op_name"]]
            entries.append(_DumpedValue(directory, name, parsed, run, runs.number_for(parsed)))
        return entries, {name for _, name in tags}


DIALECT = _SglangDialect()


class _DumpedValue(Entry):
    """A file of the dumper, which contains one value."""

    __slots__ = ("_nth", "_tags")

    def __init__(self, directory: Directory, file: str, tags: _Tags, run: Optional[str], nth: int) -> None:
        fields: dict[str, Any] = {"step": tags.step, "rank": tags.rank, "run": run}
        super().__init__(directory.path / file, op_name=tags.name, order=tags.number, **fields)
        self._tags, self._nth = tags, nth

    def records(self) -> Iterator[Record]:
        tags = self._tags
        fields: dict[str, Any] = {
            "step": tags.step,
            "rank": tags.rank,
            "run": self.run,
            "nth": self._nth,
            "io": "output",
            "attrs": {"dump_index": tags.number, **tags.context_values},
            **_parsed_name(tags),
        }
        yield from items_as_records(self.path, fields, lambda keys: _fields(keys, fields["index"]))


def _parsed_name(tags: _Tags) -> dict[str, Any]:
    """Return the fields of a record that are in the name: operator, module, io, index and phase."""
    name = tags.name
    if name.startswith("non_intrusive__"):
        hook = _HOOK.fullmatch(name[len("non_intrusive__") :])
        if hook is not None:
            module, side, path = hook.groups()
            first = (path or "").partition(".")[0]
            return {
                "op_name": module or "model",
                "module": module or "",
                "io": "input" if side == "inputs" else "output",
                "index": int(first) if _NUMBER.fullmatch(first) else 0,
                "phase": "forward",
            }
    phase = "backward" if name.startswith("grad__") else None
    return {"op_name": name + tags.context, "index": 0, "phase": phase}


def _fields(keys: tuple[str, ...], index: int) -> Optional[dict[str, Any]]:
    """Return the fields for a value in a file; None for metadata.

    keys: the path of the value in the file's content, `{"value": …, "meta": …}`. An older file contains the value alone
    """
    if keys[:1] == ("meta",):
        return None
    inner = keys[1:] if keys[:1] == ("value",) else keys
    number = int(inner[0]) if inner and _NUMBER.fullmatch(inner[0]) else 0
    return {"index": index + number, "attrs": {"argument": ".".join(inner)} if inner else {}}


class _HookedPass(Entry):
    """A file of the hook, with the outputs of all modules in one forward pass."""

    __slots__ = ("_parallel",)

    def __init__(self, directory: Directory, file: str, process: re.Match[str], number: int) -> None:
        super().__init__(directory.path / file, step=number, rank=int(process[3]))
        self._parallel = {"tp_rank": int(process[1]), "pp_rank": int(process[2])}

    def records(self) -> Iterator[Record]:
        fields = {"step": self.step, "rank": self.rank, "io": "output", "phase": "forward", "attrs": self._parallel}
        yield from items_as_records(self.path, fields, _of_module)


def _of_module(keys: tuple[str, ...]) -> Optional[dict[str, Any]]:
    if not keys:
        return None
    number = int(keys[1]) if len(keys) > 1 and _NUMBER.fullmatch(keys[1]) else 0
    return {"op_name": keys[0], "module": keys[0], "index": number}
