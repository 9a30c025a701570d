"""A generation loop with a cache, batches and a compiled warm-up, as servers have: only requests are steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llama import tiny_llama

import ascend_dump


class Runner:
    """The parts of a server's model runner that call the model, by the names they have there."""

    def __init__(self) -> None:
        self.model = tiny_llama(max_position_embeddings=32)

    @torch.no_grad()
    def profile_run(self) -> None:
        self.model(torch.zeros((6, 8), dtype=torch.long), use_cache=True)

    @torch.no_grad()
    def _dummy_run(self) -> None:
        """Warm-up of what is compiled."""
        compiled = torch.compile(lambda ids: self.model(ids, use_cache=False).logits, backend="eager")
        for _ in range(2):
            compiled(torch.zeros((5, 4), dtype=torch.long))

    @torch.no_grad()
    def execute_model(self, prompts: Any, new: int) -> Any:
        """Greedy: a prefill of the batch, then one token after the other with the cache."""
        given, cache, tokens = prompts, None, []
        for _ in range(new):
            out = self.model(given, past_key_values=cache, use_cache=True)
            cache, given = out.past_key_values, out.logits[:, -1:].argmax(-1)
            tokens.append(given)
        return torch.cat(tokens, 1)


def serve(runner: Runner) -> list[Any]:
    runner.profile_run()
    runner._dummy_run()
    first = runner.execute_model(torch.tensor([[1, 2, 3], [4, 5, 6]]), 3)
    runner.profile_run()
    return [first, runner.execute_model(torch.tensor([[7, 8]]), 2)]


@pytest.mark.parametrize("skips", [True, False])
def test_prefill_and_decode_of_requests_are_the_steps(tmp_path: Path, skips: bool) -> None:
    expected = serve(Runner())
    torch._dynamo.reset()
    runner = Runner()
    with ascend_dump.capture(runner.model, path=tmp_path, options={"skip_warmup": skips}) as cap:
        found = serve(runner)
    assert all(torch.equal(one, other) for one, other in zip(expected, found))
    shapes = {record.step: record.shape for record in cap.dump().select(op="*embedding*", io="output")}
    requests = [(2, 3, 16), (2, 1, 16), (2, 1, 16), (1, 2, 16), (1, 1, 16)]
    if skips:
        assert shapes == dict(enumerate(requests))
    else:
        assert shapes[0] == (6, 8, 16)
        assert len(shapes) > len(requests)
