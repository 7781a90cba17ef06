"""What docstrings promise, module by module: units, borders, dtypes, what is kept and what is refused.

Each test takes a promise at its word, with values unlike those that other tests use, and an oracle of its own.
"""

import json
import math
import re
from pathlib import Path

import checks
import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import files, plots, world
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text import data, examples, ngram
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.text.turns import ASSISTANT, USER, markers
from nanoeuler_lib.training import checkpoint, datasets, evaluate, journal, loop, train
from nanoeuler_lib.training.checkpoint import load_pretrained

matplotlib.use("agg")
SMALL = ModelConfig(8, 2, 1, 1, 8, 258, predict=2, ffn=8)


# Fingerprints see all of the text, and the mask.


@settings(max_examples=60)
@given(st.integers(1, 20_000), st.floats(0, 1), st.integers(1, 500), st.integers(0, 9))
def test_a_fingerprint_sees_every_token(length, where, change, seed):
    """Another token anywhere, one more, one fewer, two exchanged: another fingerprint; the dtype is no part of it."""
    ids = np.random.default_rng(seed).integers(0, 500, length)
    at = min(int(where * length), length - 1)
    changed = ids.copy()
    changed[at] += change
    same = datasets.fingerprint(ids)
    assert datasets.fingerprint(ids.astype(np.uint16)) == datasets.fingerprint(ids.astype(np.int32)) == same
    assert datasets.fingerprint(np.stack([ids, ids], axis=1)[:, 0]) == same  # not contiguous
    others = [changed, np.append(ids, 0), ids[:-1], np.delete(ids, at), np.append(ids, ids[at])]
    if ids[at] != ids[0]:
        swapped = ids.copy()
        swapped[[0, at]] = swapped[[at, 0]]
        others.append(swapped)
    assert same not in [datasets.fingerprint(other) for other in others]


def chat_tokenizer():
    return Tokenizer([(97, 98)], (END_OF_TEXT, USER, ASSISTANT))


def found_of(context=48):
    config = ModelConfig(8, 2, 1, 1, context, 260, predict=2, ffn=8)
    return checkpoint.Checkpoint(
        Path(), GPT(config), chat_tokenizer(), 0, TrainConfig(), None, {"template": "plain"}
    )


def test_the_fingerprint_of_examples_sees_the_mask_at_every_token(monkeypatch):
    """The same tokens of which others count are other data: one flag anywhere, in either part."""
    parts = [[("ab", "c"), ("d", "ab")], [("e", "f")]], [[("g", "hi")]]
    original, before = examples.encode, datasets.SFTDataset(*parts, found_of())
    length = sum(len(e.ids) for e in before.part + before.valid)
    for flipped in range(length):
        place = [flipped]

        def encode(example, tokenizer, most=None, place=place):
            found = original(example, tokenizer, most)
            if 0 <= place[0] < len(found.counted):
                found.counted[place[0]] ^= True
            place[0] -= len(found.counted)
            return found

        monkeypatch.setattr(examples, "encode", encode)
        after = datasets.SFTDataset(*parts, found_of())
        same = after.fingerprint == before.fingerprint, after.valid_fingerprint == before.valid_fingerprint
        assert same == ((False, True) if flipped < before.tokens else (True, False)), flipped


# Text of users and files is text: no marker comes out of it.

SPECIAL = [END_OF_TEXT, USER, ASSISTANT]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            *[st.lists(st.sampled_from([*SPECIAL, "a", "ab", " ", "\n", "<", "|>"]), max_size=5).map("".join)]
            * 2
        ),
        min_size=1,
        max_size=3,
    )
)
def test_examples_that_hold_the_text_of_markers(example):
    """Prompts and replies come back from their tokens letter by letter; markers stand between them and nowhere else."""
    tokenizer = chat_tokenizer()
    end, user, assistant = markers(tokenizer)
    found = examples.encode(example, tokenizer)
    ids, counted = found.ids.tolist(), found.counted.tolist()
    assert ids[0] == end and len(ids) == len(counted) and not counted[0]
    at = 1
    for prompt, reply in example:
        stop = ids.index(end, at)
        turn = ids[at : stop + 1]
        middle = turn.index(assistant)
        assert turn[0] == user and turn.count(user) == turn.count(assistant) == 1
        assert tokenizer.decode(turn[1:middle]) == prompt and tokenizer.decode(turn[middle + 1 : -1]) == reply
        assert counted[at : stop + 1] == [False] * (middle + 1) + [True] * (len(turn) - middle - 1)
        at = stop + 1
    assert at == len(ids)


def test_rows_by_definition():
    """Target k of position t is token t+1+k where that counts, for rows of any length and any number of heads."""
    rng = np.random.default_rng(0)
    examples = [examples.Encoded(rng.integers(1, 99, n), rng.random(n) < 0.6) for n in (2, 3, 7, 12)]
    for predict in (1, 2, 5):
        inputs, targets = examples.rows(examples, 13, predict)
        assert inputs.shape == (4, 13) and targets.shape == (4, 13, predict)
        for b, t, k in np.ndindex(targets.shape):
            e = examples[b]
            n = len(e.ids)
            assert inputs[b, t] == (e.ids[t] if t < n - 1 else 0)
            counts = t < n - 1 and t + 1 + k < n and e.counted[t + 1 + k]
            assert targets[b, t, k] == (e.ids[t + 1 + k] if counts else -1), (b, t, k)


@pytest.mark.parametrize(
    "lengths, context, expected",
    [
        ([2], 128, 32),
        ([33], 128, 32),
        ([34], 128, 64),
        ([5, 65, 7], 128, 64),
        ([66], 128, 96),
        ([120], 100, 100),
    ],
)
def test_rows_are_a_multiple_of_a_bucket_and_fit_the_context(lengths, context, expected):
    examples = [examples.Encoded(np.zeros(n, int), np.ones(n, bool)) for n in lengths]
    assert examples.row_length(examples, context) == expected


# Tokens: dtypes at their border, lengths in bytes.


@pytest.mark.parametrize(
    "size, dtype", [(65_535, np.uint16), (65_536, np.uint16), (65_537, np.uint32), (65_539, np.uint32)]
)
def test_ids_at_the_border_of_16_bits(size, dtype):
    """65,536 ids fit 16 bits, one more does not: text with the last ids comes back."""
    names = [END_OF_TEXT, "<b>", "<c>"]
    pairs = [(a, b) for a in range(256) for b in range(256)]
    tokenizer = Tokenizer(pairs[: size - 256 - len(names)], names)
    assert tokenizer.vocab_size == size and tokenizer.dtype == dtype
    text = "a<c>b<|endoftext|><b>"
    ids = tokenizer.encode(text, "all")
    assert ids.dtype == dtype and tokenizer.decode(ids) == text
    assert [size - 1, size - 3, size - 2] == [int(i) for i in ids if i >= size - 3]
    assert tokenizer.encode("").dtype == dtype and len(tokenizer.token_lengths) == size
    assert tokenizer.decode(tokenizer.encode_bytes(b"a\xffb")) == "a\ufffdb"


def test_token_lengths_are_bytes_of_text():
    tokenizer = Tokenizer([(0xC3, 0xA4), (97, 256), (32, 257)], ["<e>", "<ff>"])
    assert tokenizer.token_lengths.dtype == np.int32
    assert tokenizer.token_lengths.tolist() == [1] * 256 + [2, 3, 4, 0, 0]
    assert [len(b) for b in tokenizer.token_bytes] == [1] * 256 + [2, 3, 4, 3, 4]
    assert tokenizer.special_tokens == {"<e>": 259, "<ff>": 260}


def test_bytes_of_tokens_are_those_of_the_text():
    tokenizer = Tokenizer([(97, 98), (0xC3, 0xA4)])
    for text, size in (("ab ä cab", 9), (f"abä{data.SEPARATOR}b", 5)):
        assert data.tokenize(text, tokenizer).bytes == size


def test_a_stream_of_documents():
    """End-of-text before each document and after the last; empty ones are none; without the token there are none."""
    tokenizer, plain = Tokenizer([(97, 98)]), Tokenizer([(97, 98)], ())
    end = tokenizer.special_tokens[END_OF_TEXT]
    text = data.SEPARATOR.join(["abc", "", "d", "ee"])
    found = data.tokenize(text, tokenizer)
    assert found.ids.tolist() == [end, 256, 99, end, 100, end, 101, 101, end] and found.starts.tolist() == [
        0,
        3,
        5,
    ]
    for one, with_ in (("abc", tokenizer), (text, plain)):
        found = data.tokenize(one, with_)
        assert found.starts is None and plain.decode(found.ids) == one
    assert found.lengths.tolist() == plain.token_lengths.tolist()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.9])
def test_where_a_text_is_split(fraction):
    """Plain text at its character; documents at the boundary behind the cut, or the last one before it."""
    text = "äbcdefghij" * 10
    part, valid = data.split_text(text, fraction)
    assert part + valid == text and len(valid) == round(100 * fraction)
    documents = ["a" * 40, "b" * 40, "c" * 40]
    part, valid = data.split_text(data.SEPARATOR.join(documents), fraction)
    assert (part, valid) == {
        0.0: (data.SEPARATOR.join(documents), ""),
        0.1: (data.SEPARATOR.join(documents[:2]), documents[2]),
        0.25: (data.SEPARATOR.join(documents[:2]), documents[2]),
        0.9: (documents[0], data.SEPARATOR.join(documents[1:])),
    }[fraction]


def test_rows_begin_at_documents_when_half_of_them_fit():
    lengths = np.ones(300, int)
    for starts, time, expected in (
        ([0, 5, 10, 30], 5, True),
        ([0, 5, 11, 30], 5, False),
        ([0, 6, 12], 5, False),
        ([0, 6, 12], 6, True),
    ):
        assert (
            data.starts_at_documents(data.Tokens(np.zeros(40, int), np.array(starts), lengths), time)
            is expected
        )
    assert not data.starts_at_documents(data.Tokens(np.zeros(40, int), None, lengths), 50)


@pytest.mark.parametrize("predict", [1, 3])
def test_every_place_where_a_row_fits_is_drawn(predict):
    time, ids = 4, np.arange(20)
    seen = set()
    rng = np.random.default_rng(0)
    for _ in range(40):
        inputs, targets = data.batch(data.Tokens(ids, None, ids), rng, 9, time, predict)
        assert (
            inputs.shape == (9, 4)
            and targets.shape == (9, 4, predict)
            and inputs.dtype == targets.dtype == np.int64
        )
        assert (np.diff(inputs) == 1).all()
        for k in range(predict):
            assert np.array_equal(targets[..., k], inputs + 1 + k)
        seen |= set(inputs[:, 0].tolist())
    assert seen == set(range(20 - time - predict + 1))
    exact = data.Tokens(np.arange(time + predict), None, ids)
    assert (data.batch(exact, rng, 3, time, predict)[0] == np.arange(4)).all()
    with pytest.raises(
        NanoEulerError,
        match=f"^text has {time + predict - 1} tokens, expected at least {time + predict}: "
        f"a row of 4 and {predict} to predict$",
    ):
        data.batch(data.Tokens(np.arange(time + predict - 1), None, ids), rng, 3, time, predict)


# Measuring.


def test_distances_are_words_and_every_token_has_its_own():
    """What `measure` gives per token is the world's truth of each story in turn, in words, behind each its end."""
    model, tokenizer = load_pretrained()
    stories = list(world.stories(5, seed=78))
    found = evaluate.measure(model, tokenizer, stories, rows=2)
    at = 0
    for story in stories:
        ids = tokenizer.encode(story.text)
        edges = np.cumsum([0, *(len(tokenizer.token_bytes[i]) for i in ids)])
        truth, text = world.token_truth(story.text, np.diff(edges)), story.text.encode()
        part = slice(at, at + len(ids))
        assert np.array_equal(found.tag[part], truth.tag) and np.allclose(found.bits[part], truth.bits)
        for token, words in enumerate(found.words[part]):
            assert (words == -1) == (truth.tag[token] != world.FACT)
            if words >= 0:
                between = text[edges[token] - truth.bytes[token] : edges[token]].decode()
                assert abs(words - len(between.split())) <= 1, (story.text, token)
        logits = model.logits(np.array([[tokenizer.special_tokens[END_OF_TEXT], *ids]]))[0].astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        targets = [*ids, tokenizer.special_tokens[END_OF_TEXT]]
        assert np.allclose(
            found.nats[at : at + len(targets)], -log_p[range(len(targets)), targets], atol=1e-4
        )
        assert np.array_equal(found.right[at : at + len(targets)], log_p.argmax(axis=1) == targets)
        at += len(targets)
        assert found.bits[at - 1] == 0 and found.tag[at - 1] == world.GRAMMAR and found.words[at - 1] == -1
    assert at == len(found.nats) == len(found.words) and found.bytes == sum(
        len(s.text.encode()) for s in stories
    )
    assert found.nats.dtype == np.float64
    assert found.bits_per_byte == pytest.approx(found.nats.sum() / math.log(2) / found.bytes)


def test_accuracy_counts_a_tag_beyond_a_distance():
    right = np.array([1, 0, 1, 1, 0, 1], bool)
    tag = np.array([world.FACT] * 4 + [world.FREE, world.GRAMMAR], np.int8)
    words = np.array([0, 3, 4, 9, -1, -1], np.int32)
    found = evaluate.Measured(np.ones(6), right, np.ones(6), tag, words, 12)
    assert (
        found.accuracy(world.FACT) == 0.75
        and found.accuracy(world.FREE) == 0
        and found.accuracy(world.GRAMMAR) == 1
    )
    assert found.accuracy(world.FACT, 0) == pytest.approx(2 / 3) and found.accuracy(world.FACT, 3) == 1
    assert math.isnan(found.accuracy(world.FACT, 9)) and found.accuracy(world.FACT, 8) == 1
    assert found.floor == 0.5 and found.bits_per_byte == pytest.approx(0.5 / math.log(2))


def test_the_longest_story_that_fits_is_measured():
    _, tokenizer = load_pretrained()
    story = world.sample(3)
    tokens = len(tokenizer.encode(story.text))
    for context, fits in ((tokens, False), (tokens + 1, True)):
        small = GPT(ModelConfig(8, 2, 1, 1, context, tokenizer.vocab_size, predict=1))
        if fits:
            assert len(evaluate.measure(small, tokenizer, [story]).nats) == tokens + 1
        else:
            with pytest.raises(
                NanoEulerError,
                match=f"^there are no stories of fewer than {context} tokens, expected at least one$",
            ):
                evaluate.measure(small, tokenizer, [story])


def test_ngrams_by_counting():
    """The default strength, orders cut short, unseen contexts, and a target that was never seen."""
    text = np.array([0, 1, 0, 1, 2, 0, 1, 2, 2])
    model = ngram.Ngrams(text, 4, 2)
    unigram = (np.array([3, 3, 3, 0]) + 3 * 0.25) / 12
    assert np.allclose(model.probabilities(np.array([[3]]))[0, 0], unigram)
    assert np.allclose(model.probabilities(np.array([[1]]))[0, 0], (np.array([1, 0, 2, 0]) + 2 * unigram) / 5)
    assert np.allclose(model.probabilities(np.array([[1]]), order=1)[0, 0], unigram)
    assert np.allclose(
        model.probability(np.array([[1, 1]]), np.array([[2, 3]])), [[(2 + 2 * 0.3125) / 5, 2 * 0.0625 / 5]]
    )
    assert model.probabilities(np.array([[0, 1], [2, 3], [1, 1]])).shape == (3, 2, 4)
    assert [c.tolist() for c in model.contexts(np.array([[0, 1, 3]]))][:2] == [[[0, 0, 0]], [[0, 1, -1]]]


# Files and figures.


def test_a_file_is_written_whole_in_utf_8_or_not_at_all(tmp_path):
    file = tmp_path / "a.txt"
    files.write_text(str(file), "ä\nb\r\n\u2028")
    assert file.read_bytes() == "ä\nb\r\n\u2028".encode() and list(tmp_path.iterdir()) == [file]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(
        NanoEulerError, match=f"^{re.escape(str(folder))}: cannot be written \\(Is a directory\\)$"
    ):
        files.write_text(folder, "x")
    with pytest.raises(NanoEulerError, match=r"cannot be written \(No such file or directory\)$"):
        files.write_text(tmp_path / "none" / "a.txt", "x")
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_printable_keeps_text_breaks_and_tabs():
    assert (
        files.printable("ä b\tc\nd\x1b[0m\x00\x85\u200b\r€") == "ä b\tc\nd\ufffd[0m\ufffd\ufffd\ufffd\ufffd€"
    )


def test_an_error_shows_its_text_alone_in_a_notebook():
    assert NanoEulerError("a\nb")._render_traceback_() == ["a", "b"]
    assert issubclass(NanoEulerError, ValueError)


def test_lines_break_before_words():
    for text, columns, expected in (
        ("ab cd ef", 5, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1)]),
        ("a\nb", 9, [(0, 0), (0, 1), (1, 0)]),
        ("ab cd", 4, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
    ):
        assert plots._wrap(text, columns) == expected


def test_the_ladder_draws_what_it_is_given():
    rows = [
        {"name": "low", "bits_per_byte": 2.5, "fact_accuracy": 0.1, "fact_accuracy_beyond_10_words": 0.05},
        {
            "name": "high",
            "bits_per_byte": 1.25,
            "fact_accuracy": 0.9,
            "fact_accuracy_beyond_10_words": 0.8,
            "goal": True,
        },
    ]
    plots.use_style()
    fig = plots.ladder(rows, 0.75)
    left, right = fig.axes
    assert [bar.get_width() for bar in left.containers[0]] == [2.5, 1.25]
    assert [t.get_text() for t in left.texts] == ["2.50", "1.25"]
    assert [t.get_text() for t in left.get_yticklabels()] == ["low", "high ★"]
    assert left.get_xlabel() == "bits per byte (floor 0.75)" and left.get_xlim() == (0, 3.0)
    assert [line.get_xdata()[0] for line in left.lines] == [
        0.75,
    ] and right.get_xlim() == (-5, 105)
    assert [list(line.get_xdata()) for line in right.lines] == [[10, 90], [5, 80]]
    assert [t.get_text() for t in right.get_legend().get_texts()] == ["all", "> 10 words away"]
    assert right.get_xlabel() == "facts right, %" and right.yaxis_inverted()
    colours = [bar.get_facecolor() for bar in left.containers[0]]
    assert colours[0] != colours[1]
    matplotlib.pyplot.close(fig)


# Settings.


def test_every_setting_is_kept_and_comes_back():
    model = ModelConfig(8, 2, 1, 3, 9, 10, predict=2, ffn=7, rope_theta=5.0, norm_eps=0.5)
    config = TrainConfig(3, 4, 5, 0.5, 0.25, 6, 0.5, 0.6, 0.01, 0.2, 3.0, 0.75, 9, 0.3, 7, 8, 11, "muon")
    for one in (model, config):
        values = json.loads(json.dumps(one.to_dict()))
        assert type(one).from_dict(values) == one
    with pytest.raises(NanoEulerError, match=r"^ModelConfig is list, expected an object with its fields$"):
        ModelConfig.from_dict([])
    assert model.head_dim == 4 and model.qkv_dim == 16
    for dim, ffn in ((2, 8), (6, 16), (24, 64), (128, 344), (768, 2048)):
        assert ModelConfig(dim, 1, 1, 1, 4, 4).ffn == ffn  # 8D/3 rounded up to a multiple of 8


LIMITS = {
    ModelConfig: dict(
        dim=2**20,
        heads=2**12,
        kv_heads=2**12,
        layers=2**12,
        context=2**20,
        vocab_size=2**24,
        predict=2**8,
        ffn=2**24,
    ),
    TrainConfig: dict(
        rate=10, rate_end=1, adam_eps=1, decay=10, clip=1e9, later_heads=100, valid_fraction=0.9
    ),
}


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in LIMITS for name in LIMITS[kind]])
def test_settings_have_limits(kind, name):
    good = (
        dict(dim=2, heads=1, kv_heads=1, layers=1, context=1, vocab_size=1, predict=1, ffn=1)
        if kind is ModelConfig
        else {}
    )
    low, high = (1, LIMITS[kind][name]) if kind is ModelConfig else (0, LIMITS[kind][name])
    beyond = (
        (-1 if name == "ffn" else 0, high + 1, True, "7")
        if kind is ModelConfig
        else (low - 1e-6, high * 1.000001, True, "7", math.nan)
    )
    if name not in ("heads", "kv_heads", "dim"):
        kind(**good | {name: high}), kind(**good | {name: low})
    for value in beyond:
        with pytest.raises(NanoEulerError, match=f"^{name} is .*, expected a (whole )?number from {low} to "):
            kind(**good | {name: value})


def test_settings_that_do_not_fit_together():
    for changes, message in (
        (dict(dim=9), r"dim is 9, expected a multiple of heads \(2\)"),
        (dict(dim=10), r"head width dim/heads is 5, expected an even number \(RoPE turns pairs\)"),
        (dict(dim=12, heads=3, kv_heads=2), r"heads is 3, expected a multiple of kv_heads \(2\)"),
    ):
        with pytest.raises(NanoEulerError, match=f"^{message}$"):
            ModelConfig(**dict(dim=8, heads=2, kv_heads=2, layers=1, context=4, vocab_size=4) | changes)
    for name in ("beta1", "beta2"):
        TrainConfig(**{name: 0}), TrainConfig(**{name: 0.999})
        with pytest.raises(NanoEulerError, match=f"^{name} is 1, expected a number below 1"):
            TrainConfig(**{name: 1})
    for name, low in dict(
        steps=1, batch=1, accumulate=1, warmup=0, seed=0, valid_every=1, sample_every=0, save_every=1
    ).items():
        assert getattr(TrainConfig(**{name: low}), name) == low
        for bad in (low - 1, 2**53, True, 1.5):
            with pytest.raises(
                NanoEulerError, match=f"^{name} is .*, expected a whole number of at least {low}$"
            ):
                TrainConfig(**{name: bad})


# Checkpoints.


def test_a_checkpoint_gives_everything_back(tmp_path):
    """Weights, moments, step, settings and what else was stored; exported: half precision, nothing to train on."""
    config, settings_ = SMALL, TrainConfig(steps=9, rate=0.02)
    model, optimizer = (
        GPT(config, checks.random_parameters(config, 0, dtype=np.float32)),
        AdamW(config, settings_),
    )
    optimizer.m.flat[...], optimizer.v.flat[...] = np.arange(model.size), np.arange(model.size)[::-1] / 7
    optimizer.step, info = 5, {"ä": [1, None], "valid_bits_per_byte": 2.5}
    checkpoint.save(str(tmp_path / "c"), model, Tokenizer([(97, 98)]), 5, settings_, optimizer, info)
    found = checkpoint.load(str(tmp_path / "c"), training=True)
    assert (found.step, found.train, found.info, found.path) == (5, settings_, info, tmp_path / "c")
    assert (
        found.model.config == config
        and found.model.dtype == np.float32
        and found.tokenizer.merges == [(97, 98)]
    )
    for a, b in (
        (found.model.params, model.params),
        (found.optimizer.m, optimizer.m),
        (found.optimizer.v, optimizer.v),
    ):
        assert np.array_equal(a.flat, b.flat)
    assert found.optimizer.step == 5 and found.optimizer.config == settings_
    assert checkpoint.load(tmp_path / "c").optimizer is None
    checkpoint.export(found, tmp_path / "small")
    small = checkpoint.load(tmp_path / "small")
    assert (small.train, small.optimizer, small.step, small.info) == (None, None, 5, info)
    assert np.array_equal(small.model.params.flat, model.params.flat.astype(np.float16).astype(np.float32))
    assert sorted(f.name for f in (tmp_path / "small").iterdir()) == [
        "checkpoint.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    with pytest.raises(
        NanoEulerError, match="holds no optimizer state, expected a checkpoint of a training run"
    ):
        checkpoint.load(tmp_path / "small", training=True)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["c", "small"]


def test_the_latest_checkpoint_of_a_run(tmp_path):
    for name in ("step-000009", "step-000010", "step-1000000", "step-999999", ".step-2000000.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    names = [folder.name for folder in checkpoint.folders(str(tmp_path))]
    assert names == ["step-000009", "step-000010", "step-999999", "step-1000000"]
    for text, where in (("holds no checkpoint", tmp_path), ("no such folder", tmp_path / "none")):
        with pytest.raises(
            NanoEulerError, match=f"^{re.escape(str(where))}: {text}, expected a checkpoint or a run folder$"
        ):
            checkpoint.find(str(where))
    (tmp_path / "checkpoints" / "step-000010" / "checkpoint.json").write_text("{}")
    assert checkpoint.find(str(tmp_path)).name == "step-000010"  # the highest that is one
    checkpoint.remove(tmp_path / "checkpoints" / "step-000009")
    assert not [f for f in (tmp_path / "checkpoints").iterdir() if "000009" in f.name]


# Runs.


@pytest.mark.parametrize("steps, every", [(7, 3), (5, 10), (6, 3), (4, 1), (1, 2)])
def test_the_last_step_is_saved_whatever_the_interval(tmp_path, steps, every):
    """The folder ends with the weights that `train` returns, and no step after the last checkpoint is lost."""
    config = TrainConfig(steps=steps, batch=2, save_every=every, valid_every=100, sample_every=0, warmup=1)
    text = checks.run_text()
    model = train.train(tmp_path / "run", text, SMALL, config, Tokenizer([(97, 98)]), quiet=True)
    found = checkpoint.load(tmp_path / "run", training=True)
    assert found.step == found.optimizer.step == steps
    assert np.array_equal(found.model.params.flat, model.params.flat)
    kept = sorted({0, steps, *range(every, steps + 1, every)})[-2:]
    names = [folder.name for folder in checkpoint.folders(tmp_path / "run")]
    assert names == [f"step-{step:06d}" for step in kept]
    loop.resume(tmp_path / "run", text, quiet=True)
    assert np.array_equal(checkpoint.load(tmp_path / "run").model.params.flat, model.params.flat)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("part", ["text", "validation text"])
def test_resume_refuses_a_text_changed_anywhere(tmp_path, place, part):
    """One letter of 12,000, near the beginning or the end, in the text or in what is held out."""
    rng = np.random.default_rng(0)
    texts = {
        "text": "".join(rng.choice(list("abcdefg "), 12_000)),
        "validation text": "".join(rng.choice(list("xyz "), 9_000)),
    }
    config = TrainConfig(steps=1, batch=1, warmup=0, sample_every=0)
    tokenizer = Tokenizer([])
    train.train(
        tmp_path / "run",
        texts["text"],
        SMALL,
        config,
        tokenizer,
        valid_text=texts["validation text"],
        quiet=True,
    )
    at = int(place * len(texts[part]))
    texts[part] = texts[part][:at] + "!" + texts[part][at + 1 :]
    with pytest.raises(
        NanoEulerError, match=f"{part} has fingerprint .*, expected .*: not the {part} the run began"
    ):
        loop.resume(tmp_path / "run", texts["text"], texts["validation text"], quiet=True)


# Looks and defaults.


def artists(ax) -> list:
    """What is drawn on axes, in numbers and words: another look is another list."""
    from matplotlib.colors import to_hex

    def number(x):
        return round(float(x), 4)

    found = [[number(x) for x in (*ax.get_xlim(), *ax.get_ylim())], ax.get_xlabel(), ax.get_ylabel()]
    found += [list(map(number, ax.get_xticks())), [t.get_text() for t in ax.get_yticklabels()]]
    found += [[spine.get_visible() for spine in ax.spines.values()], ax.get_title()]
    found += [
        [bool(line.get_visible()) for line in axis.get_gridlines()][:1] for axis in (ax.xaxis, ax.yaxis)
    ]
    for p in ax.patches:
        box = [p.get_x(), p.get_y(), p.get_width(), p.get_height()]
        found.append([*map(number, box), to_hex(p.get_facecolor(), True), number(p.get_linewidth())])
    for t in ax.texts:
        place = [*map(number, t.get_position()), t.get_text(), number(t.get_fontsize())]
        found.append([*place, t.get_ha(), t.get_va(), t.get_family(), t.get_clip_on(), to_hex(t.get_color())])
    for line in ax.lines:
        data = [list(map(number, np.ravel(x))) for x in line.get_data()]
        style = [
            line.get_label(),
            line.get_linestyle(),
            line.get_marker(),
            line.get_fillstyle(),
            to_hex(line.get_color()),
        ]
        found.append([*data, *style, number(line.get_linewidth()), number(line.get_markersize())])
    for c in ax.collections:
        ends = [[list(map(number, point)) for point in segment] for segment in c.get_segments()]
        found.append([ends, to_hex(c.get_color()[0]), number(c.get_linewidth()[0])])
    return found


def test_the_look_of_the_shared_figures():
    """Change the look as you like, but then draw the notebooks anew and put the new digest here."""
    import hashlib

    import matplotlib.pyplot as plt

    plots.use_style()
    rows = [
        {"name": "low", "bits_per_byte": 2.5, "fact_accuracy": 0.1, "fact_accuracy_beyond_10_words": 0.05},
        {
            "name": "high", "bits_per_byte": 1.25, "fact_accuracy": 0.9, "fact_accuracy_beyond_10_words": 0.8,
            "goal": True,
        },
    ]  # fmt: skip
    ladder = plots.ladder(rows, 0.75)
    text, ax = plt.subplots()
    values = np.array([0.2, 3.4, 0.94, 12.0, 0.95, 9.9])
    plots.surprise_text(
        ax, "Käthe ran. She won.", [6, 4, 1, 4, 5], values, np.array([0, 1, 0, 0, 1, 1], bool), 11
    )
    wide, other = plt.subplots()
    plots.surprise_text(other, "one two\nthree", [3, 4, 1, 5], np.ones(4), np.ones(4, bool))
    drawn = [[artists(axes) for axes in fig.axes] for fig in (ladder, text, wide)]
    drawn.append(
        [list(ladder.get_size_inches()), [t.get_text() for t in ladder.axes[1].get_legend().get_texts()]]
    )
    drawn.append([ladder.axes[1].get_legend()._loc, ladder.axes[0].get_gridspec().get_width_ratios()])
    drawn.append(ladder.axes[0].get_shared_y_axes().joined(*ladder.axes))
    for fig in (ladder, text, wide):
        plt.close(fig)
    found = hashlib.sha256(json.dumps(drawn, ensure_ascii=False).encode()).hexdigest()[:16]
    assert found == "33eea78be2b9be35", drawn


def test_what_generation_does_when_nothing_is_said():
    """The defaults of the docstrings: temperature 0.8 and seed 0 for text, 1 for a draw, nothing left out."""
    from nanoeuler_lib.speaking.generate import dense, filtered_probs, generate, pick, sample, stream

    logits = np.random.default_rng(0).standard_normal(9)
    full = np.exp(logits) / np.exp(logits).sum()
    for arguments in ((), (1.0,), (1.0, 0), (1.0, 0, 1.0), (1.0, 0, 1.0, 0.0)):
        tokens, probs = filtered_probs(logits, *arguments)
        assert np.allclose(dense(tokens, probs, 9), full) and len(tokens) == 9
        draws = [sample(logits, np.random.default_rng(seed), *arguments) for seed in range(30)]
        assert draws == [pick(tokens, probs, np.random.default_rng(seed)) for seed in range(30)]
    model, tokenizer = load_pretrained()
    said = dict(tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=0, propose=0)
    assert "".join(stream(model, tokenizer, "On Monday ")) == "".join(
        stream(model, tokenizer, "On Monday ", **said)
    )
    assert generate(model, tokenizer, "On Monday ") == generate(model, tokenizer, "On Monday ", **said)
    flat = GPT(ModelConfig(4, 1, 1, 1, 16, 257, predict=1))
    flat.params.flat[...] = 0
    plain = Tokenizer([], ["<e>"])
    for tokens in (0, 1, 7, 40):
        assert len(generate(flat, plain, "x", tokens, temperature=0)) == tokens
    assert len(generate(flat, plain, "x", temperature=0)) == 200


@pytest.mark.parametrize("error", ["temperature", "top_k", "top_p", "min_p"])
def test_ranges_of_sampling(error):
    from nanoeuler_lib.speaking.generate import filtered_probs

    ranges = {
        "temperature": ([0, 1e-9, 100], [-1e-9, 100.1, math.nan], "expected 0 to 100"),
        "top_k": ([0, 1, 99], [-1], r"expected 0 \(all\) or more"),
        "top_p": ([1e-9, 1], [0, -0.1, 1.001, math.nan], "expected more than 0 and at most 1"),
        "min_p": ([0, 1], [-0.01, 1.01, math.nan], "expected 0 to 1"),
    }
    good, bad, expected = ranges[error]
    for value in good:
        filtered_probs(np.zeros(3), **{error: value})
    for value in bad:
        with pytest.raises(NanoEulerError, match=f"^{error} is {value}, {expected}$"):
            filtered_probs(np.zeros(3), **{error: value})


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_decoder_refuses_tokens_outside_the_vocabulary(bad):
    from nanoeuler_lib.model.decoder import Decoder

    decoder = Decoder(GPT(ModelConfig(4, 2, 1, 1, 8, 5, predict=2)))
    for tokens in ([bad], [2, bad, 3], [bad, 1]):
        with pytest.raises(
            NanoEulerError, match=f"^tokens lie in {min(tokens)}..{max(tokens)}, expected 0..4$"
        ):
            decoder.read(np.array(tokens))
    assert decoder.length == 0
    decoder.feed(np.array([0, 4]))
    with pytest.raises(NanoEulerError, match=r"^context is 8, 2 used: got 7 tokens, expected 1 to 6$"):
        decoder.read(np.zeros(7, int))


# The tokenizer's progress, files and borders.


def test_progress_is_shown_where_it_is_asked_for(capfd):
    for progress, shown in ((False, False), (True, True)):
        Tokenizer.train(["ab ab abab", "ab"], 259, progress=progress)
        printed = capfd.readouterr().err
        assert ("counting words" in printed) == ("merging" in printed) == shown
        if shown:
            assert "2/2" in printed  # both texts
    Tokenizer.train("ab ab", 258)
    assert capfd.readouterr().err == ""


def gpt2_files(
    folder, specials=("<|endoftext|>",), merges=(("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "¤"))
):
    """Files as GPT-2's: visible bytes first, each as its character; the others as characters from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = visible + [byte for byte in range(256) if byte not in visible]
    characters = [chr(byte) for byte in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    tokens = characters + [a + b for a, b in merges] + list(specials)
    (folder / "encoder.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}), "utf-8")
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges), ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), "utf-8")
    return folder / "encoder.json", folder / "vocab.bpe", order


def test_gpt2_files_are_read(tmp_path):
    *paths, order = gpt2_files(tmp_path, ("<|endoftext|>", "<x>"))
    found = Tokenizer.from_gpt2(*paths)
    assert (
        found.byte_order == order
        and found.vocab_size == 262
        and found.token_bytes[256:260] == [b" t", b"he", b" the", "ä".encode()]
    )
    assert found.special_tokens == {"<|endoftext|>": 260, "<x>": 261}
    assert found.encode(" theä!<x>", {"<x>"}).tolist() == [258, 259, order.index(33), 261]
    for byte in range(256):
        assert found.decode_bytes([order.index(byte)]) == bytes([byte])
    assert found.decode(found.encode("Käthe the\n\x00")) == "Käthe the\n\x00"


@pytest.mark.parametrize(
    "damage", ["a list", "a text as id", "ids from 1", "another merge", "a byte twice", "a gap"]
)
def test_gpt2_files_that_do_not_fit(tmp_path, damage):
    encoder, vocab, _ = gpt2_files(tmp_path)
    ids = json.loads(encoder.read_text("utf-8"))
    if damage == "a list":
        ids = list(ids)
    elif damage == "a text as id":
        ids["he"] = "257"
    elif damage == "ids from 1":
        ids = {token: id + 1 for token, id in ids.items()}
    elif damage == "another merge":
        vocab.write_text(vocab.read_text("utf-8").replace("h e", "h i"), "utf-8")
    elif damage == "a byte twice":
        ids = {("\u2000" if token == "!" else token): id for token, id in ids.items()}
    else:
        ids["<|endoftext|>"] += 1
    encoder.write_text(json.dumps(ids), "utf-8")
    with pytest.raises(
        NanoEulerError, match=r"encoder.json does not fit .*vocab.bpe: expected 256 bytes, the merges in"
    ):
        Tokenizer.from_gpt2(encoder, vocab)


@pytest.mark.parametrize("large", [2**60, -(2**60), 10**5000], ids=["2^60", "-2^60", "10^5000"])
def test_a_message_shows_values_of_any_size(large):
    """Thousands of digits have no text: Python refuses to write them."""
    from nanoeuler_lib.errors import short

    assert short(large) == "an integer past 2^60" and short([[1], large]) == "[[1], an integer past 2^60]"
    assert short(2**60 - 1) == str(2**60 - 1) and short(True) == "True" and short(1e300) == "1e+300"
    assert short("a" * 100) == "'" + "a" * 12 + "..." + "a" * 13 + "'"


def test_did_you_mean_asks_for_seven_letters_of_ten():
    from nanoeuler_lib.errors import did_you_mean

    known = iter(["large", "abcdefghij", "small"])
    assert did_you_mean("smal", known) == ", did you mean small?"
    for word, hint in (("abcdefgxyz", ", did you mean abcdefghij?"), ("abcdefwxyz", ""), ("", "")):
        assert did_you_mean(word, ["abcdefghij"]) == hint


def test_an_entry_of_a_log_needs_all_that_is_read_from_it():
    from nanoeuler_lib.training.run_folder import _entry

    step = {"step": 1, "loss": 2.0, "rate": 0.1, "norm": 1.0, "tokens_per_second": 9.0}
    assert _entry(json.dumps(step).encode()) == step and _entry(b'{"step": 1}') == {"step": 1}
    for name in ("step", "rate", "norm", "tokens_per_second"):
        assert _entry(json.dumps({k: v for k, v in step.items() if k != name}).encode()) is None, name
    for name, value in (("step", 2**53), ("step", -1), ("loss", 1e300), ("norm", "1"), ("rate", True)):
        assert _entry(json.dumps(step | {name: value}).encode()) is None, (name, value)
    assert _entry(json.dumps(step | {"step": 2**53 - 1, "loss": -1e299}).encode())


def test_a_checkpoint_s_step_is_a_whole_number_below_2_to_the_53(tmp_path):
    from nanoeuler_lib.training.checkpoint import _digest_head

    checkpoint.export(checkpoint.load(checkpoint.PRETRAINED / "konigsberg-small"), tmp_path / "model")
    file = tmp_path / "model" / "checkpoint.json"
    head = json.loads(file.read_text())
    for step, good in ((2**53 - 1, True), (2**53, False), (-1, False)):
        changed = {key: value for key, value in head.items() if key != "digest"} | {"step": step}
        file.write_text(json.dumps(changed | {"digest": _digest_head(changed)}))
        if good:
            assert checkpoint.read_head(tmp_path / "model")["step"] == step
        else:
            with pytest.raises(NanoEulerError, match=rf"step is {step}: truncated or edited"):
                checkpoint.read_head(tmp_path / "model")


@pytest.mark.parametrize("seconds, said", [(89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")])
def test_times_as_people_say_them(seconds, said):
    assert journal.duration(seconds) == said
