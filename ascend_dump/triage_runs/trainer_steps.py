"""Convert a step of a dump to the count of trainers: optimizer steps and their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ascend_dump.dump_format import Outline

__all__ = ["trainer_step"]


def trainer_step(step: int, rank: Optional[int], time: Optional[int], outlines: Sequence[Outline]) -> str:
    """Return the position of an operator as `optimizer step 2, micro-batch 1 (backward pass 9 of all)`.

    All three are counted from 0. Micro-batch and backward pass are left out if each optimizer step has one backward
    pass. Then the result is "" if the optimizer step has the same number as the step of the dump. The result is also ""
    if the optimizer step is not known.

    step      the step of the dump, which is a call of a model
    time      time of the operator in microseconds, None if it is not known
    outlines  the outlines of the same run
    """
    outline = next((one for one in outlines if step in one.before and one.name.startswith(f"{rank or 0}-")), None)
    if outline is None:
        return ""
    before = outline.before
    update, passes, updated_at = before[step]
    last_update, last_passes, _ = before[max(before)]
    if not last_update and not any(moment for _, _, moment in before.values()):
        return ""
    is_after = bool(updated_at and time is not None and time > updated_at)
    number = update + is_after
    text = f"optimizer step {number}"
    if last_passes > last_update + 1:
        if is_after:
            passes = before.get(step + 1, (0, passes + 1, 0))[1]
        # The number of backward passes before this optimizer step.
        first = min((count for done, count, _ in before.values() if done == number), default=passes)
        return f"{text}, micro-batch {max(passes - first, 0)} (backward pass {passes} of all)"
    return text if number != step else ""
