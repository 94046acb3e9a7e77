"""Nodes are pods. Everything about Kubernetes that a master needs is here; no other room of the master's knows of it.

What pods look like (`pods`) and what became of one (`exits`) are pure functions, which the operator uses too.
"""
