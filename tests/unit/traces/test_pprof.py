"""Profiles for pprof, decoded with Google's protocol buffers by the published schema."""

from __future__ import annotations

from gpu_exporter.traces.pprof import LabelledStacks, Times, labelled, profile
from tests.support.pprof import decoded, folded_of, labels_of


def test_stacks_come_back() -> None:
    """With names in any script, thousands of frames, and both sample types."""
    gpu = {"main;train": 1.5, "main;größe;内核": 0.25, ";".join(f"f{each}" for each in range(500)): 2.0}
    idle = {"main;load": 0.001}
    found = decoded(profile({"gpu_time": gpu, "gpu_idle": idle}, 3.5))
    strings = list(found.string_table)
    assert [strings[each.unit] for each in found.sample_type] == ["nanoseconds"] * 2
    assert folded_of(found) == {"gpu_time": gpu, "gpu_idle": idle}
    assert (found.time_nanos, found.duration_nanos, found.period) == (0, 3_500_000_000, 0)


def test_the_same_profile_is_the_same_bytes() -> None:
    assert profile({"gpu_time": {"a;b": 1.0}}, 1.0) == profile({"gpu_time": {"a;b": 1.0}}, 1.0)


def test_labels_times_files_and_lines() -> None:
    groups = [
        LabelledStacks({"main;/a/x.py(12): load": 1.0}, {"gpu": "0"}),
        LabelledStacks({"main": 0.5}, {"gpu": "1"}),
    ]
    found = decoded(labelled({"wall": groups}, Times(5.0, 1.6e9, 0.02)))
    assert labels_of(found) == [{"gpu": "0"}, {"gpu": "1"}]
    assert folded_of(found) == {"wall": {"main;/a/x.py(12): load": 1.0, "main": 0.5}}
    strings = list(found.string_table)
    assert {(strings[each.name], strings[each.filename]) for each in found.function} == {
        ("main", ""),
        ("/a/x.py(12): load", "/a/x.py"),
    }
    assert sorted(location.line[0].line for location in found.location) == [0, 12]
    assert (found.time_nanos, found.period) == (1_600_000_000_000_000_000, 20_000_000)
    assert strings[found.period_type.type] == "wall"


def test_a_profile_without_samples() -> None:
    found = decoded(labelled({"wall": []}, Times(0.0)))
    assert folded_of(found) == {"wall": {}}
