"""Where the time of GPUs went, in words, and how close they are to the limits of their chip."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.causes import SHARES, Cause
from gpu_exporter.catalogue.roofline import Headroom
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.loss import breakdown, limits, lost, next_step, summary
from gpu_exporter.diagnosis.report import as_dict, has_headroom, lines
from tests.support import phases
from tests.support.truth import PHASES

NOTHING = dict.fromkeys(SHARES, 0.0)
HALF = {**NOTHING, Cause.USEFUL: 0.5, Cause.HOST: 0.496, Cause.COPIES: 0.004}


def _recorded(phase: str) -> tuple[Diagnosis, ...]:
    path = next(path for path, name in PHASES if name == phase)
    return phases.diagnoses(path, phase)


def test_the_largest_share_comes_first_and_small_ones_are_left_out() -> None:
    assert breakdown([HALF]) == "50 % SMs working, 50 % waiting for the host"
    assert breakdown([HALF, {}]) == breakdown([HALF])
    assert breakdown([{}]) == ""
    assert lost(HALF) == pytest.approx(0.5)


def test_loss_in_gpu_hours_and_money() -> None:
    assert list(summary([HALF, HALF], 2.5))[1] == (
        "Lost: 1.0 of 2 GPUs on average. In a day, that would be 24.0 GPU-hours (60.00 USD)."
    )
    assert list(summary([HALF]))[1].endswith("12.0 GPU-hours.")
    assert list(summary([{**NOTHING, Cause.USEFUL: 1.0}])) == ["Where the GPU time went: 100 % SMs working."]
    assert not list(summary([{}]))


def test_mig_instances_count_as_shares_of_a_gpu() -> None:
    slices = [{cause: share * part for cause, share in HALF.items()} for part in (0.75, 0.25)]

    assert list(summary(slices)) == list(summary([HALF]))
    assert breakdown([*slices, HALF]) == breakdown([HALF])


@pytest.mark.parametrize(
    ("headroom", "limit", "look"),
    [
        (Headroom(0.93, 0.2, 0.0), "tensor", ""),
        (Headroom(0.1, 0.98, 0.2), "memory", ""),
        (Headroom(0.0, 0.05, 0.77), "pipes", ""),
        (Headroom(0.5, 0.4, 0.1), "", "between the matrix products"),
        (Headroom(0.33, 0.5, 0.1), "", "Memory-bound"),
        (Headroom(0.1, 0.05, 0.2), "", "index arithmetic"),
    ],
)
def test_limits_of_the_chip(headroom: Headroom, limit: str, look: str) -> None:
    assert headroom.limited_by == limit
    assert look in next_step(headroom)


def test_a_limit_is_a_share_of_the_peak() -> None:
    assert limits(Headroom(0.33, 0.61, 0.02)) == "33 % of tensor peak, 61 % of memory peak"
    assert limits(Headroom(0.1, 0.05, 0.2)).endswith("20 % of the peak of another arithmetic pipe")


def test_headroom_is_not_reported_as_nothing_wrong() -> None:
    trained, product = _recorded("train_big_batch"), _recorded("gemm_bf16")

    assert has_headroom(trained)
    assert "at no limit of the chip: 50 % of tensor peak" in "\n".join(lines(trained))
    assert not has_headroom(product)
    assert "no limit" not in "\n".join(lines(product))
    assert not has_headroom(_recorded("idle"))


def test_json_has_the_shares_the_cause_and_the_limits() -> None:
    gpu = as_dict(_recorded("ddp_late_20ms"))["gpus"][1]

    assert gpu["cause"] == "host"
    assert sum(gpu["time"].values()) == pytest.approx(1.0, abs=1e-3)
    assert gpu["modes"][0]["cause"] == "peers"
    assert as_dict(_recorded("gemm_bf16"))["gpus"][0]["headroom"]["limited_by"] == "tensor"
