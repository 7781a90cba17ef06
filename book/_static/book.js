// Small things of the pages that no style sheet can do. Without JavaScript a page is still whole.

// Use the reader's setting (light or dark) before anything is shown. The theme's own script runs after the page: until then,
// a dark page would be white, and its buttons would fade from white to dark.
if (document.documentElement.dataset.mode === "auto")
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

// The sidebar shows where you are: at once, and on a phone when it opens.
const showPlace = () => {
  const place = document.querySelector(".bd-sidebar-primary .toctree-l1.current");
  for (let box = place; box && box !== document.body; box = box.parentElement) {
    if (box.scrollHeight > box.clientHeight + 1 && getComputedStyle(box).overflowY !== "visible")
      box.scrollTop += place.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
  }
};

// The button of a folded box is called by what it does and by the box's title: "Click to show: Hint".
const nameButtons = () => {
  for (const button of document.querySelectorAll(".toggle-button")) {
    const title = button.parentElement.textContent.trim();
    const name = () => button.setAttribute("aria-label", `${button.dataset.toggleHint}: ${title}`);
    name();
    new MutationObserver(name).observe(button, { attributeFilter: ["data-toggle-hint"] });
  }
};

// A formula that does not fit next to its number is drawn smaller, down to two thirds. If that is not enough, the number goes
// below the formula on a phone, and the formula may be larger again. A formula that is still too wide scrolls, also by
// keyboard. MathJax gives a formula the size of the letters around it.
const fits = formula => {
  formula.style.fontSize = formula.dataset.size ??= formula.style.fontSize;
  const full = parseFloat(getComputedStyle(formula).fontSize);
  const share = formula.clientWidth / formula.scrollWidth;
  if (share < 1) formula.style.fontSize = `${full * Math.max(share * 0.99, 0.66)}px`;
  return formula.scrollWidth <= formula.clientWidth + 1;
};
const fitFormulas = () => {
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    formula.removeAttribute("data-alone");
    formula.removeAttribute("data-wide");
    if (!fits(formula)) {
      formula.toggleAttribute("data-alone", true);
      formula.toggleAttribute("data-wide", !fits(formula));
    }
    if (formula.hasAttribute("data-wide")) formula.tabIndex = 0;
    else formula.removeAttribute("tabindex");
  }
  for (const formula of document.querySelectorAll(".bd-article span.math")) {  // one that fills its line and goes on scrolls
    formula.removeAttribute("data-long");
    let block = formula.parentElement;
    while (getComputedStyle(block).display.startsWith("inline")) block = block.parentElement;
    const { paddingLeft, paddingRight } = getComputedStyle(block);
    const room = block.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
    const long = room > 0 && formula.clientWidth > room - 2 && formula.scrollWidth > formula.clientWidth + 1;
    formula.toggleAttribute("data-long", long);
    if (long) formula.tabIndex = 0;
    else formula.removeAttribute("tabindex");
  }
};

// Code, tables and figures that are wider than the page fade at the edge where they go on. A fold's are seen when it opens.
const showCut = box => {
  box.toggleAttribute("data-cut-left", box.scrollLeft > 1);
  box.toggleAttribute("data-cut-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
};
const showCuts = () => {
  const sizes = new ResizeObserver(changed => changed.forEach(({ target }) => showCut(target)));
  for (const box of document.querySelectorAll(".bd-article :is(pre, .pst-scrollable-table-container, a.image-reference)")) {
    sizes.observe(box);
    box.addEventListener("scroll", () => showCut(box), { passive: true });
  }
};

// A full stop after a formula stays on the formula's line.
const holdPunctuation = () => {
  for (const formula of document.querySelectorAll('.bd-article mjx-container:not([display="true"])')) {
    const whole = formula.closest("span.math") ?? formula;
    const behind = whole.nextSibling;
    const marks = behind?.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]’”]+/.exec(behind.data);
    if (!marks) continue;
    const held = document.createElement("span");
    held.style.whiteSpace = "nowrap";
    whole.before(held);
    behind.splitText(marks[0].length);
    held.append(whole, behind);
  }
};

// Paper shows what is folded.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach(fold => (fold.open = true));
});
addEventListener("afterprint", () => closed.forEach(fold => (fold.open = false)));

addEventListener("DOMContentLoaded", () => {
  showPlace();
  nameButtons();
  document.querySelector(".primary-toggle")?.addEventListener("click", () => setTimeout(showPlace, 50));
});
addEventListener("load", () => {
  showCuts();
  window.MathJax?.startup?.promise.then(holdPunctuation).then(fitFormulas);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(fitFormulas, 200);
  });
});
