// An extension of JupyterLab 4 and Notebook 7. It highlights cells that begin with %%cuda as C++, marks the cells that
// the reader fills in ("gap"), gives figures their alt text, and scrolls to the place that a link names.
// The file is written by hand as a module federation container, the form that JupyterLab loads, so there is no build.
(() => {
  const CPP = 'text/x-c++src';

  function colour(cell, usual) {
    const model = cell.model;
    if (model.type !== 'code') return;
    const check = () => {
      const wanted = model.sharedModel.getSource().startsWith('%%cuda') ? CPP : usual();
      if (wanted && model.mimeType !== wanted) model.mimeType = wanted;
    };
    check();
    model.contentChanged.connect(check);
    model.mimeTypeChanged.connect(check); // the notebook resets all cells when the kernel reports its language
  }

  function describe(cell) {
    const tags = cell.model.getMetadata('tags') || [];
    if (tags.includes('gap')) cell.node.style.borderLeft = '3px solid var(--jp-warn-color1)';
    const alt = cell.model.getMetadata('mystnb')?.image?.alt;
    if (!alt) return;
    const name = () => cell.node.querySelectorAll('.jp-OutputArea img').forEach(picture => { picture.alt = alt; });
    name();
    new MutationObserver(name).observe(cell.node, { childList: true, subtree: true });
  }

  // JupyterLab opens the page of a link (of the glossary or the references) but does not scroll to the place.
  function follow(event) {
    const place = event.target.closest?.('a[href*=".md"]')?.hash.slice(1);
    let tries = place ? 25 : 0;
    const look = () => {
      const found = [...document.querySelectorAll('.jp-MarkdownViewer [id]')].find(e => e.id === place && e.offsetParent);
      if (found) found.scrollIntoView({ block: 'center' });
      else if (tries--) setTimeout(look, 200);
    };
    if (place) setTimeout(look, 400);
  }

  function watch(notebook) {
    const usual = () => notebook.codeMimetype;
    const seen = new WeakSet();
    const all = () => notebook.widgets.forEach(cell => {
      if (seen.has(cell)) return;
      seen.add(cell);
      colour(cell, usual);
      describe(cell);
    });
    all();
    notebook.modelContentChanged.connect(all);
    notebook.modelChanged.connect(all);
  }

  let shared;
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB['nanoeuler-cuda'] = {
    init: scope => { shared = scope; },
    get: async () => {
      const { INotebookTracker } = (await Object.values(shared['@jupyterlab/notebook'])[0].get())();
      const plugin = {
        id: 'nanoeuler-cuda:colour',
        description: 'Colours cells that begin with %%cuda as C++, marks gaps, describes figures.',
        autoStart: true,
        requires: [INotebookTracker],
        activate: (app, notebooks) => {
          document.addEventListener('click', follow, true);
          notebooks.forEach(panel => watch(panel.content));
          notebooks.widgetAdded.connect((_, panel) => watch(panel.content));
        },
      };
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
