"""Which parts of the health of GPUs are not in what was read, so that nobody takes silence for health. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue.gpu_models import BY_NAME
from gpu_exporter.catalogue.health_parts import NVLINKS, PARTS, XIDS
from gpu_exporter.diagnosis.diagnose import Diagnosis


def unseen_health(diagnoses: Sequence[Diagnosis]) -> tuple[str, ...]:
    """Return which parts of health are not seen of at least one GPU that answers.

    MIG instances count only where nothing is known of their GPU. NVLinks are not missed on models that have none.
    """
    answering = [each for each in diagnoses if not each.is_down]
    gpus = [each for each in answering if not each.device.instance] or answering
    unseen = {} if all(each.identity.xids_shown for each in gpus) else {XIDS: None}
    unseen |= {part: None for part, modes in PARTS.items() if any(_is_unseen(part, modes, each) for each in gpus)}
    return tuple(unseen)


def _is_unseen(part: str, modes: Sequence[str], diagnosis: Diagnosis) -> bool:
    model = BY_NAME.get(diagnosis.identity.model)
    if part == NVLINKS and model is not None and model.nvlink is None:
        return False
    return all(diagnosis.unknown.get(mode) for mode in modes)
