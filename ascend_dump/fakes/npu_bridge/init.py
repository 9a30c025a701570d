"""The fakes of `npu_bridge.npu_init`, `npu_ops`, `util` and `hccl`, which scripts that were ported to the NPU import.

Sources: hicann/tensorflow tf_adapter/python/npu_bridge/npu_init.py, estimator/npu_ops.py, hccl's manage/api.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ascend_dump.fakes._importing import Fill, leave_empty
from ascend_dump.fakes.npu_bridge.config import set_npu_defaults
from ascend_dump.fakes.npu_bridge.process import import_tensorflow
from ascend_dump.fakes.npu_bridge.sessions import watch_sessions

if TYPE_CHECKING:
    from ascend_dump.fakes.npu_bridge.process import BridgeProcess

__all__ = ["fill_npu_init", "fill_npu_ops", "fill_util", "hccl_modules"]

#: The key of the rank among the values of `util`.
_RANK = "npu_rank_id"


def fill_npu_init(process: BridgeProcess, module: ModuleType) -> None:
    """Define the names of npu_init in the module, and add an NpuOptimizer to all later sessions of the process."""
    tf = import_tensorflow()
    from hccl.manage import api
    from hccl.split import api as split
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
    from tensorflow.python.client import session

    # npu_device.compat.v1 is the same package under another name.
    package = module.__name__.rpartition(".")[0]
    npu_ops = import_module(f"{package}.estimator.npu_ops")
    npu_config, npu_estimator, util = (
        import_module(f"{package}.estimator.npu.{name}") for name in ("npu_config", "npu_estimator", "util")
    )
    watch_sessions(process)
    backends = _backends(tf)

    def usable(config: Any) -> Any:
        # As in npu_bridge, an object that is not a ConfigProto is silently replaced.
        proto = config if isinstance(config, config_pb2.ConfigProto) else config_pb2.ConfigProto()
        set_npu_defaults(proto, config_pb2, rewriter_config_pb2.RewriterConfig)
        return proto

    def npu_config_proto(config_proto: Any = None) -> Any:
        return usable(config_proto)

    def npu_run_config_init(run_config: Any = None) -> Any:
        kind = tf.compat.v1.estimator.RunConfig
        config = run_config if isinstance(run_config, kind) else kind()
        config.__dict__["_session_config"] = npu_config_proto(config.session_config)
        return config

    def set_keras_session_npu_config(config: Any = None) -> Any:
        sess = session.Session(config=usable(config))
        for backend in backends:
            backend.set_session(sess)
        return sess

    def init_resource(config: Any = None) -> tuple[Any, Any]:
        config_proto = usable(config)
        init, shutdown = npu_ops.initialize_system(), npu_ops.shutdown_system()
        sess = session.Session(config=config_proto)
        sess.run(init)
        util.set_value(_RANK, api.get_rank_id())
        return sess, shutdown

    def shutdown_resource(sess: Any, npu_shutdown: Any) -> None:
        sess.run(npu_shutdown)

    def close_session(sess: Any) -> None:
        sess.close()

    def get_npu_rank_id() -> Any:
        return util.get_value(_RANK, 0)

    def npu_clear_session(config: Any = None) -> None:
        for backend in backends:
            backend.clear_session()
        set_keras_session_npu_config(config)

    functions = (
        *(npu_config_proto, npu_run_config_init, set_keras_session_npu_config, init_resource, shutdown_resource),
        *(close_session, get_npu_rank_id, npu_clear_session),
    )
    vars(module).update({function.__name__: function for function in functions})
    # As in npu_bridge, there is no __all__. So `from … import *` also rebinds names such as `tf` in the user's script.
    vars(module).update(
        tf=tf,
        os=os,
        session=session,
        backend=backends[0],
        config_pb2=config_pb2,
        rewriter_config_pb2=rewriter_config_pb2,
        RewriterConfig=rewriter_config_pb2.RewriterConfig,
        npu_ops=npu_ops,
        util=util,
        **{name: vars(part)[name] for part in (npu_config, npu_estimator, api, split) for name in _public(part)},
    )
    _decorate_sessions(process, session, npu_config.decorator_tf_session)


def fill_npu_ops(process: BridgeProcess, module: ModuleType) -> None:
    """Define the operators that initialise and shut down the device. They are NoOps, which `watch_sessions` detects."""
    tf = import_tensorflow()
    watch_sessions(process)

    def initialize_system(name: Any = None) -> Any:
        op = tf.compat.v1.no_op(name=name or "NPUInit")
        process.init_ops.add(op)
        return op

    def shutdown_system(name: Any = None) -> Any:
        op = tf.compat.v1.no_op(name=name or "NPUShutdown")
        process.shutdown_ops.add(op)
        return op

    vars(module).update(
        initialize_system=initialize_system,
        shutdown_system=shutdown_system,
        NPUInit=initialize_system,
        NPUShutdown=shutdown_system,
    )


def fill_util(module: ModuleType) -> None:
    """Define the functions of util in the module: a dict of values, and `set_iteration_per_loop`."""
    values: dict[str, Any] = {}

    def get_value(key: str, default: Any = None) -> Any:
        return values.get(key, default)

    def set_iteration_per_loop(sess: Any, train_op: Any, iterations_per_loop: int = 1) -> Any:
        """Return `train_op`: here an operation runs once in each `Session.run`. (assumption npu_bridge.loop)"""
        if not hasattr(train_op, "control_inputs"):
            kind = train_op.dtype.name
            raise ValueError(f"The incoming 'train_op' type is '{kind}', and the need type is 'Operation'")
        if not isinstance(iterations_per_loop, int) or iterations_per_loop < 1:
            raise ValueError(f"iterations_per_loop must be a positive integer, not {iterations_per_loop!r}")
        return train_op

    functions = {"set_value": values.__setitem__, "get_value": get_value, "global_dict_init": values.clear}
    vars(module).update(functions, set_iteration_per_loop=set_iteration_per_loop)


def hccl_modules(process: BridgeProcess) -> Mapping[str, Fill]:
    """Return the functions that fill the modules of hccl, by module. npu_bridge and npu_device share them."""
    if not process.shared:
        process.shared = {
            "hccl": leave_empty,
            "hccl.manage": leave_empty,
            "hccl.manage.api": functools.partial(_fill_hccl_manage, process),
            "hccl.split": leave_empty,
            "hccl.split.api": _fill_hccl_split,
        }
    return process.shared


def _fill_hccl_manage(process: BridgeProcess, module: ModuleType) -> None:
    """Define the functions that return ranks and their number. They read the environment."""

    def number(name: str, default: int) -> int:
        return int(process.npu.environ.get(name) or default)

    def get_rank_id(group: str = "hccl_world_group") -> int:
        return number("RANK_ID", 0)

    def get_rank_size(group: str = "hccl_world_group") -> int:
        return number("RANK_SIZE", 1)

    def get_local_rank_id(group: str = "hccl_world_group") -> int:
        return process.npu.device_id

    def get_local_rank_size(group: str = "hccl_world_group") -> int:
        return number("LOCAL_RANK_SIZE", 1)

    functions = (get_rank_id, get_rank_size, get_local_rank_id, get_local_rank_size)
    vars(module).update({function.__name__: function for function in functions})


def _fill_hccl_split(module: ModuleType) -> None:
    def set_split_strategy_by_idx(idx_list: Any, group: str = "hccl_world_group") -> None:
        """Do nothing: the fake has no collectives to split."""

    def set_split_strategy_by_size(data_size_list: Any, group: str = "hccl_world_group") -> None:
        """Do nothing: the fake has no collectives to split."""

    functions = (set_split_strategy_by_idx, set_split_strategy_by_size)
    vars(module).update({function.__name__: function for function in functions})


def _public(module: ModuleType) -> list[str]:
    """Return the public names of a module, without its imports."""
    hidden = ("config_pb2", "RewriterConfig")
    return [name for name in vars(module) if not name.startswith("_") and name not in hidden]


def _backends(tf: Any) -> list[Any]:
    """Return the modules that store the session of tf.keras.

    Newer versions of TensorFlow contain two copies of keras, each with its own session.
    """
    from tensorflow.python.keras import backend

    second = getattr(getattr(tf.compat.v1, "keras", None), "backend", None)
    return [backend, second] if second is not backend and hasattr(second, "set_session") else [backend]


def _decorate_sessions(process: BridgeProcess, session: Any, decorator: Any) -> None:
    """Replace the constructors of TensorFlow's sessions. `BridgeProcess.leave` restores them."""
    for cls in (session.Session, session.InteractiveSession):
        process.undo.append(functools.partial(setattr, cls, "__init__", cls.__init__))
        cls.__init__ = decorator(cls.__init__)
