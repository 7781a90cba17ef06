"""Hours before a release: planted mistakes, other processors and compilers, pictures to be looked at."""
