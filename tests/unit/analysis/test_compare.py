"""Comparing dumps of real PyTorch programs: planted faults are named, rounding is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional
from xml.etree import ElementTree

import pytest

import ascend_dump
from ascend_dump import Comparison, ConfigError, DumpNotFound
from ascend_dump.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

from compare_training import Change, dump_training  # noqa: E402  (needs torch)


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.activation = functional.gelu

    def forward(self, x: Any) -> Any:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(16), Block(16), Block(16))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x))


def dump(path: Path, change: Optional[Change] = None, *, shift: float = 0, **settings: Any) -> Path:
    return dump_training(path, Network, lambda: (torch.randn(8, 16) + shift, torch.arange(8) % 4), change, **settings)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("compare") / "reference")


def test_a_program_that_repeats_itself_is_equal(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "again"), reference)
    assert found.verdict == "equal"
    assert not found.origins
    assert all(pair.measure is None for pair in found.pairs), "equal hashes need no reading"


def scale_weight(network: Any) -> None:
    network.blocks[1].up.weight.mul_(1.01)


def one_weight(network: Any) -> None:
    network.blocks[2].down.weight[3, 4] += 0.5


def epsilon(network: Any) -> None:
    network.blocks[1].norm.eps = 1e-2


def other_gelu(network: Any) -> None:
    network.blocks[1].activation = lambda x: functional.gelu(x, approximate="tanh") + 1e-3


def relu(network: Any) -> None:
    network.blocks[1].activation = functional.relu


def nan(network: Any) -> None:
    network.blocks[0].activation = lambda x: functional.gelu(x) / (x != x[0, 0])


def sign(network: Any) -> None:
    network.blocks[2].norm.bias.add_(1e-2)


def permuted(network: Any) -> None:
    network.blocks[1].down.weight.copy_(network.blocks[1].down.weight.flip(0))


@pytest.mark.parametrize(
    ("fault", "kind", "module"),
    [
        (scale_weight, "parameter", "blocks.1.up"),
        (one_weight, "parameter", "blocks.2.down"),
        (sign, "parameter", "blocks.2.norm"),
        (permuted, "parameter", "blocks.1.down"),
        (epsilon, "structure", "blocks.1.norm"),
        (other_gelu, "structure", "blocks.1"),
        (relu, "structure", "blocks.1"),
    ],
)
def test_a_planted_fault_is_the_first_origin(
    reference: Path, tmp_path: Path, fault: Change, kind: str, module: str
) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", fault), reference)
    assert found.verdict in ("different", "structure")
    first = found.origins[0]
    assert (first.kind, first.module, first.step) == (kind, module, 0)
    assert first.explains > 10
    assert first.evidence
    assert str(first.source).rpartition(":")[0].endswith("test_compare.py")
    assert first.next["steps"] == "0"


def test_nan_is_named_where_it_is_made(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", nan), reference)
    assert found.verdict == "different"
    first = found.origins[0]
    assert (first.kind, first.module, first.step) == ("structure", "blocks.0", 0)
    assert first.op_type in ("aten::ne", "aten::div", "aten::select")


def test_wrong_data_are_named_as_input(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "actual", shift=0.5), reference)
    assert (found.origins[0].kind, found.origins[0].first_seen) == ("input", True)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_alone_has_no_origin(reference: Path, tmp_path: Path, seed: int) -> None:
    """Every parameter off by up to one unit in the last place: all that follows, in both steps, is noise."""

    def last_place(network: Any) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            steps = torch.randint(-1, 2, parameter.shape, generator=generator, dtype=torch.int32)
            parameter.copy_((parameter.view(torch.int32) + steps * (parameter != 0)).view(torch.float32))

    found = ascend_dump.compare(dump(tmp_path / "actual", last_place), reference)
    assert found.verdict == "noise"
    assert not found.origins


def test_renamed_modules_and_equal_values_are_equal(reference: Path, tmp_path: Path) -> None:
    class Renamed(torch.nn.Module):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.trunk, self.classifier = network.blocks, network.head

        def forward(self, x: Any) -> Any:
            return self.classifier(self.trunk(x))

    torch.manual_seed(0)
    network = Renamed(Network())
    x, y = torch.randn(8, 16), torch.arange(8) % 4
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with ascend_dump.capture(network, steps="0-1", path=tmp_path / "renamed"):
        for _ in range(2):
            optimizer.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    found = ascend_dump.compare(tmp_path / "renamed", reference)
    assert found.verdict == "equal"


def test_an_extra_operator_is_unmatched_and_the_rest_equal(reference: Path, tmp_path: Path) -> None:
    def extra(network: Any) -> None:
        network.head.register_forward_hook(lambda module, inputs, output: output.abs().sum() and None)

    found = ascend_dump.compare(dump(tmp_path / "actual", extra), reference)
    assert found.verdict == "unmatched"
    assert {pair.record.op_type for pair in found.unmatched} >= {"aten::abs", "aten::sum"}
    assert set(found.counts) == {"equal", "unmatched"}
    assert not found.origins


def test_a_missing_step_is_unmatched_never_a_pass(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "one", steps=1), reference)
    assert found.verdict == "unmatched"
    assert {pair.record.step for pair in found.unmatched} == {1}


def test_statistics_alone_say_different_or_unreadable_but_never_equal(tmp_path: Path) -> None:
    """Without hashes and values there is nothing to compare; with hashes, equal contents are equal."""
    a = dump(tmp_path / "a", data="stats")
    same = ascend_dump.compare(a, dump(tmp_path / "b", data="stats"))
    assert same.verdict == "equal"
    other = ascend_dump.compare(a, dump(tmp_path / "c", scale_weight, data="stats"))
    assert other.verdict in ("different", "unreadable")
    assert other.verdict != "equal"


def test_an_empty_side_is_an_error(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match="actual holds no records"):
        ascend_dump.compare(ascend_dump.open(reference).select(op="nothing"), reference)


def test_a_truncated_shard_is_unreadable_not_equal(reference: Path, tmp_path: Path) -> None:
    broken = dump(tmp_path / "broken", epsilon)
    for shard in broken.rglob("*.safetensors"):
        with open(shard, "r+b") as file:
            file.truncate(shard.stat().st_size // 4)
    found = ascend_dump.compare(broken, reference)
    assert found.verdict == "unreadable"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory, reference: Path) -> Comparison:
    return ascend_dump.compare(dump(tmp_path_factory.mktemp("saving") / "actual", epsilon), reference)


class TestSaving:
    def test_json(self, comparison: Comparison, tmp_path: Path) -> None:
        found = json.loads(comparison.save(tmp_path / "x.json").read_text())
        assert found["verdict"] == "different"
        assert found["origins"][0]["module"] == "blocks.1.norm"
        assert len(found["pairs"]) == len(comparison.pairs)

    def test_csv(self, comparison: Comparison, tmp_path: Path) -> None:
        lines = comparison.save(tmp_path / "x.csv").read_text().splitlines()
        assert len(lines) == len(comparison.pairs) + 1

    def test_parquet(self, comparison: Comparison, tmp_path: Path) -> None:
        polars = pytest.importorskip("polars")
        frame = polars.read_parquet(comparison.save(tmp_path / "x.parquet"))
        assert frame.filter(polars.col("verdict") == "different").height == comparison.counts["different"]

    def test_junit(self, comparison: Comparison, tmp_path: Path) -> None:
        suite = ElementTree.parse(comparison.save(tmp_path / "x.xml")).getroot()
        assert int(suite.attrib["failures"]) > 0
        assert len(suite.findall("testcase")) == int(suite.attrib["tests"])

    def test_a_page(self, comparison: Comparison, tmp_path: Path) -> None:
        assert comparison.origins[0].op_name in comparison.save(tmp_path / "x.html").read_text(encoding="utf-8")

    def test_other_suffixes_are_refused(self, comparison: Comparison, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="must end in"):
            comparison.save(tmp_path / "x.docx")


class TestTheVerb:
    def test_it_names_the_operator_and_exits_with_1(
        self, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        actual = dump(tmp_path / "actual", epsilon)
        assert main(["compare", str(actual), str(reference)]) == 1
        out = capsys.readouterr().out
        assert out.startswith("different: ")
        assert "origin      blocks.1.norm/native_layer_norm_0 (aten::native_layer_norm), step 0" in out
        assert main(["compare", str(actual), str(reference), "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "ascend-dump/compare/1"
        assert document["origins"][0]["kind"] == "structure"

    def test_equal_dumps_exit_with_0(self, reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", str(reference), str(reference)]) == 0
        assert capsys.readouterr().out.startswith("equal: ")

    def test_what_is_allowed_are_globs(self, reference: Path) -> None:
        globs: Any = ["*abs*"]
        with pytest.raises(ConfigError, match=r"given \['\*abs\*'\], expected globs of operator names"):
            ascend_dump.compare(reference, reference).allowing(globs)

    def test_unmatched_operators_can_be_allowed(
        self, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def extra(network: Any) -> None:
            network.head.register_forward_hook(lambda module, inputs, output: [output.abs(), None][1])

        actual = dump(tmp_path / "actual", extra)
        assert main(["compare", str(actual), str(reference)]) == 1
        assert "no partner" in capsys.readouterr().out
        files = [tmp_path / name for name in ("x.json", "x.xml", "x.html")]
        words = ["--allow-unmatched", "*abs*", *(word for file in files for word in ("--save", str(file)))]
        assert main(["compare", str(actual), str(reference), *words]) == 0
        out = capsys.readouterr().out
        assert out.startswith("equal: ")
        assert ", 4 allowed\n" in out
        assert "no partner" not in out
        document = json.loads(files[0].read_text())
        assert (document["verdict"], document["allowed"]) == ("equal", ["*abs*"])
        assert document["counts"]["allowed"] == 4
        suite = ElementTree.fromstring(files[1].read_text())
        assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "2")
        skipped = [case.get("name", "") for case in suite if case.find("skipped") is not None]
        assert all("abs" in name for name in skipped)
        assert "bit for bit but for operators that may be missing." in files[2].read_text(encoding="utf-8")
        assert main(["compare", str(actual), str(reference), "--allow-unmatched", "*other*"]) == 1
        found = ascend_dump.compare(actual, reference)
        assert (found.verdict, found.allowing("*abs*").verdict) == ("unmatched", "equal")
        assert not found.allowing("*abs*").unmatched

    def test_a_mapping_is_written_and_read_again(
        self, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "mapping.json"
        assert main(["compare", str(reference), str(reference), "--write-mapping", str(file)]) == 0
        assert json.loads(file.read_text())["head/addmm_0"] == "head/addmm_0"
        assert main(["compare", str(reference), str(reference), "--mapping", str(file)]) == 0

    @pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}'])
    def test_a_wrong_mapping_is_wrong_usage(
        self, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
    ) -> None:
        file = tmp_path / "mapping.json"
        file.write_text(text)
        assert main(["compare", str(reference), str(reference), "--mapping", str(file)]) == 2
        assert "expected a JSON object" in capsys.readouterr().err
