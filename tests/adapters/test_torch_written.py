"""What operators write to is an output, whether they return it or not; that of collectives once it is there."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Callable

import pytest
from preloaded import COMPILER, run_preloaded

import ascend_dump
from ascend_dump.analysis.operators.nonfinite import first_nonfinite

torch = pytest.importorskip("torch")

from torch_helpers import value_of  # noqa: E402  (needs torch)


def dump_of(dumps: Path, run: Callable[[], Any], **settings: Any) -> Any:
    with ascend_dump.capture(path=dumps, strict=True, **settings) as cap:
        run()
    assert cap.dump().errors() == []
    return cap.dump()


def written(dump: Any, op: str) -> dict[str, list[Any]]:
    """Values of the outputs of an operator that it does not return, by the arguments that they are."""
    return {
        record.attrs["argument"]: record.numpy().ravel().tolist()
        for record in dump.select(op, io="output")
        if "argument" in record.attrs
    }


def test_foreach(dumps: Path) -> None:
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    dump = dump_of(dumps, lambda: torch._foreach_mul_(tensors, 3.0))
    assert written(dump, "_foreach_mul__0") == {"self[0]": [3, 3], "self[1]": [6, 6, 6]}
    assert [record.index for record in dump.select(io="output")] == [0, 1]
    assert [record.numpy().tolist() for record in dump.select(io="input")] == [[1, 1], [2, 2, 2]]


def test_what_is_returned_comes_once(dumps: Path) -> None:
    x, out = torch.ones(2), torch.empty(2)
    scale, tracker = torch.tensor([8.0]), torch.tensor([3], dtype=torch.int32)

    def run() -> None:
        x.add_(1)
        torch.log(x, out=out)
        torch._amp_update_scale_(scale, tracker, torch.tensor([1.0]), 2.0, 0.5, 10)

    dump = dump_of(dumps, run)
    assert len(dump.select("add__0", io="output")) == len(dump.select("log_0", io="output")) == 1
    returned, beside = dump.select("_amp_update_scale__0", io="output")
    assert (returned.index, returned.numpy().tolist(), returned.attrs.get("argument")) == (0, [4], None)
    assert (beside.index, beside.numpy().tolist(), beside.attrs["argument"]) == (1, [0], "growth_tracker")


def test_results_of_operators_that_return_nothing(dumps: Path) -> None:
    import torch.distributed.fsdp  # defines them

    whole, parts = torch.arange(6.0), [torch.empty(2), torch.empty(4)]
    gathered = torch.empty(2, 3)

    def run() -> None:
        torch.ops.fsdp.split_with_sizes_copy(whole, [2, 4], 0, out=parts)
        torch.ops.fsdp.chunk_cat([torch.ones(3), torch.zeros(2)], 0, 2, out=gathered)

    dump = dump_of(dumps, run)
    assert written(dump, "split_with_sizes_copy_0") == {"out[0]": [0, 1], "out[1]": [2, 3, 4, 5]}
    assert written(dump, "chunk_cat_0") == {"out": gathered.ravel().tolist()}


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training: bool, dumps: Path) -> None:
    norm = torch.nn.BatchNorm1d(3).train(training)
    x = torch.randn(5, 3)
    dump = dump_of(dumps, lambda: norm(x))
    (op,) = {record.op_name for record in dump if "batch_norm" in record.op_type}
    expected = {"running_mean": norm.running_mean.tolist(), "running_var": norm.running_var.tolist()}
    assert written(dump, op) == (expected if training else {})


OPTIMIZERS = {
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e37, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e37, foreach=True),
    "SGD foreach": lambda parameters: torch.optim.SGD(parameters, lr=1e37, foreach=True, weight_decay=1e30),
    "SGD fused": lambda parameters: torch.optim.SGD(parameters, lr=1e37, fused=True, weight_decay=1e30),
}
#: Operators that make the first NaN or Inf there.
UPDATES = ("_fused_adamw_", "_foreach_mul_", "_foreach_add_", "_foreach_addcdiv_", "_fused_sgd_")


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_that_makes_nan_is_the_origin(name: str, data: str, dumps: Path) -> None:
    model = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(model.weight, 1e5)
    optimizer = OPTIMIZERS[name](model.parameters())
    with ascend_dump.capture(model, path=dumps, data=data, strict=True) as cap:
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert not torch.isfinite(model.weight).all(), "the test plants an overflow in the update"
    finding = first_nonfinite(cap.dump())
    assert finding is not None
    assert finding.origin
    assert finding.record.op_type.partition("::")[2] in UPDATES
    assert finding.record.attrs["argument"].startswith("self[")
    assert finding.record.source.startswith(__file__)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_that_makes_nan_overflows(name: str, dumps: Path) -> None:
    model = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(model.weight, 1e5)
    optimizer = OPTIMIZERS[name](model.parameters())
    with ascend_dump.capture(model, path=dumps, scene="overflow", strict=True) as cap:
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    origins = [record for record in cap.dump() if record.attrs.get("origin")]
    assert {record.op_type.partition("::")[2] for record in origins} <= set(UPDATES)
    assert origins[0].attrs["argument"].startswith("self[")
    inputs = cap.dump().select(origins[0].op_name, io="input")
    assert all(record.statistics().nan == record.statistics().posinf == 0 for record in inputs)


def test_gradient_scaler(dumps: Path) -> None:
    """Its check divides the gradients in place; an Inf in them is told in `found_inf`."""
    model = torch.nn.Linear(4, 4)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        scaler.scale(model(torch.full((2, 4), 100.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    dump = cap.dump()
    found = written(dump, "_amp_foreach_non_finite_check_and_unscale__0")
    assert found["found_inf"] == [1]
    gradients = [value for name, value in found.items() if name.startswith("self[")]
    assert [len(value) for value in gradients] == [16, 4] or [len(value) for value in gradients] == [4, 16]
    finding = first_nonfinite(dump)
    assert finding is not None
    assert finding.origin
    assert finding.record.phase == "backward"


RANKS = """
import json, os, sys
import torch, torch.distributed as dist, torch.distributed._functional_collectives as functional

other = os.fork()
rank, where, scene = 0 if other else 1, sys.argv[1], sys.argv[2] or None

import ascend_dump

os.environ.update(RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=2)
mine = torch.full((5000,), rank + 1.0)
parts = [torch.zeros(5000), torch.zeros(5000)]
big = torch.full((3,), 3e38)

def run():
    kept = mine.clone()
    work = dist.all_reduce(kept, async_op=True)
    work.wait()
    kept.zero_()
    dist.all_gather(parts, mine)
    given = mine.clone()
    dist.broadcast(given, 1)
    (dist.send if rank else dist.recv)(mine.clone() if rank else given, 1 - rank)
    dist.barrier()
    unread = dist.all_reduce(big, async_op=True)
    functional.all_reduce(mine, "sum", dist.group.WORLD) + 1
    while not unread.is_completed():
        pass

with ascend_dump.capture(path=f"{where}/dumps", scene=scene, strict=True) as cap:
    run()
found = [
    (r.op_type, r.attrs.get("argument", ""), sorted(set(r.numpy().tolist())), bool(r.attrs.get("origin")))
    for r in cap.dump()
    if "c10d" in r.op_type and r.io == "output" and "skipped" not in r.attrs
]
origin = None
if scene is None:
    from ascend_dump.analysis.operators.nonfinite import first_nonfinite
    finding = first_nonfinite(cap.dump())
    origin = (finding.record.op_type, finding.origin, len(finding.inputs))
with open(f"{where}/found{rank}.json", "w") as file:
    json.dump([found, origin], file)
dist.destroy_process_group()
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


@pytest.mark.parametrize("scene", ["", "overflow"])
def test_collectives_of_two_processes(scene: str, tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(textwrap.dedent(RANKS))
    run_preloaded(program, str(tmp_path), scene, check=True, imported=COMPILER)
    for rank in (0, 1):
        found, origin = json.loads((tmp_path / f"found{rank}.json").read_text())
        overflow = ["c10d::allreduce_", "tensors[0]", [float("inf")], bool(scene)]
        if scene:
            assert found == [overflow]
            continue
        received = [["c10d::recv_", "tensors[0]", [2.0], False]] if rank == 0 else []
        assert found == [
            ["c10d::allreduce_", "tensors[0]", [3.0], False],
            ["c10d::allgather_", "output_tensors[0][0]", [1.0], False],
            ["c10d::allgather_", "output_tensors[0][1]", [2.0], False],
            ["c10d::broadcast_", "tensors[0]", [2.0], False],
            *received,
            ["_c10d_functional::all_reduce", "", [3.0], False],
            ["_c10d_functional::wait_tensor", "", [3.0], False],
            overflow,
        ]
        assert origin == ["c10d::allreduce_", True, 1]


def test_outputs_keep_no_tensor_alive(dumps: Path) -> None:
    import gc
    import weakref

    with ascend_dump.capture(path=dumps, strict=True) as cap:
        tensors = [torch.ones(3000)]
        torch._foreach_add_(tensors, 1.0)
        gone = weakref.ref(tensors[0])
        expected = value_of(tensors[0])
        tensors.clear()
        gc.collect()
        assert gone() is None
    (record,) = cap.dump().select("_foreach_add__0", io="output")
    assert record.numpy().tobytes() == expected


def test_an_element_of_a_parameter_that_is_set_without_grad(dumps: Path) -> None:
    """PyTorch refuses to say of such a view whether it is a leaf."""
    weight = torch.nn.Parameter(torch.zeros(2, 2))

    def set_element() -> None:
        with torch.no_grad():
            weight.view(-1)[3] += 0.5
        (weight * 2).sum().backward()

    dump = dump_of(dumps, set_element)
    assert weight.detach().ravel().tolist() == [0, 0, 0, 0.5]
    [record] = dump.select("mul_0", io="input", index=0)
    assert record.numpy().ravel().tolist() == [0, 0, 0, 0.5]
    assert record.attrs["requires_grad"]
