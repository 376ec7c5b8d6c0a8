"""Watching: every call of every rank is reported before it is made, and a supervisor pairs them.

On a rank, a `Watcher` (a recorder that also reports) checks what one rank can know: peers, buffers, requests, numbers.
In the owner, the `Supervisor` checks what only all ranks together show: calls that do not fit, and waits in a circle.
"""
