"""What `benchmarks.membership` measures: one training script and one driver for each system, and one way to read both.

`workload` and the `train_*` scripts run in the environment of their system and import nothing of the others.
"""
