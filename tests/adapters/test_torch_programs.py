"""A capture in programs that copy, compile, script or distribute their model, or run it in other processes."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from torch_helpers import RAMP as INPUT  # noqa: E402
from torch_helpers import dropout_net as net  # noqa: E402  (needs torch)
from torch_helpers import modes, names_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("modes_as_before")


class TestCopies:
    def test_copies_of_the_target_carry_nothing(self, dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            expected = model(INPUT)
            # Pickle reads nothing but what it has just written.
            copies = [copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))]
            buffer = io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            copies.append(torch.load(buffer, weights_only=False))
            assert b"ascend" not in buffer.getvalue()
            average = torch.optim.swa_utils.AveragedModel(model)
            average.update_parameters(model)
            for one in [*copies, average]:
                assert torch.equal(one(INPUT), expected)
            assert torch.equal(model(INPUT), expected)
        assert {record.step for record in cap.dump()} == {0, 1}
        for one in copies:
            assert torch.equal(one(INPUT), expected)
        assert not copies[0]._forward_pre_hooks

    def test_modules_in_other_processes(self, dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            expected = model(INPUT)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                assert torch.equal(pool.apply(call_model, (model, INPUT)), expected)
        assert {record.step for record in cap.dump()} == {0}


def call_model(model: Any, x: Any) -> Any:
    with torch.no_grad():
        return model(x)


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((100, 100), float(index)).add_(1).sub_(1)


class TestProcesses:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_data_loader_workers(self, method: str, dumps: Path) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(100, 2)
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context=method)
            means = [model(batch).sum().item() and batch.mean().item() for batch in loader]
        assert means == [1.5, 5.5]
        assert {record.step for record in cap.dump()} == {0, 1}
        assert cap.dump().errors() == []
        assert len(list(dumps.rglob("manifest.json"))) == 1

    def test_fork_inside_the_block(self, dumps: Path) -> None:
        """The child computes on, without a trace of the capture; the parent's dump is complete."""
        model = net()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            expected = model(INPUT)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    right = modes() == [] and not model._forward_pre_hooks and not cap._session.recording
                    torch.manual_seed(5)
                    # No backward pass: PyTorch refuses it in a fork after a test made autograd's threads.
                    model(INPUT)
                    cap.stop()
                    # A child may have a capture of its own.
                    with ascend_dump.capture(model, path=dumps / "child", strict=True) as own:
                        model(INPUT)
                    code = 0 if right and len(own.dump()) else 2
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            model(INPUT)
        assert {record.step for record in cap.dump()} == {0, 1}
        assert {record.step for record in ascend_dump.open(dumps / "child")} == {0}
        assert expected.shape == (3, 2)

    def test_statistics_of_a_process_and_of_the_one_it_forks(self, dumps: Path) -> None:
        model = net().eval()

        def is_true(cap: Any, results: dict[int, Any]) -> bool:
            """Check that the last outputs of these steps are recorded with the statistics that they have."""
            for step, result in results.items():
                *_, last = cap.dump().select("3/addmm_0", step=step, io="output")
                found = last.statistics()
                if (found.min, found.max, found.count) != (result.min(), result.max(), result.numel()):
                    return False
            return True

        many = torch.randn(1 << 12, 4)  # enough for PyTorch's own threads, which a child does not have
        with ascend_dump.capture(model, path=dumps, data="stats", strict=True) as cap:
            results = {0: model(many)}
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with ascend_dump.capture(model, path=dumps / "child", data="stats", strict=True) as own:
                        result = model(INPUT)
                    code = 0 if is_true(own, {0: result}) else 2
                finally:
                    os._exit(code)
            results[1] = model(many * 2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_true(cap, results)

    def test_threads_that_compute(self, dumps: Path) -> None:
        """Tensors made and written elsewhere while they are used here."""
        model = net().eval()
        stop = threading.Event()
        results = []

        def work() -> None:
            other = net().eval()
            while not stop.is_set():
                results.append(other(INPUT).sum().item())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with ascend_dump.capture(model, path=dumps, strict=True) as cap:
                for _ in range(20):
                    model(INPUT).sum().backward()
        finally:
            stop.set()
            thread.join()
        assert len(set(results)) == 1
        steps = [names_of(cap.dump().select(step=step)) for step in range(20)]
        assert all(names == steps[1] for names in steps[1:])


class TestCompiled:
    @pytest.fixture(autouse=True)
    def compiler(self) -> Iterator[None]:
        if not hasattr(torch.compiler, "set_stance"):
            pytest.skip("torch.compile cannot be run eagerly before PyTorch 2.6")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
        torch._dynamo.reset()

    class Act(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.tanh()

    class Net(torch.nn.Module):
        """Not of PyTorch's own classes, which `Module.compile` leaves as they are."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(4, 6)
            self.act = TestCompiled.Act()

        def forward(self, x: Any) -> Any:
            return self.act(self.first(x))

    @pytest.mark.parametrize("form", ["module", "in place", "part", "part in place"])
    @pytest.mark.filterwarnings("ignore:The .grad attribute")
    def test_selected_steps_run_eagerly(self, form: str, dumps: Path) -> None:
        ran: list[int] = []

        def backend(graph: Any, inputs: Any) -> Any:
            def run(*args: Any) -> Any:
                ran.append(1)
                return graph(*args)

            return run

        model: Any = self.Net()
        expected = model(INPUT)
        target = model
        if form == "module":
            target = torch.compile(model, backend=backend)
        elif form == "in place":
            model.compile(backend=backend)
        elif form == "part":
            model.act = torch.compile(model.act, backend=backend)
        else:
            model.act.compile(backend=backend)
        target(INPUT)
        assert len(ran) == 1
        before = {name: dict(module.__dict__) for name, module in target.named_modules()}
        with ascend_dump.capture(target, path=dumps, steps="1-2") as cap:
            assert [problem.code for problem in cap.problems] == ["AD212"]
            for number in range(5):
                count = len(ran)
                assert torch.equal(target(INPUT), expected)
                assert len(ran) == count + (number not in (1, 2)), f"call {number} ran the wrong way"
        count = len(ran)
        assert torch.equal(target(INPUT), expected)
        assert len(ran) == count + 1
        assert {name: dict(module.__dict__) for name, module in target.named_modules()} == before
        for step in (1, 2):
            assert {"first/addmm_0", "act/tanh_0"} <= set(names_of(cap.dump().select(step=step)))

    def test_compiled_function_in_a_block(self, dumps: Path) -> None:
        @torch.compile(backend="eager")
        def f(x: Any) -> Any:
            return (x * 2).sin()

        f(INPUT)
        with ascend_dump.capture(path=dumps, strict=True) as cap:
            assert torch.equal(f(INPUT), (INPUT * 2).sin())
        assert names_of(cap.dump())[:2] == ["mul_0", "sin_0"]

    def test_the_first_function_compiled_in_a_block_runs_eagerly(self, dumps: Path) -> None:
        """PyTorch's compiler is imported only then; it must not compile the functions that record."""
        program = (
            "import sys, torch, ascend_dump\n"
            "def compiled():\n"
            "    return torch._dynamo.utils.counters['frames'].get('total', 0)\n"
            "with ascend_dump.capture(path=sys.argv[1], strict=True):\n"
            "    assert 'torch._dynamo' not in sys.modules\n"
            "    fast = torch.compile(lambda x: (x * 2).sin(), backend='eager')\n"
            "    fast(torch.ones(3))\n"
            "assert compiled() == 0, compiled()\n"
            "fast(torch.ones(3))\n"
            "assert compiled() == 1, compiled()\n"
        )
        done = subprocess.run([sys.executable, "-c", program, str(dumps)], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        assert [name for name in names_of(ascend_dump.open(dumps)) if name != "ones_0"] == ["mul_0", "sin_0"]

    def test_compiled_after_it_was_given(self, dumps: Path) -> None:
        """Compiled code does not call the hooks of the module that it was made from."""
        model: Any = self.Net()
        expected = model(INPUT)
        cap = ascend_dump.capture(model, path=dumps, strict=True).start()
        fast = torch.compile(model, backend="eager")
        for _ in range(3):
            assert torch.equal(fast(INPUT), expected)
        with pytest.raises(ascend_dump.CaptureError, match="capture the compiled module"):
            cap.stop()

    def test_cond(self, dumps: Path) -> None:
        def f(x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (x,))

        for x in (torch.ones(3), -torch.ones(3)):
            expected = f(x)
            with ascend_dump.capture(path=dumps, strict=True) as cap:
                assert torch.equal(f(x), expected)
            assert [one for one in names_of(cap.dump()) if "cos" in one or "sin" in one] == [
                "cos_0" if x[0] > 0 else "sin_0"
            ]

    def test_flex_attention(self, dumps: Path) -> None:
        flex = pytest.importorskip("torch.nn.attention.flex_attention")
        query = torch.randn(1, 2, 16, 8)

        def score(value: Any, *position: Any) -> Any:
            return value * 0.5

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = flex.flex_attention(query, query, query, score_mod=score)
            with ascend_dump.capture(path=dumps) as cap:
                result = flex.flex_attention(query, query, query, score_mod=score)
        assert torch.equal(result, expected)
        kinds = {record.op_type for record in cap.dump()}
        assert {"aten::mul", "aten::matmul"} & kinds or {"aten::bmm"} & kinds, kinds

    def test_exporting_inside_a_block(self, dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps) as cap:
            model(INPUT)
            program = torch.export.export(model, (INPUT,))
            model(INPUT)
        assert torch.equal(program.module()(INPUT), model(INPUT))
        assert cap.dump().errors() == []
        assert "0/addmm_0" in names_of(cap.dump())
        assert "_hook" not in str(program.graph)


class TestScripted:
    @pytest.fixture(autouse=True)
    def quiet(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            yield

    @pytest.mark.parametrize("how", ["script", "trace", "part"])
    def test_script_modules(self, how: str, dumps: Path) -> None:
        plain = net().eval()
        expected = plain(INPUT)
        if how == "part":
            plain[2] = torch.jit.script(plain[2])
            model = plain
        else:
            model = torch.jit.script(plain) if how == "script" else torch.jit.trace(plain, INPUT)
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for _ in range(3):
                assert torch.equal(model(INPUT), expected)
        assert {record.step for record in cap.dump()} == {0, 1, 2}
        kinds = {record.op_type for record in cap.dump()}
        assert "aten::tanh" in kinds

    @pytest.mark.parametrize("steps", ["9", "0-"])
    def test_scripting_inside_a_block(self, steps: str, dumps: Path) -> None:
        """`torch.jit.script` compiles the hooks of a module with it."""
        model = net().eval()
        expected = model(INPUT)
        with ascend_dump.capture(model, path=dumps, quiet=True, steps=steps) as cap:
            model(INPUT)
            hooks = dict(model._forward_pre_hooks)
            scripted = [torch.jit.script(model), torch.jit.script(torch.nn.Sequential(model))]
            assert list(model._forward_pre_hooks.items()) == list(hooks.items())
            model(INPUT)
        assert all(torch.equal(one(INPUT), expected) for one in scripted)
        assert {record.step for record in cap.dump()} == ({0, 1} if steps == "0-" else set())

    def test_tracing_inside_a_block(self, dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps, strict=True):
            traced = torch.jit.trace(model, INPUT)
        assert torch.equal(traced(INPUT), model(INPUT))


def test_distributed_data_parallel(dumps: Path, tmp_path: Path) -> None:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain = net().eval()
        model = torch.nn.parallel.DistributedDataParallel(net().eval())
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for _ in range(3):
                model(INPUT).sum().backward()
            total = torch.ones(100, 100)
            work = distributed.all_reduce(total, async_op=True)
            work.wait()
            total.add_(1)
        for _ in range(3):
            plain(INPUT).sum().backward()
    finally:
        distributed.destroy_process_group()
    for one, other in zip(plain.parameters(), model.module.parameters()):
        assert torch.equal(one.grad, other.grad)
    assert {record.step for record in cap.dump()} == {0, 1, 2}
    assert "0/addmm_0" in names_of(cap.dump())
    assert cap.dump().errors() == []
