"""A comparison of many ranks on an executor: each rank returns a table of its pairs, and records are looked up later.

A row is one pair: the positions of its records as (rank, step, number among the records of that rank and step), and the
verdict. A step that is identical on both sides is one row. The last row of a rank contains everything else, such as
the origins, as JSON. The numbers of a pair are MessagePack: as JSON, writing them took 4 % of a comparison of small
tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from ascend_dump.analysis.alignment.ranks_and_steps import Key
from ascend_dump.analysis.explaining.pairs import EqualLater, EqualStep, PairsLater
from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair, Rebuilt
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.reading import Batch, Dump, Record

if TYPE_CHECKING:
    import polars

    from ascend_dump.analysis.ranks import RankTask

__all__ = ["CountedBatch", "RankResult", "result_of", "table_of", "tasks_of"]

#: Rank, step and number of a record; None for a side without one.
_Position = Optional[tuple[Optional[int], Optional[int], int]]
_PAIR_FIELDS = ("how", "confidence", "verdict", "reason", "transformation", "explained", "undefined")


class RankResult(NamedTuple):
    """The results of one rank, its parts step by step.

    inside     numbers of operators of actual and of the reference, as in `CrossFrameworkPairs`
    left_out   likewise
    are_parts  several ranks of one side were compared with one rank of the other
    mapped     names of operators of actual that were paired because the user mapped them
    rebuilt    parts that are built differently and agree
    aligned    sentences on the rows of a batch, or on the tokens, that were compared
    omitted    for tokens: the number of tensors that were not compared, by the reason
    """

    parts: list[Sequence[Pair]]
    origins: list[Origin]
    changed: list[ChangedCall]
    inside: tuple[int, int]
    left_out: tuple[int, int]
    crossings: list[Crossing]
    are_parts: bool
    mapped: list[str]
    rebuilt: list[Rebuilt]
    aligned: tuple[str, ...] = ()
    omitted: Mapping[str, int] = {}


class CountedBatch(Batch):
    """A batch that notes the position of each record that it creates.

    key     rank and step
    first   number of records of this rank and step before this batch
    positions  by the identity of a record: the record (to keep it alive) and its position
    """

    __slots__ = ("_batch", "_first", "_positions", "key")

    def __init__(self, batch: Batch, key: Key, first: int, positions: dict[int, tuple[Record, _Position]]) -> None:
        super().__init__((), batch.rank, batch.step)
        self._batch = batch
        self.key = key
        self._first = first
        self._positions = positions

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[Record]:
        for number, record in enumerate(self._batch, self._first):
            self._positions[id(record)] = record, (*self.key, number)
            yield record

    def identities(self) -> Iterable[Any]:
        return self._batch.identities()


def tasks_of(
    dumps: Sequence[Dump], ranks: Sequence[int], settings: Sequence[Any], arguments: tuple[Any, ...]
) -> list[RankTask]:
    """Return one task per rank, with the state of its files. arguments: the arguments of a task before the rank."""
    from ascend_dump.analysis.ranks.rank_tasks import RankTask

    tasks = []
    for rank in ranks:
        states = [dump.select(rank=rank).state() for dump in dumps]
        tasks.append(RankTask(f"rank-{rank}", repr((states, settings)), (*arguments, rank)))
    return tasks


def table_of(result: RankResult, positions: Mapping[int, tuple[Record, _Position]]) -> polars.DataFrame:
    """Return the results of one rank as a table, in which positions stand for records."""
    import polars as pl

    def position(record: Optional[Record]) -> Sequence[Optional[int]]:
        return _NO_POSITION if record is None else positions[id(record.original)][1] or _NO_POSITION

    def cells(pair: Pair) -> list[Any]:
        return [*position(pair.actual), *position(pair.reference), *fields_of(pair)]

    pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode
    fields_of = attrgetter(*_PAIR_FIELDS)

    rows: list[list[Any]] = []
    for number, part in enumerate(result.parts):
        if isinstance(part, EqualStep):
            keys = [_key(side) for side in part.sides]
            rows.append([number, len(part), "", *keys[0], None, *keys[1], None, *[None] * (len(_PAIR_FIELDS) + 1)])
        else:
            for pair in part:
                numbers = None if pair.measure is None else pack(pair.measure)
                rows.append([number, None, "", *cells(pair), numbers])
    origins = [
        [
            origin.kind,
            [*cells(origin.pair), origin.pair.measure],
            origin.evidence,
            origin.explains,
            origin.first_seen,
            origin.next,
        ]
        for origin in result.origins
    ]
    changed = [
        [[*cells(origin.pair), origin.pair.measure], origin.arguments, origin.others] for origin in result.changed
    ]
    counts = (result.inside, result.left_out)
    program = (result.crossings, result.are_parts, result.mapped, result.rebuilt)
    summary = json.dumps([origins, changed, counts, *program], default=_plain)
    rows.append([None, None, summary, *[None] * (len(_schema()) - 3)])
    return pl.DataFrame(rows, schema=_schema(), orient="row")


_NO_POSITION: tuple[None, None, None] = (None, None, None)


def _key(batches: Sequence[Batch]) -> Key:
    [key] = {(batch.rank, batch.step) for batch in batches}
    return key


def _plain(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    return value.item()


def _schema() -> dict[str, Any]:
    import polars as pl

    numbers = [f"{side}_{name}" for side in ("actual", "reference") for name in ("rank", "step", "number")]
    types = {"confidence": pl.Float64, "explained": pl.Boolean}
    return {
        "part": pl.Int64,
        "equal": pl.Int64,
        "more": pl.String,
        **dict.fromkeys(numbers, pl.Int64),
        **{name: types.get(name, pl.String) for name in _PAIR_FIELDS},
        "measure": pl.Binary,
    }


class _Lookup:
    """Finds the records of both sides by rank, step and number when a pair is accessed."""

    def __init__(self, dumps: Sequence[Dump], batches: Callable[[Dump], Mapping[Key, Sequence[Batch]]]) -> None:
        self._dumps = dumps
        self._batches = batches
        self._records: dict[tuple[int, Key], list[Record]] = {}

    def batches(self, side: int, key: Key) -> Sequence[Batch]:
        rank, step = key
        return self._batches(self._dumps[side].select(rank=rank, step=step)).get(key, [])

    def record(self, side: int, position: Sequence[Optional[int]]) -> Optional[Record]:
        rank, step, number = position
        if number is None:
            return None
        key = (side, (rank, step))
        records = self._records.get(key)
        if records is None:
            records = self._records[key] = [record for batch in self.batches(*key) for record in batch]
        return records[number]

    def pair(self, row: Sequence[Any]) -> Pair:
        measured = None
        values = msgspec.msgpack.decode(row[-1]) if isinstance(row[-1], bytes) else row[-1]
        if values is not None:
            numbers: Any = (tuple(value) if isinstance(value, list) else value for value in values)
            measured = Measure(*numbers)
        fields = dict(zip(_PAIR_FIELDS, row[6:-1]))
        return Pair(self.record(0, row[:3]), self.record(1, row[3:6]), measure=measured, **fields)


def result_of(
    table: polars.DataFrame, dumps: Sequence[Dump], batches: Callable[[Dump], Mapping[Key, Sequence[Batch]]]
) -> RankResult:
    """Read the table of a rank; records are read when their pair is accessed."""
    lookup = _Lookup(dumps, batches)
    parts: list[Sequence[Pair]] = []
    for rows in table.filter(table["part"].is_not_null()).partition_by("part", maintain_order=True):
        parts.append(_equal(rows, lookup) if rows["equal"][0] is not None else _later(rows, lookup))
    [summary] = table.filter(table["part"].is_null())["more"]
    origins, changed, (inside, left_out), crossings, are_parts, mapped, rebuilt = json.loads(summary)
    return RankResult(
        parts,
        [
            Origin(kind, lookup.pair(pair), tuple(evidence), explains, first_seen, _next(settings))
            for kind, pair, evidence, explains, first_seen, settings in origins
        ],
        [ChangedCall(lookup.pair(pair), tuple(arguments), count) for pair, arguments, count in changed],
        (inside[0], inside[1]),
        (left_out[0], left_out[1]),
        [Crossing(*crossing) for crossing in crossings],
        are_parts,
        mapped,
        [Rebuilt(*part) for part in rebuilt],
    )


def _next(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _equal(rows: polars.DataFrame, lookup: _Lookup) -> EqualLater:
    row = rows.row(0)
    keys: list[Key] = [(row[3], row[4]), (row[6], row[7])]
    return EqualLater(row[1], lambda: (lookup.batches(0, keys[0]), lookup.batches(1, keys[1])))


def _later(rows: polars.DataFrame, lookup: _Lookup) -> PairsLater:
    return PairsLater(rows["verdict"].to_list(), lambda: [lookup.pair(row[3:]) for row in rows.iter_rows()])
