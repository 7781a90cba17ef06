// Show the definition of a glossary term next to its link on hover, on keyboard focus and at a tap. The box stays while the
// pointer is on the link or on the box, and Escape closes it (WCAG 2.1, 1.4.13). The page holds the definitions in a <template>.
(() => {
  const store = document.getElementById("glossary-definitions");
  if (!store) return;

  const tip = document.createElement("div");
  tip.className = "glossary-tip";
  tip.id = "glossary-tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);

  let shown = null; // the link whose definition is shown
  let timer = 0;

  const definition = (link) => store.content.querySelector(`[data-term="${CSS.escape(link.hash.slice(1))}"]`);

  function place() {
    const line = shown.getClientRects()[0]; // a link may run over two lines
    const below = line.bottom + tip.offsetHeight + 10 < innerHeight || line.top < tip.offsetHeight + 10;
    const left = Math.min(line.left, document.documentElement.clientWidth - tip.offsetWidth - 16);
    tip.style.left = `${Math.max(left, 16) + scrollX}px`;
    tip.style.top = `${(below ? line.bottom + 6 : line.top - tip.offsetHeight - 6) + scrollY}px`;
  }

  function show(link) {
    clearTimeout(timer);
    if (shown === link) return;
    hide();
    shown = link;
    tip.replaceChildren(...definition(link).cloneNode(true).childNodes);
    tip.hidden = false;
    link.setAttribute("aria-describedby", tip.id);
    place();
    if (tip.querySelector(".math")) {
      window.MathJax?.typesetPromise?.([tip]).then(() => {
        tip.querySelectorAll("[tabindex]").forEach((part) => part.removeAttribute("tabindex"));
        if (shown === link) place();
      });
    }
  }

  function hide() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  }

  const soon = (action, milliseconds) => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };

  for (const term of document.querySelectorAll("a > .std-term")) {
    const link = term.parentElement;
    if (!definition(link)) continue;
    link.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && soon(() => show(link), 150));
    link.addEventListener("pointerleave", () => soon(hide, 250));
    link.addEventListener("focus", () => link.matches(":focus-visible") && show(link));
    link.addEventListener("blur", hide);
    let finger = false;
    link.addEventListener("pointerdown", (event) => (finger = event.pointerType === "touch"));
    link.addEventListener("click", (event) => {  // a finger sees the definition first; its second tap follows the link
      if (!finger || shown === link) return;
      event.preventDefault();
      show(link);
    });
  }
  tip.addEventListener("pointerenter", () => clearTimeout(timer));
  tip.addEventListener("pointerleave", () => soon(hide, 250));
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("pointerdown", (event) => shown && !shown.contains(event.target) && !tip.contains(event.target) && hide());
  addEventListener("resize", hide);
})();
