"""Branches in the plan: islands train on parts of the text, and nothing is sent between them until the last step.

Li et al. 2022, "Branch-Train-Merge", arXiv:2208.03306. In `synchronous_steps` all train one model together, the seed of
all branches; then each goes its own way, and at the end keeps its own parameters. A checkpoint has those of all;
`merge` makes one model of it. A rank sends 0 bytes to other islands, keeps nothing, and waits for them only to save.
"""

from .meeting import AfterStep, Meeting


class Apart(Meeting):
    """Islands that never meet."""

    def begin(self) -> None:
        pass

    def after(self, at: AfterStep) -> bool:
        return False
