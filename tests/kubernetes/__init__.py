"""Tests against a real Kubernetes: `make test-kubernetes` builds it once, brings it up and runs them."""
