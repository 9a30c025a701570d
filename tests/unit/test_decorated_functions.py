"""What a decorated function is besides being called: still a function, and no context manager."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
from typing import Any

import pytest

import ascend_dump
from ascend_dump import ConfigError


@ascend_dump.capture
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


@ascend_dump.capture()
async def later(number: int) -> int:
    return number


class Trainer:
    @ascend_dump.capture
    def train(self, number: int) -> int:
        return number

    @ascend_dump.capture
    @classmethod
    def make(cls) -> str:
        return cls.__name__

    @ascend_dump.capture(steps="0")
    @staticmethod
    def name() -> str:
        return "trainer"


def plain() -> None:
    """Nothing."""


async def coroutine() -> None:
    """Nothing."""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (plain, "plain"),
        (coroutine, "coroutine"),
        (Trainer().train, "Trainer.train"),
        (Trainer.make, "Trainer.make"),
        (functools.partial(plain), "partial"),
        (len, "len"),
        (double, "double"),
    ],
    ids=["function", "coroutine", "method", "class method", "partial", "built-in function", "decorated function"],
)
def test_a_function_in_a_with_statement_says_what_to_write_instead(target: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"`with capture\({name}\)`.*decorated") as error:  # noqa: SIM117
        with ascend_dump.capture(target):
            pytest.fail("the block must not run")
    assert f"with ascend_dump.capture(): {name}(...)" in str(error.value.hint)

    async def block() -> None:
        async with ascend_dump.capture(target):
            pytest.fail("the block must not run")

    with pytest.raises(ConfigError, match="decorated"):
        asyncio.run(block())


def test_a_class_is_refused_as_a_target_and_under_the_decorator() -> None:
    for use in (ascend_dump.capture, ascend_dump.capture()):
        with pytest.raises(ConfigError, match="Trainer is a class") as error:
            use(Trainer)
        assert "capture(model)" in str(error.value.hint)
    with pytest.raises(ConfigError, match="an object of type int cannot be decorated"):
        ascend_dump.capture()(3)  # type: ignore[arg-type]  # the point of the test


def test_it_is_still_the_function_that_it_was() -> None:
    assert inspect.isfunction(double)
    assert inspect.iscoroutinefunction(later)
    assert not inspect.iscoroutinefunction(double)
    assert str(inspect.signature(double)) == "(number: 'int') -> 'int'"
    assert (double.__name__, double.__doc__, double.__module__) == ("double", "Twice as much.", __name__)
    assert inspect.getsource(double).startswith("@ascend_dump.capture\ndef double")


def test_it_is_pickled_and_copied_as_functions_are() -> None:
    """As processes that are spawned need it, and copies of models that hold it."""
    assert pickle.loads(pickle.dumps(double)) is double
    for name in (pickle.loads(pickle.dumps(Trainer.name)), copy.deepcopy(Trainer.name)):
        assert name.capture is Trainer.name.capture  # type: ignore[attr-defined]
    assert copy.copy(double) is copy.deepcopy(double) is double
    trainer = Trainer()
    assert pickle.loads(pickle.dumps(trainer.train)).__func__ is trainer.train.__func__  # type: ignore[attr-defined]
    assert copy.copy(trainer.train).__self__ is trainer  # type: ignore[attr-defined]  # of a method
    assert copy.deepcopy(trainer.train).__self__ is not trainer  # type: ignore[attr-defined]  # of a method


def test_a_method_has_the_capture_of_its_function() -> None:
    assert Trainer().train.capture is Trainer.train.capture  # type: ignore[attr-defined]  # typed as plain callables
    assert isinstance(Trainer.make.capture, ascend_dump.Capture)  # type: ignore[attr-defined]
    assert Trainer().name.capture.request.steps == ascend_dump.Steps("0")  # type: ignore[attr-defined]
