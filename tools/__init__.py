"""What builds and checks the book, from the top of the repository: python -m tools.notebooks.mirror.

Rooms by purpose: notebooks, book (it uses notebooks), course and workshop (they use both).
"""
