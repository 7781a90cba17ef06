// Colours a cell that begins with %%cuda as C++, in JupyterLab 4 and Notebook 7. It is written by hand in the form that
// JupyterLab loads (a module federation container), so that nothing has to be built.
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
    model.mimeTypeChanged.connect(check); // the notebook sets every cell's when the kernel says its language
  }

  function watch(notebook) {
    const usual = () => notebook.codeMimetype;
    const seen = new WeakSet();
    const all = () => notebook.widgets.forEach(cell => {
      if (seen.has(cell)) return;
      seen.add(cell);
      colour(cell, usual);
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
        description: 'Colours cells that begin with %%cuda as C++.',
        autoStart: true,
        requires: [INotebookTracker],
        activate: (app, notebooks) => {
          notebooks.forEach(panel => watch(panel.content));
          notebooks.widgetAdded.connect((_, panel) => watch(panel.content));
        },
      };
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
