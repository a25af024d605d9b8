"""The page that follows a call, against the call."""

import re
import traceback
from pathlib import Path

from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.inference.elbo import joined
from torch import nn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading.md"
ROOT = PAGE.parents[1]


def test_a_step_comes_to_the_divergence_by_the_functions_of_the_page(monkeypatch):
    said = re.findall(r"^\| `(inference\.[\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(said) > 5
    met, divergence = [], joined.kl_divergence

    def look(*pair):
        met.append(
            [
                ".".join(Path(one.filename).resolve().relative_to(ROOT).with_suffix("").parts)
                + f".{one.name}"
                for one in traceback.extract_stack()
                if Path(one.filename).resolve().is_relative_to(ROOT / "inference")
                and one.name != "<listcomp>"
            ]
        )
        return divergence(*pair)

    monkeypatch.setattr(joined, "kl_divergence", look)
    rows, prior = blobs(), models.priors.GroupNormalJeffreys()
    model = models.BayesianNetwork(nn.Linear(*rows.input_shape, rows.outputs), rows, prior=prior)
    guide = guides.MeanField(model)
    inference.fit(model, guide, rows, epochs=1, progress=False, compile=False, device="cpu")
    # The page names classes, too; a stack does not.
    bare = [re.sub(r"\.[A-Z]\w+(?=\.)", "", name) for name in said]
    assert bare in met
