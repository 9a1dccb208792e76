"""The hand-over: a running exporter releases the driver, keeps serving, and reconnects."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.app.test_web import REPLAY, TLS, Pki, basic, hashed
from tests.e2e.app.test_web import pki as pki
from tests.e2e.cli.test_bad_input import fails
from tests.e2e.pipeline.test_faults import SM_SECONDS, Drive, Start, profiled, states, up, withdrawn
from tests.e2e.pipeline.test_faults import gpus as gpus
from tests.e2e.pipeline.test_faults import start as start
from tests.support.fakes.driver import LIBRARY
from tests.support.tools import until

RELEASED, UNTIL = "gpu_exporter_released", "gpu_exporter_released_until_timestamp_seconds"
MADE = "gpu_exporter_snapshot_timestamp_seconds"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The path of the token file."""
    return tmp_path / "token"


@pytest.fixture
def device_file(tmp_path: Path) -> Path:
    """A file that the fake library keeps open while it is initialised."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


def bearer(token: Path) -> dict[str, str]:
    """Return the header with the token."""
    return {"Authorization": f"Bearer {token.read_text().strip()}"}


def holds(exporter: Exporter, path: Path) -> bool:
    """Return whether the process has this file open."""
    found = set()
    for each in Path(f"/proc/{exporter.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that ends just now
            found.add(os.readlink(each))
    return str(path) in found


def maps(exporter: Exporter) -> set[str]:
    """Return the driver libraries that the process has mapped; a deleted one is marked."""
    lines = Path(f"/proc/{exporter.process.pid}/maps").read_text().splitlines()
    return {line[line.index("/") :] for line in lines if LIBRARY in line}


def ask(exporter: Exporter, token: Path, *arguments: str) -> str:
    """Run `gpu-exporter release` or `resume`, which must succeed; return its output."""
    said = run(*arguments, "--url", f"http://localhost:{exporter.port}", "--token-file", str(token))
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout.strip()


def everywhere(reason: str, count: int) -> dict[int, str]:
    """Return the same state for all GPUs."""
    return dict.fromkeys(range(count), reason)


# --- on the fake driver ---------------------------------------------------------------------------------------------


def test_release_and_resume(start: Start, gpus: Drive, token: Path, device_file: Path) -> None:
    """A released driver has no open file, every page says so, and all series are back after `resume`."""
    driver = gpus(4)
    driver.set("DeviceFile", str(device_file))
    exporter = start(driver, "--token-file", str(token))
    before = exporter.page()
    assert (before.value(RELEASED), before.values(UNTIL)) == (0, [])
    assert holds(exporter, device_file)
    assert maps(exporter)

    asked = time.time()
    assert ask(exporter, token, "release").startswith("released until 20")
    assert not holds(exporter, device_file)
    assert not maps(exporter)
    # A collection that began before the release was complete says so of GPUs only.
    page = exporter.until(lambda page: states(page) == everywhere("released", 4) and page.value(RELEASED) == 1)
    assert all(withdrawn(page, gpu) for gpu in range(4))
    assert (page.value(RELEASED), page.value("gpu_exporter_source_up")) == (1, 0)
    assert asked + 599 <= page.value(UNTIL) <= time.time() + 601
    assert (page.value("gpu_devices_visible"), page.value("gpu_devices_expected")) == (0, 4)
    assert (exporter.status("/readyz"), exporter.status("/healthz")) == (503, 200)
    assert exporter.get("/readyz")[1].startswith(b"released")
    ask(exporter, token, "release", "--for", "2h")
    exporter.until(lambda page: asked + 7199 <= page.value(UNTIL) <= time.time() + 7201)

    assert exporter.ask("POST", "/-/resume", bearer(token)) == (200, "resumed\n")
    back = exporter.until(lambda page: states(page) == up(4) and profiled(page) == {"up"})
    assert holds(exporter, device_file)
    assert back.value(SM_SECONDS, gpu="3") >= before.value(SM_SECONDS, gpu="3")
    assert (back.value(RELEASED), back.values(UNTIL)) == (0, [])
    assert exporter.status("/readyz") == 200
    assert ask(exporter, token, "resume") == "it was not released"


def test_it_resumes_by_itself(start: Start, gpus: Drive, token: Path) -> None:
    """A release ends after its time."""
    exporter = start(gpus(2), "--token-file", str(token))
    assert exporter.ask("PUT", "/-/release?for=1s", bearer(token))[0] == 200
    until(lambda: "the release has expired; reconnecting" in exporter.log.read_text(), what="the end of the release")
    exporter.until(lambda page: states(page) == up(2) and profiled(page) == {"up"})


def test_the_driver_is_upgraded_meanwhile(start: Start, gpus: Drive, token: Path) -> None:
    """The new library is used. Its counters start at zero; gpu-exporter's continue."""
    driver = gpus(2)
    driver.set("PowerUsage", 0)  # with which energy rises between two reads
    exporter = start(driver, "--token-file", str(token))
    before = exporter.page()
    energy = "gpu_energy_joules_total"
    assert before.values("gpu_info", driver_version="580.159.04") == [1, 1]
    ask(exporter, token, "release")
    driver.unload()
    driver.upgrade("590.10.01")
    driver.set("FieldValues.83", 1000)
    ask(exporter, token, "resume")
    page = exporter.until(lambda page: states(page) == up(2) and profiled(page) == {"up"})
    assert page.values("gpu_info", driver_version="590.10.01") == [1, 1]
    assert page.values("gpu_info") == [1, 1]
    assert page.values(energy) == [before.value(energy, gpu="0") + 1] * 2
    assert maps(exporter) == {str(driver.directory / LIBRARY)}


def test_an_upgrade_without_release_is_followed(start: Start, gpus: Drive) -> None:
    """If the driver was replaced while the exporter had no file of it open, the new library is loaded."""
    driver = gpus(2)
    exporter = start(driver)
    driver.unload()
    exporter.until(lambda page: page.value("gpu_exporter_source_up") == 0)
    driver.upgrade("590.10.01")
    exporter.until(lambda page: page.values("gpu_info", driver_version="590.10.01") == [1, 1])


def test_release_while_a_gpu_is_wedged(start: Start, gpus: Drive, token: Path, device_file: Path) -> None:
    """No library is closed during a call: the error names the GPU, and the release completes after the call."""
    driver = gpus(4)
    driver.lock("gpu")
    driver.set("DeviceFile", str(device_file))
    exporter = start(driver, "--token-file", str(token))
    driver.block(3)
    exporter.until(lambda page: states(page)[3] == "stalled")
    status, said = exporter.ask("POST", "/-/release", bearer(token))
    assert status == 409
    assert said == "GPU 3: a driver call does not return; when it does, the driver is released\n"
    assert holds(exporter, device_file)
    page = exporter.until(lambda page: states(page) == {**everywhere("released", 4), 3: "stalled"})
    assert page.value(RELEASED) == 0
    assert all(withdrawn(page, gpu) for gpu in range(3))
    driver.unblock(3)
    exporter.until(lambda page: page.value(RELEASED) == 1 and states(page) == everywhere("released", 4))
    assert not holds(exporter, device_file)
    ask(exporter, token, "resume")
    exporter.until(lambda page: states(page) == up(4) and profiled(page) == {"up"})


def test_resume_while_a_gpu_is_wedged(start: Start, gpus: Drive, token: Path, device_file: Path) -> None:
    """The other GPUs are read again. After the next release, shutdowns and starts of the library are balanced."""
    driver = gpus(2)
    driver.lock("gpu")
    driver.set("DeviceFile", str(device_file))
    exporter = start(driver, "--token-file", str(token))
    driver.block(1)
    exporter.until(lambda page: states(page)[1] == "stalled")
    assert exporter.ask("POST", "/-/release", bearer(token))[0] == 409
    assert exporter.ask("POST", "/-/resume", bearer(token)) == (200, "resumed\n")
    exporter.until(lambda page: states(page) == up(2, gpu1="stalled"))
    driver.unblock(1)
    exporter.until(lambda page: states(page) == up(2))
    assert ask(exporter, token, "release").startswith("released until")
    assert not holds(exporter, device_file)


def test_resume_without_a_driver(start: Start, gpus: Drive, token: Path) -> None:
    """The error names the reason, and the exporter keeps trying."""
    driver = gpus(1)
    exporter = start(driver, "--token-file", str(token))
    ask(exporter, token, "release")
    driver.unload()
    status, said = exporter.ask("POST", "/-/resume", bearer(token))
    assert status == 503
    assert said.startswith("NVML: the NVIDIA kernel driver is not loaded: run `modprobe nvidia`")
    driver.load()
    exporter.until(lambda page: states(page) == up(1))


def test_release_while_the_library_hangs(start: Start, gpus: Drive, token: Path, device_file: Path) -> None:
    """The request does not wait for a start that hangs; the release completes when the start returns."""
    driver = gpus(1)
    driver.set("DeviceFile", str(device_file))
    exporter = start(driver, "--token-file", str(token))
    driver.unload()
    exporter.until(lambda page: page.value("gpu_exporter_source_up") == 0)
    waiting = driver.waiting()
    with driver.batch():
        driver.delay("Init", 600)
        driver.load()
    until(waiting, what="the start of the library")
    status, said = exporter.ask("POST", "/-/release", bearer(token))
    assert (status, said.partition(":")[0]) == (409, "the library")
    driver.unset("Delay.Init")
    exporter.until(lambda page: page.value(RELEASED) == 1)
    assert not holds(exporter, device_file)
    assert states(exporter.page()) == {0: "released"}


def test_sigterm_while_released(start: Start, gpus: Drive, token: Path) -> None:
    """The exporter ends and removes the token file."""
    exporter = start(gpus(2), "--token-file", str(token))
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    ask(exporter, token, "release")
    assert exporter.stop() == 0
    assert not token.exists()


def test_release_at_random(start: Start, gpus: Drive, token: Path, device_file: Path) -> None:
    """Fifty hand-overs, some of them cut short, leak no thread, file or library; no counter falls."""
    driver = gpus(2)
    driver.set("DeviceFile", str(device_file))
    exporter = start(driver, "--interval", "100ms", "--token-file", str(token))
    me, process = bearer(token), Path(f"/proc/{exporter.process.pid}")

    def opened() -> list[int]:
        return [len(list((process / each).iterdir())) for each in ("task", "fd")]

    before = opened()
    for number in range(50):
        assert exporter.ask("POST", "/-/release", me)[0] == 200
        if number % 3:
            time.sleep(0.05 * (number % 3))
            exporter.page()
        assert exporter.ask("POST", "/-/resume", me) == (200, "resumed\n")
    exporter.until(lambda page: states(page) == up(2) and profiled(page) == {"up"})
    until(lambda: opened()[0] <= before[0] and opened()[1] <= before[1] + 2, what="the end of threads and files")
    assert "please report" not in exporter.log.read_text()


# --- other sources --------------------------------------------------------------------------------------------------


def test_other_sources(serve: Serve, token: Path) -> None:
    """A replay and all simulated nodes withdraw their series, too."""
    simulated = ("--source", "simulated", "--nodes", "2", "--gpus", "2", "--seed", "1")
    for source, paths in ((REPLAY, ["/metrics"]), (simulated, ["/nodes/node-000/metrics", "/nodes/node-001/metrics"])):
        exporter = serve(*source, "--interval", "200ms", "--token-file", str(token))

        def pages(exporter: Exporter = exporter, paths: list[str] = paths) -> list[Page]:
            return [Page(exporter.get(path)[1].decode()) for path in paths]

        until(lambda: all(set(states(page).values()) == {"up"} for page in pages()))
        ask(exporter, token, "release")
        until(lambda: all(set(states(page).values()) == {"released"} for page in pages()))
        assert all(page.value(RELEASED) == 1 and not page.values("DCGM_FI_DEV_POWER_USAGE") for page in pages())
        ask(exporter, token, "resume")
        until(lambda: all(set(states(page).values()) == {"up"} for page in pages()))
        exporter.stop()


# --- authorisation --------------------------------------------------------------------------------------------------


def test_release_is_off_by_default(serve: Serve) -> None:
    """Without lifecycle API and token file, every request is refused."""
    exporter = serve(*REPLAY)
    for path in ("/-/release", "/-/resume"):
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}, basic("me", "x")):
            status, said = exporter.ask("POST", path, headers)
            assert status == 403
            assert "--web.enable-lifecycle" in said
        assert exporter.ask("GET", path)[0] == 405
    assert exporter.page().value(RELEASED) == 0


def test_release_with_a_token(serve: Serve, pki: Pki, token: Path) -> None:
    """A wrong or missing token and pages of other sites are refused; the token allows only these two paths."""
    users = pki.config(users={"me": hashed("right")})
    for arguments, refused in (((), 403), (("--web.config.file", users), 401)):
        exporter = serve(*REPLAY, "--token-file", str(token), *arguments)
        me = bearer(token)
        wrong = [{}, {"Authorization": me["Authorization"][:-1]}, {"Authorization": me["Authorization"] + "x"}]
        wrong += [{"Authorization": "Bearer é"}, {"Authorization": me["Authorization"].removeprefix("Bearer ")}]
        for headers in wrong:
            assert exporter.ask("POST", "/-/release", headers)[0] == refused
        assert exporter.ask("POST", "/-/release", {**me, "Sec-Fetch-Site": "cross-site"})[0] == 403
        assert exporter.ask("POST", "/-/quit", me)[0] == refused
        assert exporter.ask("POST", "/-/release?for=25h", me)[0] == 400
        assert exporter.ask("POST", "/-/release?for=x", me) == (
            400,
            "for: 'x' is not a duration; use for example 1s or 100ms\n",
        )
        assert exporter.ask("POST", "/-/release", me)[0] == 200
        assert exporter.ask("POST", "/-/resume", me)[0] == 200
        exporter.stop()


def test_release_with_the_lifecycle_api(serve: Serve, pki: Pki) -> None:
    """Requests with the right password are allowed, also over TLS."""
    users = {"me": hashed("right")}
    exporter = serve(*REPLAY, "--web.enable-lifecycle", "--web.config.file", pki.config(users=users))
    assert exporter.ask("POST", "/-/release")[0] == 401
    assert exporter.ask("POST", "/-/release", {**basic("me", "right"), "Sec-Fetch-Site": "same-site"})[0] == 403
    assert exporter.ask("POST", "/-/release", basic("me", "right"))[0] == 200
    secure = serve(*REPLAY, "--web.enable-lifecycle", "--web.config.file", pki.config(TLS, users), tls=pki.context())
    password = pki.folder / "password"
    password.write_text("right\n")
    login = ("--user", "me", "--password-file", str(password), "--ca-file", str(pki.folder / "ca.pem"))
    said = run("release", "--url", f"https://localhost:{secure.port}", *login)
    assert said.stdout.startswith("released until")


def test_release_with_a_password_only(serve: Serve, pki: Pki) -> None:
    """A password alone does not allow release."""
    exporter = serve(*REPLAY, "--web.config.file", pki.config(users={"me": hashed("right")}))
    assert exporter.ask("POST", "/-/release", basic("me", "right"))[0] == 403


# --- the command ----------------------------------------------------------------------------------------------------


def test_errors_are_one_line_with_the_fix(serve: Serve, pki: Pki, token: Path, tmp_path: Path) -> None:
    """Problems with the exporter, the token, the URL or the time."""
    exporter = serve(*REPLAY, "--token-file", str(token))
    url = ("--url", f"http://localhost:{exporter.port}")
    assert "serve --token-file FILE" in fails("release", *url)
    assert "is the exporter running" in fails("release", *url, "--token-file", str(tmp_path / "none"))
    assert "use at most 24h" in fails("release", *url, "--for", "48h")
    assert "is it running" in fails("resume", "--url", "http://localhost:1")
    assert "is not a URL" in fails("resume", "--url", "localhost:9400")
    assert "belong together: give both" in fails("release", *url, "--user", "me")
    secure = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    assert "does it speak TLS" in fails("release", "--url", f"http://localhost:{secure.port}")
    assert "--ca-file" in fails("release", "--url", f"https://localhost:{secure.port}")
    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", "--token-file", str(tmp_path / "no" / "token"))
    assert "its directory must exist" in said


def test_a_second_exporter_leaves_the_token_alone(serve: Serve, token: Path) -> None:
    """One that finds its port in use does not replace the token of the running exporter."""
    exporter = serve(*REPLAY, "--token-file", str(token))
    fails("serve", *REPLAY, "--address", f"127.0.0.1:{exporter.port}", "--token-file", str(token))
    assert exporter.ask("POST", "/-/resume", bearer(token))[0] == 200


def test_sigterm_during_a_blocked_release(start: Start, gpus: Drive, token: Path) -> None:
    """The library is not closed during the blocked call, which would crash."""
    driver = gpus(2)
    driver.lock("gpu")
    exporter = start(driver, "--token-file", str(token))
    driver.block(0)
    exporter.until(lambda page: states(page)[0] == "stalled")
    assert exporter.ask("POST", "/-/release", bearer(token))[0] == 409
    assert exporter.stop() == 0
    assert not token.exists()
