"""Random programs for the watch, right and wrong: `python -m tests.watch.generated` runs as many as one likes."""
