"""The search index without the map of the book, which names every chapter on each page, and with words counted."""

import functools
import io
from collections import Counter

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

    def load(self, stream, format) -> None:
        """Take over from the last build what is not read again, with its counts."""
        text = stream.read()
        super().load(io.StringIO(text), format)
        index = format.loads(text)
        for word, pages in index["often"].items():
            for number, n in pages.items():
                self.counts.setdefault(index["docnames"][int(number)], Counter())[word] = n

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
        return index | {"often": top}
