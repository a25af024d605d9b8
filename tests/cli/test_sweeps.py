"""Many runs: which they are, who trains them, and what is left when somebody is killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import kills
import pytest
from command_line import call, metrics_of
from pyroccam.cli import PlainConsole, RunRequest
from pyroccam.cli.commands import app
from pyroccam.cli.runs import RunConfig
from pyroccam.cli.runs import execution as runs
from pyroccam.cli.sweeps import finished_cells, parse_lists, pool, run_sweep, trials_of
from pyroccam.cli.sweeps.cluster import ClusterPool, train
from pyroccam.cli.sweeps.pool import Pool, slots_of
from pyroccam.data import PyroccamError
from pyroccam.inference.storage import claimed
from pyroccam.inference.training import NonFiniteLoss, Trainer

SETS = {"max_depth": 1, "width": 4, "data.n": 120, "steps": 12, "batch_size": 54, "compile": False}
ASKED = RunRequest("ldn", "spirals", set_=SETS)
LISTS = {"lr": [0.01, 0.003], "seed": [0, 1]}
WORDS = [f"--set={name}={json.dumps(value)}" for name, value in SETS.items()]
SPARE = ["--no-compare"]


class Forked:
    """In place of a process that is started: a child, which need not import torch again."""

    stdin = None

    def __init__(self, command, *, stdout, **_):
        self.returncode, self.pid = None, os.fork()
        if self.pid:
            return
        sys.stdout = sys.stderr = open(stdout.fileno(), "w", closefd=False)  # noqa: SIM115
        code = 71
        try:
            app(command[command.index(pool.WORKER) + 1 :])
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(pool.subprocess, "Popen", Forked)
    monkeypatch.setattr(pool, "NAP", 0.0)


def sweep(folder, lists=LISTS, asked=ASKED, workers=1):
    trials = trials_of(asked, lists)
    more = {"options": SPARE, "workers": workers, "device": "cpu"}
    return run_sweep(PlainConsole(), folder, trials, **more)


def rows_of(folder):
    with open(folder / "results.csv") as file:
        return list(csv.DictReader(file))


# -- which runs -----------------------------------------------------------------------------------


def test_a_plan_is_the_product_of_its_lists():
    lists = {"method": ["ldn", "ddn"], "lr": [0.1, 0.2], "data.noise": [0.3], "seed": [5, 2]}
    trials = trials_of(ASKED, lists)
    assert len(trials) == 8
    first, last = trials[0], trials[-1]
    assert first.name == "method=ldn,lr=0.1,data.noise=0.3/seed-5"
    assert last.name == "method=ddn,lr=0.2,data.noise=0.3/seed-2"
    assert (last.request.method, last.request.set_["lr"], last.request.set_["width"]) == (
        "ddn",
        0.2,
        4,
    )
    assert last.swept == {"method": "ddn", "lr": 0.2, "data.noise": 0.3}


def test_names_of_folders_are_apart_and_plain():
    values = ["a/b", "a-b", "a b", "../x", "é", "x" * 300, "x" * 301, [8, 4], "..", None, True]
    cells = [one.cell for one in trials_of(ASKED, {"prior": values})]
    assert len({*cells}) == len(values)
    for cell in cells:
        assert len(cell) < 120
        assert cell.isascii()
        assert not {*cell} & {*'/\\ :*?"<>|'}
    (only,) = trials_of(RunRequest("gnj", "/some/place/my rows.csv"), {"seed": [3]})
    assert only.name.startswith("gnj-my-rows-")


@pytest.mark.parametrize(
    "lists",
    [{"lr": [0.1, 0.1]}, {"seed": [0, -1]}, {"seed": [True]}, {"method": [3]}, {"width": [5]},
     {"lr": list(range(400)), "seed": list(range(400))}],
)  # fmt: skip
def test_lists_that_cannot_be(lists):
    with pytest.raises(PyroccamError):
        trials_of(ASKED, lists)


def test_lists_of_the_command_line_are_json():
    found = parse_lists(["lr=0.1,1e-3", "hidden=[8],[8,4]", "prior=uniform", "a=true,null"])
    assert found == {
        "lr": [0.1, 1e-3], "hidden": [[8], [8, 4]], "prior": ["uniform"], "a": [True, None],
    }  # fmt: skip
    for bad in (["lr"], ["lr="], ["=1"], ["lr=1", "lr=2"]):
        with pytest.raises(PyroccamError):
            parse_lists(bad)


def test_what_cannot_be_run_and_folders_of_something_else_are_refused(tmp_path):
    """Before anything is run, or written."""
    with pytest.raises(PyroccamError, match=r"lr=0.01,depht=3/seed-0"):
        sweep(tmp_path / "s", {"lr": [0.01], "depht": [3]})
    assert not (tmp_path / "s").exists()
    (tmp_path / "results.csv").write_text("my own")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lr=0.01").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(PyroccamError):
            sweep(folder)
    assert (tmp_path / "results.csv").read_text() == "my own"


def test_slots_of_a_machine(monkeypatch):
    monkeypatch.setattr(pool, "_cores", lambda: 8)
    assert [one.device for one in slots_of("cpu", None, 2)] == ["cpu"] * 4
    assert [one.device for one in slots_of("auto", 3, 2)] == ["cpu"] * 3
    assert [one.device for one in slots_of("cuda:1", None, 1)] == ["cuda:1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for seen, names in ((None, "010"), ("5,3,1", "535")):
        if seen:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        slots = slots_of("auto", 3, 1)
        assert {one.device for one in slots} == {"cuda"}
        assert "".join(one.environment["CUDA_VISIBLE_DEVICES"] for one in slots) == names


# -- results --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that is finished."""
    folder = tmp_path_factory.mktemp("sweep") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.subprocess, "Popen", Forked)
        assert sweep(folder, workers=2).left == 0
    return folder


def test_every_run_is_trained_and_the_settings_are_put_together(swept):
    rows = rows_of(swept)
    assert [(row["lr"], row["seed"], row["state"]) for row in rows] == [
        (lr, seed, "done") for lr in ("0.01", "0.003") for seed in "01"
    ]  # fmt: skip
    for cell in finished_cells(swept):
        found = metrics_of(cell)
        own = [metrics_of(cell / f"seed-{seed}") for seed in (0, 1)]
        assert found["repeats"] == own
        mean = sum(one["test"]["accuracy"] for one in own) / 2
        assert found["spread"]["test"]["accuracy"]["mean"] == pytest.approx(mean)
    accuracy = metrics_of(swept / "lr=0.003" / "seed-1")["test"]["accuracy"]
    assert float(rows[3]["accuracy"]) == accuracy


def test_nothing_is_trained_twice_and_more_runs_may_come(swept, tmp_path, monkeypatch):
    monkeypatch.setattr(Pool, "_start", None)
    assert sweep(swept).left == 0
    lists = ["--sweep", "lr=0.01,0.003", "--sweep", "seed=0,1"]
    said = call("sweep", "ldn", *WORDS, *lists, "--workers", 1, "--out", swept)
    assert "4 runs, 4 of them finished before." in said
    assert "±" in said
    call("report", swept, "--out", tmp_path / "page.html")
    assert "2 runs side by side" in (tmp_path / "page.html").read_text()


def test_a_run_is_that_of_the_command_alone(swept, tmp_path):
    more = ["--set", "lr=0.003", "--seed", 1, "--threads", 1, "--out", tmp_path / "alone"]
    call("fit", "ldn", *WORDS, *SPARE, *more)
    assert kills.outcome(tmp_path / "alone") == kills.outcome(swept / "lr=0.003" / "seed-1")


# -- deaths ---------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_to_the_same_bits(swept, forked, tmp_path, monkeypatch):
    fitting, original = sys.modules["pyroccam.inference.training.fitting"], Trainer._step
    steps = tmp_path / "steps"

    def killed(trainer, rows):
        if trainer.step_number == 7 and not steps.exists():
            steps.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if steps.exists():
            with open(steps, "a") as file:
                file.write(f"{trainer.step_number} ")
        original(trainer, rows)

    class Often(Trainer):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options, checkpoint_seconds=0.0)

        _step = killed

    monkeypatch.setattr(fitting, "Trainer", Often)
    ended = sweep(tmp_path / "s", {"lr": [0.003], "seed": [1]})
    assert (ended.left, ended.failed) == (0, {})
    assert steps.read_text().split() == ["7", "8", "9", "10", "11"]
    name = "lr=0.003/seed-1"
    assert kills.outcome(tmp_path / "s" / name) == kills.outcome(swept / name)


@pytest.mark.nightly
def test_a_killed_driver_loses_nothing(forked, tmp_path, monkeypatch):
    """With processes as they are."""
    sets = {"max_depth": 2, "width": 8, "compile": False, "batch_size": 64, "epochs": 12}
    asked = RunRequest("ldn", "digits", set_=sets)
    sweep(tmp_path / "alone", {"seed": [0]}, asked)
    monkeypatch.undo()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given = [f"--set={name}={json.dumps(value)}" for name, value in sets.items()]
    words = ["sweep", "ldn", "--data", "digits", *given, "--sweep", "seed=0", *SPARE]
    command = [sys.executable, "-c", "from pyroccam.cli.main import main; main()", *words]
    command += ["--workers", "1", "--device", "cpu", "--out", str(tmp_path / "killed")]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    folder = tmp_path / "killed" / "ldn-digits" / "seed-0"
    while not (folder / "config.json").is_file():
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    assert kills.outcome(folder) == kills.outcome(tmp_path / "alone" / "ldn-digits" / "seed-0")


def test_a_run_that_another_process_has_is_waited_for(forked, tmp_path):
    (trial,) = trials_of(ASKED, {"seed": [0]})
    folder = tmp_path / trial.name
    child = os.fork()
    if not child:
        with claimed(folder):
            (tmp_path / "held").touch()
            time.sleep(60)
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with Pool(tmp_path, [trial], slots_of("cpu", 1, 1), SPARE) as own:
        try:
            assert own.look() == []
            assert (own.running, own.left) == (0, 1)
            busy = call("fit", "ldn", *SPARE, "--out", folder, code=75)
            assert "is being written by" in busy
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        while own.left:
            own.look()
            time.sleep(0.05)
    assert own.failed == {}
    assert (folder / "metrics.json").is_file()


@pytest.mark.parametrize("code", [-9, 2, 70, 75, 130, 143])
def test_what_becomes_of_a_run_by_how_its_process_ends(code, tmp_path, monkeypatch):
    class Ended:
        stdin, returncode = None, code

        def __init__(self, *_, stdout, **__):
            stdout.write(b"Error: why\nmore\n")

        def poll(self):
            return code

    monkeypatch.setattr(pool.subprocess, "Popen", Ended)
    trials = trials_of(ASKED, {"seed": [0]})
    own = Pool(tmp_path, trials, slots_of("cpu", 1, 1), [])
    for _ in range(5 * pool.HOPELESS):
        own.look()
    if code in (2, 70):
        assert own.failed == {trials[0].name: "why"}
    elif code == -9:
        assert f"killed {pool.HOPELESS} times" in own.failed[trials[0].name]
    else:
        assert (own.left, own.failed) == (1, {})


def test_a_run_that_fails_is_said_and_the_others_go_on(forked, tmp_path, monkeypatch):
    original = Trainer._step

    def breaks(trainer, rows):
        if trainer.settings.lr == 0.02:
            raise NonFiniteLoss("The loss is nan.")
        original(trainer, rows)

    monkeypatch.setattr(Trainer, "_step", breaks)
    ended = sweep(tmp_path, {"lr": [0.02, 0.01]})
    assert (ended.left, ended.failed) == (0, {"lr=0.02/seed-0": "The loss is nan."})
    assert [row["state"] for row in rows_of(tmp_path)] == ["failed", "done"]
    monkeypatch.setattr(Trainer, "_step", original)
    assert sweep(tmp_path, {"lr": [0.02, 0.01]}).failed == {}


def test_a_run_is_done_once_all_of_it_is_written(tmp_path, monkeypatch):
    """One that is killed while it draws goes on, and is no finished run."""

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "draw", killed)
    settings = {"max_depth": 1, "width": 4, "epochs": 2, "data.n": 60}
    config, rows = RunConfig.resolve(RunRequest("ldn", "spirals", set_=settings))
    options = runs.RunOptions(compare=False, progress=False)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, rows, out=tmp_path / "run", options=options)
    assert not (tmp_path / "run" / "metrics.json").exists()


# -- workers of Dask ------------------------------------------------------------------------------


def test_a_scheduler_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = call("sweep", "ldn", *WORDS, "--sweep", "seed=0", "--scheduler", "tcp://127.0.0.1:1",
                "--out", tmp_path / "s", code=2)  # fmt: skip
    assert "pyroccam[dask]" in said


class Client:
    """In place of that of Dask: its one task is in a ``state``."""

    state = "pending"

    def __init__(self, *_, **__):
        self.sent, self.open = [], True

    def submit(self, _, *given, **__):
        self.sent.append(given)
        return self

    def done(self):
        return self.state != "pending"

    @property
    def status(self):
        return self.state

    def cancel(self):
        pass

    def nthreads(self):
        return {"worker": 1}

    def close(self):
        self.open = False


def cluster(monkeypatch, folder, **own):
    """A pool over such a client, of one run."""
    made = type("Own", (Client,), own)
    dask = SimpleNamespace(Client=made, KilledWorker=MemoryError)
    monkeypatch.setitem(sys.modules, "distributed", dask)
    trials = trials_of(ASKED, {"seed": [0]})
    return ClusterPool("tcp://head:1", folder, trials, [], "cpu", None, 1)


def test_a_scheduler_without_certificates(tmp_path, monkeypatch):
    def without(*_, **__):
        raise TypeError("TLS expects a `ssl_context` argument")

    with pytest.raises(PyroccamError, match=r"tcp://head:1: TLS expects"):
        cluster(monkeypatch, tmp_path, __init__=without)


def test_a_task_that_does_not_stop_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "GRACE", 0.0)
    with cluster(monkeypatch, tmp_path) as own:
        own.look()
        monkeypatch.setattr("pyroccam.cli.sweeps.cluster.is_locked", lambda _: True)
    assert (own.left, own.client.open) == (1, False)


@pytest.mark.parametrize("error", [FileNotFoundError("no such\nfolder"), MemoryError("killed")])
def test_a_task_that_cannot_start_has_failed(error, tmp_path, monkeypatch):
    """But not one that went with its worker."""
    with cluster(monkeypatch, tmp_path, state="error", exception=lambda _: error) as own:
        own.look()
        for _ in range(pool.HOPELESS - 1):
            own.look()
            killed = isinstance(error, MemoryError)
            assert [*own.failed.values()] == ([] if killed else ["no such folder"])
            assert own.left == killed


def test_relative_paths_are_those_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with cluster(monkeypatch, Path("out")) as own:
        own.look()
        own._running.clear()
    ((words, environment, log, present),) = own.client.sent
    monkeypatch.chdir("/")
    state = SimpleNamespace(tasks={"a": SimpleNamespace(state="executing")})
    worker = SimpleNamespace(thread_state=SimpleNamespace(key="a"))
    dask = SimpleNamespace(get_worker=lambda: SimpleNamespace(state=state))
    monkeypatch.setitem(sys.modules, "distributed", dask)
    monkeypatch.setitem(sys.modules, "distributed.worker", worker)
    monkeypatch.setattr(sys, "executable", tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "python").chmod(0o700)
    assert train(words, environment, log, present) == 0
    assert Path(log).read_text().strip() == str(tmp_path)
    assert f"--out={tmp_path / 'out' / 'ldn-spirals' / 'seed-0'}" in words


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_has_the_runs_trained_to_the_same_bits(swept, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "dashboard_address": None, "threads_per_worker": 2}
    with distributed.LocalCluster(n_workers=1, **options) as cluster:
        given = ["--sweep", "lr=0.003", "--sweep", "seed=0,1", "--out", tmp_path / "s"]
        address = ["--scheduler", cluster.scheduler_address, "--device", "cpu"]
        call("sweep", "ldn", *WORDS, *SPARE, *given, *address)
        for seed in (0, 1):
            name = f"lr=0.003/seed-{seed}"
            assert kills.outcome(tmp_path / "s" / name) == kills.outcome(swept / name)
        asked = RunRequest("ldn", "digits", set_={"epochs": 3000, "compile": False})
        trials = trials_of(asked, {"seed": [0]})
        folder = tmp_path / "long" / trials[0].name
        more = ([], "cpu", None, 1)
        with ClusterPool(cluster.scheduler_address, tmp_path / "long", trials, *more) as own:
            while not (folder / "history.csv").is_file():
                assert own.look() == []
                time.sleep(0.1)
            assert pool.is_locked(folder)
        assert own.left == 1  # it was stopped, and has saved
        assert (folder / "checkpoint.pt").is_file()
        assert not pool.is_locked(folder)
