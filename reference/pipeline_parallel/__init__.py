"""Pipeline parallelism: every rank has some of the layers, and micro-batches pass through."""
