"""Chapter 31: its checks accept what is right and reject wrong answers, each of them named."""

import re
from collections import defaultdict
from itertools import combinations

import numpy as np
from chapters import gap_tests

from nanoeuler_book.checks import verdict

NAMES = "BOOK", "FRAMES", "TRICKY", "PATTERNS", "WHO", "TRADES", "DAYS", "BRIDGES", "LOOKS", "THINGS", "GOODS"
NAMES += "USUAL", "KEEPERS", "FAMILIES", "COPIES", "PAGES", "HELD", "TWINS", "NOTICE", "WIDE"
NOTEBOOK = "31_text_from_elsewhere", *NAMES


# ---- The gaps


def frame(start=r"^ *\*+ *START OF.*$", end=r"^ *\*+ *END OF.*$", flags=re.I | re.M, last=False, trim="\n"):
    """Takes a frame off with something changed."""

    def take(text):
        firsts = list(re.finditer(start, text, flags))
        begin = firsts[-1 if last else 0].end() if firsts else 0
        ends = [m.start() for m in re.finditer(end, text, flags) if m.start() >= begin]
        return text[begin : ends[-1 if last else 0] if ends else len(text)].strip(trim)

    return take


WRONG_FRAMES = {
    "carriage returns go": frame(trim="\r\n"),
    "capitals only": frame(flags=re.M),
    "the last marker": frame(last=True),
    "START without OF": frame(start=r"^ *\*+ *START.*$", end=r"^ *\*+ *(THE )?END.*$"),
    "nothing without an end": lambda text: frame()(text) if "END OF" in text.upper() else "",
    "an end marker anywhere": lambda text: frame()(text[: re.search(r"(?i)\* *end of|$", text).start()]),
}


def candidates_one_by_one(sketches, bands, rows):
    """Another right answer: all pairs."""
    cut = sketches[:, : bands * rows].reshape(len(sketches), bands, rows)
    return {
        (i, j) for i, j in combinations(range(len(cut)), 2) if (cut[i] == cut[j]).all(axis=1).any()
    }  # fmt: skip


def cut_wrongly(change):
    """Candidates of bands that `change(sketches, bands, rows)` cuts out: a list of [N, n]."""

    def find(sketches, bands, rows):
        found = set()
        for band in change(sketches, bands, rows):
            found |= candidates_one_by_one(band, 1, band.shape[1])
        return found

    return find


def mixed_bands(sketches, bands, rows):
    """One dictionary for all bands."""
    places, found = defaultdict(list), set()
    for i, row in enumerate(sketches):
        for k in range(bands):
            key = row[k * rows : (k + 1) * rows].tobytes()
            found |= {(j, i) for j in places[key] if j != i}
            places[key].append(i)
    return found


def first_only(sketches, bands, rows):
    """Pairs with the first page of a place alone, as in `dedup.Seen`."""
    places, found = {}, set()
    for i, row in enumerate(sketches):
        for k in range(bands):
            j = places.setdefault((k, row[k * rows : (k + 1) * rows].tobytes()), i)
            found |= {(j, i)} if j != i else set()
    return found


def by_key(key, before=lambda sketches: sketches):
    """Candidates whose bands have the same key."""

    def find(sketches, bands, rows):
        sketches, found = before(sketches), set()
        for k in range(bands):
            places = defaultdict(list)
            for i, row in enumerate(sketches[:, k * rows : (k + 1) * rows].tolist()):
                places[key(row)].append(i)
            for pages in places.values():
                found.update(combinations(pages, 2))
        return found

    return find


def columns_emptied(sketches, bands, rows):
    """Right, but it empties the columns that count for nothing."""
    sketches[:, bands * rows :] = 0
    return candidates_one_by_one(sketches, bands, rows)


WRONG_CANDIDATES = {
    "digits glued together": by_key(lambda row: "".join(map(str, row))),
    "columns emptied": columns_emptied,
    "one dictionary": mixed_bands,
    "pairs with the first alone": first_only,
    "columns taken across": cut_wrongly(lambda s, b, r: [s[:, k :: b][:, :r] for k in range(b)]),
    "the sum of a band": cut_wrongly(lambda s, b, r: [s[:, k * r : k * r + r].sum(1, keepdims=True) for k in range(b)]),
}  # fmt: skip


def groups_by_colour(n, pairs):
    """Another right answer: the smaller number spreads until nothing changes."""
    colour, moved = list(range(n)), True
    while moved:
        moved = False
        for i, j in pairs:
            if colour[i] != colour[j]:
                colour[i] = colour[j] = min(colour[i], colour[j])
                moved = True
    return colour


def once(n, pairs):
    colour = list(range(n))
    for i, j in pairs:
        colour[i] = colour[j] = min(colour[i], colour[j])
    return colour


WRONG_GROUPS = {
    "one pass": once,
    "the largest": lambda n, pairs: [
        max(k for k, c in enumerate(groups_by_colour(n, pairs)) if c == mine) for mine in groups_by_colour(n, pairs)
    ],
    "pairs in order only": lambda n, pairs: groups_by_colour(n, [p for p in pairs if p[0] < p[1]]),
    "pages with a partner alone": lambda n, pairs: [
        groups_by_colour(n, pairs)[k] for k in sorted({k for p in pairs for k in p})
    ],
    "eats its pairs": lambda n, pairs: groups_by_colour(n, [pairs.pop() for _ in range(len(pairs))]),
}  # fmt: skip

GAPS = {
    "check_take_off": ([frame()], WRONG_FRAMES),
    "check_candidates": ([candidates_one_by_one], WRONG_CANDIDATES),
    "check_groups": ([], WRONG_GROUPS),
}
test_right_gaps, test_wrong_gaps = gap_tests(GAPS)


# ---- What the chapter stands on


def test_the_crawl_is_what_the_text_says(chapter):
    c = chapter
    held, train, planted = c.crawl(3)
    assert len(held) == 60 and len(planted) == 24 and c.crawl(3) == (held, train, planted)
    for number, page in enumerate(held):
        copies = sum(other.startswith(page) for other in train)
        assert copies == c.TWINS[number // 20]
    for keeper, (family, copies, code) in planted.items():
        line = f"{keeper} has the code {' '.join(map(str, code))}. "
        pages = [page for page in train if page.startswith(line)]
        assert len(pages) == copies
        assert len({page.split(" Copied on")[0] for page in pages}) == (copies if family == "signature" else copies > 0)


def test_cleaning_takes_the_copies_and_leaves_the_signatures(chapter):
    c = chapter
    held, train, _ = c.crawl(4)
    left = c.clean(held, train, 4)
    assert sum("Copied on" in page for page in train) == 172
    assert sum("Copied on" in page for page in left) < 10
    assert set(page for page in train if "Copied on" not in page) - set(left) == set()


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def layout_from_above(m, high, low, wanted):
    """Another right answer: all layouts."""
    met = lambda s, b, r: 1 - (1 - s**r) ** b
    found = [(b, r) for b in range(1, m + 1) for r in range(1, m // b + 1) if met(high, b, r) >= wanted]
    return min(found, key=lambda layout: met(low, *layout), default=(0, 0))


def test_other_right_answers(chapter):
    c = chapter
    assert verdict(c.check_layout, layout_from_above) == "right"
    share = lambda p: 2 * np.arctanh(2 * p - 1)  # the logarithm of the odds
    assert verdict(c.check_temperature, lambda p, q: float(share(p) / share(q))) == "right"
    ranks = lambda bits, n: sum(rank <= n / 2**bits + 1e-9 for rank in range(1, n + 1))
    assert verdict(c.check_luck, lambda bits, n, k: 1 - ((n - ranks(bits, n)) / n) ** k) == "right"
    assert verdict(c.check_sentences, lambda: ("12.30.45", "9 12-13-14- 9", "(12-13-14)")) == "right"
