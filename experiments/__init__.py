"""Published results and trials, run by ``python -m experiments.NAME`` from a checkout."""
