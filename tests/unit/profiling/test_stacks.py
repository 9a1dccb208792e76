"""What the folded stacks of py-spy say."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.profiling import stacks
from gpu_exporter.profiling.stacks import MOST_FRAME, Stack, cause_of, folded, parse, profiles, responsible, unfolded

PACKAGES = "/opt/venv/lib/python3.11/site-packages"
LOADER = (
    "thread (7): MainThread;<module> (/home/u/train.py:90);train (/home/u/train.py:40);"
    f"_BaseDataLoaderIter.__next__ ({PACKAGES}/torch/utils/data/dataloader.py:634);"
    "Queue.get (/usr/lib/python3.11/queue.py:171);Condition.wait (/usr/lib/python3.11/threading.py:327)"
)
STEP = "thread (7): MainThread;<module> (/home/u/train.py:90);train (/home/u/train.py:41)"
WORKER = (
    "thread (8): tqdm; monitor (x);Thread.run (/usr/lib/python3.11/threading.py:982);"
    "Condition.wait (/usr/lib/python3.11/threading.py:327)"
)


def test_where_the_time_went() -> None:
    found = parse(f"{LOADER} 30\n{STEP} 10\n{WORKER} 40\n")
    main, worker = profiles(found, rate=20)
    assert (main.is_main, main.seconds, main.waits) == (True, 2.0, False)
    assert [(cause.cause, cause.share) for cause in main.causes] == [
        (TraceCause.DATA_LOADING, 0.75),
        (TraceCause.PYTHON, 0.25),
    ]
    assert (
        main.causes[0].lines[0].frame
        == "/home/u/train.py(40): train > lib/python3.11/threading.py(327): Condition.wait"
    )
    assert main.causes[1].lines[0].frame == "/home/u/train.py(41): train"
    assert (worker.name, worker.waits) == ("tqdm; monitor (x)", True)
    assert folded(found, rate=20)["main thread;/home/u/train.py(90): <module>;/home/u/train.py(41): train"] == 0.5


@pytest.mark.parametrize(
    ("innermost", "cause"),
    [
        ("site-packages/torch/utils/data/_utils/fetch.py(54): fetch", TraceCause.DATA_LOADING),
        ("/home/u/train.py(7): load_batch", TraceCause.DATA_LOADING),
        ("site-packages/torch/cuda/__init__.py(892): synchronize", TraceCause.SYNCHRONISATION),
        ("site-packages/torch/cuda/streams.py(95): Stream.synchronize", TraceCause.SYNCHRONISATION),
        ("cudaStreamSynchronize", TraceCause.SYNCHRONISATION),
        ("site-packages/torch/serialization.py(850): _save", TraceCause.CHECKPOINT),
        ("site-packages/torch/distributed/distributed_c10d.py(4159): barrier", TraceCause.COLLECTIVES),
        ("ncclAllReduce", TraceCause.COLLECTIVES),
        ("site-packages/torch/_inductor/scheduler.py(1): codegen", TraceCause.COMPILATION),
        ("gc_collect_main", TraceCause.GARBAGE_COLLECTION),
        ("/home/u/train.py(7): forward", TraceCause.PYTHON),
        ("/home/dataloader.py(7): forward", TraceCause.PYTHON),
    ],
)
def test_causes(innermost: str, cause: TraceCause) -> None:
    assert cause_of(("/home/u/train.py(1): <module>", innermost)) is cause


def test_the_innermost_cause_counts() -> None:
    """A barrier in the saving of a checkpoint waits for the other ranks."""
    saving = "site-packages/torch/distributed/checkpoint/state_dict_saver.py(1): save"
    barrier = "site-packages/torch/distributed/distributed_c10d.py(4159): barrier"
    assert cause_of((saving, barrier)) is TraceCause.COLLECTIVES
    assert cause_of((saving, "lib/python3.11/json/__init__.py(1): dump")) is TraceCause.CHECKPOINT
    assert cause_of(()) is TraceCause.UNKNOWN


def test_every_cause_has_words() -> None:
    assert set(STACK_WORDS) == set(TraceCause)


def test_the_responsible_line() -> None:
    user, library, native = (
        "/home/u/train.py(3): f",
        "site-packages/torch/nn/functional.py(9): linear",
        "cuLaunchKernel",
    )
    assert responsible((user, library)) == f"{user} > {library}"
    assert responsible((library, user)) == user
    assert responsible((library, native)) == f"{library} > {native}"
    assert responsible((native,)) == native
    assert responsible(()) == ""


def test_hostile_names() -> None:
    """A job chooses the names of its threads, functions and files."""
    escape = "\x1b[31m"
    found = parse(
        f"thread (7): a{escape};b (not a frame;f{escape} (/home/{escape}.py:3) 5\n"
        f"thread (7): MainThread;{'x' * 5000} (/a.py:1) 1\nno thread 7\nthread (1): t x\nthread (1): t -3\n\n"
    )
    assert [stack.samples for stack in found] == [5, 1]
    assert all(escape not in text for stack in found for text in (stack.thread, *stack.frames))
    assert max(len(frame) for stack in found for frame in stack.frames) <= MOST_FRAME


def test_child_processes() -> None:
    """Their threads are grouped by name; the command of a process may contain anything."""
    one, two = 'process 7:"train; thread (x.py";', 'process 7:"a";process {}:"b; c (/d.py:3)";'
    frames = "f (/a.py:1)"
    found = parse(
        f"{one}thread (7): MainThread;{frames} 10\n"
        f"{two.format(8)}thread (8): MainThread;{frames} 10\n"
        f"{two.format(9)}thread (9): MainThread;{frames} 30\n",
        {7},
    )
    main, workers = profiles(found, rate=10)
    assert (main.is_main, main.seconds, main.workers) == (True, 1.0, 0)
    assert (workers.is_main, workers.seconds, workers.workers) == (False, 4.0, 2)
    assert folded(found, rate=10)["workers;thread MainThread;/a.py(1): f"] == 4.0


def test_native_functions_without_a_name_are_left_out() -> None:
    (stack,) = parse("thread (7): MainThread;f (/a.py:1);0x7f88b044524a (libc.so.6);sleep (libc.so.6) 3", native=True)
    assert stack.frames == ("/a.py(1): f", "sleep")


def test_stored_stacks_say_the_same() -> None:
    child = 'process 9:"python";thread (9): MainThread;decode (/home/u/images.py:12) 10\n'
    found = parse(f"{LOADER} 30\n{STEP} 10\n{child}", {7})
    assert profiles(unfolded(folded(found, 20), 20), 20) == profiles(found, 20)


@pytest.mark.parametrize(
    ("line", "stack"),
    [
        ("thread (0x1F): f;g (/a.py:1) 3", Stack("f", False, ("/a.py(1): g",), 3)),
        ("thread (7): MainThread;g (/a.py:1) 3", Stack("MainThread", True, ("/a.py(1): g",), 3)),
        ("thread (7);g (/a.py:1) 3", Stack("MainThread", True, ("/a.py(1): g",), 3)),  # it has not imported threading
        ("thread (9);g (/a.py:1) 3", Stack("thread 9", False, ("/a.py(1): g",), 3)),
        ("thread (0x7);g (/a.py:1) 3", Stack("thread 0x7", False, ("/a.py(1): g",), 3)),
        ("thread (7): MainThread 3", Stack("MainThread", True, (), 3)),
        ('process 7:"p";thread (7);g (/a.py:1) 3', Stack("MainThread", True, ("/a.py(1): g",), 3)),
        ('process 8:"p";thread (8);g (/a.py:1) 3', Stack("MainThread", False, ("/a.py(1): g",), 3, 8)),
        ('process 8:"p";thread (7);g (/a.py:1) 3', Stack("thread 7", False, ("/a.py(1): g",), 3, 8)),
        ('process 7:"p";process 8:"q;r";thread (9): w;g (/a.py:1) 3', Stack("w", False, ("/a.py(1): g",), 3, 8)),
        ("thread (9): w;f (lib.so);g (/a.py:1) 3", Stack("w;f (lib.so)", False, ("/a.py(1): g",), 3)),
        (
            "thread (9): w;g (/v/lib/python3.11/site-packages/t/a.py:1) 3",
            Stack("w", False, ("site-packages/t/a.py(1): g",), 3),
        ),
        (
            "thread (9): w;g (/usr/lib/python3.11/json/a.py:1) 3",
            Stack("w", False, ("lib/python3.11/json/a.py(1): g",), 3),
        ),
        ('x;process 8:"p";thread (8);g (/a.py:1) 3', None),
        ('process 8:"p";g (/a.py:1) 3', None),
        ("g (/a.py:1) 3", None),
        ("thread (9): w;g (/a.py:1) three", None),
        ("thread (9): w;g (/a.py:1) \u0663", None),
    ],
)
def test_lines_of_py_spy(line: str, stack: Stack | None) -> None:
    assert parse(line, {7}) == ((stack,) if stack else ())


def test_native_frames() -> None:
    found = parse("thread (9): w;f (lib.so);g (/a.py:1);0xff (x.so);h (x.so) 3", native=True)
    assert found == (Stack("w", False, ("f", "/a.py(1): g", "h"), 3),)


def test_names_and_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    (stack,) = parse(f"thread (9): {'x' * 100};g (/a.py:1) 3")
    assert len(stack.thread) == stacks.MOST_NAME
    monkeypatch.setattr(stacks, "MOST_STACKS", 2)
    assert len(parse("thread (9): w;g (/a.py:1) 3\n" * 5)) == 2


@pytest.mark.parametrize(("busy", "waits"), [(2, True), (3, False)])
def test_threads_that_wait(busy: int, *, waits: bool) -> None:
    """Nearly all the time. A main thread that waits is what the others wait for."""
    wait = "wait (/usr/lib/python3.11/threading.py:327)"
    folded = f"thread (9): w;{wait} {100 - busy}\nthread (9): w;f (/a.py:1) {busy}\nthread (7): MainThread;{wait} 100\n"
    main, other = profiles(parse(folded, {7}), 10)
    assert (main.is_main, main.waits) == (True, False)
    assert other.waits is waits


def test_the_order_of_threads() -> None:
    """The main thread, then those that do not wait, each by time and name."""
    wait = "wait (/usr/lib/python3.11/threading.py:327)"
    folded = (
        f"thread (1): pool;{wait} 99\nthread (2): b;f (/a.py:1) 5\nthread (3): a;f (/a.py:1) 5\n"
        "thread (4): c;f (/a.py:1) 6\nthread (7): MainThread;f (/a.py:1) 1\n"
    )
    assert [thread.name for thread in profiles(parse(folded, {7}), 10)] == ["MainThread", "c", "a", "b", "pool"]


def test_the_order_of_causes_and_lines() -> None:
    """The most costly first; lines of equal cost by name. Shares are of the thread."""
    main = "thread (7): MainThread"
    folded = (
        f"{main};f (/b.py:1) 2\n{main};f (/a.py:1) 2\n{main};f (/c.py:1) 3\n{main};load_batch (/d.py:1) 13\n{main} 5\n"
    )
    (found,) = profiles(parse(folded), 10)
    assert [(cause.cause, cause.seconds, cause.share) for cause in found.causes] == [
        (TraceCause.DATA_LOADING, 1.3, 0.52),
        (TraceCause.PYTHON, 0.7, 0.28),
        (TraceCause.UNKNOWN, 0.5, 0.2),
    ]
    lines = [(line.frame, line.seconds, line.share) for line in found.causes[1].lines]
    assert lines == [("/c.py(1): f", 0.3, 0.12), ("/a.py(1): f", 0.2, 0.08), ("/b.py(1): f", 0.2, 0.08)]
    assert found.causes[2].lines == ()


def test_stacks_that_are_stored() -> None:
    """A stack that was seen has one sample at least; the word `workers` alone is a thread's name."""
    assert unfolded({"main thread;a;b": 0.001, "thread w;a": 1.26, "workers;thread w;a": 2.0, "workers": 1.0}, 10) == (
        Stack("MainThread", True, ("a", "b"), 1),
        Stack("w", False, ("a",), 13),
        Stack("w", False, ("a",), 20, 1),
        Stack("workers", False, (), 10),
    )
    assert folded([Stack("a;b", False, ("f;g",), 5), Stack("a:b", False, ("f:g",), 5)], 10) == {"thread a:b;f:g": 1.0}
