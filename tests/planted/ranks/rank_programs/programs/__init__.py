"""The programs; importing this package registers them and their faults."""

from rank_programs.programs import (
    data_parallel,
    experts,
    losses,
    optimizers,
    pipelines,
    sequences,
    sharded,
    tensor_parallel,
    transformers_models,
    weights,
)

__all__ = [
    "data_parallel",
    "experts",
    "losses",
    "optimizers",
    "pipelines",
    "sequences",
    "sharded",
    "tensor_parallel",
    "transformers_models",
    "weights",
]
