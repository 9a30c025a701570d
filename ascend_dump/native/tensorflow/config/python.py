"""Write dump settings as lines of Python, in the form of the document on data dump of TensorFlow on Ascend."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping

from ascend_dump.native.tensorflow.config.keys import DUMP_KEYS, KEYS, Value
from ascend_dump.steps import Steps

__all__ = ["STYLES", "python_lines"]

#: The styles of programs, each with its last line, which uses the settings.
STYLES = {
    "session": "config = npu_config_proto(config_proto=session_config)  # for tf.Session(config=config)",
    "estimator": "config = NPURunConfig({arguments})  # for NPUEstimator(config=config)",
    "keras": "npu_keras_sess = set_keras_session_npu_config(config=session_config)",
}
#: Keys that are arguments of NPURunConfig, and not of DumpConfig.
_OF_RUN_CONFIG = ("quant_dumpable", "enable_exception_dump")
_SWITCHES = ("enable_dump", "enable_dump_debug")


def python_lines(values: Mapping[str, Value], style: str, ranks: Steps) -> Iterator[str]:
    """Yield the lines for a style.

    values: the keys of NpuOptimizer. style: a key of `STYLES`. ranks: the values of RANK_ID with which a process dumps
    """
    if not ranks.all:
        yield "import os"
    yield from ("import tensorflow as tf", "from npu_bridge.npu_init import *", "")
    if not ranks.all:
        yield 'rank = int(os.getenv("RANK_ID", "0"))'
        yield f"dump_flag = {_condition(ranks)}"
    texts = {
        name: "dump_flag" if name in _SWITCHES and value is True and not ranks.all else _literal(value)
        for name, value in values.items()
    }
    if style == "estimator":
        yield f"dump_config = DumpConfig({_arguments(texts, set(DUMP_KEYS) - set(_OF_RUN_CONFIG))})"
        yield "session_config = tf.ConfigProto(allow_soft_placement=True)"
        assigned = {"dump_config": "dump_config", "session_config": "session_config", **texts}
        names = ("dump_config", "session_config", *_OF_RUN_CONFIG)
        yield STYLES[style].format(arguments=_arguments(assigned, names))
        yield "# A ported script with tf.estimator.Estimator takes the lines of --style session, and then"
        yield "# npu_run_config_init(run_config=tf.estimator.RunConfig(session_config=session_config))"
        return
    yield "session_config = tf.ConfigProto(allow_soft_placement=True)"
    yield "custom_op = session_config.graph_options.rewrite_options.custom_optimizers.add()"
    yield 'custom_op.name = "NpuOptimizer"'
    for name, text in texts.items():
        field = KEYS[name].field
        yield f'custom_op.parameter_map["{name}"].{field} = ' + (
            f"tf.compat.as_bytes({text})" if field == "s" else text
        )
    yield "session_config.graph_options.rewrite_options.remapping = RewriterConfig.OFF"
    yield "session_config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF"
    yield STYLES[style]


def _arguments(texts: Mapping[str, str], names: Container[str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in texts.items() if name in names)


def _literal(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _condition(ranks: Steps) -> str:
    """Return a Python expression that is true if the variable `rank` is one of the ranks."""
    conditions = []
    for part in ranks.to_cann().split("|"):
        first, _, last = part.partition("-")
        conditions.append(f"{first} <= rank <= {last}" if last else f"rank == {first}")
    return " or ".join(conditions)
