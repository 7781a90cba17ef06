"""The search index without the map of the book, which names every chapter on each page, and with words counted."""

import functools
import json
from collections import Counter
from pathlib import Path

from docutils import nodes
from sphinx.search import IndexBuilder

PAGES = 6  # that are told apart by their counts, for each word


class Index(IndexBuilder):
    """Sphinx's index knows that a word stands on a page; its entry `often` says where it stands most often.

    `often` has, for each word of two or more pages, the numbers of at most PAGES pages and the word's count there.
    book/_static/search_rank.js reads it.
    """

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.counts: dict[str, Counter] = {}
        self.lang.stem = functools.cache(
            self.lang.stem
        )  # half of the time of an index is stemming the same words

    @property
    def kept(self) -> Path:
        """What the next build needs of this one and the index does not say: all counts, and who has which entries."""
        return Path(self.env.doctreedir, "search.json")

    def load(self, stream, format) -> None:
        """Take over from the last build what is not read again: the index becomes as one made anew."""
        super().load(stream, format)
        counts, entries = json.loads(self.kept.read_text("utf-8"))
        self.counts |= {page: Counter(words) for page, words in counts.items()}
        self._index_entries.update({page: [tuple(entry) for entry in of] for page, of in entries.items()})

    def prune(self, docnames) -> None:
        """Forget the pages that are no longer there."""
        super().prune(docnames)
        for of in (self.counts, self._index_entries):
            for page in set(of) - set(docnames):
                del of[page]

    def dump(self, stream, format) -> None:
        super().dump(stream, format)
        self.kept.write_text(json.dumps([self.counts, self._index_entries]), "utf-8")

    def feed(self, docname: str, filename: str, title: str, doctree: nodes.document) -> None:
        maps = [
            (box.parent, box.parent.index(box), box)
            for box in doctree.findall(nodes.admonition)
            if "here" in box["classes"]
        ]
        for parent, _, box in maps:
            parent.remove(box)
        super().feed(docname, filename, title, doctree)
        for parent, place, box in maps:
            parent.insert(place, box)  # the page shows it
        self.counts[docname] = Counter()
        for word, n in self.found.items():
            self.counts[docname][self.lang.stem(word).lower()] += n

    def _word_collector(self, doctree: nodes.document):
        store = super()._word_collector(doctree)
        self.found = Counter(store.words)
        return store

    def freeze(self) -> dict:
        index = super().freeze()
        often: dict[str, dict[int, int]] = {}
        for number, docname in enumerate(index["docnames"]):
            for word, n in self.counts.get(docname, {}).items():
                often.setdefault(word, {})[number] = n
        top = {
            word: dict(sorted(pages.items(), key=lambda page: -page[1])[:PAGES])
            for word, pages in often.items()
            if len(pages) > 1
        }
        terms = {word: pages for word, pages in index["terms"].items() if pages != []}  # of no page any more
        entries = {name: sorted(places) for name, places in index["indexentries"].items()}
        return index | {"often": top, "terms": terms, "indexentries": entries}
