"""The calls of pyACL by which an application runs a model once, for the tests of the adapter `acl`."""

from __future__ import annotations

from typing import Any

import numpy as np


def execute(acl: Any, model: int, x: np.ndarray) -> np.ndarray:
    """One execution of a model with one input and one output of float32."""
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc(desc, model) == 0
    size = acl.mdl.get_output_size_by_index(desc, 0)
    source, _ = acl.rt.malloc(x.nbytes, 0)
    result, _ = acl.rt.malloc(size, 0)
    sets = []
    for address, length in ((source, x.nbytes), (result, size)):
        dataset = acl.mdl.create_dataset()
        acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, length))
        sets.append(dataset)
    assert acl.rt.memcpy(source, x.nbytes, acl.util.numpy_to_ptr(x), x.nbytes, 1) == 0
    assert acl.mdl.execute(model, *sets) == 0
    host, _ = acl.rt.malloc_host(size)
    assert acl.rt.memcpy(host, size, result, size, 2) == 0
    return np.frombuffer(acl.util.ptr_to_bytes(host, size), np.float32)
