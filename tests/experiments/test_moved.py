"""Commands and networks of published results are found under the names that they had."""

import importlib
import subprocess
import sys
from dataclasses import replace

import pytest
import typer
from pyroccam.experiments import MOVED, moved
from pyroccam.experiments.methods.table import find
from pyroccam.experiments.reproduce.runner import ResultFile
from pyroccam.experiments.runs.config import RunConfig
from pyroccam.experiments.runs.run import _check_same


@pytest.mark.parametrize("name", MOVED)
def test_an_old_name_hands_on_the_module(name):
    old, new = f"pyroccam.experiments.{name}", f"pyroccam.experiments.reproduce.{MOVED[name]}"
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}."):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__name__ == new


def test_an_old_command_runs():
    command = [sys.executable, "-m", "pyroccam.experiments.tables", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "is now pyroccam.experiments.reproduce.tables." in done.stderr


@pytest.mark.filterwarnings("ignore:.* is now:DeprecationWarning")
def test_a_network_is_found_under_its_old_name():
    network = find("gnj").network("pyroccam.experiments.small_resnet:small_resnet")
    assert network.__module__ == "pyroccam.experiments.reproduce.small_resnet"


def test_a_file_of_results_knows_a_network_by_its_old_name(tmp_path):
    old = "pyroccam.experiments.small_resnet:small_resnet"
    path = tmp_path / "found.json"
    ResultFile(path, config={"network": old}).write()
    found = ResultFile(path, config={"network": moved(old)})
    assert found.content["config"]["network"] == old
    with pytest.raises(typer.BadParameter, match="network was .*:small_resnet', is 'mlp'"):
        ResultFile(path, config={"network": "mlp"})


@pytest.mark.filterwarnings("ignore:.* is now:DeprecationWarning")
def test_a_run_begun_with_an_old_name_is_gone_on_with(tmp_path):
    old = "pyroccam.experiments.small_resnet:small_resnet"
    begun, now = (
        RunConfig.resolve("gnj", "digits", network=name, sets={"data.flatten": False})
        for name in (old, moved(old))
    )
    (begun, data), (now, _) = begun, now
    _check_same(begun, now, tmp_path, data)
    with pytest.raises(ValueError, match=r"other settings: network"):
        _check_same(begun, replace(now, network="perceptron"), tmp_path, data)


def test_another_name_is_unknown():
    with pytest.raises(ModuleNotFoundError, match="spiral'"):
        importlib.import_module("pyroccam.experiments.spiral")
