"""The faults of the `late-` cases."""

import dataclasses

from rollout_pairs import (
    late_designs,
    late_faults_attention,
    late_faults_layers,
    late_faults_packed,
    late_faults_quant,
    late_faults_ring,
    late_faults_sides,
)
from rollout_pairs.cases import Case


def cases() -> list[Case]:
    """Return all faults of further designs and engines."""
    # The import has added the designs.
    assert late_designs.LATE
    of_designs = [*late_faults_attention.cases(), *late_faults_layers.cases()]
    return [
        *(dataclasses.replace(case, name=f"late-{case.name}") for case in of_designs),
        *late_faults_ring.cases(),
        *late_faults_packed.cases(),
        *late_faults_quant.cases(),
        *late_faults_sides.cases(),
    ]
