"""Find the operator that overwrote the output of another one, in a dump of the watcher of GE.

The watcher dumps the output of a watched operator when that operator has run, and again after each
suspect, as `{suspect}_To_{watched}`. If two of these dumps differ, something has written to the
output that the data flow of the graph does not contain. Source: GE data_dumper (names), torchair's
user document (meaning).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.native.cann.names import sanitize

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.reading import Record

__all__ = ["Sighting", "Trample", "watch_outputs"]

#: Number of bytes that are compared at once, so that a large tensor is not copied as a whole.
_CHUNK = 1 << 24


class Trample(NamedTuple):
    """A change of an output that its own operator did not make.

    first     position of the first element that changed; before and after are its values
    elements, changed_bytes   number of changed elements and bytes
    since     the last suspect after which the output was still unchanged; None if that is its own operator
    """

    first: tuple[int, ...]
    before: Any
    after: Any
    elements: int
    changed_bytes: int
    since: Optional[str]


class Sighting(NamedTuple):
    """One look at a watched output after a suspect ran.

    layer, watched   the suspect and the watched operator, as in the file name
    record   the output at that time
    base     the output at the previous look; None if the watched operator had not run before
    trample  the change since then, None if there is none
    error    the error that prevented the comparison
    """

    layer: str
    watched: str
    record: Record
    base: Optional[Record] = None
    trample: Optional[Trample] = None
    error: Optional[Union[ReadError, NotSupported]] = None


def watch_outputs(records: Iterable[Record]) -> Iterator[Sighting]:
    """Compare every look of the watcher with the one before it.

    records: the records of a dump, in the order in which they were written. A change is reported once,
    at the first suspect after which it is seen, and not again at the suspects that run later.
    """
    latest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record.io != "output":
            continue
        pair = record.attrs.get("watch")
        name = sanitize(record.op_name) if pair is None else pair["watched"]
        graph = (record.run, record.rank, record.device, record.model, record.model_id, record.step)
        key = (*graph, record.op_type, name, record.index)
        if pair is not None:
            yield _look(pair["layer"], name, record, latest.get(key))
        if pair is None or key in latest:
            latest[key] = record


def _look(layer: str, watched: str, record: Record, base: Optional[Record]) -> Sighting:
    sighting = Sighting(layer, watched, record, base)
    if base is None:
        return sighting
    try:
        return sighting._replace(trample=_compare(base, record))
    except (ReadError, NotSupported) as error:
        return sighting._replace(error=error)


def _compare(base: Record, record: Record) -> Optional[Trample]:
    """Compare the bytes of two looks, and return the change; None if there is none.

    So an unchanged NaN is no change, but a zero that loses its sign is a change.
    """
    import numpy as np

    before, after = base.numpy(), record.numpy()
    if before.dtype != after.dtype or before.shape != after.shape:
        raise CorruptDump(
            f"it is {after.dtype}{list(after.shape)}, but {before.dtype}{list(before.shape)} in {base.path}",
            path=record.path,
            hint="these two are not looks at one output; capture again into an empty directory",
        )
    first, elements, changed = None, 0, 0
    for start, differs in _differences(before, after):
        hit = differs.any(axis=1)
        if first is None and hit.any():
            first = start + int(hit.argmax())
        elements += int(hit.sum())
        changed += int(differs.sum())
    if first is None:
        return None
    position = tuple(map(int, np.unravel_index(first, before.shape)))
    since = base.attrs.get("watch", {}).get("layer")
    return Trample(position, before.reshape(-1)[first], after.reshape(-1)[first], elements, changed, since)


def _differences(before: np.ndarray, after: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each chunk the index of its first element, and an array (element, byte) of bytes that differ."""
    import numpy as np

    if not before.size:
        return
    width = before.dtype.itemsize
    old, new = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, width) for array in (before, after))
    step = max(_CHUNK // width, 1)
    for start in range(0, len(old), step):
        yield start, old[start : start + step] != new[start : start + step]
