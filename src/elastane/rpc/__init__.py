"""The wire: .proto files, what is generated from them, channels and servers.

The .proto files are the contract, and say what each message means. `wire` turns messages into the nouns of `model` and
back, and is the only place that does: past it, every value has been checked.
"""
