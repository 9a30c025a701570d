"""The contracts of the adapters on an Ascend device: the classes that also run on the simulated one."""

from __future__ import annotations

from device_contracts import (
    TestAConfig,
    TestAModule,
    TestAModuleThroughAJson,
    TestATrainedModule,
    TestMindSporeOnAscend,
    TestModel,
    TestModelOfStatistics,
    TestOfflineModel,
)

__all__ = [
    "TestAConfig",
    "TestAModule",
    "TestAModuleThroughAJson",
    "TestATrainedModule",
    "TestMindSporeOnAscend",
    "TestModel",
    "TestModelOfStatistics",
    "TestOfflineModel",
]
