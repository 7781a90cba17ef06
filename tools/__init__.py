"""What builds and checks the book. Run from the top of the repository: python -m tools.mirror."""
