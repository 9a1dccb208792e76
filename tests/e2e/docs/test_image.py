"""The image without Docker: the Dockerfile's instructions, and its wheel in an empty environment."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests import ROOT
from tests.conftest import Serve, run
from tests.support.shared import made_once
from tests.support.tools import LIMIT, free_port, until

FIX = "fix: correct the COPY lines in Dockerfile, or the patterns in .dockerignore"

LARGEST_MIB = 60.0
# The lists of files of two builds.
BUILDS = ("first.json", "second.json")
HASH = "$2y$04$" + "x" * 53
COMPILERS = re.compile(r"\b(gcc|g\+\+|cc|make|build-essential|cargo|rustc|apt-get|apk|git)\b")


class Instruction(NamedTuple):
    """An instruction of the Dockerfile, with continued lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Return the arguments, without options."""
        return [word for word in self.text.split() if not word.startswith("--")]


def instructions() -> list[Instruction]:
    """Return the instructions of the Dockerfile, without comments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    """Return the instructions by stage, each with its FROM."""
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.name == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def stage(name: str) -> list[Instruction]:
    """Return the instructions of the stage with this name."""
    (found,) = (each for each in stages() if each[0].words[-1] == name)
    return found


def test_base_is_slim_and_pinned() -> None:
    """It is the same in every stage; no instruction chooses a platform."""
    bases = [stage[0] for stage in stages()]
    python = bases[0].words[0]
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", python)
    assert [each.words[0] for each in bases] == [python, python, "base", "base"]
    assert bases[-1].words[-1] == "gpu-exporter"  # without --target
    assert not any("--platform" in each.text for each in bases)
    assert "EXTRAS=kubernetes" in [each.text for each in instructions() if each.name == "ARG"]


def test_the_final_stage_only_copies() -> None:
    """It has no compiler, package manager or root user, and has labels."""
    final = [*stage("base"), *stage("gpu-exporter")]
    assert "RUN" not in {each.name for each in final}
    assert not COMPILERS.search(" ".join(each.text for each in final if each.name != "LABEL"))
    assert [each.text for each in final if each.name == "COPY"] == [
        "--from=build /opt/gpu-exporter /opt/gpu-exporter",
        "--from=build /opt/dcgm-exporter/counters /etc/dcgm-exporter",
    ]
    (user,) = (each.text for each in final if each.name == "USER")
    assert user == "65534:65534"
    (label,) = (each.text for each in final if each.name == "LABEL")
    keys = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", label))
    assert keys >= {"title", "description", "source", "licenses", "version", "revision"}
    (environment,) = (each.text for each in final if each.name == "ENV")
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in environment
    (check,) = (each.text for each in final if each.name == "HEALTHCHECK")
    assert check.endswith('CMD ["python", "/opt/gpu-exporter/healthcheck.py"]')
    ran = [each.text for each in stage("build") if each.name == "RUN"]
    assert any(text.startswith("install -m 644 healthcheck.py /opt/gpu-exporter/ ") for text in ran)
    assert "install -m 644 -D -t /opt/dcgm-exporter/counters" in ran[-1]  # whatever the umask of the checkout
    assert [each.text for each in final if each.name in ("ENTRYPOINT", "CMD")] == ['["gpu-exporter"]', '["serve"]']


def test_the_image_that_replaces_dcgm_exporter() -> None:
    """It runs as root, as pod specs without `runAsUser` expect, and its command is dcgm-exporter's."""
    _, *own = stage("dcgm-exporter")
    assert {each.name: each.text for each in own} == {
        "COPY": "--from=build /opt/dcgm-exporter/dcgm-exporter /usr/bin/",
        "USER": "0:0",
        "ENTRYPOINT": '["dcgm-exporter"]',
    }
    ran = " ".join(each.text for each in stage("build") if each.name == "RUN")
    assert "install -m 755 -D dcgm-exporter /opt/dcgm-exporter/dcgm-exporter" in ran
    assert "dcgm-exporter =" not in (ROOT / "setup.cfg").read_text()  # a wheel would shadow NVIDIA's command


def ignored(path: str) -> bool:
    """Return whether .dockerignore excludes a path: the last pattern that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.lstrip("!").removeprefix("**/")
            if any(fnmatch.fnmatch(part, pattern) for part in (path, path.split("/")[0], Path(path).name)):
                out = not line.startswith("!")
    return out


@pytest.mark.drift
def test_copied_files_exist() -> None:
    """They reach the builder, and nothing else does."""
    copied = [each.words[:-1] for each in stages()[0] if each.name == "COPY"]
    sources = [source for words in copied for source in words]
    assert len(sources) > 4, FIX
    for source in sources:
        assert [*ROOT.glob(source)], f"{source}: {FIX}"
        assert not ignored(source), f"{source}: {FIX}"
    assert not ignored("gpu_exporter/catalogue/xids.csv"), FIX
    files = {path.name for path in (ROOT / "deploy/dcgm-exporter").glob("*.csv")}
    assert files == {"default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv"}, FIX
    assert not any(ignored(f"deploy/dcgm-exporter/{name}") for name in files), FIX
    for other in (".git", ".venv", ".tools", "tests", "shared", "gpu_exporter/__pycache__", "docs", "web.yml"):
        assert ignored(other), f"{other}: {FIX}"


@pytest.mark.drift
def test_nothing_that_git_ignores_reaches_the_builder() -> None:
    """What tools leave in copied folders is in no image."""
    patterns = [line for line in (ROOT / ".gitignore").read_text().splitlines() if not line.startswith(("#", "/"))]
    assert len(patterns) > 5, FIX
    for pattern in patterns:
        left = pattern.strip("/").replace("*", "x")
        assert ignored(f"gpu_exporter/sources/{left}"), f"{pattern} of .gitignore: {FIX}"


@pytest.fixture(scope="module")
def built_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the builder's steps twice in an empty environment; return the folder of the last, with a list
    of the files of each."""
    return made_once(tmp_path_factory, "image", _install_twice)


@pytest.fixture(scope="module")
def installed(built_twice: Path) -> Path:
    """Return the folder that the final stage copies."""
    return built_twice / "build/opt/gpu-exporter"


def _install_twice(folder: Path) -> None:
    for name in BUILDS:
        shutil.rmtree(folder / "build", ignore_errors=True)  # the other one: paths are in the content of some files
        _install(folder / "build")
        (folder / name).write_text(json.dumps(_states(folder / "build/opt")))


def _install(folder: Path) -> None:
    """Run the instructions of the first stage below `folder`, without extras."""
    source, program = folder / "src", folder / "bin"
    program.mkdir(parents=True)
    (program / "python").symlink_to(sys.executable)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    clean |= {"EXTRAS": "", "SOURCE_DATE_EPOCH": "1700000000", "PATH": f"{program}:{clean['PATH']}"}
    for each in stages()[0]:
        *sources, to = each.words
        if each.name == "COPY":
            for path in (path for name in sources for path in ROOT.glob(name)):
                _copy(path, source / (path.name if to == "./" else to))
        elif each.name == "RUN":
            text = each.text.replace("/opt/", f"{folder}/opt/").replace("/wheels", f"{folder}/wheels")
            found = subprocess.run(text, shell=True, cwd=source, env=clean, capture_output=True, text=True, timeout=300)
            assert found.returncode == 0, found.stderr + found.stdout


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        # Docker copies links as links, and only what .dockerignore lets through.
        shutil.copytree(path, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def size(folder: Path) -> float:
    """Return the MiB on disk, each file once, without the interpreter, which belongs to the base image."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 2**20


def stdout_of(program: Path, *arguments: str) -> str:
    """Return the output of a command."""
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=LIMIT).stdout


def test_it_is_small(installed: Path, record_property: Callable[[str, object], None]) -> None:
    """Without extras, it has only the runtime dependencies, and no pip."""
    found = size(installed)
    record_property("installed_mib", round(found, 1))
    print(f"installed: {found:.1f} MiB")
    assert 1 < found < LARGEST_MIB
    listed = "import importlib.metadata as i; print(*sorted(d.name.lower() for d in i.distributions()))"
    needed = {"bcrypt", "click", "gpu-exporter", "msgspec", "nvidia-ml-py", "prometheus_client", "pyyaml", "tornado"}
    assert set(stdout_of(installed / "bin/python", "-c", listed).split()) == needed


def test_two_builds_are_equal(built_twice: Path) -> None:
    """In content, modes and times: what the final stage copies depends on the commit alone. Packages have hashes."""
    first, second = (json.loads((built_twice / name).read_text()) for name in BUILDS)
    assert first == second
    assert any(name.endswith(".pyc") for name in first)
    assert {time for *_, time in first.values()} == {1_700_000_000}
    assert any("--require-hashes" in each.text for each in stages()[0])


def _states(folder: Path) -> Mapping[str, tuple[str, int, int]]:
    """Return the digest of the content or the target, the mode, and the time of each file and folder below a folder."""
    return {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[str, int, int]:
    about = path.lstat()
    content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
    return hashlib.sha256(content).hexdigest(), about.st_mode, int(about.st_mtime)


def test_it_writes_the_bundle_of_this_version(installed: Path) -> None:
    """With every file, although the package only links to some of them."""
    command = ("bundle", "--list")
    assert stdout_of(installed / "bin/gpu-exporter", *command) == run(*command).stdout


def test_it_serves(installed: Path, tmp_path: Path) -> None:
    """Every file that it needs is in the wheel; the health check is that of the Dockerfile."""
    port = free_port()
    arguments: Sequence[str] = ("serve", "--address", f"127.0.0.1:{port}", "--source", "simulated", "--gpus", "2")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([installed / "bin/gpu-exporter", *arguments], stderr=log, cwd=tmp_path, env=clean)
    try:
        page = until(lambda: _page(port), 30, "a page with both GPUs")
        assert 'source="simulated"' in page
        assert healthcheck(installed / "bin/python", process.pid, tmp_path) == ""
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        assert healthcheck(installed / "bin/python", process.pid, tmp_path) == "no exporter listens"
    finally:
        process.kill()
        process.wait()
    assert "THESE ARE NOT YOUR GPUS" in (tmp_path / "log").read_text()
    assert "GPU" in stdout_of(installed / "bin/gpu-exporter", "metrics")


@pytest.mark.parametrize("arguments", [(), ("-c", "500", "--kubernetes=false")])
def test_dcgm_exporter_serves(installed: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """The command of that image: with dcgm-exporter's flags and variables, or none. It is healthy as the other is."""
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    clean |= {"PATH": f"{installed / 'bin'}:{clean['PATH']}", "GPU_EXPORTER_SOURCE": "simulated"}
    clean |= {"GPU_EXPORTER_GPUS": "2", "GPU_EXPORTER_ADDRESS": f"127.0.0.1:{port}"}
    with (tmp_path / "log").open("w") as log:
        program = [str(ROOT / "deploy/dcgm-exporter/dcgm-exporter"), *arguments]
        process = subprocess.Popen(program, stderr=log, cwd=tmp_path, env=clean)
    try:
        until(lambda: _page(port), 30, "a page with both GPUs")
        assert healthcheck(installed / "bin/python", process.pid, tmp_path) == ""
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def healthcheck(python: Path | str, pid: int, folder: Path) -> str:
    """Return the output of HEALTHCHECK in a container with this process; it is empty if healthy."""
    procfs = folder / "procfs"
    procfs.mkdir(exist_ok=True)
    for name in ("net", str(pid)):
        if not (procfs / name).is_symlink():
            (procfs / name).symlink_to(f"/proc/{name}")
    program = [python, ROOT / "deploy/healthcheck.py", procfs]
    found = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT)
    assert (found.returncode == 0) is (found.stderr == ""), found.stderr
    return found.stderr.strip()


@pytest.mark.parametrize("protection", ["", "certificate", "password"])
@pytest.mark.parametrize("by", ["flag", "environment", "file"])
def test_health_check(serve: Serve, tmp_path: Path, protection: str, by: str) -> None:
    """It finds the exporter on any port, with TLS, passwords or neither, and detects one that hangs."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    tls = {"cert_file": "certificate", "key_file": "key"}
    web = {"certificate": {"tls_server_config": tls}, "password": {"basic_auth_users": {"a": HASH}}}.get(protection, {})
    (tmp_path / "web.yml").write_text(json.dumps(web))
    file = str(tmp_path / "web.yml")
    (tmp_path / "config.yaml").write_text(json.dumps({"web_config_file": file}))
    arguments = {"flag": ["--web.config.file", file], "file": ["--config", str(tmp_path / "config.yaml")]}
    context = (
        ssl.create_default_context(cadata=authority.cert_pem.bytes().decode()) if protection == "certificate" else None
    )
    exporter = serve(
        "--source",
        "simulated",
        *arguments.get(by, []),
        env={"GPU_EXPORTER_WEB_CONFIG_FILE": file} if by == "environment" else {},
        tls=context,
        new=True,  # the health check reads its command line
    )
    assert healthcheck(sys.executable, exporter.process.pid, tmp_path) == ""
    if by == "file" and not protection:
        exporter.process.send_signal(signal.SIGSTOP)
        assert healthcheck(sys.executable, exporter.process.pid, tmp_path).endswith("timed out")


def _page(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()
    return page if page.count("gpu_up{") == 2 else ""
