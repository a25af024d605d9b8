"""What the package hands on, and what it handed on before it had rooms."""

import subprocess
import sys

import pytest
from pyroccam import inference

# __all__ of the first layout.
BEFORE = [
    "Against", "Busy", "CheckpointError", "CompileFallback", "Compressed", "Curvature",
    "DrawnNetwork", "EnsembleNetwork", "EnumMeanFieldELBO", "Evidence", "Fit", "Interrupted",
    "InverseGamma", "Level", "NonFiniteLoss", "PosteriorDraws", "PriorDraws", "Repeats",
    "Selection", "Settings", "Structure", "TrainingStep", "Uncertainty",
    "bound", "bytes_by_part", "choose_depth", "choose_structure", "compress",
    "cutting", "diagnostics", "discretise", "draw_posterior", "draw_prior",
    "evidence", "exact_depth_posterior", "figures", "fit", "fit_repeats", "input_use", "load",
    "mean_costs", "metrics", "narrow", "out_of_domain", "packing", "prune",
    "prune_weights", "pruned_weights", "random_structures", "remains", "rounded_mean", "save",
    "scale_intervals", "seconds_per_batch", "select", "share_weights", "side_by_side",
    "splice_weights", "swap", "total_variation", "uncertainty", "without_means",
]  # fmt: skip


def test_the_door_is_narrow():
    assert len(inference.__all__) <= 37
    assert all(hasattr(inference, name) for name in inference.__all__)


@pytest.mark.parametrize("name", BEFORE)
def test_a_name_of_the_first_layout_still_leads_there(name):
    if name in inference.__all__:
        assert getattr(inference, name)
        return
    with pytest.warns(
        DeprecationWarning, match=rf"inference\.{name} moved, and will go: use"
    ) as said:
        found = getattr(inference, name)
    place = str(said[0].message).rpartition("use inference.")[2].rstrip(".")
    room, _, own = place.partition(".")
    assert room in inference.__all__ or room == "figures"
    assert getattr(getattr(inference, room), own) is found
    assert said[0].filename == __file__


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'prunes'"):
        inference.prunes  # noqa: B018


def test_importing_warns_of_nothing():
    code = "from pyroccam import data, guides, inference, models; from pyroccam.inference import *"
    run = [sys.executable, "-W", "error::DeprecationWarning:pyroccam", "-c", code]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0


def test_what_only_some_need_is_not_imported():
    """Each takes a second or more."""
    slow = {"torchvision", "torch._dynamo", "scipy.optimize", "scipy.stats", "pandas", "arviz"}
    code = "import sys\nfrom pyroccam import data, guides, inference, models\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not slow & {*run.stdout.split()}
