"""Chapter 31: test that its checks accept right answers and reject wrong ones, and that the crawl is as described."""

import numpy as np
from chapters import accepts, rewritten_tests

NAMES = "BOOK", "FRAMES", "TRICKY", "PATTERNS", "WHO", "TRADES", "DAYS", "BRIDGES", "LOOKS", "THINGS", "GOODS"
NAMES += "USUAL", "KEEPERS", "FAMILIES", "COPIES", "PAGES", "HELD", "TWINS", "NOTICE", "WIDE"
NOTEBOOK = "31_text_from_elsewhere", *NAMES


# ---- The gaps


PATTERN = 'rf"^ *\\*+ *{word} OF.*$"'
WRONG_FRAMES = {
    "carriage returns go": ('strip("\\n")', 'strip("\\r\\n")'),
    "capitals only": ("re.I | re.M", "re.M"),
    "the last marker": ("last = end.search(text, begin)", "last = ([None] + list(end.finditer(text, begin)))[-1]"),
    "START without OF": ("{word} OF", "(THE )?{word}"),
    "nothing without an end": ("last.start() if last else len(text)", "last.start() if last else begin"),
    "an end marker anywhere": (PATTERN, 'rf"\\* *{word} OF.*$"'),
    "any white space before the stars": (PATTERN, 'rf"^\\s*\\*+ *{word} OF.*$"'),
    "any white space after the stars": (PATTERN, 'rf"^ *\\*+\\s*{word} OF.*$"'),
    "any white space after the word": (PATTERN, 'rf"^ *\\*+ *{word}\\s+OF.*$"'),
    "lines with spaces dropped": ('strip("\\n")', "strip()"),
}
KEY, SLICE = "tuple(numbers)", "sketches[:, band * rows : (band + 1) * rows]"
WRONG_CANDIDATES = {
    "digits glued together": (KEY, "''.join(map(str, numbers))"),
    "columns emptied": ("    pairs = set()", "    pairs = set()\n    sketches[:, bands * rows :] = 0"),
    "one dictionary": (
        "    for band in range(bands):\n        alike = defaultdict(list)",
        "    alike = defaultdict(list)\n    for band in range(bands):",
    ),
    "only pairs with the first page": ("combinations(pages, 2)", "(pages[0], page) for page in pages[1:]"),
    "columns taken across": (SLICE, "sketches[:, band::bands][:, :rows]"),
    "floats": ("combinations(pages, 2)", "((float(a), float(b)) for a, b in combinations(pages, 2))"),
}
NUMPY_PAIRS = {"NumPy's integers": [("combinations(pages, 2)", "combinations(map(np.int64, pages), 2)")]}
GROUP = "sorted((first(i), first(j)))"
WRONG_GROUPS = {
    "one pass": (GROUP, "sorted((above[i], above[j]))"),
    "the largest": (GROUP, "sorted((first(i), first(j)), reverse=True)"),
    "pairs in order only": ("for i, j in pairs", "for i, j in (p for p in pairs if p[0] < p[1])"),
    "only pages with a partner": ("for page in range(n)", "for page in sorted({k for p in pairs for k in p})"),
    "the pairs are used up": ("for i, j in pairs", "for i, j in [pairs.pop() for _ in range(len(pairs))]"),
    "floats": ("[first(page) for", "[float(first(page)) for"),
}
NUMPY_GROUPS = {"NumPy's integers": [("[first(page) for", "[np.int64(first(page)) for")]}
test_right_gaps, test_wrong_gaps = rewritten_tests(
    {
        "check_take_off": ("take_off", {}, WRONG_FRAMES),
        "check_candidates": ("candidates", NUMPY_PAIRS, WRONG_CANDIDATES),
        "check_groups": ("groups", NUMPY_GROUPS, WRONG_GROUPS),
    }
)


# ---- The crawl and its cleaning


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


def test_cleaning_drops_the_copies_and_keeps_the_signatures(chapter):
    c = chapter
    held, train, _ = c.crawl(4)
    left = c.clean(held, train, 4)
    assert sum("Copied on" in page for page in train) == 172
    assert sum("Copied on" in page for page in left) < 10
    assert set(page for page in train if "Copied on" not in page) - set(left) == set()


# ---- The exercises; the notebook's own run tries the wrong answers that its solutions name


def layout_by_numpy(m, high, low, wanted):
    """Try all layouts in arrays; return NumPy's integers."""
    bands, rows = (x.ravel() for x in np.mgrid[1 : m + 1, 1 : m + 1])
    found = lambda s: 1 - (1 - s**rows) ** bands
    possible = np.flatnonzero((bands * rows <= m) & (found(high) >= wanted))
    if not len(possible):
        return np.int64(0), np.int64(0)
    best = possible[found(low)[possible].argmin()]
    return bands[best], rows[best]


def other_temperature(p, q):
    return 1 if p == q else np.arctanh(2 * p - 1) / np.arctanh(2 * q - 1)


def other_luck(bits, n, k):
    return 1 if bits == 0 else 1 - (1 - np.floor(n / 2**bits + 1e-9) / n) ** k


test_other_right_answers = accepts(
    {
        "check_layout": [layout_by_numpy],
        "check_temperature": [other_temperature],
        "check_luck": [other_luck],
        "check_sentences": [lambda: ("12.30.45", "9 12-13-14- 9", "(12-13-14)")],
    }
)
