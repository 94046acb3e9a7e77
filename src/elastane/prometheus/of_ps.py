"""The metrics of a parameter server's own process."""

from __future__ import annotations

from elastane.prometheus.declared import Declarations

PS = Declarations("job", "node")

ATTENDS = PS.gauge("elastane_ps_attends", "Whether its stream to the master is open.")
BUCKETS = PS.gauge("elastane_ps_buckets", "Buckets of which it has something, by what it has.", "state")
COPYING = PS.gauge("elastane_ps_copying_buckets", "Buckets that it is copying to another server.")
MOVES = PS.counter("elastane_ps_moves_total", "Buckets that came or went, or could not.", "outcome")
LINKS_LOST = PS.counter("elastane_ps_links_lost_total", "Connections to other servers that broke.")
ROWS = PS.counter("elastane_ps_rows_total", "Rows that were pulled from it and pushed to it.")
STEP = PS.gauge("elastane_ps_step", "One more than the highest step that a client has pushed here.")
TABLE_ROWS = PS.gauge("elastane_ps_table_rows", "Rows of a table here, backups included.", "table")
TABLE_BYTES = PS.gauge("elastane_ps_table_bytes", "What a table takes here.", "table")
TABLE_COUNTED = PS.gauge(
    "elastane_ps_table_counted_ids", "Ids of a table that were pushed, and are not rows yet.", "table"
)
