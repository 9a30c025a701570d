"""The options --workers and --dask, for verbs that process many ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, Callable, Optional, TypeVar

import click

from ascend_dump.errors import ConfigError, NotSupported, WorkerLost

__all__ = ["executor_options", "opened_executor"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def executor_options(function: _Function) -> _Function:
    """Add the options `--workers` and `--dask` to a verb."""
    text = "Process the ranks on the dask cluster of this scheduler (HOST:PORT), which must see the same paths."
    function = click.option("--dask", metavar="SCHEDULER", help=text)(function)
    return click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="Process the ranks in N parallel processes."
    )(function)


@contextlib.contextmanager
def opened_executor(workers: Optional[int], dask: Optional[str]) -> Iterator[Optional[Executor]]:
    """Yield the executor that the options select, None if neither option is given.

    Raises ConfigError if both are given, NotSupported if dask is not installed, WorkerLost if the scheduler does not
    answer.
    """
    if workers is not None and dask is not None:
        raise ConfigError("--workers and --dask are both given", hint="leave one of them out")
    if workers is not None:
        from ascend_dump.analysis.ranks import RankWorkers

        with RankWorkers(workers) as pool:
            yield pool
    elif dask is not None:
        with _client(dask) as client:
            yield client.get_executor(pure=False)
    else:
        yield None


def _client(scheduler: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise NotSupported(
            "--dask needs dask.distributed, which is not installed", hint="pip install 'ascend-dump[distributed]'"
        ) from None
    try:
        return Client(scheduler, timeout="20s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerLost(
            f"the scheduler {scheduler} does not answer: {str(error)[:300]}",
            hint="start one with `dask scheduler` and workers with `dask worker HOST:PORT`, then give HOST:PORT",
        ) from error
