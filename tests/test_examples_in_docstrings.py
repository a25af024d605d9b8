"""The examples in docstrings are run as they stand, with torch imported."""

import doctest
import functools
import importlib
import pkgutil

import pytest
import torch
from pyroccam import guides, inference, models
from torch import nn


def modules():
    found = []
    for package in (models, guides, inference):
        names = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        found += [module.name for module in names]
    return sorted(found)


@functools.cache
def run(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, extraglobs={"torch": torch, "nn": nn}):
        runner.run(test)
    return runner.summarize(verbose=False)


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    assert run(name).failed == 0


def test_there_are_examples():
    with_examples = {name.split(".", 1)[1] for name in modules() if run(name).attempted}
    expected = {"models.learnt_depth", "models.networks.stack", "models.priors.depth"}
    assert expected | {"guides.depth", "inference.posterior.depth"} <= with_examples
