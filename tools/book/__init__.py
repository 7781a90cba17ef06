"""Programs that build the book: Sphinx extensions, computed pages, a site check, a PDF, copies for JupyterLab."""
