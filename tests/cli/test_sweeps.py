"""Many runs: which they are, who trains them, and what is left when somebody is killed."""

import csv
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import kills
import pytest
from command_line import call, metrics_of
from pyroccam.cli.console import PlainConsole
from pyroccam.cli.runs import run as runs
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.sweeps import command, driver, team, worker
from pyroccam.cli.sweeps.command import read_request, run_sweep
from pyroccam.cli.sweeps.plan import Asked, Plan, parse_lists, read_file
from pyroccam.cli.sweeps.results import finished_cells, write_results
from pyroccam.cli.sweeps.store import State, Store, Unreachable
from pyroccam.cli.sweeps.worker import HOPELESS, Worker, _order
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.distributed.launching import _variables
from pyroccam.inference.storage.lock import claimed
from pyroccam.inference.training.trainer import NonFiniteLoss, Trainer

fitting = sys.modules["pyroccam.inference.fits.fitting"]
SETS = {"max_depth": 1, "width": 4, "data.n": 120, "steps": 12, "batch_size": 54, "compile": False}
ASKED = Asked("ldn", "spirals", sets=SETS)
LISTS = {"lr": [0.01, 0.003], "seed": [0, 1]}


def plan_of(lists=LISTS, asked=ASKED):
    return Plan.of(asked, [lists], compare=False, figures=False, tensorboard=True)


def worker_of(folder, lists=LISTS, asked=ASKED):
    """A worker of a sweep that is in the database, and its store."""
    plan = plan_of(lists, asked).settle(folder)
    store = Store.in_folder(folder, plan.study)
    store.add([one.name for one in plan.trials if one.name not in store.states()])
    return Worker(folder, plan, store, "cpu"), store


def words(store):
    return {name: state.word for name, state in store.states().items()}


def rows_of(folder):
    with open(folder / "results.csv") as file:
        return list(csv.DictReader(file))


# -- which runs -----------------------------------------------------------------------------------


def test_a_plan_is_the_product_of_its_lists():
    lists = {"method": ["ldn", "ddn"], "lr": [0.1, 0.2], "data.noise": [0.3], "seed": [5, 2]}
    plan = Plan.of(ASKED, [lists])
    assert len(plan.trials) == 8
    assert plan.swept == ("method", "lr", "data.noise")
    first, last = plan.trials[0], plan.trials[-1]
    assert first.name == "method=ldn,lr=0.1,data.noise=0.3/seed-5"
    assert last.name == "method=ddn,lr=0.2,data.noise=0.3/seed-2"
    assert (last.asked.method, last.asked.sets["lr"], last.asked.sets["width"]) == ("ddn", 0.2, 4)
    assert plan.settings_of(last.cell) == {"method": "ddn", "lr": 0.2, "data.noise": 0.3}
    several = Plan.of(ASKED, [{"lr": [1.0]}, {"prior": ["uniform"], "seed": [0, 1]}])
    assert [one.name for one in several.trials] == [
        "lr=1.0/seed-0", "prior=uniform/seed-0", "prior=uniform/seed-1",
    ]  # fmt: skip


def test_names_of_folders_are_apart_and_plain():
    values = ["a/b", "a-b", "a b", "../x", "é", "x" * 300, "x" * 301, [8, 4], "[8,4]", None, True]
    plan = Plan.of(ASKED, [{"prior": values}])
    cells = [one.cell for one in plan.trials]
    # What is the same as JSON is the same setting.
    assert len(set(cells)) == len(values) - 1
    assert "prior=[8,4]" in cells
    for cell in cells:
        assert len(cell) < 120
        assert cell.isascii()
        assert not {*cell} & {*'/\\ :*?"<>|'}
    (only,) = Plan.of(Asked("gnj", "/some/place/my rows.csv"), [{"seed": [3]}]).trials
    assert only.name.startswith("gnj-my-rows-")


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"lr": []}, "expected a list of values"),
        ({"lr": 0.1}, "expected a list of values"),
        ({"lr": [0.1, 0.1]}, "has 0.1 twice"),
        ({"seed": [0, -1]}, "expected whole numbers from 0 on"),
        ({"seed": [True]}, "expected whole numbers from 0 on"),
        ({"method": [3]}, "expected a text"),
        ({"lr": list(range(400)), "seed": list(range(400))}, "more than 100,000 runs"),
    ],
)
def test_lists_that_cannot_be(lists, said):
    with pytest.raises(ValueError, match=said):
        Plan.of(ASKED, [lists])


def test_lists_of_the_command_line_are_json():
    found = parse_lists(["lr=0.1,1e-3", "hidden=[8],[8,4]", "prior=uniform", "a=true,null"])
    assert found == {
        "lr": [0.1, 1e-3], "hidden": [[8], [8, 4]], "prior": ["uniform"], "a": [True, None],
    }  # fmt: skip
    for bad in (["lr"], ["lr="], ["=1"], ["lr=1", "lr=2"]):
        with pytest.raises(ValueError, match=r"--sweep"):
            parse_lists(bad)


def test_a_file_says_what_a_command_says(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "method: ldn\ndata: digits\nset: {width: 4, lr: 1e-3}\nfigures: false\n"
        "sweep:\n  prior: [uniform, 'geometric:0.9']\n  seed: [0, 1]\n"
    )
    ours = read_request(str(path), {}, ["max_depth=2"])
    sweep = ["prior=uniform,geometric:0.9", "seed=0,1"]
    theirs = read_request(
        "ldn", {"data": "digits", "figures": False}, ["width=4", "lr=1e-3", "max_depth=2"], sweep
    )
    assert ours.plan == theirs.plan
    assert ours.plan.trials[0].asked.sets["lr"] == 1e-3
    assert ours.folder.name == "mine"
    for text, said in (
        ("method: [", "is not YAML"),
        ("- 1", r"holds \[1\], expected names"),
        ("methods: ldn", "Did you mean 'method'|Unknown name 'methods'"),
        ("sweep: 3", "sweep is 3, expected settings with a list each"),
        ("sweep: [3]", "expected settings with a list each"),
        ("figures: 1", "figures is 1, expected true or false"),
        ("method: ldn", "nothing that differs"),
        ("sweep: {seed: [1]}", "names no method"),
        ("{method: ldn, set: {lr: 1}, sweep: {lr: [1, 2]}}", "both set and swept"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_request(str(path), {})
    assert read_file.__doc__


def test_a_plan_grows_and_does_not_change(tmp_path):
    first = plan_of({"lr": [0.01], "seed": [0]}).settle(tmp_path)
    grown = plan_of({"lr": [0.01, 0.02], "seed": [0, 1]}).settle(tmp_path)
    assert grown.study == first.study
    assert len(grown.trials) == 4
    assert Plan.read(tmp_path) == grown
    other = Asked("ldn", "spirals", sets={**SETS, "width": 5})
    with pytest.raises(ValueError, match="holds a sweep in which lr=0.01/seed-0 has sets"):
        plan_of(asked=other).settle(tmp_path)
    with pytest.raises(ValueError, match="holds a sweep with swept="):
        plan_of({"prior": ["uniform"]}).settle(tmp_path)
    (tmp_path / "full" / "of").mkdir(parents=True)
    (tmp_path / "full" / "of" / "things").touch()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "results.csv").write_text("my own")
    for name in ("full", "one"):
        with pytest.raises(ValueError, match=r"holds something else than a sweep \(.*\)\.\nGive"):
            plan_of().settle(tmp_path / name)
    assert (tmp_path / "one" / "results.csv").read_text() == "my own"
    with pytest.raises(ValueError, match="lr must be"):
        plan_of({"lr": ["fast"]}).settle(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_parts_of_a_run_are_texts_and_no_settings(tmp_path):
    for name, value in (("budget", 90), ("network", 5), ("method", 3), ("data", None)):
        with pytest.raises(ValueError, match=f"{name} is {value}, expected a text"):
            Asked(**{"method": "ldn", name: value})
    for name in ("method", "data"):
        with pytest.raises(ValueError, match=f"{name} is no setting of a run"):
            read_request("ldn", {}, [f"{name}=ldn"], ["seed=0,1"])
    plan_of().settle(tmp_path / "ldn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert read_request("ldn", {}, [], ["seed=0,1"]).folder == Path("runs/sweep-ldn-spirals")
        assert read_request("ldn", {}, [], []).folder == Path("ldn")


def test_what_cannot_be_run_is_said_before_anything_is():
    wrong = plan_of({"lr": [0.01], "depht": [3]})
    with pytest.raises(ValueError, match=r"Run lr=0.01,depht=3/seed-0: Unknown setting 'depht'"):
        wrong.check()


@pytest.mark.parametrize("cell", ["../elsewhere", "..", ".", "", "a/b", "/etc", "a\0b"])
def test_a_plan_from_a_stranger_stays_in_its_folder(cell, tmp_path):
    plan_of().settle(tmp_path)
    path = tmp_path / "sweep.json"
    content = json.loads(path.read_text())
    content["trials"][0]["cell"] = cell
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is no name of a folder"):
        Plan.read(tmp_path)


def test_a_sweep_that_leads_elsewhere_is_refused(tmp_path):
    plan_of().settle(tmp_path / "sweep")
    (tmp_path / "sweep" / "lr=0.01").symlink_to(tmp_path)
    with pytest.raises(PyroccamError, match=r"lr=0\.01 is a link"):
        plan_of().settle(tmp_path / "sweep")


def test_a_process_takes_no_module_from_the_folder_that_it_is_in(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    with open(os.devnull, "wb") as log:
        process = worker.start(tmp_path, "", "cpu", 1, log, "colorsys")
    assert process.wait() == 0  # the module of Python, which does nothing
    process.stdin.close()
    assert not (tmp_path / "ran").exists()
    with _variables(2):
        asked = [sys.executable, "-c", "import sys; print(sys.flags.safe_path)"]
        assert subprocess.run(asked, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(
    "text",
    ["a: &a [1, 1]\nsweep: {seed: *a}", "sweep: " + "[" * 5000, "!!int ''", "!!timestamp x", ""],
)
def test_files_that_grow_or_are_no_settings_are_refused(text, tmp_path):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match="a.yaml"):
        read_file(tmp_path / "a.yaml")


def test_a_file_is_a_file_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(PyroccamError, match="a pipe"):
        read_file(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text(f"sweep: {{seed: {[*range(400_000)]}}}")
    with pytest.raises(PyroccamError, match="of memory"):
        read_file(tmp_path / "b.yaml")


def test_many_seeds_are_counted_in_no_time():
    begun = time.process_time()
    assert len(plan_of({"seed": [*range(20_000)]}).trials) == 20_000
    for lists in ({"seed": [*range(10**6)]}, {"lr": [0.1] * 1000, "seed": [*range(1000)]}):
        with pytest.raises(ValueError, match="more than 100,000 runs"):
            plan_of(lists)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("line", [0, -1])
@pytest.mark.parametrize("damage", [b"{}", b"[1]", b"\0", b'{"op_code": 4, "user_attrs": 3}'])
def test_damaged_states_are_said(line, damage, tmp_path):
    plan = plan_of().settle(tmp_path)
    Store.in_folder(tmp_path, plan.study).add(["a", "b"])
    path = tmp_path / "states.log"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = damage + b"\n"
    path.write_bytes(b"".join([*lines, lines[0]]))
    with pytest.raises(Unreachable, match=r"states\.log is no journal"):
        Store.in_folder(tmp_path, plan.study)


# -- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite:///{}", "journal:{}"])
def test_states_are_the_same_for_all_who_look(kind, tmp_path):
    address = kind.format(tmp_path / "states")
    mine, yours = Store(address, "s"), Store(address, "s")
    mine.add(["a", "b", "c", "d"])
    waiting = yours.states()
    yours.take(waiting["a"], [0], "here:1")
    yours.take(waiting["b"], [0], "here:1")
    yours.take(waiting["c"], [0], "here:1")
    assert words(mine) == {"a": "running", "b": "running", "c": "running", "d": "waiting"}
    assert mine.states()["a"].worker == "here:1"
    running = mine.states()
    mine.take(running["a"], [0, 7], "there:2")  # whoever had it is gone
    mine.finish(running["a"], 0.5)
    mine.put_back(running["b"], [])
    mine.fail(running["c"], "why")
    assert words(yours) == {"a": "done", "b": "waiting", "c": "failed", "d": "waiting"}
    assert yours.states()["a"].attempts == (0, 7)
    assert yours.states()["c"].error == "why"
    assert yours.look(waiting["a"]).finished
    mine.add(["c"])  # once more
    assert words(yours)["c"] == "waiting"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://me:secret@127.0.0.1:9/runs", "127.0.0.1, port 9"),
        ("journal:/no/such/place/log", "/no/such/place is no folder"),
        ("sqlite:////no/such/place/file.db", "cannot be used"),
        ("nonsense://x", "no such kind of database|is no address"),
        ("nonsense", "is no address of a database"),
    ],
)
def test_an_address_that_nobody_answers_is_said_at_once(address, said, tmp_path):
    request = ["spirals", "--sweep", "seed=0,1", "--storage", address, "--out", tmp_path / "s"]
    began = time.monotonic()
    found = call("sweep", "ldn", "--data", *request, code=2)
    assert time.monotonic() - began < 10
    with pytest.raises((Unreachable, ValueError), match=said):
        Store(address, "s")
    assert "secret" not in found
    assert not (tmp_path / "s").exists()


# -- workers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that one worker has trained."""
    folder = tmp_path_factory.mktemp("sweep") / "all"
    worker, store = worker_of(folder)
    worker.work()
    write_results(folder, worker.plan, store.states())
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
        assert [*cell.glob("seed-*/tensorboard/events*")]
    accuracy = metrics_of(swept / "lr=0.003" / "seed-1")["test"]["accuracy"]
    assert float(rows[3]["accuracy"]) == accuracy


def test_the_report_of_a_sweep_has_its_settings_side_by_side(swept, tmp_path):
    call("report", swept, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "2 runs side by side" in page
    assert "lr=0.003" in page


def test_nothing_is_trained_twice(swept, monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(Trainer, "_step", never)
    monkeypatch.setattr(runs, "run", never)
    worker, store = worker_of(swept)
    worker.work()
    # Nor where the database is lost: a run that has its numbers is done.
    (swept / "states.log").unlink()
    worker, store = worker_of(swept)
    worker.work()
    assert set(words(store).values()) == {"done"}


def test_a_run_is_that_of_the_command_alone(swept, tmp_path):
    sets = [word for k, v in SETS.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    call("fit", "ldn", *sets, "--set", "lr=0.003", "--seed", 1, "--no-compare",
         "--threads", 1, "--out", tmp_path / "alone")  # fmt: skip
    alone, ours = (metrics_of(f) for f in (tmp_path / "alone", swept / "lr=0.003" / "seed-1"))
    assert alone["test"] == ours["test"]
    assert alone["val_nll"] == ours["val_nll"]


def killed_worker(folder, step, monkeypatch):
    """A worker in a process of its own that is killed at a step of its second run."""
    worker, store = worker_of(folder, {"lr": [0.01, 0.003]})
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        return worker_of(folder, {"lr": [0.01, 0.003]})
    left, original = [12 + step], Trainer._step

    def counted(trainer, rows):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        original(trainer, rows)

    Trainer._step = counted
    fitting.Trainer = functools.partial(Trainer, checkpoint_seconds=0.0)
    store = Store(store.address, worker.plan.study)  # of this process
    Worker(folder, worker.plan, store, "cpu").work()
    os._exit(1)


def test_the_run_of_a_killed_worker_goes_on_to_the_same_bits(swept, tmp_path, monkeypatch):
    worker, store = killed_worker(tmp_path, 7, monkeypatch)
    assert words(store) == {"lr=0.01/seed-0": "done", "lr=0.003/seed-0": "running"}
    steps, original = [], Trainer._step

    def counted(trainer, rows):
        steps.append(trainer.step_number)
        original(trainer, rows)

    monkeypatch.setattr(Trainer, "_step", counted)
    worker.work()
    assert steps == [7, 8, 9, 10, 11]
    again = store.states()["lr=0.003/seed-0"]
    assert (again.word, len(again.attempts)) == ("done", 2)
    for name in words(store):
        assert kills.outcome(tmp_path / name) == kills.outcome(swept / name)


def test_a_run_that_another_worker_has_is_left_to_it(tmp_path):
    worker, store = worker_of(tmp_path, {"seed": [0, 1]})
    state = store.states()["ldn-spirals/seed-0"]
    trial = worker.plan.trials[0]
    child = os.fork()
    if not child:
        with claimed(tmp_path / trial.name):
            (tmp_path / "held").touch()
            time.sleep(60)
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    try:
        assert not worker._try(state, trial)
        assert store.look(state).word == "waiting"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert worker._try(state, trial)
    assert store.look(state).word == "done"


def test_a_run_that_kills_its_workers_is_given_up(tmp_path):
    worker, store = worker_of(tmp_path, {"seed": [0]})
    (state,) = store.states().values()
    store.take(state, [0] * HOPELESS, "elsewhere:1")
    worker.work()
    (state,) = store.states().values()
    assert state.word == "failed"
    assert f"killed {HOPELESS} times without getting further" in state.error


def test_a_run_that_fails_is_said_and_the_others_go_on(tmp_path, monkeypatch):
    worker, store = worker_of(tmp_path, {"lr": [0.02, 0.01]})
    original = Trainer._step

    def breaks(trainer, rows):
        if trainer.settings.lr == 0.02:
            raise NonFiniteLoss("The loss is nan.")
        original(trainer, rows)

    monkeypatch.setattr(Trainer, "_step", breaks)
    worker.work()
    assert words(store) == {"lr=0.02/seed-0": "failed", "lr=0.01/seed-0": "done"}
    assert store.states()["lr=0.02/seed-0"].error == "The loss is nan."
    lists = ["lr=0.02,0.01"]
    sets = [f"{k}={json.dumps(v)}" for k, v in SETS.items()]
    given = {"data": "spirals", "compare": False, "figures": False, "tensorboard": True}
    request = read_request("ldn", given, sets, lists, tmp_path)
    ended = run_sweep(PlainConsole(), request, workers=1)
    assert ended.left == 0
    assert list(ended.failed) == ["lr=0.02/seed-0"]
    rows = rows_of(tmp_path)
    assert [row["state"] for row in rows] == ["failed", "done"]
    driver._enter(tmp_path, worker.plan, store, again=True)
    assert words(store)["lr=0.02/seed-0"] == "waiting"


def test_a_stopped_run_waits_and_is_not_to_blame(tmp_path, monkeypatch):
    worker, store = worker_of(tmp_path, {"seed": [0]})
    original = Trainer._step

    def stopped(trainer, rows):
        if trainer.step_number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        original(trainer, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            worker.work()
    (state,) = store.states().values()
    assert (state.word, state.attempts) == ("waiting", ())
    worker.work()
    assert set(words(store).values()) == {"done"}


def test_runs_whose_workers_died_come_last(tmp_path):
    _, store = worker_of(tmp_path, {"seed": [0, 1, 2]})
    first, second, _ = store.states().values()
    store.take(first, [0], "elsewhere:1")
    store.put_back(first, [0])
    store.take(second, [], "elsewhere:2")
    order = [state.name[-1] for state in _order([*store.states().values()])]
    assert set(order[:2]) == {"2", "0"}  # as many as there are workers are tried in any order
    assert order[2] == "1"
    waiting = [State(k, str(k), "waiting", attempts=(0,) * (5 - k)) for k in range(5)]
    assert [state.name for state in _order(waiting)] == ["4", "3", "2", "1", "0"]


# -- processes ------------------------------------------------------------------------------------


def sleeper(*_, code="import time; time.sleep(60)", **__):
    """In place of a worker: a process that ends with its standard input, or sleeps."""
    return team.subprocess.Popen([sys.executable, "-c", code], stdin=team.subprocess.PIPE)


def test_others_stand_in_for_killed_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(team, "start", sleeper)
    with team.Team(tmp_path, "nowhere", ["cpu", "cpu"], 1) as crew:
        before = [one.pid for one in crew.members]
        os.kill(before[1], signal.SIGKILL)
        crew.members[1].wait()
        assert crew.ended
        crew.look(0)
        after = [one.pid for one in crew.members]
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert not crew.ended
    assert all(one.poll() is not None for one in crew.members)


def test_workers_that_end_by_themselves_are_not_started_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(team, "start", functools.partial(sleeper, code="raise SystemExit(3)"))
    with team.Team(tmp_path, "nowhere", ["cpu"], 1) as crew:
        crew.logs[0].write_text("what it said\n")
        crew.members[0].wait()
        with pytest.raises(team.WorkersFail, match=r"\(exit code 3\): what it said"):
            crew.look(0)
    monkeypatch.setattr(team, "DEATHS", 2)
    monkeypatch.setattr(
        team, "start", functools.partial(sleeper, code="import os; os.kill(os.getpid(), 9)")
    )
    with team.Team(tmp_path, "nowhere", ["cpu"], 1) as crew:
        crew.logs[0].touch()
        with pytest.raises(team.WorkersFail, match="signal 9, 3 in a row"):  # noqa: PT012
            for _ in range(3):
                crew.members[0].wait()
                crew.look(0)


def test_a_sweep_from_the_command_line(tmp_path):
    sets = [word for k, v in SETS.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    words = ["sweep", "ldn", *sets, "--sweep", "seed=0,1", "--no-compare", "--no-figures"]
    said = call(*words, "--workers", 1, "--out", tmp_path / "s")
    assert "2 runs." in said
    assert "ldn-spirals/seed-1: accuracy" in said
    assert "±" in said
    said = call("sweep", tmp_path / "s", "--workers", 1)
    assert "2 runs, 2 of them finished before." in said
    assert len(list((tmp_path / "s" / "workers").iterdir())) == 1
    said = call("sweep", tmp_path / "s", "--set", "lr=3", code=2)
    assert "whose settings are known" in said
    said = call("sweep", "ldn", "--sweep", "seed=0,0", "--out", tmp_path / "t", code=2)
    assert "has 0 twice" in said


def test_devices_of_workers(monkeypatch):
    monkeypatch.setattr(driver, "cores", lambda: 8)
    assert driver.devices_of("cpu", None, 2) == ["cpu"] * 4
    assert driver.devices_of("cpu", 3, 2) == ["cpu"] * 3
    assert driver.devices_of("cuda:1", None, 1) == ["cuda:1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert driver.devices_of("auto", None, 1) == ["cuda:0", "cuda:1"]
    assert driver.devices_of("auto", 3, 1) == ["cuda:0", "cuda:1", "cuda:0"]


def test_repeats_go_over_workers_as_a_sweep_over_seeds(tmp_path, monkeypatch):
    sets = [word for k, v in SETS.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    asked = ["fit", "ldn", *sets, "--repeats", 2, "--seed", 3, "--no-compare", "--out"]
    seen = []

    def swept(_, request, **how):
        seen.append((request, how))
        return driver.Ended(0, {})

    monkeypatch.setattr(command, "run_sweep", swept)
    call(*asked, tmp_path / "s", "--workers", 2, "--device", "cpu", "--budget", "40steps")
    ((request, how),) = seen
    assert how == {"workers": 2, "threads": 1, "device": "cpu"}
    assert request.folder == tmp_path / "s"
    assert [trial.name for trial in request.plan.trials] == ["ldn-spirals/seed-3",
                                                             "ldn-spirals/seed-4"]  # fmt: skip
    for trial in request.plan.trials:
        assert dict(trial.asked.sets) == SETS
        assert trial.asked.budget == "40steps"
    assert not request.plan.compare
    request.plan.settle(request.folder)
    assert "Go on with them with --resume" in call(*asked, tmp_path / "s", "--workers", 2, code=2)
    call(*asked, tmp_path / "s", "--workers", 2, "--budget", "40steps", "--resume")
    assert len(seen) == 2
    both = call(*asked, tmp_path / "t", "--workers", 2, "--processes", 2, code=2)
    assert "Give one of them." in both
    alone = call("fit", "ldn", "--workers", 2, "--out", tmp_path / "t", code=2)
    assert "there is one run" in alone
    assert not (tmp_path / "t").exists()


def test_a_run_is_done_once_all_of_it_is_written(tmp_path, monkeypatch):
    """One that is killed while it draws goes on, and is no finished run."""

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "draw", killed)
    settings = {"max_depth": 1, "width": 4, "epochs": 2, "data.n": 60}
    config, rows = RunConfig.resolve("ldn", "spirals", sets=settings)
    options = runs.RunOptions(compare=False, progress=False)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, rows, out=tmp_path / "run", options=options)
    assert not (tmp_path / "run" / "metrics.json").exists()
