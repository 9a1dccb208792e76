"""The alert on an XID names its code with every exporter."""

import pytest

from gpu_exporter.catalogue import signals as s
from gpu_exporter.conditions.signal import Read


@pytest.mark.parametrize("read", [each for each in s.XID_FATAL.definitions if isinstance(each, Read) and each.codes])
def test_the_code_of_a_gauge_becomes_a_label(read: Read) -> None:
    """dcgm-exporter has the code as value; the signal and its alert need the label `xid`."""
    for code in s.DRAIN_CODES:
        assert f'label_replace(vector(1), "xid", "{code}", "", "")' in read.promql()
    assert read.promql().count(f"({read.name})") == 2
