"""The HTML report: complete, harmless whatever names contain, masked on request, and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.html_page import chart, page
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.report import as_dict
from gpu_exporter.diagnosis.result import DiagnosisResult, driver_version
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.unseen_health import unseen_health
from gpu_exporter.diagnosis.window import Window, seen
from tests.support.html import Document

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[2J\u2028"
NAMES = {"Hostname": "node", "namespace": "space", "pod": "podname", "exported_namespace": "", "container": "box"}
URL = "http://user-host.example:9400"
VALUES = {
    m.GR_ENGINE_ACTIVE.name: 0.98,
    m.SM_ACTIVE.name: 0.2,
    m.TENSOR_ACTIVE.name: 0.1,
    m.DRAM_ACTIVE.name: 0.2,
    m.POWER.name: 300.0,
    m.POWER_LIMIT.name: 700.0,
    m.FB_USED.name: 5000.0,
    m.FB_FREE.name: 90000.0,
    m.ECC_DBE_VOL.name: 3.0,
}


def watched(names: dict[str, str], command: str, number: int = 2) -> tuple[tuple[Diagnosis, ...], Window]:
    """Return a diagnosis of GPUs with these names as labels and this process."""
    scrapes = []
    for at in range(30):
        samples = []
        for index in range(number):
            labels = {"gpu": str(index), "UUID": f"GPU-{index}", "modelName": "NVIDIA H200", **names}
            samples += [ScrapedSample(name, labels, value) for name, value in VALUES.items()]
            process = {**labels, "pid": "4711", "process": "python3", "command": command, "uid": "1234"}
            samples.append(ScrapedSample(m.HOST_PROCESS.name, process, 1.0))
        scrapes.append(Scrape(1000.0 + at, samples))
    window = seen(scrapes, {})
    return diagnose(window), window


def written(
    found: tuple[Sequence[Diagnosis], Window],
    *,
    mask: bool = False,
    absent: Sequence[Absent] = (),
    source: str = URL,
) -> str:
    """Return the report of what was watched at a URL."""
    return page(DiagnosisResult(source, 30.0, found[1], found[0], absent, "580.1"), mask=mask, price=2.5)


def embedded(text: str) -> dict[str, object]:
    """Return the JSON in a report."""
    document = Document(text)
    (script,) = [data for kind, data in document.raw if kind == "script"]
    assert document.all("script") == [{"type": "application/json", "id": "diagnosis"}]
    content: dict[str, object] = json.loads(script)
    return content


def labels_of(document: Document) -> list[str]:
    """Return what pictures say to those who do not see them."""
    return [values["aria-label"] or "" for values in document.all("svg") if "aria-label" in values]


def test_what_is_wrong_comes_first() -> None:
    """The verdict, then the incidents, then the GPUs; every link to a runbook leads to one in the report."""
    document = Document(written(watched(NAMES, "x")))
    parts = ("GPU diagnosis", "2 incidents: 1 critical, 1 info", "What to do:", "Runbooks", "About this report")
    places = [document.text.index(part) for part in parts]
    assert places == sorted(places)
    ids = {values["id"] for _, values in document.elements if "id" in values}
    links = [(values["href"] or "").removeprefix("#") for values in document.all("a")]
    assert any(link.startswith("runbook-") for link in links)
    assert set(links) <= ids


def test_without_a_fault() -> None:
    found = watched(NAMES, "x")
    healthy = [replace(each, matches=()) for each in found[0]]
    document = Document(written((healthy, found[1])))
    assert "No fault was found" in document.text
    assert "Runbooks" not in document.text


def test_every_bar_has_a_legend() -> None:
    document = Document(written(watched(NAMES, "x")))
    bars = [values for values in document.all("svg") if values.get("class") == "time"]
    legends = [values for values in document.all("ul") if values.get("class") == "legend"]
    assert len(bars) == len(legends) == 1
    assert "SMs empty while a kernel runs " in document.text


def test_what_it_contains() -> None:
    found = watched(NAMES, "python3 train.py")
    text = written(found, absent=[Absent("node", "GPU 5", "lost: it fell off the bus")])
    document = Document(text)
    for part in ("GPU diagnosis", "GPU 5 (node): lost", "underfilled", "process 4711", "580.1", "gpu-exporter", "USD"):
        assert part in document.text
    assert found[0][0].matches
    assert all(match.mode.name in document.text for match in found[0][0].matches)
    labels = labels_of(document)
    for name in ("SM activity", "tensor core activity", "DRAM activity", "power", "memory in use"):
        assert sum(f", {name}: mean" in label for label in labels) == 2, "one chart for each GPU"
    assert document.text.count("not measured") == 2 * 3, "NVLink, PCIe and temperature"
    assert embedded(text) == {
        "source": URL,
        "watched_seconds": 30.0,
        "unseen_health": list(unseen_health(found[0])),
        **json.loads(json.dumps(as_dict(found[0], [Absent("node", "GPU 5", "lost: it fell off the bus")], 2.5))),
    }


def test_many_gpus() -> None:
    """Of a fleet, the worst GPUs have charts, and all have their findings."""
    document = Document(written(watched(NAMES, "x", number=70)))
    assert len(document.all("section")) == 2, "the GPUs, and about the report"
    assert "0-69" in document.text, "they share a row of the table"
    assert sum("SM activity: mean" in label for label in labels_of(document)) == 64
    assert "Only the first 64 GPUs" in document.text


def test_it_needs_nothing_else() -> None:
    """No script runs, nothing is loaded, and a policy forbids both."""
    document = Document(written(watched(NAMES, "x")))
    (policy,) = [each["content"] for each in document.all("meta") if "http-equiv" in each]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    for _, values in document.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset", "data", "action") for name in values)
        assert (values.get("href") or "#").startswith("#")
    assert not any(re.search(r"url\(|@import", data) for kind, data in document.raw if kind == "style")
    assert all(values.get("lang") == "en" for values in document.all("html"))


def test_hostile_names() -> None:
    """They are text: no element, no attribute, no control character comes from a name."""
    plain = Document(written(watched(NAMES, "x")))
    evil = {name: EVIL + name for name in NAMES}
    text = written(watched({**evil, "modelName": EVIL}, EVIL), absent=[Absent(EVIL, EVIL, EVIL)], source=EVIL)
    document = Document(text)
    assert "alert(1)" in document.text
    assert len(document.all("img")) == 0
    assert len(document.all("script")) == 1
    assert [tag for tag, _ in document.elements if tag != "p"] == [tag for tag, _ in plain.elements if tag != "p"]
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert embedded(text)["source"] == EVIL


def test_masked_names_are_absent() -> None:
    names = {"Hostname": "secret-host", "namespace": "secret-space", "pod": "secret-pod-7f9c-0", "cluster": "secret-c"}
    found = watched(names, "python3 /home/secret-user/secret-program.py")
    for diagnosis in found[0]:
        diagnosis.identity.neighbours = ("process 9 (secret-neighbour, 2 CPUs)",)
    absent = [
        Absent("secret-host", "GPU GPU-secret-uuid", "no data for 5 s"),
        Absent("secret-host", "GPU 3 of secret-host:9400", "no data for 5 s"),
        Absent("other", "2 of 8 GPUs", "x"),
    ]
    text = written(found, mask=True, absent=absent)
    for name in ("secret", "user-host", "1234", "GPU-0<", '"GPU-0"'):
        assert name not in text, name
    content = json.dumps(embedded(text))
    for kind in ("node", "namespace", "pod", "cluster", "command", "user", "exporter"):
        assert re.search(f'"{kind}-[0-9a-f]{{8}}"', content), kind
    assert "2 of 8 GPUs" in text
    document = Document(text)
    assert len(document.all("section")) == 2
    assert sum("SM activity: mean" in label for label in labels_of(document)) == 2


def test_pseudonyms_of_gpus() -> None:
    """They have the form of what they replace."""
    names = DiagnosisNames(mask=True)
    forms = {"GPU-a": "GPU-00000000-0000-0000-0000-[0-9a-f]{12}", "GPU 3 of host:9400": "GPU [0-9a-f]{8}"}
    for text, form in forms.items():
        assert re.fullmatch(form, names.uuid(text))


def test_a_secret_is_nowhere() -> None:
    text = written(watched(NAMES, "serve --api-key hunter2-secret"))
    assert "hunter2" not in text
    assert "serve --api-key ***" in text


def test_charts() -> None:
    """A gap in the values is a gap in the line; a single value is a dot."""
    power = BY_NAME["power"]
    whole = [(float(at), 100.0 + at) for at in range(60)]
    gap = [point for point in whole if not 20 < point[0] < 40]
    assert chart("GPU 0", power, whole, 700.0, (0.0, 59.0)).count("<polyline") == 1
    assert chart("GPU 0", power, gap, 700.0, (0.0, 59.0)).count("<polyline") == 2
    assert chart("GPU 0", power, whole[:1], None, (0.0, 0.0)).count("<circle") == 1
    assert "mean 130 W, 100 W to 159 W" in chart("GPU 0", power, whole, 700.0, (0.0, 59.0))
    many = [(at / 100, 1.0) for at in range(100_000)]
    assert len(chart("GPU 0", power, many, None, (0.0, 1000.0))) < 20_000


def test_the_driver() -> None:
    labels = {"UUID": "GPU-0", "driver_version": "580.1"}
    assert (
        driver_version([Scrape(1.0, [ScrapedSample(m.UP.name, {}, 1.0), ScrapedSample(m.INFO.name, labels, 1.0)])])
        == "580.1"
    )
    assert driver_version([]) == ""
