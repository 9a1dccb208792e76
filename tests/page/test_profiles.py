"""Profiles on the live page: the line beside the finding, and the flame graph, for those who may see them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Locator, expect

from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling.records import (
    CauseShare,
    CodeLine,
    KernelTime,
    OddRank,
    ProcessStacks,
    ProfiledProcess,
    StackKind,
    Summary,
)
from gpu_exporter.profiling.store import Bounds, ProfileStore
from tests.conftest import Exporter, Serve
from tests.e2e.app.test_web import hashed
from tests.page.conftest import OpenTab
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.gpu_loads import host_bound

UUID = str(identity(0)["UUID"])
HOSTILE = "python <img src=x onerror=alert(1)>"
FRAME = "/home/mia/train.py(31): load_batch"


def started(serve: Serve, driver: FakeDriver, folder: Path) -> Exporter:
    """Start an exporter that has stored a profile of this minute."""

    now = time.time()
    words = STACK_WORDS[TraceCause.DATA_LOADING]
    cause = CauseShare(TraceCause.DATA_LOADING, words, 4.3, 0.86, (CodeLine(FRAME, 0.86),))
    process = ProfiledProcess(4711, 1000, HOSTILE, "0", (UUID,), 250, (cause,))
    odd = OddRank(4713, "2", "/home/mia/train.py(71): evaluate", 3, FRAME)
    name, found = str(round(now * 1000)), "data-loading-bound"
    summary = Summary(name, now, ProfileReason.HOST_BOUND, found, (UUID,), (0,), 5.0, 50, (process,), odd=(odd,))
    stacks = {f"main thread;<b>main</b>;{FRAME}": 4.3, "main thread;<b>main</b>": 0.7}
    store = ProfileStore(folder / "profiles", Bounds())
    # Ten minutes before, another process of the same program loaded its data faster.
    earlier = replace(summary, id=str(round(now * 1000) - 600_000), at=now - 600, reason=ProfileReason.SCHEDULE, odd=())
    earlier = replace(earlier, processes=(replace(process, pid=4700),))
    store.add(
        earlier, [ProcessStacks(4700, (0,), {f"main thread;<b>main</b>;{FRAME}": 0.3, "main thread;<b>main</b>": 0.7})]
    )
    traced = replace(process, samples=0, causes=())
    kernels = (KernelTime(UUID, "gemm", 0.03), KernelTime(UUID, "communication", 0.01))
    trace = replace(earlier, id=str(round(now * 1000) - 300_000), at=now - 300, reason=ProfileReason.REQUEST)
    trace = replace(trace, processes=(traced,), kernels=kernels)
    store.add(trace, [ProcessStacks(4711, (0,), {"train;<i>launch</i>;sgemm": 0.04}, kind=StackKind.GPU)])
    store.add(summary, [ProcessStacks(4711, (0,), stacks)])
    web = folder / "web.yml"
    web.write_text(json.dumps({"basic_auth_users": {name: hashed("right") for name in ("mia", "eve")}}))
    options = ("--profile", "stall", "--profile-dir", str(folder / "profiles"), "--profile-users", "mia")
    return serve(*options, "--web.config.file", str(web), env=driver.environment)


def test_the_line_is_beside_the_finding(serve: Serve, driver: FakeDriver, tab: OpenTab, tmp_path: Path) -> None:
    """An alert's link opens the row. Names of commands and functions are only text, and axe-core finds no violation."""
    host_bound(driver, 4711)
    exporter = started(serve, driver, tmp_path)
    opened = tab(http_credentials={"username": "mia", "password": "right"})
    page = opened.open(f"http://127.0.0.1:{exporter.port}/#{UUID}")
    problem = page.locator(".problems li").filter(has_text="waits for input data")
    expect(problem.locator(".where").first).to_contain_text(f"at {FRAME}", timeout=60_000)
    details = page.get_by_role("group", name="Details of GPU 0")
    where = re.compile(r"Where: 86 % of the time waiting for the data loader, at /home/mia/train\.py\(31\): load_batch")
    expect(details.locator(".findings")).to_contain_text(where)
    expect(details.locator(".findings")).to_contain_text(
        "Process 4713 (rank 2) is elsewhere: at /home/mia/train.py(71)"
    )
    expect(details).to_contain_text("the GPU waits for its host (data-loading-bound)")
    table = details.get_by_role("table", name=f"The main thread of process 4711 ({HOSTILE}, rank 0) on GPU 0")
    expect(table.get_by_role("row").nth(1)).to_contain_text("86 %")
    details.get_by_role("button", name="Flame graph of process 4711").click()
    flame = details.get_by_role("region", name="Flame graph of process 4711")
    expect(flame.get_by_title(f"86 %: {FRAME}")).to_be_visible()
    expect(flame).to_contain_text("<b>main</b>")
    widths = [flame.get_by_title(title).bounding_box() for title in (f"86 %: {FRAME}", "100 %: all")]
    assert widths[0]
    assert widths[1]
    assert 0.8 < widths[0]["width"] / widths[1]["width"] < 0.9
    _compared(details)
    _traced(details)
    assert opened.violations() == []
    assert page.locator("main img, main b, main i").count() == 0


def _compared(details: Locator) -> None:
    """A person compares the profile with an earlier one: the loader takes 56 points more of the time."""
    details.get_by_label("Compare process 4711 with").select_option(index=1)
    changed = details.get_by_role("region", name="What changed in process 4711")
    expect(changed.get_by_title(f"86 %: +56 points: {FRAME}")).to_be_visible()
    expect(changed.get_by_title("100 %: <b>main</b>")).to_be_visible()


def _traced(details: Locator) -> None:
    """A trace has kernels by class, and the stacks that launched them."""
    table = details.get_by_role("table", name="GPU time of GPU 0 by kernel class")
    expect(table.get_by_role("row").nth(1)).to_contain_text("75 %")
    name = "GPU time by the code that launched it, process 4711"
    details.get_by_role("button", name=name).click()
    flame = details.get_by_role("region", name=name)
    expect(flame.get_by_title("100 %: <i>launch</i>")).to_be_visible()


def test_without_permission_there_is_no_profile(serve: Serve, driver: FakeDriver, tab: OpenTab, tmp_path: Path) -> None:
    host_bound(driver, 4711)
    exporter = started(serve, driver, tmp_path)
    opened = tab(http_credentials={"username": "eve", "password": "right"})
    opened.allowed = ("403",)
    with opened.page.expect_response("**/api/v1/profiles") as response:
        page = opened.open(f"http://127.0.0.1:{exporter.port}/")
    assert response.value.status == 403
    expect(page.locator(".problems li").filter(has_text="waits for input data")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="GPU 0", exact=True).last.click()
    details = page.get_by_role("group", name="Details of GPU 0")
    expect(details.locator(".loss, .identity").last).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("load_batch")
