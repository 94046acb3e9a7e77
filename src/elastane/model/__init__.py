"""The nouns: frozen dataclasses, enums and errors.

Nothing here does I/O, reads a clock or starts a thread. Only `job_spec` uses a library (pydantic), and nothing in
this room imports it, so the other nouns stay free of dependencies.
"""
