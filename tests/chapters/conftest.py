"""The fixture `chapter`: the definitions of the notebook that a test module selects with its variable NOTEBOOK."""

import pytest


@pytest.fixture(scope="module")
def chapter(request):
    from chapters import definitions  # imported here, because it needs the packages of the book

    return definitions(*request.module.NOTEBOOK)
