"""Read the tensors of checkpoints, and the parameters in dumps, without running code in the files.

`open_weights` takes a `.safetensors` file, a `.pt` or `.bin` file of `torch.save`, a directory of such files (also a
sharded checkpoint of Hugging Face, with its index), or a dump. Tensors are read in pieces, so memory does not grow with
the size of the file.
"""

from __future__ import annotations

from ascend_dump.reading.weights._open import Weights, open_weights
from ascend_dump.reading.weights._tensor import WeightTensor, numpy_dtype

__all__ = ["WeightTensor", "Weights", "numpy_dtype", "open_weights"]
