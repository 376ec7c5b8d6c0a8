"""Resilience: training that goes wrong, and continues.

Read `plain.py`; then `async_save.py`, which lets training continue while a checkpoint is written.

    plain.py                    a checkpoint that is there whole or not at all, written now or behind training
    async_save.py               `plain.save_behind` for any plan: copy, write behind training, agree between steps
    incremental.py              write only what has changed since the last full checkpoint
    preemption.py               SIGTERM with a grace period: agree on a step, save, leave
    answers/saving.py           saving whole, and behind training
    answers/loading.py          loading on other ranks, in order, and together
"""
