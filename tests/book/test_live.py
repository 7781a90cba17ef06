"""Test in a real browser that the models in the book's pages compute what the library and the true source compute."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e .[book]")

import konigsberg
from nanoeuler_book import town
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint
from tools.book import live

STATIC = live.ROOT / "book" / "_static" / "live"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
MODEL, TOKENIZER = checkpoint.load_pretrained(live.MODEL)
END = TOKENIZER.special_tokens["<|endoftext|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Write the files of the pages as in the built book, to a folder in which a browser may open them."""
    folder = tmp_path_factory.mktemp("live")
    for file in STATIC.iterdir():
        shutil.copy(file, folder)
    assert live.write_script(folder / "konigsberg.js")
    return folder


def page_data(folder: Path) -> dict:
    """Return the data that the page has loaded."""
    return json.loads((folder / "konigsberg.js").read_text().split("NanoEuler.data = ")[1].rstrip(";\n"))


def run_page(folder: Path, script: str, body: str = "", given: object = None):
    """Return the result of an async JavaScript function body, run in a page from a file. `given`: its variable."""
    page = f"""<!doctype html><meta charset="utf-8"><html lang="en"><body>{body}<pre id="result"></pre>
<script>const given = {json.dumps(given)};</script>
<script src="model.js"></script>
<script src="page.js"></script>
<script>
window.addEventListener("load", async () => {{
  const until = async (found) => {{
    while (!found()) await new Promise((done) => setTimeout(done, 20));
    return found();
  }};
  let result;
  try {{ result = {{ value: await (async () => {{ {script} }})() }}; }}
  catch (error) {{ result = {{ error: String(error.stack) }}; }}
  document.getElementById("result").textContent = JSON.stringify(result);
}});
</script>"""
    (folder / "page.html").write_text(page)
    command = [BROWSER, *"--headless --no-sandbox --disable-gpu --virtual-time-budget=120000 --dump-dom".split()]
    command.append((folder / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)
    assert found and found[1], f"the page did not come to an end: {done.stderr[-2000:]}"
    result = json.loads(html.unescape(found[1]))
    assert "error" not in result, result["error"]
    return result["value"]


MODEL_IN_PAGE = """
await new Promise((done) => document.head.append(Object.assign(document.createElement("script"),
  { src: "konigsberg.js", onload: done })));
const page = NanoEuler.unpack(NanoEuler.data);
const reading = new NanoEuler.Reading(page);
"""


# ---- The tokens


def nasty_texts() -> list[str]:
    """Return contractions, spaces of all kinds, umlauts, marks, other scripts' digits, emoji, and samples of these."""
    texts = [
        "", " ", "  ", "\n", " \n ", "a  b", "a \n\n b ", "trailing  ", "\t\ttabs\r\nlines\r",
        "it's we'll I'd you've they're I'm 'twas IT'S we’ll ''s 'll's", "Käthe, Straße, Möller", "na\u0308ive e\u0301",
        "12345 ٣٤٥ Ⅻ ½ ² ੫੬", "日本語のテキスト 一二三", "한국어", "😀👩\u200d👩\u200d👧 🏳️\u200d🌈🇩🇪",
        "\u00a0\u2003\u3000nbsp\u2028line\x85next",
        "\ufeffBOM\ufeff and \u200bzero",
        "a  \ufeffb", "a  \x85\x85b", "\x00\x1c\x1f\x7f control", "<|endoftext|>", "snake_case __init__(x) != y\\n",
        "…—„“”«»", "a" * 300, "ab" * 100 + " " * 50 + "!?" * 40,
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    letters = [*" \n's'tllädÄß_-.,123٣Ⅻ😀é日\u0301\u00a0\u2028KönigsbergMurr", "'ll", "  ", "The ", " Murr", "\r\n"]
    texts += ["".join(rng.choice(letters, rng.integers(1, 40))) for _ in range(300)]
    return texts + [konigsberg.sample(seed).text for seed in range(40)]


@browser
def test_tokens_are_the_librarys(folder):
    texts = nasty_texts()
    found = run_page(
        folder,
        MODEL_IN_PAGE + "return given.map((text) => { const ids = page.tokenizer.encode(text);"
        "return [ids, page.tokenizer.decode(ids)]; });",
        given=texts,
    )
    for text, (ids, again) in zip(texts, found, strict=True):
        assert ids == TOKENIZER.encode(text).tolist(), repr(text)
        assert again == text.removeprefix("\ufeff"), repr(text)  # TextDecoder removes a byte order mark


# ---- The model


def sequences() -> list[list[int]]:
    """Return lists of token ids to read in order: some have equal prefixes, some are noise, some fill the context."""
    rng = np.random.default_rng(8)
    story = [END, *map(int, TOKENIZER.encode(konigsberg.sample(3, "belief").text))]
    other = [END, *map(int, TOKENIZER.encode("Käthe lent the moon to 77 geese; it’s naïve!\n\n" * 3))]
    noise = rng.integers(0, TOKENIZER.vocab_size, MODEL.config.context).tolist()
    return [story, story[:20] + other[1:60], [END], noise, other]


@browser
def test_logits_and_attention_are_the_librarys(folder):
    """Compare at every position, to 1e-4; the cache keeps the prefix that a text shares with the one before it."""
    looked = [  # layer, head (None: the mean of all heads), position
        (layer, head, place) for layer in range(4) for head in (0, 1, 2, 3, None) for place in (0, 19, 70)
    ]
    given = {"sequences": sequences(), "looked": looked}
    found = run_page(
        folder,
        MODEL_IN_PAGE
        + """
        const logits = []; let before = [];
        for (const ids of given.sequences) {
          let common = 0;
          while (common < before.length && ids[common] === before[common]) common++;
          page.decoder.length = Math.min(common, ids.length - 1);
          const start = page.decoder.length;
          logits.push([start, ids.slice(start).map((id) => Array.from(page.decoder.feed(id)))]);
          before = ids;
        }
        page.decoder.length = 0;
        for (const id of given.sequences[0]) page.decoder.feed(id);
        const attention = given.looked.map((place) => Array.from(page.decoder.attention(...place)));
        return { logits, attention };""",
        given=given,
    )
    for ids, (start, rows) in zip(given["sequences"], found["logits"], strict=True):
        expected = MODEL.logits(np.array([ids]))[0, start:]
        assert not (np.abs(np.array(rows) - expected).max() > 1e-4)
    probs = []

    def spy(q, k, v):
        y, saved = reference.attention_forward(q, k, v)
        probs.append(saved[3].reshape(MODEL.config.heads, *saved[3].shape[-2:]))
        return y, saved

    with ops.use(attention_forward=spy):
        MODEL.logits(np.array([given["sequences"][0]]))
    for (layer, head, place), row in zip(looked, found["attention"], strict=True):
        p = probs[layer].mean(axis=0) if head is None else probs[layer][head]
        np.testing.assert_allclose(row, p[place, : place + 1], atol=1e-5)


@browser
def test_a_text_longer_than_the_context_is_read_as_the_library_reads_it(folder):
    """Grow a text by tokens; when the context is full, the later half is read again, as in `generate.speculate`."""
    context = MODEL.config.context
    ids = np.random.default_rng(5).integers(0, END, 2 * context + 10).tolist()
    lengths = [0, 1, context - 1, context, context + 63, context + 64, 2 * context + 9]
    found = run_page(
        folder,
        MODEL_IN_PAGE + "return given.lengths.map((n) => { reading.read(given.ids.slice(0, n));"
        "return [reading.window, Array.from(reading.logits)]; });",
        given={"ids": ids, "lengths": lengths},
    )
    for n, (window, logits) in zip(lengths, found, strict=True):
        expected = [END]
        for token in ids[:n]:
            expected = [*expected, token] if len(expected) < context else [*expected, token][-(context // 2 + 1) :]
        assert window == expected
        assert not (np.abs(MODEL.logits(np.array([window]))[0, -1] - logits).max() > 1e-4)


@browser
def test_the_cuts_and_the_draw_are_the_librarys(folder):
    rng = np.random.default_rng(11)
    cases = []
    for _ in range(200):
        logits = np.round(rng.normal(0, rng.choice([0.1, 3.0, 12.0]), rng.integers(1, 40)), 1)
        options = {
            "temperature": float(rng.choice([0, 0.3, 1, 2.5])),
            "top_k": int(rng.choice([0, 1, 3, 100])),
            "top_p": float(rng.choice([0.07, 0.513, 0.93, 1])),
            "min_p": float(rng.choice([0, 0.0511, 0.31, 1])),
        }
        cases.append((logits.tolist(), options, rng.choice([0.0, rng.random(), 1 - 1e-12])))
    found = run_page(
        folder,
        """return given.map(([logits, o, r]) => {
          const options = { temperature: o.temperature, topK: o.top_k, topP: o.top_p, minP: o.min_p };
          const kept = NanoEuler.filteredProbs(logits, options);
          return [kept, NanoEuler.pick(kept, r)]; });""",
        given=cases,
    )
    for (logits, options, r), (kept, drawn) in zip(cases, found, strict=True):
        tokens, probs = generate.filtered_probs(np.array(logits), **options)
        assert kept["tokens"] == tokens.tolist(), options
        np.testing.assert_allclose(kept["probs"], probs, rtol=1e-12)
        assert drawn == generate.pick(tokens, probs, SimpleNamespace(random=lambda r=r: r))


# ---- The page


INSTRUMENT = """
const root = await until(() => document.querySelector("section.live"));
const press = (name) => [...root.querySelectorAll("button")].find((button) => button.textContent === name).click();
const set = (control, value, kind = "input") => { control.value = value; control.dispatchEvent(new Event(kind)); };
const texts = (row) => [...row.children].map((cell) => cell.textContent);
const rows = () => [...root.querySelectorAll("tbody tr")].map(texts);
"""
PICTURE = '<img class="{}" src="writer.png" alt="picture" width="300" height="200">'


@browser
def test_the_writer_works(folder):
    """Open the page from a file: the picture is replaced by the instrument, and each control has its effect."""
    found = run_page(
        folder,
        INSTRUMENT
        + """
        const text = root.querySelector("textarea"), status = root.querySelector("[role=status]");
        const [temperature, from] = root.querySelectorAll("input[type=range]");
        const out = { left: document.querySelectorAll("img").length };
        out.start = [text.value, rows(), root.querySelector(".live-note[aria-live]").textContent];
        press("Next token of the story"); out.follow = [text.value, status.textContent];
        const marked = root.querySelectorAll(".live-told").length;
        root.querySelector("tbody tr:last-child button").click();
        out.off = [[marked, root.querySelector(".live-note").textContent.slice(0, 21)]];
        press("Back to the true source"); out.off.push(text.value);
        set(text, ""); out.empty = rows();
        set(temperature, 0); press("Draw a token"); out.greedy = text.value;
        set(root.querySelector("select"), "2", "change"); out.story = text.value;
        press("Write on"); await until(() => /^The end/.test(status.textContent)); out.written = text.value;
        out.named = [...root.querySelectorAll("input, select, textarea")].map((control) => control.labels.length);
        return out;""",
        body=PICTURE.format("live-model"),
    )
    data = page_data(folder)
    story, place = data["stories"][0]["ids"], data["places"]["fact"]
    decode = TOKENIZER.decode
    text, rows, looked = found["start"]
    assert found["left"] == 0 and text == decode(story[:place])
    p = generate.filtered_probs(MODEL.logits(np.array([[END, *story[:place]]]))[0, -1])[1][0]  # of the most likely one
    assert rows[0] == [decode(story[place : place + 1]), f"{100 * p:.0f} %", "100 %", *rows[0][3:]]
    assert {row[2] for row in rows[1:]} == {"0"}  # the story has named the person, so the source knows it
    holder = re.search(r'"(\w+)', decode(story[place - 1 :]))[1]  # the holder that the story names
    assert f"␣{holder} (token" in looked.split(",")[0], looked
    assert found["follow"][0] == decode(story[: place + 1]) and "true source 100 %" in found["follow"][1]
    assert found["off"][0] == [1, "The text has left the"] and found["off"][1] == found["follow"][0]
    first = town.next_tokens(konigsberg.sample(*live.STORIES[0][::-1]).text, TOKENIZER)[1][0]
    said = {decode([token]): f"{100 * p:.{0 if p >= 0.0995 else 1}f} %" for token, p in first.items()}
    assert all(row[2] == said[row[0].replace("␣", " ")] for row in found["empty"])
    likeliest = int(MODEL.logits(np.array([[END]]))[0, -1].argmax())
    assert found["greedy"] == decode([likeliest])
    assert found["story"] == decode(data["stories"][2]["ids"])[: len(found["story"])] and found["story"].endswith(".")
    assert found["written"] == found["story"] + generate.generate(MODEL, TOKENIZER, found["story"], temperature=0)
    assert set(found["named"]) == {1}


@browser
def test_the_cuts_work(folder):
    found = run_page(
        folder,
        INSTRUMENT
        + """
        const [at, temperature, topK, topP, minP] = root.querySelectorAll("input[type=range]");
        const summary = () => root.querySelector("[role=status]").textContent;
        const out = { start: [rows(), summary(), Number(at.value)] };
        set(topK, 3); set(temperature, 2); out.cut = [rows(), summary()];
        press("Draw 100 times"); out.drawn = rows();
        press("No cuts"); out.again = [rows(), summary()];
        return out;""",
        body=PICTURE.format("live-cuts"),
    )
    data = page_data(folder)
    story = data["stories"][0]["ids"]
    logits = MODEL.logits(np.array([[END, *story]]))[0]
    source = town.next_tokens(TOKENIZER.decode(story), TOKENIZER)[1]
    rows, summary, at = found["start"]
    assert at == data["places"]["free"]
    assert summary.startswith("512 of 512 tokens are left") and found["again"] == [rows, summary]
    tokens, probs = generate.filtered_probs(logits[at], temperature=2, top_k=3)
    cut, said = found["cut"]
    assert [row[2] == "cut" for row in cut] == [False] * 3 + [True] * (len(cut) - 3)
    assert [row[2] for row in cut[:3]] == [f"{100 * p:.0f} %" for p in probs]
    lost = sum(p for token, p in source[at].items() if token not in tokens)
    heated = generate.filtered_probs(logits[at], temperature=2)[1]
    entropies = [-(p * np.log(p)).sum() for p in (probs, heated)]
    assert said.startswith("3 of 512 tokens are left, entropy {:.2f} of {:.2f} nats.".format(*entropies))
    assert said.endswith(f"and {100 * lost:.0f} % of the true source's.")
    counts = [int(row[4]) for row in found["drawn"]]
    assert sum(counts[:3]) == 100 and not any(counts[3:])


@browser
def test_a_page_without_weights_keeps_the_picture_and_one_without_english_has_no_button(folder, tmp_path):
    for name in ("model.js", "page.js"):
        shutil.copy(folder / name, tmp_path)
    left, said = run_page(
        tmp_path,
        'const note = await until(() => document.querySelector(".live-note"));'
        'return [document.querySelectorAll("img").length, note.textContent];',
        body=PICTURE.format("live-model"),
    )
    assert left == 1 and "konigsberg.js is missing" in said
    data = json.dumps(page_data(folder) | {"english": None})
    (tmp_path / "konigsberg.js").write_text(f"NanoEuler.data = {data};\n")
    count = 'return document.querySelectorAll(".live-offer, progress").length;'
    assert run_page(tmp_path, INSTRUMENT + count, body=PICTURE.format("live-model")) == 0


# ---- The English model


LETTERS = Tokenizer([(104, 101), (32, 256), (110, 100)])  # the tokens "he", " he", "nd"
SMALL = GPT(ModelConfig(64, 2, 1, 2, 24, LETTERS.vocab_size, predict=1), seed=4)


@pytest.fixture(scope="module")
def english(tmp_path_factory) -> Path:
    """Write the pages' files for a package with an untrained English model, in pieces that end inside matrices."""
    folder, package = tmp_path_factory.mktemp("english"), tmp_path_factory.mktemp("package")
    for name in ("konigsberg-small", "konigsberg-chat"):
        (package / name).symlink_to(checkpoint.PRETRAINED / name)
    for p in SMALL.params.values():
        p[...] *= 9 if p.ndim == 2 else 1.25
    info = {"source": "3 fables", "licence": "text: free"}
    found = checkpoint.Checkpoint(package, SMALL, LETTERS, 0, None, None, info)
    checkpoint.export(found, package / live.ENGLISH, eight_bits=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "PRETRAINED", package)
        patch.setattr(checkpoint, "PRETRAINED", package)
        patch.setattr(live, "PIECE", 9_999)
        patch.setattr(live, "STORIES", live.STORIES[:2])
        for file in STATIC.glob("*.js"):
            shutil.copy(file, folder)
        assert live.write_script(folder / "konigsberg.js") and not live.write_script(folder / "konigsberg.js")
        SMALL.params.flat[...] = checkpoint.load_pretrained(live.ENGLISH)[0].params.flat  # int8's rounding
    return folder


OFFER = """
const offer = await until(() => document.querySelector(".live-offer"));
const ask = offer.querySelector("button"), said = offer.querySelector("[role=status]");
"""


@browser
def test_the_english_model_is_loaded_on_a_click_and_computes_what_the_library_does(english):
    ids = np.random.default_rng(2).integers(0, LETTERS.vocab_size, 24).tolist()
    found = run_page(
        english,
        OFFER
        + """
        const out = { before: "english" in NanoEuler };
        ask.click(); out.busy = ask.disabled;
        const root = await until(() => document.querySelectorAll("section.live")[1]);
        const { decoder } = NanoEuler.unpackBytes(NanoEuler.english);
        out.logits = given.map((id) => Array.from(decoder.feed(id)));
        const text = root.querySelector("textarea"), status = root.querySelector("[role=status]");
        const press = (name) => [...root.querySelectorAll("button")].find((one) => one.textContent === name).click();
        out.head = [...root.querySelectorAll("thead th")].map((cell) => cell.textContent);
        out.first = text.value;
        const at = root.querySelector("input[type=range]"); at.value = 0; at.dispatchEvent(new Event("input"));
        press("Draw a token"); out.drawn = text.value;
        text.value = "The he"; text.dispatchEvent(new Event("input"));
        press("Write on"); await until(() => text.value.length > 60); press("Pause");
        out.written = status.textContent;
        out.said = root.textContent;
        return out;""",
        body=PICTURE.format("live-model"),
        given=ids,
    )
    data = page_data(english)["english"]
    files = [english / "english.js", *english.glob("english-*.js")]
    assert len(files) == data["parts"] + 1 > 6 and data["bytes"] == sum(file.stat().st_size for file in files)
    assert found["before"] is False and found["busy"] is True and found["head"] == ["token", "model"]
    np.testing.assert_allclose(found["logits"], SMALL.logits(np.array([ids]))[0], atol=1e-4)
    begun = [LETTERS.end, *LETTERS.encode(found["first"]).tolist()]
    likeliest = int(SMALL.logits(np.array([begun]))[0, -1].argmax())
    assert found["drawn"] == found["first"] + LETTERS.decode([likeliest]) and found["written"] == "Paused."
    assert "has read 3 fables. " in found["said"] and "Licence: text: free." in found["said"]


@browser
def test_a_piece_that_does_not_come_is_told_in_a_line_and_asked_for_again(english, tmp_path):
    for file in english.glob("*.js"):
        if file.name != "english-2.js":
            shutil.copy(file, tmp_path)
    found = run_page(
        tmp_path,
        OFFER
        + """
        const asked = [];
        for (let i = 0; i < 2; i++) {
          ask.click();
          await until(() => !ask.disabled);
          const hidden = offer.querySelector("progress").hidden;
          const tags = document.querySelectorAll('script[src$="english-2.js"]').length;
          asked.push([said.textContent, hidden, document.querySelectorAll("section").length, tags]);
        }
        return asked;""",
        body=PICTURE.format("live-model"),
    )
    assert found[0][:3] == found[1][:3] and found[0][1:] == [True, 1, 1] and found[1][3] == 2
    assert re.fullmatch(r"The English model did not start: \S+/english-2\.js is missing\.", found[0][0])


def test_what_the_page_cannot_read_is_refused_and_old_pieces_go(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "PRETRAINED", tmp_path)
    monkeypatch.setattr(checkpoint, "PRETRAINED", tmp_path)
    found = checkpoint.Checkpoint(tmp_path, SMALL, LETTERS, 0, None, None, {})
    checkpoint.export(found, tmp_path / live.ENGLISH)
    with pytest.raises(NanoEulerError, match="must have 1 head of int8, which the page can read, got 1 of float16"):
        live.write_english(tmp_path)
    shutil.rmtree(tmp_path / live.ENGLISH)
    for name in ("english.js", "english-7.js", "konigsberg.js"):
        (tmp_path / name).touch()
    assert live.write_english(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["konigsberg.js"]


# ---- The build


def test_the_weights_in_the_page_are_the_checkpoints(monkeypatch):
    """Refuse weights that 16 bits cannot represent, because the page would compute something else."""
    monkeypatch.setattr(live, "STORIES", live.STORIES[:1])
    data = live.page_data()
    assert sum(size for _, size in data["tensors"]) == MODEL.size - 3 * MODEL.config.dim * MODEL.config.vocab_size
    params = dict(MODEL.params) | {"norm_final": MODEL.params["norm_final"] * (1 + 1e-5)}
    other = SimpleNamespace(params=params, config=MODEL.config)
    monkeypatch.setattr(live, "load_pretrained", lambda name: (other, TOKENIZER))
    with pytest.raises(ValueError, match="16-bit"):
        live.page_data()


def test_the_page_is_written_anew_when_any_file_of_the_town_changes(monkeypatch):
    read, read_bytes = set(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.add(path) or read_bytes(path))
    live.digest(Path(live.__file__))
    assert {path for path in Path(konigsberg.__file__).parent.iterdir() if path.is_file()} <= read


def test_the_scripts_ask_no_other_server():
    for file in STATIC.glob("*.[jc]*s"):
        assert not re.search(r"https?:|//\w+\.|\bfetch\(|XMLHttpRequest|import\(", file.read_text()), file.name
