"""The session of a reference capture on the host: selects runs, numbers their steps, and writes their records."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump import AscendDumpError, CaptureError, WriteError
from ascend_dump.adapter import (
    DumpRequest,
    RunDirectory,
    Session,
    Tally,
    add_private_directory,
    remove_tree,
    tell_of_empty,
    text_matcher,
)
from ascend_dump.writing import HostRun, HostWriter, Item, SizeLimit, size_limit
from ascend_dump_tensorflow import _debugger, _hook
from ascend_dump_tensorflow._arrays import RecordedTensor, line_of
from ascend_dump_tensorflow._bridge import kind_of
from ascend_dump_tensorflow._eager import EagerRecorder
from ascend_dump_tensorflow._host_config import Marked, claims, quiet
from ascend_dump_tensorflow._runs import replace_runs

__all__ = ["HostSession"]

log = logging.getLogger("ascend_dump")


class HostSession(Session):
    """A running capture, started by `TensorflowAdapter.start`.

    Each signature of `session.run` (fetches, targets and feeds) is a model with its own step count, as in GE. Eager
    operators outside of sessions are one model, `eager`, whose steps begin with `cap.step()`.
    """

    def __init__(self, request: DumpRequest, target: Any, run: RunDirectory) -> None:
        import tensorflow

        self.failure: Optional[AscendDumpError] = None
        self.request = request
        self._target = target
        self._armed = True
        self._launched = run.launched
        #: True once `trigger` was called: nothing is recorded after the open steps.
        self._ends_after_step = False
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []
        self._writers: dict[Any, HostWriter] = {}
        self._steps: dict[Any, int] = {}
        #: Numbers of the captured sessions. Their ids are not used, because an id may be reused.
        self._sessions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._local = threading.local()
        self._runs = self._recorded = 0
        self._ran: set[str] = set()
        matchers = [text_matcher(layer) for layer in request.layers]
        self._selects: Callable[[str], bool] = lambda name: not matchers or any(matches(name) for matches in matchers)
        self._inputs = request.mode in ("input", "all")
        self._outputs = request.mode in ("output", "all")
        self._run = HostRun(run, request=request.to_mapping(), versions={"tensorflow": str(tensorflow.__version__)})
        self.root = run.path
        self._limit = size_limit(request, run)
        self._eager: Optional[EagerRecorder] = None
        try:
            self._arm(target, tensorflow, run.launched)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the capture and finish the files. A second call does nothing."""
        if not self._armed:
            return
        self._armed = False
        if os.getpid() != self._process:
            # In a forked child the writer's threads and files belong to the parent.
            for writer in self._writers.values():
                writer.abandon()
            return
        undo, self._undo = self._undo, []
        for back in reversed(undo):
            back()
        if self._eager is not None:
            self._eager.end_step()
        with self._lock:
            for writer in self._writers.values():
                writer.close()
                self.failure = self.failure or writer.failure
        eager = self._writers.get("eager")
        if eager is not None and eager.records and self.failure is None:
            tell_of_empty("step", *eager.empty_steps)
        try:
            seen = max(self._steps.values(), default=self._recorded)
            tally = self.tally()._asdict()
            self._run.finish([*self._writers.values()], self.failure, steps_seen=seen, tally=tally)
        except AscendDumpError as error:
            self.failure = self.failure or error

    def flush(self) -> None:
        with self._lock:
            for writer in self._writers.values():
                writer.flush()

    def tally(self) -> Tally:
        limit = None if self._limit is None or not self._limit.by_default else self._limit.nbytes
        return Tally.of_all(writer.tally() for writer in self._writers.values())._replace(limit=limit)

    def trigger(self, reason: str) -> None:
        """Keep the open steps and earlier steps, and record nothing after them. The first reason is kept."""
        self._ends_after_step = True
        with self._lock:
            for writer in self._writers.values():
                writer.end(reason)

    def reasons(self) -> Optional[list[str]]:
        reasons = []
        if self._eager is None and not self._runs:
            reasons.append(
                {
                    "process": "no session that was created in the block ran anything",
                    "session": "the target, a session, ran nothing in the block",
                }.get(kind_of(self._target), "no session that was created from the target in the block ran anything")
            )
        elif not self._recorded and not self.request.steps.all:
            reasons.append(f"steps={self.request.steps} was not reached; each signature of a run counts from 0")
        if self.request.layers and self._ran:
            names = ", ".join(sorted(self._ran)[:5])
            reasons.append(f"no operator has a name that layers= selects; there were {names}")
        return reasons

    # Selecting sessions and steps.

    def _arm(self, target: Any, tensorflow: Any, launched: bool) -> None:
        kind = kind_of(target)
        if kind == "session":
            self._sessions[target] = next(self._numbers)
        elif kind != "process":
            marked = Marked(target, str(self.root))
            self._undo.append(marked.restore)
        _hook.watch(self)
        self._undo.append(lambda: _hook.unwatch(self))
        self._undo.append(replace_runs(self))
        # For a launched program the recorder is created in `step`, if the program runs eagerly.
        if kind == "process" and tensorflow.executing_eagerly() and not launched:
            self._eager = self._eager_recorder()

    def _eager_recorder(self) -> EagerRecorder:
        return EagerRecorder(self._selects, self._inputs, self._outputs, self._failed)

    def configure(self, config: Any) -> Any:
        self._local.taken = False
        if self._target is not None and not claims(config, str(self.root)):
            return config
        if kind_of(self._target) == "session":
            return config
        self._local.taken = True
        return quiet(config, off=not self.request.options.get("optimize", False))

    def created(self, session: Any) -> None:
        if getattr(self._local, "taken", False):
            self._sessions[session] = next(self._numbers)

    def claims(self, session: Any) -> bool:
        mine = self._armed and os.getpid() == self._process
        return mine and session in self._sessions and not getattr(self._local, "inside", False)

    def step(self, number: Optional[int]) -> None:
        """End the open step of eager operators, and begin another step if it is selected.

        Raises CaptureError if the capture records sessions, which count their own steps.
        """
        if self._eager is None and self._launched and not self._runs:
            self._eager = self._eager_recorder()
        if self._eager is None or not self._armed:
            raise CaptureError(
                "step() was called on a capture of sessions, which count their own steps", hint="leave cap.step() out"
            )
        writer = self._writers.get("eager")
        self._eager.end_step()
        if writer is not None:
            writer.end_step()
        if number is None or not self.selects_step(number):
            return
        if writer is None:
            writer = self._writer("eager", "eager")
        writer.begin_step(number)
        self._recorded += 1
        self._eager.begin_step(writer)

    # One run.

    def run(
        self, session: Any, plain: Callable[..., Any], fetches: Any, feeds: Any, options: Any, metadata: Any
    ) -> Any:
        fed = sorted(map(repr, map(_signature, feeds or ())))
        key = (self._sessions.get(session), _signature(fetches), tuple(fed))
        with self._lock:
            number = self._steps.get(key, 0)
            self._steps[key] = number + 1
            self._runs += 1
        if not self.selects_step(number):
            return plain(fetches, feeds, options, metadata)
        directory = None
        try:
            directory = self.root / f".tfdbg-{secrets.token_hex(8)}"
            add_private_directory(directory)
            ours, watched = self._watched(session.graph, options, directory)
        except Exception as error:
            self._give_up(error, directory)
            return plain(fetches, feeds, options, metadata)
        self._local.inside = True
        try:
            result = plain(fetches, feeds, ours, watched)
        except BaseException:
            remove_tree(directory)
            raise
        finally:
            self._local.inside = False
        if metadata is not None:
            metadata.CopyFrom(watched)
            if options is None or not options.output_partition_graphs:
                metadata.ClearField("partition_graphs")
        try:
            tensors, names = _debugger.read(directory, watched, self._selects, self._inputs, self._outputs)
            self._ran |= names
            self._write(key, _name(fetches), number, tensors)
        except Exception as error:
            self._give_up(error, None)
        finally:
            remove_tree(directory)
        return result

    def _watched(self, graph: Any, options: Any, directory: Path) -> tuple[Any, Any]:
        from tensorflow.core.protobuf import config_pb2

        ours = config_pb2.RunOptions()
        if options is not None:
            ours.CopyFrom(options)
        _debugger.watch(ours, graph, directory, self._selects if self.request.layers else None, self._inputs)
        return ours, config_pb2.RunMetadata()

    def _write(self, key: Any, name: str, number: int, tensors: list[RecordedTensor]) -> None:
        with self._lock:
            if not self._armed:
                return
            writer = self._writers.get(key)
            if writer is None:
                writer = self._writer(key, f"run{len(self._writers)}_{name}")
            writer.begin_step(number)
            write_operators(writer, tensors)
            writer.end_step()
            self._recorded += 1

    def _writer(self, key: Any, model: str) -> HostWriter:
        remaining = None
        if self._limit is not None:
            used = sum(writer.tensor_bytes for writer in self._writers.values())
            remaining = SizeLimit(max(1, self._limit.nbytes - used), self._limit.by_default)
        directory = self._run.directory(0, model)
        self._writers[key] = HostWriter.of_request(self.request, directory, remaining, framework="tensorflow")
        return self._writers[key]

    @property
    def is_over(self) -> bool:
        writers = list(self._writers.values())
        limit = self._limit
        full = limit is not None and sum(writer.tensor_bytes for writer in writers) >= limit.nbytes
        over = any(writer.failure is not None or writer.ended is not None for writer in writers)
        return self._ends_after_step or self.failure is not None or full or over

    def _give_up(self, error: Exception, directory: Optional[Path]) -> None:
        """Report an error once, and record nothing from now on. The program continues."""
        if directory is not None:
            remove_tree(directory)
        if self.failure is None:
            if not isinstance(error, AscendDumpError):
                error = WriteError(f"a run could not be recorded: {error!r}", hint="nothing more is captured")
            self.failure = error
            error.reported = True
            log.warning("%s", error)
            log.debug("recording a run failed", exc_info=True)

    def _failed(self, error: Exception) -> None:
        self._give_up(error, None)


def write_operators(writer: HostWriter, tensors: list[RecordedTensor]) -> None:
    """Pass the tensors to the writer, and number the operators in the order of the tensors."""
    seq = -1
    last: Any = None
    counted: set[int] = set()
    for tensor in tensors:
        now = (tensor.op_name, tensor.time)
        if now != last:
            seq, last = seq + 1, now
        new = 0 if id(tensor.payload) in counted else tensor.payload.nbytes
        counted.add(id(tensor.payload))
        writer.put([Item(line_of(tensor, seq), tensor.payload)], new)


def _signature(fetches: Any) -> Any:
    """Return the signature of fetches or feeds: the names of all items, in the structure of the argument."""
    if isinstance(fetches, (str, bytes)):
        return fetches
    if isinstance(fetches, dict):
        return tuple((str(key), _signature(value)) for key, value in fetches.items())
    if isinstance(fetches, (list, tuple)):
        return tuple(_signature(item) for item in fetches)
    name = getattr(fetches, "name", None)
    return name if isinstance(name, str) else repr(type(fetches))


def _name(fetches: Any) -> str:
    """Return the name of the first fetched item, which becomes part of the name of the model's directory."""
    signature = _signature(fetches)
    while isinstance(signature, tuple):
        signature = next((part for part in signature if part), "")
    text = signature.decode() if isinstance(signature, bytes) else str(signature)
    return os.path.basename(text.partition(":")[0]) or "run"
