"""Pages that tests wait for are parsed only in part, with the same values."""

from __future__ import annotations

import pytest

from tests.conftest import Page

TEXT = """# HELP energy Energy.
# TYPE energy counter
energy{gpu="0"} 1
energy{gpu="1"} 2
# HELP power Power.
# TYPE power gauge
power{gpu="0",name="a\u2028b"} 3
# HELP power_watts Watts.
# TYPE power_watts histogram
power_watts_bucket{le="1"} 4
power_watts_bucket{le="+Inf"} 5
power_watts_sum 6
power_watts_count 5
# HELP reads_total Reads.
# TYPE reads_total counter
reads_total 7
no_type 8
"""


def test_a_part_has_the_values_of_the_whole() -> None:
    whole = Page(TEXT)
    names = {name for name, _, _ in whole.samples} | {"energy", "energy_total", "nothing"}
    assert len(names) > 8
    assert {name: Page(TEXT, whole=False).values(name) for name in names} == {
        name: whole.values(name) for name in names
    }
    assert Page(TEXT, whole=False).samples == whole.samples


def test_only_a_part_is_parsed_until_all_samples_are_needed() -> None:
    page = Page(TEXT + "malformed x\n", whole=False)
    assert page.values("power", gpu="0") == [3]
    with pytest.raises(ValueError, match="could not convert"):
        Page(page.text)
