"""Real models of `transformers`, trained, evaluated and generated from inside a capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import workloads
from safetensors import safe_open
from truth import Truth, compare_step
from workloads import MODELS, NEW_TOKENS, Outcome, digest, evaluate, make_bert, make_llama, run, train

import ascend_dump
from ascend_dump import Dump

LIBRARY = str(Path(transformers.__file__).parent)

#: Calls of the model in `run`: training, two evaluations, two generations.
CALLS = {"bert": 6, "llama": 6 + 2 * NEW_TOKENS}


@pytest.fixture(scope="module")
def plain() -> dict[str, Outcome]:
    """What each model computes when nothing is captured."""
    return {name: run(make()) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def llama_dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    """Training steps 1 and 2, both evaluations and all of the generation."""
    model = make_llama()
    with ascend_dump.capture(model, steps="1-2|4-15", path=tmp_path_factory.mktemp("llama")) as cap:
        run(model)
    return cap.dump()


def steps_of(dump: Dump) -> list[int]:
    return sorted({record.step for record in dump})


def check_readable(dump: Dump) -> int:
    """Every record has its tensor and true statistics; how many there are."""
    count = 0
    for record in dump:
        if record.attrs.get("skipped"):
            assert record.attrs["skipped"] == "uninitialised memory"
            continue
        array = record.numpy()
        assert (array.dtype.name, array.shape, array.nbytes) == (record.dtype, record.shape, record.nbytes)
        statistics = record.statistics()
        assert statistics.count == array.size
        if array.dtype.kind == "f":
            missing = np.isnan(array)
            assert statistics.nan == missing.sum()
            if not missing.all():
                assert (statistics.min, statistics.max) == (array[~missing].min(), array[~missing].max())
        count += 1
    return count


@pytest.mark.parametrize("name", MODELS)
class TestUsageForms:
    def test_with_block(self, name: str, plain: dict[str, Outcome], tmp_path: Path) -> None:
        model = MODELS[name]()
        with ascend_dump.capture(model, steps="0|3|5", path=tmp_path, strict=True) as cap:
            outcome = run(model)
        assert outcome == plain[name]
        assert steps_of(cap.dump()) == [0, 3, 5]
        assert check_readable(cap.dump()) > 1000

    def test_decorated_function(self, name: str, tmp_path: Path) -> None:
        """Each call is a step, however often it calls the model."""
        losses = [train(plain := MODELS[name](), steps=2), train(plain, steps=1), evaluate(plain)]
        model = MODELS[name]()

        @ascend_dump.capture(model, steps="0|2", path=tmp_path, strict=True)
        def run_part(function: Callable[..., list[str]], **settings: Any) -> list[str]:
            return function(model, **settings)

        assert [run_part(train, steps=2), run_part(train, steps=1), run_part(evaluate)] == losses
        assert digest(model) == digest(plain)
        dump = run_part.capture.dump()
        assert steps_of(dump) == [0, 2]
        forward = "*/embedding_*" if name == "bert" else "model.embed_tokens/embedding_*"
        calls = [len(dump.select(forward, step=step, io="output", phase="forward")) for step in (0, 2)]
        assert calls[0] == calls[1] > 0, "two calls of the model in each"
        assert check_readable(dump.select(step=2)) > 100

    def test_statistics_only(self, name: str, plain: dict[str, Outcome], tmp_path: Path) -> None:
        model = MODELS[name]()
        with ascend_dump.capture(model, steps="1", path=tmp_path, data="stats", strict=True) as cap:
            outcome = run(model)
        assert outcome == plain[name]
        assert not list(cap.path.rglob("*.safetensors"))
        losses = cap.dump().select(op_type="aten::nll_loss_forward", io="output", index=0)
        assert [record.statistics().max.hex() for record in losses] == [plain[name].losses[1]]

    def test_every_value_is_the_one_computed(self, name: str, tmp_path: Path) -> None:
        for optimizer in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            with Truth(model := MODELS[name]()) as truth:
                losses = train(model, steps=3, **optimizer)
            model = MODELS[name]()
            with ascend_dump.capture(model, steps="all", path=tmp_path, strict=True) as cap:
                assert train(model, steps=3, **optimizer) == losses
            for step, operators in enumerate(truth.steps):
                assert compare_step(cap.dump().select(step=step), operators) > 1000


class TestNames:
    def test_operators_carry_module_paths(self, llama_dump: Dump) -> None:
        modules = {name for name, _ in make_llama().named_modules()}
        step = llama_dump.select(step=1)
        assert {record.module for record in step.select(phase="forward")} <= modules
        for layer in (0, 1):
            for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
                path = f"model.layers.{layer}.self_attn.{projection}"
                product = step.select(f"{path}/mm_0", io="output")
                assert [record.phase for record in product] == ["forward"]
                # The gradients of the weight and of the input.
                assert len(step.select(f"{path}/mm_*", io="output", phase="backward")) == 2

    def test_sources_are_the_lines_of_the_model_and_of_the_script(self, llama_dump: Dump) -> None:
        step = llama_dump.select(step=1)
        forward = {record.source.rpartition(":")[0] for record in step.select("model.*", phase="forward")}
        assert f"{LIBRARY}/models/llama/modeling_llama.py" in forward
        assert all(source.startswith(LIBRARY) for source in forward)
        (product,) = step.select("model.layers.1.mlp.down_proj/mm_0", io="output")
        path, _, number = product.source.rpartition(":")
        assert "self.down_proj(" in Path(path).read_text().splitlines()[int(number) - 1]
        optimizer = step.select(op_type="aten::addcdiv_", phase="other")
        assert {record.source.rpartition(":")[0] for record in optimizer} == {workloads.__file__}

    def test_every_operator_is_right_when_it_is_run_again(self, llama_dump: Dump) -> None:
        found = ascend_dump.replay(llama_dump.select(step="1|4"))
        assert found.wrong == ()
        assert len(found.pairs) > 800
        # The batch is drawn, and the optimizer reads numbers out of tensors.
        assert {(one.reason, one.op_type) for one in found.refused} == {
            ("random", "aten::randint"),
            ("outputs", "aten::_local_scalar_dense"),
        }

    def test_calls_in_inference_mode_and_while_generating_are_recorded_alike(self, llama_dump: Dump) -> None:
        """In inference mode PyTorch leaves operators whole that it takes apart otherwise."""
        without_grad, inference = (
            [
                (record.op_name, record.io, record.index, record.shape)
                for record in llama_dump.select("model.*", step=step)
                if record.op_type not in ("aten::detach_", "aten::lift_fresh")  # of new constants, in no_grad only
            ]
            for step in (4, 5)
        )
        assert inference == without_grad


class TestOutputs:
    def test_outputs_of_modules_are_what_hooks_see(self, llama_dump: Dump) -> None:
        seen: dict[tuple[int, str], torch.Tensor] = {}
        calls = 0
        model = make_llama()

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        def remember(name: str) -> Callable[..., None]:
            def hook(module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
                seen[calls, name] = output.detach().clone()

            return hook

        for name, module in model.named_modules():
            if not list(module.children()) and name != "model.rotary_emb":
                module.register_forward_hook(remember(name))
        model.register_forward_hook(count)
        run(model)
        assert calls == CALLS["llama"]
        steps = steps_of(llama_dump)
        assert steps == [1, 2, *range(4, CALLS["llama"])]
        last: dict[tuple[int, str], Any] = {}
        for record in llama_dump.select(io="output", phase="forward"):
            last[record.step, record.module] = record
        for (step, name), output in seen.items():
            if step in steps:
                assert np.array_equal(last[step, name].numpy(), output.numpy()), (step, name)

    def test_each_call_of_generate_is_a_step(self, llama_dump: Dump, plain: dict[str, Outcome]) -> None:
        greedy = []
        for step in range(6, 6 + NEW_TOKENS):
            *_, logits = llama_dump.select("lm_head/*", step=step, io="output")
            greedy.append(logits.numpy()[:, -1].argmax(-1))
        tokens = np.array(plain["llama"].tokens[:2])
        assert np.array_equal(np.stack(greedy, axis=1), tokens[:, -NEW_TOKENS:])
        # Later calls pass the newest token only; the others are in the cache.
        lengths = [
            llama_dump.select("model.embed_tokens/embedding_0", step=step, io="input", index=1) for step in range(6, 16)
        ]
        assert [record.shape for dump in lengths for record in dump] == ([(2, 6)] + [(2, 1)] * (NEW_TOKENS - 1)) * 2


def make_checkpointed(*, reentrant: bool) -> torch.nn.Module:
    model = make_llama(use_cache=False)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


VARIANTS = {
    "eager attention": lambda: make_llama(attn_implementation="eager"),
    "sdpa attention": lambda: make_llama(attn_implementation="sdpa"),
    "bfloat16": lambda: make_llama().to(torch.bfloat16),
    "tied embeddings": lambda: make_llama(tie_word_embeddings=True),
    "checkpointing": lambda: make_checkpointed(reentrant=False),
    "reentrant checkpointing": lambda: make_checkpointed(reentrant=True),
}


class TestVariants:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_values_and_results_are_true(self, variant: str, tmp_path: Path) -> None:
        make = VARIANTS[variant]
        losses, parameters = train(model := make(), steps=2), digest(model)
        with Truth(model := make()) as truth:
            assert train(model, steps=2) == losses
        model = make()
        with ascend_dump.capture(model, steps="1", path=tmp_path, strict=True) as cap:
            assert train(model, steps=2) == losses
        assert digest(model) == parameters
        assert steps_of(cap.dump()) == [1]
        assert compare_step(cap.dump(), truth.steps[1]) > 1000

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_recomputed_operators_belong_to_their_module_and_to_the_backward_pass(
        self, reentrant: bool, tmp_path: Path
    ) -> None:
        model = make_checkpointed(reentrant=reentrant)
        with ascend_dump.capture(model, steps="0", path=tmp_path, strict=True) as cap:
            train(model, steps=1)
        products = cap.dump().select("model.layers.0.self_attn.q_proj/mm_*", io="output")
        first, again, *gradients = products
        assert [record.phase for record in products] == ["forward"] + ["backward"] * 3
        assert len(gradients) == 2
        assert np.array_equal(first.numpy(), again.numpy())
        # What was computed again is on disk once.
        assert (first.path, first.attrs["hash"]) == (again.path, again.attrs["hash"])

    def test_recomputed_calls_of_the_target_are_no_steps(self, tmp_path: Path) -> None:
        model = make_checkpointed(reentrant=False)
        with ascend_dump.capture(model.model.layers[0], steps="0|2", path=tmp_path, strict=True) as cap:
            train(model, steps=3)
        products = cap.dump().select("self_attn.q_proj/mm_*", io="output")
        assert [(record.step, record.phase) for record in products] == [
            (step, phase) for step in (0, 2) for phase in ("forward", "backward", "backward", "backward")
        ]

    def test_tied_weights_are_one_storage_and_stored_once(self, tmp_path: Path) -> None:
        model = make_llama(tie_word_embeddings=True)
        with ascend_dump.capture(model, steps="0", path=tmp_path, strict=True) as cap:
            train(model, steps=1)
        dump = cap.dump()
        (table,) = dump.select("model.embed_tokens/embedding_0", io="input", index=0)
        (head,) = dump.select("lm_head/t_0", io="input", index=0)
        assert table.attrs["storage"] == head.attrs["storage"]
        assert table.attrs["address"] == head.attrs["address"]
        stored = 0
        for shard in cap.path.rglob("*.safetensors"):
            with safe_open(shard, framework="numpy") as tensors:
                names = tensors.keys()
                stored += sum(np.array_equal(tensors.get_tensor(name), table.numpy()) for name in names)
        assert stored == 1

    # PyTorch says that hooks see a compiled model's call twice, which is what we count on.
    @pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
    def test_compiled_model(self, tmp_path: Path) -> None:
        def make() -> torch.nn.Module:
            torch._dynamo.reset()
            return torch.compile(make_llama(), backend="eager", fullgraph=True)

        losses, parameters = train(model := make()), digest(model)
        model = make()
        counters = torch._dynamo.utils.counters["stats"]
        counters.clear()
        with ascend_dump.capture(model, steps="1|3", path=tmp_path) as cap:
            assert train(model) == losses
        assert digest(model) == parameters
        assert [problem.code for problem in cap.problems] == ["AD212"]
        assert counters["unique_graphs"] == 1, "steps that are not selected run compiled, and are compiled once"
        assert steps_of(cap.dump()) == [1, 3]
        assert len(cap.dump().select("model.layers.0.self_attn.q_proj/mm_0", step=1, io="output")) == 1

    @pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
    def test_model_compiled_in_place(self, tmp_path: Path) -> None:
        torch._dynamo.reset()
        losses = train(make_llama())
        model = make_llama()
        model.compile(backend="eager")
        with ascend_dump.capture(model, steps="1|3", path=tmp_path) as cap:
            assert train(model) == losses
        assert [problem.code for problem in cap.problems] == ["AD212"]
        assert steps_of(cap.dump()) == [1, 3]
        assert len(cap.dump().select("model.layers.0.self_attn.q_proj/mm_0", step=1, io="output")) == 1

    def test_overflow_in_a_layer(self, tmp_path: Path) -> None:
        """With scene="overflow" only operators with NaN or Inf are written, the origin marked."""
        model = make_llama()
        with torch.no_grad():
            # Finite values whose squares are not: the norm after this layer overflows.
            model.model.layers[1].mlp.down_proj.weight.mul_(1e30)
        with ascend_dump.capture(model, path=tmp_path, scene="overflow") as cap, torch.no_grad():
            model(input_ids=torch.arange(8).view(1, 8))
        first, *_ = (record for record in cap.dump() if record.attrs.get("origin"))
        assert (first.module, first.op_type, first.io) == ("model.norm", "aten::pow", "output")
        assert first.statistics().posinf > 0
        inputs = [record for record in cap.dump() if record.attrs["seq"] == first.attrs["seq"] and record.io == "input"]
        assert [np.isfinite(record.numpy()).all() for record in inputs] == [True]


def test_nothing_stays_behind(tmp_path: Path) -> None:
    hooks = torch.nn.modules.module
    own = (torch.inference_mode.__exit__, torch.UntypedStorage.resize_)
    model = make_bert()
    forward = model.forward
    with ascend_dump.capture(model, steps="1|2", path=tmp_path, strict=True):
        train(model)
        evaluate(model)
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert model.forward == forward
    assert (torch.inference_mode.__exit__, torch.UntypedStorage.resize_) == own
    assert torch._C._len_torch_dispatch_stack() == 0
