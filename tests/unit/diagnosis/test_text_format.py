"""Pages in the text format give the samples that prometheus_client's parser finds in them, or a ValueError as there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.diagnosis.gather import WatchedScrapes
from gpu_exporter.diagnosis.remote_scrapes import is_read
from gpu_exporter.diagnosis.report import as_json
from gpu_exporter.diagnosis.result import diagnose_scrapes
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.text_format import TextParser, parsed, readable
from tests import ROOT

PAGES = sorted((ROOT / "tests/golden").glob("*.prom"))
# Texts that are usual, and those at which a parser goes wrong.
NAMES = st.sampled_from(("gpu_up", "DCGM_FI_DEV_GPU_TEMP", "a:b", "x_total", "", "ä", "a b", "1a", '"q"', "#c"))
LABELS = st.sampled_from(("gpu", "UUID", "_x", "__name__", "le", "", "ä", "a-b", '"quoted"', " gpu "))
TEXTS = st.text(st.sampled_from('ab0 {}",=\\n#}\t\r_ä\u2028'), max_size=6)
QUOTED = TEXTS.map(lambda text: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) | TEXTS
NUMBERS = st.sampled_from(
    ("0", "5", "-5", "+5", "1.5", "1e3", "NaN", "+Inf", "-Inf", "9007199254740993", "1_0", "", "x", "٣", "0x1", " 7 ")
)
TIMES = st.sampled_from(
    ("", " 1700000000000", " -5", " 1.5", " x", "\t7", " 5 6", " ", ' # {trace_id="a} "} 1', " # x")
)
PAIRS = st.builds('{}="{}"'.format, LABELS, QUOTED)
INNER = st.lists(PAIRS, max_size=3).flatmap(
    lambda pairs: st.sampled_from((",", ", ", ",,", "")).map(lambda by: by.join(pairs))
)
BRACES = st.sampled_from(("{{{}}} ", "{{{},}} ", "{{{}}}", " {{{}}}  ", "{{ {} }} "))
SERIES = st.builds(lambda name, braces, inner: name + braces.format(inner), NAMES, BRACES, INNER) | NAMES.map(
    "{} ".format
)
LINES = st.builds("{}{}{}".format, SERIES, NUMBERS, TIMES)
COMMENTS = st.sampled_from(
    ("# HELP gpu_up {a} b", "# TYPE gpu_up gauge", "# TYPE ä x", "# TYPE gpu_up", "#", "# EOF", "")
)


def of_prometheus_client(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return the samples of each line. A whole page would have `_total` appended to the names of classic counters."""
    families = (family for line in text.split("\n") for family in text_string_to_metric_families(line))
    return [(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]


def outcome(find: Callable[[str], list[Any]], text: str) -> object:
    """Return the samples that a parser finds, or that it refuses the text."""
    try:
        return [(name, readable(labels), repr(value)) for name, labels, value in find(text)]
    except (ValueError, LookupError, TypeError, AttributeError):
        return "refused"


@given(st.lists(LINES | COMMENTS, max_size=4).map("\n".join))
def test_samples_are_those_of_prometheus_client(text: str) -> None:
    """Odd names, labels, escapes, numbers, timestamps and exemplars, also where they repeat what was read before."""
    text = f'gpu_up{{gpu="0"}} 1\n{text}\n{text}'
    assert outcome(parsed, text) == outcome(of_prometheus_client, text)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_of_exporters(page: Path) -> None:
    assert outcome(parsed, page.read_text()) == outcome(of_prometheus_client, page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_diagnosis_is_that_of_the_whole_page(page: Path) -> None:
    """The families that are left out are not needed."""
    pages = parsed(page.read_text()), parsed(page.read_text(), is_read)
    results = [
        diagnose_scrapes(WatchedScrapes([Scrape(1000.0, samples), Scrape(1015.0, samples)], "", 15.0))
        for samples in pages
    ]
    whole, part = (as_json(result) for result in results)
    assert whole == part
    assert whole["gpus"]


def test_lines_that_are_not_read() -> None:
    """Only the first line of a family that is not read is checked."""
    text = 'kept{a="1"} 1\nother{a="1"} 1\nother{a="1} 2\n'
    assert parsed(text, "kept".__eq__) == [("kept", {"a": "1"}, 1)]
    with pytest.raises(ValueError, match="float"):
        parsed(text.replace('other{a="1"} 1\n', ""), "kept".__eq__)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_next_page_has_the_same_labels(page: Path) -> None:
    """A page that comes every second is read as the first one was, but its labels only once, except those of lines
    that are read one by one. Labels that a page does not have are forgotten."""
    parse, text = TextParser(), page.read_text()
    first, second = list(parse(text)), list(parse(text))
    assert first == second == parsed(text)
    assert len(new_labels(first, second)) <= len({sample.name for sample in first}) < len(second)
    assert not list(parse(""))
    assert len(new_labels(first, parse(text))) == len({id(sample.labels) for sample in first})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_samples_by_name(page: Path) -> None:
    by_name: dict[str, list[ScrapedSample]] = {}
    for sample in parsed(page.read_text()):
        by_name.setdefault(sample.name, []).append(sample)
    columns = TextParser()(page.read_text()).by_name
    assert [(name, list(column)) for name, column in columns.items()] == list(by_name.items())


def test_metrics_of_the_same_series_share_their_labels() -> None:
    """What labels say is then found out once for all these metrics and all pages."""
    parse, text = TextParser(), (ROOT / "tests/golden/h200_x2_ddp.prom").read_text()
    pages = parse(text).by_name, parse(text).by_name
    names = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"
    assert len({id(page[name].labels) for page in pages for name in names}) == 1


def new_labels(before: Sequence[ScrapedSample], after: Sequence[ScrapedSample]) -> set[int]:
    """Return the labels of samples, by their identity, that others do not have."""
    return {id(sample.labels) for sample in after} - {id(sample.labels) for sample in before}
