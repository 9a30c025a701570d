"""Hashes and statistics of several tensors side by side, on threads that the program has already.

Threads of our own would take CPUs from the operators, whose threads wait busily for the next one.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import xxhash

from ascend_dump.analysis._statistics_engine import dtype_named
from ascend_dump.analysis._statistics_layout import layout_of
from ascend_dump.analysis._statistics_merge import combine
from ascend_dump.analysis.statistics import Statistics, statistics

__all__ = ["Memory", "Team"]

log = logging.getLogger("ascend_dump")

#: Several threads scan a part each of a larger tensor.
_PART_BYTES = 2 << 20

#: Address and size of bytes, and the same bytes for Python, which keeps them where they are.
Memory = tuple[int, int, Any]
#: Where a structure of two 64-bit integers is returned in two registers, as `_statistics_jobs` expects it.
_TWO_REGISTERS = frozenset(("x86_64", "aarch64"))

_CallsInParallel = Callable[[int, int], None]


class _Compiled(NamedTuple):
    work: int
    hash: int
    kinds: dict[str, int]
    hash_kind: int
    result: int
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

    def hash(self, memory: Sequence[Memory]) -> list[bytes]:
        """The digests of xxh3-128, as `xxhash.xxh3_128_digest` gives them."""
        assert self._compiled is not None, "the team is not ready"
        return _hash(self._compiled, self._parallel, memory)

    def statistics(self, memory: Sequence[Memory], dtypes: Sequence[np.dtype[Any]]) -> list[Optional[Statistics]]:
        """What `statistics` gives for each; None for a dtype that it has to be asked about itself."""
        assert self._compiled is not None, "the team is not ready"
        return _scan(self._compiled, self._parallel, memory, dtypes)


def _compile() -> _Compiled:
    if platform.machine() not in _TWO_REGISTERS:
        raise RuntimeError(f"how C functions return a hash on {platform.machine()} is not known here")
    from ascend_dump.analysis import _statistics_jobs as jobs

    native: Any = vars(xxhash)["_xxhash"]
    library = ctypes.PyDLL(native.__file__)
    # Builds for x86 have one that uses the vectors of the CPU it runs on, which takes half the time.
    function = getattr(library, "XXH3_128bits_dispatch", None) or library.XXH3_128bits
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    kinds = {name: kind for kind, name in enumerate(jobs.FLOATS)}
    return _Compiled(jobs.work.address, address, kinds, jobs.HASH, jobs.RESULT, (library, jobs))


def _try(compiled: _Compiled) -> None:
    """Raise RuntimeError unless everything agrees with the functions it stands for."""

    def call(function: int, argument: int) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(function)(argument)

    # Small integers: each of the types holds them, and their sums are exact in any order.
    dtypes = [dtype_named(name) for name in compiled.kinds]
    samples = [(np.arange(size) % 200 - 100).astype(dtype) for size in (1, 20, 100, 5000) for dtype in dtypes]
    memory = [(sample.ctypes.data, sample.nbytes, sample) for sample in samples]
    if _hash(compiled, call, memory) != [xxhash.xxh3_128_digest(sample.tobytes()) for sample in samples]:
        raise RuntimeError("XXH3_128bits gives something else than xxhash.xxh3_128_digest")
    if _scan(compiled, call, memory, [sample.dtype for sample in samples]) != [statistics(one) for one in samples]:
        raise RuntimeError("the compiled jobs give something else than statistics()")


def _hash(compiled: _Compiled, parallel: _CallsInParallel, memory: Sequence[Memory]) -> list[bytes]:
    # The largest first, so that no thread begins with it when the others end.
    order = sorted(range(len(memory)), key=lambda i: -memory[i][1])
    found = _run(compiled, parallel, [(compiled.hash_kind, *memory[i][:2]) for i in order])
    digests = [b""] * len(memory)
    # The low half comes first; a digest is written from its high end.
    halves = np.ascontiguousarray(found.view(np.uint64)[:, 1::-1]).astype(">u8").tobytes()
    for row, i in enumerate(order):
        digests[i] = halves[16 * row : 16 * row + 16]
    return digests


def _scan(
    compiled: _Compiled, parallel: _CallsInParallel, memory: Sequence[Memory], dtypes: Sequence[np.dtype[Any]]
) -> list[Optional[Statistics]]:
    jobs: list[tuple[int, int, int]] = []
    rows: list[Optional[range]] = []
    for (address, nbytes, _), dtype in zip(memory, dtypes):
        kind = compiled.kinds.get(dtype.name) if dtype.isnative else None
        if kind is None or not nbytes or address % dtype.itemsize:
            rows.append(None)
            continue
        first, size = len(jobs), dtype.itemsize
        jobs += [
            (kind, address + begin, min(_PART_BYTES, nbytes - begin) // size) for begin in range(0, nbytes, _PART_BYTES)
        ]
        rows.append(range(first, len(jobs)))
    found = _run(compiled, parallel, jobs).tolist() if jobs else []
    return [
        None if part is None else combine(np.frombuffer(data, dtype), layout_of(dtype), [found[i] for i in part])
        for part, (_, _, data), dtype in zip(rows, memory, dtypes)
    ]


def _run(compiled: _Compiled, parallel: _CallsInParallel, jobs: list[tuple[int, int, int]]) -> np.ndarray:
    todo = np.array(jobs, dtype=np.int64)
    results = np.empty((len(jobs), compiled.result))
    head = np.array([0, len(jobs), compiled.hash, todo.ctypes.data, results.ctypes.data], dtype=np.int64)
    parallel(compiled.work, head.ctypes.data)
    return results
