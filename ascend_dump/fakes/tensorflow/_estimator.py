"""`tf.estimator` of the fake TensorFlow: loops for training, evaluation and prediction with a model function.

Checkpoints are files `model.ckpt-<step>.npz` in model_dir. They are written before the first step, at the intervals of
the RunConfig, and at the end of training. Each loop begins with the latest one. As in TensorFlow, variables are saved
and restored by runs of the session.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from ascend_dump.fakes.tensorflow import _session
from ascend_dump.fakes.tensorflow._data import next_elements
from ascend_dump.fakes.tensorflow._estimator_settings import EstimatorSpec, ModeKeys, RunConfig
from ascend_dump.fakes.tensorflow._graph import Graph
from ascend_dump.fakes.tensorflow._hooks import run_with_hooks
from ascend_dump.fakes.tensorflow._variables import FUNCTIONS as VARIABLES
from ascend_dump.fakes.tensorflow._variables import global_step, refuse_options

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "RunConfig",
]

_LOG = logging.getLogger("tensorflow")
_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "self", "config")
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.npz")


class NanLossDuringTrainingError(RuntimeError):
    def __str__(self) -> str:
        return "NaN loss during training."


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
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        _verify_arguments(model_fn, params)
        if config is not None and not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of `RunConfig`, but provided {config!r}.")
        refuse_options("Estimator", {"warm_start_from": warm_start_from})
        self._config: Any = RunConfig() if config is None else config
        config_dir = self.config.model_dir
        if model_dir and config_dir and model_dir != config_dir:
            raise ValueError(
                "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
                f"In constructor: '{model_dir}', in `RunConfig`: '{config_dir}' "
            )
        self._model_dir = model_dir or config_dir or tempfile.mkdtemp()
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
        """Return the path of the latest checkpoint without its suffix, None if there is none.

        TensorFlow's path has no suffix either, because its checkpoints consist of several files.
        """
        checkpoints = [path for path in Path(self._model_dir).glob("*.npz") if _CHECKPOINT.fullmatch(path.name)]
        return str(max(checkpoints, key=_number).with_suffix("")) if checkpoints else None

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the latest checkpoint. Raises ValueError if there is none."""
        return sorted(self._latest())

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the latest checkpoint. Raises ValueError if there is no checkpoint."""
        return self._latest()[name]

    def _latest(self) -> dict[str, Any]:
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError("Estimator is not trained yet")
        return _stored(path)

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Optional[Iterable[Any]] = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """Train for `steps` steps, or until the step counter reaches `max_steps`; without both, without a limit.

        The end of the data, or a hook, can end the training earlier. Raises NanLossDuringTrainingError, and
        NotSupported for `saving_listeners`.
        """
        refuse_options("Estimator.train", {"saving_listeners": saving_listeners or None})
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, count in (("steps", steps), ("max_steps", max_steps)):
            if count is not None and count <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {count}")
        graph = self._graph()
        with graph.as_default():
            step = global_step()
            assert step is not None, "global_step creates it"
            spec, start = self._build(input_fn, ModeKeys.TRAIN)
            all_hooks = [*(hooks or ()), *(spec.training_hooks or ()), *(spec.training_chief_hooks or ())]
            with self._session(graph, all_hooks, start) as session:
                number = int(session.run(step.value()))
                last = max_steps if steps is None else number + steps
                stop = False
                saver = _Saver(self._config, functools.partial(self._save, session, graph))
                saver.save_at(number)
                interval, runs = self._config.log_step_count_steps, 0
                speed = _StepCounter(interval)
                while not stop and (last is None or number < last):
                    try:
                        values, stop = run_with_hooks(
                            session, {"loss": spec.loss, "train": spec.train_op, "step": step}, all_hooks
                        )
                    except _session.OutOfRangeError:
                        break
                    if np.isnan(values["loss"]).any():
                        raise NanLossDuringTrainingError
                    if interval and runs % interval == 0:
                        _LOG.info("loss = %s, step = %s", values["loss"], values["step"])
                    runs += 1
                    number = int(values["step"]) if int(values["step"]) > number else number + 1
                    speed.count(number)
                    saver.save_at(number)
                saver.save_at(number, end=True)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: Optional[int] = None,
        hooks: Optional[Iterable[Any]] = None,
        checkpoint_path: Optional[str] = None,
        name: Optional[str] = None,
    ) -> dict[str, Any]:
        """Run the evaluation, and return the mean loss, the metrics, and the global step, by name."""
        graph = self._graph()
        with graph.as_default():
            step = global_step()
            assert step is not None, "global_step creates it"
            spec, start = self._build(input_fn, ModeKeys.EVAL)
            metrics = dict(spec.eval_metric_ops or {})
            all_hooks = [*(hooks or ()), *(spec.evaluation_hooks or ())]
            losses: list[Any] = []
            with self._session(graph, all_hooks, start, checkpoint_path) as session:
                stop = False
                while not stop and (steps is None or len(losses) < steps):
                    updates = {key: update for key, (_, update) in metrics.items()}
                    try:
                        values, stop = run_with_hooks(session, {"loss": spec.loss, "updates": updates}, all_hooks)
                        losses.append(values["loss"])
                    except _session.OutOfRangeError:
                        break
                results = {key: session.run(value) for key, (value, _) in metrics.items()}
                return {**results, "loss": np.mean(losses, dtype=np.float32), "global_step": session.run(step.value())}

    def predict(
        self, input_fn: Callable[..., Any], hooks: Optional[Iterable[Any]] = None, **ignored: Any
    ) -> Iterable[Any]:
        """Yield the predictions for each row of the data."""
        graph = self._graph()
        with graph.as_default():
            global_step()
            spec, start = self._build(input_fn, ModeKeys.PREDICT)
            all_hooks = [*(hooks or ()), *(spec.prediction_hooks or ())]
            with self._session(graph, all_hooks, start) as session:
                stop = False
                while not stop:
                    try:
                        predictions, stop = run_with_hooks(session, spec.predictions, all_hooks)
                    except _session.OutOfRangeError:
                        return
                    if isinstance(predictions, Mapping):
                        rows = zip(*predictions.values())
                        yield from (dict(zip(predictions, row)) for row in rows)
                    else:
                        yield from predictions

    def _graph(self) -> Graph:
        graph = Graph()
        graph.seed = self._config.tf_random_seed or 1
        return graph

    def _build(self, input_fn: Callable[..., Any], mode: str) -> tuple[EstimatorSpec, Any]:
        arguments = {"mode": mode, "params": self._params, "config": self._config}
        accepted = inspect.signature(input_fn).parameters
        elements, start = next_elements(input_fn(**{key: value for key, value in arguments.items() if key in accepted}))
        features, labels = elements if isinstance(elements, (tuple, list)) and len(elements) == 2 else (elements, None)
        labels = None if mode == ModeKeys.PREDICT else labels
        arguments["labels"] = labels
        accepted = inspect.signature(self._model_fn).parameters
        if labels is not None and "labels" not in accepted:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        spec = self._model_fn(features, **{key: value for key, value in arguments.items() if key in accepted})
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("model_fn should return an EstimatorSpec.")
        refuse_options("EstimatorSpec", {"scaffold": spec.scaffold})
        return spec, start

    def _session(self, graph: Graph, hooks: Iterable[Any], start: Any, checkpoint: Optional[str] = None) -> Any:
        for hook in hooks:
            hook.begin()
        init, local = VARIABLES["global_variables_initializer"](), VARIABLES["local_variables_initializer"]()
        graph.finalize()
        session = _session.Session(graph=graph, config=self._config.session_config)
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
        values = session.run({variable.op.name: variable.value() for variable in graph.get_collection("variables")})
        Path(self._model_dir).mkdir(parents=True, exist_ok=True)
        np.savez(Path(self._model_dir, f"model.ckpt-{int(values['global_step'])}.npz"), **values)
        saved = sorted((path for path in Path(self._model_dir).glob("*.npz") if _number(path) >= 0), key=_number)
        for old in saved[: -(self._config.keep_checkpoint_max or len(saved))]:
            old.unlink()


def _verify_arguments(model_fn: Any, params: Any) -> None:
    """Raise ValueError if a model function has unknown arguments, or lacks necessary ones.

    Raise TypeError if it is no function.
    """
    if not callable(model_fn):
        raise TypeError("unsupported callable")
    bound = set(model_fn.keywords) if isinstance(model_fn, functools.partial) else set()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in inspect.signature(model_fn).parameters.values() if parameter.kind in kinds]
    free_names = [name for name in names if name not in bound]
    if "features" not in free_names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if params is not None and "params" not in free_names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed to Estimator."
        )
    unknown = [name for name in free_names if name not in _MODEL_FN_ARGUMENTS]
    if unknown:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {unknown}")


class _StepCounter:
    """A counter that logs the number of steps per second, every `interval` steps."""

    def __init__(self, interval: Optional[int]) -> None:
        self._interval = interval
        self._last: Optional[tuple[int, float]] = None

    def count(self, step: int) -> None:
        if not self._interval or (self._last is not None and step < self._last[0] + self._interval):
            return
        now = time.perf_counter()
        if self._last is not None:
            _LOG.info("global_step/sec: %g", (step - self._last[0]) / max(now - self._last[1], 1e-9))
        self._last = (step, now)


class _Saver:
    """A timer that calls `save` in a training loop, at the intervals of the RunConfig."""

    def __init__(self, config: Any, save: Callable[[], None]) -> None:
        self._steps = config.save_checkpoints_steps
        self._seconds = config.save_checkpoints_secs
        self._save = save
        self._last: Optional[tuple[int, float]] = None

    def save_at(self, step: int, *, end: bool = False) -> None:
        """Save a checkpoint if the interval has passed.

        end: save even if the interval has not passed, unless this step is already saved.
        """
        if not (self._steps or self._seconds):
            return
        now = time.monotonic()
        if self._last is not None:
            last, then = self._last
            if step == last or not (
                end or (self._steps and step >= last + self._steps) or (self._seconds and now >= then + self._seconds)
            ):
                return
        self._save()
        self._last = step, now


class _Ended:
    """A context manager for a loop. At its end it calls `end` of the hooks, unless an error occurred.

    Then it closes the session.
    """

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


def _restore(session: Any, graph: Graph, path: str) -> None:
    """Set the variables to the values in a checkpoint.

    The graph is finalised, so no operations can be added: the values are fed to the variables' initialisers.
    """
    values = _stored(path)
    for variable in graph.get_collection("variables"):
        if variable.op.name in values:
            session.run(variable.initializer, {variable.initial_value: values[variable.op.name]})


def _stored(path: str) -> dict[str, Any]:
    with np.load(f"{path}.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _number(path: Path) -> int:
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else -1
