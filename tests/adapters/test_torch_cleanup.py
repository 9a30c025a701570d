"""The adapter restores all that it touches, and is nowhere on the path of other steps."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.writing import HostWriter

torch = pytest.importorskip("torch")

from torch_helpers import Residual, flags, modes, transformer  # noqa: E402  (needs torch)


def touched(model: Any) -> dict[str, Any]:
    """Everything that a capture changes while it is active, object by object."""
    found: dict[str, Any] = {}

    def put(name: str, owner: Any) -> None:
        for key, value in vars(owner).items() if not isinstance(owner, dict) else owner.items():
            found[f"{name}.{key}"] = value

    for path, module in model.named_modules():
        put(f"module {path}", module)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                put(f"module {path}.{name}", value)
        found[f"class of {path}"] = type(module)
    hooks = torch.nn.modules.module
    for name in vars(hooks):
        if name.startswith("_global_"):
            value = getattr(hooks, name)
            found[name] = value
            if isinstance(value, dict):
                put(name, value)
    put("storage", torch.UntypedStorage)
    put("tensor", torch.Tensor)
    put("inference_mode", torch.inference_mode)
    put("dlpack", torch.utils.dlpack)
    found.update({f"C.{name}": getattr(torch._C, name) for name in dir(torch._C) if "dlpack" in name})
    found["to_dlpack"] = torch.to_dlpack
    put("script", torch.jit._recursive)
    found["filters"] = warnings.filters
    for i, entry in enumerate(warnings.filters):
        found[f"filter {i}"] = entry
    for i, mode in enumerate(modes()):
        found[f"mode {i}"] = mode
    found.update(flags())
    if "torch._dynamo" in sys.modules:
        found["stance"] = torch._dynamo.eval_frame._stance
    found["profile"], found["trace"] = sys.getprofile(), sys.gettrace()
    found["threads"] = threading.active_count()
    return found


def assert_identical(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [name for name in before if name in after and before[name] is not after[name]]
    changed = [name for name in changed if name not in ("threads",) or before[name] != after[name]]
    assert not changed, changed
    assert before.keys() == after.keys(), before.keys() ^ after.keys()


def step(model: Any, x: Any) -> None:
    model(x).sum().backward()


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "transformer": (transformer, lambda: torch.randn(2, 5, 32)),
    "convnet": (Residual, lambda: torch.randn(2, 3, 8, 8)),
}


@pytest.mark.parametrize("how", ["all steps", "some steps", "no step", "exception", "failure", "no target", "overflow"])
@pytest.mark.parametrize("name", MODELS)
def test_everything_is_as_before(name: str, how: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, make_input = MODELS[name]
    model, x = make(), make_input()
    step(model, x)
    for parameter in model.parameters():
        parameter.grad = None
    before = touched(model)
    settings: dict[str, Any] = {"path": dumps}
    settings["steps"] = {"some steps": "1", "no step": "9"}.get(how)
    if how == "overflow":
        settings["scene"] = "overflow"
    if how == "failure":

        def fail(*args: Any) -> Any:
            raise ValueError("planted")

        monkeypatch.setattr(HostWriter, "put", fail)
    try:
        with ascend_dump.capture(None if how == "no target" else model, **settings):
            inside = touched(model)
            for _ in range(3):
                step(model, x)
            assert how in ("no step",) or inside.keys() != before.keys() or touched(model).keys() != before.keys()
            if how == "exception":
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert how == "exception"
    for parameter in model.parameters():
        parameter.grad = None
    assert_identical(before, touched(model))


def test_captures_that_end_in_another_order_leave_nothing(dumps: Path) -> None:
    def call(x: Any) -> Any:
        with torch.inference_mode():
            return x + 1

    model = transformer()
    before = touched(model)
    first = ascend_dump.capture(path=dumps, steps="0")(call)
    second = ascend_dump.capture(path=dumps, steps="0-1")(call)
    for function in (first, second, second):
        function(torch.ones(1))
    assert len(second.capture.dump().select("add*", io="output")) == 2
    assert_identical(before, touched(model))


def test_a_failed_start_leaves_nothing(dumps: Path) -> None:
    model = Residual()
    before = touched(model)
    for settings in ({"options": {"x": 1}}, {"layers": "re:("}, {"path": "/proc/nowhere"}):
        with pytest.raises(ascend_dump.AscendDumpError):
            ascend_dump.capture(model, **{"path": dumps, **settings}).start()
    assert_identical(before, touched(model))


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_as_before(dumps: Path) -> None:
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("torch.compile cannot be run eagerly before PyTorch 2.6")
    model, x = torch.nn.Sequential(Residual()), torch.randn(2, 3, 8, 8)
    model.compile(backend="eager")
    model(x)
    before = touched(model)
    with ascend_dump.capture(model, path=dumps, steps="0|2"):
        for _ in range(4):
            model(x)
    assert_identical(before, touched(model))
    torch._dynamo.reset()


OURS = tuple(str(Path(module.__file__).parent) for module in (ascend_dump, sys.modules["ascend_dump_torch"]))


def calls_of_ours(function: Callable[[], Any]) -> list[str]:
    """Python functions of this project that run while `function` does."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


def test_unselected_steps_run_no_code_of_ours_but_the_hook(dumps: Path) -> None:
    model, x = transformer(), torch.randn(2, 5, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        step(model, x)
        optimizer.step()
        torch.ones(3).numpy(), torch.ones(3).untyped_storage().resize_(0)

    with ascend_dump.capture(model, path=dumps, steps="1|3", strict=True):
        first = calls_of_ours(train)
        assert "__torch_dispatch__" in calls_of_ours(train)
        second = calls_of_ours(train)
        assert "__torch_dispatch__" in calls_of_ours(train)
        third = calls_of_ours(train)
        assert calls_of_ours(train) == []  # after the last selected step even the hook is gone
    # The first call looks for the next selected step; those before that step only count.
    assert len(first) < 30, first
    assert "__torch_dispatch__" not in first + second + third
    assert "_disarm_step" in second
    assert "_disarm_step" in third
    assert calls_of_ours(train) == []


def test_steps_far_apart_cost_the_hook_only(dumps: Path) -> None:
    model, x = transformer(), torch.randn(2, 5, 32)
    with ascend_dump.capture(model, path=dumps, steps="5"):
        each = [calls_of_ours(lambda: step(model, x)) for _ in range(3)]
    assert each[1] == each[2]
    assert len(each[1]) < 15, each[1]


def test_tensors_are_not_kept(dumps: Path) -> None:
    """Memory of written records is released, also while the capture goes on."""
    model = torch.nn.Linear(200, 200)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        x = torch.randn(200, 200)
        kept = weakref.ref(x), weakref.ref(x.untyped_storage())
        model(x).sum().backward()
        cap.dump()  # wait for the writer
        del x
        gc.collect()
        assert kept[0]() is None
        assert kept[1]() is None
        model(torch.randn(200, 200))
    gone = weakref.ref(model)
    session = weakref.ref(cap)
    del model, cap
    gc.collect()
    assert gone() is None
    assert session() is None


def test_memory_does_not_pile_up_over_steps(dumps: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(80, 80) for _ in range(4)))
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        sizes = []
        for _ in range(6):
            step(model, torch.randn(100, 80))
            model.zero_grad()
            cap.dump()  # wait for the writer, which keeps what it has not written
            sizes.append(len(cap._session.tensors._states))
    assert sizes[5] <= sizes[1] * 1.5


def test_storages_are_let_go_within_a_step(dumps: Path) -> None:
    """Handles of dead storages would scatter the heap, and the program's tensors would take fresh pages each time."""
    x = torch.randn(100, 100)
    with ascend_dump.capture(path=dumps, strict=True) as cap:
        sizes = []
        for _ in range(4):
            for _ in range(100):
                x = x + 1
            cap.dump()
            sizes.append(len(cap._session.tensors._states))
    assert max(sizes) < 250
    assert len(ascend_dump.open(cap.path)) == 800


def test_a_failure_of_ours_keeps_no_tensor(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(HostWriter, "put", fail)
    with ascend_dump.capture(path=dumps) as cap:
        x = torch.ones(10)
        kept = weakref.ref(x)
        x.add_(1)
        del x
        gc.collect()
        assert kept() is None
    assert cap is not None


def test_an_error_of_the_programs_keeps_nothing_for_ever(dumps: Path) -> None:
    """Its traceback holds frames of ours, whose objects must not hide a cycle from Python's collector."""

    class Trainer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3, 4))
            self.weight.register_hook(self.look)
            self.error: Any = None

        def look(self, gradient: Any) -> None: ...

        def forward(self, x: Any) -> Any:
            try:
                return torch.mm(self.weight, x)
            except RuntimeError as error:
                self.error = error

    with ascend_dump.capture(path=dumps):
        trainer = Trainer()
        trainer(torch.ones(3, 3))
        assert trainer.error is not None
        gone = weakref.ref(trainer)
        del trainer
    gc.collect()
    assert gone() is None
