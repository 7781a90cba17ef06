// Ranks the pages that search finds by how often they say its words; excerpts without the map of the book.
// `often` stands in the index (tools/book/search_index.py): for each word the pages that say it most, with its count there.
document.addEventListener("DOMContentLoaded", () => {
  const stemmer = new Stemmer();
  const query = new URLSearchParams(location.search).get("q") || "";
  const words = query.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean).map(word => stemmer.stemWord(word));

  Scorer.score = ([docname, title, anchor, descr, score]) => {
    const page = Search._index.docnames.indexOf(docname);
    const share = words.map(word => {
      const counts = Search._index.often[word] || {};
      return (counts[page] || 0) / Math.max(1, ...Object.values(counts));
    });
    return score + 20 * share.reduce((sum, x) => sum + x, 0) / Math.max(1, share.length);
  };

  const text = Search.htmlToText;
  Search.htmlToText = (page, anchor) => {
    const parsed = new DOMParser().parseFromString(page, "text/html");
    parsed.querySelectorAll(".admonition.here, table.facts").forEach(box => box.remove());
    return text(parsed.documentElement.outerHTML, anchor);
  };
});
