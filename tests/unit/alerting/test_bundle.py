"""The bundle: its files, the user's limits, upgrades, and that it names nothing the project does not own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpu_exporter.alerting import bundle
from gpu_exporter.alerting.alert_texts import RELATIVE
from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.failure_modes.fleet import FAULTS
from gpu_exporter.cli.bundle import bundle_command
from tests import ROOT
from tests.support.chart import kind, objects

pytestmark = pytest.mark.slow


def run(*arguments: object) -> Result:
    """Return the result of the command."""
    return CliRunner().invoke(bundle_command, [str(each) for each in arguments])


def written(folder: Path) -> set[str]:
    """Return the paths of all files below a folder, except the list of them."""
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return paths - {bundle.MANIFEST}


def _load(text: str) -> Any:
    return yaml.load(text, Loader=yaml.CSafeLoader)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all parts."""
    folder = tmp_path_factory.mktemp("out") / "bundle"
    assert run("--out", folder).exit_code == 0
    return folder


def test_files(whole: Path) -> None:
    """Everything to install, with the content that is committed; `--list` has the same paths."""
    files = written(whole)
    assert set(run("--list").output.split()) == files
    assert {"alerts/health.yaml", "dashboards/runbooks.json", "runbooks/gpulost.md", "chart/.helmignore"} < files
    assert {"deploy/gpu-exporter.service", "deploy/compose.yaml", "deploy/kubernetes/plain/gpu-exporter.yaml"} < files
    assert not [path for path in files if "__pycache__" in path or path.endswith(".lint")]
    for part, committed in (("dashboards", "dashboards"), ("chart", "helm/gpu-exporter"), ("alerts", "alerts")):
        for path in (path for path in files if path.startswith(f"{part}/")):
            if path.endswith(".md"):  # without links to other pages of the repository
                continue
            if path.startswith(("alerts/levels/", "alerts/vmalert/")):  # not committed
                continue
            text, expected = (whole / path).read_text(), (ROOT / committed / path.partition("/")[2]).read_text()
            assert text.split("\n", part == "alerts")[-1] == expected.split("\n", part == "alerts")[-1], path


def test_manifests_for_the_operator(whole: Path) -> None:
    """Rules as in the chart, beside the committed ServiceMonitor; the kustomization names files that exist."""
    folder = whole / "deploy/kubernetes/monitored"
    kustomization = _load((folder / "kustomization.yaml").read_text())
    assert all((folder / resource).exists() for resource in kustomization["resources"])
    assert (folder / "servicemonitor.yaml").exists()
    made = list(yaml.load_all((folder / "prometheusrule.yaml").read_text(), Loader=yaml.CSafeLoader))
    of_chart = kind(objects({"prometheusRule": {"enabled": True}}), "PrometheusRule")
    assert [each["spec"] for each in made] == [each["spec"] for each in of_chart]
    for each, expected in zip(made, of_chart, strict=True):
        assert each["metadata"]["labels"].items() <= expected["metadata"]["labels"].items()


def test_only_some_domains(tmp_path: Path) -> None:
    """Their alerts, the recording rules that these need, and both levels of them; also for vmalert."""
    assert run("--domain", "health", "--out", str(tmp_path / "b"), "alerts").exit_code == 0
    groups = _load((tmp_path / "b/alerts/recording.yaml").read_text())["groups"]
    names = {group["name"] for group in groups}
    assert {"gpu-board", "gpu-fleet"} < names
    assert not {"gpu-jobs", "gpu-allocation", "gpu-reports", "gpu-controller"} & names
    assert not (tmp_path / "b/alerts/cost.yaml").exists()
    for path in ("levels/shard.yaml", "vmalert/rules.yaml"):
        text = (tmp_path / "b/alerts" / path).read_text()
        assert "alert: GpuLost" in text
        assert "alert: GpuFakeLoad" not in text


def test_interval(tmp_path: Path) -> None:
    """Of all files; but reports add up samples of an hour, and a fault of the fleet must be known soon."""
    assert run("--interval", "60s", "--out", str(tmp_path / "b"), "alerts").exit_code == 0
    for path in ("recording", "health", "distributed", "levels/shard", "levels/global", "vmalert/rules"):
        groups = _load((tmp_path / f"b/alerts/{path}.yaml").read_text())["groups"]
        prompt = [
            rule.get("record") or rule["alert"]
            for group in groups
            if group.get("interval") == "5s"
            for rule in group["rules"]
        ]
        assert set(prompt) <= {"gpu:alerts:firing", "incident:all:alerts", FAULTS, "GpuFleetFault"}, path
        assert {group.get("interval") for group in groups} <= {"5s", "1m", "2m", "1h"}, path
    for value, message in (("3m", "180s is not whole"), ("1s", "1s is not whole"), ("20.5s", "20.5s is not whole")):
        error = run("--interval", value, "--out", tmp_path / "c")
        assert error.exit_code == 2
        assert f"--interval: {message} seconds from 5s to 120s" in error.output


def test_links(whole: Path) -> None:
    """They lead to files of the bundle."""
    targets = set()
    for page in whole.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert "://" in target or (page.parent / target).is_file(), (page.name, target)
            targets.add(target)
    assert {"../alerts/examples/alertmanager.yaml", "gpulost.md"} < targets


def test_compose_file(whole: Path) -> None:
    """It builds nothing, asks for the image, and mounts files of the bundle."""
    services = _load((whole / "deploy/compose.yaml").read_text())["services"]
    assert not any("build" in service for service in services.values())
    assert services["gpus"]["image"].startswith("${IMAGE:?")
    mounts = [each.split(":")[0] for service in services.values() for each in service.get("volumes", ())]
    paths = [mount for mount in mounts if mount.startswith(".")]
    assert len(paths) == 6
    assert [path for path in paths if not (whole / "deploy" / path).exists()] == []


def test_no_name_that_somebody_else_could_register() -> None:
    """Until the project has its names, nothing refers to one: no image, repository or package."""
    assert not any((project.REPOSITORY, project.DOCS, project.IMAGE, project.CHART)), (
        "fix: adapt this test to the names"
    )
    folders = ("gpu_exporter", "alerts", "dashboards", "deploy", "docs", "helm", ".github")
    paths = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix not in (".gz", ".png", ".pyc")
    ]
    paths += [*ROOT.glob("*.md"), ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "setup.cfg"]
    named = re.compile(
        r"(github\.com|githubusercontent\.com|ghcr\.io|docker\.io|quay\.io|pypi\.org)[/\w.-]*/gpu-exporter"
        r"|pip install '?gpu-exporter"
    )
    wrong = {path for path in paths if path.is_file() and named.search(path.read_text())}
    assert wrong == set(), "fix: use a name of gpu_exporter/catalogue/project.py, or none"


def test_limits(tmp_path: Path) -> None:
    """Rules and runbooks have the user's limit; other limits keep their default."""
    limits, out = tmp_path / "limits.yaml", tmp_path / "out"
    limits.write_text("thermalMargin: 7.25\n")
    assert run("--out", out, "--limits", limits, "alerts", "runbooks").exit_code == 0
    assert {path.partition("/")[0] for path in written(out)} == {"alerts", "runbooks"}
    assert "7.25" in (out / "alerts/recording.yaml").read_text()
    assert "7.25" in (out / "runbooks/gputhermalmarginlow.md").read_text()
    assert "7.25" not in (out / "alerts/cost.yaml").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("thermalMargn: 5", "there is no limit 'thermalMargn'; did you mean thermalMargin?"),
        ("nonsense_of_mine: 1", "docs/failure-modes.md lists all limits"),
        ("thermalMargin: ten", "thermalMargin is 'ten', not a number of"),
        ("usdPerKwh: -3", "usdPerKwh is '-3', not a number of USD from 0"),
        ("thermalMargin: .nan", "thermalMargin is 'nan', not a number"),
        ("thermalMargin: .inf", "thermalMargin is 'inf', not a number"),
        (f"thermalMargin: {'9' * 400}", "not a number of celsius from 0"),
        ("thermalMargin: true", "thermalMargin is 'True', not a number"),
        ("[1, 2]", "not a mapping"),
        ("a: [", "not YAML"),
        (None, "No such file"),
    ],
)
def test_wrong_limits(content: str | None, message: str, tmp_path: Path) -> None:
    """One line names the file, the limit and the fix; nothing is written."""
    limits, out = tmp_path / "limits.yaml", tmp_path / "out"
    if content is not None:
        limits.write_text(content)
    error = run("--out", out, "--limits", limits)
    assert error.exit_code != 0
    assert message in error.output
    assert str(limits) in error.output
    assert not out.exists()


def test_links_of_alerts(whole: Path, tmp_path: Path) -> None:
    """They lead to the Grafana that is named."""
    assert run("--out", tmp_path / "b", "alerts", "--grafana-url", "https://grafana.example/").exit_code == 0
    groups = _load((tmp_path / "b/alerts/health.yaml").read_text())["groups"]
    found = [rule["annotations"] for group in groups for rule in group["rules"]]
    assert {each[name][:30] for each in found for name in ("runbook_url", "dashboard_url")} == {
        "https://grafana.example/d/gpu-"
    }
    assert not any("links" in each for each in found)
    assert (whole / "alerts/health.yaml").read_text().count(f"links: {RELATIVE}") == len(found)
    assert "begin with http" in run("--out", tmp_path / "c", "--grafana-url", "grafana.example").output


def test_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command can be repeated."""
    write = Path.write_text

    def full(path: Path, *arguments: str, **more: str) -> int:
        if path.name == "cost.json":
            raise OSError(28, "No space left on device", str(path))
        return write(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert "No space left" in run("--out", tmp_path / "b", "dashboards").output
    assert run("--out", tmp_path / "b", "dashboards").exit_code == 0
    assert (tmp_path / "b/dashboards/cost.json").exists()


def test_upgrade(tmp_path: Path) -> None:
    """Files that no longer exist are removed, except the user's; other parts stay."""
    assert run("--out", tmp_path / "b", "dashboards", "chart").exit_code == 0
    gone, own, stays = (
        tmp_path / "b" / name for name in ("dashboards/gone.json", "dashboards/own.json", "chart/gone.yaml")
    )
    for path in (gone, own, stays):
        path.write_text("{}\n")
    manifest = tmp_path / "b" / bundle.MANIFEST
    manifest.write_text(
        manifest.read_text().replace('"files": [', '"files": ["dashboards/gone.json", "chart/gone.yaml",')
    )
    assert run("--out", tmp_path / "b", "dashboards").exit_code == 0
    assert [path.exists() for path in (gone, own, stays)] == [False, True, True]
    assert run("--out", tmp_path / "b", "chart").exit_code == 0
    assert [path.exists() for path in (gone, own, stays)] == [False, True, False]


@pytest.mark.parametrize(
    "content", ["{", '{"version": "1", "files": ["../x"]}', '{"version": "1", "files": ["/etc/x"]}']
)
def test_damaged_list_of_files(content: str, tmp_path: Path) -> None:
    """Nothing outside the folder is ever deleted."""
    (tmp_path / "b").mkdir()
    (tmp_path / "x").touch()
    (tmp_path / "b" / bundle.MANIFEST).write_text(content)
    assert "is damaged; delete" in run("--out", tmp_path / "b").output
    assert (tmp_path / "x").exists()


def test_folder_with_other_files(tmp_path: Path) -> None:
    """It is left alone."""
    (tmp_path / "mine").touch()
    assert "holds other files; name a new or an empty folder" in run("--out", tmp_path).output
    assert written(tmp_path) == {"mine"}
    assert "name a folder with --out" in run().output
