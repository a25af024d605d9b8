"""``pyroccam compress`` and ``pyroccam decompress``: small files, and networks of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...data.errors import PyroccamError
from ..places import need_file, need_folder
from .application import Device, Moved, Network, Run, Trust, app, console, tested

if TYPE_CHECKING:
    from ...inference.fits.result import Fit
    from ...inference.pruning.options import Code
    from ..methods.options import Threshold
    from ..runs.config import RunConfig

__all__ = ["compress", "decompress"]


@app.command()
def compress(
    folder: Run,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="validation (as much as the likelihood of the validation rows allows), valley "
            "(between two clusters), noise (scales with more of it than mean), or a number; that "
            "of the run if left out."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Of --threshold validation, which it asks for: nats by which the mean "
            "log-likelihood may fall; those of the run if left out.",
        ),
    ] = None,
    significand: Annotated[
        Literal["relative", "deviation", "published_code", "rate"],
        typer.Option(
            help="Rule for the bits. rate: multiples of a step that are cheap to send, at the "
            "highest price that changes no prediction by much."
        ),
    ] = "relative",
    exponent: Annotated[
        Literal["range", "published_three", "published_code"],
        typer.Option(help="Rule for the exponent's bits."),
    ] = "range",
    bytes_: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            min=1,
            help="Of a run of every size: take the best network whose file has no more bytes, in "
            "place of the run's budget.",
        ),
    ] = None,
    milliseconds: Annotated[
        float | None,
        typer.Option(
            help="Of a run of every size: take the best that takes no longer for 256 rows, here."
        ),
    ] = None,
    codebook: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="Bits of an index: round each layer to 2^bits values."),
    ] = None,
    code: Annotated[
        Literal["digits", "sample"],
        typer.Option(
            help="digits: rounded numbers. sample: what is left is trained once more for a size, "
            "and a draw of its posterior is coded: much smaller, in minutes."
        ),
    ] = "digits",
    posterior: Annotated[
        Literal["trained", "own"],
        typer.Option(
            help="Of --code sample. trained: of what is left, anew under normal priors. own: begin "
            "with that of the run, uncut; its priors have to be normal, and its KL says the size."
        ),
    ] = "trained",
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --code sample: bytes that the file may have; if left out, two bits a weight, "
            "4,000 at most, or what the KL of --posterior own takes.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --code sample: passes of each of its two trainings; --posterior own has one.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Of --code sample: go on where it was stopped.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File; RUN/compressed.pocc if left out, with the rules that are not the "
            "run's in its name; RUN/draw.poccd for --code sample."
        ),
    ] = None,
    device: Device = "auto",
    data_root: Moved = None,
    network: Network = None,
    trust: Trust = False,
) -> None:
    """Cut and round the network of a run over random weights; write it into one small file."""
    from ..runs.config import RunConfig
    from ..runs.loading import load_fit
    from ..runs.run import known_of
    from ..runs.summary import refuse_unmet

    budget = {"bytes": bytes_, "milliseconds": milliseconds}
    budget = budget if any(value is not None for value in budget.values()) else {}
    rules = {"significand": significand, "exponent": exponent, "codebook": codebook}
    sample = {"posterior": posterior, "size": size, "epochs": epochs}
    cut = {"threshold": threshold, "tolerance": tolerance}
    _refuse_together(code, cut, rules, {**sample, "resume": resume}, budgeted=bool(budget))
    need_file(out)
    result = load_fit(
        folder, device, network=network, trust=trust, data_root=data_root, options=budget
    )
    if not budget:
        refuse_unmet(known_of(folder))
    run = _Run(folder, result, RunConfig.read(folder))
    if code == "sample":
        run.draw(cut, sample, out, resume)
    else:
        run.digits(cut, rules, budget, out)


_AS_RULED = {"significand": "relative", "exponent": "range", "codebook": None}
_AS_TRAINED = {"posterior": "trained", "size": None, "epochs": None, "resume": False}


def _refuse_together(
    code: str,
    cut: dict[str, Any],
    rules: dict[str, Any],
    sample: dict[str, Any],
    budgeted: bool,
) -> None:
    """Refuse options of which one leaves nothing to another."""
    cuts = any(value is not None for value in cut.values())
    if cut["tolerance"] is not None and cut["threshold"] not in (None, "validation"):
        raise PyroccamError(
            "--tolerance is of --threshold validation, and changes nothing for "
            f"{cut['threshold']!r}: leave one of them out."
        )
    if sample["posterior"] == "own" and cuts:
        raise PyroccamError(
            "--threshold and --tolerance cut what a posterior does not need, and --posterior own "
            "sends it whole.\nLeave them out, or --posterior."
        )
    if budgeted and (rules != _AS_RULED or cuts or code == "sample"):
        raise PyroccamError(
            "--bytes and --milliseconds choose among networks that are cut and rounded by the "
            "rules of the run.\nLeave out --threshold, --tolerance, --significand, --exponent, "
            "--codebook and --code sample, or the budget."
        )
    if code == "sample" and rules != _AS_RULED:
        raise PyroccamError(
            "--significand, --exponent and --codebook round weights, and a draw is not rounded."
            "\nLeave them out, or give --code digits."
        )
    if code != "sample" and sample != _AS_TRAINED:
        raise PyroccamError(
            "--posterior, --size, --epochs and --resume are of --code sample: give that, too."
        )


def _code(rules: dict[str, Any], epochs: int) -> Code:
    """How weights are rounded.

    Arguments:
        epochs: in which what is left is trained first.
    """
    from ...inference import Codebook, Digits, Steps

    usual = {name: rules[name] == _AS_RULED[name] for name in rules}
    if rules["codebook"] is not None:
        if not usual["significand"] or not usual["exponent"]:
            raise PyroccamError("--codebook with --significand or --exponent", "one of them")
        return Codebook(2 ** rules["codebook"], epochs=epochs, rest=True)
    if rules["significand"] == "rate":
        if not usual["exponent"]:
            raise PyroccamError("--exponent with --significand rate", "one of them")
        return Steps(epochs=epochs, rest=True)
    bits = {name: rules[name] for name in ("significand", "exponent")}
    return Digits(**bits, epochs=epochs, rest=True)


@dataclass(frozen=True)
class _Run:
    """A run whose network is written."""

    folder: Path
    result: Fit
    config: RunConfig

    def draw(
        self, cut: dict[str, Any], sample: dict[str, Any], out: Path | None, resume: bool
    ) -> None:
        """Write a draw of the posterior of what is left, or of the whole posterior."""
        from ..methods import weights

        # A seed is sent, and a short one is as good.
        how = {"posterior": sample["posterior"], "bytes": sample["size"], "resume": resume}
        how |= {} if sample["epochs"] is None else {"epochs": sample["epochs"]}
        rule = None
        if sample["posterior"] != "own":  # which is sent whole, whatever the run's own rule is
            rule = weights.cut_of(self.result, *self._cut(**cut))
        target = out or self.folder / weights.DRAW
        seed = int(self.config.settings["seed"]) % 2**20
        drawn, scores = weights.draw_run(self.result, rule, target, seed=seed, **how)
        found = drawn.report
        console.say(
            f"{drawn.bytes:,} bytes, {found.over_kl:.3g} times the KL of the draw; "
            f"{found.weights / found.blocks:.3g} weights a block, at a squared distance to the "
            f"means of {found.distance:.3g} variances (a draw of q: 1); {tested(scores)}"
        )
        console.say("Written to ", (str(target), "bold"))

    def digits(
        self,
        cut: dict[str, Any],
        rules: dict[str, Any],
        budget: dict[str, Any],
        out: Path | None,
    ) -> None:
        """Write rounded weights; the run's own file again where rules and place are its own."""
        from ...inference.storage.checkpoint import seal
        from ..methods import weights

        folder, result = self.folder, self.result
        cut_at, allowed = self._cut(**cut)
        other = {name: None if value == _AS_RULED[name] else value for name, value in rules.items()}
        target = out or folder / weights.file_of({**cut, **budget, **other})
        epochs = self._retrain_epochs() if rules["codebook"] is None else 0
        own = target == folder / weights.FILE and target.is_file()
        if own and epochs and cut_at is None:  # another search would find another
            net = weights.network_of_file(
                result, target, self.config.options.get("threshold"), allowed
            )
            console.say(
                f"{target} is the network by the rules of the run already, of "
                f"{target.stat().st_size:,} bytes; {tested(weights.evaluate(result, net))}"
            )
            return
        searched = cut_at is None and not result.guide.traits.point
        code = _code(rules, 0 if searched else epochs)
        rule = weights.cut_of(result, cut_at, allowed, epochs)
        small, written = weights.compress_run(result, rule, target, code)
        if target == folder / weights.FILE:  # the run's own, made again
            seal(folder)
        console.say(str(small.report))
        for sentence in (*weights.said_of_file(written), tested(written["test"])):
            console.say(sentence)
        console.say("Written to ", (str(target), "bold"))

    def _cut(
        self, threshold: str | None, tolerance: float | None
    ) -> tuple[Threshold | None, float | None]:
        """What is cut, and how much the likelihood may fall for it; the run's own if left out.

        Raises:
            PyroccamError: for a rule that needs validation rows, without any.
        """
        from ..methods.options import Threshold, taken
        from ..runs.config import parse_settings

        options = self.config.options
        cut_at: Threshold | None = options.get("threshold") if tolerance is None else "validation"
        if threshold is not None:
            (asked_for,) = parse_settings([f"threshold={threshold}"]).values()
            cut_at = taken("--threshold", asked_for, Threshold)
        if cut_at == "validation" and not len(self.result.data.x_val):
            why = "the last fit trained on them" if options.get("last_rows") else "there are none"
            raise PyroccamError(
                f"{self.folder} cannot be cut by its validation rows: {why}. Give --threshold "
                "noise, valley or a number."
            )
        return cut_at, options.get("tolerance") if tolerance is None else tolerance

    def _retrain_epochs(self) -> int:
        """Epochs in which the networks are trained on that the cut chooses among."""
        from ...inference.training.settings import Settings
        from ..methods.weights import OverWeights

        method, rows = self.config.chosen, self.result.data
        if not isinstance(method, OverWeights) or not len(rows.x_val):
            return 0
        return method.retrain_epochs(Settings.of(self.config.settings), rows.N)


@app.command()
def decompress(
    file: Annotated[Path, typer.Argument(help="A file that `pyroccam compress` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder; beside the file if left out.")] = None,
) -> None:
    """Turn a compressed file into model.safetensors and description.json, which `inference.load`
    reads; runs no pickled code."""
    from ...inference import Small, load

    need_folder(out)
    target = Small(load(file)).save(out or file.with_suffix(""))
    console.say("Written to ", (str(target), "bold"))
