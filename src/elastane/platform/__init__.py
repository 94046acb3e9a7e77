"""Where nodes live: processes on this machine, or pods. `base` is what every platform does."""
