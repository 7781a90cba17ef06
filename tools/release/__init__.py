"""Long checks before a release: planted bugs, other processors and compilers, screenshots to look at."""
