"""The notebooks as files: run, numbered, counted, mirrored, compared, and the results that they plot."""
