// Search in all pages' sections: by stems, so that "gradients" finds "gradient"; a word that does not occur is taken for the
// nearest one that does. Loaded by the search page alone, before Sphinx's searchtools.js, whose index has a different form here
// (tools/book/search_index.py): { pages: { name: [title, [[anchor, heading, text, names in code], ...]] },
// leads: { words: [pages to show first] }, absent: { words that the book does not treat: [nearest pages] },
// introduced: { term: page } }.
const words = text => text.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);

// How much a page of this kind counts: a reader who asks for a word wants the chapter before the function.
const weight = name =>
  name.startsWith("notebooks/") ? 1 : /references|status/.test(name) ? 0.2 : /api\/|instructor\//.test(name) ? 0.35 : 0.6;

// Letters to change, add, drop or swap until one word is the other.
const distance = (a, b) => {
  let before = [], last = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] !== b[j - 1]));
      if (a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], before[j - 2] + 1);
    }
    [before, last] = [last, row];
  }
  return last[b.length];
};

// find(query): { hits: [{ page, title, score, sections: [best first] }], instead: { word as typed: word taken for it },
// absent: what of the query the book does not treat, or null; hits are then the nearest pages only }.
const searcher = (index, stemWord, stops) => {
  const stems = new Map();  // of each word of the book
  const often = new Map();  // how often each word occurs there
  const stem = word => {
    if (!stems.has(word)) stems.set(word, stemWord(word.replace(/is(e[drs]?|ers?|ing|ations?)$/, "iz$1")));
    return stems.get(word);
  };
  const count = (into, text, share) => {
    const found = words(text);
    for (const word of found) {
      often.set(word, (often.get(word) ?? 0) + 1);
      for (const part of word.includes("_") ? [word, ...word.split("_")] : [word])
        into.set(stem(part), (into.get(stem(part)) ?? 0) + share);
    }
    return found.length;
  };
  const pages = Object.entries(index.pages).map(([page, [title, found]]) => {
    const counts = new Map();
    count(counts, title, 12);
    const sections = found.map(([anchor, heading, text, code], n) => {
      const own = new Map();
      const length = count(own, text, 1);
      count(own, code, 0.3);
      count(own, heading, n ? 4 : 8);
      for (const [word, n] of own) counts.set(word, (counts.get(word) ?? 0) + n);
      return { anchor: n ? anchor : "", heading, text, counts: own, length };
    });
    return { page, title, counts, sections, length: sections.reduce((sum, s) => sum + s.length, 0) };
  });
  const mean = list => list.reduce((sum, x) => sum + x.length, 0) / list.length;
  const meanPage = mean(pages), meanSection = mean(pages.flatMap(page => page.sections));
  const known = word => pages.some(page => page.counts.has(stem(word)));
  const rare = s => Math.log(1 + pages.length / (0.5 + pages.filter(page => page.counts.has(s)).length));

  // A word that does not occur: one that begins so, else the nearest; of equally near ones the commonest.
  const nearest = word => {
    const reach = word.length < 4 ? 0 : word.length < 7 ? 1 : 2;
    let best = null, least = [Infinity];
    for (const [other, n] of often) {
      if (Math.abs(other.length - word.length) > reach && !(word.length > 2 && other.startsWith(word))) continue;
      const far = other.startsWith(word) ? 0.5 : distance(word, other);
      if (far > reach && far !== 0.5) continue;
      const rank = [far + (other[0] !== word[0]) * 0.5, -n];
      if (rank[0] < least[0] || (rank[0] === least[0] && rank[1] < least[1])) [best, least] = [other, rank];
    }
    return best;
  };

  // The terms of BM25: how much of the query `counts` has, against the length of what is counted.
  const share = (asked, counts, length, usual) => asked.reduce((sum, s) => {
    const n = counts.get(s) ?? 0;
    return sum + (rare(s) * n * 2.2) / (n + 1.2 * (0.4 + (0.6 * length) / usual));
  }, 0);
  const phrase = list => ` ${list.map(stem).join(" ")} `;

  const find = query => {
    const instead = {};
    let typed = words(query);
    typed = typed.filter(word => !stops.includes(word)).length ? typed.filter(word => !stops.includes(word)) : typed;
    const same = (of, list) => Object.keys(of).find(said => phrase(words(said)) === phrase(list));
    const whole = same(index.leads, words(query));
    const within = said => phrase(words(query)).includes(phrase(words(said)));
    const absent = whole ? null : Object.keys(index.absent).find(within) ?? null;
    const taken = typed.map(word => {
      const other = known(word) || whole || absent ? null : nearest(word);
      if (other) instead[word] = other;
      return other ?? word;
    });
    const first = index.absent[absent] ?? index.leads[whole ?? same(index.leads, taken)] ?? [];
    const introduces = index.introduced[same(index.introduced, taken)];
    const asked = [...new Set(taken.map(stem))];
    const code = /[_.()]/.test(query);
    const hits = [];
    for (const { page, title, counts, sections, length } of pages) {
      const has = asked.filter(s => counts.has(s)).length;
      const leads = first.indexOf(page);
      if (leads < 0 && (!has || absent)) continue;
      const ranked = sections.map(section => {
        let score = share(asked, section.counts, section.length, meanSection);
        if (!asked.every(s => section.counts.has(s))) return { ...section, score };
        if (taken.length > 1 && phrase(words(section.text)).includes(phrase(taken))) score *= 1.5;
        if (phrase(words(section.heading)) === phrase(taken)) score *= 2;  // a term, a function
        return { ...section, score };
      }).sort((a, b) => b.score - a.score);
      const best = ranked[0]?.score ?? 0;
      let score = (share(asked, counts, length, meanPage) + best) * (code ? 1 : weight(page));
      score *= (has / asked.length) ** 3;
      if (page === introduces) score *= 1.3;
      if (phrase(words(title)).includes(phrase(taken))) score *= 1.5;
      if (leads >= 0) score = 1000 - leads;
      const shown = ranked.filter((section, n) => !n || (n < 3 && section.score > 0.6 * best && section.score > 0));
      hits.push({ page, title, score, sections: shown });
    }
    return { hits: hits.sort((a, b) => b.score - a.score), instead, taken, absent };
  };
  return { find, stem };
};

// Some 240 letters of a text around the place that has the most of the words asked for; those are marked.
const excerpt = (text, asked, stem) => {
  const places = [...text.matchAll(/[\p{L}\p{N}_]+/gu)].filter(found => asked.has(stem(found[0].toLowerCase())));
  const value = at => new Set(places.filter(p => p.index >= at && p.index < at + 200).map(p => stem(p[0].toLowerCase()))).size;
  const best = places.reduce((a, b) => (a === null || value(b.index) > value(a.index) ? b : a), null);
  const from = best && best.index > 80 ? text.lastIndexOf(" ", best.index - 60) + 1 : 0;
  const to = text.length > from + 240 ? text.lastIndexOf(" ", from + 240) : text.length;
  const line = document.createElement("p");
  line.className = "context";
  let at = from;
  line.append(from ? "… " : "");
  for (const place of places.filter(p => p.index >= from && p.index + p[0].length <= to)) {
    const mark = document.createElement("mark");
    mark.textContent = place[0];
    line.append(text.slice(at, place.index), mark);
    at = place.index + place[0].length;
  }
  line.append(text.slice(at, to), to < text.length ? " …" : "");
  return line;
};

const SHOWN = 20;  // pages
const show = (query, { find, stem }) => {
  const { hits, instead, taken, absent } = find(query);
  const asked = new Set(taken.map(stem));
  const link = (page, { anchor }, words) => {
    const a = document.createElement("a");
    a.href = `${page}.html${anchor ? `#${anchor}` : ""}`;
    a.textContent = words;
    return a;
  };
  Search.stopPulse();
  Search.title.textContent = "Search results";
  const typos = Object.entries(instead).map(([word, other]) => `“${word}” does not occur in the book; these are hits for “${other}”. `);
  const some = hits.length === 1 ? "1 page" : `${hits.length} pages`;
  Search.status.textContent = absent ? `The book does not treat “${absent}”. Nearest ${hits.length === 1 ? "page" : "pages"}:`
    : typos.join("") + (hits.length ? `${some}${hits.length > SHOWN ? `, the first ${SHOWN}` : ""}.`
      : "Nothing found. Try another word, or look in the glossary.");
  Search.output.replaceChildren(...hits.slice(0, SHOWN).map(({ page, title, sections: [best, ...more] }) => {
    const hit = document.createElement("li");
    const head = best.anchor && best.heading !== title ? `${title}: ${best.heading}` : title;
    hit.append(link(page, best, head), excerpt(best.text, asked, stem));
    if (more.length) {
      const also = document.createElement("p");
      also.className = "also";
      also.append("Also: ", ...more.flatMap((section, n) => [n ? ", " : "", link(page, section, section.heading || title)]));
      hit.append(also);
    }
    return hit;
  }));
};

if (typeof document !== "undefined")
  document.addEventListener("DOMContentLoaded", () => {
    let made = null;
    Search.query = query => {
      const stemmer = new Stemmer();
      made ??= searcher(Search._index, word => stemmer.stemWord(word), stopwords);
      localStorage.setItem("sphinx_highlight_terms", words(query).join(" "));  // the page that is opened marks them
      Search.status.setAttribute("role", "status");
      show(query, made);
    };
  });
else module.exports = { searcher, words };
