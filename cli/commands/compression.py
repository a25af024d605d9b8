"""``pyroccam compress`` and ``pyroccam decompress``: small files, and networks of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...data import Count, PyroccamError
from .. import OpenOptions, need_file, need_folder, parse_settings
from .application import app, console, tested

if TYPE_CHECKING:
    from ...inference.training import Fit
    from ..methods import Threshold
    from ..runs import RunConfig


@app.command()
def compress(
    folder: Path,
    *,
    cut: str | None = None,
    cut__nats: float | None = None,
    code: Literal["digits", "steps", "codebook", "draw"] = "digits",
    code__significand: str | None = None,
    code__exponent: str | None = None,
    code__values: int | None = None,
    code__posterior: str | None = None,
    code__bytes: int | None = None,
    code__epochs: int | None = None,
    code__resume: bool = False,
    bytes_: Count | None = None,
    milliseconds: float | None = None,
    out: Path | None = None,
    opening: OpenOptions,
) -> None:
    """Cut and round the network of a run over random weights; write it into one small file.

    Arguments:
        folder: Folder of a finished run.
        cut: validation (as much as the likelihood of the validation rows allows), valley (between
            two clusters), noise (scales with more of it than mean), or a number; that of the run if
            left out.
        cut__nats: Of validation, which it asks for: by which the mean log-likelihood may fall;
            those of the run if left out.
        code: digits: as many as the posterior knows. steps: multiples of a step that are cheap to
            send. codebook: few values for each layer. draw: what is left is trained once more for a
            size, and a draw of its posterior is sent: much smaller, in minutes.
        code__significand: Of digits: relative, deviation, published_code.
        code__exponent: Of digits: range, published_three, published_code.
        code__values: Of a codebook: beside zero, 16 by default.
        code__posterior: Of a draw. trained: of what is left, anew under normal priors. own: begin
            with that of the run, uncut; its priors have to be normal, and its KL says the size.
        code__bytes: Of a draw: that the file may have; if left out, two bits a weight, 4,000 at
            most, or what the KL of the run's own posterior takes.
        code__epochs: In which what is left is trained; of a draw, each of two times.
        code__resume: Of a draw: go on where it was stopped.
        bytes_: Of a run of every size: take the best network whose file has no more bytes, in place
            of the run's budget.
        milliseconds: Of a run of every size: take the best that takes no longer for 256 rows, here.
        out: File; RUN/compressed.pocc if left out, with the rules that are not the run's in its
            name; RUN/draw.poccd for a draw.
    """
    from ..methods import file_of
    from ..runs import RunConfig, known_of, load_fit, refuse_unmet

    budget = _given(bytes=bytes_, milliseconds=milliseconds)
    nats, epochs = cut__nats, code__epochs
    asked = _given(
        significand=code__significand, exponent=code__exponent, values=code__values,
        epochs=epochs, posterior=code__posterior, bytes=code__bytes, resume=code__resume or None,
    )  # fmt: skip
    how = _coded(code, asked)
    _refuse_together(cut, nats, code, asked, budgeted=bool(budget))
    need_file(out)
    result = load_fit(folder, **vars(opening), options=budget)
    if not budget:
        refuse_unmet(known_of(folder))
    run = _Run(folder, result, RunConfig.read(folder))
    if code == "draw":
        run.draw(cut, nats, asked, out)
    else:
        own = {"cut": cut, "nats": nats, "code": None if code == "digits" else code}
        epochs = epochs if epochs is not None else 0 if code == "codebook" else run.epochs()
        run.digits(cut, nats, how, epochs, out or folder / file_of({**own, **asked, **budget}))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _coded(code: str, asked: dict[str, Any]) -> Any:
    """How weights are sent, by the fields that were given."""
    from ...inference import Codebook, Digits, Draw, Steps

    kind = {"digits": Digits, "steps": Steps, "codebook": Codebook, "draw": Draw}[code]
    if others := asked.keys() - {one.name for one in fields(kind)}:
        raise PyroccamError(f"--code.{min(others)} is nothing of --code {code}", "another --code")
    return kind(**asked)


def _refuse_together(
    cut: str | None, nats: float | None, code: str, asked: dict[str, Any], budgeted: bool
) -> None:
    """Refuse options of which one leaves nothing to another."""
    cuts = cut is not None or nats is not None
    if nats is not None and cut not in (None, "validation"):
        raise PyroccamError(f"--cut.nats with --cut {cut}", "--cut validation")
    if budgeted and (cuts or asked or code != "digits"):
        raise PyroccamError("--bytes or --milliseconds with --cut or --code", "one of the two")
    if asked.get("posterior") == "own" and cuts:
        raise PyroccamError("--code.posterior own, which is sent whole", "no --cut")


@dataclass(frozen=True)
class _Run:
    """A run whose network is written."""

    folder: Path
    result: Fit
    config: RunConfig

    def draw(
        self, cut: str | None, nats: float | None, asked: dict[str, Any], out: Path | None
    ) -> None:
        """Write a draw of the posterior of what is left, or of the whole posterior."""
        from ..methods import DRAW, cut_of, draw_run

        # Sent whole, whatever the run's own rule is, if it is the run's own posterior.
        own = asked.get("posterior") == "own"
        rule = None if own else cut_of(self.result, *self._cut(cut, nats))
        target = out or self.folder / DRAW
        seed = int(self.config.settings["seed"]) % 2**20  # it is sent, and a short one is as good
        drawn, scores = draw_run(self.result, rule, target, seed=seed, **asked)
        found = drawn.report
        console.say(
            f"{drawn.bytes:,} bytes, {found.over_kl:.3g} times the KL of the draw; "
            f"{found.weights / found.blocks:.3g} weights a block, at a squared distance to the "
            f"means of {found.distance:.3g} variances (a draw of q: 1); {tested(scores)}"
        )
        console.say("Written to ", (str(target), "bold"))

    def digits(
        self, cut: str | None, nats: float | None, code: Any, epochs: int, target: Path
    ) -> None:
        """Write rounded weights; the run's own file again where rules and place are its own."""
        from ...inference import Search
        from ...inference.storage import seal
        from ..methods import (
            FILE,
            OverWeights,
            compress_run,
            cut_of,
            evaluate,
            network_of_file,
            said_of_file,
        )
        from ..runs import known_of

        folder, result = self.folder, self.result
        cut_at, allowed = self._cut(cut, nats)
        own = target == folder / FILE and target.is_file()
        kept = own and "refused" in known_of(folder)  # the plain network was handed back
        if kept or (own and epochs and cut_at is None):  # another search would find another
            net = network_of_file(result, target, self.config.options.get("threshold"), allowed)
            console.say(
                f"{target} is the network by the rules of the run already, of "
                f"{target.stat().st_size:,} bytes; {tested(evaluate(result, net))}"
            )
            return
        method, rule = self.config.chosen, cut_of(result, cut_at, allowed, epochs)
        rule = method.rule(rule) if isinstance(method, OverWeights) else rule
        how = replace(code, epochs=0 if isinstance(rule, Search) else epochs, rest=True)
        small, written = compress_run(result, rule, target, how)
        if target == folder / FILE:  # the run's own, made again
            seal(folder)
        console.say(str(small.report))
        for sentence in (*said_of_file(written), tested(written["test"])):
            console.say(sentence)
        console.say("Written to ", (str(target), "bold"))

    def _cut(self, cut: str | None, nats: float | None) -> tuple[Threshold | None, float | None]:
        """What is cut, and how much the likelihood may fall for it; the run's own if left out."""
        from ..methods import Threshold, taken

        options = self.config.options
        cut_at: Threshold | None = options.get("threshold") if nats is None else "validation"
        if cut is not None:
            cut_at = taken("--cut", parse_settings([f"cut={cut}"])["cut"], Threshold)
        if cut_at == "validation" and not len(self.result.data.x_val):
            why = "the last fit trained on them" if options.get("last_rows") else "there are none"
            raise PyroccamError(
                f"{self.folder} cannot be cut by its validation rows: {why}",
                "--cut noise, valley or a number",
            )
        return cut_at, options.get("tolerance") if nats is None else nats

    def epochs(self) -> int:
        """Epochs in which the networks are trained on that the cut chooses among."""
        from ..methods import OverWeights

        method, rows = self.config.chosen, self.result.data
        if not isinstance(method, OverWeights) or not len(rows.x_val):
            return 0
        return method.retrain_epochs(self.config.training, rows.N)


@app.command()
def decompress(file: Path, *, out: Path | None = None) -> None:
    """Turn a compressed file into model.safetensors and description.json, which `inference.load`
    reads; runs no pickled code.

    Arguments:
        file: A file that `pyroccam compress` wrote.
        out: Folder; beside the file if left out.
    """
    from ...inference import Small, load

    need_folder(out)
    target = Small(load(file)).save(out or file.with_suffix(""))
    console.say("Written to ", (str(target), "bold"))
