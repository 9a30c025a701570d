"""Run an offline model once: a numpy array in, pyACL, a numpy array out.

    python infer.py net.om x.npy y.npy [--config acl.json] [--capture DIRECTORY]

It is an ordinary application: with `--config` the dump comes from acl.init, with `--capture` from the
adapter of ascend-dump. With ASCEND_DUMP_FAKE=acl in the environment the simulated device stands in for the
real one, see simulated.py; nothing else differs.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
from simulated import simulated_device

DEVICE = 0
MALLOC_HUGE_FIRST = 0
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
#: aclDataType to numpy.
TYPES = {0: np.float32, 1: np.float16, 2: np.int8, 3: np.int32, 4: np.uint8, 9: np.int64, 11: np.float64, 12: np.bool_}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run an offline model once.")
    parser.add_argument("model", help="the .om file")
    parser.add_argument("input", help="its input, a .npy file")
    parser.add_argument("output", help="where its output goes")
    parser.add_argument("--config", help="an acl.json")
    parser.add_argument("--capture", metavar="DIRECTORY", help="dump everything into this directory")
    args = parser.parse_args()
    with simulated_device():
        np.save(args.output, run(args.model, np.load(args.input), args.config, args.capture))


def run(model: str, x: np.ndarray, config: Optional[str] = None, capture: Optional[str] = None) -> np.ndarray:
    """Initialise acl, run the model once and tidy up."""
    import acl

    check(acl.init(config) if config else acl.init(), "acl.init")
    try:
        check(acl.rt.set_device(DEVICE), "acl.rt.set_device")
        with captured(capture):
            # CANN looks at its dump settings when a model is loaded, so loading belongs into the block.
            model_id = take(acl.mdl.load_from_file(model), "acl.mdl.load_from_file")
            y = infer(acl, model_id, x)
        check(acl.mdl.unload(model_id), "acl.mdl.unload")
        check(acl.rt.reset_device(DEVICE), "acl.rt.reset_device")
    finally:
        acl.finalize()
    return y


def infer(acl: Any, model_id: int, x: np.ndarray) -> np.ndarray:
    """Execute a loaded model with one input and one output."""
    desc = acl.mdl.create_desc()
    check(acl.mdl.get_desc(desc, model_id), "acl.mdl.get_desc")
    wanted = acl.mdl.get_input_size_by_index(desc, 0)
    if x.nbytes != wanted:
        raise SystemExit(f"the model takes {wanted} bytes, the input has {x.nbytes}")
    size = acl.mdl.get_output_size_by_index(desc, 0)
    dims, ret = acl.mdl.get_output_dims(desc, 0)
    check(ret, "acl.mdl.get_output_dims")
    dtype = TYPES[acl.mdl.get_output_data_type(desc, 0)]

    with dataset(acl, wanted) as (inputs, x_device), dataset(acl, size) as (outputs, y_device):
        data = np.ascontiguousarray(x).tobytes()
        source = acl.util.bytes_to_ptr(data)
        check(acl.rt.memcpy(x_device, wanted, source, wanted, HOST_TO_DEVICE), "acl.rt.memcpy")
        check(acl.mdl.execute(model_id, inputs, outputs), "acl.mdl.execute")
        host = take(acl.rt.malloc_host(size), "acl.rt.malloc_host")
        check(acl.rt.memcpy(host, size, y_device, size, DEVICE_TO_HOST), "acl.rt.memcpy")
        result = np.frombuffer(acl.util.ptr_to_bytes(host, size), dtype).reshape(dims["dims"])
        check(acl.rt.free_host(host), "acl.rt.free_host")
    check(acl.mdl.destroy_desc(desc), "acl.mdl.destroy_desc")
    return result


@contextlib.contextmanager
def dataset(acl: Any, size: int) -> Iterator[tuple[int, int]]:
    """A data set of one buffer in device memory: its handle, and the buffer's address."""
    address = take(acl.rt.malloc(size, MALLOC_HUGE_FIRST), "acl.rt.malloc")
    buffer = acl.create_data_buffer(address, size)
    made = acl.mdl.create_dataset()
    _, ret = acl.mdl.add_dataset_buffer(made, buffer)
    check(ret, "acl.mdl.add_dataset_buffer")
    try:
        yield made, address
    finally:
        acl.destroy_data_buffer(buffer)
        acl.mdl.destroy_dataset(made)
        acl.rt.free(address)


def captured(path: Optional[str]) -> contextlib.AbstractContextManager[Any]:
    if path is None:
        return contextlib.nullcontext()
    import ascend_dump

    return ascend_dump.capture(framework="acl", path=path)


def take(found: tuple[Any, int], call: str) -> Any:
    check(found[1], call)
    return found[0]


def check(ret: int, call: str) -> None:
    if ret != 0:
        raise SystemExit(f"{call} returned {ret}")


if __name__ == "__main__":
    main()
