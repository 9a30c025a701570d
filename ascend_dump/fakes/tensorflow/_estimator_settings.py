"""RunConfig and EstimatorSpec of the stand-in for TensorFlow, with what TensorFlow refuses of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump.fakes.tensorflow._graph import Operation, Tensor
from ascend_dump.fakes.tensorflow._proto import messages

__all__ = ["EstimatorSpec", "ModeKeys", "RunConfig"]

_RUN_OPTIONS = frozenset(
    (
        *("device_fn", "protocol", "eval_distribute", "experimental_distribute", "session_creation_timeout_secs"),
        *("experimental_max_worker_delay_secs", "checkpoint_save_graph_def"),
    )
)
#: Seconds between checkpoints where a program says nothing.
_OFTEN = 600
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
    """Raises ValueError for what the mode needs and is not given, TypeError for what is no tensor."""

    __slots__ = ()

    def __new__(cls, mode: str, *values: Any, **named: Any) -> EstimatorSpec:
        made = super().__new__(cls, mode, *values, **named)
        _check_train_op(made)
        _check_loss(made)
        if mode == ModeKeys.PREDICT and made.predictions is None:
            raise ValueError("Missing predictions.")
        found = made.predictions.values() if isinstance(made.predictions, Mapping) else [made.predictions]
        for each in found:
            if each is not None and not isinstance(each, Tensor):
                raise TypeError(f"predictions must be Tensor, given: {each}")
        return made


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
    """`tf.estimator.RunConfig`. Raises ValueError for both ways of saving at once, and for values out of range."""

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
        **others: Any,
    ) -> None:
        unknown = [name for name in others if name not in _RUN_OPTIONS]
        if unknown:
            raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
        # None is an answer too: where both are, nothing is saved.
        if save_checkpoints_secs is ...:
            save_checkpoints_secs = _OFTEN if save_checkpoints_steps is ... else None
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
    def save_summary_steps(self) -> int:
        return self._save_summary_steps

    @property
    def save_checkpoints_steps(self) -> Optional[int]:
        return self._save_checkpoints_steps

    @property
    def save_checkpoints_secs(self) -> Optional[int]:
        return self._save_checkpoints_secs

    @property
    def keep_checkpoint_max(self) -> Optional[int]:
        return self._keep_checkpoint_max

    @property
    def keep_checkpoint_every_n_hours(self) -> int:
        return self._keep_checkpoint_every_n_hours

    @property
    def log_step_count_steps(self) -> Optional[int]:
        return self._log_step_count_steps

    def replace(self, **changes: Any) -> Any:
        """A copy with other values; one way of saving replaces the other. Raises ValueError as the constructor does."""
        ways = {"save_checkpoints_steps", "save_checkpoints_secs"}
        given = ways & set(changes)
        if len(given) == 2 and all(changes[name] is not None for name in ways):
            raise ValueError(_BOTH)
        made = copy.copy(self)
        for name, value in changes.items():
            if name not in _REPLACEABLE:
                allowed = list(_REPLACEABLE)
                raise ValueError(f"Replacing {name} is not supported. Allowed properties are {allowed}.")
            setattr(made, f"_{name}", value)
        if len(given) == 1:
            (other,) = ways - given
            setattr(made, f"_{other}", None)
        made._validate()
        return made

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


_BOTH = "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
