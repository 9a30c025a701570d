"""The cases: a harmless port of each network, and a port with each fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from port_programs.networks import (
    autocast,
    averaged_loop,
    bloom,
    click_model,
    clip,
    ddpm,
    deberta,
    distilbert,
    flat_loop,
    gan,
    gemma2,
    gpt_neox,
    gru_tagger,
    image_vae,
    lightning_loop,
    lora,
    lstm,
    mamba_sum,
    mixtral,
    mobilenet,
    modernbert,
    nhwc_convnext,
    olmo2,
    qwen3,
    resnext,
    roberta,
    sd3,
    segformer,
    swin,
    t5,
    whisper,
)
from port_programs.program import Network, Program, Truth

NETWORKS = {
    network.name: network
    for network in (
        qwen3.NETWORK,
        olmo2.NETWORK,
        lstm.NETWORK,
        averaged_loop.NETWORK,
        roberta.NETWORK,
        resnext.NETWORK,
        lora.NETWORK,
        ddpm.NETWORK,
        deberta.NETWORK,
        lightning_loop.NETWORK,
        swin.NETWORK,
        autocast.NETWORK,
        clip.NETWORK,
        clip.NETWORK_OF_LARGEST_TOKEN,
        t5.NETWORK,
        gpt_neox.NETWORK,
        mixtral.NETWORK,
        gemma2.NETWORK,
        modernbert.NETWORK,
        distilbert.NETWORK,
        nhwc_convnext.NETWORK,
        mobilenet.NETWORK,
        image_vae.NETWORK,
        whisper.NETWORK,
        bloom.NETWORK,
        click_model.NETWORK,
        gru_tagger.NETWORK,
        gan.NETWORK,
        flat_loop.NETWORK,
        sd3.NETWORK,
        segformer.NETWORK,
        mamba_sum.NETWORK,
    )
}


@dataclass(frozen=True)
class Case:
    """A network, and the fault of its port; harmless if there is none."""

    network: str
    fault: str = ""

    @property
    def name(self) -> str:
        """The network and the fault."""
        return f"{self.network}/{self.fault or 'harmless'}"

    @property
    def is_fault(self) -> bool:
        """True if a fault is planted."""
        return bool(self.fault)

    @property
    def truth(self) -> Truth:
        """The origins that are accepted."""
        return NETWORKS[self.network].faults[self.fault] if self.fault else Truth()

    @property
    def marker(self) -> str:
        """The name on the lines that are accepted."""
        return f"{self.network}_{self.fault}"


def _cases_of(network: Network) -> Iterator[Case]:
    yield Case(network.name)
    for fault in network.faults:
        yield Case(network.name, fault)


CASES = tuple(case for network in NETWORKS.values() for case in _cases_of(network))


def build_reference(case: Case) -> Program:
    """Build the reference of a case; the same seed as for the port."""
    torch.manual_seed(0)
    program = NETWORKS[case.network].reference()
    torch.manual_seed(1)
    return program


def build_port(case: Case) -> Program:
    """Build the port of a case."""
    torch.manual_seed(0)
    program = NETWORKS[case.network].port(case.fault)
    torch.manual_seed(1)
    return program
