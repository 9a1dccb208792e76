"""What the folded stacks of py-spy say."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.profiling.stacks import MOST_FRAME, cause_of, folded, parse, profiles, responsible, unfolded

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
