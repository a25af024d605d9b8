"""What the package hands on."""

import subprocess
import sys

from pyroccam import inference


def test_the_door_is_narrow():
    assert len(inference.__all__) <= 45
    assert all(hasattr(inference, name) for name in inference.__all__)


def test_importing_warns_of_nothing():
    code = "from pyroccam import data, guides, inference, models; from pyroccam.inference import *"
    run = [sys.executable, "-W", "error::DeprecationWarning:pyroccam", "-c", code]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0


def test_what_only_some_need_is_not_imported():
    """Each takes a second or more."""
    slow = {"torchvision", "torch._dynamo", "scipy.optimize", "scipy.stats", "pandas", "arviz"}
    slow.add("matplotlib")
    code = (
        "import sys\nfrom pyroccam import data, guides, inference, models\nfrom pyroccam.inference "
        "import fit, load, narrow, path, select, shrink\nprint(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not slow & {*run.stdout.split()}
