"""A small server: a Llama of random weights that answers requests with a cache, and warms itself up as servers do.

serving.py DIRECTORY    answers each line on stdin with one on stdout, and writes DIRECTORY/logits.bin at its end

    warmup      memory profiling, and a compiled run of the model, in methods with the names that they have in servers
    request N   prefill of a batch of two prompts of different length, then N - 1 tokens one after the other
    compiled N  the same, through what the warm-up has compiled
    generate N  by transformers' own loop
    count       how many functions Python calls for one request
    fork        a child reads the lines that follow; the parent waits for its end
    limit N     no file may grow over N bytes, as on a disk that is full; `unlimited` ends that
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_llama import tiny_llama

torch.set_num_threads(1)
PROMPTS = torch.tensor([[0, 0, 7, 8], [3, 4, 5, 6]])
#: The first prompt is shorter, and padded on the left.
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


class Server:
    def __init__(self) -> None:
        self.model = tiny_llama(max_position_embeddings=2048, pad_token_id=0, eos_token_id=None)
        self.compiled = torch.compile(self.forward, backend="eager", dynamic=True)
        self.logits: list[Any] = []

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    @torch.no_grad()
    def profile_run(self) -> None:
        self.model(torch.zeros((6, 8), dtype=torch.long), use_cache=True)

    def _dummy_run(self) -> None:
        self.answer(self.compiled, 2)
        del self.logits[-2:]

    @torch.no_grad()
    def answer(self, call: Any, new: int) -> list[int]:
        """The last tokens of both prompts, greedily; every call's logits are kept."""
        inputs: dict[str, Any] = {"input_ids": PROMPTS, "past_key_values": transformers.DynamicCache()}
        mask, tokens = MASK, PROMPTS
        for _ in range(new):
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -inputs["input_ids"].shape[1] :]
            out = call(**inputs, attention_mask=mask, position_ids=positions, use_cache=True)
            self.logits.append(out.logits.clone())
            tokens = out.logits[:, -1:].argmax(-1)
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
            inputs = {"input_ids": tokens, "past_key_values": out.past_key_values}
        return [int(token) for token in tokens[:, 0]]

    def generate(self, new: int) -> list[int]:
        settings = {"attention_mask": MASK, "max_new_tokens": new, "do_sample": False}
        found = self.model.generate(PROMPTS, **settings, output_logits=True, return_dict_in_generate=True)
        self.logits += [one.clone() for one in found.logits]
        return [int(token) for token in found.sequences[:, -1]]


def calls_of_a_request(server: Server) -> int:
    """Calls of Python functions and of those in C, by all that runs in this thread."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        server.answer(server.model, 2)
    finally:
        sys.setprofile(None)
    return calls


def serve(server: Server) -> None:
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        said: Any = "done"
        if word == "warmup":
            server.profile_run()
            server._dummy_run()
        elif word == "request":
            said = server.answer(server.model, int(number))
        elif word == "compiled":
            said = server.answer(server.compiled, int(number))
        elif word == "generate":
            said = server.generate(int(number))
        elif word == "count":
            said = calls_of_a_request(server)
        elif word == "fork":
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            else:
                said = os.getpid()
        elif word == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), resource.RLIM_INFINITY))
        elif word == "unlimited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(said, flush=True)


if __name__ == "__main__":
    served = Server()
    serve(served)
    torch.save([one.numpy().tobytes() for one in served.logits], Path(sys.argv[1], "logits.bin"))
