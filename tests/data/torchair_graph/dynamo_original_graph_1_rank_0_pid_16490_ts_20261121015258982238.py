# -*- coding: utf-8 -*-
from torch import tensor
from torchair._ge_concrete_graph import ge_apis as ge
from torchair.ge._ge_graph import get_default_ge_graph

arg0_1_0 = ge.Data(index=0, dtype=0, shape=[16, 8], placement="CPU", node_name="arg0_1")
arg1_1_0 = ge.Data(index=1, dtype=0, shape=[16], placement="CPU", node_name="arg1_1")
arg2_1_0 = ge.Data(index=2, dtype=0, shape=[5, 8], placement="CPU", node_name="arg2_1")
arg3_1_0 = ge.Data(index=3, dtype=0, shape=[16, 16], placement="CPU", node_name="arg3_1")
arg4_1_0 = ge.Data(index=4, dtype=0, shape=[16], placement="CPU", node_name="arg4_1")
arg5_1_0 = ge.Data(index=5, dtype=0, shape=[4, 16], placement="CPU", node_name="arg5_1")
arg6_1_0 = ge.Data(index=6, dtype=0, shape=[4], placement="CPU", node_name="arg6_1")

# File "/home/user/mlp.py", line 94, in forward    h = torch.relu(s.a(x))                   ^^^^^^^
## FX Code: t: torch.float32[8, 16]cpu = torch.ops.aten.t.default(arg0_1: torch.float32[16, 8]cpu)
## FX Code: addmm: torch.float32[5, 16]cpu = torch.ops.aten.addmm.default(arg1_1: torch.float32[16]cpu, arg2_1: torch.float32[5, 8]cpu, t: torch.float32[8, 16]cpu)
Transpose_0 = ge.Transpose(arg0_1_0, [1, 0], node_name="Transpose")
MatMulV2_0 = ge.MatMulV2(arg2_1_0, Transpose_0, None, None, node_name="MatMulV2")
Mul_0 = ge.Mul(MatMulV2_0, ge.Const(1, dtype=0), node_name="Mul")
Add_0 = ge.Add(Mul_0, arg1_1_0, node_name="Add")

# File "/home/user/mlp.py", line 94, in forward    h = torch.relu(s.a(x))        ^^^^^^^^^^^^^^^^^^
## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)
Relu_0 = ge.Relu(Add_0, node_name="Relu")

# File "/usr/lib/python3/torch_npu/dynamo/torchair/scope/_scope.py", line 35, in _npu_scope_enter    return torch.ops.air.scope_enter(keys, values)           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
## FX Code: scope_enter = torch.ops.air.scope_enter.default(['torchair_enable_data_dump'], ['True'])

# File "/home/user/mlp.py", line 97, in forward    h = torch.relu(s.b(h))                   ^^^^^^^
## FX Code: t_1: torch.float32[16, 16]cpu = torch.ops.aten.t.default(arg3_1: torch.float32[16, 16]cpu)
Transpose_1_0 = ge.Transpose(arg3_1_0, ge.Const([1, 0], dtype=9), node_name="Transpose_1")
## FX Code: addmm_1: torch.float32[5, 16]cpu = torch.ops.aten.addmm.default(arg4_1: torch.float32[16]cpu, relu: torch.float32[5, 16]cpu, t_1: torch.float32[16, 16]cpu)
MatMulV2_1_0 = ge.MatMulV2(Relu_0, Transpose_1_0, None, None, node_name="MatMulV2_1")
Mul_1_0 = ge.Mul(MatMulV2_1_0, ge.Const(1, dtype=0), node_name="Mul_1")
Add_1_0 = ge.Add(Mul_1_0, arg4_1_0, node_name="Add_1")

# File "/home/user/mlp.py", line 97, in forward    h = torch.relu(s.b(h))        ^^^^^^^^^^^^^^^^^^
## FX Code: relu_1: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm_1: torch.float32[5, 16]cpu)
Relu_1_0 = ge.Relu(Add_1_0, node_name="Relu_1")

# File "/usr/lib/python3/torch_npu/dynamo/torchair/scope/_scope.py", line 61, in _npu_scope_exit    return torch.ops.air.scope_exit()           ^^^^^^^^^^^^^^^^^^^^^^^^^^
## FX Code: scope_exit = torch.ops.air.scope_exit.default()

# File "/home/user/mlp.py", line 99, in forward    return s.c(h)           ^^^^^^
## FX Code: t_2: torch.float32[16, 4]cpu = torch.ops.aten.t.default(arg5_1: torch.float32[4, 16]cpu)
## FX Code: addmm_2: torch.float32[5, 4]cpu = torch.ops.aten.addmm.default(arg6_1: torch.float32[4]cpu, relu_1: torch.float32[5, 16]cpu, t_2: torch.float32[16, 4]cpu)
Transpose_2_0 = ge.Transpose(arg5_1_0, [1, 0], node_name="Transpose_2")
MatMulV2_2_0 = ge.MatMulV2(Relu_1_0, Transpose_2_0, None, None, node_name="MatMulV2_2")
Mul_2_0 = ge.Mul(MatMulV2_2_0, ge.Const(1, dtype=0), node_name="Mul_2")
Add_2_0 = ge.Add(Mul_2_0, arg6_1_0, node_name="Add_2")

_ = ge.NetOutput([Add_2_0], dependencies=[])
