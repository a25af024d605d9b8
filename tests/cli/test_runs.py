"""What a run ends with: its numbers, its networks, its files; and how it is opened again."""

import json
import math

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import call, metrics_of, sets, without_times
from pages import check
from pyroccam import guides, inference, models
from pyroccam.cli.methods import METHODS, weights
from pyroccam.cli.pages import report
from pyroccam.cli.runs import RunConfig, load_fit
from pyroccam.inference import diagnostics
from pyroccam.inference.files import read
from pyroccam.inference.training import Trainer
from safetensors.torch import load_file

SMALLER = ("draw", "compressed", "pruned", "discretised")  # parts of metrics.json, the first counts
FIGURES = {
    "ldn": "depth functions reliability training",
    "gnj": "irrelevance training reliability sparsity scales bits",
    "occam": "depth trade bytes training sparsity",
    "every-size": "path trade training sparsity",
    "structure": "structure-2 training reliability",
}
OF_CODE = ("ghs", "graves", "bayes", "certified")  # whose prior and posterior send a message


def flat(found, prefix=""):
    """``{"a/b": number}`` of nested numbers."""
    if not isinstance(found, dict):
        return {prefix: found}
    return {k: v for name, part in found.items() for k, v in flat(part, f"{prefix}/{name}").items()}


def matrices(net):
    return [p.detach() for _, p in sorted(net.named_parameters()) if p.dim() == 2]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_opened_scored_diagnosed_and_shown(name, runs):
    """What is rebuilt from its folder is what was trained, and its small network is its file."""
    folder, said = runs(name)
    found = metrics_of(folder)
    assert found["method"] == name
    drawn = {path.stem for path in folder.glob("figures/*")}
    assert drawn >= {*FIGURES.get(name, "").split()}
    if name not in FIGURES:  # that of the structure
        assert drawn <= {"depth", "sparsity"}
    for one in found.get("learnt", []):
        assert all(" ".join(sentence.split()) in said for sentence in one["sentences"])
    fit = load_fit(folder, "cpu")
    method = RunConfig.read(folder).chosen
    tests = flat(found["test"])
    assert flat(method.on_test(fit)) == pytest.approx(tests, rel=1e-4, abs=1e-6)
    assert all(0 <= v <= 1 for k, v in tests.items() if k.endswith("accuracy"))
    part = next((found[key] for key in SMALLER if key in found), None)
    assert (part is None) == (name in ("ddn", "variance"))  # of which nothing is cut
    told = call("evaluate", folder)
    if part is not None:
        net = method.smaller(fit, folder)
        assert not any("pyro" in type(m).__module__.split(".")[:1] for m in net.modules())
        assert (
            part["parameters"] <= part["parameters_before"] if part is not found.get("draw") else 1
        )
        assert f"{part['test']['nll']:.4f}" in told or name in ("structure", "miracle")
    if "file_bytes" in found.get("structure", {}):
        assert found["structure"]["file_bytes"] == (folder / "compressed.pocc").stat().st_size
        assert found["structure"]["weights"] > 0
    assert ("message" in found) == (name in OF_CODE)
    check(report([folder]))
    judged = diagnostics.diagnose(fit, draws=100, rows=60)
    assert (judged[0].name, judged[-1].name) == ("ELBO", "held-out rows")
    assert judged[-1].verdict != "refused"
    for one in judged:
        json.dumps(one.to_json(), allow_nan=False)
    tree = fit.to_arviz(3, rows=20)
    groups = {*(tree.children if hasattr(tree, "children") else tree.groups())}
    assert {"log_likelihood", "posterior_predictive", "observed_data"} <= groups
    if name in ("gnj", "ghs", "ldn", "structure"):  # what has scales, depth or structure
        assert "posterior" in groups
        assert {f.name: f.verdict for f in judged}["prior sensitivity"] != "refused"


@pytest.mark.parametrize("name", ["ldn", "gnj", "occam", "every-size", "structure"])
def test_a_finished_run_is_kept_and_resumed_at_once(name, runs, monkeypatch):
    folder, _ = runs(name)
    before = {path: path.read_bytes() for path in folder.glob("*.pocc")}
    found = metrics_of(folder)
    assert "holds a run already" in call("fit", *runs.command(name), "--out", folder, code=2)
    if name in ("ldn", "every-size", "structure"):  # of the others what is left is trained again
        monkeypatch.setattr(Trainer, "_step", None)
    again = ("fit", *runs.command(name), "--out", folder, "--resume")
    call(*again)
    assert without_times(metrics_of(folder)) == without_times(found)
    assert {path: path.read_bytes() for path in folder.glob("*.pocc")} == before
    assert "settings.seed was 0, is 3" in call(*again, "--seed", 3, code=2)


def test_depth(runs, tmp_path):
    folder, said = runs("ldn")
    found = metrics_of(folder)
    structure = found["structure"]
    assert len(structure["depth_probs"]) == len(structure["exact_depth_probs"]) == 5
    assert sum(structure["depth_probs"]) == pytest.approx(1)
    fit = load_fit(folder, "cpu")
    assert fit.structure.depth_probs.tolist() == pytest.approx(structure["depth_probs"])
    d = structure["depth_chosen"]
    assert f"Depth {d} of 4 was chosen" in said
    for words in (f"q(d={d}) = ", "E[d] = ", "all depths", "plain network"):
        assert words in said  # brackets are not eaten as markup
    for key in ("pruned", "single_exit"):
        net = inference.load(folder / key)
        assert found[key]["seconds_per_batch"] > 0
        x, y = fit.data.x_test, fit.data.y_test
        accuracy = float((net(x).argmax(-1) == y).double().mean())
        assert accuracy == pytest.approx(found[key]["test"]["accuracy"])
    assert {"accuracy", "nll", "brier", "ece"} <= {*found["ddn"]["test"]}
    said = call("prune", folder, "--form", "single", "--depth", 2, "--out", tmp_path / "cut")
    assert "Cut at depth 2 (single)" in said
    assert inference.load(tmp_path / "cut")(torch.zeros(3, 2)).shape == (3, 2)


def test_weights(runs):
    """Each number that is said of the file, from what is read of it."""
    folder, said = runs("gnj")
    found, fit, net = metrics_of(folder), load_fit(folder, "cpu"), read(folder / "compressed.pocc")
    structure, ways, data = found["structure"], found["test"], fit.data
    left = matrices(net)
    assert sum(int(p.count_nonzero()) for p in left) == structure["weights"]
    assert "-".join(str(p.shape[1]) for p in left) == structure["architecture"]
    # A weight and its place, and a pointer for each output.
    stored = 2 * structure["weights"] + sum(p.shape[0] for p in left)
    assert structure["rates"]["pruning"] == pytest.approx((64 * 12 + 12 * 10) / stored)
    assert f"{structure['file_bytes']:,} bytes" in said
    assert list(ways) == ["stochastic", "deterministic", "ensemble"]
    assert ways["ensemble"]["nll"] < ways["stochastic"]["nll"]  # Jensen's inequality
    assert min(one["accuracy"] for one in ways.values()) > 0.5  # of ten classes
    sent = found["sent"]
    assert sent["uniform"] == pytest.approx(data.N * math.log2(10))
    assert sent["file"] == 8 * structure["file_bytes"]
    with torch.no_grad():
        outputs = net(data.x_train)
    nats = torch.nn.functional.cross_entropy(outputs, data.targets, reduction="sum")
    assert sent["left"] == pytest.approx(float(nats) / math.log(2), rel=1e-4)
    # Not the length of the whole run, of which numbers had a part: a trend is of the same epochs.
    assert fit.settings.epochs_for(data.N) == found["epochs"] < 6


def test_a_message_is_as_long_as_it_is_said_to_be(runs):
    folder, said = runs("graves")
    found, fit = metrics_of(folder)["message"], load_fit(folder, "cpu")
    again = inference.description_length(fit, passes=weights.MESSAGE_PASSES)
    assert found == pytest.approx(again.to_json(), rel=1e-5)
    assert found["total"] == found["weights"] + found["targets"] == found["rows"] * found["per_row"]
    assert f"the message of weights and targets has {found['total']:,.0f} bits" in said


def test_a_draw_of_a_size(runs):
    folder, _ = runs("miracle")
    found, path = metrics_of(folder)["draw"], folder / "draw.poccd"
    assert 295 <= found["file_bytes"] == path.stat().st_size <= 300
    fit = load_fit(folder, "cpu")
    net = METHODS["miracle"].smaller(fit, folder)
    assert weights.evaluate(fit, net) == pytest.approx(found["test"])
    assert found["sent"]["file"] == 8 * path.stat().st_size
    assert torch.equal(net(fit.data.x_test), inference.load(path)(fit.data.x_test))


def test_whole_numbers_of_a_step(runs):
    """Beside biases, whole numbers of 1/32, the file is the network that was trained and scored."""
    folder, _ = runs("epr")
    found, fit, net = metrics_of(folder), load_fit(folder), read(folder / "compressed.pocc")
    mean, after = found["test"]["deterministic"], found["compressed"]["test"]
    assert after["accuracy"] == mean["accuracy"] > 0.85
    assert after["nll"] == pytest.approx(mean["nll"], rel=1e-5)
    assert found["structure"]["file_bytes"] < 1500
    named = {name.split(".")[0]: p.detach() for name, p in net.named_parameters() if p.dim() == 2}
    for layer, step in fit.guide.steps.items():
        weight = named[layer]
        whole = weight.double() / torch.tensor(step).double()
        assert (whole - whole.round()).abs().max() < 1e-4
        assert 2 < weight.unique().numel() < 100


def test_shared_weights(runs):
    folder, _ = runs("sws")
    found, fit = metrics_of(folder), load_fit(folder)
    assert [stage["name"] for stage in found["stages"]] == ["sws", "share", "retrain"]
    structure = found["structure"]
    assert 1 < structure["nonzero_percent"] < 80
    assert all(1 <= bits <= 3 for bits in structure["bits"].values())  # of seven values
    assert isinstance(fit.guide.by, guides.Book)
    assert inference.shrink(fit).report.nonzero == structure["weights"]


def test_the_plain_network_is_handed_back_where_it_is_better(runs, tmp_path):
    """At a rate at which the method learns nothing; the file is the other network's, and is not
    overwritten by what was refused."""
    out = tmp_path / "run"
    short = sets("hidden=[8] steps=300 lr=1e-5")
    said = call("fit", "epr", "--data", "digits", *short, "--out", out)
    found = metrics_of(out)
    assert found["refused"]["test"]["nll"] > found["numbers"]["test"]["nll"] + 0.05
    assert "Handed back is the plain network" in said
    before = (out / "compressed.pocc").read_bytes()
    x, y = load_fit(out).data.split("test")
    accuracy = float((read(out / "compressed.pocc")(x).argmax(-1) == y).double().mean())
    assert accuracy == pytest.approx(found["compressed"]["test"]["accuracy"])
    assert accuracy == pytest.approx(found["numbers"]["test"]["accuracy"], abs=0.01)
    call("compress", out)
    assert (out / "compressed.pocc").read_bytes() == before


def test_rounds_of_pruning_and_shared_values(runs, tmp_path):
    folder, _ = runs("deep-compression")
    found, net, fit = metrics_of(folder), read(folder / "compressed.pocc"), load_fit(folder)
    names = ["deep-compression", "prune-1", "prune-2", "share"]
    assert [one["name"] for one in found["stages"]] == names
    assert found["epochs"] == 10 + 3 + 3 + 2
    assert found["compressed"]["test"]["accuracy"] > 0.6
    assert found["structure"]["weights"] <= 192 + 60  # those that fed what died are gone too
    assert list(found["structure"]["bits"].values()) == [3, 2]
    for weight, most in zip(matrices(net), (8, 4), strict=True):
        assert 1 < len(weight[weight != 0].unique()) <= most
    count = {n: int(fit.guide.posterior(f"{n}.weight").v.count_nonzero()) for n in ("1", "3")}
    assert count == {"1": 192, "3": 60}  # a quarter of 64 x 12, half of 12 x 10
    kept = load_file(folder / "prune-1/model.safetensors")["guide.factors.1/weight.kept"]
    assert int(kept.sum()) == round(0.5 * 768)  # the rounds go down in equal ratios
    call("compress", folder, "--out", tmp_path / "again.pocc")
    assert all(map(torch.equal, matrices(read(tmp_path / "again.pocc")), matrices(net)))
    assert "of a point estimate" in call("compress", folder, "--cut", "valley", code=2)


def test_surgery_switches_weights_and_then_leaves_them(runs):
    folder, _ = runs("dns")
    found, fit = metrics_of(folder), load_fit(folder)
    assert [one["name"] for one in found["stages"]] == ["dns", "surgery"]
    assert found["structure"]["nonzero_percent"] < 60
    factor, steps = fit.guide.factor_of("1.weight"), 6 * fit.settings.steps_per_epoch(fit.data.N)
    assert (int(factor.step), factor.stop) == (steps, round(0.7 * steps))
    small = sum(int(w.count_nonzero()) for w in matrices(read(folder / "compressed.pocc")))
    assert small == found["structure"]["weights"] <= sum(fit.guide.nonzero.values())


def test_structure(runs):
    folder, _ = runs("structure")
    found, fit = metrics_of(folder), load_fit(folder)
    structure = found["structure"]
    assert list(structure["chosen"]) == ["2.v0-v1", "2.v0-v2", "2.v1-v2"]
    for edge, probs in structure["probs"].items():
        assert sum(probs.values()) == pytest.approx(1.0, abs=1e-4)
        assert structure["chosen"][edge] == [max(probs, key=probs.get)]
    cut_out = found.get("refused", found["discretised"])
    assert cut_out["test"] == pytest.approx(found["test"]["deterministic"])
    assert found["retrained"]["parameters"] == found["discretised"]["parameters"]
    assert len(found["random"]["runs"]) == found["random"]["spread"]["accuracy"]["n"] == 2
    # The temperature is part of the state: it has fallen to its end.
    assert float(fit.model.temperature.value) == pytest.approx(0.3)
    kept, x = inference.load(folder / "discretised")(fit.data.x_test), fit.data.x_test
    if "refused" in found:  # the better one of both
        assert found["discretised"]["test"] == pytest.approx(found["retrained"]["test"])
    else:
        torch.testing.assert_close(kept, inference.shrink(fit).net(x))


def test_structure_over_random_weights_is_compared_with_nothing_if_asked(tmp_path):
    more = sets("prior=normal:1 structure=categorical width=8 epochs=2")
    call("fit", "structure", "--data", "digits", *more, "--no-compare", "--out", tmp_path / "run")
    assert not {"retrained", "random"} & {*metrics_of(tmp_path / "run")}


def test_depth_widths_and_bits(runs):
    folder, said = runs("occam")
    found = metrics_of(folder)
    depth, near = found["depth"], found["neighbours"]
    assert len(depth["depth_probs"]) == 4
    assert f"Depth {depth['depth_chosen']} of 3 was chosen" in said
    assert [row["depth"] for row in near if row["chosen"]] == [depth["depth_chosen"]]
    assert all(row["file_bytes"] > 0 and row["multiply_adds"] > 0 for row in near)
    # A scale and a shift of ten channels in each block, of two bits.
    assert all(row["number_bytes"] == 2 * 20 * row["depth"] / 8 for row in near)
    assert [one["name"] for one in found["stages"]] == ["occam", "joint", "narrow-1"]


def test_a_posterior_over_depth_and_weights_is_all_that_is_trained(runs, tmp_path):
    """No numbers at first, no fit after it: the network is cut of the posterior itself, of whole
    numbers of a learnt step, whose code is what a block costs."""
    out = tmp_path / "run"
    more = sets("width=6 max_depth=2 epochs=4 start=0 last=0 finish=0 kl_weight=0.1")
    more += sets("prior=integers guide=rounded scale=null")
    said = call("fit", "occam", "--no-compare", "--data", "digits", *more, "--out", out)
    fit = load_fit(out)
    assert isinstance(fit.model, models.BayesianStack)
    assert {*fit.guide.steps} == {*fit.model.layers}
    assert f"Depth {fit.structure.depth_chosen} of 2 was chosen" in said
    sizes = [inference.shrink(fit).net, read(out / "compressed.pocc")]
    assert len({sum(p.numel() for p in net.parameters()) for net in sizes}) == 1
    assert sizes[0](fit.data.x_test[:5]).shape == (5, 10)
    assert "diagnostics.json" in call("diagnose", out, "--draws", 100)


def test_every_size(runs, monkeypatch):
    """It is read back as the fit of the weight that was chosen, and nothing is chosen anew."""
    folder, said = runs("every-size")
    found = metrics_of(folder)
    networks = found["path"]["networks"]
    assert [one["weight"] for one in networks] == pytest.approx([0.05, 0.5, 5.0])
    (chosen,) = [one for one in networks if one["chosen"]]
    assert chosen is min(networks, key=lambda one: one["small_scores"]["nll"])
    assert found["path"]["weight"] == chosen["weight"]
    assert chosen["file_bytes"] == found["structure"]["file_bytes"]
    assert found["compressed"]["test"] == pytest.approx(chosen["test"])
    page = report([folder])
    assert "A network for every weight of the KL" in page
    assert all(
        f"{one['file_bytes']:,}" in said and f"{one['file_bytes']:,}" in page for one in networks
    )
    at_end = chosen["weight"] in (networks[0]["weight"], networks[-1]["weight"])
    assert ("the end of what was trained" in said) == at_end
    monkeypatch.setattr(inference.shrinking.weight_path, "_measured", None)
    fit = load_fit(folder)
    assert type(fit.guide) is guides.MeanField
    assert fit.settings.kl_weight == found["path"]["weight"]
    assert fit.history  # of the training that all weights have in common


def test_another_size_is_chosen_without_training(runs, tmp_path):
    folder, _ = runs("every-size")
    budget = 1 + min(one["file_bytes"] for one in metrics_of(folder)["path"]["networks"])
    file = tmp_path / "small.pocc"
    call("compress", folder, "--bytes", budget, "--out", file)
    assert file.stat().st_size <= budget
    read(file)
    assert "the least is" in call("compress", folder, "--bytes", 10, "--out", file, code=2)
    assert "'bytes'" in call("compress", runs("ddn")[0], "--bytes", 9, code=2)


@pytest.mark.parametrize("broken", [False, True])
def test_a_path_of_which_nothing_is_cut_loses_nothing(broken, runs, tmp_path, monkeypatch):
    """No network meets a budget, or none can be measured."""

    def refuse(*given, **how):
        raise RuntimeError("a layer of 3 units cannot be cut")

    out, command = tmp_path / "run", [*runs.command("every-size"), "--epochs", "2"]
    with monkeypatch.context() as patch:
        if broken:
            patch.setattr("pyroccam.cli.methods.every_size.path", refuse)
        said = call("fit", *command, *([] if broken else sets("bytes=20")), "--out", out, code=2)
        found, fit = metrics_of(out), load_fit(out)
    why = "a layer of 3 units" if broken else "meets Bytes(most=20) (the least is"
    assert why in said
    assert why in found["path"]["unmet"]
    assert found["parameters"] > 0
    networks = found["path"]["networks"]
    assert not any(one["chosen"] for one in networks)
    best = min(networks, key=lambda one: one["small_scores"]["nll"], default={"weight": 0.5})
    assert fit.settings.kl_weight == pytest.approx(best["weight"])  # or between 0.05 and 5
    assert why in call("compress", out, code=2)
    assert not (out / "compressed.pocc").exists()
    call("compress", out, "--bytes", 100_000, "--out", tmp_path / "a.pocc")  # with what was trained


def test_a_stack_has_a_depth_for_each_weight(runs, tmp_path):
    out = tmp_path / "run"
    options = ["--no-compare", "--data", "digits", "--network", "mlp"]
    options += sets("lr=0.01 points=2 scale=null width=6 max_depth=2 epochs=3")
    said = call("fit", "every-size", *options, "--out", out)
    found = metrics_of(out)
    networks = found["path"]["networks"]
    assert all(0 <= one["depth"] <= 2 for one in networks)
    (chosen,) = [one for one in networks if one["chosen"]]
    assert found["depth"]["depth_chosen"] >= chosen["depth"]
    assert "of 2 was chosen" in said
    fit = load_fit(out)
    assert isinstance(fit.model, models.BayesianStack)
    assert fit.structure.depth_chosen == chosen["depth"]
    assert (out / "compressed.pocc").stat().st_size == chosen["file_bytes"]


# -- repeats, interrupts, exports -----------------------------------------------------------------


def test_repeats_report_mean_and_spread(repeated):
    folder, said = repeated
    assert "Mean ± standard deviation over 2 seeds" in said
    assert "other test rows" in said
    assert "--set data.seed=0" in said
    found = metrics_of(folder)
    accuracy = [one["test"]["accuracy"] for one in found["repeats"]]
    spread = found["spread"]["test"]["accuracy"]
    assert spread["mean"] == pytest.approx(np.mean(accuracy))
    assert spread["sd"] == pytest.approx(np.std(accuracy, ddof=1))
    assert [one["seed"] for one in found["repeats"]] == [0, 1]
    assert "seed-0" in call("evaluate", folder, code=2)


def test_repeats_on_the_same_rows_predict_together(ensemble):
    folder, said = ensemble
    assert "All 2 together" in said
    assert ", the one that is handed back accuracy" in said
    found = metrics_of(folder)
    nlls = [one["test"]["ensemble"]["nll"] for one in found["repeats"]]
    assert found["spread"]["together"]["nll"] <= sum(nlls) / 2 + 1e-6
    assert found["spread"]["structure"]["file_bytes"]["n"] == 2
    fits = [load_fit(folder / f"seed-{k}", "cpu") for k in (0, 1)]
    assert torch.equal(fits[0].data.y_test, fits[1].data.y_test)
    assert [fit.settings.seed for fit in fits] == [0, 1]


def test_export_takes_rows_as_they_are_in_the_data(runs, tmp_path):
    folder, _ = runs("ldn")
    said = call("export", folder, "--form", "torch", "--out", tmp_path / "net.pt2")
    assert f"{(tmp_path / 'net.pt2').stat().st_size:,} bytes; takes rows x 2 (as in the" in said
    assert "Read back: outputs differ by" in said
    data = load_fit(folder).data
    expected = inference.load(folder / "pruned")(data.x_test)
    net = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(net(data.x_test * data.x_std + data.x_mean), expected)
    call("export", folder, "--form", "onnx", "--out", tmp_path / "other.pt2", code=2)
    call("export", folder, "--out", tmp_path / "net", code=2)


def test_export_is_of_the_small_network(runs, tmp_path):
    folder, _ = runs("structure")
    call("export", folder, "--no-scaling", "--out", tmp_path / "net.onnx")
    fit = load_fit(folder)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: fit.data.x_test.numpy()})
    with torch.no_grad():
        expected = METHODS["structure"].smaller(fit, folder)(fit.data.x_test)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
