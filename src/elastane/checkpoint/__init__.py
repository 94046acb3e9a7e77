"""Saving and restoring: how a training state lies in files, which of them are whole, and which may go.

Nothing here knows a trainer. A checkpoint is a folder with tensors as safetensors and a manifest that is renamed into
place last; it is the same in shared memory and on disk.
"""
