"""Trees of eager NPU dumps as opbase and adump write them: API calls around kernels, inputs and outputs apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import numpy as np

from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.names import DumpLevels, DumpName, build_levels, build_name
from ascend_dump.native.cann.statistics_csv import HEADER, format_row, format_statistics

RUN = "20260101010101"
TIME = 1_767_229_261_000_000
Arrays = Sequence[np.ndarray]


@dataclass
class Device:
    """The files of one device in one step.

    mode     "all", "input" or "output"; adump leaves out the other side
    data     "tensor" or "stats"
    number   the counter of API calls, see opbase's opLogSequenceCounter
    files    the files in the order in which they were written
    """

    directory: Path
    number: int = 0
    mode: str = "all"
    data: str = "tensor"
    time: int = TIME
    task: int = 0
    files: list[Path] = field(default_factory=list)

    def call(
        self,
        api: str,
        inputs: Arrays,
        outputs: Arrays,
        kernels: Sequence[tuple[str, Arrays, Arrays]],
        *,
        stream: int = 7,
        between: Optional[Callable[[], None]] = None,
    ) -> int:
        """Write an API call with its kernels (name, inputs, outputs). between: runs before its last kernel.

        The tensors of the call are whole storages of one dimension, as op-plugin describes them (op_api_common.cpp).
        """
        number, self.number = self.number, self.number + 1
        self.write(f"{api}_{number}_L2", api, inputs=[array.reshape(-1) for array in inputs], stream=stream)
        for position, (kernel, read, written) in enumerate(kernels, 1):
            if between is not None and position == len(kernels):
                between()
            self.write(f"{api}_{number}_L0", kernel, inputs=read, stream=stream)
            self.write(f"{api}_{number}_L0", kernel, outputs=written, stream=stream)
        self.write(f"{api}_{number}_L2", api, outputs=[array.reshape(-1) for array in outputs], stream=stream)
        return number

    def generated(self, op_type: str, inputs: Arrays, outputs: Arrays, *, stream: int = 7) -> None:
        """Write an operator with a generated API: each side has its own number."""
        for sides in ({"inputs": inputs}, {"outputs": outputs}):
            self.write(f"L2DfxAbscent_{self.number}", f"_L0{op_type}", stream=stream, **sides)
            self.number += 1

    def overflow(self, api: str, kernel: str, inputs: Arrays, outputs: Arrays) -> None:
        """Write a kernel that overflowed: one file with both sides."""
        self.write(f"{api}_{self.number}_L0", kernel, inputs=inputs, outputs=outputs)
        self.number += 1

    def write(
        self,
        op_type: str,
        op_name: str,
        inputs: Arrays = (),
        outputs: Arrays = (),
        *,
        stream: int = 7,
        **fields: object,
    ) -> None:
        self.time += 10
        self.task += 1
        sides = {"input": inputs if self.mode != "output" else (), "output": outputs if self.mode != "input" else ()}
        name = DumpName("device", op_type, op_name, self.time, self.task, stream, **fields)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.data == "stats":
            name = name._replace(task_id=65535, stream_id=65535, statistics=True)
            rows = [
                format_row(io, index, array.nbytes, "FLOAT", "ND", array.shape, format_statistics(array))
                for io, arrays in sides.items()
                for index, array in enumerate(arrays)
            ]
            path = self.directory / build_name(name)
            path.write_text("".join([f"{HEADER}\n", *rows]))
        else:
            path = self.directory / build_name(name)
            tensors = [
                tensor_of(io, index, array, address=0x1000 * (index + 1))
                for io, arrays in sides.items()
                for index, array in enumerate(arrays)
            ]
            write(path, tensors, op_name=op_name, dump_time=self.time)
        self.files.append(path)


def device(root: Path, *, step: int = 0, rank: Optional[int] = None, device: int = 0, **fields: object) -> Device:
    """Return the device of one step below the root of a dump."""
    levels = DumpLevels(RUN, device, outer_step=step, rank=rank, world=None if rank is None else 8)
    return Device(Path(root, *build_levels(levels)), **fields)  # type: ignore[arg-type]


def write_program(
    root: Path, *, start: int = 0, steps: int = 2, ranks: Sequence[int] = (0, 1), wrong: str = "", **fields: object
) -> None:
    """Write a program of four operators: aclnnAdd, aclnnInplaceAdd, aclnnMatmul, FlashAttentionScore.

    start  the first number of the counter; wrong: the kernel whose output is wrong in step 0 of rank 0
    """
    for rank in ranks:
        number = start + 1000 * rank
        for step in range(steps):
            npu = device(root, step=step, rank=rank, device=rank, number=number, **fields)
            faulty = wrong if (rank, step) == (0, 0) else ""
            write_step(npu, np.random.default_rng(10 * rank + step), wrong=faulty)
            number = npu.number + 3


def write_step(npu: Device, random: np.random.Generator, *, wrong: str = "") -> None:
    def out(kernel: str, array: np.ndarray) -> np.ndarray:
        return (
            np.where(np.arange(array.size).reshape(array.shape) == 3, array + 64, array) if kernel == wrong else array
        )

    x, y, weight = (random.standard_normal((4, 4)).astype("f4") for _ in range(3))
    total = out("AddAiCore", x + y)
    npu.call("aclnnAdd", [x, y], [total], [("AddAiCore", [x, y], [total])])
    again = out("InplaceAdd", total + y)
    npu.call("aclnnInplaceAdd", [total, y], [again], [("InplaceAdd", [total, y], [again])])
    half = [out("Cast", array.astype("f2")) for array in (again, weight)]
    product = out("MatMulCommon", half[0] @ half[1])
    result = product.astype("f4")
    kernels = [
        ("Cast", [again], [half[0]]),
        ("Cast", [weight], [half[1]]),
        ("MatMulCommon", half, [product]),
        ("Cast", [product], [result]),
    ]
    npu.call("aclnnMatmul", [again, weight], [result], kernels)
    npu.generated("FlashAttentionScore", [result, x], [out("FlashAttentionScore", result * x)])
