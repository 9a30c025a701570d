"""Hashes and statistics of several tensors side by side, on threads that the program has already.

Threads of our own would take CPUs from the operators, whose threads wait busily for the next one.
"""

from __future__ import annotations

import ctypes
import logging
import math
import platform
import threading
from array import array
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import xxhash

from ascend_dump.statistics._engine import dtype_named
from ascend_dump.statistics._layout import layout_of
from ascend_dump.statistics._merge import combine
from ascend_dump.statistics._statistics import Statistics, statistics

__all__ = ["Measured", "Memory", "Team"]

log = logging.getLogger("ascend_dump")

#: Address and size of bytes, which stay there until all is done, and what gives them to Python.
Memory = tuple[int, int, Callable[[], Any]]
#: Where a structure of two 64-bit integers is returned in two registers, as `_statistics_jobs` expects it.
_TWO_REGISTERS = frozenset(("x86_64", "aarch64"))

#: Bytes of a tensor above which others scan its parts while one thread hashes it.
_LARGE = 16 << 20

_CallsInParallel = Callable[[int, int], None]
#: Raises what it is given. It takes over the references, as `PyErr_Fetch` gives them.
_raise = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3)(("PyErr_Restore", ctypes.pythonapi))


class _Compiled(NamedTuple):
    work: int
    #: Addresses of functions of xxhash.
    functions: tuple[int, ...]
    kinds: dict[str, int]
    hash_kind: int
    part: int
    job: int
    row: int
    unusual: int
    meanwhile: int
    raised: int
    #: What owns the code at these addresses.
    owners: tuple[Any, ...]


#: What `prepare` found to work in this process.
_proven: Optional[_Compiled] = None


class Team:
    """Run jobs on the threads behind `parallel`; `ready` where `prepare` has run before in this process.

    parallel: calls the C function at the first address with the second argument, a 64-bit integer, on as many threads
              as it likes at once, and returns when all of them have
    """

    def __init__(self, parallel: _CallsInParallel) -> None:
        self._parallel = parallel
        self._compiled = _proven

    @property
    def ready(self) -> bool:
        return self._compiled is not None

    def prepare(self) -> None:
        """Compile what the threads run and try it on this one. Where that fails, `ready` stays False and a debug
        message says why: numba is not installed, or this build of xxhash hides its C function."""
        global _proven
        try:
            compiled = _compile()
            _try(compiled)
            self._compiled = _proven = compiled
        except Exception as error:  # whatever a compiler, its cache or a foreign library may raise
            log.debug("tensors are hashed and scanned one after the other: %r", error)

    def measure(
        self,
        memory: Sequence[Memory],
        dtypes: Sequence[Optional[np.dtype[Any]]],
        *,
        hashes: bool = True,
        meanwhile: Optional[Callable[[], None]] = None,
    ) -> Measured:
        """Hash memory, unless told not to, and scan what has a dtype that there are jobs for. Call it on one thread.

        Both takes little longer than the hashes alone: the bytes come from memory once.

        meanwhile: called here, once, while other threads begin. What it raises is raised when all is done.
        """
        assert self._compiled is not None, "the team is not ready"
        return _measure(self._compiled, self._parallel, memory, dtypes, hashes=hashes, meanwhile=meanwhile)


def _let_go() -> Any:
    raise RuntimeError("memory is read again after it was let go")


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Measured:
    """What the jobs left: a row for the hash of each tensor, and then one for each part of those that were scanned.

    The memory is not needed any more.
    """

    def __init__(
        self,
        memory: Sequence[Memory],
        dtypes: Sequence[Optional[np.dtype[Any]]],
        found: array[float],
        rows: Sequence[range],
        row: int,
        unusual: bool,
    ) -> None:
        self._sizes = [nbytes for _, nbytes, _ in memory]
        self._dtypes = dtypes
        self._found = found
        self._rows = rows
        self._row = row
        #: Where some memory may have to be read again.
        self._known: dict[int, Statistics] = {}
        if unusual:
            self._known = {i: self._combine(i, data) for i, (_, _, data) in enumerate(memory) if rows[i]}

    def digests(self) -> list[bytes]:
        """The xxh3-128 of each, as `xxhash.xxh3_128_digest` gives it."""
        found = self._found[: self._row * len(self._sizes)].tobytes()
        return [found[begin : begin + 16] for begin in range(0, len(found), 8 * self._row)]

    def has_statistics(self, i: int) -> bool:
        """Whether one of them was scanned."""
        return bool(self._rows[i])

    def statistics(self, i: int) -> Statistics:
        """What `statistics` gives for one that was scanned."""
        return self._known.get(i) or self._combine(i, _let_go)

    def _combine(self, i: int, data: Callable[[], Any]) -> Statistics:
        dtype, size = self._dtypes[i], self._row
        assert dtype is not None, "only what has a type is scanned"
        partials = [self._found[size * row : size * (row + 1)].tolist() for row in self._rows[i]]
        return combine(
            self._sizes[i] // dtype.itemsize, layout_of(dtype), partials, lambda: np.frombuffer(data(), dtype)
        )


def _compile() -> _Compiled:
    if platform.machine() not in _TWO_REGISTERS:
        raise RuntimeError(f"how C functions return a hash on {platform.machine()} is not known here")
    from ascend_dump.statistics import _jobs as jobs

    native: Any = vars(xxhash)["_xxhash"]
    library = ctypes.PyDLL(native.__file__)
    # What Python's numbers of threads are, where there is one.
    functions = [_address(ctypes.PyDLL(None).pthread_self)]
    functions += (_address(getattr(ctypes.pythonapi, name)) for name in jobs.PYTHON)
    for names in jobs.FUNCTIONS:
        function = next(filter(None, (getattr(library, name, None) for name in names)), None)
        if function is None:
            raise RuntimeError(f"this build of xxhash hides {names[-1]}")
        functions.append(_address(function))
    if ctypes.CFUNCTYPE(ctypes.c_int64)(functions[0])() != threading.get_ident():
        raise RuntimeError("pthread_self gives something else than threading.get_ident")
    kinds = {name: kind for kind, name in enumerate(jobs.FLOATS)}
    return _Compiled(
        jobs.work.address,
        tuple(functions),
        kinds,
        jobs.HASH,
        jobs.PART,
        jobs.JOB,
        jobs.ROW,
        jobs.UNUSUAL,
        jobs.MEANWHILE,
        jobs.RAISED,
        (library, jobs),
    )


def _try(compiled: _Compiled) -> None:
    """Raise RuntimeError unless everything agrees with the functions it stands for."""

    def call(function: int, argument: int) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(function)(argument)

    # Small integers: each of the types holds them, and their sums are exact in any order.
    sizes = (1, 20, 100, 5000, compiled.part)
    dtypes = [dtype_named(name) for name in compiled.kinds]
    samples = [(np.arange(size) % 200 - 100).astype(dtype) for size in sizes for dtype in dtypes]
    memory = [(sample.ctypes.data, sample.nbytes, sample.tobytes) for sample in samples]
    digests = [xxhash.xxh3_128_digest(sample.tobytes()) for sample in samples]
    both = _measure(compiled, call, memory, [sample.dtype for sample in samples])
    if digests != both.digests() or digests != _measure(compiled, call, memory, [None] * len(memory)).digests():
        raise RuntimeError("XXH3_128bits gives something else than xxhash.xxh3_128_digest")
    if any(both.statistics(i) != statistics(sample) for i, sample in enumerate(samples)):
        raise RuntimeError("the compiled jobs give something else than statistics()")


def _measure(
    compiled: _Compiled,
    parallel: _CallsInParallel,
    memory: Sequence[Memory],
    dtypes: Sequence[Optional[np.dtype[Any]]],
    *,
    hashes: bool = True,
    meanwhile: Optional[Callable[[], None]] = None,
) -> Measured:
    part, hash_kind = compiled.part, compiled.hash_kind
    jobs: list[int] = []
    rows = [range(0)] * len(memory)
    row = len(memory)
    # The largest first, so that no thread begins with it when the others end.
    for i in sorted(range(len(memory)), key=[-nbytes for _, nbytes, _ in memory].__getitem__):
        address, nbytes, _ = memory[i]
        dtype = dtypes[i]
        kind = None
        if dtype is not None and dtype.isnative and nbytes and address % dtype.itemsize == 0:
            kind = compiled.kinds.get(dtype.name)
        if kind is not None:
            rows[i] = range(row, row + math.ceil(nbytes / part))
        at_once = hashes and kind is not None and nbytes <= _LARGE
        if hashes:
            jobs += (hash_kind + 1 + kind if kind is not None and at_once else hash_kind, address, nbytes, i, row)
        if kind is not None and not at_once:
            for one, begin in zip(rows[i], range(0, nbytes, part)):
                jobs += (kind, address + begin, min(part, nbytes - begin), i, one)
        row += len(rows[i])
    todo = array("q", jobs)
    found = array("d", bytes(8 * compiled.row * row))
    unusual = False
    if jobs:
        places = (0, todo.buffer_info()[0], found.buffer_info()[0])
        first = (0 if meanwhile is None else id(meanwhile), 0, 0, 0, threading.get_ident())
        head = array("q", (0, len(jobs) // compiled.job, *places, *first, *compiled.functions))
        parallel(compiled.work, head.buffer_info()[0])
        unusual = bool(head[compiled.unusual])
        if head[compiled.raised]:
            _raise(*head[compiled.raised : compiled.raised + 3])
        if not head[compiled.meanwhile]:
            meanwhile = None
    if meanwhile is not None:
        meanwhile()
    return Measured(memory, dtypes, found, rows, compiled.row, unusual)
