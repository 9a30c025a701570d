"""Read the dump back: what is in it, one tensor, and what changed from step 0 to step 2."""

import numpy as np

import ascend_dump

dump = ascend_dump.open("dumps")
print(f"{len(dump)} records of steps {sorted(dump.known_values('step'))}")

# One tensor, as numpy array, and where it came from.
(record,) = dump.select(op="conv1/convolution_0", step=2, io="output")
print(f"{record.op_name} at {record.source}")
print(f"  {record.dtype}{list(record.shape)}, first values {record.numpy().flat[:3]}")

# Statistics of everything the forward pass computed; none of it is read as a whole.
print("largest values")
for record in dump.select(step=0, phase="forward", io="output", index=0):
    if record.nbytes:
        print(f"  {record.op_name:24} {record.statistics().max:9.4f}")

# The weights are the second input of a convolution and, transposed, the third of the linear layer.
print("how far the weights moved")
for op, index in (("conv1/convolution_0", 1), ("conv2/convolution_0", 1), ("head/addmm_0", 2)):
    before, after = (record.numpy() for record in dump.select(op=op, io="input", index=index))
    print(f"  {op:24} {np.linalg.norm(after - before):9.4f}")
