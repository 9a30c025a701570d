"""Measure the own error of each layer of a quantised program.

The own error of a layer is the difference between its outputs and the outputs of the reference's layer for the same
inputs.
"""

from __future__ import annotations

from ascend_dump.analysis.quantised.layer_error import LayerError
from ascend_dump.analysis.quantised.rank_layers import LocalErrors, local_errors

__all__ = ["LayerError", "LocalErrors", "local_errors"]
