// Small things of the pages that no style sheet can do. Without JavaScript a page is still whole.

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

// A formula that is wider than the page is drawn smaller, down to four fifths; what is still wider scrolls, by keyboard too.
const fitFormulas = () => {
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    formula.style.fontSize = "";
    const full = parseFloat(getComputedStyle(formula).fontSize);
    const share = formula.clientWidth / formula.scrollWidth;
    if (share < 1) formula.style.fontSize = `${full * Math.max(share * 0.99, 0.8)}px`;
    formula.toggleAttribute("data-wide", formula.scrollWidth > formula.clientWidth + 1);
    if (formula.hasAttribute("data-wide")) formula.tabIndex = 0;
    else formula.removeAttribute("tabindex");
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
  window.MathJax?.startup?.promise.then(fitFormulas);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(fitFormulas, 200);
  });
});
