"""What `doctor` says about the socket of training loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.doctor.jobs import DROPPED, checks, ranks, why_silent
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.jobs.store import Accepted
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import FindingLevel

FINE = """gpu_exporter_job_socket_up 1
gpu_exporter_job_messages_total{result="accepted"} 7
gpu_exporter_job_messages_total{result="unknown_gpu"} 0
gpu_job_rank_info{job_id="a",rank="0",verified="true"} 1
gpu_job_rank_info{job_id="b",rank="0",verified="true"} 1
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket, and that every user reaches."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "jobs.sock"


@pytest.fixture
def listens(path: Path) -> Iterator[Path]:
    made = JobSocket(path)
    yield path
    made.close()


def said(path: Path, page: str = FINE) -> list[tuple[FindingLevel, str]]:
    found = checks(path, lambda: page)
    assert all(finding.cure for finding in found if finding.level is not FindingLevel.OK)
    return [(finding.level, finding.what.replace(str(path), "PATH")) for finding in found]


def test_a_socket_that_works(listens: Path) -> None:
    assert said(listens) == [
        (FindingLevel.OK, "the exporter listens on PATH, and every user may send to it"),
        (FindingLevel.OK, "messages of training loops accepted: 7; sending now: ranks 2, jobs 2"),
    ]


def test_no_socket_and_a_socket_without_a_process(path: Path) -> None:
    assert said(path)[0] == (FindingLevel.WARN, "there is no socket PATH")
    left = JobSocket(path)
    left.socket.close()
    assert said(path)[0] == (FindingLevel.WARN, "no process listens on PATH")
    left.close()
    path.write_text("")
    assert said(path)[0] == (FindingLevel.WARN, "PATH is not a socket")


def test_permissions(listens: Path) -> None:
    listens.chmod(0o600)
    assert said(listens)[0] == (FindingLevel.WARN, "other users may not send to PATH: its mode is 0o600")
    listens.chmod(0o666)
    listens.parent.chmod(0o700)
    what = f"jobs of other users do not reach PATH: {listens.parent} has the mode 0o700"
    assert said(listens)[0] == (FindingLevel.WARN, what)


def test_the_exporter_cannot_be_asked(listens: Path) -> None:
    def fail() -> str:
        raise GpuExporterError("http://127.0.0.1:9400: connection refused", fix="start it")

    assert [finding.level for finding in checks(listens, fail)] == [FindingLevel.OK, FindingLevel.NOTE]
    assert [finding.level for finding in checks(listens, lambda: "<html>")] == [FindingLevel.OK, FindingLevel.NOTE]


def test_the_exporter_runs_without_a_socket_or_could_not_make_it(listens: Path) -> None:
    assert said(listens, "gpu_up 1\n")[1][0] is FindingLevel.WARN
    assert (FindingLevel.WARN, "the running exporter could not make its socket") in said(
        listens, FINE.replace("up 1", "up 0")
    )


def test_no_message_so_far(listens: Path) -> None:
    page = 'gpu_exporter_job_messages_total{result="accepted"} 0\n'
    assert said(listens, page)[1:] == [(FindingLevel.NOTE, "no message of a training loop was accepted so far")]


@pytest.mark.parametrize("result", [result for result in Accepted if result is not Accepted.ACCEPTED])
def test_every_reason_for_a_drop_has_a_cure(listens: Path, result: Accepted) -> None:
    page = FINE + f'gpu_exporter_job_messages_total{{result="{result.value}"}} 3\n'
    page = page.replace('gpu_exporter_job_messages_total{result="unknown_gpu"} 0\n', "")
    assert said(listens, page)[2:] == [
        (FindingLevel.WARN, f"messages of training loops dropped: 3, because {DROPPED[result][0]}")
    ]


def test_ranks_that_are_not_verified(listens: Path) -> None:
    page = FINE.replace('"true"', '"false"', 1)
    what = "ranks whose process is not seen on a GPU (unverified): 1 of 2"
    assert said(listens, page)[2:] == [(FindingLevel.NOTE, what)]


@pytest.mark.parametrize("source", ["simulated", "replay"])
def test_no_process_is_seen_on_gpus_that_are_not_there(listens: Path, source: str) -> None:
    page = FINE.replace('verified="true"', f'verified="false",source="{source}"')
    assert [level for level, _ in said(listens, page)] == [FindingLevel.OK] * 2


def page_of(job: str, world: int, sending: tuple[int, ...], ended: tuple[int, ...] = ()) -> str:
    """Return what an exporter says at 1000 s of a job whose ranks started at 400 s and made the last step at 990 s."""
    lines = [f"{m.RENDERED_AT.name} 1000"]
    for rank in sending:
        labels = f'job_id="{job}",rank="{rank}"'
        lines.append(f'gpu_job_rank_info{{{labels},verified="true",world_size="{world}"}} 1')
        lines.append(f"gpu_job_start_timestamp_seconds{{{labels}}} 400")
        lines.append(f"gpu_job_last_step_timestamp_seconds{{{labels}}} 990")
    lines += [f'gpu_job_rank_ended_timestamp_seconds{{job_id="{job}",rank="{rank}"}} 940' for rank in ended]
    return "\n".join([*lines, ""])


OK, NOTE, WARN, FAIL = FindingLevel.OK, FindingLevel.NOTE, FindingLevel.WARN, FindingLevel.FAIL


@pytest.mark.parametrize(
    ("page", "job", "expected"),
    [
        ("", "", [(FAIL, "no training loop sends")]),
        ("", "a", [(FAIL, "no rank of job a sends")]),
        (page_of("b", 1, (0,)), "a", [(FAIL, "no rank of job a sends; jobs that do: b")]),
        (page_of("a", 1, (0,)), "a", [(OK, "job a: rank 0 of 1 sending for 10 min; last step 10 s ago")]),
        (page_of("a", 4, (0, 1, 2, 3)), "", [(OK, "job a: ranks 0-3 of 4 sending for 10 min; last step 10 s ago")]),
        (
            page_of("a", 8, (0, 1, 3), (2,)),
            "",
            [
                (OK, "job a: ranks 0, 1, 3 of 8 sending for 10 min; last step 10 s ago"),
                (WARN, "job a: rank 2 sent the last message 1 min ago"),
                (NOTE, "job a: ranks 4-7 not sending to this exporter"),
            ],
        ),
    ],
)
def test_ranks_of_a_job(page: str, job: str, expected: list[tuple[FindingLevel, str]]) -> None:
    found = list(ranks(parsed(page), job))
    assert [(finding.level, finding.what) for finding in found] == expected
    assert all(finding.cure for finding in found if finding.level is not OK)


def test_why_a_job_is_silent(listens: Path) -> None:
    """From the socket to its ranks; without a name of the socket, what the exporter says."""
    page = FINE + page_of("a", 1, (0,))
    assert [finding.level for finding in why_silent(listens, lambda: page, "a")] == [OK, OK, OK]
    assert [finding.level for finding in why_silent(None, lambda: page, "a")] == [WARN, OK, OK]
    assert [finding.level for finding in why_silent(listens, lambda: FINE.replace(" 7", " 0"), "c")] == [OK, NOTE, FAIL]

    def fail() -> str:
        raise GpuExporterError("http://127.0.0.1:9400: nothing listens there: is it running? give its --url")

    _, failed = why_silent(listens, fail, "")
    assert failed.level is FAIL
    assert failed.what.endswith(": http://127.0.0.1:9400: nothing listens there")
    assert "--address" in failed.cure
