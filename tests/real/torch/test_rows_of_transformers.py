"""A request alone against the same request in a batch, in models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_transformers import SIZES

import ascend_dump

DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "gptneox": ("GPTNeoX", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def model_of(design: str) -> Any:
    name, settings = DESIGNS[design]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **settings, attn_implementation="eager")
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def dumped(path: Path, model: Any, ids: torch.Tensor, tokens: int) -> Path:
    with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0-9"):
        model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
    return path


@pytest.mark.parametrize(
    ("design", "dtype"), [("llama", torch.float32), ("gptneox", torch.bfloat16), ("mixtral", torch.float32)]
)
def test_a_request_alone_and_in_a_batch(design: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Prefill and decoding, with a cache: equal or noise everywhere, and one norm with another eps is the origin."""
    model, ids = model_of(design).to(dtype), torch.randint(1, 64, (6, 7))
    one = dumped(tmp_path / "one", model, ids[4:5], 2)
    comparison = ascend_dump.compare(one, dumped(tmp_path / "many", model, ids, 2))
    assert comparison.verdict in ("equal", "noise")
    assert comparison.origins == ()
    assert {pair.record.step for pair in comparison.pairs} == {0, 1}
    assert comparison.aligned[0].startswith("rows of the batch, of actual with the reference: 0 with 4; ")

    [*_, name] = (name for name, _ in model.named_modules() if name.endswith("1.post_attention_layernorm"))
    norm = model.get_submodule(name)
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 0.1)
    comparison = ascend_dump.compare(one, dumped(tmp_path / "faulty", model, ids, 2))
    assert comparison.origins[0].module == name
