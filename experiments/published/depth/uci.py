"""Learnt-depth regression on the UCI sets, at the standard splits.

    python -m experiments uci --again --data-root FOLDER

Beside the published numbers of Antoran et al. 2020 (arXiv:2006.08437, "DUN", printed in the
notebook of their code), and of the eight methods of google/uncertainty-baselines. One network for
all sets; with the noise as a number, the weight decay of the two smallest is chosen among two on
validation rows (theirs: a search over learning rate, depth, decay, ... for each split). With the
last layer in closed form (`--last closed-form`) `--fits` fits of a split, whose validation rows
differ, predict together, in one configuration; of several `--decays` the weight decay is the one
of most evidence of their validation rows. A finished split is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pyroccam.cli.methods.depth import metrics_on_test
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.execution import RunOptions, fixed_depth, run
from pyroccam.data import Dataset
from pyroccam.guides import Deterministic, Guide
from pyroccam.inference import Repeats, fit_repeats

from ..markdown import column, header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Row, Spec, resolve, untrained

__all__ = ["PUBLISHED", "SPEC"]

# set: (test log-likelihood, sd, RMSE), DUN; mean and sd over 20 splits (protein 5)
PUBLISHED = {
    "boston": (-2.604, 0.351, 3.200),
    "energy": (-1.037, 0.159, 0.612),
    "kin8nm": (1.151, 0.083, 0.076),
    "naval": (4.245, 1.108, 0.003),
    "protein": (-2.657, 0.044, 3.402),
    "wine": (-1.031, 0.119, 0.659),
}

# Steps for each set: long training over-fits the small ones and is needed by the large ones.
STEPS = {
    "boston": 1000, "wine": 1000, "kin8nm": 4000, "naval": 4000, "energy": 4000, "protein": 4000,
}  # fmt: skip
# Tried in turn; the one with the best validation NLL on its split is reported.
WEIGHT_DECAY = {"boston": (0.03, 0.3), "wine": (0.03, 0.3)}

# Test NLL, in the order of PUBLISHED: means over 20 splits (protein 5).
OTHERS = {
    "deterministic": (16.11, 1.29, -1.06, -5.06, 3.16, 1.05),
    "ensemble of 10": (6.11, 0.61, -1.17, -5.17, 3.12, 0.97),
    "refined VI": (2.94, 0.75, -1.06, -6.33, 2.92, 0.97),
    "VI": (3.12, 0.93, -1.03, -6.12, 2.93, 1.00),
    "MC dropout": (2.40, 1.21, -1.14, -4.45, 2.87, 0.93),
    "VMG": (2.46, 1.06, -1.10, -2.46, 2.84, 0.95),
    "horseshoe BNN": (2.54, 2.66, -1.12, -5.52, 2.89, 0.95),
    "PBP-MV": (2.54, 1.01, -1.28, -4.85, 2.77, 0.97),
}
OURS = {
    "learnt depth, noise a number": "test/ldn/nll",
    "depth 10, noise a number": "test/ddn-deepest/nll",
    "learnt depth, closed form": "test/learnt/one/nll",
    "depth 10, closed form": "test/fixed/one/nll",
    "learnt depth, closed form, together": "test/learnt/together/nll",
    "depth 10, closed form, together": "test/fixed/together/nll",
}


def files(given: Given) -> Iterable[File]:
    """One of each set and split."""
    made = {"normal": ("", _one), "closed-form": ("closed-", _closed)}
    for last in given.last:
        prefix, make = made[last]
        for name in given.sets:
            for split in range(given.seeds):
                yield File(f"{prefix}{name}-{split}", {}, partial(make, name, split, given))


def _one(name: str, split: int, given: Given) -> Row:
    """The best by validation of learnt depth, and of the deepest fixed one."""
    settings = {"steps": STEPS[name], "batch_size": 128, "data.split": split, **given.set}
    learnt, fixed = [], []
    for decay in WEIGHT_DECAY.get(name, (0.03,)):
        config, data = resolve(
            "ldn", f"uci/{name}", split, data_root=given.data_root,
            sets={"weight_decay": decay, **settings},
        )  # fmt: skip
        outcome = run(config, data, options=RunOptions(compare=False))
        learnt.append((config, outcome))
        fixed.append(fixed_depth(config, outcome.fit.data, outcome.fit.model.max_depth))
    config, outcome = min(learnt, key=lambda pair: pair[1].fit.val_nll)
    deepest = min(fixed, key=lambda fit: fit.val_nll)
    metrics = outcome.metrics
    return {
        "config": config.to_json() | {"data": {**config.data, "data_root": "..."}},
        "structure": metrics["structure"],
        "test": {
            "ldn": metrics["test"],
            "pruned": metrics["pruned"]["test"],
            "single_exit": metrics["single_exit"]["test"],
            "ddn-deepest": metrics_on_test(deepest),
        },
        "seconds": metrics["seconds"],
    }


def _closed(name: str, split: int, given: Given) -> Row:
    """Fits with the last layer in closed form, each with validation rows of its own: what each of
    them predicts, on average over them, and what they predict together."""
    settings = {
        "likelihood": "closed-form", "steps": STEPS[name], "batch_size": 128, "data.split": split,
        **given.set,
    }  # fmt: skip

    def resolved(decay: float, seed: int) -> tuple[RunConfig, Dataset]:
        own = {**settings, "weight_decay": decay, "data.seed": seed}
        return resolve("ldn", f"uci/{name}", seed, data_root=given.data_root, sets=own)

    def learnt(decay: float, seed: int) -> tuple[Any, Guide, Dataset]:
        config, data = resolved(decay, seed)
        return *untrained(config, data), data

    def fixed(decay: float, seed: int) -> tuple[Any, Guide, Dataset]:
        whole, _, data = learnt(decay, seed)
        model = whole.at_depth(whole.max_depth)
        return model, Deterministic(model), data

    def fitted(build: Any, decay: float) -> Repeats:
        how = {n: value for n, value in resolved(decay, 0)[0].settings.items() if n != "seed"}
        return fit_repeats(partial(build, decay), range(given.fits), progress=False, **how)

    tried = {decay: fitted(learnt, decay) for decay in given.decays}
    nats = {decay: fmean(one.val_nll for one in found.fits) for decay, found in tried.items()}
    best = min(nats, key=lambda decay: nats[decay])
    fits: dict[str, Repeats] = {"learnt": tried[best]}
    config, _ = resolved(best, 0)
    if not given.learnt_alone:
        fits["fixed"] = fitted(fixed, best)
    structures = [one.structure for one in fits["learnt"].fits if one.structure is not None]
    return {
        "config": config.to_json() | {"data": {**config.data, "seed": None, "data_root": "..."}},
        "fits": given.fits,
        "validation_nats": {f"{decay:g}": value for decay, value in nats.items()},
        "depths": [found.depth_chosen for found in structures],
        "depth_probs": [found.depth_probs.tolist() for found in structures],
        "test": {
            what: {
                "one": {n: one["mean"] for n, one in found.spread().items()},
                "together": found.evaluate(),
            }
            for what, found in fits.items()
        },
        "seconds": {what: found.seconds for what, found in fits.items()},
    }


def _beside_others(folder: Path) -> Iterable[str]:
    """The NLL of the methods of uncertainty-baselines, and ours."""
    yield from header("NLL", *PUBLISHED)
    for method, numbers in OTHERS.items():
        yield row(method, *(f"{number:.2f}" for number in numbers))
    yield row("DUN", *(f"{-ll:.3f}" for ll, _, _ in PUBLISHED.values()))
    runs = {name: [*read_all(folder, f"*{name}-*").values()] for name in PUBLISHED}
    for what, path in OURS.items():
        cells = []
        for name in PUBLISHED:
            found = column(runs[name], path)
            cells.append(f"{fmean(found):.3f} ({len(found)})" if found else "")
        yield row(f"ours: {what}", *cells)
    yield row("chosen depths", *(_depths(runs[name]) for name in PUBLISHED))


def _depths(runs: Iterable[Row]) -> str:
    """The least and the greatest depth that fits with a closed form chose."""
    found = [depth for one in runs for depth in one.get("depths", ())]
    return f"{min(found)} to {max(found)}" if found else ""


def table(folder: Path) -> Iterable[str]:
    """Learnt depth beside the published."""
    found = {name: [*read_all(folder, f"{name}-*").values()] for name in STEPS}
    if not any(found.values()):
        return
    yield from header(
        "set (splits)", "NLL", "NLL, pruned", "NLL, fixed depth 10", "NLL, DUN published", "RMSE",
        "RMSE, DUN published", "chosen depths",
    )  # fmt: skip
    for name, runs in found.items():
        if runs:
            ll, sd, rmse = PUBLISHED[name]
            small = max(column(runs, "test/ldn/rmse")) < 0.01
            yield row(
                f"{name} ({len(runs)})",
                *(plus_minus(runs, f"test/{k}/nll", 3) for k in ("ldn", "pruned", "ddn-deepest")),
                f"{-ll:.3f} ± {sd:.3f}",
                plus_minus(runs, "test/ldn/rmse", 5 if small else 3),
                f"{rmse:.3f}",
                ", ".join(str(run["structure"]["depth_chosen"]) for run in runs),
            )
    yield ""
    yield from _beside_others(folder)


SPEC = Spec(
    "experiments.published.depth.uci", "UCI", "uci",
    {"sets": Choice(PUBLISHED), "last": Choice(("normal", "closed-form")), "fits": 5,
     "decays": (0.3,), "learnt_alone": False, "data_root": str, "set": {}, "seeds": 5},
    files, table,
    small="--sets energy --seeds 1 --fits 2 --set steps=20 --set max_depth=2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
