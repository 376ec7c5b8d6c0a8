"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters."""
