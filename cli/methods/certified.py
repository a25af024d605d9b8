"""A method whose result is a limit of the errors on new rows, beside the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...data import Count, PyroccamError
from ...inference import certify
from ...inference.certificates import ByFile, ByPosterior
from .base import Finished
from .bayes import Bayes
from .weights import FILE


@dataclass(frozen=True)
class Certified(Bayes):
    """A posterior with so much weight on its KL as its certificate needs. All rows of the run are
    counted, those of validation, too: with ``data.val_fraction=0`` all of them are learnt from.

    The weight of the KL, ``kl_weight``, may be chosen by the certificate: that holds for all
    posteriors at once, but not for priors.

    Attributes:
        choices: runs that this one is chosen from by a look at these rows (networks, priors,
            seeds), which the certificate pays for.
    """

    choices: Count = 1
    passes = 30.0  # of the training rows through networks of their own, too
    gives_way = False  # what is certain is certain of this network

    def report(self, run: Finished) -> dict[str, Any]:
        """That of all methods over weights, and what is certain by the posterior and by the file
        of the smaller network."""
        found, fit = super().report(run), run.fits[-1]
        ways: dict[str, Any] = {"posterior": (fit, ByPosterior(choices=self.choices))}
        if run.out is not None and (run.out / FILE).is_file():
            ways["file"] = run.out / FILE, ByFile()
        said, certificates = list[str](), dict[str, Any]()
        for name, (what, by) in ways.items():
            try:
                one = certify(what, fit.data, by=by, likelihood=fit.model.likelihood)
            except PyroccamError as error:  # of a regression, say
                said.append(f"By the {name} nothing is certain: {error}.")
                continue
            certificates[name] = one.to_json()
            said.append(str(one))
        learnt = {"title": "What is certain of new rows", "sentences": said, "rows": []}
        return {**found, "certificates": certificates, "learnt": [*found["learnt"], learnt]}
