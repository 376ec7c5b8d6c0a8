"""Bring a newer course into a learner's checkout, and lose nothing of the learner's.

What a learner owns: the puzzle files puzzles/<chapter>/<puzzle>.py and the notebooks under lessons/. An update

1. finishes an earlier update that was killed;
2. fetches, and stops where there is nothing new, or where both sides have changed a file that the learner does not own;
3. copies every owned file that differs from the last commit into .rankwise/updates/<time>/, keeps solutions in the
   history as well, and writes down in .rankwise/updates/pending.json what is to be put back;
4. takes those files back to the last commit, and merges: a fast-forward, or a merge where the learner has commits. In
   a conflict about an owned file the learner's solution wins, and the course's notebook;
5. puts the learner's solutions back, and the notebooks that the course has not changed. Where both have changed a
   notebook, the course's takes its place and the learner's goes beside it into lessons/mine/;
6. removes the note of step 3. The copies stay.

Killed at any instant, the learner's texts are in their places or in that copy, and the next update begins by
putting them back.
"""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from puzzles.grading.files import write_whole
from reference.errors import BadInput

_MACHINERY = ("catalog", "grading")  # rooms under puzzles/ that are the course's
_SETUP = ("pyproject.toml", "constraints.txt")


@dataclass(frozen=True)
class Report:
    """What an update did. Paths are relative to the checkout.

    Attributes:
        commits: how many new ones came in.
        kept: the learner's solutions and notebooks that stayed in place.
        beside: edited notebooks that the course has changed, too, and where the learner's are now.
        setup: whether what must be installed has changed.
    """

    commits: int
    kept: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    setup: bool = False


def update(root: Path, upstream: str | None = None) -> Report:
    """Bring `root` up to date with `upstream`, such as "origin/main"; by default what its branch follows.

    Raises BadInput where that can't be done safely; then nothing has been changed.
    """
    if upstream is not None and (not upstream or upstream.startswith("-")):
        raise BadInput(f"{upstream!r} is no upstream: say which, as in `rankwise update origin/main`")
    git = Git(root)
    recover(git)
    upstream = upstream or git.upstream()
    git("fetch", "--quiet", upstream.partition("/")[0])
    count = int(git("rev-list", "--count", f"HEAD..{upstream}"))
    if count == 0:
        return Report(0)
    changed = set(git("diff", "--name-only", f"HEAD...{upstream}").splitlines())
    edited = git.edited(upstream)
    in_the_way = sorted(path for path in edited & changed if not owned(path))
    if in_the_way:
        names = ", ".join(in_the_way)
        raise BadInput(
            f"you have changed {names}, and so has the course: commit or undo your change, then update again"
        )
    git.bring_back_deleted()
    mine = sorted(path for path in edited if owned(path))
    backup = save(git, mine)
    try:
        beside = merge(git, upstream, backup)
    except BadInput:
        put_back(git, backup, mine)
        raise
    kept = [path for path in mine if not (path.endswith(".ipynb") and path in changed)]
    apart = [path for path in mine if path not in kept and not only_rerun(git, path, backup / path)]
    beside += [(path, set_beside(root, backup / path)) for path in apart]
    put_back(git, backup, kept)
    return Report(count, tuple(kept), tuple(beside), setup=any(path in changed for path in _SETUP))


class Git:
    """git in one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / ".git").exists():
            raise BadInput(f"{root} is not a git checkout: get the newer course as you got this one")

    def __call__(self, *arguments: str) -> str:
        """Output of a git command. Raises BadInput with git's own words where it fails."""
        done = self.attempt(*arguments)
        if done.returncode:
            raise BadInput(f"git {arguments[0]}: {complaint(done)}")
        return done.stdout.strip()

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess:
        """A git command that may fail."""
        command = ["git", "-C", str(self.root), "-c", "core.quotepath=off", *arguments]
        environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # `complaint` reads English
        try:
            return subprocess.run(command, capture_output=True, text=True, env=environment)
        except OSError as error:
            raise BadInput(f"cannot run git, which brings the course: {error.strerror.lower()}") from None

    def upstream(self) -> str:
        """What the current branch follows; origin's main branch where it follows nothing."""
        for reference in ("@{upstream}", "origin/HEAD", "origin/main"):
            done = self.attempt("rev-parse", "--abbrev-ref", "--verify", reference)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
        raise BadInput("this checkout has no upstream: say which, as in `rankwise update origin/main`")

    def edited(self, upstream: str) -> set[str]:
        """Tracked files that differ from the last commit, and untracked ones that the course now has as well."""
        tracked = set(self("diff", "--name-only", "HEAD").splitlines())
        coming = set(self("ls-tree", "-r", "--name-only", upstream).splitlines())
        return {path for path in tracked if (self.root / path).exists()} | (self.untracked() & coming)

    def untracked(self) -> set[str]:
        """Files that git does not know, without those that it is told to leave alone."""
        return set(self("ls-files", "--others", "--exclude-standard").splitlines())

    def bring_back_deleted(self) -> None:
        """A file that the learner has deleted is one to begin anew."""
        for path in self("ls-files", "--deleted").splitlines():
            if owned(path):
                self("checkout", "--quiet", "HEAD", "--", path)

    def tracks(self, path: str) -> bool:
        """True where the last commit has this file."""
        return self.attempt("cat-file", "-e", f"HEAD:{path}").returncode == 0


def complaint(done: subprocess.CompletedProcess) -> str:
    """What git says is wrong, of all that it says: the first such line, for advice comes after it."""
    lines = (done.stderr or done.stdout).strip().splitlines() or ["failed"]
    return next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])


def owned(path: str) -> bool:
    """True for a file that is the learner's to edit."""
    parts = PurePosixPath(path).parts
    if path.endswith(".ipynb"):
        return parts[0] == "lessons"
    return len(parts) == 3 and parts[0] == "puzzles" and parts[1] not in _MACHINERY and path.endswith(".py")


def save(git: Git, paths: list[str]) -> Path:
    """Copy files away, note that they are to be put back, and take them back to the last commit. Returns the copy."""
    backup = git.root / ".rankwise" / "updates" / time.strftime("%Y-%m-%d-%H%M%S")
    while backup.exists():
        backup = backup.with_name(backup.name + "x")
    for path in paths:
        copy = backup / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(git.root / path, copy)
    backup.mkdir(parents=True, exist_ok=True)
    _keep_in_history(git.root, paths)
    write_whole(_note(git.root), json.dumps({"backup": backup.name, "paths": paths}))
    for path in paths:
        if git.tracks(path):
            git("checkout", "--quiet", "HEAD", "--", path)
        else:
            (git.root / path).unlink()
    return backup


def _keep_in_history(root: Path, paths: list[str]) -> None:
    from puzzles.grading.state import State

    state = State(root / ".rankwise" / "state.db")
    for path in paths:
        if path.endswith(".py"):
            _, chapter, file = PurePosixPath(path).parts
            source = (root / path).read_text(encoding="utf-8", errors="replace")
            state.keep(f"{chapter}.{file.removesuffix('.py')}", source, "update")


def merge(git: Git, upstream: str, backup: Path) -> list[tuple[str, str]]:
    """Merge. Returns the notebooks that a conflict has set aside, and where they are now.

    Raises BadInput, with everything as before, where others than the learner's files are in conflict.
    """
    identity = [] if git.attempt("config", "user.email").stdout.strip() else _NOBODY
    done = git.attempt(*identity, "merge", "--quiet", "--no-edit", upstream)
    if done.returncode == 0:
        return []
    conflicts = git("diff", "--name-only", "--diff-filter=U").splitlines()
    if not conflicts or not all(owned(path) for path in conflicts):
        git.attempt("merge", "--abort")
        if not conflicts:
            raise BadInput(f"git merge: {complaint(done)}")
        names = ", ".join(path for path in conflicts if not owned(path))
        raise BadInput(f"your commits and the course's do not go together: {names}")
    beside = []
    for path in conflicts:
        if path.endswith(".ipynb"):
            copy = backup / "committed" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(git("show", f"HEAD:{path}") + "\n", encoding="utf-8")
            beside.append((path, set_beside(git.root, copy)))
        git("checkout", "--theirs" if path.endswith(".ipynb") else "--ours", "--", path)
        git("add", "--", path)
    git(*identity, "commit", "--quiet", "--no-edit")
    return beside


_NOBODY = ["-c", "user.name=learner", "-c", "user.email=learner@localhost"]


def only_rerun(git: Git, path: str, copy: Path) -> bool:
    """True where a notebook's cells are as they were before the merge, and only what they printed is not."""
    before = git.attempt("show", f"ORIG_HEAD:{path}").stdout
    try:
        return cells(before) == cells(copy.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError):
        return False


def cells(notebook: str) -> list[tuple[str, str]]:
    """The kind and the source of each cell. Raises ValueError, KeyError or TypeError where it is no notebook."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]


def set_beside(root: Path, copy: Path) -> str:
    """Put a learner's notebook into lessons/mine/ under a name of its own. Returns where."""
    place = root / "lessons" / "mine" / f"{copy.stem}.{time.strftime('%Y-%m-%d')}.ipynb"
    number = 1
    while place.exists() and place.read_bytes() != copy.read_bytes():
        number += 1
        place = place.with_name(f"{copy.stem}.{time.strftime('%Y-%m-%d')}-{number}.ipynb")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(copy, place)
    return str(place.relative_to(root))


def put_back(git: Git, backup: Path, paths: list[str]) -> None:
    """Put files into their places again, and drop the note that says so."""
    for path in paths:
        (git.root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(backup / path, git.root / path)
    _note(git.root).unlink(missing_ok=True)


def recover(git: Git) -> None:
    """Finish an update that was killed: put back what it had taken, except where the learner has written since.

    Raises BadInput where the note of it cannot be read.
    """
    note = _note(git.root)
    if not note.exists():
        return
    if (git.root / ".git" / "MERGE_HEAD").exists():
        git("merge", "--abort")
    try:
        pending = json.loads(note.read_text())
        backup, paths = note.parent / pending["backup"], list(pending["paths"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(
            f"{note} is damaged: copy back what you miss from the newest folder beside it, then delete this file"
        ) from None
    since = {*git("diff", "--name-only", "HEAD").splitlines(), *git.untracked()}
    put_back(git, backup, [path for path in paths if path not in since and (backup / path).exists()])


def _note(root: Path) -> Path:
    return root / ".rankwise" / "updates" / "pending.json"
