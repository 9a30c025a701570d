"""The training with a capture around it. MindSpore must not have run anything before the block begins."""

from __future__ import annotations

import train

import ascend_dump

if __name__ == "__main__":
    with ascend_dump.capture(framework="mindspore", steps="0|2", path="captured") as cap:
        train.main()
    dump = cap.dump()
    print(f"{len(dump)} records of steps {sorted(dump.known_values('step'))}")
    (gradient,) = dump.select(op_type="BiasAddGrad", step=2, io="output")
    (before,) = dump.select(op_type="BiasAdd", step=2, io="output")
    print(f"{gradient.op_name}: {gradient.numpy().round(3).tolist()}")
    print(f"{before.op_name}: float32{list(before.shape)}, {before.source or 'source unknown'}")
