"""All cases."""

import program_pairs.networks.own_text
import program_pairs.networks.own_vision
import program_pairs.networks.transformers_networks
import program_pairs.networks.vision_networks  # noqa: F401
from program_pairs.cases import own, text, vision  # noqa: F401
from program_pairs.cases._table import CASES

__all__ = ["CASES"]
