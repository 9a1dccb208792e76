"""Mistakes on the command line, in settings and in files: the error is one line with the mistake and the fix."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.metric import MetricSet
from tests.conftest import RECORDINGS, Page, Serve, command, run
from tests.support.tools import LIMIT, until

REPLAY = ("--source", "replay", "--recording", "h200_workloads")
GPU = {"gpu": 0, "UUID": "GPU-0"}


def fails(
    *arguments: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = (), stdout: int = subprocess.PIPE
) -> str:
    """Run gpu-exporter, which must fail with one line on stderr and nothing on stdout; return the line."""
    if prefix or stdout != subprocess.PIPE:
        ran = subprocess.run(
            [*prefix, *command(*arguments)],
            env={**os.environ, **(env or {})},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
        )
    else:
        ran = run(*arguments, env=env)
    assert ran.returncode in (1, 2), ran
    assert not ran.stdout
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("gpu-exporter: ")
    return ran.stderr


def ticks(*of: Mapping[str, object], version: int = 1, **header: object) -> bytes:
    """Return the lines of a recording with these ticks of GPU 0."""
    head = {"format": "gpu-exporter-recording", "version": version, "interval_seconds": 1, "gpus": [GPU], **header}
    return b"".join(json.dumps(line).encode() + b"\n" for line in (head, *of))


def tick(t: object, gpu: object = 0, value: object = 40) -> Mapping[str, object]:
    """Return one tick."""
    return {"t": t, "gpu": gpu, "samples": {"DCGM_FI_DEV_GPU_TEMP": value}}


GOOD = ticks(tick(1), tick(2))


# --- settings ----------------------------------------------------------------------------------------------------

BAD_VALUES = [
    ("address", "9400000", "host:port"),
    ("address", "localhost", "host:port"),
    ("address", ":http", "host:port"),
    ("interval", "fast", "for example 1s"),
    ("interval", "-1", "for example 1s"),
    ("interval", "1ms", "use 100ms to 1h"),
    ("gauge_window", "0", "for example 1s"),
    ("source", "reply", "did you mean replay?"),
    ("speed", "-2", "positive"),
    ("speed", "nan", "positive"),
    ("loop", "maybe", "neither true nor false"),
    ("metrics", "ful", "did you mean full?"),
    ("expected_gpus", "eight", "for example 8"),
    ("log_level", "verbose", "debug, info, warning, error"),
]


@pytest.mark.parametrize(("setting", "value", "cure"), BAD_VALUES)
@pytest.mark.parametrize("where", ["file", "environment", "flag"])
def test_bad_value(tmp_path: Path, where: str, setting: str, value: str, cure: str) -> None:
    """A bad value is refused wherever it is set; the error names the setting, the value and what is allowed."""
    if where == "file":
        path = tmp_path / "config.yaml"
        path.write_text(f'{setting}: "{value}"\n')
        line = fails("serve", "--config", str(path))
        assert f"config {path}: {setting}: " in line
    elif where == "environment":
        line = fails("serve", env={f"GPU_EXPORTER_{setting.upper()}": value})
        assert f"GPU_EXPORTER_{setting.upper()}" in line
    else:
        line = fails("serve", f"--{setting.replace('_', '-')}={value}")
        assert f"--{setting.replace('_', '-')}" in line
    assert repr(value) in line
    assert cure in line


@pytest.mark.parametrize(
    ("content", "cure"),
    [
        (b"intervall: 1s", "unknown key 'intervall'; did you mean interval?"),
        (b"gauge-windw: 1s", "unknown key 'gauge-windw'; did you mean gauge_window?"),
        (b"1: 2", "unknown key 1"),
        (b"interval: [", "not YAML"),
        (b"\tinterval: 1", "not YAML"),
        (b"interval: !!python/name:os.system", "not YAML"),
        (b"interval: 2024-13-45", "not YAML"),
        (b"interval: " + b"[" * 5000, "nested too deeply"),
        (b"- interval", "must be a mapping"),
        (b"interval", "must be a mapping"),
        (b"interval: {seconds: 1}", "interval: needs one value"),
        (b"interval: [1]", "interval: needs one value"),
        (b"interval:", "interval: needs one value; add it, or remove the key"),
        (b"interval: \xff", "not YAML: invalid start byte at position 10"),
        (b"interval: \x00", "not YAML"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_config_file(tmp_path: Path, content: bytes, cure: str) -> None:
    """A file that is not a mapping of known settings to single values is refused with its name."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    line = fails("serve", "--config", str(path))
    assert line.startswith(f"gpu-exporter: config {path}: ")
    assert cure in line


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_missing_config_file(tmp_path: Path, by: str) -> None:
    """A missing file or a directory is an error, not an empty configuration."""
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "a directory")):
        flags, env = (("--config", str(path)), {}) if by == "flag" else ((), {"GPU_EXPORTER_CONFIG": str(path)})
        line = fails("serve", *flags, env=env)
        assert f"config {path}: {why}" in line


@pytest.mark.parametrize(
    ("file", "environment", "flag", "expected"),
    [
        ("", None, None, 1),
        ("interval: 300ms", None, None, 0.3),
        ("interval: 300ms", "400ms", None, 0.4),
        ("interval: 300ms", "400ms", "500ms", 0.5),
        ("interval: 300ms", None, "500ms", 0.5),
        ("interval: 0.3\nlog-level: error\nsource: nvml", "", None, 0.3),
    ],
)
def test_precedence(
    serve: Serve, tmp_path: Path, file: str, environment: str | None, flag: str | None, expected: float
) -> None:
    """A flag overrides the environment, which overrides the file, which overrides the default."""
    config = tmp_path / "config.yaml"
    config.write_text(file)
    env = {"GPU_EXPORTER_CONFIG": str(config)}
    if environment is not None:
        env["GPU_EXPORTER_INTERVAL"] = environment
    exporter = serve(*REPLAY, *(() if flag is None else ("--interval", flag)), env=env)
    exporter.until(lambda page: page.values("gpu_exporter_interval_seconds") == [expected])


def test_kubernetes_service_links_are_ignored(serve: Serve) -> None:
    """Variables that Kubernetes creates for a service named gpu-exporter are not settings."""
    links = {
        "GPU_EXPORTER_PORT": "tcp://1.2.3.4:9400",
        "GPU_EXPORTER_SERVICE_HOST": "1.2.3.4",
        "GPU_EXPORTER_SERVICE_PORT": "9400",
        "GPU_EXPORTER_PORT_9400_TCP_ADDR": "1.2.3.4",
    }
    exporter = serve(*REPLAY, env=links)
    exporter.until(lambda page: page.values("gpu_up") == [1])


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("203.0.113.1", "Cannot assign"),
        ("a..b", "cannot be used"),
        ("a" * 70, "cannot be used"),
    ],
)
def test_address_of_another_host(host: str, why: str) -> None:
    """A host that is not this machine, or no host at all, is refused with the address."""
    line = fails("serve", *REPLAY, "--address", f"{host}:9400")
    assert f"address {host}:9400 " in line
    assert why in line
    assert "check --address" in line


def test_port_in_use(serve: Serve) -> None:
    """A second exporter on the same port reports that; the first one continues."""
    first = serve(*REPLAY)
    line = fails("serve", *REPLAY, "--address", f"127.0.0.1:{first.port}")
    assert f"address 127.0.0.1:{first.port} is in use" in line
    assert "choose another one with --address" in line
    assert first.get("/healthz")[0].status == 200


UNPRIVILEGED_FROM = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())


@pytest.mark.skipif(UNPRIVILEGED_FROM <= 80, reason="this kernel is set to let everybody listen on every port")
def test_privileged_port() -> None:
    """Without the privilege for ports below 1024, the error suggests a higher port."""
    as_root = ("setpriv", "--inh-caps=-net_bind_service", "--bounding-set=-net_bind_service")
    line = fails("serve", *REPLAY, "--address", "127.0.0.1:80", prefix=as_root if os.getuid() == 0 else ())
    assert "address 127.0.0.1:80 needs privileges" in line
    assert "above 1023" in line


# --- recordings --------------------------------------------------------------------------------------------------

HUGE = 10**400
BAD_RECORDINGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ", line 1: not the header of a recording"),
    "blank": (b"\n\n\n", ", line 1: not the header of a recording"),
    "another format": (b'{"format": "tar"}\n', ", line 1: not the header of a recording"),
    "no header": (GOOD.split(b"\n", 1)[1], ", line 1: not the header of a recording"),
    "no JSON": (b"GPU 0: 40 C\n", ", line 1: not JSON"),
    "a later version": (ticks(tick(1), version=2), ", line 1: format version 2"),
    "no interval": (ticks(tick(1), interval_seconds=None), ", line 1: the header has no positive interval"),
    "negative interval": (ticks(tick(1), interval_seconds=-1), ", line 1: the header has no positive interval"),
    "huge interval": (ticks(tick(1), interval_seconds=HUGE), ", line 1: "),
    "no GPUs": (ticks(tick(1), gpus=[]), ", line 1: the header lists no gpus"),
    "GPU without index": (ticks(tick(1), gpus=[{"UUID": "GPU-0"}]), ", line 1: the header lists no gpus"),
    "GPU twice": (ticks(tick(1), gpus=[GPU, GPU]), ", line 1: "),
    "header only": (ticks(), ": has a header but no ticks"),
    "truncated gzip": (
        gzip.compress(ticks(*map(tick, range(1, 99))))[:-20],
        ": the gzip stream is truncated or corrupt",
    ),
    "corrupt gzip": (gzip.compress(GOOD)[:30] + bytes(20), ": the gzip stream is truncated or corrupt"),
    "gzip magic only": (b"\x1f\x8b", ": the gzip stream is truncated or corrupt"),
    "garbage line": (GOOD + b"garbage\n", ", line 4: not JSON"),
    "half a line": (GOOD[:-5], ", line 3: not JSON"),
    "no object": (GOOD + b"[1, 2]\n", ", line 4: not a JSON object"),
    "very deep": (GOOD + b"[" * 100_000, ", line 4: not JSON"),
    "not a tick": (GOOD + b'{"t": 3}\n', ", line 4: not a tick"),
    "time is text": (ticks(tick(1), tick("2")), ", line 3: not a tick"),
    "time without end": (GOOD + b'{"t": 1e999, "gpu": 0, "samples": {}}\n', ", line 4: "),
    "huge time": (ticks(tick(1), tick(HUGE)), ", line 3: "),
    "unknown GPU": (ticks(tick(1), tick(2, gpu=1)), ", line 3: GPU 1 is not in the header"),
    "GPU is text": (ticks(tick(1), tick(2, gpu="0")), ", line 3: GPU 0 is not in the header"),
    "time goes backwards": (ticks(tick(2), tick(1)), ", line 3: time goes backwards for GPU 0"),
    "time stands still": (ticks(tick(1), tick(1)), ", line 3: time goes backwards for GPU 0"),
    "NaN": (ticks(tick(1), tick(2, value=float("nan"))), ", line 3: NaN is not a value"),
    "Infinity": (ticks(tick(1), tick(2, value=float("inf"))), ", line 3: Infinity is not a value"),
    "text": (ticks(tick(1), tick(2, value="40")), ", line 3: DCGM_FI_DEV_GPU_TEMP has no number but '40'"),
    "null": (ticks(tick(1), tick(2, value=None)), ", line 3: DCGM_FI_DEV_GPU_TEMP has no number but None"),
    "true": (ticks(tick(1), tick(2, value=True)), ", line 3: DCGM_FI_DEV_GPU_TEMP has no number but True"),
    "huge value": (ticks(tick(1), tick(2, value=HUGE)), ", line 3: "),
    "not UTF-8": (b"\xff\xfe" + GOOD, ", line 1: not UTF-8"),
    "not UTF-8 further on": (GOOD + b'{"t": 3, "gpu": 0, "samples": {"\xff": 1}}\n', ", line 4: not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_RECORDINGS)
def test_bad_recording(tmp_path: Path, case: str) -> None:
    """A damaged recording is refused before the start, with its name and the faulty line."""
    content, what = BAD_RECORDINGS[case]
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(content)
    line = fails("once", "--source", "replay", "--recording", str(path))
    assert f"recording {path}" in line
    assert what in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("name", "why"), [("none.jsonl.gz", "no such file"), (".", "not a regular file"), ("a" * 300, "ame too long")]
)
def test_missing_recording(tmp_path: Path, name: str, why: str) -> None:
    """The error names the recording."""
    line = fails("once", "--source", "replay", "--recording", str(tmp_path / name))
    assert f"recording {tmp_path / name}: " in line
    assert why in line


def test_recording_needs_replay() -> None:
    """A recording is played only with `--source replay`."""
    assert "--recording needs --source replay" in fails("serve", "--recording", "h200_workloads")
    assert "--recording needs --source replay" in fails("once", env={"GPU_EXPORTER_RECORDING": "h200_workloads"})


def test_replay_needs_a_recording() -> None:
    """Without a recording, the error lists the packaged ones."""
    line = fails("serve", "--source", "replay")
    assert "--recording" in line
    for path in RECORDINGS.glob("*.jsonl.gz"):
        assert path.name.removesuffix(".jsonl.gz") in line


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (("serve", "--intervall", "1s"), "'--interval'"),
        (("serv",), "'serve'"),
        (("serve", "here"), "here"),
        (("serve", "--interval"), "requires an argument"),
        (("record",), "--out"),
        (("record", "--out", "x", "--duration", "soon"), "for example 1s"),
        (("record", "--out", "x", "--interval", "1ms"), "use 100ms to 1h"),
        (("metrics", "--metrics", "defualt"), "did you mean default?"),
        (
            ("serve", *REPLAY, "--job-reports", "x", "--state-dir", "x", "--no-live-page"),
            "--job-reports: reports are made of what the live page finds: omit --no-live-page",
        ),
        (("serve", *REPLAY, "--job-reports", "x"), "what --state-dir keeps: give --state-dir"),
    ],
)
def test_wrong_usage(arguments: Sequence[str], cure: str) -> None:
    """The error on an unknown word suggests a similar one."""
    assert cure in fails(*arguments)


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (("bundle", "--out", "x", "--limits"), ""),
        (("rewrite",), ""),
        (("serve", "--source", "simulated", "--xid-overrides"), ": check --xid-overrides"),
        (("remediate", "--config"), ": give the controller's configuration with --config"),
    ],
)
def test_missing_file(tmp_path: Path, arguments: Sequence[str], cure: str) -> None:
    """The error names the file once, and no number."""
    path = tmp_path / "none"
    assert fails(*arguments, str(path)) == f"gpu-exporter: {path}: No such file or directory{cure}\n"


@pytest.mark.parametrize(("arguments", "line"), [((), "\nServe metrics:\n"), (("trace",), "\nCommands:\n")])
def test_no_command_prints_help(arguments: Sequence[str], line: str) -> None:
    """The help has its usual lines."""
    ran = run(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert line in ran.stdout


def test_check_warns_of_a_state_directory_that_it_cannot_read(tmp_path: Path) -> None:
    """It knows less then: the verdict stays, and a directory that does not exist yet is no fault."""
    (tmp_path / "file").touch()
    for directory, warns in ((tmp_path / "none", False), (tmp_path / "file", True)):
        ran = run("check", "--source", "simulated", "--state-dir", str(directory))
        assert ran.stdout.endswith("\nGPUs: 8 healthy\n")
        assert bool(ran.stderr) is warns
    assert ran.stderr == (
        f"gpu-exporter: warning: {directory}/links.json: Not a directory; what links reached before is not known"
        " (--state-dir)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--state-dir", "x"), "--state-dir is ignored: nothing is kept of GPUs that are not this machine's"),
        (("--profile-lines",), "are ignored: --profile says when to take a profile"),
        (("--profile-socket", "x"), "are ignored: --profile says when to take a profile"),
    ],
)
def test_a_setting_that_is_ignored_is_reported(serve: Serve, arguments: Sequence[str], words: str) -> None:
    """A page may be served before the line is written."""
    exporter = serve(*REPLAY, *arguments)
    (line,) = until(lambda: [line for line in exporter.log.read_text().splitlines() if "ignored" in line])
    assert " WARNING " in line
    assert words in line


@pytest.mark.parametrize("path", ["missing/out.jsonl", ".", "file/out.jsonl"])
def test_record_to_nowhere(tmp_path: Path, path: str) -> None:
    """A file that cannot be written is an error before anything is recorded."""
    (tmp_path / "file").touch()
    line = fails("record", *REPLAY, "--out", str(tmp_path / path))
    assert f"recording {tmp_path / path}: " in line


def test_record_to_a_full_disk() -> None:
    """The error is one line."""
    line = fails("record", *REPLAY, "--duration", "300ms", "--out", "/dev/full")
    assert "recording /dev/full: No space left on device" in line


@pytest.mark.parametrize("arguments", [("metrics",), ("once", *REPLAY)])
def test_output_to_a_full_disk(arguments: Sequence[str]) -> None:
    """Output that cannot be written is an error of one line."""
    with open("/dev/full", "w") as full:
        assert "No space left on device" in fails(*arguments, stdout=full.fileno())


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_record_and_replay(tmp_path: Path, suffix: str) -> None:
    """A recording, even of a replay, plays the metrics that it was made from."""
    out = tmp_path / f"again{suffix}"
    recorded = run("record", *REPLAY, "--duration", "2", "--out", str(out))
    assert recorded.returncode == 0, recorded.stderr
    assert f"{out}: " in recorded.stdout
    content = gzip.decompress(out.read_bytes()) if suffix.endswith(".gz") else out.read_bytes()
    assert recorded.stdout == f"{out}: {content.count(10) - 1} readings of GPUs\n"
    assert 15 <= content.count(10) - 1 <= 22
    names = []
    for recording in ("h200_workloads", str(out)):
        played = run("once", "--source", "replay", "--recording", recording)
        assert played.returncode == 0, played.stderr
        names.append({name for name, _, _ in Page(played.stdout).samples})
    assert len(names[0]) > 40
    assert names[0] == names[1]


@pytest.mark.parametrize("which", [MetricSet.DEFAULT, MetricSet.FULL])
def test_metrics_prints_the_catalogue(which: MetricSet) -> None:
    """`metrics` prints each row of the chosen set once, and nothing else."""
    printed = run("metrics", "--metrics", which.value)
    assert (printed.returncode, printed.stderr) == (0, "")
    head, *rows = printed.stdout.splitlines()
    assert head.split()[:4] == ["METRIC", "TYPE", "UNIT", "SET"]
    expected = [row for row in METRICS if which is MetricSet.FULL or row.set is MetricSet.DEFAULT]
    assert [row.split("  ")[0] for row in rows] == [row.key for row in expected]
    assert all(row.endswith(metric.help) for row, metric in zip(rows, expected, strict=True))
