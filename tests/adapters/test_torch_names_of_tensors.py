"""The names that tensors have in the schemas of operators, and the parameters that an optimizer works on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.fc(x))


def record(path: Path, foreach: bool, steps: int = 2) -> ascend_dump.Dump:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
    with ascend_dump.capture(model, path=path, quiet=True) as cap:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return cap.dump()


def test_inputs_have_the_names_of_the_schema(tmp_path: Path) -> None:
    dump = record(tmp_path, foreach=True)
    inputs = {one.op_type: [] for one in dump}
    for one in dump.select(step=0, io="input"):
        inputs[one.op_type].append(one.argument)
    assert inputs["aten::native_layer_norm"] == ["input", "weight", "bias"]
    assert inputs["aten::addmm"] == ["self", "mat1", "mat2"]
    [add] = {name for name in inputs if name.startswith("aten::_foreach_add_")}
    assert inputs[add] == [*(f"self[{at}]" for at in range(4)), *(f"other[{at}]" for at in range(4))]
    [norm] = dump.select(op_type="*native_layer_norm", step=0, io="input", index=2)
    assert norm.arguments.values["eps"] == 1e-5
    assert all(one.argument is None for one in dump.select(op_type="aten::addmm", io="output"))


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_names_the_parameters(foreach: bool, tmp_path: Path) -> None:
    dump = record(tmp_path, foreach)
    names = ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    for step in (0, 1):
        adds = dump.select(op_type="aten::_foreach_add_*" if foreach else "aten::add_*", step=step, phase="other")
        inputs = [one.attrs.get("parameter") for one in adds if one.io == "input"]
        outputs = [one.attrs.get("parameter") for one in adds if one.io == "output"]
        gradients = [f"{name}.grad" for name in names]
        if foreach:
            assert inputs == [*names, *gradients]
        else:
            assert inputs == [text for pair in zip(names, gradients) for text in pair]
        assert outputs[:4] == names
    for step in (0, 1):  # in a model only the first record of a parameter has its name
        found = [one for one in dump.select(phase="forward", step=step) if one.parameter]
        assert sorted(one.attrs["parameter"] for one in found) == sorted(names)
        assert all(one.io == "input" and one.attrs["requires_grad"] for one in found)


def test_catalogs_have_the_parameters_too(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    dump = record(tmp_path, foreach=False)
    attrs = [text for text in dump.catalog().collect()["attrs"].to_list() if text]
    assert sum('"fc.weight"' in text for text in attrs) == len(
        [one for one in dump if one.attrs.get("parameter") == "fc.weight"]
    )


class Named(torch.nn.Module):
    """Operators whose schemas name what they return, all of it or nothing."""

    def forward(self, x: Any) -> Any:
        largest, places = torch.topk(x, 2)
        values = torch.linalg.svd(largest)[1]
        attended = torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        zeros = torch.ops.aten._foreach_zero([x, largest])
        return values, places, attended, zeros, *torch.split(x, 2)


def test_outputs_have_the_names_of_the_schema(tmp_path: Path) -> None:
    model = Named()
    with ascend_dump.capture(model, path=tmp_path, quiet=True) as cap:
        model(torch.rand(4, 4))
    dump = cap.dump()
    outputs = {one.op_type: [] for one in dump}
    for one in dump.select(io="output"):
        outputs[one.op_type].append(one.argument)
    assert outputs["aten::topk"] == ["values", "indices"]
    assert outputs["aten::_linalg_svd"] == ["U", "S", "Vh"]
    attention = next(names for name, names in outputs.items() if "scaled_dot_product" in name)
    assert attention[:2] == ["output", "logsumexp"]
    assert outputs["aten::_foreach_zero"] == ["self_out[0]", "self_out[1]"]
    assert outputs["aten::split"] == [None, None]
    again = ascend_dump.replay(dump.select(op_type="aten::topk"))
    assert [(one.record.argument, one.verdict) for one in again.pairs] == [("values", "equal"), ("indices", "equal")]


def test_outputs_that_are_not_returned_keep_their_names(tmp_path: Path) -> None:
    """The results of a batch norm have no names."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    with ascend_dump.capture(model, path=tmp_path, quiet=True) as cap:
        model(torch.rand(3, 4))
    names = [one.argument for one in cap.dump().select(op_type="aten::native_batch_norm", io="output")]
    assert names == [None, None, None, "running_mean", "running_var"]


def adam(path: Path, steps: int, foreach: bool = False, **settings: Any) -> ascend_dump.Dump:
    """A capture of AdamW; the gradient of `fc.bias` is 0, which with eps=0 makes NaN."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach, **settings)
    with ascend_dump.capture(model, path=path, quiet=True) as cap:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).pow(3).sum()
            loss.backward()
            model.fc.bias.grad.zero_()
            optimizer.step()
    return cap.dump()


@pytest.mark.parametrize("foreach", [False, True])
def test_what_an_optimizer_keeps_has_the_name_of_its_parameter(foreach: bool, tmp_path: Path) -> None:
    dump = adam(tmp_path, 2, foreach)
    kept = f"{'_foreach_' if foreach else ''}lerp_"
    names = ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    for io in ("input", "output"):
        found = [one.parameter for one in dump.select(op=f"*{kept}*", step=1, io=io, phase="other")]
        assert [name for name in found if name and " of " in name] == [f"exp_avg of {name}" for name in names]
    assert {one.parameter for one in dump if one.parameter and " of " in one.parameter} == {
        f"{what} of {name}" for what in ("step", "exp_avg", "exp_avg_sq") for name in names
    }
    assert not any(" of " in (one.parameter or "") for one in dump.select(phase="forward"))


def test_what_an_optimizer_works_on_can_be_swapped(tmp_path: Path) -> None:
    """`torch.utils.swap_tensors` refuses tensors that have weak references."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    with ascend_dump.capture(model, path=tmp_path, quiet=True):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        torch.utils.swap_tensors(optimizer.state[model.fc.weight]["exp_avg"], torch.zeros(4, 4))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.fc.weight.grad.dtype is torch.float64


def test_a_tensor_in_the_place_of_a_gradient_has_no_name(tmp_path: Path) -> None:
    """Its id may be that of the gradient, which is freed."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with ascend_dump.capture(model, path=tmp_path, quiet=True) as cap:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            base = torch.ones(4)
            gradients = {id(one.grad) for one in model.parameters()}
            others = [torch.ones_like(one) for one in model.parameters()]
            optimizer.zero_grad()
            optimizer.state.clear()
            for parameter, other in zip(model.parameters(), others):
                parameter.grad = other
            others = []
            while len(others) < 100_000 and not (others and id(others[-1]) in gradients):
                others.append(base.data)
            if id(others[-1]) not in gradients:
                pytest.skip("no id came again")
            others[-1].neg_()
            del others
    assert {one.parameter for one in cap.dump().select(op="neg_*")} == {None}


def test_commands_say_which_parameter_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adam(tmp_path, 1, eps=0.0)
    shown = {}
    for name, more in {"overflow": [], "triage": [], "ls": ["--records"], "stats": []}.items():
        main([name, str(tmp_path), *more])
        shown[name] = capsys.readouterr().out
    assert "   parameter fc.bias\n" in shown["overflow"]
    assert "parameter   fc.bias\n" in shown["triage"]
    assert all("self (fc.bias)" in shown[name] for name in ("overflow", "ls", "stats"))


def test_steps_that_are_not_recorded_have_no_hook_of_the_optimizer(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    found = []
    with ascend_dump.capture(model, path=tmp_path, steps="1", quiet=True) as cap:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            found.append(len(hooks))
            optimizer.step()
    assert (found, len(hooks)) == ([0, 1, 0], 0)
    assert {one.parameter for one in cap.dump().select(op="mul__*", io="output")} == {
        f"momentum_buffer of {name}" for name in ("fc.weight", "fc.bias", "norm.weight", "norm.bias")
    }
