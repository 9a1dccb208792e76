"""The lines of the screen at any size, and what keys change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue.causes import SHARES as CAUSES
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.diagnosis.diagnose import Diagnosis, Match
from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import ONE_JOB, DeviceIdentity
from gpu_exporter.top.detail import with_limit
from gpu_exporter.top.lines import ASCII, UNICODE, bar, cut, fit, glyphs, spark, width_of, wrapped
from gpu_exporter.top.screen import Screen
from gpu_exporter.top.state import GpuRow, ProcessRow, View
from gpu_exporter.top.terminal import keys_of

MODE_BY_NAME = {mode.name: mode for mode in MODES}
SHARES = {**dict.fromkeys(CAUSES, 0.0), Cause.USEFUL: 0.7, Cause.HOST: 0.3}
WIDE = "一" * 60


def row(index: int, **values: object) -> GpuRow:
    """Return a GPU."""
    made = GpuRow(DeviceKey("", f"GPU-{index}", ""), str(index), "NVIDIA H200", values={"sm_active": index / 100})
    return replace(made, **values)  # type: ignore[arg-type]


def text(screen: Screen, view: View, now: float = 1000.0) -> list[str]:
    """Return the lines as text, and check that each fits."""
    lines = ["".join(span.text for span in line) for line in screen.lines(view, now)]
    assert len(lines) == screen.size[1]
    assert max(map(width_of, lines)) <= screen.size[0]
    return lines


def names(lines: list[str]) -> list[str]:
    """Return the GPUs of the table, in order."""
    table = lines[2 : next((place for place, line in enumerate(lines) if line.startswith("─")), -1)]
    return [line.removeprefix(UNICODE.chosen).split()[0] for line in table if line[2:3].isdigit()]


def chosen(lines: list[str]) -> str:
    """Return the GPU that is chosen."""
    return next(line for line in lines if line.startswith(UNICODE.chosen)).split()[1]


@pytest.mark.parametrize("size", [(20, 4), (40, 10), (80, 24), (120, 40), (250, 60)])
@pytest.mark.parametrize("number", [0, 1, 8, 100])
def test_every_size(size: tuple[int, int], number: int) -> None:
    """No line is too long, whatever is shown; also with characters of two columns."""
    gpus = [
        row(index, owner=WIDE, node="node", processes=(ProcessRow("1", 1e9, 0.5, WIDE),)) for index in range(number)
    ]
    view = View(1000.0, "source", "Simulated GPUs", "no answer", 1, gpus=tuple(gpus))
    screen = Screen(UNICODE, size)
    for key in ("", "enter", "end", "esc", "?", "?", "tab", "end", "tab", "down", "pgdn", "/", "x"):
        screen.press(key)
        text(screen, view)


def test_sorting() -> None:
    """A new order begins at its top; then, the chosen GPU is followed."""
    screen, view = Screen(UNICODE), View(1000.0, gpus=tuple(map(row, range(4))))
    text(screen, view)
    screen.press("down")
    assert names(text(screen, view)) == ["0", "1", "2", "3"]
    while screen.order != "SM":
        screen.press("s")
    lines = text(screen, view)
    assert names(lines) == ["3", "2", "1", "0"]
    assert chosen(lines) == "3"
    lines = text(
        screen, View(1001.0, gpus=tuple(row(index, values={"sm_active": 1 / (index + 1)}) for index in range(4)))
    )
    assert names(lines) == ["0", "1", "2", "3"]
    assert chosen(lines) == "3"
    screen.press("r")
    assert chosen(text(screen, view)) == "0"


def test_what_was_there_at_the_first_diagnosis_may_be_older() -> None:
    incident = {"words": "GPU 0 waits", "severity": "warning", "culprits": [], "hit": [], "since": 980.0}
    lines = text(Screen(UNICODE), View(1000.0, since=980.0, gpus=(row(0),), incidents=(incident,)))
    assert " GPU 0 waits (for at least 20 s)" in lines


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ("s", "index"),
        (("f6", "f6"), "loss"),
        ("<", "owner"),
        ("><", "worst first"),
        (".,", "worst first"),
        ("P", "SM"),
        ("M", "memory"),
        ("T", "temperature"),
        ("TW", "worst first"),
    ],
)
def test_keys_of_htop_and_nvitop_sort(keys: Sequence[str], order: str) -> None:
    screen = Screen(UNICODE)
    for key in keys:
        screen.press(key)
    assert (screen.order, screen.reverse) == (order, False)
    screen.press("I")
    assert screen.reverse


@pytest.mark.parametrize(("key", "name"), [("f1", "help"), ("f3", "typing"), ("\\", "typing"), ("f10", "done")])
def test_other_keys_of_htop(key: str, name: str) -> None:
    screen = Screen(UNICODE)
    screen.press(key)
    assert getattr(screen, name) is True


def test_a_filter_may_have_the_letters_of_keys() -> None:
    screen = Screen(UNICODE)
    for key in ("/", *"hPI.,>\\"):
        screen.press(key)
    assert screen.filter == "hPI.,>\\"


VALUES = {"sm_active": 0.5, "power": 500.0, "temperature": 55.0, "memory_used": 80 * 2.0**30}


def ranks(mode: str = "GpuStragglerSlow") -> tuple[GpuRow, ...]:
    """Return four GPUs of a job, of which the second has a finding."""
    found = []
    for index in range(4):
        identity = DeviceIdentity(gpu=str(index), namespace="ml", workload="train")
        matches = (Match(MODE_BY_NAME[mode], {}),) if index == 1 else ()
        diagnosis = Diagnosis(DeviceKey("", f"GPU-{index}", ""), identity, None, matches, {}, {}, shares=SHARES)
        found.append(row(index, values=VALUES, owner=f"ml/train-{index}", diagnosis=diagnosis))
    return tuple(found)


def test_eighty_columns() -> None:
    """What an on-call engineer asks first fits, and a finding is not cut."""
    lines = text(Screen(UNICODE, (80, 24)), View(1000.0, gpus=ranks()))
    assert lines[1].split() == ["GPU", "FINDING", "CLASS", "SM", "POWER", "TEMP", "MEMORY", "OWNER"]
    assert " ".join(lines[2].split()[1:]) == "1 GpuStragglerSlow unknown 50 % 500 W 55 °C 80 Gi ml/train-1"
    long = text(Screen(UNICODE, (80, 24)), View(1000.0, gpus=ranks("GpuMemoryExhaustionPredicted")))
    assert "MemoryExhaustio…" in long[2]


def test_jobs() -> None:
    """Tab shows them; on a large screen they are below the GPUs, with the other GPUs that have findings."""
    view, screen = View(1000.0, gpus=ranks()), Screen(UNICODE, (100, 24))
    screen.lines(view)
    screen.press("tab")
    shown = text(screen, view)
    assert shown[1].split()[:2] == ["JOB", "GPUS"]
    assert re.fullmatch(r"  ml/train +0-3 .* 50 % +2000 W +1\.2 of 4 GpuStragglerSlow on GPU 1 *", shown[2])
    screen.press("tab")
    assert "JOB" not in "\n".join(text(screen, view)[:3])
    large = Screen(UNICODE, (200, 50))
    large.lines(view)
    large.press("end")
    joined = "\n".join(text(large, view))
    assert joined.index("held by ml/train-3") < joined.index("  ml/train ") < joined.index("held by ml/train-1")
    alone = View(1000.0, gpus=ranks()[:1])
    screen.press("tab")
    assert "No job has several GPUs." in "\n".join(text(screen, alone))


def test_all_gpus_are_one_job() -> None:
    """The job of --one-job, and of a recording, has no name of its own."""
    gpus = [
        replace(gpu, diagnosis=replace(gpu.diagnosis, identity=DeviceIdentity(workload=ONE_JOB)))
        for gpu in ranks()
        if gpu.diagnosis
    ]
    view, screen = View(1000.0, gpus=tuple(gpus)), Screen(UNICODE, (100, 24))
    screen.lines(view)
    screen.press("tab")
    assert text(screen, view)[2].startswith("  all GPUs ")


def test_where_the_runbook_is() -> None:
    view = View(1000.0, gpus=ranks(), runbooks="http://node-1:9400/runbooks")
    assert "runbook: http://node-1:9400/runbooks/gpustragglerslow" in "\n".join(text(Screen(UNICODE, (80, 40)), view))


def test_the_filter() -> None:
    view = View(1000.0, gpus=(row(0, owner="ml/train-0"), row(1, owner="ml/serve-0"), row(2)))
    screen = Screen(UNICODE)
    for key in ("/", *"trq", "backspace", "enter"):
        screen.press(key)
    assert not screen.done, "q is a letter here"
    assert names(text(screen, view)) == ["0"]
    screen.press("esc")
    assert names(text(screen, view)) == ["0", "1", "2"]
    for key in ("/", "z", "enter"):
        screen.press(key)
    assert any("No GPU matches the filter" in line for line in text(screen, view))


def test_worst_first() -> None:
    """A GPU that is gone, then one that is unhealthy, then degraded. The first one is chosen until a key is pressed."""
    gpus = (row(0), row(1, health="degraded"), row(2, health="unhealthy"), row(3, down="lost: it fell off the bus"))
    screen = Screen(UNICODE)
    assert chosen(text(screen, View(1000.0, gpus=tuple(map(row, range(4)))))) == "0"
    lines = text(screen, View(1001.0, gpus=gpus))
    assert names(lines) == ["3", "2", "1", "0"]
    assert chosen(lines) == "3"


def test_a_lost_gpu() -> None:
    """Its row is in the columns of the others; below is why, who had it, and whom it hits."""
    lost = replace(row(1), down="lost: it fell off the bus", health="unhealthy", values={}, owner="ml/train-1")
    culprit, hit = {"UUID": lost.key.uuid, "gpu": "1"}, [{"gpu": "0"}]
    incident = {"words": "GPU 1 is lost", "severity": "critical", "culprits": [culprit], "hit": hit, "since": None}
    view = View(1000.0, gpus=(row(0), lost), incidents=(incident,))
    lines = text(Screen(UNICODE, (100, 24)), view)
    assert lines[3].split() == [UNICODE.chosen, "1", "lost", "unhealthy", *"------", "ml/train-1"]
    assert lines[3].index("ml/train-1") == lines[2].index("OWNER")
    below = lines[6:9]
    assert below[0].endswith("last held by ml/train-1")
    assert below[1:] == ["  It does not answer: lost: it fell off the bus.", "  also hit: GPU 0"]
    assert "lost: it fell off the bus" in text(Screen(UNICODE, (250, 24)), view)[3]


def test_who_others_wait_for_comes_first() -> None:
    """All ranks of a job hang; the cause of the incident is one of them."""
    gpus = tuple(map(row, range(4)))
    culprit = {"UUID": gpus[2].key.uuid, "gpu": "2"}
    incident = {
        "severity": "warning",
        "words": "a job makes no progress",
        "culprits": [culprit],
        "hit": [],
        "since": None,
    }
    assert names(text(Screen(UNICODE), View(1000.0, gpus=gpus, incidents=(incident,)))) == ["2", "0", "1", "3"]


def test_old_values_and_problems() -> None:
    screen, view = Screen(UNICODE), View(1000.0, gpus=(row(0),))
    assert "old" not in "\n".join(text(screen, view, now=1002.0))
    assert "No new values." in text(screen, view, now=1120.0)[1]
    assert "The values are 2 min old." in text(screen, view, now=1120.0)[1]
    assert "old" not in "\n".join(text(screen, replace(view, interval=30.0), now=1060.0))
    assert "gone away" in text(screen, replace(view, problem="gone away"), now=1001.0)[1]
    assert "Waiting for the first values" in "\n".join(text(screen, View()))


def test_scrolling() -> None:
    """The chosen GPU is always visible."""
    screen, view = Screen(UNICODE, (80, 12)), View(1000.0, gpus=tuple(map(row, range(40))))
    text(screen, view)
    for key, chosen in (("end", "39"), ("up", "38"), ("home", "0"), ("pgdn", "6")):
        screen.press(key)
        (line,) = [line for line in text(screen, view) if line.startswith(UNICODE.chosen)]
        assert line.split()[1] == chosen


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("\x1b[A\x1b[Bq", ["up", "down", "q"]),
        ("\x1b[6~\x1b[1;5C", ["pgdn"]),
        ("\x1b", ["esc"]),
        ("\r\x7f\x03ä", ["enter", "backspace", "ctrl-c", "ä"]),
        ("\x1bOP\x1b[17~\t", ["f1", "f6", "tab"]),
    ],
)
def test_keys(sent: str, keys: list[str]) -> None:
    assert list(keys_of(sent)) == keys


def test_bars_and_sparklines() -> None:
    assert bar(0.5, 4, UNICODE) == "██  "
    assert bar(None, 4, UNICODE) == "····"
    assert bar(2.0, 4, ASCII) == "####"
    assert spark([0.0, None, 1.0, 9.0], 1.0, 6, UNICODE) == "  ▁ ██"
    assert (glyphs("utf-8"), glyphs("latin-1"), glyphs(None)) == (UNICODE, ASCII, ASCII)


def test_text_of_any_width() -> None:
    assert fit("abc", 5) == "abc  "
    assert fit("abc", 5, right=True) == "  abc"
    assert fit("一一一", 4) == "一 …"
    lines = wrapped("one two three", 9, "  ", first="> ")
    assert ["".join(span.text for span in line) for line in lines] == ["> one two", "  three"]
    assert "".join(span.text for span in cut(lines[0], 6)) == "> one…"


def test_numbers() -> None:
    assert with_limit(BY_NAME["power"], 642.0, 700.0) == "642 W of 700 W"
    assert with_limit(BY_NAME["memory_used"], 91 * 2**30, None) == "91 GiB"
    assert with_limit(BY_NAME["pcie"], 98e9, None) == "98 GB/s"


def test_the_line_of_code_is_below_its_incident() -> None:
    """Only the first one; it is cut to the width."""
    incident = {
        "words": "GPU 0 waits",
        "severity": "warning",
        "culprits": [],
        "hit": [{"gpu": "1"}],
        "since": 980.0,
        "code": [f"at /a.py(3) {WIDE}", "at /b.py(4)"],
    }
    lines = text(Screen(UNICODE, (80, 24)), View(1000.0, since=970.0, gpus=(row(0),), incidents=(incident,)))
    place = lines.index(" GPU 0 waits (also hit: GPU 1, for 20 s)")
    assert lines[place + 1].startswith("   at /a.py(3) 一")
    assert "/b.py" not in "".join(lines)


def test_an_incident_is_not_cut_where_a_second_line_has_room() -> None:
    """Whom it hits is below what broke, if both do not fit one line."""
    words = "GPU 5 on node-17 is throttled because it is too hot"
    hit = [{"gpu": "0"}, {"gpu": "1"}]
    incident = {"words": words, "severity": "warning", "culprits": [], "hit": hit, "since": 940.0}
    view = View(1000.0, since=940.0, gpus=(row(0),), incidents=(incident,))
    about = "(also hit: GPUs 0, 1, for at least 1 min)"
    lines = text(Screen(UNICODE, (80, 24)), view)
    assert lines[lines.index(f" {words}") + 1] == f"   {about}"
    assert f" {words} {about}" in text(Screen(UNICODE, (200, 50)), view)


def test_a_gpu_that_another_one_hits_says_so() -> None:
    """In place of no finding, and in its details. Lost time has another name than a lost GPU."""
    lines = text(Screen(UNICODE, (200, 50)), View(1000.0, gpus=(replace(row(0), hit_by="hit by GPU 6"),)))
    assert sum("hit by GPU 6" in line for line in lines) == 2
    assert not any("LOST" in line and "TIME LOST" not in line for line in lines)


def test_gpus_are_in_the_order_of_their_incidents() -> None:
    """As in `diagnose`: a healthy GPU that causes one is above a sick one that does not cause a more urgent one."""
    severities = {2: "critical", 3: "warning", 5: "warning", 4: "info"}
    incidents = [
        {"words": f"GPU {gpu}", "severity": severity, "culprits": [{"UUID": f"GPU-{gpu}"}], "hit": [], "since": None}
        for gpu, severity in severities.items()
    ]
    gpus = (*(row(gpu) for gpu in (0, 2, 3, 4)), row(5, health="unhealthy"), row(6, down="lost"))
    view = View(1000.0, gpus=gpus, incidents=tuple(incidents))
    lines = text(Screen(UNICODE, (80, 24)), view)
    table = [line[2:].split()[0] for line in lines if re.match(r"[ ▶] \d ", line)]
    assert table == ["2", "6", "3", "5", "4", "0"]
