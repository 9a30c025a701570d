"""Callbacks that dump chosen optimizer steps of trainers which own the training loop."""

from __future__ import annotations

from typing import Any, Optional

import ascend_dump


class _Recording:
    """A capture whose steps end with the optimizer's, as trainers count them: `steps="100-101"` are their steps."""

    def __init__(self, **settings: Any) -> None:
        options = {"step": "optimizer", **settings.pop("options", {})}
        self.settings: dict[str, Any] = {**settings, "options": options}
        self.capture: Optional[ascend_dump.Capture] = None

    def begin(self, target: Any) -> None:
        self.capture = ascend_dump.capture(target, **self.settings).start()

    def end(self) -> None:
        if self.capture is not None:
            self.capture.stop()


def hf_callback(**settings: Any) -> Any:
    """A callback for `transformers.Trainer(callbacks=[...])`; settings: those of `ascend_dump.capture`."""
    from transformers import TrainerCallback

    class HfDump(TrainerCallback):
        recording = _Recording(**settings)

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            self.recording.begin(model)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.recording.end()

    return HfDump()


def lightning_callback(**settings: Any) -> Any:
    """A callback for `lightning.Trainer(callbacks=[...])`; settings: those of `ascend_dump.capture`.

    There is no target: `training_step` is called, and not the module.
    """
    from lightning.pytorch import Callback

    class LightningDump(Callback):  # type: ignore[misc]  # without type information
        recording = _Recording(**settings)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.recording.begin(None)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.recording.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.recording.end()

    return LightningDump()
