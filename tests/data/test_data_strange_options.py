"""Paths, options and folders that cannot be: refused by name, before anything is read."""

import bz2
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from pyroccam import data
from pyroccam.data.errors import TooLarge
from pyroccam.data.limits import VARIABLE, NoSize
from pyroccam.data.roots import read_bytes
from strange_files import csv, in_little_memory, mnist, npz, refused, saying


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_paths_that_are_no_files(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    refused(tmp_path / f"folder{suffix}", "is a folder; expected a file")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(tmp_path / f"pipe{suffix}", "a device or a pipe")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    refused(tmp_path / f"zero{suffix}", "a device or a pipe")
    loop = tmp_path / f"loop{suffix}"
    loop.symlink_to(loop)
    for odd in (f"\0{suffix}", f"{'x' * 5000}{suffix}", f"~nobody-has-this-name/a{suffix}", loop):
        with pytest.raises(data.DataError):
            data.load(odd)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_halves_of_characters_in_a_path(tmp_path: Path, suffix: str) -> None:
    for there in (False, True):
        path = tmp_path / f"\udcff{suffix}"
        if there:
            path.write_bytes(b"broken")
        with pytest.raises(data.DataError) as error:
            data.load(path)
        str(error.value).encode()  # can be shown


@pytest.mark.parametrize("name", [None, 3, b"x.csv", ["a.csv"], object()])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(data.DataError, match="a data set called"):
        data.load(name)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*args: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("a.csv", "a.npz"):
        (tmp_path / name).write_bytes(b"a,y\n1,2\n")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", forbid)
            refused(tmp_path / name, f"{name} cannot be read (Permission denied)")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        *[({"seed": seed}, "seed=") for seed in ("abc", True, 1.5, -1, None, [0])],
        *[({"val_fraction": v}, "val_fraction=") for v in ("x", True, False, None, 10**400, 1e999)],
        ({"test_fraction": 0}, "test_fraction=0"),
        ({"test_fraction": "0.2"}, "test_fraction='0.2'"),
        ({"seed": -(10**5000)}, "a number of thousands of digits"),
        ({"download": "no"}, "download='no'; expected true or false"),
        ({"standardise": 1}, "standardise=1; expected true or false"),
    ],
)
@pytest.mark.parametrize("name", ["there.csv", "digits", "mnist"])
def test_options_are_refused_before_anything_is_read(
    tmp_path: Path, options: dict[str, Any], word: str, name: str
) -> None:
    if name == "there.csv":
        name = str(csv(tmp_path, b"no table at all"))
    if name == "digits" and "standardise" in options:
        word = "digits has no option standardise"
    if name == "mnist" and "test_fraction" in options:
        word = "mnist has no option test_fraction"
    with saying(word):
        data.load(name, data_root=tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "options", "kind", "word"),
    [
        ("spirals", {"n": 10**12}, TooLarge, "n=1000000000000 asks for 136 TB"),
        ("wiggle", {"n": 10**5000}, TooLarge, "n=a number of thousands of digits asks for"),
        ("polynomial", {"n_train": 10**12}, TooLarge, "n_train=1000000000000"),
        ("regimes", {"n_test": 10**12}, TooLarge, "n_test=1000000000000"),
        ("spirals", {"n": 10**12, "arms": 10**12}, TooLarge, "n=1000000000000"),
        ("spirals", {"arms": 10**12}, data.DataError, "n=2000"),
        ("spirals", {"turns": "x"}, data.DataError, "turns='x'; expected a finite number"),
        ("spirals", {"noise": 10**400}, data.DataError, "noise="),
        ("wiggle", {"train_fraction": "x"}, data.DataError, "train_fraction='x'"),
    ],
)
def test_numbers_of_toys(name: str, options: dict[str, Any], kind: type, word: str) -> None:
    with in_little_memory(), saying(word, kind=kind):
        data.load(name, **options)


def test_toys_take_no_more_than_they_ask_for() -> None:
    for name, each, options in (
        ("spirals", 150, {"n": 100_000}),
        ("wiggle", 150, {"n": 100_000}),
        ("polynomial", 500, {"n_train": 50_000, "n_test": 50_000}),
        ("regimes", 500, {"n_train": 50_000, "n_test": 50_000}),
    ):
        with in_little_memory(100_000 * each):
            data.load(name, **options)


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "cifar100"])
def test_nothing_is_fetched_that_may_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **o: pytest.fail("went online"))
    own = data.load("digits")
    for call in (data.load, lambda *a, **o: data.new_rows(*a, own, **o)):
        with saying(str(tmp_path), "nothing may be downloaded", "download=True", "PYROCCAM_DATA"):
            call(name, data_root=tmp_path, download=False)
    assert not list(tmp_path.iterdir())


def test_a_download_is_no_part_of_a_source(tmp_path: Path) -> None:
    mnist(tmp_path, struct.pack(">4I", 0x803, 20, 4, 4) + bytes(320))
    for source in (
        data.load("mnist", data_root=tmp_path, download=False).source,
        data.load("spirals", download=False).source,
    ):
        assert "download" not in source


@pytest.mark.parametrize("root", ["\0", 3, "~nobody-has-this-name/x", "x" * 5000])
def test_a_data_root_that_cannot_be(root: Any) -> None:
    with pytest.raises(data.DataError, match="data_root="):
        data.load("mnist", data_root=root, download=False)


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbid)
    for name in ("mnist", "uci/energy", "wisdm-series", "wisdm-windows", "cifar10"):
        with pytest.raises(data.DataError, match=f"{name}: .*Permission denied"):
            data.load(name, data_root=tmp_path, download=False)
    monkeypatch.undo()
    with pytest.raises(data.DataError, match="uci/xxx"):
        data.load("uci/" + "x" * 5000, data_root=tmp_path)


def test_a_limit_that_is_none_is_not_the_fault_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a lot")
    for path in (csv(tmp_path, b"a,y\n1,2\n"), npz(tmp_path / "a.npz")):
        with pytest.raises(NoSize, match="'a lot' is no amount of memory"):
            data.load(path)


def test_bz2_is_not_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(bz2.compress(b"x"))
    with pytest.raises(data.DataError, match="not a whole gzip file"):
        read_bytes(path)
