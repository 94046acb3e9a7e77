"""The contract and what `make protos` generates from it. Edit the .proto files, never the generated ones."""
