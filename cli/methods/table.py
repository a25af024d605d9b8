"""The table of methods: what the command line, the benchmarks and the experiments offer.

Adding a method is adding a row here; a new kind of one is a class with its options.
"""

from __future__ import annotations

import math
from typing import Any

from ...data import PyroccamError
from ...models import unknown_name
from .base import Method
from .bayes import Bayes
from .certified import Certified
from .coded import Coded
from .depth import AtDepth, ByGradient, ClosedForm, MarginalLikelihood
from .dropout import Dropout, GaussianDropout
from .every_size import EverySize
from .occam import Occam
from .points import DeepCompression, SoftSharing, Surgery
from .structure import RandomStructure
from .transfer import Transfer

_LDN = "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2002.02797"
_COMPRESSION = "Louizos, Ullrich, Welling 2017, arXiv:1705.08665"
_ADAM = {"optimizer": "adam", "schedule": "linear", "weight_decay": 0.0}

# Chosen on sets of the half "tuned" of experiments.trials.strangers, and judged on the other half
# there; the published tables have settings of their own (experiments.published.compression).
# Steps, and not epochs: a set of 300 rows needs as many as one of 3,000; beyond, passes count
# (RunConfig.resolve).
_WEIGHTS = {
    **_ADAM, "lr": 2e-3, "kl_warmup": 0.1, "batch_size": 64, "epochs": None, "steps": 2500,
}  # fmt: skip
_TRAINED: dict[str, Any] = {"start": 0.6, "finish": 0.15}
# Of log alpha, above which the mean of a weight is within 0.83 deviations of 0: there the posterior
# has a density above 0.709 of that at its mean.
_SAFE = -2.0 * math.log(0.83)
# The limit is that of the authors' code: without it, weights that mean nothing in a group that does
# are noise of the prior's size.
_GROUPS: dict[str, Any] = {**_TRAINED, "max_scale": "first:0.2"}

_VARIANCE = "Neklyudov, Molchanov, Ashukha, Vetrov 2018, arXiv:1803.03764"
# Deviations settle slowly, and there is no KL to overfit against.
_STEPS = {
    **_ADAM, "lr": 2e-3, "kl_warmup": 0.0, "batch_size": 256, "epochs": None, "steps": 8000,
}  # fmt: skip
# As in the source: the last layer and the biases are numbers, and noise is of activations.
_HIDDEN: dict[str, Any] = {"random_biases": False, "noise": "activations"}

_POINT = {**_ADAM, "lr": 1e-3, "kl_warmup": 0.0, "batch_size": 256, "epochs": 30}

# The weight of the KL is the price of a nat of the file; by the full price it is the shortest
# description of weights and labels together, which predicts worse. No checkpoint of before the end
# has all of the gain in length.
_WHOLE = {
    **_ADAM, "lr": 6e-3, "kl_warmup": 0.2, "kl_weight": 0.1, "batch_size": 64, "epochs": None,
    "steps": 6000, "checkpoint": "last",
}  # fmt: skip

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        ClosedForm(
            "ldn",
            "learnt depth, q(d) in closed form",
            f"{_LDN}; Neal and Hinton 1998 for the update",
        ),
        ByGradient("ldn-gradient", "learnt depth, q(d) by gradient", _LDN),
        MarginalLikelihood(
            "ldn-marginal",
            "learnt depth by maximum marginal likelihood, full batch (for comparison)",
            "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2006.08437",
        ),
        AtDepth(
            "ddn",
            "the same network at one fixed depth (--set depth=...; the deepest by default)",
            _LDN,
        ),
        Bayes(
            "gnj",
            "Bayesian compression, log-uniform scales of groups",
            _COMPRESSION,
            _WEIGHTS,
            prior="gnj",
            **_GROUPS,
        ),
        Bayes(
            "ghs",
            "Bayesian compression, half-Cauchy scales of groups",
            _COMPRESSION,
            _WEIGHTS,
            prior="ghs:1e-5",
            **_GROUPS,
        ),
        Coded(
            "miracle",
            "a file of a given size (--set size=...): a draw of a posterior that is trained for it",
            "Havasi, Peharz, Hernández-Lobato 2019, arXiv:1810.00440; Lin, Heinrich, Flamich, "
            "Hernández-Lobato 2023, arXiv:2307.07816",
            _WEIGHTS,
            prior="gnj",
            **_GROUPS,
        ),
        Bayes(
            "sparse-vd",
            "sparse variational dropout: a dropout rate for each weight",
            "Molchanov, Ashukha, Vetrov 2017, arXiv:1701.05369",
            _WEIGHTS,
            prior="log-uniform",
            **_TRAINED,
        ),
        Certified(
            "certified",
            "a limit of the errors on new rows that holds with 95 % certainty",
            "Seeger 2002, PAC-Bayesian generalisation error bounds; Dziugaite, Roy 2017, "
            "arXiv:1703.11008",
            {
                **_ADAM,
                "lr": 3e-3,
                "schedule": "cosine",
                "kl_warmup": 0.3,
                "kl_weight": 2.4,
                "batch_size": 256,
                "epochs": None,
                "steps": 14000,
                "checkpoint": "last",
            },
            prior="normal:learn-scale",
        ),
        Bayes(
            "vnq",
            "variational network quantisation: each weight on one of a few levels, or zero",
            "Achterhold, Koehler, Schmeink, Genewein 2018, Variational network quantization, ICLR",
            _WEIGHTS,
            prior="multi-spike",
            start=0.25,
            threshold=3.0,
        ),
        Bayes(
            "graves",
            "one normal prior for all weights of a layer, at its best; cut by signal to noise",
            "Graves 2011, Practical variational inference for neural networks",
            # A network that was trained as numbers is a message of so many bits that, with all of
            # the KL after a tenth of the run, its posterior forgets everything.
            {**_WEIGHTS, "kl_warmup": 0.5},
            prior="shared-normal",
            threshold=_SAFE,
            finish=0.15,
        ),
        Bayes(
            "variance",
            "a variance network: hidden weights of mean zero, all in their deviations",
            _VARIANCE,
            _STEPS,
            prior="log-uniform",
            guide="zero-mean",
            layers="penultimate",
            **_HIDDEN,
        ),
        Bayes(
            "variational-dropout",
            "dropout with a learnt rate (--set guide=dropout-layer, -neuron or -weight)",
            f"Kingma, Salimans, Welling 2015, arXiv:1506.02557; {_VARIANCE}",
            _STEPS,
            prior="log-uniform",
            guide="dropout-layer",
            layers="hidden",
            **_HIDDEN,
        ),
        GaussianDropout(
            "gaussian-dropout",
            "Gaussian dropout of a fixed rate (--set rate=...), for comparison",
            "Srivastava et al. 2014; Kingma, Salimans, Welling 2015, arXiv:1506.02557",
            {**_STEPS, "lr": 1e-3},
        ),
        Dropout(
            "dropout",
            "binary dropout of a fixed rate, in prediction too, for comparison",
            "Srivastava et al. 2014; Gal, Ghahramani 2016, arXiv:1506.02142",
            {**_STEPS, "lr": 1e-3},
        ),
        SoftSharing(
            "sws",
            "soft weight-sharing: weights gather around the means of a mixture",
            "Nowlan, Hinton 1992; Ullrich, Meeds, Welling 2017, arXiv:1702.04008",
            _POINT,
        ),
        DeepCompression(
            "deep-compression",
            "prune small weights and retrain, then let the others share few values",
            "Han, Mao, Dally 2016, arXiv:1510.00149",
            _POINT,
        ),
        Surgery(
            "dns",
            "dynamic network surgery: small weights go while training, and may come back",
            "Guo, Yao, Chen 2016, arXiv:1608.04493",
            _POINT,
        ),
        Bayes(
            "epr",
            "weights are whole numbers of a learnt step, and as few bits as they are worth",
            "Oktay, Balle, Singh, Shrivastava 2020, arXiv:1906.06624",
            _WHOLE,
            prior="integers",
            guide="rounded",
        ),
        Occam(
            "occam",
            "depth, widths and bits in one posterior: blocks pay for their weights",
            f"{_LDN}; {_COMPRESSION}; the cost of a block is derived in models.BayesianStack",
            {
                **_ADAM,
                "lr": 3e-3,
                "kl_warmup": 0.3,
                "batch_size": 256,
                "epochs": None,
                "steps": 20000,
            },
        ),
        EverySize(
            "every-size",
            "a network of every size from one fit; the best, or the best within a budget "
            "(--set bytes=... or milliseconds=...)",
            "Grebenkova, Bakhteev, Strijov 2023, ICAART; Lorraine, Duvenaud 2018, "
            f"arXiv:1802.09419; {_COMPRESSION}",
            {
                **_ADAM,
                "lr": 3e-3,
                "guide_lr": 0.03,
                "kl_warmup": 0.3,
                "batch_size": 256,
                "epochs": None,
                "steps": 20000,
            },
        ),
        RandomStructure(
            "structure",
            "graphs of alternatives: which primitive on which edge",
            "Bakhteev, Strijov, Bayesian selection of deep learning model structure; Maddison, "
            "Mnih, Teh 2017, arXiv:1611.00712; Liu, Simonyan, Yang 2019, arXiv:1806.09055",
            {**_POINT, "lr": 5e-3, "guide_lr": 0.02, "weight_decay": 1e-4, "epochs": 60},
        ),
        Transfer(
            "transfer",
            "a pretrained transformer, smaller: without the heads and units that cost least",
            "Le Cun, Denker, Solla 1990, Optimal brain damage; Hinton, Vinyals, Dean 2015, "
            "arXiv:1503.02531; Li, Grandvalet, Davoine 2018, arXiv:1802.01483",
            {
                "lr": 3e-4,
                "batch_size": 32,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "schedule": "onecycle",
                "epochs": 12,
                "compile": False,
            },
        ),
        Bayes(
            "bayes",
            "any prior and guide over the weights (--set prior=... --set guide=...)",
            "Graves 2011; Blundell et al. 2015, arXiv:1505.05424",
            _WEIGHTS,
            **_TRAINED,
        ),
    )
}


def find(name: str) -> Method:
    """A method by its name; an unknown one is an error that suggests the nearest."""
    if name not in METHODS:
        raise PyroccamError(unknown_name("method", name, METHODS))
    return METHODS[name]
