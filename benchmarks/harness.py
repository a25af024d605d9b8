"""Contenders measured in turns, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from .machine import peak

__all__ = [
    "Contender",
    "Expected",
    "Measured",
    "Plan",
    "Quartiles",
    "Report",
    "Workload",
    "clock_of",
    "measure",
    "wake_compiler",
]

Step = Callable[[], Tensor | float]
"""One whole optimiser step; gives the loss before it, in nats for each observation."""


@dataclass(frozen=True)
class Contender:
    """A way to do the workload's step.

    Attributes:
        name: of the row.
        build: makes the step, with the weights that all contenders start from.
        note: what a reader should know of it.
        networks: how many networks one step moves; times are compared for each of them.
        compiled: whether the first step compiles.
        same: whether it computes the workload's loss. A network without latents does not.
    """

    name: str
    build: Callable[[], Step]
    note: str = ""
    networks: int = 1
    compiled: bool = False
    same: bool = True


@dataclass(frozen=True)
class Expected:
    """The loss that all contenders must start with, and how far from it one may be."""

    loss: float
    tolerance: float

    def check(self, found: Tensor | float) -> None:
        """Raises:
        ValueError: if a contender does not compute what the others do.
        """
        for value in torch.as_tensor(found).detach().flatten().tolist():
            if not abs(value - self.loss) <= self.tolerance:
                raise ValueError(
                    f"does not compute the same loss: {value:.6g} nats for each observation at "
                    f"the starting weights, expected {self.loss:.6g} ± {self.tolerance:.1g}"
                )


@dataclass(frozen=True)
class Workload:
    """Contenders for the same step.

    Attributes:
        name: of the result file.
        title: for people.
        parameters: sizes, as written to the file.
        contenders: in the order of the table.
        base: name of the contender that the others are compared with.
        expected: gives the loss at the starting weights.
        counted: name of a contender, not compiled, whose products are counted.
    """

    name: str
    title: str
    parameters: dict[str, Any]
    contenders: Sequence[Contender]
    base: str
    expected: Callable[[], Expected] | None = None
    counted: str = "pyroccam eager"


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: every contender has one turn in each.
        steps: timed in a turn.
        warmup: steps of each contender before the first round, its first step not counted.
        settle: steps at the start of a turn that are not timed.
    """

    rounds: int = 15
    steps: int = 50
    warmup: int = 10
    settle: int = 2

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("steps", 1), ("warmup", 0), ("settle", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    def order(self, round: int, names: Sequence[str]) -> list[str]:
        """Who is when in a round: rotated from one to the next, and every second one backwards.

        So no contender is always first, or always after the same neighbour.
        """
        start = round % len(names) if names else 0
        turned = [*names[start:], *names[:start]]
        return turned[::-1] if round % 2 else turned


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles over rounds."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass
class Measured:
    """Measurements of one contender.

    Attributes:
        ms: time of a step, in milliseconds (:func:`clock_of`).
        ratio: time for each network over that of the base, in the same round.
        rounds_ms: the time of each round, of which ``ms`` is the median.
        first_seconds: wall time of the first step, which for a compiled one compiles.
        compile_seconds: the same without the time of an ordinary step; ``None`` if not compiled.
        loss: at the first step, in nats for each observation; a list for several networks.
        memory: most bytes of a GPU at once, weights and first steps included.
        error: why there are no times.
    """

    name: str
    note: str = ""
    networks: int = 1
    ms: Quartiles | None = None
    ratio: Quartiles | None = None
    rounds_ms: list[float] = field(default_factory=list)
    first_seconds: float | None = None
    compile_seconds: float | None = None
    loss: Any = None
    memory: int | None = None
    error: str | None = None
    traceback: str | None = None

    def fail(self, error: BaseException) -> None:
        """Keep the reason in place of times."""
        text = str(error).strip() or "no message"
        self.error = f"{type(error).__name__}: {text}"
        self.traceback = "".join(traceback.format_exception(error)[-3:])
        self.rounds_ms = []

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Measured:
        spread = {k: None if row[k] is None else Quartiles(**row[k]) for k in ("ms", "ratio")}
        return cls(**{**row, **spread})


@dataclass
class Report:
    """A measured workload.

    Attributes:
        flops: operations (multiplications and additions) in products and convolutions of a step of
            one network; ``None`` if the contender that is counted was not there.
        peak: FLOP/s that a large product reaches on the machine.
    """

    name: str
    title: str
    parameters: dict[str, Any]
    base: str
    plan: Plan
    machine: dict[str, Any]
    contenders: list[Measured]
    flops: int | None = None
    peak: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        rows = [Measured.from_json(row) for row in content["contenders"]]
        return cls(**{**content, "plan": Plan(**content["plan"]), "contenders": rows})

    def __getitem__(self, name: str) -> Measured:
        return next(row for row in self.contenders if row.name == name)


def measure(
    workload: Workload,
    plan: Plan,
    device: torch.device,
    machine: dict[str, Any],
    say: Callable[[str], None] = lambda text: None,
    until: float = math.inf,
) -> Report:
    """Measure all contenders of a workload in alternating turns.

    All of them run with Pyro's validation off. A contender that cannot be built, disagrees about
    the loss or breaks in the middle is reported with its error.

    Arguments:
        workload, plan: what, and how much.
        device: whose queue must be empty when the clock is read.
        machine: kept in the report.
        say: is told what goes on.
        until: reading of ``time.perf_counter`` from which on nothing is compiled, and a third of
            the rounds is enough.
    """
    pyro.clear_param_store()
    if any(c.compiled for c in workload.contenders):
        wake_compiler(device)
    rows = {c.name: Measured(c.name, c.note, c.networks) for c in workload.contenders}
    with pyro.validation_enabled(False):
        expected = workload.expected() if workload.expected else None
        most = peak(device)
        steps: dict[str, Step] = {}
        for contender in workload.contenders:
            row = rows[contender.name]
            try:
                if contender.compiled and time.perf_counter() > until:
                    raise TimeoutError("no time was left")
                with _most_memory(row, device):
                    steps[contender.name] = _start(contender, row, expected, device)
                    _turn(steps[contender.name], plan.warmup, device)
            except Exception as error:
                steps.pop(contender.name, None)
                row.fail(error)
            say(f"{contender.name}: {row.error or 'ready'}")
        flops = _flops(steps.get(workload.counted))
        if flops is not None:
            flops //= rows[workload.counted].networks
        for round in range(plan.rounds):
            for name in plan.order(round, [n for n in rows if n in steps]):
                gc.collect()  # what one has left behind is not for the next to clear up
                try:
                    _turn(steps[name], plan.settle, device)
                    ms = 1e3 * _turn(steps[name], plan.steps, device) / plan.steps
                except Exception as error:
                    del steps[name]
                    rows[name].fail(error)
                    say(f"{name}: {rows[name].error}")
                else:
                    rows[name].rounds_ms.append(ms)
            say(f"round {round + 1} of {plan.rounds}")
            if 3 * (round + 1) >= plan.rounds and time.perf_counter() > until:
                plan = replace(plan, rounds=round + 1)
                break
    _summarise(workload, rows)
    found = list(rows.values())
    return Report(
        workload.name,
        workload.title,
        dict(workload.parameters),
        workload.base,
        plan,
        machine,
        found,
        flops,
        None if flops is None else most,
    )


def _flops(step: Step | None) -> int | None:
    if step is None:
        return None
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


@contextmanager
def _most_memory(row: Measured, device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    gc.collect()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield
    row.memory = torch.cuda.max_memory_allocated(device) - before


def _start(
    contender: Contender, row: Measured, expected: Expected | None, device: torch.device
) -> Step:
    """Build a contender and run its first step, which must give the expected loss."""
    torch.manual_seed(0)
    step = contender.build()
    _synchronize(device)
    start = time.perf_counter()
    loss = step()
    _synchronize(device)
    row.first_seconds = time.perf_counter() - start
    row.loss = torch.as_tensor(loss).detach().cpu().tolist()
    if expected is not None and contender.same:
        expected.check(loss)
    return step


def _turn(step: Step, count: int, device: torch.device) -> float:
    """Seconds for ``count`` steps."""
    clock = clock_of(device)
    _synchronize(device)
    start = clock()
    for _ in range(count):
        step()
    _synchronize(device)
    return clock() - start


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds of the processor where one thread does all the work, so that what else the machine
    does matters little; seconds of the wall elsewhere."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summarise(workload: Workload, rows: dict[str, Measured]) -> None:
    base = rows.get(workload.base)
    networks = {c.name: c.networks for c in workload.contenders}
    compiled = {c.name for c in workload.contenders if c.compiled}
    for name, row in rows.items():
        if not row.rounds_ms:
            continue
        row.ms = Quartiles.of(row.rounds_ms)
        if name in compiled and row.first_seconds is not None:
            row.compile_seconds = max(0.0, row.first_seconds - 1e-3 * row.ms.median)
        if base is not None and base.rounds_ms:
            of_base = networks[workload.base]
            row.ratio = Quartiles.of(
                [
                    (mine / networks[name]) / (theirs / of_base)
                    for mine, theirs in zip(row.rounds_ms, base.rounds_ms, strict=True)
                ]
            )


def wake_compiler(device: torch.device) -> None:
    """Compile next to nothing, so that the first contender does not pay for all the imports.

    Forget earlier workloads too: the compiler generalises over shapes it has seen, and gives up
    on code that it has compiled too often.
    """
    torch._dynamo.reset()
    x = torch.ones(8, device=device, requires_grad=True)
    torch.compile(lambda t: (t.sin() * 2).sum(), fullgraph=True, dynamic=False)(x).backward()
