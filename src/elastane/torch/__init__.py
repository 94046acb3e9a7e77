"""PyTorch: nothing outside this room (and `ps`, `checkpoint`) imports torch."""
