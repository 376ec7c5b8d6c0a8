"""The commands of `rankwise`, one module for each group of them."""
