"""What elastane tells Prometheus: every metric by name, declared once, and the page that serves them.

`of_master`, `of_ps`, `of_brain` and `of_operator` declare; docs/metrics.md and the Grafana dashboard are checked
against them. What the values are is known where the state is, and read when somebody asks: no step pays for it. Only
`scrape` and `page` need prometheus_client, and whoever serves a page imports them then.
"""
