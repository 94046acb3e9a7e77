"""The dashboard: jobs as web pages. It only looks and asks: what it knows, it has from masters and from job folders.

One process serves it, which is never a job's own: a page costs a training step nothing. What it remembers is bounded.
"""
