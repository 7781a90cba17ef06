"""The benchmarks that need a GPU, on a tiny model through the CPU runtime: do they compare the same work?"""

import dataclasses

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")

from benchmarks import gpu_decode, gpu_muon, gpu_numbers, gpu_products, gpu_speculate, gpu_step
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig

pytestmark = pytest.mark.compiler
TINY = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=9, vocab_size=40, predict=2, ffn=24)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(gpu_step, "STEPS", 1)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_take_the_same_steps(short, precision):
    row = gpu_step.measure(TINY, precision, rows=2, rounds=1, where="cpu")
    assert set(row["milliseconds"]) == {gpu_step.US, gpu_step.PEER} and min(row["milliseconds"].values()) > 0
    ratio = row["milliseconds"][gpu_step.PEER] / row["milliseconds"][gpu_step.US]
    assert row["speedup"][gpu_step.PEER] == pytest.approx(ratio, rel=0.05, abs=1e-3)
    assert len(row["first_losses"]) == gpu_step.AGREE and len(set(row["first_losses"])) == gpu_step.AGREE


@pytest.mark.full
@pytest.mark.parametrize("wrong", [{"rate": 3e-4}, {"clip": 1e-9}, {"beta2": 0.5}, {"later_heads": 1.0}])
def test_other_work_is_told(monkeypatch, wrong):
    contestants = {gpu_step.US: gpu_step.ours(TINY, "float32", 2, "cpu")}
    monkeypatch.setattr(gpu_step, "SETTINGS", dataclasses.replace(gpu_step.SETTINGS, **wrong))
    contestants[gpu_step.PEER] = gpu_step.theirs(TINY, "float32", 2, "cpu")
    batches = [gpu_step.batch(TINY, 2, 0)] * gpu_step.AGREE
    with pytest.raises(AssertionError, match=r"torch.compile: losses .* not the same work"):
        gpu_step.agreeing(contestants, batches, "float32")


# ---- Decoding


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_decode_the_same(monkeypatch, precision):
    monkeypatch.setattr(gpu_decode, "TOKENS", 2)
    row = gpu_decode.measure(TINY, precision, start=5, rounds=2, where="cpu")
    assert all(0 <= error < gpu_decode.APART[precision] for error in row["apart"].values())
    assert row["apart"][gpu_decode.PEER] > 0 < min(row["milliseconds"].values())
    ratios = [row["spread"][gpu_decode.PEER][i] / row["spread"][gpu_decode.US][1 - i] for i in (0, 1)]
    assert ratios[0] - 1e-3 <= row["speedup"] <= ratios[1] + 1e-3


@pytest.mark.full
@pytest.mark.parametrize("wrong", ["a place too far", "a token of the past left out"])
def test_another_decoder_is_told(wrong):
    both = gpu_decode.contestants(TINY, "float32", "cpu")
    peer = both[gpu_decode.PEER]
    if wrong == "a place too far":
        peer.decoder.length = 1
    else:
        peer.feed = lambda token: (peer.back_to(max(peer.decoder.length - 1, 0)), peer.decoder.feed(token))[1]
    with pytest.raises(AssertionError, match="not the same work"):
        gpu_decode.agreeing(
            both, gpu_decode.contestants(TINY, "float32", "cpu")[gpu_decode.US].feed, range(4), "float32"
        )


# ---- How right the numbers are; which algorithm is the fastest


@pytest.mark.full
def test_gradients_are_measured_against_float64():
    made, _ = gpu_numbers.trained(TINY, "float32", 0, "cpu", 1)
    found = gpu_numbers.gradients(TINY, made)
    assert found.keys() == made.params.keys()
    assert all(0 < error < 1e-5 for both in found.values() for error in both)
    made.params["layers.0.out"][3] *= 1.01  # ours alone, behind NumPy's back
    params = made.params.host
    made.params.host = lambda: (lambda p: (p["layers.0.out"].__setitem__(3, p["layers.0.out"][3] / 1.01), p)[1])(
        params()
    )
    assert max(ours for ours, _ in gpu_numbers.gradients(TINY, made).values()) > 1e-4


@pytest.mark.full
def test_curves_are_ours_and_pytorchs(monkeypatch):
    monkeypatch.setattr(gpu_numbers, "LAST", 2)
    found = gpu_numbers.curves(TINY, 0, "cpu", 3)
    assert found.keys() == {gpu_step.US, gpu_numbers.PEER} and all(0 < gap < 0.05 for gap in found.values())


@pytest.mark.full
def test_the_fastest_algorithm_is_taken_where_it_gains(monkeypatch):
    def taking(milliseconds):
        return fastest([lambda ms=ms: ms for ms in milliseconds])

    fastest = gpu_products.fastest
    monkeypatch.setattr(gpu_products, "milliseconds", lambda launch: launch())
    assert taking([1.0, 0.9, 0.8, 0.85]) == (2, [1.0, 0.9, 0.8, 0.85])
    assert taking([1.0, 0.99])[0] == 0 and taking([1.0])[0] == 0


# ---- Proposals; Muon


@pytest.mark.full
def test_proposals_are_measured_beside_plain_decoding(monkeypatch):
    monkeypatch.setattr(gpu_speculate, "ROUNDS", 2)
    config = dataclasses.replace(TINY, context=40, predict=3)
    model = engine.GPT(config, where="cpu", checked=False)
    found = gpu_speculate.measure(model, [[1, 2, 3], [4, 5]], 12)
    assert [(row["way"], row["propose"]) for row in found] == [
        (way, n) for way in ("greedy", "sampled") for n in range(3)
    ]
    for row in found:
        assert row["milliseconds"] > 0 and 1 <= row["tokens_a_round"] <= 1 + row["propose"]
        assert row["propose"] or row["speedup"] == row["tokens_a_round"] == 1
        assert row["same"] == (2 if row["way"] == "greedy" else None)


@pytest.mark.full
def test_texts_that_differ_are_counted(monkeypatch):
    monkeypatch.setattr(gpu_speculate, "ROUNDS", 1)
    real = gpu_speculate.rounds

    def drawn(model, ids, rng, propose, **how):
        for new in real(model, ids, rng, propose, **how):
            yield [(token + bool(propose)) % 40 for token in new]

    monkeypatch.setattr(gpu_speculate, "rounds", drawn)
    model = engine.GPT(TINY, where="cpu", checked=False)
    found = gpu_speculate.measure(model, [[1, 2]], 4)
    assert [row["same"] for row in found[:2]] == [1, 0]


def test_a_recipe_without_each_of_its_changes():
    start = dict(optimizer="muon", rate=1.0, move=0.4)
    recipe = start | dict(rate=2.0, decay=0.3, batch=8, steps=4000)
    assert gpu_muon.without(recipe, start) == {
        "rate": recipe | dict(rate=1.0),
        "decay": {name: value for name, value in recipe.items() if name != "decay"},
        "batch": {name: value for name, value in recipe.items() if name not in ("batch", "steps")},
    }


def test_the_search_keeps_what_helps(monkeypatch):
    """A pretended loss that likes one rate, one decay and small batches."""

    class Pretended(gpu_muon.Tiny):
        def __init__(self):
            self.steps, self.tried = 2000, []

        def run(self, seed, part, **recipe):
            self.tried.append((seed, recipe))
            off = abs(recipe["rate"] - 3e-3) * 100 + abs(recipe.get("decay", 0.1) - 0.3)
            return 2 + off + 0.01 * (recipe.get("batch") != 8) + 1e-4 * recipe.get("beta2", 0)

    trial = Pretended()
    start, recipe = trial.search("adamw")
    assert start == dict(optimizer="adamw", rate=3e-3, move=0.2)
    assert recipe == start | dict(decay=0.3, batch=8, steps=4000)
    assert {seed for seed, _ in trial.tried} == {gpu_muon.SEARCH}


@pytest.mark.full
def test_tiny_trains_by_its_recipe(monkeypatch):
    told = []
    shape = dataclasses.replace(TINY, context=16, vocab_size=264)
    text = "".join(f"Line {n} of a text that repeats itself.\n" for n in range(300))
    trial = gpu_muon.Tiny(text, shape, 4, "cpu", told.append)
    ends = [trial.run(0, "x", optimizer=name, rate=0.01, batch=2, steps=4) for name in ("adamw", "muon", "muon")]
    assert ends[0] != ends[1] == ends[2] and [row["bits"][4] for row in told] == [round(b, 5) for b in ends]
    assert trial.run(0, "x", optimizer="muon", rate=0.01, batch=2, steps=4, move=0.4) != ends[1]
    assert gpu_muon.program.MOVE == 0.4
    gpu_muon.set_muon()


@pytest.mark.full
def test_counters_go_to_the_way_whose_kernels_they_are(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    from benchmarks import gpu_attention_backward as backward

    kernels = {
        "void attention_backward_keys<__nv_bfloat16, 1, 64, 128, 128, 4, 1, 1, 0, 0>(const T1 *)": "ours",
        "void attention_backward_keys<__nv_bfloat16, 1, 64, 128, 64, 4, 1, 0, 0, 1>(const T1 *)": "ours, atomic",
        "cudnn_generated_sdpa_sm90_flash_bprop_wgmma": "cuDNN",
    }
    head = ["ID", "Kernel Name", *backward.METRICS.values()]
    units = ["", "", "ms", "%", "inst", "%", "register/thread"]
    lines = [
        head,
        units,
        *(["0", name, "1.5", "59.79", "75,792,384", "1", "255"] for name in kernels),
    ]
    (tmp_path / "c_4096.csv").write_text(
        "==PROF== Connected\n" + "".join(",".join(f'"{x}"' for x in line) + "\n" for line in lines)
    )
    rows = backward.counted(tmp_path / "c_4096.csv")
    assert [row["of"] for row in rows] == list(kernels.values())
    assert rows[0]["microseconds"] == 1500 and rows[0]["tensor_instructions"] == 75_792_384
    assert rows[0]["registers"] == 255 and rows[0]["tensor_busy"] == 59.79
    with pytest.raises(SystemExit, match="memset: expected"):
        backward.way_of("memset(int)")
