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
        ("load", "/a/x.py"),
    }
    assert sorted(location.line[0].line for location in found.location) == [0, 12]
    assert (found.time_nanos, found.period) == (1_600_000_000_000_000_000, 20_000_000)
    assert strings[found.period_type.type] == "wall"


def test_lines_of_a_function_are_one_function() -> None:
    """A function of the same name in another file is another one; a frame that is not of Python has only its name."""
    stacks = ["run(1): x", "/a/x.py(12): load", "/a/x.py(20): load", "/b/x.py(12): load", "/a (1)/x.py(3): f(int): g"]
    found = decoded(profile({"wall": {";".join(stacks): 1.0}}, 1.0))
    strings = list(found.string_table)
    functions = {each.id: (strings[each.name], strings[each.filename]) for each in found.function}
    assert [(*functions[each.line[0].function_id], each.line[0].line) for each in found.location] == [
        ("f(int): g", "/a (1)/x.py", 3),
        ("load", "/b/x.py", 12),
        ("load", "/a/x.py", 20),
        ("load", "/a/x.py", 12),
        ("x", "run", 1),
    ]
    assert len(functions) == 4
    assert folded_of(found) == {"wall": {";".join(stacks): 1.0}}


def test_a_trace_has_a_period_type() -> None:
    """Otherwise, Pyroscope lists its series without one. There is no period: durations were measured, not sampled."""
    found = decoded(profile({"gpu_time": {"a": 1.0}, "gpu_idle": {"b": 1.0}}, 2.0))
    strings = list(found.string_table)
    assert (strings[found.period_type.type], strings[found.period_type.unit]) == ("gpu_time", "nanoseconds")
    assert found.period == 0


def test_a_profile_without_samples() -> None:
    found = decoded(labelled({"wall": []}, Times(0.0)))
    assert folded_of(found) == {"wall": {}}
