"""Follow NaN and Inf backwards, from what the user sees to the operator that made it.

A recording of `ascend-dump triage --run` contains a record for each tensor with NaN or Inf that the user sees, such as
the loss (`dump_format.SYMPTOM`). From there the search goes from each tensor to the operator that wrote its memory
last, as long as the inputs of that operator have NaN or Inf too. NaN and Inf that lead to no symptom count as harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import statistics_of
from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.nonfinite import CONSTANTS, executions, has_nan, is_nonfinite
from ascend_dump.analysis.operators.nonfinite_flow import memory_of_record
from ascend_dump.analysis.operators.properties import COLLECTIVES, VIEWS, operator_class
from ascend_dump.common.ignored import IgnoredOperators
from ascend_dump.dump_format import SYMPTOM, UNINITIALISED
from ascend_dump.reading import Dump, Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import is_additive_mask
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["SymptomSource", "Traced", "failed_operator", "is_ignored", "trace_symptoms"]

#: Symptoms in words.
_WORDS = {
    "loss": "the loss",
    "gradient": "the gradient",
    "parameter": "the parameter",
    "output": "the result of a top-level call",
    "read": "a number that the program reads",
    "skip": "the gradients that the scaler refuses",
    "raised": "an input of the operator that raises an exception",
}
#: Maximum number of operators that are named as possible makers of NaN that came by a write that was not recorded.
_MOST_POSSIBLE = 3
#: Maximum number of operators named on the way to a symptom.
_MOST_NAMED = 6
#: Maximum number of operators that may follow the failed one while the program ends.
_MOST_LATER = 4
#: Kinds of sources that may be masks of a correct program.
_MASKS = ("computed", "filled")
#: Operators that take in memory that was written outside of PyTorch.
_IMPORTS = frozenset(("set", "fromfile", "frombuffer"))


class SymptomSource(NamedTuple):
    """The end of a search: where NaN or Inf comes from.

    kind     "made": an operator makes it from finite inputs
             "nan-made": an operator makes NaN from inputs with Inf, but without NaN
             "filled": the program writes Inf as a constant or a mask
             "computed": an operator makes zeros and -Inf, which may be a mask too
             "parameter filled": the program writes Inf into a parameter
             "constant": the program passes NaN in, as in torch.tensor(...)
             "taken in": the operator takes in memory of another process or a file
             "uninitialised": the memory was never written
             "outside": it was there before the recording began, or something that is not recorded wrote it
    record   the first output of the operator with NaN or Inf; for "outside" the tensor that is read first
    parameter  the name of the parameter or buffer that it is written into, or read from; "" if it is none
    """

    kind: str
    record: Record
    parameter: str = ""

    @property
    def is_operator(self) -> bool:
        return self.kind in ("made", "nan-made", "parameter filled")

    @property
    def words(self) -> str:
        record = self.record
        owner = f"the parameter {self.parameter}" if self.parameter else f"input {record.index} of {record.op_name}"
        return {
            "made": "NaN or Inf of finite inputs",
            "nan-made": "NaN of inputs without NaN",
            "filled": "the program fills in Inf here",
            "computed": "-Inf of finite inputs",
            "parameter filled": f"the program writes Inf into the parameter {self.parameter} here",
            "constant": "the program passes NaN in here, from Python or numpy",
            "taken in": "data of another process, or of a file",
            "uninitialised": "its memory is allocated here, and was not written before it is read",
            "outside": f"{owner} has NaN or Inf from before the recording, or by an unrecorded write, as of numpy",
        }[self.kind]


class Traced(NamedTuple):
    """The source of the first symptom.

    symptom   the record that shows what the user sees
    source    where its NaN or Inf comes from
    path      the operators from the source to the symptom
    harmless  the operators that made NaN or Inf that reaches no symptom
    possible  operators from which it may come by a write that was not recorded, if the source is "outside"
    counts    False if the program only reads the symptom, and may expect NaN or Inf there
    """

    symptom: Record
    source: SymptomSource
    path: tuple[str, ...]
    harmless: tuple[Record, ...]
    counts: bool
    possible: tuple[Record, ...] = ()

    @property
    def reaches(self) -> str:
        """Return the symptom and the way to it as a sentence."""
        symptom = self.symptom
        name = f" {symptom.parameter}" if symptom.parameter else ""
        line = f", {symptom.source}" if symptom.source else ""
        between = [name for name in self.path if name != self.source.record.op_name]
        by = f", by {', '.join(_shortened(between))}" if between else ""
        names = [f"{one.op_name}{f', {one.source}' if one.source else ''}" for one in self.possible[:_MOST_POSSIBLE]]
        unseen = f"; it may come from {' or '.join(names)} by a write that was not recorded" if names else ""
        return f"it reaches {_WORDS[_kind(symptom)]}{name} in step {symptom.step}{line}{by}{unseen}"


@dataclass(eq=False)
class _Node:
    """An operator with NaN or Inf in an input or output, or a symptom."""

    position: int
    first: Record
    inputs: list[tuple[Record, Statistics]] = field(default_factory=list)
    outputs: list[tuple[Record, Statistics]] = field(default_factory=list)


def trace_symptoms(
    dump: Dump, *, trains: bool, skips_count: bool = False, ignored: Optional[IgnoredOperators] = None
) -> Optional[Traced]:
    """Return the source of the first symptom in a dump; None if it has no symptoms.

    trains       the program has losses, and all of them are finite unless a symptom says otherwise
    skips_count  gradients that a scaler refuses are a symptom
    ignored      operators whose NaN and Inf is known; a symptom that comes from them alone does not count
    """
    ignored = ignored or IgnoredOperators(())
    numbers_last = any(run.scene == "overflow" for run in dump.runs())
    graphs = [_Graph(records, numbers_last=numbers_last) for records in _ranks(dump)]
    by_rank = [_of_rank(graph, trains, skips_count, ignored) for graph in graphs]
    traced = [one for one in by_rank if one is not None]
    if not traced:
        return None
    harmless = tuple(record for one in traced for record in one.harmless)
    first = min(traced, key=_order)
    possible: tuple[Record, ...] = ()
    if first.source.kind == "outside":
        possible = tuple(record for record in harmless if _is_before(record, first.source.record))
        harmless = tuple(record for record in harmless if record not in possible)
    return first._replace(harmless=harmless, possible=possible)


def _is_before(record: Record, reader: Record) -> bool:
    """Return True for an operator that ran on the same rank in the same step before another one."""
    order = [(one.rank, one.step) for one in (record, reader)]
    return order[0] == order[1] and (record.timestamp or 0) < (reader.timestamp or 0)


def is_ignored(record: Record, ignored: IgnoredOperators) -> bool:
    """Return True for an operator whose NaN and Inf is known."""
    return ignored.selects(op_name=record.op_name, op_type=record.op_type, module=record.module, source=record.source)


def failed_operator(dump: Dump) -> Sequence[Record]:
    """Return the inputs of the operator whose exception ended the program; empty if it is not recorded.

    If more than a few operators follow the exception, the program has handled it, and nothing is returned.
    """
    failed: Sequence[Record] = ()
    later = 0
    last: Sequence[Record] = ()
    for members in executions(dump):
        if members[0].op_type == f"{SYMPTOM}raised":
            failed, later = (last if last[0].op_name == members[0].attrs.get("argument") else failed), 0
        else:
            later += 1
            last = members
    return failed if later <= _MOST_LATER else ()


def _ranks(dump: Dump) -> Iterator[Dump]:
    for rank in sorted(dump.known_values("rank"), key=str):
        yield dump if rank is None else dump.select(rank=rank)


def _order(traced: Traced) -> tuple[Any, ...]:
    """Return the sort key: operators first; collectives come last, because they bring results of other ranks."""
    source = traced.source
    is_brought = source.record.op_type.startswith(COLLECTIVES)
    return (
        not traced.counts,
        not source.is_operator or is_brought,
        source.record.step or 0,
        source.record.timestamp or 0,
    )


def _of_rank(graph: _Graph, trains: bool, skips_count: bool, ignored: IgnoredOperators) -> Optional[Traced]:
    symptoms = [node for node in graph.symptoms if skips_count or _kind(node.first) != "skip"]
    every = [(node, _Search(graph, ignored).of(node)) for node in sorted(symptoms, key=_weight)]
    searches = [(node, search) for node, search in every if not search.is_ignored]
    if not searches:
        return None
    counting = [pair for pair in searches if _counts(*pair, trains)]
    reached = {id(node) for _, search in counting for node in search.visited}
    harmless = tuple(
        record for node, record in graph.makers() if id(node) not in reached and not is_ignored(record, ignored)
    )
    from_operators = [pair for pair in counting if pair[1].source.is_operator]
    symptom, search = (from_operators or counting or searches)[0]
    return Traced(symptom.first, search.source, search.path(), harmless, bool(counting))


def _weight(symptom: _Node) -> tuple[int, int, int]:
    """Return the sort key. Results of calls are sorted from the last step on, which may have no loss after them."""
    kind = _kind(symptom.first)
    number = {"skip": 1, "output": 2, "read": 3}.get(kind, 0)
    return number, -(symptom.first.step or 0) if kind == "output" else 0, symptom.position


def _counts(symptom: _Node, search: _Search, trains: bool) -> bool:
    """Return False for numbers that the program only reads: Inf that it wrote itself, or metrics beside a loss."""
    if _kind(symptom.first) not in ("output", "read"):
        return True
    if search.is_of_constants:
        return False
    if _kind(symptom.first) == "output" or not trains:
        return True
    return any(node.first.module or "loss" in node.first.op_type for node in search.visited)


def _shortened(names: Sequence[str]) -> Sequence[str]:
    """Return the names; if there are many, the inner ones are replaced by "…"."""
    half = _MOST_NAMED // 2
    return names if len(names) <= _MOST_NAMED else [*names[:half], "…", *names[-half:]]


def _kind(symptom: Record) -> str:
    return symptom.op_type.removeprefix(SYMPTOM)


class _Graph:
    """The operators of one rank with NaN or Inf, and the memory that they wrote it to.

    numbers_last  a dump of the scene "overflow": storages have the same numbers in all steps, and masks are left out
    """

    def __init__(self, records: Iterable[Record], *, numbers_last: bool) -> None:
        self.numbers_last = numbers_last
        self.nodes: list[_Node] = []
        #: By the step and the number of a storage: the output of the operator that allocated it and wrote nothing.
        self.unwritten: dict[tuple[Any, ...], Record] = {}
        self.symptoms: list[_Node] = []
        #: The names of parameters and buffers by the addresses of their storages.
        self._of_parameters: dict[int, str] = {}
        #: By the address of a storage: the byte ranges with NaN or Inf, its number, and the operators that wrote them.
        self._written: dict[int, list[tuple[int, int, Optional[int], _Node]]] = {}
        for position, members in enumerate(executions(records)):
            node = _Node(position, members[0])
            for record in members:
                statistics = statistics_of(record)
                self._note_parameter(record)
                if record.io == "output" and record.attrs.get("skipped") == UNINITIALISED:
                    self.unwritten.setdefault((record.step, record.attrs.get("storage")), record)
                if statistics is not None and is_nonfinite(statistics):
                    (node.inputs if record.io == "input" else node.outputs).append((record, statistics))
            if members[0].op_type.startswith(SYMPTOM):
                self.symptoms += [node] if node.inputs else []
            elif node.outputs:
                self.nodes.append(node)
                if not _is_view(node):
                    self._note_writes(node)

    def _note_parameter(self, record: Record) -> None:
        memory = memory_of_record(record) if record.parameter and not record.parameter.endswith(".grad") else None
        if memory is not None:
            self._of_parameters.setdefault(memory[0], record.parameter or "")

    def parameter_of(self, record: Record) -> str:
        """Return the name of the parameter or buffer that a tensor is, or is a view of; "" if it is none."""
        memory = memory_of_record(record)
        return record.parameter or ("" if memory is None else self._of_parameters.get(memory[0], ""))

    def _note_writes(self, node: _Node) -> None:
        for record, _ in node.outputs:
            memory = memory_of_record(record)
            if memory is not None:
                address, begin, end = memory
                self._written.setdefault(address, []).append((begin, end, record.attrs.get("storage"), node))

    def writer(self, record: Record, reader: _Node) -> Optional[_Node]:
        """Return the last operator before `reader` that wrote NaN or Inf to the memory of a tensor."""
        memory = memory_of_record(record)
        if memory is None:
            return None
        address, begin, end = memory
        number = record.attrs.get("storage")
        for low, high, written, node in reversed(self._written.get(address, ())):
            overlaps = node.position < reader.position and low < end and begin < high
            has_number = self.numbers_last or node.first.step == reader.first.step
            if overlaps and (written == number or not has_number):
                return node
        return None

    def makers(self) -> Iterator[tuple[_Node, Record]]:
        """Yield the operators that made NaN or Inf of finite inputs, apart from masks and constants."""
        for node in self.nodes:
            if not node.inputs and not _is_view(node) and _source_of(node).is_operator:
                yield node, node.outputs[0][0]


class _Search:
    """A search backwards from one symptom.

    source   the earliest operator that made NaN or Inf; else the other source that it came from
    visited  all operators on the way
    is_of_constants  True if it comes from Inf that the program writes itself
    is_ignored       True if it comes from ignored operators alone
    """

    def __init__(self, graph: _Graph, ignored: IgnoredOperators) -> None:
        self._graph = graph
        self._ignored = ignored
        self.is_ignored = False
        self._sources: dict[_Node, list[tuple[int, SymptomSource]]] = {}
        self.source: SymptomSource
        self.is_of_constants = False

    @property
    def visited(self) -> Iterable[_Node]:
        return self._sources

    def of(self, symptom: _Node) -> _Search:
        every = [pair for record, _ in symptom.inputs for pair in self._behind(record, symptom)]
        found = [pair for pair in every if not is_ignored(pair[1].record, self._ignored)]
        self.is_ignored = bool(every) and not found
        # Operators first, then sources outside of the recording; a constant or mask last.
        found.sort(key=lambda pair: (not pair[1].is_operator, pair[1].kind == "filled", pair[0]))
        self.source = found[0][1] if found else SymptomSource("outside", symptom.first, symptom.first.parameter or "")
        makers = [node for node in self._sources if not node.inputs]
        self.is_of_constants = bool(makers) and all(_source_of(node).kind in _MASKS for node in makers)
        return self

    def path(self) -> tuple[str, ...]:
        nodes = [node for node, sources in self._sources.items() if any(s == self.source for _, s in sources)]
        ordered = sorted(nodes, key=lambda node: node.position)
        return tuple(node.first.op_name for node in ordered)

    def _from_outside(self, record: Record, reader: _Node) -> tuple[int, SymptomSource]:
        """Return the source of a tensor that no recorded operator wrote. The tensor may be a mask of the module."""
        unwritten = self._graph.unwritten.get((record.step, record.attrs.get("storage")))
        if unwritten is not None:
            return reader.position, SymptomSource("uninitialised", unwritten)
        statistics = statistics_of(record)
        is_mask = statistics is not None and not has_nan(statistics)
        if is_mask and (record.parameter or not self._graph.numbers_last):
            is_mask = statistics is not None and is_additive_mask(statistics)
        return reader.position, SymptomSource(
            "filled" if is_mask else "outside", record, self._graph.parameter_of(record)
        )

    def _behind(self, record: Record, reader: _Node) -> list[tuple[int, SymptomSource]]:
        writer = self._graph.writer(record, reader)
        if writer is None:
            return [self._from_outside(record, reader)]
        return self._as_read(record, self._of_operator(writer))

    def _as_read(self, record: Record, sources: list[tuple[int, SymptomSource]]) -> list[tuple[int, SymptomSource]]:
        """Return the sources of a tensor that is read.

        Inf that the program filled in is "parameter filled" if the tensor is a parameter and does not look like a mask.
        """
        statistics = statistics_of(record)
        is_filled = any(source.kind == "filled" for _, source in sources)
        if not is_filled or statistics is None or has_nan(statistics) or is_additive_mask(statistics):
            return sources
        name = self._graph.parameter_of(record)
        if not name:
            return sources
        return [
            (position, SymptomSource("parameter filled", source.record, name) if source.kind == "filled" else source)
            for position, source in sources
        ]

    def _of_operator(self, start: _Node) -> list[tuple[int, SymptomSource]]:
        """Return the sources of an operator's NaN or Inf. Without recursion: a backward pass has long chains."""
        stack = [start]
        while stack:
            node = stack[-1]
            if node in self._sources:
                stack.pop()
                continue
            read = [(record, self._graph.writer(record, node)) for record, _ in _carried(node)]
            unknown = [writer for _, writer in read if writer is not None and writer not in self._sources]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            sources = [
                source
                for record, writer in read
                for source in (
                    self._as_read(record, self._sources[writer]) if writer else [self._from_outside(record, node)]
                )
            ]
            if name_in_rules(node.first.op_type) in CONSTANTS:
                sources = [(node.position, _source_of(node))]
            self._sources[node] = _with_own(node, list(dict.fromkeys(sources)))
        return self._sources[start]


def _carried(node: _Node) -> Sequence[tuple[Record, Statistics]]:
    """Return the inputs that explain NaN or Inf in the outputs.

    If an output has NaN, only inputs with NaN explain it. If no input has NaN, inputs with Inf do.
    """
    if any(has_nan(statistics) for _, statistics in node.outputs):
        return [pair for pair in node.inputs if has_nan(pair[1])] or node.inputs
    return node.inputs


def _with_own(node: _Node, sources: list[tuple[int, SymptomSource]]) -> list[tuple[int, SymptomSource]]:
    """Return the operator itself as the source if its inputs do not explain its outputs; else `sources`.

    sources: the sources of the inputs
    """
    if not node.inputs:
        return [(node.position, _source_of(node))]
    makes_nan = any(has_nan(statistics) for _, statistics in node.outputs)
    if not makes_nan or any(has_nan(statistics) for _, statistics in node.inputs):
        return sources
    # The operator makes NaN from Inf. If an earlier operator overflowed, that operator is the source. If the Inf comes
    # from a mask, the operator itself is the source.
    if any(source.is_operator or source.kind == "outside" for _, source in sources):
        return sources
    record = next(record for record, statistics in node.outputs if has_nan(statistics))
    return [(node.position, SymptomSource("nan-made", record))]


def _source_of(node: _Node) -> SymptomSource:
    """Return the source for an operator that has NaN or Inf in its outputs, but not in its inputs."""
    record = node.outputs[0][0]
    name = name_in_rules(node.first.op_type)
    if name in _IMPORTS:
        return SymptomSource("taken in", record)
    if not any(has_nan(statistics) for _, statistics in node.outputs):
        if name in FILLING or name in CONSTANTS:
            return SymptomSource("filled", record)
        if all(is_additive_mask(statistics) for _, statistics in node.outputs):
            return SymptomSource("computed", record)
    return SymptomSource("constant" if name in CONSTANTS else "made", record)


def _is_view(node: _Node) -> bool:
    """Return True if the outputs are views of the inputs, so that nothing was written."""
    if operator_class(node.first.op_type) not in VIEWS or not node.inputs:
        return False
    places = [{memory[0] for memory in map(memory_of_record, side) if memory} for side in _records(node)]
    return not places[0].isdisjoint(places[1])


def _records(node: _Node) -> tuple[list[Record], list[Record]]:
    return [record for record, _ in node.inputs], [record for record, _ in node.outputs]
