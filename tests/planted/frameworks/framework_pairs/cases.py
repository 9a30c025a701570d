"""The pairs of programs: correct ones, and faults with the stages where an engineer accepts the first origin."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

NETWORKS = ("mlp", "cnn", "resnet", "block", "gru", "lm", "tower")
#: actual>reference, of correct pairs: three of each network, and two frameworks without PyTorch.
_CORRECT = ("torch>graph", "eager>torch", "torch>mindspore")
_WITHOUT_TORCH = ("mlp", "cnn", "block")
#: Of faults; a dump of MindSpore is slow to make, so that few of its programs have a fault.
_PAIRS = (
    *("torch>graph", "torch>eager", "torch>mindspore") * 3,
    *("graph>torch", "eager>torch", "graph>mindspore", "eager>graph") * 2,
    "mindspore>torch",
)


#: Of each network, the correct pair of torchair on the simulated NPU and eager PyTorch, and one of this many faults.
_EVERY_OF_TORCHAIR = 4
#: Settings that nothing of the forward pass reads.
_OF_TRAINING = {"reduction", "detached", "learning_rate", "momentum", "weight_decay", "nesterov", "frozen"}
_OF_TRAINING |= {"keeps_gradients", "label_shift", "training"}


@dataclass(frozen=True)
class Case:
    """A program in one framework, and a correct one in another.

    stages  where the first origin is right, or the type of an operator of the backward pass; empty for correct pairs
    """

    network: str
    frameworks: str
    fault: str = "correct"
    changed: dict[str, Any] = field(default_factory=dict)
    stages: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The network, the frameworks and the fault."""
        return f"{self.network}/{self.frameworks}/{self.fault}"

    @property
    def is_fault(self) -> bool:
        """True if a fault is planted."""
        return bool(self.stages)

    @property
    def programs(self) -> tuple[tuple[str, str, dict[str, Any]], tuple[str, str, dict[str, Any]]]:
        """The actual program and the reference: framework, network and settings."""
        actual, reference = self.frameworks.split(">")
        return (actual, self.network, self.changed), (reference, self.network, {})


def _weight(name: str, how: str) -> dict[str, Any]:
    return {"weights": {name: how}}


#: For each network: the name of a fault, the settings, and the stages.
_FAULTS: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "mlp": [
        ("tanh_gelu", {"activation": "gelu_tanh"}, "act"),
        ("relu_for_gelu", {"activation": "relu"}, "act"),
        ("no_bias", {"without_bias": "fc2"}, "fc2"),
        ("weight_transposed", _weight("fc2.w", "transposed"), "fc2"),
        ("weight_scaled", _weight("fc3.w", "scaled"), "fc3"),
        ("bias_rolled", _weight("fc1.b", "rolled"), "fc1"),
        ("loss_sum", {"reduction": "sum"}, "loss fc3"),
        ("gradient_lost", {"detached": "act"}, "act fc1 fc2 update"),
        ("learning_rate", {"learning_rate": 0.01}, "update"),
        ("momentum", {"momentum": 0.5}, "update"),
        ("weight_decay", {"weight_decay": 0.1}, "update"),
        ("nesterov", {"nesterov": True}, "update"),
        ("frozen", {"frozen": "fc1.w"}, "update fc1"),
        ("accumulated", {"keeps_gradients": True}, "update fc1 fc2 fc3"),
    ],
    "cnn": [
        ("batch_norm_eps", {"eps_of": "bn1", "eps": 1e-1}, "bn1"),
        ("small_eps", {"eps_of": "bn2", "eps": 1e-5}, "bn2"),
        ("padding", {"symmetric_padding": True}, "conv2"),
        ("flat_order", {"flat_order": "hwc"}, "flat head"),
        ("average_pool", {"pool": "mean"}, "pool"),
        ("evaluates", {"training": False}, "bn1"),
        ("kernel_rolled", _weight("conv2.w", "rolled"), "conv2"),
        ("gain_scaled", _weight("bn1.w", "scaled"), "bn1"),
        ("loss_sum", {"reduction": "sum"}, "loss head"),
        ("gradient_lost", {"detached": "bn2"}, "bn2 flat head update"),
        ("momentum", {"momentum": 0.0}, "update"),
    ],
    "resnet": [
        ("no_shortcut", {"shortcut": False}, "add"),
        ("no_relu", {"last_relu": False}, "relu"),
        ("max_for_mean", {"pool": "max_all"}, "pool"),
        ("batch_norm_eps", {"eps_of": "bn3", "eps": 1e-1}, "bn3"),
        ("kernel_scaled", _weight("conv3.w", "scaled"), "conv3"),
        ("offset_rolled", _weight("bn4.b", "rolled"), "bn4"),
        ("gradient_lost", {"detached": "add"}, "add bn1 relu conv2 AddN"),
        ("learning_rate", {"learning_rate": 0.2}, "update"),
    ],
    "block": [
        ("norm_eps", {"eps_of": "norm1", "eps": 1e-1}, "norm1"),
        ("no_scale", {"scale": False}, "scale scores mask RealDiv"),
        ("mask_value", {"mask_value": -1.0}, "mask softmax"),
        ("mask_offset", {"mask_offset": 2}, "mask softmax"),
        ("softmax_axis", {"axis": -2}, "softmax"),
        ("swapped", {"swapped": True}, "scores"),
        ("heads_not_merged", {"merged_heads": False}, "merge o mix"),
        ("no_residual", {"residual": "add1"}, "add1 norm2"),
        ("no_last_residual", {"residual": "add2"}, "add2 loss"),
        ("tanh_gelu", {"activation": "gelu_tanh"}, "act"),
        ("query_transposed", _weight("q.w", "transposed"), "q"),
        ("value_bias_rolled", _weight("v.b", "rolled"), "v"),
        ("no_bias", {"without_bias": "o"}, "o"),
        ("gradient_lost", {"detached": "softmax"}, "softmax mix scores mask scale q k update"),
        ("loss_sum", {"reduction": "sum"}, "loss add2"),
    ],
    "gru": [
        ("reset_before", {"reset_after": False}, "candidate h"),
        ("update_swapped", {"update_swapped": True}, "state"),
        ("early_state", {"last_state": 2}, "head"),
        ("no_state_bias", {"without_bias": "h"}, "h"),
        ("state_weight_rolled", _weight("h.w", "rolled"), "h"),
        ("truncated", {"detached": "state"}, "state h update_gate candidate"),
        ("weight_decay", {"weight_decay": 0.1}, "update"),
        ("frozen", {"frozen": "h.b"}, "update h"),
    ],
    "lm": [
        ("norm_eps", {"eps_of": "norm", "eps": 1.0}, "norm"),
        ("no_embedding_scale", {"embedding_scale": False}, "embedding_scale positions table"),
        ("position_offset", {"position_offset": 1}, "positions"),
        ("label_shift", {"label_shift": 0}, "loss"),
        ("gate_swapped", {"swapped": True}, "act product"),
        ("gelu_for_silu", {"activation": "gelu_tanh"}, "act"),
        ("untied_gradient", {"detached": "logits"}, "logits table AddN"),
        ("gradient_lost", {"detached": "product"}, "product act gate up down update"),
        ("no_residual", {"residual": "add1"}, "add1 logits"),
        ("up_scaled", _weight("up.w", "scaled"), "up"),
        ("loss_sum", {"reduction": "sum"}, "loss logits"),
    ],
    "tower": [
        ("ids_offset", {"ids_offset": 1}, "user"),
        ("join_order", {"swapped": True}, "join"),
        ("no_scale", {"scale": False}, "scale dot loss RealDiv"),
        ("gradient_lost", {"detached": "item"}, "item dot update"),
        ("table_rolled", _weight("item.w", "rolled"), "item"),
        ("loss_sum", {"reduction": "sum"}, "loss scale"),
        ("momentum", {"momentum": 0.5}, "update"),
    ],
}
#: Settings that only one framework has here.
_ONLY = {"weight_decay": ("torch", "mindspore"), "keeps_gradients": ("torch",)}


def _frameworks(network: str, fault: str, changed: dict[str, Any]) -> str:
    """Return the frameworks of the pair with a fault."""
    allowed = next((_ONLY[name] for name in changed if name in _ONLY), None)
    pairs = [pair for pair in _PAIRS if allowed is None or pair.split(">")[0] in allowed]
    return pairs[zlib.crc32(f"{network}/{fault}".encode()) % len(pairs)]


def _cases() -> list[Case]:
    cases = [Case(network, frameworks) for network in NETWORKS for frameworks in _CORRECT]
    cases += [Case(network, "mindspore>graph") for network in _WITHOUT_TORCH]
    for network, faults in _FAULTS.items():
        for fault, changed, stages in faults:
            frameworks = _frameworks(network, fault, changed)
            cases.append(Case(network, frameworks, fault, changed, frozenset(stages.split())))
    return cases + _cases_of_torchair()


def _cases_of_torchair() -> list[Case]:
    cases = [Case(network, "torchair>forward") for network in NETWORKS]
    faults = [
        (network, fault, changed, frozenset(stages.split()))
        for network, faults in _FAULTS.items()
        for fault, changed, stages in faults
        if not changed.keys() & _OF_TRAINING
    ]
    for number, (network, *fault) in enumerate(faults[::_EVERY_OF_TORCHAIR]):
        cases.append(Case(network, ("torchair>forward", "forward>torchair")[number % 2], *fault))
    return cases


CASES = _cases()
