"""`tf.estimator` of the stand-in for TensorFlow: a training and an evaluation loop around a model function.

Checkpoints are `model.ckpt-<step>.npz` in model_dir, the latest one is restored. Saving and restoring run through the
session, as TensorFlow's do.
"""

from __future__ import annotations

import copy
import inspect
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.fakes import _tf_session
from ascend_dump.fakes._tf_data import next_elements
from ascend_dump.fakes._tf_graph import Graph
from ascend_dump.fakes._tf_variables import FUNCTIONS as VARIABLES
from ascend_dump.fakes._tf_variables import global_step

__all__ = ["Estimator", "EstimatorSpec", "ModeKeys", "RunConfig", "SessionRunArgs", "SessionRunHook"]

_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.npz")


class ModeKeys:
    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class EstimatorSpec(NamedTuple):
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Optional[Mapping[str, tuple[Any, Any]]] = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


class SessionRunArgs(NamedTuple):
    fetches: Any
    feed_dict: Any = None
    options: Any = None


class SessionRunValues(NamedTuple):
    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext(NamedTuple):
    original_args: SessionRunArgs
    session: Any


class SessionRunHook:
    """What a program may hang into the loop."""

    def begin(self) -> None:
        """Before the graph is finalised."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Once, before the first run."""

    def before_run(self, run_context: Any) -> Any:
        """Before each run; may ask for more with SessionRunArgs."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """After each run."""

    def end(self, session: Any) -> None:
        """At the end of the loop."""


class RunConfig:
    """`tf.estimator.RunConfig`. Raises ValueError for both ways of saving at once."""

    def __init__(
        self,
        model_dir: Optional[str] = None,
        tf_random_seed: Optional[int] = None,
        save_summary_steps: int = 100,
        save_checkpoints_steps: Optional[int] = None,
        save_checkpoints_secs: Optional[int] = None,
        session_config: Any = None,
        keep_checkpoint_max: int = 5,
        keep_checkpoint_every_n_hours: int = 10000,
        log_step_count_steps: Optional[int] = 100,
        train_distribute: Any = None,
        **others: Any,
    ) -> None:
        if save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError("Can not provide both save_checkpoints_steps and save_checkpoints_secs.")
        self._model_dir = model_dir
        self._tf_random_seed = tf_random_seed
        self._session_config = session_config
        self._save_checkpoints_steps = save_checkpoints_steps
        self._save_checkpoints_secs = save_checkpoints_secs
        self._train_distribute = train_distribute

    @property
    def model_dir(self) -> Optional[str]:
        return self._model_dir

    @property
    def session_config(self) -> Any:
        return self._session_config

    @property
    def tf_random_seed(self) -> Optional[int]:
        return self._tf_random_seed

    @property
    def save_checkpoints_steps(self) -> Optional[int]:
        return self._save_checkpoints_steps

    @property
    def save_checkpoints_secs(self) -> Optional[int]:
        return self._save_checkpoints_secs

    def replace(self, **changes: Any) -> Any:
        """A copy with other values. Raises ValueError for what cannot be replaced."""
        made = copy.copy(self)
        for name, value in changes.items():
            if not hasattr(self, f"_{name}"):
                raise ValueError(f"Replacing {name} is not supported.")
            setattr(made, f"_{name}", value)
        return made


class Estimator:
    """`tf.estimator.Estimator`."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Optional[str] = None,
        config: Any = None,
        params: Optional[Mapping[str, Any]] = None,
        warm_start_from: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of `RunConfig`, but provided {config!r}.")
        self._config = RunConfig() if config is None else config
        self._model_dir = model_dir or self._config.model_dir or tempfile.mkdtemp()
        self._model_fn = model_fn
        self._params = dict(params or {})

    @property
    def model_dir(self) -> str:
        return self._model_dir

    @property
    def config(self) -> Any:
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._params)

    def latest_checkpoint(self) -> Optional[str]:
        """The path without its suffix, as TensorFlow's checkpoints of several files are named."""
        found = [path for path in Path(self._model_dir).glob("*.npz") if _CHECKPOINT.fullmatch(path.name)]
        return str(max(found, key=_number).with_suffix("")) if found else None

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Optional[Iterable[Any]] = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """Until `steps` more are done, `max_steps` are reached, or the data ends."""
        graph = self._graph()
        with graph.as_default():
            step = global_step()
            assert step is not None, "it is made where it is missing"
            spec, start = self._build(input_fn, ModeKeys.TRAIN)
            used = [*(hooks or ()), *(spec.training_hooks or ())]
            with self._session(graph, used, start) as session:
                done = int(session.run(step.value()))
                last = None if steps is None and max_steps is None else done + steps if steps is not None else max_steps
                while last is None or done < last:
                    try:
                        values = _run(session, {"loss": spec.loss, "train": spec.train_op, "step": step}, used)
                    except _tf_session.OutOfRangeError:
                        break
                    done = int(values["step"]) if int(values["step"]) > done else done + 1
                self._save(session, graph)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: Optional[int] = None,
        hooks: Optional[Iterable[Any]] = None,
        checkpoint_path: Optional[str] = None,
        name: Optional[str] = None,
    ) -> dict[str, Any]:
        """The mean loss, the metrics, and the global step."""
        import numpy as np

        graph = self._graph()
        with graph.as_default():
            step = global_step()
            assert step is not None, "it is made where it is missing"
            spec, start = self._build(input_fn, ModeKeys.EVAL)
            metrics = dict(spec.eval_metric_ops or {})
            used = [*(hooks or ()), *(spec.evaluation_hooks or ())]
            losses: list[Any] = []
            with self._session(graph, used, start, checkpoint_path) as session:
                while steps is None or len(losses) < steps:
                    updates = {key: update for key, (_, update) in metrics.items()}
                    try:
                        losses.append(_run(session, {"loss": spec.loss, "updates": updates}, used)["loss"])
                    except _tf_session.OutOfRangeError:
                        break
                found = {key: session.run(value) for key, (value, _) in metrics.items()}
                return {**found, "loss": np.mean(losses, dtype=np.float32), "global_step": session.run(step.value())}

    def predict(
        self, input_fn: Callable[..., Any], hooks: Optional[Iterable[Any]] = None, **ignored: Any
    ) -> Iterable[Any]:
        """One prediction after the other."""
        graph = self._graph()
        with graph.as_default():
            global_step()
            spec, start = self._build(input_fn, ModeKeys.PREDICT)
            used = [*(hooks or ()), *(spec.prediction_hooks or ())]
            with self._session(graph, used, start) as session:
                while True:
                    try:
                        found = _run(session, spec.predictions, used)
                    except _tf_session.OutOfRangeError:
                        return
                    if isinstance(found, Mapping):
                        rows = zip(*found.values())
                        yield from (dict(zip(found, row)) for row in rows)
                    else:
                        yield from found

    def _graph(self) -> Graph:
        graph = Graph()
        graph.seed = self._config.tf_random_seed or 1
        return graph

    def _build(self, input_fn: Callable[..., Any], mode: str) -> tuple[EstimatorSpec, Any]:
        wanted = {"mode": mode, "params": self._params, "config": self._config}
        given = inspect.signature(input_fn).parameters
        elements, start = next_elements(input_fn(**{key: value for key, value in wanted.items() if key in given}))
        features, labels = elements if isinstance(elements, (tuple, list)) and len(elements) == 2 else (elements, None)
        wanted["labels"] = labels
        given = inspect.signature(self._model_fn).parameters
        return self._model_fn(features, **{key: value for key, value in wanted.items() if key in given}), start

    def _session(self, graph: Graph, hooks: Iterable[Any], start: Any, checkpoint: Optional[str] = None) -> Any:
        for hook in hooks:
            hook.begin()
        init, local = VARIABLES["global_variables_initializer"](), VARIABLES["local_variables_initializer"]()
        graph.finalize()
        session = _tf_session.Session(graph=graph, config=self._config.session_config)
        latest = checkpoint or self.latest_checkpoint()
        session.run(init)
        if latest is not None:
            _restore(session, graph, latest)
        session.run(local)
        if start is not None:
            session.run(start)
        for hook in hooks:
            hook.after_create_session(session, None)
        return _Ended(session, hooks)

    def _save(self, session: Any, graph: Graph) -> None:
        import numpy as np

        values = session.run({each.op.name: each.value() for each in graph.get_collection("variables")})
        Path(self._model_dir).mkdir(parents=True, exist_ok=True)
        np.savez(Path(self._model_dir, f"model.ckpt-{int(values['global_step'])}.npz"), **values)


class _Ended:
    """Ends the hooks and closes the session behind a loop."""

    def __init__(self, session: Any, hooks: Iterable[Any]) -> None:
        self._session = session
        self._hooks = hooks

    def __enter__(self) -> Any:
        return self._session

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            for hook in self._hooks:
                hook.end(self._session)
        self._session.close()


def _run(session: Any, fetches: Any, hooks: Iterable[Any]) -> Any:
    context = SessionRunContext(SessionRunArgs(fetches), session)
    asked = [(hook, hook.before_run(context)) for hook in hooks]
    more = {str(at): args.fetches for at, (_, args) in enumerate(asked) if args is not None}
    found = session.run({"own": fetches, "hooks": more})
    for at, (hook, _) in enumerate(asked):
        hook.after_run(context, SessionRunValues(found["hooks"].get(str(at))))
    return found["own"]


def _restore(session: Any, graph: Graph, path: str) -> None:
    """Values go in by feeding each variable's Assign, because the graph is finalised."""
    import numpy as np

    with np.load(f"{path}.npz", allow_pickle=False) as stored:
        known = {name: stored[name] for name in stored.files}
    for each in graph.get_collection("variables"):
        if each.op.name in known:
            session.run(each.initializer, {each.initial_value: known[each.op.name]})


def _number(path: Path) -> int:
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else -1
