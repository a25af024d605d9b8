"""Strangers: data and networks that nobody tuned for, with an ordinary training beside each.

``python -m experiments.trials.strangers --again``. Defaults were chosen on the sets of the half
``tuned`` and are judged on those of the half ``kept``.
"""
