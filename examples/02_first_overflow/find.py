"""The first operator that made Inf or NaN of finite inputs, from the dump."""

import numpy as np

import ascend_dump

dump = ascend_dump.open("dumps")
output = next(record for record in dump if record.attrs.get("origin"))
(given,) = dump.select(op=output.op_name, step=output.step, io="input")

print(f"{output.op_name} ({output.op_type}), step {output.step}, {output.phase} pass")
print(f"  source  {output.source}")
print(f"  input   {given.dtype}{list(given.shape)}, at most {given.statistics().max}")
print(f"  output  {output.statistics().posinf} of {output.statistics().count} elements are Inf")
samples = np.unique(np.argwhere(np.isinf(output.numpy()))[:, 0])
print(f"  all of them in sample {samples} of the batch")
