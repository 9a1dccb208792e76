"""The recipes in CONTRIBUTING.md and the rows of architecture.md work: each is followed in a copy of the repository.

All are followed in one copy, because `make generate` and `make quick` then run only once.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_exporter.alerting.boards import panel_link
from tests import ROOT
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import is_long

FIX = "fix: make the diff in CONTRIBUTING.md apply again, or name its results in tests/docs/test_contributing.py"
ROW = "fix: correct the row in docs/architecture.md, or what tests/docs/test_contributing.py adds for it"

MISTAKE = "fix: correct MISTAKES in tests/docs/test_contributing.py, or the message of the test that must report it"
# The unit tests that read what the recipes change: lists of metrics, modes, settings, paths, commands and messages.
# Only with `--long` all that draw dashboards, render the chart and diagnose recordings.
SOME = (
    *("content/test_chart_effects.py", "content/test_chart_values.py", "content/test_dashboards.py"),
    *("diagnosis/test_report.py", "diagnosis/test_terminal_report.py", "diagnosis/test_words.py"),
)
PARTS = (
    *("alerting", "catalogue", "conditions", "health", "test_config.py"),
    *(("content", "diagnosis") if is_long() else SOME),
    *("app/test_routes.py", "cli/test_help.py", "jobs/test_message.py", "jobs/test_samples.py"),
    *("pipeline/test_fields_file.py", "pipeline/test_labels.py", "pipeline/test_renderer.py"),
    *("sources/test_choice.py", "sources/test_contract.py", "training/test_timer.py", "training/test_transport.py"),
)

NAME = "GpuMemoryHot"
RUNBOOK = f"docs/runbooks/{NAME.lower()}.md"


class Edit(NamedTuple):
    """Text that is added to a file after another text, which occurs once in it; at its end if that is empty."""

    file: str
    added: str
    after: str = ""


# What is added by the rows of architecture.md that begin with these words.
ADDED: Mapping[str, Sequence[Edit]] = {
    "a signal ": [
        Edit(
            "gpu_exporter/catalogue/signals.py",
            'MEMORY_CLOCK = Signal("memory_clock", "hertz", "Memory clock", _reads(m.MEM_CLOCK, 1e6), '
            'plain="memory clock {}")\n',
            'plain="SM clock {}")\n',
        ),
        Edit(
            "content/dashboards/job.py",
            '        lines("Memory clock", About("Clock of the memory.", "alike.", "one differs: reset it."), '
            "[q.query(BOARD, s.MEMORY_CLOCK)]),\n",
            "def _chips() -> list[object]:\n    return [\n",
        ),
    ],
    "a GPU model": [
        Edit(
            "gpu_exporter/catalogue/gpu_models.py",
            'H300 = replace(H200, name="NVIDIA H300", watts=800, sources=("NVIDIA H300 Data Sheet",), seen=False)\n',
            "sources=_H200, seen=True)\n",
        )
    ],
    "an XID code": [
        Edit(
            "gpu_exporter/catalogue/xids.csv",
            "173,NEW_ERROR,What the code means,driver,none,false,NVIDIA Xid catalog,2025-10-29\n",
        )
    ],
    "a setting": [
        Edit(
            "gpu_exporter/config.py",
            '    greeting: str = _setting(LOG, "What to log at the start.", str, "")\n',
            'choice("text", "json"), "text")\n',
        ),
        Edit("gpu_exporter/app/run.py", "    log.debug(config.greeting)\n", "    alone = len(sources) == 1\n"),
    ],
    "an HTTP path": [
        Edit(
            "gpu_exporter/app/handlers.py",
            '\n\nclass Greeting(Handler):\n    """A greeting."""\n\n'
            '    async def get(self, prefix: str) -> None:\n        await self.send("hello", TEXT)\n\n    head = get\n',
        ),
        Edit(
            "gpu_exporter/app/routes.py",
            "    Greeting,\n",
            "from gpu_exporter.app.handlers import (\n    DiscoveryHandler,\n    EventsHandler,\n    GpusHandler,\n",
        ),
        Edit(
            "gpu_exporter/app/routes.py",
            '    Route("/api/v1/greeting", Greeting, Needs.NODE, "a greeting"),\n',
            "ROUTES: Sequence[Route] = (\n",
        ),
        Edit("docs/api.md", "\n`/api/v1/greeting` greets.\n"),
    ],
    "a Helm value": [
        Edit(
            "content/chart/values.py",
            '    Value("schedulerName", "", schemas.NAME, "Scheduler of the pods; empty for the default."),\n',
            'see *Priority class*."),\n',
        ),
        Edit(
            "helm/gpu-exporter/templates/daemonset.yaml",
            "      {{- with .Values.schedulerName }}\n      schedulerName: {{ . }}\n      {{- end }}\n",
            "      priorityClassName: {{ . }}\n      {{- end }}\n",
        ),
        Edit(
            "tests/support/chart_effects.py",
            '    "schedulerName": Effect("other", f"{POD} schedulerName", "other"),\n',
            'f"{POD} priorityClassName", "high"),\n',
        ),
    ],
    "a command": [
        Edit(
            "gpu_exporter/cli/greet.py",
            '"""`gpu-exporter greet`."""\n\nimport click\n\nfrom gpu_exporter.cli.commands import command\n\n\n'
            '@command("greet", click.Command)\n'
            'def greet_command() -> None:\n    """It says hello."""\n    click.echo("hello")\n',
        ),
        Edit(
            "gpu_exporter/cli/commands.py",
            '        "greet": "Print a greeting.",\n',
            'gpu-exporter release`.",\n',
        ),
    ],
    "an amount that each step": [
        Edit(
            "gpu_exporter/model/job_message.py",
            '    "images": Key(AMOUNT, "Images processed by a rank.", "images", "gpu_job_images_total"),\n',
            '"gpu_job_model_flops_total"),\n',
        ),
        Edit(
            "gpu_exporter/training/sections.py", "        self.images: float = 0\n", "        self.flops: float = 0\n"
        ),
        Edit("gpu_exporter/training/timer.py", ", images: float = 0", "flops: float = 0"),
        Edit("gpu_exporter/training/timer.py", "        step.images = images\n", "= tokens, samples, flops\n"),
    ],
}
# What `make generate` then writes.
RENDERED = {
    "docs/metrics.md": r"`gpu_jpeg_utilization_ratio`(.|\n)*`gpu_job_images_total`",
    "docs/signals.md": r"`gpu:memory_clock:hertz`",
    "docs/gpu-models.md": r"\| NVIDIA H300 \| extrapolated \|",
    "docs/xids.md": r"\b173\b.*NEW_ERROR",
    "docs/configuration.md": r"--greeting",
    "helm/gpu-exporter/values.schema.json": r'"schedulerName": ',
}
# The files that are rendered from an entry, each with a pattern that it must match. Add further files here.
MADE = {
    "alerts/health.yaml": rf"- alert: {NAME}\n +expr: gpu:[a-z_]+:bridged\n",
    "alerts/recording.yaml": r"- record: gpu:[a-z_]+:holds\n +expr: gpu:memory_temp:celsius >= 95\n",
    "dashboards/runbooks.json": rf'"title": "{NAME}"',
    RUNBOOK: rf"# {NAME}\n(.|\n)*at least 95 °C \(`hotMemory`\)",
    "docs/runbooks/README.md": rf"\[{NAME}\]\({NAME.lower()}\.md\) \| warning ",
    "dashboards/gpu.json": rf'"title": "{NAME}"',
    "helm/gpu-exporter/values.yaml": rf"hotMemory: 95\n(.|\n)*{NAME}: \{{enabled: true, severity: warning, hold: 10m",
    "helm/gpu-exporter/files/rules.yaml": r"gpu:memory_temp:celsius >= \$\(hotMemory\)\n",
    "docs/failure-modes.md": rf"\[{NAME}\]\(runbooks/{NAME.lower()}\.md\) (.|\n)*`hotMemory` \| 95 \| celsius ",
}
# Diagnose a healthy GPU, and one with the values that the entry injects, each over ten minutes.
DIAGNOSE = f"""
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

def found(values):
    labels = {{"UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA H200", "Hostname": "node-1"}}
    rows = [
        ScrapedSample(metric.name, {{**labels, **dict(metric.labels)}}, value)
        for metric, value in values.items()
        if isinstance(value, float)
    ]
    (of,) = diagnose(seen([Scrape(1000.0 + 15 * tick, rows) for tick in range(41)], {{}}))
    return {{
        match.mode.name: {{over.signal.name: value for over, value in match.because.items()}} for match in of.matches
    }}

(mode,) = (mode for mode in MODES if mode.name == "{NAME}")
print(found(HEALTHY), found({{**HEALTHY, **mode.inject.values}}))
"""

# Run the promtool test of the entry, with the rules of the copy.
PROVE = f"""
import sys
from pathlib import Path
from gpu_exporter.catalogue.failure_modes import MODES
from tests.rules import promtool
from tests.rules.series import Generation
from tests.rules.test_modes import case

modes = [mode for mode in MODES if mode.name == "{NAME}"]
promtool.check(Path(sys.argv[1]), [case(Generation.GPU_EXPORTER, modes)], promtool.promtools()[:1])
"""


# Mistakes: a file, what is in it, what is written instead, and what these tests then report, which `make quick` runs.
REPORTERS = (
    "catalogue/test_model_independence.py",
    "catalogue/test_xids.py",
    "cli/test_help.py",
    "content/test_chart_effects.py",
    "content/test_chart_values.py",
    "alerting/test_recorded_series.py",
    "app/test_routes.py",
    "test_config.py",
    "training/test_timer.py",
)
MISTAKES = (
    (
        "gpu_exporter/catalogue/signals.py",
        "SM_CLOCK = ",
        'UNREAD = Signal("unread", "hertz", "Unread", _reads(m.MEM_CLOCK, 1e6), plain="unread {}")\nSM_CLOCK = ',
        "fix: read the signal in a condition",
    ),
    (
        "gpu_exporter/catalogue/failure_modes/health.py",
        ', a.TEMPERATURE, any_model="a distance from the threshold of the board itself")',
        ")",
        "fix: pass `assumes` to the Limit",
    ),
    (
        "gpu_exporter/catalogue/failure_modes/cost.py",
        ', any_model="more than a CUDA context needs, less than the smallest slice has")',
        ")",
        "fix: compare a share, or pass the reason as `any_model`",
    ),
    (
        "gpu_exporter/conditions/tree.py",
        '        "gpu:fb_used:max5m",\n',
        '        "gpu:fb_used:max5m",\n        "gpu:gr_active:mean5m",\n',
        "fix: remove it from READ_ONCE",
    ),
    (
        "gpu_exporter/catalogue/xids.csv",
        "NEW_ERROR",
        "new_error",
        "fix: correct the row in gpu_exporter/catalogue/xids.csv",
    ),
    (
        "gpu_exporter/config.py",
        "    processes: bool ",
        '    unread: bool = _setting(COMMON, "Unread.", boolean, "false")\n    processes: bool ',
        "Common has 11 settings",
    ),
    ("gpu_exporter/app/run.py", "    log.debug(config.greeting)\n", "", "nothing reads ['unread', 'greeting']"),
    ("docs/api.md", "\n`/api/v1/greeting` greets.\n", "", "no page of docs/ names ['/api/v1/greeting']"),
    (
        "helm/gpu-exporter/templates/daemonset.yaml",
        "      {{- with .Values.schedulerName }}\n      schedulerName: {{ . }}\n      {{- end }}\n",
        "",
        "no template reads ['schedulerName']; fix: ",
    ),
    (
        "tests/support/chart_effects.py",
        '    "schedulerName": Effect("other", f"{POD} schedulerName", "other"),\n',
        "",
        "no test shows the effect of ['schedulerName']; fix: ",
    ),
    (
        "gpu_exporter/model/job_message.py",
        '"images": Key(',
        '"pictures": Key(',
        "fix: give StepTimer.step",
    ),
)

# --- how they are followed --------------------------------------------------------------------------------------------


def diffs() -> Iterator[tuple[str, str, str]]:
    """Yield the diffs of CONTRIBUTING.md: the file, the lines before and those after."""
    for diff in (ROOT / "CONTRIBUTING.md").read_text().split("```diff\n")[1:]:
        (file,) = re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)
        hunk = diff.split("```")[0].split("@@\n")[1].splitlines()
        before, after = ("".join(f"{line[1:]}\n" for line in hunk if line[0] in signs) for signs in (" -", " +"))
        yield file, before, after


def add(copy: Path, edit: Edit) -> None:
    """Add a text to a file of the copy."""
    path = copy / edit.file
    text = path.read_text() if path.exists() else ""
    assert not edit.after or text.count(edit.after) == 1, f"{edit.file} has {edit.after!r} not once: {ROW}"
    before, after, rest = text.partition(edit.after) if edit.after else (text, "", "")
    path.write_text(f"{before}{after}{edit.added}{rest}")


def run(copy: Path, *arguments: str, environment: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Run Python with the changed copy of the package, and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**env, **(environment or {}), "PYTHONPATH": str(copy)},
        cwd=copy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert not check or done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def quick(copy: Path, parts: Sequence[str]) -> str:
    """Run the command of `make quick` for these parts of the unit tests, and return its output.

    In one process: workers would import all modules again.
    """
    command = r"^quick:.*\n\t\$\(BIN\)/python (.+) tests/unit (.+) \$\(ARGS\)$"
    ((before, after),) = re.findall(command, (copy / "Makefile").read_text(), re.MULTILINE)
    options = (*shlex.split(after), "--numprocesses", "0")
    return run(copy, *shlex.split(before), *(f"tests/unit/{part}" for part in parts), *options, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository."""
    copy = tmp_path_factory.mktemp("copy")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and os.path.lexists(ROOT / name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    (copy / ".tools").symlink_to(ROOT / ".tools")
    return copy


@pytest.fixture(scope="module")
def changed(copy: Path) -> tuple[Path, set[str]]:
    """The copy after all recipes, and which files `generate` changed in it."""
    for file, before, after in diffs():
        text = (copy / file).read_text()
        assert text.count(before) == 1, f"{file} does not have the context of the diff once: {FIX}"
        (copy / file).write_text(text.replace(before, after))
    for edits in ADDED.values():
        for edit in edits:
            add(copy, edit)
    lines = run(copy, "-m", "content").splitlines()
    return copy, {line.split(": ")[0] for line in lines}


@pytest.mark.drift
def test_a_row_names_the_files_that_are_edited() -> None:
    """The second column names the files, or a folder of a new one."""
    rows = [line.split(" | ") for line in (ROOT / "docs/architecture.md").read_text().splitlines() if " | " in line]
    for name, edits in ADDED.items():
        (cell,) = (row[1] for row in rows if row[0].startswith(f"| {name}"))
        named = tuple(path.removeprefix("../") for path in re.findall(r"(?:\]\(|`)([\w./]+/[\w./]*)", cell))
        missing = [edit.file for edit in edits if not edit.file.startswith(named)]
        assert missing == [], f"{name}: {ROW}"


@pytest.mark.drift
@pytest.mark.slowest
def test_make_quick_passes(changed: tuple[Path, set[str]]) -> None:
    """The unit tests need nothing that the recipes do not name."""
    output = quick(changed[0], PARTS)
    assert re.search(r"^=+ \d+ passed(, \d+ deselected)? in ", output, re.MULTILINE), f"{ROW}\n{output[-8000:]}"


@pytest.mark.drift
def test_make_quick_reports_mistakes(changed: tuple[Path, set[str]], tmp_path: Path) -> None:
    """The message says what is wrong, and mostly how to fix it."""
    copy = shutil.copytree(changed[0], tmp_path / "copy", symlinks=True)
    for file, before, after, _ in MISTAKES:
        text = (copy / file).read_text()
        assert text.count(before) == 1, f"{file} has {before!r} not once; {MISTAKE}"
        (copy / file).write_text(text.replace(before, after))
    output = quick(copy, REPORTERS)
    assert [message for *_, message in MISTAKES if message not in output] == [], f"{MISTAKE}\n{output[-8000:]}"


@pytest.mark.drift
def test_rows_are_rendered(changed: tuple[Path, set[str]]) -> None:
    copy, files = changed
    assert files >= set(RENDERED), ROW
    assert [name for name, says in RENDERED.items() if not re.search(says, (copy / name).read_text())] == [], ROW


@pytest.mark.drift
def test_a_metric_is_one_row(changed: tuple[Path, set[str]], tmp_path: Path) -> None:
    """Read the new metric from the fake driver."""
    driver = FakeDriver(tmp_path / "driver")
    driver.set("JpgUtilization", 42)

    page = run(changed[0], "-m", "gpu_exporter", "once", environment=driver.environment)

    (_, before, after), *_ = diffs()
    assert len(after.splitlines()) - len(before.splitlines()) == 1, FIX
    assert 'gpu_jpeg_utilization_ratio{gpu="0",' in page, FIX
    assert any(line.startswith("gpu_jpeg") and line.endswith(" 0.42") for line in page.splitlines()), FIX


@pytest.mark.drift
def test_a_failure_mode_is_one_entry(changed: tuple[Path, set[str]]) -> None:
    """The alert, the runbook and all rows are rendered from the entry; nothing else has to be edited."""
    copy, files = changed

    assert files >= set(MADE), FIX
    assert [name for name, says in MADE.items() if not re.search(says, (copy / name).read_text())] == [], FIX
    assert f"{panel_link(NAME.lower())}\n" in (copy / "alerts/health.yaml").read_text(), FIX


@pytest.mark.drift
def test_diagnosis_finds_a_new_failure_mode(changed: tuple[Path, set[str]]) -> None:
    """A healthy GPU has no finding. With the injected values, it has only this failure mode, with its value."""
    assert run(changed[0], "-c", DIAGNOSE).strip() == f"{{}} {{'{NAME}': {{'memory_temp': 101.0}}}}", FIX


def test_promtool_tests_a_new_failure_mode(changed: tuple[Path, set[str]], tmp_path: Path) -> None:
    """The alert fires if the failure mode is injected, and not for a healthy GPU."""
    run(changed[0], "-c", PROVE, str(tmp_path))
