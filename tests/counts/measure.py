"""Counts instructions, bytes and modules, each in processes of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import bcrypt
import trustme

from tests import ROOT
from tests.counts.exporter import DIAGNOSIS, SCRAPES, SETUPS
from tests.counts.table import Table, packages
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.hostengine import FakeHostengine
from tests.support.fakes.kubelet import FakeKubelet
from tests.support.tools import tool

PATIENCE_SECONDS = 3600.0
DUMP = re.compile(r"^desc: Trigger: Client Request: ([^\n]+)\n.*?^totals: (\d+)", re.MULTILINE | re.DOTALL)
# The C library has code for each CPU: the same on all of them.
TUNABLES = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-BMI2,-BMI1,-LZCNT,-MOVBE,-RTM,-ERMS,-FSRM"


def instructions(folder: Path) -> Mapping[str, int]:
    """Return the instructions of each step of each setup, once."""
    valgrind = tool("valgrind.bin")
    unpacked = valgrind.parent.parent / "libexec" / "valgrind"
    command = [
        *(str(valgrind), "--tool=callgrind", "--quiet", "--instr-atstart=no", "--collect-atstart=no"),
        *("--dump-line=no", f"--callgrind-out-file={folder / 'callgrind'}"),
    ]
    _run_exporter(folder, command, {"VALGRIND_LIB": str(unpacked)})
    total: Counter[str] = Counter()
    for path in folder.glob("callgrind.*"):
        if dump := DUMP.search(path.read_text()):
            total[dump[1]] += int(dump[2])
    return once(total)


def allocated(folder: Path) -> Mapping[str, int]:
    """Return the bytes that each step of each setup allocates, once."""
    return once(json.loads(_run_exporter(folder, (), {})))


def once(total: Mapping[str, int]) -> Mapping[str, int]:
    """Return the counts of one collection, scrape or diagnosis from those of all."""
    collections = {setup.name: setup.collections for setup in SETUPS}
    parts = {name: name.split(": ") for name in total}
    return {
        name: round(total[name] / {"scrape": SCRAPES, DIAGNOSIS: 1}.get(what, collections[setup]))
        for name, (setup, what) in parts.items()
    }


def _run_exporter(folder: Path, before: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run the exporter of all setups with nothing of this process's environment; return what it prints."""
    FakeDriver(folder)
    shim = folder / "count.so"
    include = tool("valgrind.bin").parent.parent / "include"
    source = Path(__file__).with_name("count.c")
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-isystem", str(include))
    subprocess.run(["cc", *options, str(source), "-o", str(shim)], check=True)
    own = {
        "FAKE_NVML": str(folder / "control"),
        "GLIBC_TUNABLES": TUNABLES,
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(shim),
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
    }
    command = [*before, sys.executable, "-m", "tests.counts.exporter", str(folder)]
    return _output(command, {**own, **environment})


def modules(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the modules that `serve` imports at least, and those that each feature adds, in alphabetical order."""
    driver, kubelet, engine = (
        FakeDriver(folder),
        FakeKubelet(folder / "kubelet.sock"),
        FakeHostengine(folder / "engine"),
    )
    (folder / "fields.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n")
    (folder / "web.yml").write_text(_web_config(folder))
    features: Mapping[str, Sequence[str]] = {
        "live page": ("--live-page",),
        "network cards": ("--nics",),
        "fields file": ("--collectors", str(folder / "fields.csv")),
        "processes": ("--processes",),
        "host evidence": ("--host-evidence",),
        "jobs": ("--job-socket", str(folder / "jobs")),
        "profiles": ("--profile", "stall", "--live-page", "--profile-dir", str(folder / "profiles")),
        "kubernetes": ("--kubernetes", "--pod-resources-socket", str(kubelet.socket)),
        "TLS and passwords": ("--web.config.file", str(folder / "web.yml")),
        "DCGM": engine.flags,
        "simulated GPUs": ("--source", "simulated"),
        "recording": ("--source", "replay", "--recording", "h200_x2_ddp"),
    }
    environment = {**os.environ, **driver.environment, **engine.environment, "PYTHONPATH": str(ROOT)}
    kubelet.start()
    engine.start()
    try:
        least = _modules_of((), environment)
        added = {name: _modules_of(options, environment) - least for name, options in features.items()}
    finally:
        engine.kill()
        kubelet.stop()
    return {"least": sorted(least), **{name: sorted(names) for name, names in added.items()}}


def _modules_of(options: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    switches = [f"--no-{name}" for name in ("live-page", "nics") if f"--{name}" not in options]
    return frozenset(
        json.loads(_output([sys.executable, "-m", "tests.counts.serve", *switches, *options], environment))
    )


def _web_config(folder: Path) -> str:
    certificate = trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    certificate.write_to_path(folder / "server.pem")
    tls = {"cert_file": "server.pem", "key_file": "server.pem"}
    users = {"me": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()}
    return json.dumps({"tls_server_config": tls, "basic_auth_users": users})


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.stderr}"
    return ran.stdout


def counted(why: str = "") -> Table:
    """Return all counts of this interpreter; `why` they are to replace the committed ones."""
    with TemporaryDirectory() as first, TemporaryDirectory() as second, TemporaryDirectory() as third:
        return {
            "why": why,
            "packages": packages(),
            "instructions": instructions(Path(first)),
            "bytes": allocated(Path(second)),
            "modules": modules(Path(third)),
        }
