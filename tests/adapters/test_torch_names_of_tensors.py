"""The names that tensors have in the schemas of operators, and the parameters that an optimizer works on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

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
    assert not any("parameter" in one.attrs for one in dump.select(phase="forward"))


def test_catalogs_have_the_parameters_too(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    dump = record(tmp_path, foreach=False)
    attrs = [text for text in dump.catalog().collect()["attrs"].to_list() if text]
    assert sum('"fc.weight"' in text for text in attrs) == len(
        [one for one in dump if one.attrs.get("parameter") == "fc.weight"]
    )
