"""The pairs with one planted fault."""

from rollout_pairs import faults_engines, faults_transformers, late_faults
from rollout_pairs.cases import Case, unique


def cases() -> list[Case]:
    """Return all faults."""
    return unique([*faults_transformers.cases(), *faults_engines.cases(), *late_faults.cases()])
