"""Paths, options and folders that cannot be: refused by name, before anything is read."""

import bz2
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from pyroccam.data.limits import VARIABLE, NoSize
from pyroccam.data.roots import read_bytes
from strange_files import csv, in_little_memory, mnist, npz, refused


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_paths_that_are_no_files(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    refused(tmp_path / f"folder{suffix}")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    refused(tmp_path / f"zero{suffix}")
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


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*args: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("a.csv", "a.npz"):
        (tmp_path / name).write_bytes(b"a,y\n1,2\n")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", forbid)
            refused(tmp_path / name)


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "cifar100"])
def test_nothing_is_fetched_that_may_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **o: pytest.fail("went online"))
    own = data.load("digits")
    for call in (data.load, lambda *a, **o: data.new_rows(*a, own, **o)):
        with pytest.raises(PyroccamError):
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
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root, download=False)


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbid)
    for name in ("mnist", "uci/energy", "cifar10"):
        with pytest.raises(PyroccamError):
            data.load(name, data_root=tmp_path, download=False)
    monkeypatch.undo()
    with pytest.raises(PyroccamError):
        data.load("uci/" + "x" * 5000, data_root=tmp_path)


def test_a_limit_that_is_none_is_not_the_fault_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a lot")
    for path in (csv(tmp_path, b"a,y\n1,2\n"), npz(tmp_path / "a.npz")):
        with pytest.raises(NoSize):
            data.load(path)


def test_bz2_is_not_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(bz2.compress(b"x"))
    with pytest.raises(PyroccamError):
        read_bytes(path)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spirals", {"n": 10**12}),
        ("wiggle", {"n": 10**5000}),
        ("spirals", {"n": 10**12, "arms": 10**12}),
        ("spirals", {"arms": 10**12}),
    ],
)
def test_numbers_of_toys(name: str, options: dict[str, int]) -> None:
    with in_little_memory(), pytest.raises(PyroccamError):
        data.load(name, **options)


@pytest.mark.parametrize("name", ["spirals", "wiggle"])
def test_toys_take_no_more_than_they_ask_for(name: str) -> None:
    with in_little_memory(100_000 * 150):
        data.load(name, n=100_000)
