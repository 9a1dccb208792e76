"""Callbacks of trainers and hooks of DistributedDataParallel, with stand-ins of these libraries, in virtual time."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from gpu_exporter.training import StepTimer
from tests.unit.training.conftest import Time

Hook = Callable[..., None]


class Tensor:
    """A tensor of PyTorch, as far as hooks and counts need it."""

    def __init__(self, *shape: int, requires_grad: bool = True) -> None:
        self.shape, self.requires_grad = shape, requires_grad
        self.hooks: list[Hook] = []

    def register_hook(self, hook: Hook) -> None:
        self.hooks.append(hook)

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]


class Parallel:
    """DistributedDataParallel."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []

    def register_forward_hook(self, hook: Hook) -> None:
        self.hooks.append(hook)


class WithBuffers(Parallel):
    """DistributedDataParallel of a model with buffers: in each forward pass, it waits for those of the first rank."""

    waits: ClassVar[list[Callable[[float], None]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.synchronized = 0

    def _sync_buffers(self) -> None:
        self.synchronized += 1
        self.waits[-1](0.5)

    def __call__(self, output: Any) -> None:
        self._sync_buffers()
        self.waits[-1](1.0)
        for hook in self.hooks:
            hook(self, (), output)


class Engine:
    """The engine of autograd: callbacks run in order at the end of a backward pass, those that they queue too."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def queue_callback(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def backward(self, *tensors: Tensor, reduce: Callable[[], None]) -> None:
        """Run a backward pass, in which DDP reduces after it has all gradients."""
        for tensor in tensors:
            for hook in tensor.hooks:
                hook(None)
        self.callbacks.insert(1, reduce)
        while self.callbacks:
            self.callbacks.pop(0)()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = Engine()
    parts: dict[str, dict[str, object]] = {
        "torch": {"Tensor": Tensor},
        "torch.autograd": {"Variable": SimpleNamespace(_execution_engine=engine)},
        "torch.nn": {},
        "torch.nn.parallel": {"DistributedDataParallel": Parallel},
        "transformers": {"TrainerCallback": object},
        "lightning": {},
        "lightning.pytorch": {},
        "lightning.pytorch.callbacks": {"Callback": object},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    names = [f"gpu_exporter.training.{name}" for name in ("ddp", "huggingface", "lightning")]
    for name in names:
        sys.modules.pop(name, None)
    yield engine
    for name in names:
        sys.modules.pop(name, None)


def watched(timer: StepTimer, output: Any) -> None:
    """Let a DDP model that the timer watches return an output."""
    model = Parallel()
    timer.watch(model)
    (hook,) = model.hooks
    hook(model, (), output)


def test_the_wait_of_a_backward_pass(engine: Engine, time: Time) -> None:
    """From the last gradient until the reduction is over; once, however many tensors have gradients."""
    timer = StepTimer("job", rank=0, world_size=2)
    model = Parallel()
    timer.watch(model)
    for _ in range(2):
        with timer.step():
            tensors = Tensor(1, 1), Tensor(1, 1)
            model.hooks[0](model, (), tensors)
            time.pass_(1.0)
            engine.backward(*tensors, reduce=lambda: time.pass_(0.25))
    message = timer.message()
    assert message["phase_seconds"] == pytest.approx({"waiting": 0.5})
    assert message["self"]["sum"] == pytest.approx(2.0)


def test_a_backward_pass_after_one_that_failed(engine: Engine, time: Time) -> None:
    timer = StepTimer("job", rank=0, world_size=2)
    model, tensor = Parallel(), Tensor(1, 1)
    timer.watch(model)
    with timer.step():
        model.hooks[0](model, (), tensor)
        tensor.hooks[0](None)
        engine.callbacks.clear()  # the pass failed
        tensor = Tensor(1, 1)
        model.hooks[0](model, (), tensor)
        engine.backward(tensor, reduce=lambda: time.pass_(0.25))
    assert timer.message()["phase_seconds"] == pytest.approx({"waiting": 0.25})


def test_the_wait_for_buffers(engine: Engine, time: Time) -> None:
    """It is not part of the forward pass: one rank would look slow because another one is."""
    WithBuffers.waits.append(time.pass_)
    timer = StepTimer("job", rank=0, world_size=2)
    model, tensor = WithBuffers(), Tensor(1, 1)
    timer.watch(model)
    with timer.step():
        with timer.phase("forward"):
            model(tensor)
        engine.backward(tensor, reduce=lambda: time.pass_(0.25))
    message = timer.message()
    assert message["phase_seconds"] == pytest.approx({"forward": 1.0, "waiting": 0.75})
    assert message["self"]["sum"] == pytest.approx(1.0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_watched_model(engine: Engine, time: Time, copied: Callable[[WithBuffers], WithBuffers]) -> None:
    """A loop may keep averages of its weights in one, or save it: it can be made, and is not watched."""
    WithBuffers.waits.append(time.pass_)
    timer = StepTimer("job", rank=0, world_size=2)
    model, tensor = WithBuffers(), Tensor(1, 1)
    timer.watch(model)
    other = copied(model)
    with timer.step():
        other(tensor)
        model(Tensor(1, 1))
    assert (other.synchronized, model.synchronized) == (1, 1)
    assert tensor.hooks == []
    assert timer.message()["phase_seconds"] == pytest.approx({"waiting": 0.5})


def test_other_models_are_left_alone(engine: Engine) -> None:
    timer = StepTimer("job", rank=0, world_size=2)
    timer.watch(SimpleNamespace())
    with timer.step():
        pass
    assert "self" not in timer.message()


@pytest.mark.parametrize(
    ("nest", "hooked"),
    [
        (lambda tensor: tensor, 1),
        (lambda tensor: [tensor], 1),
        (lambda tensor: {"loss": (tensor, 3)}, 1),
        (lambda tensor: SimpleNamespace(loss=[[tensor]], count=2), 1),
        (lambda tensor: [[[[tensor]]]], 0),  # too deep
        (lambda tensor: "text", 0),
    ],
)
def test_tensors_of_an_output(engine: Engine, nest: Callable[[Tensor], Any], hooked: int) -> None:
    tensor = Tensor(1, 1)
    watched(StepTimer("job"), nest(tensor))
    assert len(tensor.hooks) == hooked


def test_sixteen_tensors_of_an_output_are_enough(engine: Engine) -> None:
    """Those without gradients take part in no backward pass."""
    tensors = [Tensor(1, 1, requires_grad=bool(number % 2)) for number in range(60)]
    watched(StepTimer("job"), tensors)
    assert [number for number, tensor in enumerate(tensors) if tensor.hooks] == list(range(1, 33, 2))


class Trainer:
    """A Trainer of Hugging Face: forward 0.2 s, backward 0.3 s."""

    def __init__(self, time: Time) -> None:
        self.time, self.callbacks = time, list[Any]()
        self.model_wrapped = Parallel()
        self.accelerator = SimpleNamespace(backward=lambda loss, **options: time.pass_(0.3))

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def training_step(self, model: Any, inputs: Any) -> str:
        self.time.pass_(0.2)
        self.accelerator.backward("loss", retain_graph=False)
        return "loss"


class Model:
    """A model of 5 parameters without embeddings."""

    def __init__(self, *, trained: bool = True) -> None:
        self.trained = trained

    def parameters(self) -> list[Any]:
        return [SimpleNamespace(requires_grad=True), SimpleNamespace(requires_grad=self.trained)]

    def num_parameters(self, *, exclude_embeddings: bool) -> int:
        return 5 if exclude_embeddings else 50


ARGUMENTS = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2)


def huggingface(time: Time, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = import_module("gpu_exporter.training.huggingface")
    monkeypatch.setattr(module, "perf_counter", time)
    return module.StepTimerCallback


def train(callback: Any, time: Time, model: Any, steps: int = 2, trainer: Trainer | None = None) -> None:
    """Run steps: 0.5 s data, the trainer's step of two batches, 0.1 s optimizer; then 5 s evaluation and 7 s saving."""

    def tell(event: str, *, evaluates: bool = False, saves: bool = False) -> None:
        control = SimpleNamespace(should_evaluate=evaluates, should_save=saves)
        getattr(callback, event)(ARGUMENTS, None, control, model=model)

    tell("on_train_begin")
    time.pass_(9.0)
    tell("on_epoch_begin")
    for _ in range(steps):
        time.pass_(0.5)
        tell("on_step_begin")
        if trainer:
            for _ in range(2):
                assert trainer.training_step(model, {"input_ids": Tensor(4, 8)}) == "loss"
        tell("on_pre_optimizer_step")
        time.pass_(0.1)
        tell("on_optimizer_step")
        tell("on_step_end", evaluates=True, saves=True)
        time.pass_(5.0)
        tell("on_evaluate", evaluates=True, saves=True)
        time.pass_(7.0)
        tell("on_save", saves=True)
    time.pass_(0.25)
    tell("on_epoch_end", saves=True)
    time.pass_(3.0)
    tell("on_train_end")


@pytest.mark.parametrize(
    ("model", "flops"), [(Model(), 6 * 5 * 128), (Model(trained=False), 0), (SimpleNamespace(), 0), (None, 0)]
)
def test_an_attached_callback_of_hugging_face(
    engine: Engine, time: Time, monkeypatch: pytest.MonkeyPatch, model: Any, flops: int
) -> None:
    """Everything is measured; operations only of a model that is trained as a whole."""
    timer, trainer = StepTimer("job", rank=0, world_size=2), Trainer(time)
    callback = huggingface(time, monkeypatch)(timer)
    assert callback.attach(trainer) is callback
    assert trainer.callbacks == [callback]
    train(callback, time, model, trainer=trainer)
    message = timer.message()
    assert message["steps"] == 2
    assert message["step"]["sum"] == pytest.approx(2 * (0.5 + 2 * 0.5 + 0.1))
    assert message["data_seconds"] == pytest.approx(2 * 0.5)
    assert message["phase_seconds"] == pytest.approx({"forward": 0.8, "backward": 1.2, "optimizer": 0.2})
    activities = {"training": 3.2, "evaluation": 10.0, "checkpoint": 14.0 + 3.0, "compile": 0.0}
    assert message["activity_seconds"] == pytest.approx(activities)
    assert (message["tokens"], message["samples"], message.get("flops", 0)) == (128, 16, flops)
    assert message["activity"] == "training"
    assert "self" in message  # DDP is watched


def test_a_callback_of_hugging_face_that_is_not_attached(
    engine: Engine, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the samples from the arguments, and no phases but the optimizer."""
    timer = StepTimer("job", rank=0, world_size=2)
    train(huggingface(time, monkeypatch)(timer), time, Model())
    message = timer.message()
    assert (message["steps"], message["samples"]) == (2, 16)
    assert message["phase_seconds"] == pytest.approx({"optimizer": 0.2})
    assert not {"tokens", "flops", "self"} & message.keys()


def test_an_older_trainer_does_not_announce_the_optimizer(
    engine: Engine, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = StepTimer("job")
    callback = huggingface(time, monkeypatch)(timer)
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    callback.on_step_begin(ARGUMENTS, None, control)
    with timer.phase("forward"):
        callback.on_optimizer_step(ARGUMENTS, None, control)
        time.pass_(1.0)
    callback.on_step_end(ARGUMENTS, None, control)
    assert timer.message()["phase_seconds"] == pytest.approx({"forward": 1.0})
    assert timer.message()["data_seconds"] == 0  # nothing was before the first step


def test_a_callback_of_lightning(engine: Engine, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("gpu_exporter.training.lightning")
    monkeypatch.setattr(module, "perf_counter", time)
    timer = StepTimer("job", rank=0, world_size=2)
    saved: list[tuple[str, bool]] = []

    def save(path: str, *, weights_only: bool) -> None:
        saved.append((path, weights_only))
        time.pass_(7.0)

    trainer = SimpleNamespace(strategy=SimpleNamespace(model=Parallel()), save_checkpoint=save)
    callback: Any = module.StepTimerCallback(timer, lambda batch: {"tokens": 8 * batch, "samples": batch})
    callback.on_train_start(trainer, None)
    assert trainer.save_checkpoint is not save
    time.pass_(9.0)
    callback.on_train_epoch_start(trainer, None)
    for number in range(2):
        time.pass_(0.5)
        callback.on_train_batch_start(trainer, None, 4, number)
        time.pass_(0.2)
        callback.on_before_backward(trainer, None, None)
        time.pass_(0.3)
        callback.on_after_backward(trainer, None)
        time.pass_(0.01)
        callback.on_before_optimizer_step(trainer, None, None)
        time.pass_(0.1)
        callback.on_train_batch_end(trainer, None, None, 4, number)
        callback.on_validation_start(trainer, None)
        time.pass_(5.0)
        callback.on_validation_end(trainer, None)
        trainer.save_checkpoint("path", weights_only=True)
    callback.on_train_end(trainer, None)
    message = timer.message()
    assert message["step"]["sum"] == pytest.approx(2 * 1.11)
    assert message["data_seconds"] == pytest.approx(2 * 0.5)
    assert message["phase_seconds"] == pytest.approx({"forward": 0.4, "backward": 0.6, "optimizer": 0.2})
    activities = {"training": 2.22, "evaluation": 10.0, "checkpoint": 14.0, "compile": 0.0}
    assert message["activity_seconds"] == pytest.approx(activities)
    assert (message["tokens"], message["samples"]) == (64, 8)
    assert "self" in message
    assert saved == [("path", True)] * 2
    assert trainer.save_checkpoint is save


def test_an_exception_in_lightning_restores_its_trainer(engine: Engine, time: Time) -> None:
    """Also before the training began, and without amounts."""
    timer = StepTimer("job")
    callback: Any = import_module("gpu_exporter.training.lightning").StepTimerCallback(timer)
    trainer = SimpleNamespace(strategy=SimpleNamespace(), save_checkpoint="save")
    callback.on_exception(trainer, None, RuntimeError())
    callback.on_train_start(trainer, None)
    callback.on_train_batch_start(trainer, None, 4, 0)
    callback.on_train_batch_end(trainer, None, None, 4, 0)
    callback.on_exception(trainer, None, RuntimeError())
    assert trainer.save_checkpoint == "save"
    message = timer.message()
    assert (message["steps"], message["data_seconds"]) == (1, 0)
    assert "tokens" not in message
