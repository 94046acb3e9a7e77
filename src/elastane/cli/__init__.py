"""The commands. `app` lists them; each says on one line what went wrong, and exits with a code that means it.

0: done. 1: the job failed, or the request was refused. 2: what was typed cannot be used. 130, 143: stopped by a signal.
"""
