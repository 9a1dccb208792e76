"""The docs are complete: failure modes have their text, links work, and limits, classes and signals are listed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from content.artifacts import ARTIFACTS
from gpu_exporter.alerting import incidents, rules, runbooks
from gpu_exporter.alerting.limits import all_limits
from gpu_exporter.alerting.roofline import ROOFLINE
from gpu_exporter.alerting.rules import shared_conditions
from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import FILES, MODES, cost
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.cli.commands import SUMMARIES
from gpu_exporter.conditions.tree import Limit
from tests import ROOT
from tests.support.tools import tool

GENERATE = "fix: run `make generate`"
ENTRY = "fix: name what exists in the entry of the mode in gpu_exporter/catalogue/failure_modes/"
EXPRESSION = "fix: correct the expression in the entry of the mode in gpu_exporter/catalogue/failure_modes/"
LIMIT = "fix: run `make generate`, or delete the limit from gpu_exporter/catalogue/failure_modes/"

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DOCS = {name: (ROOT / name).read_text() for name in ARTIFACTS if name.endswith(".md")}
FAILURE_MODES = DOCS["docs/failure-modes.md"]
SECTIONS = [
    "What happened",
    "Impact",
    "What to do first",
    "Find the cause",
    "Fix",
    "When this alert is wrong",
    "Related alerts",
    "How it is detected",
]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_merge_is_unfinished() -> None:
    """No other check reads all text of the pages that people write."""
    unfinished = [page.name for page in PAGES if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)]
    assert unfinished == []


@pytest.mark.drift
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_exist(page: Path) -> None:
    """Every link names an existing file and heading."""
    dead = []
    for target, anchor in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            dead.append((target, anchor))

    assert dead == [], "fix: name a file or a heading that exists; run `make generate` if the page is rendered"


@pytest.mark.drift
@pytest.mark.parametrize("domain", Domain)
def test_every_alert_has_its_runbook(domain: Domain) -> None:
    """The runbook URL of each committed alert leads to its panel on the committed dashboard."""
    groups = yaml.safe_load((ROOT / f"alerts/{domain.value}.yaml").read_text())["groups"]
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}

    board = json.loads((ROOT / "dashboards/runbooks.json").read_text())
    titles = {f"/d/{board['uid']}?viewPanel={panel['id']}": panel["title"] for panel in board["panels"]}

    assert urls, GENERATE
    assert {url: titles.get(url) for url in urls.values()} == {url: name for name, url in urls.items()}, GENERATE


@pytest.mark.drift
def test_every_runbook_has_a_failure_mode() -> None:
    """No page in the folder is left over."""
    names = {path.name for path in (ROOT / runbooks.FOLDER).iterdir()}

    assert names == {"README.md", *(f"{mode.name.lower()}.md" for mode in MODES)}, (
        "fix: delete the page in docs/runbooks of a failure mode that is gone, then run `make generate`"
    )


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_failure_modes_are_complete(mode: FailureMode) -> None:
    """Meaning, impact, false positives, commands for the diagnosis, and a mitigation."""
    prose = (mode.meaning, mode.impact, mode.wrong, mode.advice, *mode.diagnosis, *mode.mitigation)

    assert len(mode.diagnosis) >= 2
    assert mode.mitigation
    assert any("`" in step for step in mode.diagnosis)
    assert [text for text in prose if len(text) < 15 or text[-1] not in ".?"] == []
    assert not re.search(r"TODO|TBD|FIXME|  |\{(s|m)\.", " ".join(prose))


@pytest.mark.drift
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_runbook_has_every_section(mode: FailureMode) -> None:
    """In one order, none of them empty."""
    text = DOCS[runbooks.path(mode)]
    found = re.split(r"^## (.+)$", text, flags=re.MULTILINE)

    assert found[1::2] == SECTIONS, GENERATE
    assert all(section.strip() for section in found[2::2]), GENERATE
    assert mode.severity.value in found[0], GENERATE
    assert "{" not in runbooks.summary(mode), "fix: replace the template in gpu_exporter/alerting/runbooks.py"
    assert rules.expression(mode, {}) in found[-1], GENERATE


@pytest.mark.drift
def test_a_counted_hold_names_its_window() -> None:
    """A hold that is counted from samples may be interrupted."""
    text = DOCS["docs/runbooks/gpustragglerlaunchbound.md"]

    assert "[45m]) >= 30" in text, GENERATE
    assert "| Fires | when the condition is true, and was for 30 min of the last 45 min |" in text, GENERATE


@pytest.mark.drift
def test_related_alerts_name_each_other() -> None:
    """If one runbook lists another alert as related, that of the other lists it, too."""
    sections = {mode.name: re.split(r"^## ", DOCS[runbooks.path(mode)], flags=re.MULTILINE)[7] for mode in MODES}
    related = {name: set(re.findall(r"\bGpu[A-Z]\w+", text)) for name, text in sections.items()}

    assert "GpuLost" in related["GpuXidFatal"], GENERATE
    assert [(name, other) for name in related for other in related[name] if name not in related[other]] == [], GENERATE


@pytest.mark.drift
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_names_in_prose_exist(mode: FailureMode) -> None:
    """Signals, failure modes and commands that texts name exist."""
    prose = " ".join((mode.meaning, mode.impact, mode.wrong, mode.advice, *mode.diagnosis, *mode.mitigation))
    recorded = set(re.findall(r"record: (\S+)", (ROOT / "alerts/recording.yaml").read_text()))

    assert set(re.findall(r"\b(?:gpu|workload|node|namespace):\w+:\w+", prose)) <= recorded, ENTRY
    assert set(re.findall(r"\bGpu[A-Z]\w+", prose)) <= {mode.name for mode in MODES}, ENTRY
    assert set(re.findall(r"`gpu-exporter (\w+)", prose)) <= set(SUMMARIES), ENTRY


@pytest.mark.drift
def test_promql_in_prose_is_valid(tmp_path: Path) -> None:
    """promtool accepts every expression in a runbook."""
    steps = " ".join(step for mode in MODES for step in (*mode.diagnosis, *mode.mitigation, mode.wrong))
    asked = dict.fromkeys(re.findall(r"`((?:gpu|workload)(?::|_)[^`]+)`", steps))
    found = [{"record": f"asked:{number}", "expr": text} for number, text in enumerate(asked)]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": found}]}))

    result = subprocess.run([tool("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)

    assert len(asked) > 40, EXPRESSION
    assert result.returncode == 0, f"{result.stderr}{result.stdout}\n{EXPRESSION}"


@pytest.mark.drift
def test_every_limit_is_documented() -> None:
    """Every limit of the catalogue is used by a condition or is a price, and is on the page."""
    modules = (bottlenecks, *FILES)
    defined = {value for module in modules for value in vars(module).values() if isinstance(value, Limit)}

    assert defined <= set(all_limits()), LIMIT
    for limit in (*all_limits(), *cost.PRICES):
        assert f"| `{limit.name}` | {limit.value:.15g} | {limit.unit} | {limit.help} |" in FAILURE_MODES, LIMIT


@pytest.mark.drift
def test_decision_tree_has_every_class_in_order() -> None:
    """Each question leads to its class or to the next question; the last class needs none."""
    (tree,) = re.findall(r"```mermaid\n(.*?)```", FAILURE_MODES, re.DOTALL)
    last = len(BOTTLENECKS) - 1

    assert re.findall(r'c(\d+)\(\["(.+)"\]\)', tree) == [(str(n), each.name) for n, each in enumerate(BOTTLENECKS)], (
        GENERATE
    )
    assert re.findall(r"q(\d+) -- yes --> c(\d+)", tree) == [(str(n), str(n)) for n in range(last)], GENERATE
    assert re.findall(r"q(\d+) -- no --> (\w+)", tree) == [
        (str(n), f"q{n + 1}" if n + 1 < last else f"c{last}") for n in range(last)
    ], GENERATE
    labels = re.findall(r'q\d+\{\{"(.+)"\}\}', tree)
    assert len(labels) == last, GENERATE
    assert [label for label in labels if re.search(r'["{}]|<(?!br/>)', label)] == [], GENERATE


@pytest.mark.drift
def test_classes_and_modes_are_listed_in_order() -> None:
    """Classes in their order, failure modes in triage order, each with a link to its runbook."""
    headings = re.findall(r"^### \d+\. (.+)$", FAILURE_MODES, re.MULTILINE)
    table = re.findall(r"^\| \[(\w+)\]\(runbooks/", FAILURE_MODES, re.MULTILINE)
    index = re.findall(r"^\| \[(\w+)\]\(\w+\.md\)", DOCS["docs/runbooks/README.md"], re.MULTILINE)

    assert headings == [each.name for each in BOTTLENECKS], GENERATE
    assert table == index == [mode.name for mode in MODES], GENERATE


@pytest.mark.drift
def test_every_signal_has_a_row() -> None:
    """In the order of the catalogue, each with its sources; then the recorded conditions."""
    rows = re.findall(r"^\| `(gpu:\S+)` \| (.+) \|$", DOCS["docs/signals.md"], re.MULTILINE)
    signals, conditions = rows[: len(SIGNALS)], rows[len(SIGNALS) :]

    assert [name for name, _ in signals] == [signal.record for signal in SIGNALS], GENERATE
    others = {each.record for each in (*ROOFLINE, *incidents.ALERTS, *incidents.INCIDENTS, *incidents.COSTS)}
    assert [name for name, _ in conditions if name not in others] == list(shared_conditions()), GENERATE
    assert [name for name, cells in signals if re.split(r"(?<!\\) ?\| ", cells)[2] == "-"] == [], GENERATE
