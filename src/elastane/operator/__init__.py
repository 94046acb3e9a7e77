"""The operator: what a Kubernetes cluster needs for elastic jobs, and what makes and follows their masters.

It decides from what it sees, and may be restarted at any moment. How a job trains is its master's business: nothing
here leases a shard, forms a world or speaks with a worker.
"""
