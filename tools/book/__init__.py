"""The book that they make: Sphinx's extensions, computed pages, the site's check, PDF, copies for JupyterLab."""
