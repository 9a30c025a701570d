"""The classes RunConfig and EstimatorSpec of the fake TensorFlow. They refuse the values that TensorFlow refuses."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump.fakes.tensorflow._graph import Operation, Tensor
from ascend_dump.fakes.tensorflow._proto import messages

__all__ = ["EstimatorSpec", "ModeKeys", "RunConfig"]

#: Arguments of RunConfig that are accepted and have no effect.
_RUN_OPTIONS = frozenset(
    (
        *("device_fn", "protocol", "eval_distribute", "experimental_distribute", "session_creation_timeout_secs"),
        *("experimental_max_worker_delay_secs", "checkpoint_save_graph_def"),
    )
)
#: The default time between two checkpoints, in seconds.
_DEFAULT_SECONDS = 600
_REPLACEABLE = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "train_distribute",
)
_NOT_NEGATIVE = ("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max")
_POSITIVE = ("keep_checkpoint_every_n_hours", "log_step_count_steps")


class ModeKeys:
    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _SpecFields(NamedTuple):
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


class EstimatorSpec(_SpecFields):
    """`tf.estimator.EstimatorSpec`: the result of a model function.

    Raises ValueError if a value that the mode needs is missing, TypeError if a value is not a tensor.
    """

    __slots__ = ()

    def __new__(cls, mode: str, *values: Any, **named: Any) -> EstimatorSpec:
        spec = super().__new__(cls, mode, *values, **named)
        _check_train_op(spec)
        _check_loss(spec)
        if mode == ModeKeys.PREDICT and spec.predictions is None:
            raise ValueError("Missing predictions.")
        predictions = spec.predictions.values() if isinstance(spec.predictions, Mapping) else [spec.predictions]
        for prediction in predictions:
            if prediction is not None and not isinstance(prediction, Tensor):
                raise TypeError(f"predictions must be Tensor, given: {prediction}")
        return spec


def _check_train_op(spec: EstimatorSpec) -> None:
    if spec.train_op is None:
        if spec.mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
    elif not isinstance(spec.train_op, (Operation, Tensor)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {spec.train_op}")


def _check_loss(spec: EstimatorSpec) -> None:
    if spec.loss is None:
        if spec.mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        return
    if not isinstance(spec.loss, Tensor):
        raise TypeError(f"loss must be Tensor, given: {spec.loss}")
    shape = spec.loss.shape
    if shape.is_fully_defined() and shape.as_list() not in ([], [1]):
        raise ValueError(f"Loss must be scalar, given: {spec.loss}")


class RunConfig:
    """`tf.estimator.RunConfig`: the settings of an Estimator.

    Raises ValueError if both `save_checkpoints_steps` and `save_checkpoints_secs` are set, and for values out of range.
    """

    def __init__(
        self,
        model_dir: Optional[str] = None,
        tf_random_seed: Optional[int] = None,
        save_summary_steps: int = 100,
        save_checkpoints_steps: Any = ...,
        save_checkpoints_secs: Any = ...,
        session_config: Any = None,
        keep_checkpoint_max: Optional[int] = 5,
        keep_checkpoint_every_n_hours: int = 10000,
        log_step_count_steps: Optional[int] = 100,
        train_distribute: Any = None,
        **options: Any,
    ) -> None:
        unknown = [name for name in options if name not in _RUN_OPTIONS]
        if unknown:
            raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
        # `...` means that the program did not pass the argument. None is different: if both are None, nothing is saved.
        if save_checkpoints_secs is ...:
            save_checkpoints_secs = _DEFAULT_SECONDS if save_checkpoints_steps is ... else None
        if save_checkpoints_steps is ...:
            save_checkpoints_steps = None
        if save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError(_BOTH)
        self._model_dir = model_dir
        self._tf_random_seed = tf_random_seed
        self._save_summary_steps = save_summary_steps
        self._save_checkpoints_steps: Optional[int] = save_checkpoints_steps
        self._save_checkpoints_secs: Optional[int] = save_checkpoints_secs
        self._session_config = session_config
        self._keep_checkpoint_max = keep_checkpoint_max
        self._keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self._log_step_count_steps = log_step_count_steps
        self._train_distribute = train_distribute
        self._validate()

    def replace(self, **changes: Any) -> Any:
        """Return a copy with other values. Raises ValueError for values that the constructor refuses.

        If one of `save_checkpoints_steps` and `save_checkpoints_secs` is passed, the other one becomes None.
        """
        intervals = {"save_checkpoints_steps", "save_checkpoints_secs"}
        changed_intervals = intervals & set(changes)
        if len(changed_intervals) == 2 and all(changes[name] is not None for name in intervals):
            raise ValueError(_BOTH)
        copied = copy.copy(self)
        for name, value in changes.items():
            if name not in _REPLACEABLE:
                allowed = list(_REPLACEABLE)
                raise ValueError(f"Replacing {name} is not supported. Allowed properties are {allowed}.")
            setattr(copied, f"_{name}", value)
        if len(changed_intervals) == 1:
            (second_interval,) = intervals - changed_intervals
            setattr(copied, f"_{second_interval}", None)
        copied._validate()
        return copied

    def _validate(self) -> None:
        for name in (*_NOT_NEGATIVE, *_POSITIVE):
            value = getattr(self, f"_{name}")
            if value is None:
                continue
            if name in _NOT_NEGATIVE and not value >= 0:
                raise ValueError(f"{name} should be >= 0")
            if name in _POSITIVE and not value > 0:
                raise ValueError(f"{name} should be > 0")
        seed = self._tf_random_seed
        if seed is not None and not isinstance(seed, int):
            raise ValueError("tf_random_seed must be integer.")
        if self._session_config is not None and not isinstance(self._session_config, messages()["ConfigProto"]):
            raise ValueError("session_config must be instance of ConfigProto")


for _name in _REPLACEABLE:
    setattr(RunConfig, _name, property(operator.attrgetter(f"_{_name}")))

_BOTH = "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
