"""What builds and checks the book, from the top of the repository: python -m tools.notebooks.mirror.

Folders by purpose: notebooks, book (which uses notebooks), course and release (which use both).
"""
