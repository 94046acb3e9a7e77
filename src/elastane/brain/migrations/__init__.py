"""Alembic's migrations of the Brain's database. One that has been released is never edited; a new one follows it."""
