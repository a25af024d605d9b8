"""The training loop: one for every method, for one pair or for several replicates at once."""

from __future__ import annotations

import itertools
import math
import reprlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyro
import torch
from torch import Tensor

from ...data import PyroccamError
from ...models import give_way
from ..distributed import Part, average_, joined
from ..elbo import first_non_finite
from ..storage import CheckpointError, load_checkpoint, save_checkpoint, versions
from .depth_update import BlockPosterior, IncrementalPosterior
from .replicate import Replicate
from .settings import Settings, batch_bounds
from .step import TrainingStep
from .terminal import FitProgress, StopSignal

TRACE_FROM = 300
"""Steps of one shape of batch from which it pays to trace them: between what a posterior of few
layers and a plain network take on two cores. From how many on it pays to compile what was traced
depends on the graph (:mod:`~pyroccam.inference.compilation.regions`)."""

REHEARSED = 300
"""Steps of a size of batch that are timed, at most."""


class NonFiniteLoss(PyroccamError, RuntimeError):
    """The loss became NaN or infinite; the last good state has been put back.

    Attributes:
        fits: of repeats, those that are sound and complete.
    """

    fits: Sequence[Any] = ()


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; what was computed has been saved.

    Attributes:
        fits: those that were complete by then.
    """

    fits: Sequence[Any] = ()


@dataclass(frozen=True)
class Pace:
    """How long a training takes, in seconds.

    Attributes:
        begin: before the first step, for tracing and compiling.
        epoch: for the steps of an epoch.
        evaluation: for a look at the validation rows.
    """

    begin: float
    epoch: float
    evaluation: float = 0.0


class Batch(NamedTuple):
    """What a step is made of.

    Attributes:
        rows: their numbers, ``(K, B)``; ``None`` where they are all, in their order.
        x, y: inputs and targets of those that this process takes, ``(B, *)`` for one pair,
            ``(K, B, *)`` for several.
    """

    rows: Tensor | None
    x: Tensor
    y: Tensor


class Trainer:
    """Trains replicates of one pair, which differ in their values only, on one device. Its whole
    state goes into a checkpoint, and a step depends on nothing else.

    Raises:
        PyroccamError: if a pair cannot be trained so, or the replicates do not correspond.
    """

    def __init__(
        self,
        replicates: Sequence[Replicate],
        settings: Settings,
        *,
        out: Path | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        self.replicates, self.settings = list(replicates), settings
        self.out, self.checkpoint_seconds = out, checkpoint_seconds
        first = self.replicates[0]
        self.device = first.data.device
        self.streamed = first.data.streamed
        self.rows = first.data.N
        self.batches = batch_bounds(self.rows, settings.batch_size)
        self.epochs = settings.epochs_for(self.rows)
        self.total_steps = self.epochs * len(self.batches)
        self.evaluate_every = math.ceil(self.epochs / settings.evaluations)
        for one in self.replicates:
            one.check(settings, len(self.batches))
            if one is not first and (why := first.unlike(one)) is not None:
                raise PyroccamError(
                    f"replicates of seeds {first.seed} and {one.seed}: {why}",
                    "those that differ in values alone",
                    "together=False",
                )
        self.ranks = joined()
        if self.ranks.size > 1:
            self._begin_together()
        self.hold = first.guide.schedule.held
        checkpoint = settings.checkpoint
        self.latest = checkpoint == "last" or (checkpoint is None and first.model.random_weights)
        self.selectable = settings.selectable_from(first.guide)
        if first.model.likelihood.own_head:  # whose q(d) is on no way
            self.selectable = self.hold
        engine, steps = self._engine()
        self.step = TrainingStep(
            [(one.model, one.guide) for one in self.replicates],
            settings,
            compile=engine,
            steps=steps,
        )
        self.closed: IncrementalPosterior | None = None
        self.epoch = self.position = 0  # the latter is of batches of this epoch
        self.loss_sum = torch.zeros(len(self.replicates), dtype=torch.float64, device=self.device)
        self.elapsed = 0.0
        self.finished = False
        self._pending: dict[str, Any] | None = None
        self._whole: tuple[Tensor, Tensor] | None = None
        self._saved = 0.0  # when

    # -- set-up ---------------------------------------------------------------------------------

    def _engine(self) -> tuple[bool | Literal["graph"] | None, dict[int, int]]:
        """How the step runs, and how many of each size of batch it has to run: decided by counts
        and never by the clock, so that the same run takes the same way again."""
        asked = self.settings.compile
        if asked is False:
            return False, {}
        parts = (self.ranks.part(stop - start) for start, stop in self.batches)
        batches = Counter(part.stop - part.start for part in parts)
        steps = {size: count * self.epochs for size, count in batches.items()}
        # Pyro's handlers, of which tracing leaves nothing, run once for each particle.
        passes = self.settings.particles
        traced = {size: n for size, n in steps.items() if n * passes >= TRACE_FROM}
        if asked is True:
            most = max(steps, key=lambda size: steps[size])
            return True, traced | {most: steps[most]}
        # On a CPU torch's own convolutions leave a compiler little to gain.
        slow = self.replicates[0].convolutional and self.device.type == "cpu"
        if slow or not traced:
            return False, {}
        return asked, traced

    def _prepare(self) -> None:
        """Bring parameters into place, with Pyro's own checks on: its messages name the site."""
        if self.step.flats:
            return
        first = self.replicates[0]
        with pyro.validation_enabled(True):
            if first.images:  # convolutions are faster so, and compute the same
                self._lay_out(torch.channels_last)
                try:
                    self.step.prepare(*self._first_batch())
                except RuntimeError:  # a network may view what it computes as it lies in memory
                    self._lay_out(torch.contiguous_format)
            self.step.prepare(*self._first_batch())
        if first.guide.traits.moves and not first.model.likelihood.own_head:
            logits = self.step.state(f"guide.{first.guide.traits.moves}")
            prior = torch.stack([one.model.log_prior for one in self.replicates])
            rate, edges = first.guide.schedule.step(self.total_steps), first.data.edges
            if edges is None:
                self.closed = IncrementalPosterior(logits, prior, self.rows, rate)
            else:
                self.closed = BlockPosterior(logits, prior, edges, rate)

    @cached_property
    def _shared(self) -> bool:
        """True if all replicates have one data set."""
        data, *others = [one.data for one in self.replicates]
        return all(
            d.x_train is data.x_train and d.y_train is data.y_train and d.weights is data.weights
            for d in others
        )

    def _first_batch(self) -> tuple[Tensor, Tensor]:
        # As many rows as a part has, the same in all processes.
        start, stop = self.batches[0]
        part = self.ranks.part(stop - start, rank=0)
        return self.replicates[0].data.head(part.stop - part.start)

    def _lay_out(self, memory_format: torch.memory_format) -> None:
        """Images, and the weights of convolutions, in an order of memory."""
        datas = {id(one.data): one.data for one in self.replicates}  # those shared stay so
        laid = {key: data.laid_out(memory_format) for key, data in datas.items()}
        for one in self.replicates:
            one.model.to(memory_format=memory_format)
            one.data = laid[id(one.data)]

    @property
    def step_number(self) -> int:
        """Steps done."""
        return self.epoch * len(self.batches) + self.position

    @property
    def progress(self) -> float:
        return self.step_number / self.total_steps if self.total_steps else 1.0

    # -- one step -------------------------------------------------------------------------------

    def _batches(self, bounds: Sequence[tuple[int, int]], order: Tensor | None) -> Iterator[Batch]:
        """Batches of this epoch, by where they begin and end in its order: their rows, and the part
        of them that this process takes."""
        if not self.streamed:
            for start, end in bounds:
                rows = None if order is None else order[:, start:end]
                yield Batch(rows, *self._batch(rows, self.ranks.part(end - start)))
            return
        (one,) = self.replicates  # what is streamed is not trained on together
        for numbers, x, y in one.data.batches(one.seed, self.epoch, bounds):
            own = self.ranks.part(len(numbers)).rows
            yield Batch(numbers[None], x[own], y[own])

    def _batch(self, rows: Tensor | None, part: Part) -> tuple[Tensor, Tensor]:
        """The part that this process takes of a batch of rows ``(K, B)``, or of all rows, which are
        the same each time."""
        if rows is None and self._whole is not None:
            return self._whole
        datas = [one.data for one in self.replicates]
        each = [part.rows] * len(datas) if rows is None else [*rows[:, part.rows]]
        if rows is not None and len(datas) > 1 and self._shared:
            found = datas[0].x_train[rows[:, part.rows]], datas[0].targets[rows[:, part.rows]]
        else:
            pairs = [(d.x_train[own], d.targets[own]) for d, own in zip(datas, each, strict=True)]
            x, y = zip(*pairs, strict=True)
            found = pairs[0] if len(datas) == 1 else (torch.stack(x), torch.stack(y))
        self._whole = found if rows is None else None
        return found

    def _step(self, batch: Batch) -> None:
        rows, x, y = batch
        size = self.rows if rows is None else rows.shape[1]
        progress = self.progress
        self.step.warm_up(progress)
        loss = self.step.evaluate(x, y)
        if self.ranks.size > 1:
            loss = self.step.add_up(self.ranks, size, loss, self.closed is not None)
        if self.device.type == "cpu":  # free here; on CUDA the host would wait at every step
            self._check(loss.reshape(-1).tolist())
        self.step.update(progress, self.hold)
        if self.closed is not None:
            self.closed.observe(rows, self.step.seen["y"])
            if progress >= self.hold:
                costs = self.step.seen.get("depth")
                self.closed.step(
                    self.epoch > 0 or len(self.batches) == 1,
                    None if costs is None else costs.flatten(1),
                    self.step.kl_weight,
                    1.0 if costs is None else self._temperature(progress),
                )
        self.loss_sum += loss.reshape(-1).double() * (size / self.rows)

    def _temperature(self, progress: float) -> float:
        """The temperature of the closed-form update where weights are random: it falls from N,
        at which depths are compared by nats of a row, to 1, where q(d) has to be settled."""
        length = self.replicates[0].guide.schedule.settled - self.hold
        done = (progress - self.hold) / length if length > 0 else 1.0
        return float(self.rows ** max(0.0, 1.0 - done))

    def _check(self, values: list[float]) -> None:
        """Give up the replicates whose loss is not finite; raises if none is left."""
        for one, value in zip(self.replicates, values, strict=True):
            if abs(value) < float("inf") or one.stopped:
                continue
            step = self.step_number
            where = first_non_finite(one.model, one.guide, *next(one.data.parts("train")))
            one.restore(one.good)
            one.stopped = True
            one.broken = (
                f"The loss is {value} at step {step} of {self.total_steps} (epoch "
                f"{self.epoch + 1} of {self.epochs}); {where}. The state of the last evaluation "
                f"has been put back. Try a smaller lr (now {self.settings.lr:g}), clip_norm=1.0, "
                "or standardised inputs and targets."
            )
        if all(one.broken is not None for one in self.replicates):
            raise NonFiniteLoss(str(self.replicates[0].broken))

    # -- the whole ------------------------------------------------------------------------------

    def run(self, bar: FitProgress, stop: StopSignal) -> None:
        """Train to the end and put the best weights in place; save and leave after the step in
        which ``stop`` is set."""
        self._saved = last_time = time.perf_counter()
        with self._still():
            self._prepare()
            if self._pending is not None:
                self._take_up(self._pending)
                self._pending = None
            if self.ranks.any(bool(stop)) and not self.finished:
                self._save()
                self._leave()
            if self.step.compile is not False and not self.finished:
                bar.say("compiling" if self.step.compile is True else "tracing")
            if not self.epochs and not self.finished:
                self._evaluate([math.nan] * len(self.replicates))
                self.finished = True
                self._pause(stop)
            while not self.finished:
                for batch in self._batches(self.batches[self.position :], self._order()):
                    self._step(batch)
                    self.position += 1
                    give_way()
                    now = time.perf_counter()
                    self.elapsed += now - last_time
                    last_time = now
                    if self.position < len(self.batches):
                        self._pause(stop)
                    bar.step(self.step_number, self.loss_sum, self.position / len(self.batches))
                self._end_epoch(bar)
                self._pause(stop)
        for one in self.replicates:
            if one.best is not None and one.broken is None:
                one.restore(one.best)
            one.model.eval()

    def rehearse(self, clock: Callable[[], float] = time.perf_counter) -> Pace:
        """The pace of this training, by steps of every size of batch, and evaluations, as its last
        epoch has them, in one process. They move the pair: give one that is not needed afterwards.
        """
        self.epoch = self.epochs - 1
        start = clock()
        with self._still():
            self._prepare()
            began = clock()
            order = self._order()
            epoch, begin = clock() - began, began - start
            sizes: dict[int, list[tuple[int, int]]] = {}
            for low, high in self.batches:
                sizes.setdefault(high - low, []).append((low, high))
            for bounds in sizes.values():
                first = self._timed(order, bounds[:1], 1, clock)  # which traces and compiles
                each = self._timed(order, bounds, REHEARSED, clock)
                begin += max(0.0, first - each)
                epoch += len(bounds) * each
            looks = []
            for _ in range(2):  # the first is of a cold cache
                start = clock()
                for one in self.replicates:
                    one.evaluate(0.0, self.epoch, True, self.latest, self.ranks)
                looks.append(clock() - start)
        return Pace(begin, epoch, min(looks))

    def _timed(
        self,
        order: Tensor | None,
        bounds: Sequence[tuple[int, int]],
        most: int,
        clock: Callable[[], float],
    ) -> float:
        """Mean seconds of a step, of at most so many, in a third of a second or so."""
        turns = (self._batches(bounds, order) for _ in itertools.count())
        batches = itertools.chain.from_iterable(turns)
        start, steps = clock(), 0
        while steps < most and (steps < 3 or clock() - start < 0.3):
            self._step(next(batches))
            steps += 1
        self.loss_sum.tolist()  # waits for the device
        return (clock() - start) / steps

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Training mode, without Pyro's looks at values, and no gradient for logits that move in
        closed form; all put back however the run ends."""
        for one in self.replicates:
            one.model.train()
            one.guide.train()
        moving = [one.logits for one in self.replicates if one.guide.traits.moves]
        logits = [p for p in moving if p.requires_grad]
        for p in logits:
            p.requires_grad_(False)
        try:
            with pyro.validation_enabled(False), warnings.catch_warnings():
                # Pyro's warning of a NaN, which NonFiniteLoss explains.
                warnings.filterwarnings("ignore", "Encountered NaN", UserWarning)
                yield
        finally:
            for p in logits:
                p.requires_grad_()
            self.step.release()
            for one in self.replicates:
                if one.broken is not None:  # it was stepped on, beside the others
                    one.restore(one.good)

    def _order(self) -> Tensor | None:
        """This epoch's order of the rows, ``(K, N)``, by seeds and epoch alone; of all rows at once
        and of streamed ones there is none."""
        if len(self.batches) == 1 or self.streamed:
            return None
        return torch.stack([one.data.order(one.seed, self.epoch) for one in self.replicates])

    def _end_epoch(self, bar: FitProgress) -> None:
        losses = self.loss_sum.tolist()
        self._check(losses)
        self.epoch += 1
        self.position = 0
        self.loss_sum.zero_()
        self.step.warm_up(self.progress)  # a temperature that falls is at its end after the last
        last = self.epoch == self.epochs
        if last or self.epoch % self.evaluate_every == 0:
            self._evaluate(losses)
            bar.evaluated([one.history[-1] for one in self.replicates if one.history])
        patience = self.settings.patience
        for one in self.replicates:
            one.stopped = one.stopped or (patience is not None and one.stale >= patience)
        self.finished = last or all(one.stopped for one in self.replicates)

    def _evaluate(self, losses: list[float]) -> None:
        selectable = self.progress >= self.selectable
        if self.ranks.size > 1:
            average_(self.ranks, [*self.step.buffers().values()])  # moved by parts of batches
        for one, loss in zip(self.replicates, losses, strict=True):
            if not one.stopped:
                one.evaluate(loss, self.epoch, selectable, self.latest, self.ranks)

    def _pause(self, stop: StopSignal) -> None:
        """Save where it is time, and leave where a process was told to."""
        late = time.perf_counter() - self._saved > self.checkpoint_seconds
        leave, due = self.ranks.told(bool(stop), late)
        if leave or due or self.finished:
            self._save()
        if leave and not self.finished:
            self._leave()

    def _leave(self) -> None:
        kept = f"saved in {self.out}; resume=True goes on" if self.out else "not saved: no out="
        where = self.ranks.from_first(lambda: kept)
        raise Interrupted(f"Stopped after step {self.step_number} of {self.total_steps} ({where}).")

    # -- several processes ----------------------------------------------------------------------

    def _begin_together(self) -> None:
        """Begin with the same facts and values in all processes, those of the first."""
        ranks = self.ranks
        largest = max(stop - start for start, stop in self.batches)
        if 2 * ranks.size > largest:
            raise PyroccamError(
                f"{ranks.size} processes for a batch of {largest} rows", "two rows for each"
            )
        ranks.agree({**self._identity(), "versions": versions()})
        for one in self.replicates:
            for module in (one.model, one.guide):
                ranks.spread_([*module.parameters(), *module.buffers()])
            one.good = one.weights()

    def _own(self) -> dict[str, Any]:
        """What a process has of its own, beside what is the same in all of them."""
        cuda = self.device.type == "cuda"
        return {
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if cuda else None,
            "buffers": {}
            if self.ranks.size == 1
            else {name: t.cpu() for name, t in self.step.buffers().items()},
        }

    # -- checkpoints ----------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Facts that a checkpoint, and other processes, must agree with."""
        each = [one.identity() for one in self.replicates]
        return {**vars(self.settings), **{name: [one[name] for one in each] for name in each[0]}}

    def _save(self) -> None:
        if self.ranks.size == 1 and self.out is None:
            return
        first, *others = self.ranks.each(self._own())
        if self.out is not None and self.ranks.first:
            state = {
                **self._where(),
                "replicates": [one.state() for one in self.replicates],
                "optimizer": self.step.optimizer.state_dict(),
                "closed": None if self.closed is None else self.closed.state_dict(),
                "processes": [first, *(_differing(own, first) for own in others)],
            }
            save_checkpoint(self.out, state)
        self.ranks.meet()  # a process that ends has the others ended, too
        self._saved = time.perf_counter()

    def _where(self) -> dict[str, Any]:
        """How far it is, and of what."""
        done = ("epoch", "position", "loss_sum", "elapsed", "finished")
        return {"identity": self._identity(), **{name: getattr(self, name) for name in done}}

    def settle(self) -> None:
        """Keep of a finished fit only what says that it is finished, and how it went: its weights
        are in the folders of the replicates by now, and no step follows."""
        if self.out is not None and self.ranks.first:
            outcomes = [one.outcome() for one in self.replicates]
            save_checkpoint(self.out, {**self._where(), "replicates": outcomes})

    def _found(self) -> dict[str, Any] | None:
        """The checkpoint in the folder, if there is one."""
        if self.out is None or self.ranks.size == 1:
            return None if self.out is None else load_checkpoint(self.out, self.device)
        # For all: each has a device of its own, and only this one knows the folder.
        state = load_checkpoint(self.out, torch.device("cpu"))
        if state is not None:
            pairs = zip(self.replicates, state["replicates"], strict=False)
            state["replicates"] = [one.completed(kept) for one, kept in pairs]
        return state

    def load(self) -> None:
        """Take up the checkpoint in ``out``, if there is one.

        Raises:
            CheckpointError: if it belongs to other data, settings or another network.
        """
        state = self.ranks.from_first(self._found)
        if state is None:
            return
        mine, theirs = self._identity(), state["identity"]
        for name, now in mine.items():
            if theirs.get(name) != now:
                then = reprlib.repr(theirs.get(name))
                raise CheckpointError(
                    f"{self.out} was begun with another {name}, {then} instead of "
                    f"{reprlib.repr(now)}",
                    hint="the same again, or another folder",
                )
        if "processes" in state and len(state["processes"]) != self.ranks.size:
            raise CheckpointError(
                f"{self.out} was begun by {len(state['processes'])} processes, each with noise of "
                f"its own; here are {self.ranks.size}"
            )
        for name in ("epoch", "position", "elapsed", "finished"):
            setattr(self, name, state[name])
        self.loss_sum.copy_(state["loss_sum"])
        self._pending = state

    def _take_up(self, state: dict[str, Any]) -> None:
        """The part of a checkpoint that needs parameters in place and an optimiser."""
        for one, kept in zip(self.replicates, state["replicates"], strict=True):
            one.load(kept)
        if "optimizer" not in state:  # settled
            return
        self.step.load_optimizer(state["optimizer"])
        if self.closed is not None:
            self.closed.load_state_dict(state["closed"])
        own = state["processes"][self.ranks.rank]
        torch.set_rng_state(own["rng"].cpu())
        if own["cuda_rng"] is not None:
            torch.cuda.set_rng_state(own["cuda_rng"].cpu(), self.device)
        with torch.no_grad():
            buffers = self.step.buffers()
            for one in (state["processes"][0], own):
                for name, value in one["buffers"].items():
                    buffers[name].copy_(value)


def _differing(own: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """What a process has of its own, without buffers that the first one has with the same bits."""
    same = first["buffers"]
    buffers = {n: t for n, t in own["buffers"].items() if not torch.equal(t, same[n])}
    return {**own, "buffers": buffers}
