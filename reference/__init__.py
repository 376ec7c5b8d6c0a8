"""The answer key that runs: every collective and every form of parallelism, on gloo processes and on NCCL GPUs."""
