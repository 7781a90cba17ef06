"""The notebook of a chapter's tests: each names it, and what else of it they need, in NOTEBOOK."""

import pytest


@pytest.fixture(scope="module")
def chapter(request):
    from chapters import definitions  # not before it is asked for: its imports are the book's

    return definitions(*request.module.NOTEBOOK)
