"""With skip_warmup, calls in which a server profiles, warms up or captures graphs are no steps."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_torch_launcher import Launched

import ascend_dump
from ascend_dump import fakes

torch = pytest.importorskip("torch")

SERVER = """
    import torch

    class Runner:
        def __init__(self):
            torch.manual_seed(0)
            self.device = "cpu"
            self.model = torch.nn.Linear(4, 3)

        def profile_run(self):
            self._dummy_run(7)

        def _dummy_run(self, tokens):
            return self.model(torch.zeros(tokens, 4, device=self.device))

        def capture_model(self):
            for tokens in (2, 1):
                self.model(torch.zeros(tokens, 4, device=self.device))

        def compile_or_warm_up_model(self):
            self.execute_model(8)

        def execute_model(self, tokens):
            return self.model(torch.ones(tokens, 4, device=self.device))

    def serve(runner):
        runner.profile_run()
        runner.capture_model()
        runner.compile_or_warm_up_model()
        for tokens in (5, 6):
            runner.execute_model(tokens)
            runner._dummy_run(9)

    if __name__ == "__main__":
        serve(Runner())
"""


def server() -> Any:
    module = ModuleType("server")
    # A module with a name of its own and no file: a real one would have to be installed.
    exec(textwrap.dedent(SERVER), module.__dict__)
    return module


def rows(dump: Any) -> dict[Any, set[int]]:
    """By step, of how many rows the layer's results are; what makes its arguments runs before it is called."""
    found: dict[Any, set[int]] = {}
    for record in dump.select(io="output"):
        # An API call on an NPU has whole storages, of one dimension.
        if "addmm" in record.op_name.lower() and (record.kernel is not None or record.op_type != "aclnnAddmm"):
            found.setdefault(record.step, set()).add(record.shape[0])
    return found


@pytest.mark.parametrize("skips", [True, False])
def test_only_requests_are_steps(tmp_path: Path, skips: bool) -> None:
    made = server()
    runner = made.Runner()
    with ascend_dump.capture(runner.model, path=tmp_path, options={"skip_warmup": skips}) as cap:
        made.serve(runner)
    found = rows(cap.dump())
    every = {0: {7}, 1: {2}, 2: {1}, 3: {8}, 4: {5}, 5: {9}, 6: {6}, 7: {9}}
    assert found == ({0: {5}, 1: {6}} if skips else every)


def test_on_the_device_too(tmp_path: Path) -> None:
    made = server()
    with fakes.install("torch_npu", environ={}):
        runner = made.Runner()
        runner.device = "npu"
        runner.model = runner.model.npu()
        options = {"skip_warmup": True}
        with ascend_dump.capture(runner.model, path=tmp_path, framework="torch_npu", options=options) as cap:
            made.serve(runner)
        found = rows(cap.dump())
    assert found == {0: {5}, 1: {6}}


def test_under_the_launcher(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    launched.run(SERVER, "--steps", "0|1", "--options", "skip_warmup=true")
    found = rows(ascend_dump.open(launched.dumps))
    assert found == {0: {5}, 1: {6}}


def test_a_graph_that_is_being_captured_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = ModuleType("torch.npu")
    vars(capturing).update(is_initialized=lambda: True, is_current_stream_capturing=lambda: vars(capturing)["now"])
    monkeypatch.setattr(torch, "npu", capturing, raising=False)
    model = torch.nn.Linear(4, 3)
    with ascend_dump.capture(model, path=tmp_path, options={"skip_warmup": True}) as cap:
        for now, tokens in ((True, 7), (False, 5)):
            vars(capturing)["now"] = now
            model(torch.ones(tokens, 4))
    assert rows(cap.dump()) == {0: {5}}


def test_a_capture_copied_by_sglang_is_found_by_its_module() -> None:
    from ascend_dump.adapter.pytorch.warmup import is_warmup

    for name, function, expected in (
        ("sglang.srt.model_executor.cuda_graph_runner", "capture", True),
        ("sglang.srt.model_executor.runner.base_runner", "warmup", True),
        ("studio.recorder", "capture", False),
    ):
        module = ModuleType(name)
        module.__dict__["ask"] = is_warmup
        # Code is looked up by the name of its module, which a function defined here cannot have.
        exec(f"def {function}():\n    return ask()", module.__dict__)
        assert module.__dict__[function]() is expected


def test_where_the_program_draws_the_steps_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError, match=r"skip_warmup.*if the program calls `step\(\)` itself"):
        ascend_dump.capture(path=tmp_path, framework="torch", strict=True, options={"skip_warmup": True}).start()


def test_the_call_by_which_a_pipeline_infers_shapes_is_no_step(tmp_path: Path) -> None:
    """It has real operators on uninitialised memory: NaN in it would be blamed on the model."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 4)
        calls: list[torch.Tensor] = []
        model.register_forward_pre_hook(lambda _, args: calls.append(args[0]))
        stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
        schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
        with ascend_dump.capture(model, path=tmp_path) as cap:
            schedule.step(torch.ones(6, 4), target=torch.zeros(6, 4))
    finally:
        distributed.destroy_process_group()
    assert len(calls) == 3, "PyTorch makes such a call before the two micro-batches"
    assert rows(cap.dump()) == {0: {3}, 1: {3}}
    (first,) = cap.dump().select(op_type="aten::addmm", step=0, io="input", index=1)
    assert first.numpy().tolist() == [[1] * 4] * 3
