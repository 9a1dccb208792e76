"""The live page in Chromium: what it shows, how it is used, and what it must not do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest
from playwright.sync_api import Locator, Page, expect

from gpu_exporter.reports.numbers import measured, whole_duration
from tests.conftest import Exporter, Serve, command
from tests.e2e.app.test_web import REPLAY, TLS, Pki, hashed
from tests.e2e.app.test_web import pki as pki
from tests.page.conftest import NO_CONNECTION, OpenTab
from tests.page.proxy import proxied
from tests.support.fakes.driver import FakeDriver, mig_device
from tests.support.tools import until

SICK = ("--source", "simulated", "--gpus", "8", "--inject", "GpuStragglerSlow:3,GpuXidFatal:5")
# A finding may last a few seconds longer than the fault.
HEALTHY = re.compile("^All 2 GPUs are healthy")
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test has to close at its end."""
    with ExitStack() as stack:
        yield stack


def url(exporter: Exporter, path: str = "/") -> str:
    return f"http{'s' if exporter.tls else ''}://127.0.0.1:{exporter.port}{path}"


def row(page: Page, name: str) -> Locator:
    """Return the row of a GPU."""
    return page.locator(".gpu").filter(has=page.get_by_role("button", name=name, exact=True))


def test_five_questions(serve: Serve, tab: OpenTab) -> None:
    """Which GPU is sick, why is the job slow, who holds GPU 3, since when, what to do? And nothing hides that the GPUs
    are simulated."""
    page = tab().open(url(serve(*SICK)))
    summary = page.locator("#summary")
    heading = "GPU 5 is unhealthy; GPU 3 holds up GPUs 0-2, 4, 6, 7"
    expect(summary.get_by_role("heading")).to_have_text(heading)
    expect(page).to_have_title(re.compile(f"^✖ {heading} · node-000"))
    expect(summary.locator("#health")).to_have_text("7 of 8 GPUs healthy; 6 are hit by GPU 3")
    sick, slow = summary.locator(".problems > li").nth(0), summary.locator(".problems > li").nth(1)
    owner = "simulated/injected-node-000"
    expect(sick).to_contain_text(
        re.compile(r"Unhealthy GPU 5: XID 79.* since \d\d:\d\d .*What to do: Drain and reboot the node")
    )
    expect(slow).to_contain_text(re.compile(r"Warning GPU 3 slows down job .*also hit: GPUs 0-2, 4, 6, 7 · " + owner))
    expect(page.locator(".gpu h3 button").nth(0)).to_have_text("GPU 5")
    expect(page.locator(".gpu h3 button").nth(1)).to_have_text("GPU 3")
    expect(row(page, "GPU 3").locator(".owner")).to_have_text(f"Held by {owner}-0")
    expect(page.locator("#banner")).to_contain_text("These are not your GPUs: simulated")
    ranks = page.get_by_role("region", name=re.compile("Ranks of")).get_by_role("row")
    for gpu, judgement in {3: "Root cause", 5: "Unhealthy", 0: "Hit by GPU 3"}.items():
        expect(row(page, f"GPU {gpu}").locator(".badge")).to_have_text(judgement)
        expect(ranks.filter(has_text=re.compile(f"^GPU {gpu}")).locator(".badge")).to_have_text(judgement)
    expect(page.locator("#clock")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    for path in ("metrics", "healthz", "api/v1/gpus"):
        expect(page.locator(f'footer a[href="{path}"]')).to_be_visible()
    slow.get_by_role("link", name="Runbook").click()
    expect(page.get_by_role("heading", name="What to do first")).to_be_visible()
    page.get_by_role("link", name="All runbooks").first.click()
    page.get_by_role("link", name="Live page").click()
    expect(page.locator(".gpu")).to_have_count(8)


def test_the_script_writes_numbers_as_the_server_does(serve: Serve, tab: OpenTab) -> None:
    """Nothing on the page changes its form when the script takes over."""
    page = tab().open(url(serve(*REPLAY)))
    sizes = (0, 42, 1023, 2**30, 9.96e9, 12.34e9, 999.7e9, 8e13)
    values = [
        *((unit, value) for unit in ("bytes", "bytes_per_second") for value in sizes),
        *(("ratio", share) for share in (0, 1e-6, 0.0034, 0.0123, 0.0994, 0.0996, 0.394, 1)),
        *((unit, value) for unit in ("watts", "celsius", "") for value in (0, 0.123, 5.67, 55.6, 99.96, 641.7)),
        ("hertz", 1.98e9),
    ]
    ages = (0, 59.9, 61, 3599, 5400, 90000, 172800)
    script = """async ([values, ages]) => {
        const { quantity, duration } = await import("/static/format.js");
        return [values.map(([unit, value]) => quantity(value, unit)), ages.map(duration)];
    }"""
    expected = [[measured(value, unit) for unit, value in values], [whole_duration(age) for age in ages]]
    assert page.evaluate(script, [values, ages]) == expected


def test_runbooks(serve: Serve, tab: OpenTab) -> None:
    """In both colour schemes, axe-core finds no violation in the index and in long runbooks; nothing is wider than a
    phone, and the first link is that to the others."""
    exporter, opened = serve(*SICK), tab(viewport={"width": 390, "height": 844})
    page = opened.page
    for path in ("/runbooks", "/runbooks/gpulost", "/runbooks/gpustragglerstarved", "/runbooks/gpuxidfatal"):
        page.goto(url(exporter, path))
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert opened.violations() == [], path
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Runbooks", exact=True)).to_be_visible()


def test_links_to_the_dashboards(serve: Serve, tab: OpenTab) -> None:
    """Page, opened row, job and runbook lead to the dashboards of what they show."""
    exporter = serve(*SICK, "--grafana-url", "https://grafana.example/g")
    page = tab().open(url(exporter))
    page.get_by_role("button", name="GPU 3", exact=True).and_(page.locator("[aria-expanded]")).click()
    details, jobs = page.get_by_role("group", name="Details of GPU 3"), page.locator("#jobs")
    base, workload = "https://grafana.example/g/d", "var-namespace=simulated&var-workload=injected-node-000"
    for place, link in (
        (page.locator("footer"), f"{base}/gpu-node?var-node=node-000"),
        (details, f"{base}/gpu-gpu?var-node=node-000&var-gpu=3"),
        (jobs, f"{base}/gpu-job?{workload}"),
    ):
        expect(place.get_by_role("link", name=re.compile("^Dashboard"))).to_have_attribute("href", link)
    details.get_by_role("link", name="GpuStragglerSlow").click()
    expect(page.get_by_role("link", name="Dashboard")).to_have_attribute("href", f"{base}/gpu-job")


def test_without_javascript(serve: Serve, tab: OpenTab) -> None:
    """What is wrong and the values of all GPUs are there, and can be read on a phone."""
    opened = tab(java_script_enabled=False, viewport={"width": 390, "height": 844})
    exporter, page = serve(*SICK), opened.page
    until(lambda: "GpuStragglerSlow" in exporter.ask("GET", "/api/v1/incidents")[1], what="an incident")
    page.goto(url(exporter))
    expect(page.get_by_role("heading", level=2).first).to_have_text(
        "GPU 5 is unhealthy; GPU 3 holds up GPUs 0-2, 4, 6, 7"
    )
    expect(page.locator(".problems")).to_contain_text("GPU 3 slows down job")
    rows = page.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("GPU 5")
    expect(rows.filter(has_text=re.compile("^GPU 0"))).to_contain_text(re.compile(r"Hit by GPU 3 .*\d+ W\d+ °C"))
    expect(page).to_have_title(re.compile("^✖ GPU 5 is unhealthy"))


def test_earlier_incidents(serve: Serve, tab: OpenTab) -> None:
    """They are hidden while there are none; each says what broke, when, what it cost, and where its runbook is."""
    page = tab().open(url(serve("--source", "simulated", "--gpus", "1")))
    expect(page.locator("#earlier")).to_be_hidden()
    shown = page.evaluate(
        """async () => {
          const { renderEarlier } = await import("/static/summary.js");
          const [section, list] = ["earlier", "earlier-list"].map((id) => document.getElementById(id));
          const incident = { id: "1", severity: "critical", words: "GPU 2 <b>is</b> lost",
            start: 1780000000, end: 1780000600, lost_gpu_hours: 1.33, cause: "GpuLost" };
          renderEarlier({ section, list }, [incident]);
          return [section.hidden, list.textContent, list.querySelector("a").pathname];
        }"""
    )
    assert shown[0] is False
    assert re.search(r"GPU 2 <b>is</b> lost.*2026.* to .*2026.*cost 1\.3 GPU-hours", shown[1])
    assert shown[2] == "/runbooks/gpulost"


def test_a_rank_has_the_judgement_of_its_gpu(serve: Serve, tab: OpenTab) -> None:
    """The row of the GPU explains it. A rank that computes is not hit by one that is throttled."""
    page = tab().open(url(serve("--source", "simulated", "--gpus", "4", "--inject", "GpuThermalThrottling:2")))
    ranks = page.get_by_role("region", name=re.compile("Ranks of")).get_by_role("row")
    for gpu, judgement in {2: "Degraded", 1: "Working"}.items():
        expect(ranks.filter(has_text=re.compile(f"^GPU {gpu}")).locator(".badge")).to_have_text(judgement)
    expect(row(page, "GPU 2")).to_contain_text("Throttled by hardware")


def test_an_opened_row(serve: Serve, tab: OpenTab) -> None:
    """With the keyboard: findings in numbers, lost time, XIDs, charts with a common cursor and zoom. In both colour
    schemes and with the row open, axe-core finds no violation; nothing is wider than a phone or lost on a wall."""
    exporter, opened = serve(*SICK), tab(color_scheme="dark")
    page = opened.open(url(exporter))
    button = page.get_by_role("button", name="GPU 3", exact=True).and_(page.locator("[aria-expanded]"))
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    details = page.get_by_role("group", name="Details of GPU 3")
    expect(details).to_contain_text(re.compile(r"86 % of the other ranks wait.*What to do: .*Runbook: ", re.DOTALL))
    expect(details.get_by_role("table", name="Time of GPU 3 by cause")).to_contain_text("SMs working")
    expect(details.get_by_role("table", name="Measurements of GPU 3")).to_contain_text("700 W")
    details.get_by_text(re.compile(r"\d+ not available, and why")).click()
    expect(details).to_contain_text("DCGM_FI_DEV_FAN_SPEED")
    expect(details.locator("canvas")).to_have_count(6)

    chart = details.locator(".plot[role=img]").nth(1)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 300, middle)
    cursors = "charts => new Set(charts.map(each => each.style.transform)).size"
    until(lambda: details.locator(".u-cursor-x").evaluate_all(cursors) == 1, what="a common cursor")
    whole = details.get_by_role("button", name="All", exact=True)
    expect(whole).to_have_attribute("aria-pressed", "true")
    page.mouse.down()
    page.mouse.move(box["x"] + 400, middle, steps=5)
    page.mouse.up()
    expect(whole).to_have_attribute("aria-pressed", "false")
    page.mouse.dblclick(box["x"] + 350, middle)
    expect(whole).to_have_attribute("aria-pressed", "true")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    details.get_by_role("button", name="5 min", exact=True).click()
    expect(details.get_by_role("button", name="5 min", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="GPU 5", exact=True).first.click()
    expect(page.get_by_role("group", name="Details of GPU 5")).to_contain_text(re.compile(r"XID 79 at \d\d:\d\d:\d\d"))
    assert opened.violations() == []
    page.emulate_media(color_scheme="light")
    assert opened.violations() == []
    for width in (360, 768, 1280, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), what=f"a page of {width} px")
    button.click()
    expect(details).to_be_hidden()


def test_lost_wedged_released_and_back(serve: Serve, tab: OpenTab, tmp_path: Path) -> None:
    """Each is said at once, with its name; afterwards, all GPUs are healthy again."""
    driver, token = FakeDriver(tmp_path / "driver", gpus=2), tmp_path / "token"
    driver.lock("gpu")
    exporter = serve("--interval", "200ms", "--token-file", str(token), env=driver.environment)
    page = tab().open(url(exporter))
    heading = page.locator("#summary-title")
    expect(heading).to_have_text(HEALTHY)
    driver.lose(0)
    expect(heading).to_have_text("GPU 0 is unhealthy")
    expect(page.locator(".problems")).to_contain_text("GPU 0 does not answer: it fell off the bus")
    expect(row(page, "GPU 0").locator(".spark dd").first).to_have_text("\N{EN DASH}")
    driver.restore(0)
    driver.block(1)
    expect(page.locator(".problems")).to_contain_text("GPU 1 does not answer: a driver call does not return")
    driver.unblock(1)
    expect(heading).to_have_text(HEALTHY)
    bearer = {"Authorization": f"Bearer {token.read_text().strip()}"}
    assert exporter.ask("POST", "/-/release", bearer)[0] == 200
    expect(row(page, "GPU 1")).to_contain_text(re.compile("release", re.IGNORECASE))
    assert exporter.ask("POST", "/-/resume", bearer)[0] == 200
    expect(heading).to_have_text(HEALTHY)


def test_the_server_restarts(serve: Serve, tab: OpenTab, stack: ExitStack) -> None:
    """Without a connection, the page says so and how old its numbers are; later it reconnects. Hidden, it disconnects.
    Without a free stream, it asks every few seconds."""
    exporter, opened = serve(*SICK), tab()
    page = opened.open(url(exporter))
    status, age = page.get_by_role("status"), page.locator("#age")
    expect(status).to_have_text("Live")
    assert exporter.process.poll() is None
    opened.allowed = NO_CONNECTION
    exporter.stop()
    expect(status).to_have_text(re.compile(r"^Connection lost at \d\d:\d\d:\d\d\. Trying to reconnect"))
    expect(age).to_have_text(re.compile(r"^Numbers are \d+ s old\."))
    expect(row(page, "GPU 0")).to_be_visible()
    again = stack.enter_context(
        Popen(command("serve", "--address", f"127.0.0.1:{exporter.port}", *SICK), stderr=DEVNULL)
    )
    stack.callback(again.kill)
    expect(status).to_have_text("Live")
    expect(age).to_be_empty()

    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    changed = "; document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide % "true" + changed)
    expect(status).to_have_text("Paused while hidden")
    page.route("**/api/v1/stream", lambda route: route.fulfill(status=503, body="too many"))
    opened.allowed += ("503",)
    page.evaluate(hide % "false" + changed)
    expect(status).to_have_text(re.compile("^Updated every 5 s"))


def test_sixteen_gpus_mig_many_processes_and_hostile_names(serve: Serve, tab: OpenTab, tmp_path: Path) -> None:
    """All GPUs and MIG instances have rows; of 1000 processes, the first are shown at once; names are only text."""
    driver, procfs = FakeDriver(tmp_path / "driver", gpus=16), tmp_path / "proc"
    for pid in (2, *range(1000, 2000)):
        (procfs / str(pid)).mkdir(parents=True)
        (procfs / str(pid) / "comm").write_text("kthreadd\n" if pid == 2 else f"<b>{pid}</b>\n")
    with driver.batch():
        driver.set("Name", HOSTILE)
        driver.set("ComputeRunningProcesses", ",".join(f"{pid}:{pid}000000" for pid in range(1000, 2000)), 0)
        driver.partition(15, {1: mig_device(1, "1g.18gb"), 2: mig_device(2, "1g.18gb")})
    opened = tab(viewport={"width": 1440, "height": 4000})
    exporter = serve("--processes", "true", "--procfs", str(procfs), env=driver.environment)
    page = opened.open(url(exporter))
    expect(page.locator(".gpu")).to_have_count(18)
    expect(page.get_by_role("button", name="GPU 15 instance 2", exact=True)).to_be_visible()
    instance = row(page, "GPU 15 instance 2")
    expect(instance.locator(".model")).to_have_text("1g.18gb")
    parent, indented = (each.bounding_box() for each in (row(page, "GPU 15"), instance))
    assert parent
    assert indented
    assert parent["x"] < indented["x"]
    expect(page.locator("#summary-title")).to_have_text("All 16 GPUs are healthy")
    expect(page.locator(".model").first).to_have_text(HOSTILE)
    page.get_by_role("button", name="GPU 0", exact=True).click()
    table = page.get_by_role("table", name="Processes on GPU 0")
    expect(table.get_by_role("row")).to_have_count(21)
    expect(table).to_contain_text("<b>1999</b>")
    assert opened.violations() == []
    page.get_by_role("button", name="Show all 1000 processes").click()
    expect(table.get_by_role("row")).to_have_count(1001)
    assert page.locator("main img, main script, main b").count() == 0
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".tile")).to_have_count(16)
    tiles = [box for box in (tile.bounding_box() for tile in page.locator(".tile").all()) if box]
    assert max(box["x"] + box["width"] for box in tiles) <= 390
    assert max(box["y"] + box["height"] for box in tiles) <= 844


def test_password_and_tls(serve: Serve, tab: OpenTab, pki: Pki) -> None:
    """The page, its files and its stream use the browser's password. Without it, there is nothing. A replay has its
    banner."""
    config = pki.config(TLS, {"me": hashed("right")})
    exporter = serve(*REPLAY, "--web.config.file", config, tls=pki.context())
    known = tab(ignore_https_errors=True, http_credentials={"username": "me", "password": "right"})
    page = known.open(url(exporter))
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.locator("#banner")).to_contain_text("These are not your GPUs: a recording")
    unknown = tab(ignore_https_errors=True).page.request
    for path in ("/", "/static/page.js", "/api/v1/history", "/api/v1/stream"):
        assert unknown.get(url(exporter, path)).status == 401


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_below_a_prefix(serve: Serve, tab: OpenTab, nodes: str) -> None:
    """Behind a proxy that adds a path, everything works, the list of several nodes too."""
    exporter = serve("--source", "simulated", "--nodes", nodes, "--inject", "GpuXidFatal:5")
    opened = tab()
    page = opened.page
    with proxied(exporter.port, "/some/prefix") as port:
        page.goto(f"http://127.0.0.1:{port}/some/prefix/")
        if nodes == "3":
            expect(page.get_by_role("heading", name=re.compile("nodes healthy"))).to_have_text(
                "2 of 3 nodes healthy, 1 unhealthy"
            )
            first = page.locator("tbody tr").first
            expect(first).to_contain_text(re.compile(r"node-000.*Unhealthy.*(GPU 5: XID 79|Critical GPU 5: )"))
            expect(page.get_by_role("status")).to_have_text("Live: updated every 5 s")
            assert opened.violations() == []
            first.get_by_role("link").click()
        expect(page.locator(".gpu")).to_have_count(8)
        expect(page.get_by_role("status")).to_have_text("Live")
        page.get_by_role("button", name="GPU 5", exact=True).first.click()
        expect(page.locator(".gpu canvas").first).to_be_visible()
        if nodes == "3":
            page.get_by_role("link", name="All nodes").click()
            page.wait_for_url("**/some/prefix/")
            expect(page.locator("tbody tr")).to_have_count(3)
        page.goto("about:blank")
