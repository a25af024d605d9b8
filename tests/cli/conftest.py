"""Finished runs that many tests read, and none changes."""

import folders
import pytest
from command_line import SMALL, WHOLE, call, sets
from pyroccam.cli.methods import METHODS

DEPTH = ["--data", "spirals", *sets("max_depth=4 width=8 data.n=400 steps=40")]
STACK = [
    "--data", "digits",
    *sets("width=10 max_depth=3 epochs=10 number_bits=2 threshold=valley"),
]  # fmt: skip
PATH = [
    "--no-compare",
    "--data",
    "digits",
    "--epochs",
    "6",
    *sets("lr=0.01 batch_size=64 points=3 scale=null"),
]
EVERY_SIZE = [*PATH, *sets("hidden=[12] low=0.05 high=5")]
GRAPH = ["--data", "digits", "--epochs", "2", *sets("width=8 random=2")]

OF = {
    "ldn": DEPTH,
    "gnj": [*SMALL, *WHOLE],
    "occam": STACK,
    "every-size": EVERY_SIZE,
    "structure": [*GRAPH, *sets("structure=gumbel-softmax:1:0.3")],
    "miracle": [*SMALL, *sets("size=300 coding=1 between=0 threshold=valley")],
    "epr": [
        "--no-compare", "--data", "digits",
        *sets("hidden=[20] steps=600 kl_weight=0.1 prior=integers:0.3 lr=0.01"),
    ],
    "deep-compression": [
        "--no-compare", "--data", "digits", "--epochs", "10",
        *sets("hidden=[12] lr=0.02 retrain=3"),
        *sets("retrain_lr=0.01 keep=[0.25,0.5] bits=[3,2] share=2"),
    ],
    "dns": [*SMALL, "--no-compare", *sets("surgery=6 c=0.5")],
    "sws": [
        *SMALL, "--no-compare",
        *sets("components=8 spread=0.6 scale=0.25 zero_precision=[5000,2] retrain=2"),
        *sets("zero=0.7 share=30 share_lr=0.005 tau=0.02 batch_size=64"),
    ],
    "dropout": SMALL,
}  # fmt: skip
MADE = ("ldn", "occam", "every-size", "structure")  # their figures


def command_of(name):
    """What follows ``pyroccam fit`` for the run of a method."""
    usual = SMALL + sets("threshold=valley")
    if METHODS[name].over == "stack" and name not in OF:
        usual = [*DEPTH, "--no-compare"]
    return [name, *OF.get(name, usual)]


def transfer_in(place):
    """The same of a transformer, whose folder has to be made."""
    library = pytest.importorskip("transformers")
    folder = folders.with_tokenizer(library, place / "encoder")
    folders.configured(library, "Bert", num_hidden_layers=2).save_pretrained(str(folder))
    rows = folders.table(place / "texts.csv", 160)
    own = sets("epochs=8 lr=0.002 guide_lr=0.1 keep=0.5 tolerance=10")
    return ["transfer", "--data", rows, "--network", f"hf:{folder}", *own]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The folder of a method's run and what it said, by name. Figures of one are drawn."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def run(name):
        if name not in made:
            folder = place / name
            command = transfer_in(place) if name == "transfer" else command_of(name)
            how = {"made": name in MADE, "rendered": name == "gnj"}
            more = ["--figures"] * any(how.values())
            made[name] = folder, call("fit", *command, *more, "--out", folder, **how)
        return made[name]

    run.command = command_of
    return run


@pytest.fixture(scope="session")
def repeated(tmp_path_factory):
    """Two seeds of learnt depth on rows of their own, and what they said."""
    folder = tmp_path_factory.mktemp("repeated") / "deep"
    more = ["--repeats", 2, "--no-compare", "--figures", *sets("steps=12 max_depth=2 width=5")]
    return folder, call("fit", "ldn", *more, "--out", folder)


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory):
    """Two seeds of random weights on the same rows, and what they said."""
    folder = tmp_path_factory.mktemp("ensemble") / "two"
    more = sets("data.seed=5 hidden=[6] start=0 finish=0 narrow=[]")
    more += ["--data", "digits", "--epochs", 3, "--repeats", 2, "--no-compare"]
    return folder, call("fit", "gnj", *more, "--out", folder)
