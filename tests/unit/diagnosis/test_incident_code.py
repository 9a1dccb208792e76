"""Lines of code beside incidents: of what a job does, on the GPUs that cause them; never of a fault."""

from __future__ import annotations

from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.html_page import page
from gpu_exporter.diagnosis.incident_words import with_code
from gpu_exporter.diagnosis.report import as_json, report_lines
from gpu_exporter.diagnosis.result import DiagnosisResult
from gpu_exporter.diagnosis.window import Scrapes, seen
from tests.support.table import table_test
from tests.unit.diagnosis.test_current import snapshots

CODE = {
    f"GPU-{index}": (f"Profile of GPU {index} at 14:02 UTC (1 min ago): process 7 at /a.py({index})",)
    for index in range(4)
}


@table_test(
    "cause, culprits, code",
    [
        ("GpuStragglerStarved", ["GPU-0"], [*CODE["GPU-0"]]),
        ("GpuHostBound", ["GPU-1", "GPU-9", "GPU-0"], [*CODE["GPU-1"], *CODE["GPU-0"]]),
        ("GpuHostBound", ["GPU-9"], None),
        ("GpuXidFatal", ["GPU-0"], None),
        ("GpuNicSlowRail", ["GPU-0"], None),
    ],
)
def test_whose_code_is_beside_an_incident(cause: str, culprits: list[str], code: list[str] | None) -> None:
    (found,) = with_code([{"cause": cause, "culprits": [{"gpu": "0", "UUID": uuid} for uuid in culprits]}], CODE)
    assert found.get("code") == code


def test_reports_have_each_line_once() -> None:
    """The line of the culprit is below its incident, the others at the end. A file that is passed on has none."""
    scrapes = Scrapes()
    for snapshot in snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3]):
        scrapes.take(snapshot)
    window = seen(scrapes.taken, {})
    result = DiagnosisResult("nvml", 20.0, window, diagnose(window), profile_lines=CODE, profile_problem="not allowed")
    lines = list(report_lines(result, every=False, verbose=False, price=None))
    places = {line: [n for n, text in enumerate(lines) if text.strip() == line] for (line,) in CODE.values()}
    assert [len(found) for found in places.values()] == [1, 1, 1, 1]
    first, *others = (found[0] for found in places.values())
    assert lines[first - 1].startswith(("Incident", "    c", "    also hit"))
    assert lines[min(others) : min(others) + 4] == [*(line for (line,) in [*CODE.values()][1:]), "not allowed"]
    (incident,) = as_json(result)["incidents"]
    assert incident["code"] == [*CODE["GPU-0"]]
    assert "/a.py" not in page(result, mask=False, price=None)
