"""What options and errors are made of is imported without what they are not."""

import subprocess
import sys

import pytest
from pyroccam import data


@pytest.mark.parametrize("name", ["errors", "limits", "ranges"])
def test_light_modules(name):
    code = f"import sys, pyroccam.data.{name}; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    there = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert f"pyroccam.data.{name}" in there
    assert not {"torch", "pyro", "pandas", "numpy"} & {*there}


def test_every_name_of_the_door():
    assert {*data.__all__} == {name for name in data.__all__ if getattr(data, name)}
    with pytest.raises(AttributeError):
        _ = data.spiral
