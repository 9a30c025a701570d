"""Mamba of transformers, without training, and a port that sums over all earlier times instead of scanning."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MambaConfig, MambaForCausalLM

from port_programs.program import Network, Program, Truth, generator, infer, shaken

_STATES, _RANK = 4, 3


def _source() -> nn.Module:
    config = MambaConfig(
        vocab_size=48,
        hidden_size=16,
        state_size=_STATES,
        num_hidden_layers=2,
        conv_kernel=4,
        expand=2,
        time_step_rank=_RANK,
        initializer_range=0.3,
        use_cache=False,
    )
    return shaken(MambaForCausalLM(config)).eval()


def _requests() -> Tensor:
    return torch.randint(0, 48, (3, 2, 9), generator=generator())


def reference() -> Program:
    model, requests = _source(), _requests()
    return Program(model, infer(lambda step: model(input_ids=requests[step]).logits))


class Mixer(nn.Module):
    """The selective sum; time is the second axis everywhere."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.enter, self.leave = source.in_proj, source.out_proj
        self.taps, self.taps_bias = nn.Parameter(source.conv1d.weight[:, 0].detach().T.clone()), source.conv1d.bias
        self.select, self.widen = source.x_proj, source.dt_proj
        self.logarithms, self.direct = source.A_log, source.D

    def _filter(self, x: Tensor) -> Tensor:
        """Filter each channel by the last four times."""
        before = 2 if self.fault == "causal" else 3
        padded = functional.pad(x, (0, 0, before, 3 - before))  # planted: mamba_sum_causal
        length = x.shape[1]
        terms = [padded[:, tap : tap + length] * self.taps[tap] for tap in range(4)]
        return functional.silu(torch.stack(terms).sum(0) + self.taps_bias)  # planted: mamba_sum_causal

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.enter(x).chunk(2, -1)
        x = self._filter(x)
        sizes = (_RANK, _STATES, _STATES)
        if self.fault == "order":
            steps, read, write = self.select(x).split(sizes, -1)  # planted: mamba_sum_order
        else:
            steps, write, read = self.select(x).split(sizes, -1)
        steps = torch.log1p(torch.exp(self.widen(steps)))
        passed = steps.cumsum(1)
        between = passed[:, :, None] - passed[:, None]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, :, :, None, None]
        exponents = -between[..., None] * self.logarithms.exp()
        decay = exponents.masked_fill(~later, -torch.inf).exp()
        entered = (steps * x)[..., None] * write[:, :, None]  # place: mamba_sum_order
        y = torch.einsum("btsdn,bsdn,btn->btd", decay, entered, read)  # place: mamba_sum_order
        if self.fault != "direct":
            y = y + x * self.direct
        factors = gate.sigmoid() if self.fault == "gate" else functional.silu(gate)  # planted: mamba_sum_gate
        return self.leave(y * factors)  # planted: mamba_sum_direct


def _scaled(x: Tensor, norm: nn.Module) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        body = source.backbone
        self.letters = body.embeddings
        self.norms = nn.ModuleList([*(layer.norm for layer in body.layers), body.norm_f])
        layers = body.layers
        self.mixers = nn.ModuleList(Mixer(layer.mixer, fault if layer is layers[1] else "") for layer in layers)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.letters(tokens)
        for norm, mixer in zip(self.norms, self.mixers):
            x = x + mixer(_scaled(x, norm))
        return _scaled(x, self.norms[-1]) @ self.letters.weight.mT


def port(fault: str) -> Program:
    model, requests = Port(_source(), fault).eval(), _requests()
    return Program(model, infer(lambda step: model(requests[step])))


_MIXER = r"backbone\.layers\.1\.mixer"
_WITHIN = (r"mixers\.1", _MIXER + r"(\..*)?")
NETWORK = Network(
    "mamba_sum",
    reference,
    port,
    {
        "causal": Truth(
            modules=(_MIXER + r"\.(conv1d|act)",),
            operators=(_MIXER + r":aten::(conv1d|_?convolution|mkldnn_convolution|slice|silu)",),
            within=_WITHIN,
            readers=(r"mixers\.1\.select", _MIXER + r"\.x_proj"),
        ),
        "order": Truth(
            modules=(_MIXER,), within=_WITHIN, readers=(r"mixers\.1\.(leave|widen)", _MIXER + r"\.out_proj")
        ),
        "gate": Truth(
            operators=(_MIXER + r":aten::silu",),
            modules=(_MIXER + r"\.act",),
            within=_WITHIN,
            readers=(r"mixers\.1\.leave", _MIXER + r"\.out_proj"),
        ),
        "direct": Truth(
            operators=(_MIXER + r":aten::add",),
            within=_WITHIN,
            readers=(r"mixers\.1\.leave", _MIXER + r"\.out_proj"),
        ),
    },
)
