"""Test the model that trains in a page: its gradients and steps equal the library's, and the page's controls work."""

import shutil

import numpy as np
import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e .[book]")

import pages
from test_live import PICTURE, STATIC, browser, run_page

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW, clip_factor
from tools.book import live, training
from tools.book.pdf import chromium

in_a_browser = pytest.mark.skipif(bool(pages.missing()), reason=pages.missing() or "all is there")
ENGINE = """
const load = (src) => new Promise((onload) =>
  document.head.append(Object.assign(document.createElement("script"), { src, onload })));
await load("train.js");
const engine = NanoEuler.training();
"""


@pytest.fixture(scope="module")
def stories() -> dict:
    """Write the files that the page loads, with fewer stories."""
    return training.page_data(train_bytes=60_000, held_bytes=3_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, stories):
    folder = tmp_path_factory.mktemp("training")
    for file in STATIC.iterdir():
        shutil.copy(file, folder)
    (folder / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><body>{PICTURE.format("live-training")}'
        '<script src="model.js"></script><script src="page.js"></script>'
    )
    live.write_if_new(folder / "stories.js", "stories", "stories", folder / "train.js", lambda: stories)
    return folder


# ---- The engine


def case() -> tuple[GPT, list[list[int]], np.ndarray, np.ndarray]:
    """Return a model with random gains and three query heads per key, four stories of odd lengths, and their rows."""
    rng = np.random.default_rng(1)
    config = ModelConfig(dim=24, heads=6, kv_heads=2, layers=2, context=48, vocab_size=20, predict=1, ffn=20)
    model = GPT(config)
    for p in model.params.values():
        p[...] = 0.3 * rng.standard_normal(p.shape) + (p.ndim == 1)
    told = [[19, *rng.integers(0, 19, n).tolist(), 19] for n in (38, 2, 17, 6)]
    tokens, targets = np.zeros((4, 40), int), np.full((4, 40, 1), -1)
    for row, ids in enumerate(told):
        tokens[row, : len(ids) - 1], targets[row, : len(ids) - 1, 0] = ids[:-1], ids[1:]
    return model, told, tokens, targets


MODEL = (
    ENGINE
    + """
        const model = new engine.Model(given.config, Float32Array.from(given.params));
        const batch = engine.batchOf(given.told);"""
)


def given_of(model, told) -> dict:
    return {"config": model.config.to_dict(), "params": model.params.flat.tolist(), "told": told}


@browser
def test_gradients_and_steps_are_the_librarys(folder):
    """Compare each gradient to 1e-4 of its largest element, three losses, and the parameters after two AdamW steps."""
    model, told, tokens, targets = case()
    found = run_page(
        folder,
        MODEL
        + """
        model.forward(batch); model.backward(batch);
        const grads = Array.from(model.grads.flat);
        const losses = [0.03, 0.03].map((rate) => model.step(batch, rate) / batch.valid);
        losses.push(model.loss(batch) / batch.valid);
        return { grads, losses, params: Array.from(model.params.flat) };""",
        given=given_of(model, told),
    )
    optimizer = AdamW(model.config, TrainConfig(rate=0.03, rate_end=1.0, warmup=0))
    losses, at = [], 0
    for step in range(2):
        loss, grads = model.loss_and_gradients(tokens, targets)
        losses.append(loss)
        if step == 0:
            for name, expected in grads.items():
                mine = np.array(found["grads"][at : at + expected.size]).reshape(expected.shape)
                at += expected.size
                assert np.abs(mine - expected).max() <= 1e-4 * np.abs(expected).max(), name
            assert at == len(found["grads"])
        optimizer.step += 1
        optimizer.update(model.params, grads, list(grads), clip_factor(float(np.linalg.norm(grads.flat)), 1.0))
    np.testing.assert_allclose(found["losses"], [*losses, model.loss(tokens, targets)], rtol=1e-4)
    np.testing.assert_allclose(found["params"], model.params.flat, atol=1e-3)


@browser
def test_a_break_acts_where_it_says(folder):
    """Three breaks change only gradients and two change the model; layers before the first wrong one stay right."""
    model, told, *_ = case()
    found = run_page(
        folder,
        MODEL
        + """
        return Object.fromEntries(["", "rope", "mean", "sign", "residual", "ahead"].map((broken) => {
          Object.assign(model, { broken });
          model.forward(batch);
          const loss = model.backward(batch), layer = model.grads.layers[1];
          const [heads, out, down] = [model.grads.heads, layer.out, layer.down].map((part) => Array.from(part));
          return [broken, { loss, heads, out, down }];
        }));""",
        given=given_of(model, told),
    )
    healthy = found.pop("")
    same = {name: {part for part in healthy if healthy[part] == broken[part]} for name, broken in found.items()}
    assert same["rope"] == {"loss", "heads", "down", "out"}
    assert same["mean"] == {"loss", "heads"} and same["sign"] == {"loss", "heads", "down"}
    assert same["residual"] == same["ahead"] == set()


# ---- The stories


@browser
def test_the_page_reads_the_stories_that_were_packed(folder, stories):
    found = run_page(
        folder,
        ENGINE
        + """
        await load("training.js"); await load("stories.js");
        const ids = NanoEuler.unpackIds(NanoEuler.stories), all = engine.storiesOf(ids, ids[0]);
        const tokenizer = new NanoEuler.Tokenizer(NanoEuler.stories.tokenizer);
        return all.map((story) => tokenizer.decode(Array.from(story)));""",
    )
    texts = [
        training.konigsberg.corpus(size, seed).split(training.data.SEPARATOR)
        for size, seed in ((3_000, training.HELD_SEED), (60_000, training.TRAIN_SEED))
    ]
    assert found == [*texts[0], *texts[1]]
    assert (stories["held"], stories["count"]) == tuple(map(len, texts))


def test_the_trigram_stands_between_the_floor_and_a_guess(stories):
    """Use stories that the model has not counted."""
    held = training.konigsberg.corpus(training.HELD_BYTES, training.HELD_SEED).split(training.data.SEPARATOR)
    known = training.konigsberg.corpus(300_000, training.TRAIN_SEED).split(training.data.SEPARATOR)
    assert not set(held) & set(known)
    assert 0.1 < stories["floor"] < stories["trigram"] < 2


# ---- The page


@in_a_browser
def test_a_reader_trains_a_model(folder):
    """Open the page from a file: it loads nothing before a click; the loss falls, a story is written, a break shows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        page = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"]).new_page()
        page.set_default_timeout(240_000)
        asked = []
        page.on("request", lambda request: asked.append(request.url.rsplit("/")[-1]))
        page.goto((folder / "index.html").as_uri())
        assert not {"train.js", "training.js", "stories.js"} & set(asked)
        page.get_by_role("button", name="Train a model").click()
        page.wait_for_selector("section.live")
        assert page.evaluate("document.activeElement.textContent") == "Start"
        page.keyboard.press("Enter")
        page.wait_for_function("/^All /.test(document.querySelector('[role=status]').textContent)")
        label = page.get_by_role("img").get_attribute("aria-label")
        assert float(label.split(": ")[1].split()[0]) < 2.2, label  # an untrained model has 3.3
        page.get_by_role("button", name="Let it tell a story").click()
        page.wait_for_function("/tokens: “.+”/s.test(document.querySelector('.live-story').textContent)")
        page.get_by_role("button", name="A new model").click()
        page.get_by_label("Planted mistake").select_option("ahead")
        page.get_by_role("button", name="Start").click()
        page.wait_for_function("document.querySelectorAll('.live-plot .earlier').length === 1")
        page.wait_for_function("/^All /.test(document.querySelector('[role=status]').textContent)")
        page.context.browser.close()
