"""Messages of ranks are decoded and checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.jobs.message import UnknownVersion, decode
from gpu_exporter.model.job_message import KEYS, MOST_BYTES, MOST_PHASES
from tests.support.job_sender import encoded, message


def test_a_message_has_all_sums() -> None:
    decoded = decode(encoded(message(uuid="GPU-1", dtype="bf16", pod_uid="p", clock="gpu")))
    assert (decoded.job_id, decoded.rank, decoded.world_size, decoded.uuid) == ("llm-7b", 0, 2, "GPU-1")
    assert (decoded.dtype, decoded.pod_uid, decoded.since_step) == ("bf16", "p", 0.5)
    assert decoded.sums["steps", ""] == 3
    assert decoded.sums["step", "sum"] == decoded.sums["self", "sum"] == 0.75
    assert decoded.sums["step", "8"] == 3  # 0.16 < 0.25 <= 0.32
    assert decoded.sums["phase_seconds", "forward"] == 0.375


def test_every_key_of_the_contract_is_read() -> None:
    """The message of the tests, with the optional keys, has the keys that both sides agreed on."""
    assert set(message(uuid="GPU-1", dtype="bf16", pod_uid="p", clock="gpu")) == set(KEYS)


def test_optional_keys_may_be_absent() -> None:
    content = {key: value for key, value in message().items() if key not in ("self", "tokens", "samples", "flops")}
    assert {name for name, _ in decode(encoded(content)).sums}.isdisjoint({"self", "tokens", "samples", "flops"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"job_id": ""}, "job_id: must be 1 to 128"),
        ({"job_id": "x" * 129}, "job_id: must be 1 to 128"),
        ({"job_id": "a\nb"}, "job_id: must be 1 to 128 printable"),
        ({"attempt": ""}, "attempt: must"),
        ({"rank": 2}, "rank: must be from 0 to world_size - 1"),
        ({"rank": -1}, "rank: must be"),
        ({"world_size": 0}, "world_size: must be 1"),
        ({"activity": "sleep"}, "activity: must be one of training"),
        ({"activity_seconds": {"sleep": 1}}, "activity: must be one of training"),
        ({"activity_seconds": {"training": 9, "evaluation": 9}, "elapsed": 10}, "activity_seconds: must be 0 to 11.1"),
        ({"steps": -1}, "steps: must be 0 to"),
        ({"data_seconds": 1e12}, "data_seconds: must be 0 to"),
        ({"tokens": 1e17}, "tokens: must be 0 to"),
        ({"flops": 1e31}, "flops: must be 0 to"),
        ({"since_step": -1}, "since_step: must be"),
        ({"step": {"sum": 1, "counts": [1]}}, "step.counts: must have 20 values"),
        ({"self": {"sum": 1, "counts": [0] * 21}}, "self.counts: must have 20 values"),
        ({"phase_seconds": {str(n): 1 for n in range(MOST_PHASES + 1)}}, "phase_seconds: more than"),
        ({"phase_seconds": {"x" * 129: 1}}, "phase_seconds: must be 1"),
        ({"phase_seconds": {"forward": -1}}, "phase_seconds.forward: must be"),
        ({"rank": "0"}, "Expected `int`"),
        ({"uuid": ""}, "uuid: must be 1 to 128"),
        ({"pod_uid": "x" * 129}, "pod_uid: must be 1 to 128"),
        ({"dtype": "a\nb"}, "dtype: must be 1 to 128 printable"),
        ({"pod_uid": "p", "dtype": ""}, "dtype: must"),
        ({"phase_seconds": {"": 1}}, "phase_seconds: must be 1"),
        ({"world_size": 2**20 + 1}, "world_size: must be 1 to 1048576"),
        ({"elapsed": 10 * 366 * 86400}, "elapsed: must be 0 to 3.15576e.08"),
        ({"elapsed": -1}, "elapsed: must be"),
        ({"since_step": 10 * 366 * 86400}, "since_step: must be"),
        ({"steps": 2**53 + 2}, "steps: must be 0 to 9.0072e.15"),
        ({"samples": 1e17}, "samples: must be"),
        ({"step": {"sum": 1e12, "counts": [0] * 20}}, "step.sum: must be 0 to 3.15576e.08"),
        ({"step": {"sum": 1, "counts": [10**17] * 20}}, "step.0: must be 0 to 9.0072e.15"),
        ({"self": {"sum": 1, "counts": [0] * 19 + [-1]}}, "self.19: must be"),
        ({"activity_seconds": {"training": -1}}, "activity_seconds.training: must be"),
        ({"activity_seconds": {"training": 11.2}, "elapsed": 10}, "activity_seconds: must be 0 to 11.1"),
        ({"step": None}, "Expected `object`"),
    ],
)
def test_a_faulty_key_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode(encoded({**message(), **changes}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    content = json.dumps(message(data_seconds=0.125)).replace("0.125", number)
    with pytest.raises(ValueError, match=r"JSON|out of range"):
        decode(content.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "x" * 128, "attempt": "x" * 128, "phase_seconds": {"x" * 128: 0}},
        {"rank": 2**20 - 1, "world_size": 2**20},
        {"rank": 0, "world_size": 1},
        {"elapsed": 10 * 365.25 * 86400, "since_step": 10 * 365.25 * 86400},
        {"steps": 2**53, "step_seconds": 1e-9, "tokens": 2.0**53, "samples": 2.0**53, "flops": 1e30},
        {"activity_seconds": {"training": 11.1}, "elapsed": 10},
        {"phase_seconds": {str(number): 1 for number in range(32)}},
        {"step": {"sum": 10 * 365.25 * 86400, "counts": [2**53] * 20}},
        {"activity": "compile", "activity_seconds": {}},
    ],
)
def test_values_at_their_limits(changes: dict[str, Any]) -> None:
    """All limits are inclusive."""
    decode(encoded(message(**changes)))


def test_a_packet_at_its_limit() -> None:
    content = encoded(message())
    assert decode(content + b" " * (8192 - len(content))).rank == 0
    with pytest.raises(ValueError, match="larger than 8192 bytes"):
        decode(content + b" " * (8193 - len(content)))


def test_what_is_not_declared_is_empty() -> None:
    decoded = decode(encoded(message(activity="evaluation", elapsed=7.0, rank=1)))
    assert (decoded.uuid, decoded.pod_uid, decoded.dtype) == ("", "", "")
    assert (decoded.attempt, decoded.activity, decoded.elapsed, decoded.rank) == ("a", "evaluation", 7.0, 1)


def test_another_version_is_told_apart() -> None:
    with pytest.raises(UnknownVersion, match="version 2, but this exporter reads version 1"):
        decode(encoded({"version": 2, "shape": "unknown"}))


def test_a_message_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(ValueError, match="larger than 8192 bytes"):
        decode(encoded(message()) + b" " * MOST_BYTES)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(content)
