"""Pages of exporters: only what the view needs is parsed, and implausible values never stop it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis import stored_profiles
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.stored_profiles import StoredProfiles
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.http.client import Remote
from gpu_exporter.top.feeds import READ, UrlFeed
from gpu_exporter.top.tracker import Tracker
from tests import ROOT

PAGES = sorted((ROOT / "tests/golden").glob("*.prom"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_view_is_that_of_the_whole_page(page: Path) -> None:
    """The lines that are left out are not needed."""
    text = page.read_text()
    pages = parsed(text), parsed(text, READ.__contains__)
    views = [Tracker(20.0).take(Scrape(1000.0, samples)) for samples in pages]
    assert len(pages[1]) < len(pages[0])
    assert views[0].gpus
    for whole, part in zip(views[0].gpus, views[1].gpus, strict=True):
        assert (whole.key, whole.model, whole.node, whole.owner) == (part.key, part.model, part.node, part.owner)
        assert (whole.values, whole.limits, whole.health) == (part.values, part.limits, part.health)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e308", "-5"])
def test_implausible_values(value: str) -> None:
    labels = 'gpu="0",UUID="GPU-0"'
    names = (m.UP, m.EXPECTED, m.DOWN, m.SM_ACTIVE, m.POWER, m.HEALTH_STATE[0], m.PROCESS_MEMORY, m.GR_ENGINE_ACTIVE)
    text = "".join(f"{metric.name}{{{labels}}} {value}\n" for metric in names)
    tracker = Tracker(20.0)
    for at in range(6):
        view = tracker.take(Scrape(1000.0 + at, parsed(text, READ.__contains__)))
    assert [row.name for row in view.gpus] == ["0"]


def test_a_page_without_gpus() -> None:
    assert parsed("# TYPE go_threads gauge\ngo_threads 5\n", READ.__contains__) == []


def test_profiles_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each new one; most exporters take none."""
    asked: list[float] = []

    def answer(remote: Remote, scrapes: Sequence[Scrape]) -> StoredProfiles:
        asked.append(scrapes[-1].at)
        return StoredProfiles()

    monkeypatch.setattr(stored_profiles, "exporter_profiles", answer)
    feed = UrlFeed(Remote("http://127.0.0.1:1"), Tracker(20.0))
    for at, taken in enumerate(([], [5.0], [5.0], [5.0, 7.0], [7.0], [float("nan")])):
        feed._ask_for_profiles(Scrape(float(at), [ScrapedSample(m.PROFILED_AT.name, {}, value) for value in taken]))
    assert asked == [1.0, 3.0]
