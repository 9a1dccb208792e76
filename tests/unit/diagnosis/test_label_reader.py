"""Labels of columns are read once, and each column has what its own labels say."""

from __future__ import annotations

from gpu_exporter.diagnosis.scrape import LabelReader, SampleColumn


def test_two_columns_of_one_name() -> None:
    """A page may have a series of a name that the diagnosis makes itself: values stay with their own GPUs."""
    read = LabelReader()
    read.begin()
    columns = [SampleColumn("owners", [{"UUID": uuid} for uuid in uuids], [1.0] * len(uuids)) for uuids in ("b", "ab")]
    devices = [[key and key.uuid for key in read.column(each).devices(per_instance=True)] for each in columns]
    assert devices == [["b"], ["a", "b"]]
