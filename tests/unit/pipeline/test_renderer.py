"""Pages: both formats have the same content, label values are kept, and nothing is rendered twice."""

import gzip
import string
import time
from dataclasses import replace
from itertools import groupby
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import Selection, ValueLabel, own_family
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import EntityKind, Kind, Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.pipeline.pages import Page, Pages, Variant
from gpu_exporter.pipeline.renderer import Renderer, Style, number

FORMATS = TEXT, OPENMETRICS = Variant(False, False), Variant(True, False)
READABLE = [row for row in m.METRICS if (row.nvml or row.integral_of) and not row.edges]


def page(*samples: Sample, node: str = "n") -> Page:
    """Render some samples."""
    return Renderer(node).render(Snapshot(0.0, "nvml", samples))


def parsed(rendered: Page, variant: Variant) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    """Return every sample of a page as prometheus_client parses it."""
    parse = parse_openmetrics if variant.openmetrics else parse_text
    families = parse(rendered.body(variant).decode())
    return sorted((s.name, tuple(sorted(s.labels.items())), s.value) for f in families for s in f.samples)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_label_value_survives_both_parsers(model: str, node: str) -> None:
    """Quotes, backslashes, newlines and any script are parsed back to the same value."""
    rendered = page(Sample(Series(m.POWER, Gpu(0, "GPU-0", model=model)), 1.0), node=node)

    for variant in FORMATS:
        labels = dict(parsed(rendered, variant)[0][1])
        assert (labels["modelName"], labels["Hostname"]) == (model, node)


def test_dashes_only_in_model_names_of_gpus() -> None:
    """dcgm-exporter leaves `model_name` of NVLinks unchanged, whatever its flag."""
    gpu = Gpu(0, "GPU-0", model="NVIDIA  H200 NVL")
    link = Metric("DCGM_FI_DEV_LINK_ROW", Kind.GAUGE, "", "", 0, 9, EntityKind.NVLINK)
    samples = Sample(Series(m.POWER, gpu), 1.0), Sample(Series(link, gpu, (("nvlink", "3"),)), 1.0)
    shown = Selection((), {row.name: own_family(row) for row in (m.POWER, link)})
    text = (
        Renderer("n", (), shown, Style(replace_blanks_in_model_name=True))
        .render(Snapshot(0.0, "nvml", samples))
        .body(TEXT)
    )

    assert b'modelName="NVIDIA-H200-NVL"' in text
    assert b'model_name="NVIDIA  H200 NVL"' in text


def test_invalid_utf8_is_replaced() -> None:
    """A process name in another encoding loses only its invalid bytes; the scrape succeeds."""
    broken = b"caf\xe9".decode("utf-8", "surrogateescape")

    assert b'Hostname="caf?"' in page(Sample(Series(m.POWER, Gpu(0, "GPU-0")), 1.0), node=broken).body(TEXT)


@given(
    st.lists(st.tuples(st.sampled_from(READABLE), st.floats(0, 1e15)), max_size=30, unique_by=lambda pair: pair[0].key)
)
def test_both_formats_carry_the_same_samples(rows: list[tuple[Metric, float]]) -> None:
    """Same names, labels and values in text 0.0.4 and OpenMetrics 1.0, whatever was read."""
    rendered = page(*(Sample(Series(row, Gpu(0, "GPU-0")), value) for row, value in rows))

    lines = {variant: [line for line in rendered.body(variant).split(b"\n") if line[:1] != b"#"] for variant in FORMATS}
    assert lines[TEXT] == lines[OPENMETRICS]
    for variant in FORMATS:  # the client's text parser appends _total to classic counters; names were compared above
        assert sorted(value for *_, value in parsed(rendered, variant)) == sorted(value for _, value in rows)


def test_types_by_format() -> None:
    """A counter without _total is a counter in text and unknown in OpenMetrics; others are counters in both."""
    rendered = page(
        Sample(Series(m.ENERGY, Gpu(0, "GPU-0")), 1.0), Sample(Series(m.ENERGY_JOULES, Gpu(0, "GPU-0")), 1.0)
    )
    text = {f.name: f.type for f in parse_text(rendered.body(TEXT).decode())}
    openmetrics = {f.name: f.type for f in parse_openmetrics(rendered.body(OPENMETRICS).decode())}  # type: ignore[no-untyped-call]

    assert text == {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "counter", "gpu_energy_joules": "counter"}
    assert openmetrics == {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "unknown", "gpu_energy_joules": "counter"}


@pytest.mark.parametrize("kind", Kind)
def test_every_family_has_its_header_once(kind: Kind) -> None:
    """Rows with the same name have one header, and their samples are adjacent."""
    samples = [Sample(Series(row, Gpu(n, f"GPU-{n}")), 1.0) for n in range(3) for row in m.METRICS if row.kind is kind]
    lines = page(*samples).body(TEXT).decode().splitlines()
    headers = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    names = [line.partition("{")[0].split()[0] for line in lines if line[0] != "#"]
    runs = [name for name, _ in groupby(names)]

    assert len(headers) == len(set(headers))
    assert runs == headers


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_the_same(value: float) -> None:
    """Rendering loses no digit."""
    assert float(number(value)) == value
    assert set(number(value)) <= set(string.digits + "-+.e")


def test_a_line_follows_its_value() -> None:
    """The cache of lines never shows an old value."""
    renderer, power = Renderer("n"), Series(m.POWER, Gpu(0, "GPU-0", model='a "b" c'))
    bodies = [renderer.render(Snapshot(0, "", (Sample(power, value),))).body(TEXT) for value in (1.5, 2.0, 2.0, 700.25)]

    assert [body.split()[-1] for body in bodies] == [b"1.5", b"2", b"2", b"700.25"]


SERIES = [Series(row, Gpu(gpu, f"GPU-{gpu}")) for gpu in range(2) for row in (m.POWER, m.UP, m.GPU_TEMP)]
SNAPSHOTS = st.lists(st.tuples(st.sampled_from(SERIES), st.integers(0, 2)), unique_by=lambda pair: pair[0])


@given(st.lists(SNAPSHOTS, max_size=5))
def test_a_page_does_not_depend_on_those_before(snapshots: list[list[tuple[Series, int]]]) -> None:
    """Values change, and series come, go and change places."""
    renderer = Renderer("n")
    for samples in snapshots:
        snapshot = Snapshot(0, "", tuple(Sample(*sample) for sample in samples))
        assert renderer.render(snapshot).body(TEXT) == Renderer("n").render(snapshot).body(TEXT)


def test_only_families_with_a_new_value_are_rendered() -> None:
    """Pages share the others."""
    renderer, power, up = Renderer("n"), *(Series(row, Gpu(0, "GPU-0")) for row in (m.POWER, m.UP))
    for value in (1.0, 2.0):
        before = dict(renderer._families)
        renderer.render(Snapshot(0, "", (Sample(power, value), Sample(up, 1.0))))

    assert renderer._families[m.UP.name] is before[m.UP.name]
    assert renderer._families[m.POWER.name] != before[m.POWER.name]


def test_metrics_of_the_process_are_rendered_when_they_are_collected() -> None:
    """Pages share them until then."""
    renderer, snapshot = Renderer("n"), Snapshot(0, "", ())
    old, new = ([GaugeMetricFamily("process_open_fds", "Open files.", value=value)] for value in (7, 8))
    pages = [renderer.render(snapshot, process) for process in (old, old, new, ())]

    assert [page.body(TEXT).count(b"process_open_fds 7") for page in pages] == [1, 1, 0, 0]
    assert [page.body(TEXT).count(b"process_open_fds 8") for page in pages] == [0, 0, 1, 0]
    assert pages[0]._families[0][2] is pages[1]._families[0][2]


def test_values_as_labels_follow_the_values() -> None:
    """They are on every classic series of their own GPU, and lines whose value is the same get the new label, too."""
    shown = Selection((), {m.POWER.name: own_family(m.POWER), m.UP.name: own_family(m.UP)})
    renderer = Renderer("n", (), replace(shown, labels=(), value_labels=(ValueLabel("state", m.PSTATE),)))
    gpus = Gpu(0, "GPU-0"), Gpu(1, "GPU-1")
    series = [(Series(m.POWER, gpu), Series(m.PSTATE, gpu), Series(m.UP, gpu)) for gpu in gpus]

    def states(*values: float | None) -> list[str | None]:
        known = [(power, 1.0) for power, _, _ in series] + [(up, 1.0) for _, _, up in series]
        known += [(state, value) for (_, state, _), value in zip(series, values, strict=True) if value is not None]
        found = parsed(renderer.render(Snapshot(0, "", tuple(Sample(*pair) for pair in known))), TEXT)
        assert [dict(labels).get("state") for name, labels, _ in found if name == "gpu_up"] == [None, None]
        return [dict(labels).get("state") for name, labels, _ in found if name == m.POWER.name]

    assert states(0, 8) == ["0", "8"]
    assert states(2, 8) == ["2", "8"]
    assert states(2, 0) == ["2", "0"]


def test_a_missed_read_keeps_the_label() -> None:
    """Without it, all classic series of the GPU would be new ones. It ends with the GPU."""
    shown = Selection((), {m.POWER.name: own_family(m.POWER)}, labels=(), value_labels=(ValueLabel("s", m.PSTATE),))
    renderer, gpu = Renderer("n", (), shown), Gpu(0, "GPU-0")
    power, state = Sample(Series(m.POWER, gpu), 1.0), Sample(Series(m.PSTATE, gpu), 2.0)

    def label(*samples: Sample, listed: bool = True) -> list[str | None]:
        status = (GpuStatus(gpu, up=True),) if listed else ()
        found = parsed(renderer.render(Snapshot(0, "", samples, status)), TEXT)
        return [dict(labels).get("s") for _, labels, _ in found]

    assert [label(power, state), label(power), label(), label(power)] == [["2"], ["2"], [], ["2"]]
    label(listed=False)
    assert label(power) == [None]


def test_series_without_labels_of_values_stay_cached() -> None:
    """A new text changes the lines of classic families only."""
    shown = Selection((), {m.UP.name: own_family(m.UP), m.POWER.name: own_family(m.POWER)}, labels=())
    renderer, gpu = Renderer("n", (), replace(shown, value_labels=(ValueLabel("s", m.PSTATE),))), Gpu(0, "GPU-0")
    up, power, state = Series(m.UP, gpu), Series(m.POWER, gpu), Series(m.PSTATE, gpu)
    prefixes: list[Series] = []

    def prefix(series: Series) -> bytes:
        prefixes.append(series)
        return b"x "

    with patch.object(renderer, "_prefix", prefix):
        for value in (0.0, 1.0):
            renderer.render(Snapshot(0, "", (Sample(up, 1.0), Sample(power, 1.0), Sample(state, value))))
    assert prefixes == [up, power, power]


def test_common_labels_are_on_every_series() -> None:
    """A replayed series cannot be mistaken for a live one."""
    samples = [Sample(Series(row, Gpu(0, "GPU-0")), 1.0) for row in m.METRICS]
    body = Renderer("n", (("source", "replay"),)).render(Snapshot(0, "replay", tuple(samples))).body(TEXT).decode()

    assert [line for line in body.splitlines() if line[0] != "#" and 'source="replay"' not in line] == []


def test_gzip_is_the_same_page() -> None:
    """Compressed bytes unpack to the plain ones, and are made once."""
    rendered, pages = page(Sample(Series(m.POWER, Gpu(0, "GPU-0")), 1.0)), Pages()
    pages.publish(rendered)

    assert gzip.decompress(pages.get(Variant(True, True))) == pages.get(OPENMETRICS)
    assert pages.get(Variant(True, True)) is pages.get(Variant(True, True))


@pytest.mark.parametrize(("seconds", "variants"), [(1.0, [OPENMETRICS]), (15.0, [])])
def test_pages_are_made_in_advance_for_frequent_scrapes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, variants: list[Variant]
) -> None:
    """Otherwise on request."""
    now, pages = [100.0], Pages()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pages.get(OPENMETRICS)
    now[0] += seconds
    rendered = page()
    pages.publish(rendered)

    assert [*rendered._bodies] == variants
