"""`ascend-dump triage --run -- CMD`: from a symptom to the operator, by running the program itself."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from preloaded import COMPILER, write_python

pytestmark = pytest.mark.thorough

pytest.importorskip("torch")

#: A training in which a sample of batch FAULT is blank: the gradient of its length divides by zero.
TRAINING = """
    import sys, torch
    from torch import nn
    torch.set_num_threads(1)
    torch.manual_seed(0)
    FAULT = int(sys.argv[1])
    class Length(nn.Module):
        def forward(self, x):
            return x.pow(2).sum(-1, keepdim=True).sqrt()
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 16, bias=False)
            self.length = Length()
            self.head = nn.Linear(17, 2)
        def forward(self, x):
            x = self.embed(x)
            return self.head(torch.cat([x, self.length(x)], -1))
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(40):
        x = torch.randn(4, 8)
        if step == FAULT:
            x[2] = 0
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        print("step", step, flush=True)
    print("trained")
"""
#: A forward pass with a constant, and a backward pass.
PRODUCT = """
    import sys, torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * float(sys.argv[1])
    linear = lambda: torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(linear(), Scale(), linear(), torch.nn.GELU(), linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(64, 64)).sum().backward()
        optimizer.step()
    print("ended")
"""

#: A training with two micro-batches for each optimizer step.
LOOP = """
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = torch.nn.Embedding(16, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid())
    optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.01)
    for step in range(8):
        x = torch.rand(2, 4)
        loss = {loss}
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    {end}
"""


class Program:
    """A program in a directory of its own, and the command line that looks for what is wrong in it."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.path = directory / "triage"
        self.file = directory / "train.py"
        self.file.write_text(textwrap.dedent(text))
        self.python = str(write_python(directory / "python", COMPILER))

    def line_of(self, part: str) -> str:
        lines = self.file.read_text().splitlines()
        return f"{self.file}:{next(number for number, line in enumerate(lines, 1) if part in line)}"

    def command(self, *arguments: str) -> list[str]:
        return [self.python, str(self.file), *arguments]

    def triage(self, *options: str, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                self.python,
                "-m",
                "ascend_dump",
                "triage",
                "--path",
                str(self.path),
                *options,
                "--run",
                "--",
                *command,
            ],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=self.directory,
            env={**os.environ, **environment},
        )

    def document(self, *options: str, command: list[str]) -> dict[str, Any]:
        done = self.triage("--json", *options, command=command)
        assert done.stdout.startswith("{"), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def training(tmp_path: Path) -> Program:
    return Program(tmp_path, TRAINING)


@pytest.fixture
def product(tmp_path: Path) -> Program:
    return Program(tmp_path, PRODUCT)


class TestNonFinite:
    def test_names_step_operator_module_and_line(self, training: Program) -> None:
        done = training.triage(command=training.command("23"))
        assert done.returncode == 1, done.stderr
        said = done.stdout
        assert "length/div_0 (aten::div), step 23" in said
        assert training.line_of("sqrt()") in said
        assert "step 22\n" in said
        assert "input 1 has 1 zero, which leads to Inf; it reaches the gradient" in said
        (dump,) = training.path.glob("*/2-program/dump")
        assert f"are in this dump: `ascend-dump show {dump} --op length/div_0 --step 23`" in said
        assert "trained" not in said  # it is stopped once that is known
        (state,) = training.path.glob("*/triage.json")
        assert [one["program"] for one in json.loads(state.read_text())["rounds"]] == ["program", "program"]

    @pytest.mark.parametrize(
        ("faulty", "operator", "why"),
        [
            (
                "x * 0 / (x * 0)",
                "div_0",
                "input 0 is zero everywhere, and input 1 is zero everywhere, which leads to NaN",
            ),
            ("(x * 1e5).exp()", "exp_0", "input 0 has values from "),
            ("x + torch.tensor(float('nan'))", "lift_fresh_0", "the program passes NaN in here"),
            ("x * float('nan')", "mul_0", "the program passes the constant other=nan"),
            ("x + torch.full((2, 4), float('nan'))", "full_0", "the program passes the constant fill_value=nan"),
            ("(x - x + OUTSIDE).relu()", "full_0", "the program passes the constant fill_value=nan"),
        ],
    )
    def test_an_operator_that_computes_rightly_is_told_from_what_it_was_given(
        self, faulty: str, operator: str, why: str, tmp_path: Path
    ) -> None:
        program = Program(
            tmp_path,
            f"""
            import torch
            OUTSIDE = torch.full((2, 4), float("nan"))
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 4)
            with torch.no_grad():
                x = model(torch.ones(2, 4))
                model({faulty})
            """,
        )
        found = program.document(command=program.command())
        assert found["cause"]["op_name"] == operator
        assert found["why"].startswith(why)
        begin = f"replayed on this host with its recorded inputs, {operator} gives the same result: it is correct"
        assert found["cause"]["evidence"][-1] == begin

    @pytest.mark.parametrize(
        ("data", "fault", "operator", "line", "why"),
        [
            # The linear layer reads a transposed view of its weight, which has no name.
            (
                "torch.randn(4, 8)",
                "model[0].weight[2, 3] = float('inf')",
                "copy__0",
                "'inf'",
                "the parameter 0.weight here",
            ),
            (
                "torch.from_dlpack(array(step))",
                "pass",
                "0/addmm_0",
                "(x)",
                "input 1 of 0/addmm_0 has NaN or Inf from before",
            ),
        ],
    )
    def test_what_comes_from_outside_of_the_model(
        self, data: str, fault: str, operator: str, line: str, why: str, tmp_path: Path
    ) -> None:
        text = f"""
            import numpy as np, torch
            from torch import nn
            torch.set_num_threads(1)
            def array(step):
                data = np.random.default_rng(step).standard_normal((4, 8), dtype="float32")
                data[1, 2] = np.nan if step == 3 else 0
                return data
            model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1))
            optimizer = torch.optim.SGD(model.parameters(), 1e-3)
            for step in range(6):
                x = {data}
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step == 2:
                    with torch.no_grad():
                        {fault}
        """
        program = Program(tmp_path, text)
        found = program.document(command=program.command())
        assert found["cause"]["op_name"] == operator, found
        assert found["cause"]["source"] == program.line_of(line)
        assert why in found["why"]

    def test_an_operator_that_computes_wrongly_is_told_from_one_with_wrong_inputs(self, tmp_path: Path) -> None:
        """The kernel of GELU is broken in the program, and whole where it is run again."""
        broken = Program(
            tmp_path,
            """
            import torch
            step = -1
            def gelu(keys, x, *, approximate="none"):
                made = torch.tanh(x)
                return torch.full_like(made, float("nan")) if step == 3 else made
            library = torch.library.Library("aten", "IMPL")
            library.impl("gelu", gelu, "CPU", with_keyset=True)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
            with torch.no_grad():
                for step in range(6):
                    model(torch.ones(2, 4))
            """,
        )
        done = broken.triage(command=broken.command())
        assert done.returncode == 1, done.stderr
        assert "1/gelu_0 (aten::gelu), step 3" in done.stdout
        assert "why         it is wrong: replayed on this host" in done.stdout

    def test_a_limit_leaves_room_for_statistics_only(self, training: Program) -> None:
        found = training.document("--max-bytes", "40M", command=training.command("3"))
        assert found["cause"]["op_name"] == "length/div_0"
        assert found["next"]["layers"], "the tensors are asked for then"
        assert "run again" not in found["advice"]

    def test_nan_that_no_output_shows_is_seen_in_the_gradients(self, tmp_path: Path) -> None:
        rows = Program(
            tmp_path,
            """
            import torch
            model = torch.nn.Embedding(8, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(30):
                x = model(torch.tensor([7 if step == 6 else step % 4]))
                loss = (x * 0).sqrt().sum() if step == 6 else x.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            """,
        )
        found = rows.document(command=rows.command())
        assert (found["cause"]["op_name"], found["cause"]["step"]) == ("div_0", 6)
        assert [one["outcome"].rpartition(" in ")[2] for one in found["rounds"]] == ["step 6", "step 6"]

    def test_an_operator_that_raises_ends_the_program(self, tmp_path: Path) -> None:
        text = LOOP.format(loss="model(table(torch.tensor([step, 17 if step == 3 else 0]))).pow(2).mean()", end="")
        program = Program(tmp_path, text)
        found = program.document(command=program.command())
        assert (found["cause"]["op_name"], found["cause"]["step"]) == ("embedding_0", 3)
        assert "IndexError" in found["why"]
        assert "an index of 17 in a table of 16" in found["why"]

    @pytest.mark.parametrize("by_line", [True, False])
    def test_what_is_ignored_is_no_cause(self, by_line: bool, tmp_path: Path) -> None:
        loss = "model(x).mean() + (x.mean() * 0 - float(step == 2)).sqrt()"
        program = Program(tmp_path, LOOP.format(loss=loss, end=""))
        ignored = program.line_of("loss = ").rpartition("/")[2] if by_line else "aten::sqrt"
        done = program.triage("--ignore", ignored, "--ignore", "never", command=program.command())
        assert done.returncode == 3, done.stdout
        assert f"apart from those that are ignored: {ignored}" in done.stdout

    def test_the_line_that_reads_a_known_nan_is_ignored(self, tmp_path: Path) -> None:
        loss = "model(x).sum()"
        end = "if step == 7: print('known', (x.sum() * float('nan')).item())"
        program = Program(tmp_path, LOOP.format(loss=loss, end="") + f"        {end}\n")
        line = program.line_of("known").rpartition("/")[2]
        assert program.triage(command=program.command()).returncode == 3
        found = program.document("--ignore", line, command=program.command())
        assert found["cause"] is None

    def test_the_micro_batch_is_named(self, tmp_path: Path) -> None:
        text = LOOP.format(loss="(model(x) * (0.0 if step == 5 else 1.0)).log().mean() / 2", end="")
        program = Program(tmp_path, text)
        found = program.document(command=program.command())
        assert (found["cause"]["op_name"], found["cause"]["step"]) == ("log_0", 5)
        assert "optimizer step 2, micro-batch 1" in found["when"]

    def test_what_the_program_prints_is_no_all_clear(self, tmp_path: Path) -> None:
        """A metric has NaN that reaches nothing, and the program prints it."""
        text = LOOP.format(loss="model(x).pow(2).mean()", end="print('accuracy', float('nan'))")
        program = Program(tmp_path, text)
        done = program.triage(command=program.command())
        assert done.returncode == 3, done.stdout
        assert "not found: the program printed 'accuracy nan'" in done.stdout
        assert "cause " not in done.stdout

    def test_a_loss_without_a_backward_pass(self, tmp_path: Path) -> None:
        text = LOOP.format(loss="model(x).pow(2).mean()", end="model(x * 0 / 0); print(model(x * 0 / 0).mean().item())")
        program = Program(tmp_path, text)
        found = program.document(command=program.command())
        assert found["cause"]["op_name"].startswith("div_")

    def test_the_first_step_of_all(self, training: Program) -> None:
        found = training.document(command=training.command("0"))
        assert (found["cause"]["op_name"], found["cause"]["step"]) == ("length/div_0", 0)

    def test_a_mask_of_inf_is_not_the_cause(self, tmp_path: Path) -> None:
        nearest = Program(
            tmp_path,
            """
            import math, torch
            torch.set_num_threads(1)
            torch.manual_seed(0)
            class Nearest(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = torch.nn.Linear(4, 4)
                def forward(self, x, fault):
                    y = self.fc(x)
                    far = torch.cdist(y, y).masked_fill(torch.eye(len(y), dtype=torch.bool), math.inf)
                    near = far.min(-1).values.mean()
                    return torch.log(near - 100) if fault else near
            model = Nearest()
            for step in range(20):
                model(torch.randn(8, 4), step == 7).backward()
            """,
        )
        found = nearest.document(command=nearest.command())
        assert (found["cause"]["op_name"], found["cause"]["step"]) == ("log_0", 7)

    def test_a_program_that_was_repaired_is_run_anew(self, training: Program) -> None:
        program = training.file.read_text()
        training.file.write_text("print('nothing to see')\n")
        first = training.triage(command=training.command("3"))
        assert first.returncode == 2, first.stderr
        training.file.write_text(program)
        again = training.triage(command=training.command("3"))
        assert again.returncode == 1, again.stderr
        assert "length/div_0 (aten::div), step 3" in again.stdout
        assert "interrupted" not in again.stderr

    def test_nothing_wrong_keeps_exit_code_and_output(self, training: Program) -> None:
        done = training.triage(command=training.command("-1"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("step 0\n")
        assert "trained\n" in done.stdout
        assert "40 steps" in done.stdout


class TestReference:
    def test_names_the_operator_with_the_wrong_constant(self, product: Program) -> None:
        right = " ".join(product.command("1.0"))
        found = product.document("--reference", right, command=product.command("1.01"))
        cause = found["cause"]
        assert (cause["op_name"], cause["op_type"], cause["step"]) == ("1/mul_0", "aten::mul", 0)
        assert cause["source"] == product.line_of("x * float")
        assert cause["stack"][:2] == [
            f"{product.line_of('x * float')} in forward",
            f"{product.line_of('model(torch.randn')} in <module>",
        ]
        assert any("1.01 here, 1.0 in the reference" in text for text in cause["evidence"])
        assert [one["program"] for one in found["rounds"]] == ["program", "reference"] * 2
        assert found["comparison" if "comparison" in found else "verdict"] == "different"

    def test_confirms_it(self, product: Program) -> None:
        right = " ".join(product.command("1.0"))
        done = product.triage("--reference", right, "--confirm", "--replay", command=product.command("1.01"))
        assert done.returncode == 1, done.stderr
        assert "1/mul_0 (aten::mul), step 0" in done.stdout
        assert "confirm     confirmed: with the reference's output of 1/mul_0" in done.stdout
        assert "the others begin with 1/mul_1, a cause of its own" in done.stdout  # it is the backward pass

    def test_confirms_a_wrong_weight_though_the_first_that_reads_it_is_a_view(self, tmp_path: Path) -> None:
        weight = Program(
            tmp_path,
            """
            import sys, torch
            torch.set_num_threads(1)
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
            with torch.no_grad():
                net[2].weight.mul_(float(sys.argv[1]))
            net(torch.randn(8, 16)).sum().backward()
            """,
        )
        right = " ".join(weight.command("1.0"))
        found = weight.document("--reference", right, "--confirm", command=weight.command("1.01"))
        assert found["cause"]["op_name"] == "2/t_0"
        assert found["confirmation"].startswith("confirmed: with the reference's input of 2/t_0, ")

    def test_says_in_one_sentence_that_a_view_of_something_else_cannot_be_tried(self, tmp_path: Path) -> None:
        part = Program(
            tmp_path,
            """
            import sys, torch
            torch.set_num_threads(1)
            torch.manual_seed(0)
            class Part(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.net = torch.nn.Linear(16, 32)
                def forward(self, x):
                    begin = int(sys.argv[1])
                    return self.net(x)[:, begin:begin + 2] * 3
            Part()(torch.randn(8, 16)).sum().backward()
            """,
        )
        right = " ".join(part.command("0"))
        found = part.document("--reference", right, "--confirm", command=part.command("1"))
        assert found["cause"]["op_name"] == "slice_0"
        said = "not tried: slice_0 is a view of its input, which is the same on both sides"
        assert found["confirmation"] == said

    def test_finds_the_step_of_a_difference_that_comes_later(self, tmp_path: Path) -> None:
        text = PRODUCT.replace("float(sys.argv[1])", "(float(sys.argv[1]) if step == 3 else 1.0)")
        later = Program(tmp_path, text)
        right = " ".join(later.command("1.0"))
        cause = later.document("--reference", right, command=later.command("1.01"))["cause"]
        assert (cause["op_name"], cause["step"]) == ("1/mul_0", 3)

    def test_says_that_programs_do_not_differ(self, product: Program) -> None:
        done = product.triage("--reference", " ".join(product.command("1.0")), command=product.command("1.0"))
        assert done.returncode == 0, done.stderr
        assert "the outputs of all steps are the same" in done.stdout


class TestDeterminism:
    def test_names_the_first_operator_that_differs(self, tmp_path: Path) -> None:
        random = Program(tmp_path, PRODUCT.replace("x * float(sys.argv[1])", "x * torch.tensor(rng.random())"))
        random.file.write_text("import random\nrng = random.Random()\n" + random.file.read_text())
        done = random.triage("--determinism", command=random.command())
        assert done.returncode == 1, done.stderr
        assert "1/lift_fresh_0 (aten::lift_fresh), step 0" in done.stdout
        assert "1/lift_fresh_0.input.0 has other bytes in the second run" in done.stdout
        assert "it came from outside" in done.stdout
        assert "round 2, the second run: " in done.stderr
        assert "the reference" not in done.stdout + done.stderr

    def test_says_that_a_program_repeats_itself(self, product: Program) -> None:
        done = product.triage("--determinism", command=product.command("1.0"))
        assert done.returncode == 0, done.stderr
        assert "two runs do not differ" in done.stdout
