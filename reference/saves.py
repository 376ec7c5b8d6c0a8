"""When a run saves, and what it must know to resume as if nothing had happened.

A batch is a function of the step (`reference.models.data`), so the number of steps is all there is to know of the
reader: on any number of ranks, no sample is lost and none read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.choices import FREEZES, IslandText, Outer
from reference.compression.choice import compression_of
from reference.config import TrainConfig
from reference.decentralized.rounds import all_meet
from reference.errors import BadInput
from reference.islands import TAKEN_BY
from reference.memory.precision import PRECISIONS
from reference.models.data import Batches
from reference.models.files import home
from reference.resilience import incremental
from reference.resilience.async_save import BackgroundCheckpoints
from reference.resilience.incremental import IncrementalCheckpoints
from reference.resilience.preemption import Preempted, StopNotice, on_sigterm
from reference.zero import checkpoint, checkpoint_folder
from reference.zero.agreement import Poll

if TYPE_CHECKING:
    from reference.train import Training


UNSAID = {"compress": "none", "privacy of islands": "none", "island text": str(IslandText.SHARED)}
"""What `learned` does not name."""
MAY_LACK = (*UNSAID, "islands", "outer", "loss spikes")
"""What `learned` names only of a run that has it."""


@dataclass(frozen=True)
class Saves:
    """Checkpoints of a run in a folder of its own. See `reference.zero.checkpoint`."""

    folder: Path
    every: int = 100  # steps; the last one is saved, too
    resume: bool = False  # resume from the newest in the folder
    in_background: bool = False  # written while training continues
    full_every: int = 1  # checkpoints, of which one holds everything, and the others what has changed since
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of the command, for a run that resumes

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadInput(f"a checkpoint is saved every 1 step or more, not {self.every}")
        if self.full_every < 1:
            raise BadInput(f"--save-full-every is 1 checkpoint or more, not {self.full_every}")
        if self.full_every > 1 and self.in_background:
            raise BadInput(
                "what has changed is found in the state itself, which training would change meanwhile: say "
                "--save-full-every 1, or --no-save-in-background"
            )

    def check(self, config: TrainConfig, batches: Batches) -> str:
        """See that this run may begin here, and that the folder can be written. Files alone are looked at, by one rank.

        Returns:
            One line: the step resumed from, and damaged newer checkpoints; "" for a run that begins.

        Raises:
            BadInput: if there is nothing to resume from, or something that a new run would replace, or if nothing can
                be saved.
        """
        try:
            line = self._goes_on(config, batches) if self.resume else self._begins()
            checkpoint_folder.discard(checkpoint_folder.begin(self.folder))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadInput(f"cannot save in {self.folder}: {reason}; take a folder that can be written") from None
        return line

    def begin(self, training: Training) -> int:
        """How many steps have been taken: 0, or those of the checkpoint that is loaded. All ranks call this together.

        Raises:
            BadInput: the same on every rank, as `check`, or if the checkpoint is damaged or another model's.
        """
        checkpoint.by_first(lambda: self.check(training.config, training.batches), training.group)
        return self.load(training) if self.resume else 0

    def load(self, training: Training) -> int:
        """Put the newest checkpoint into a training. Returns the number of its steps. All ranks call this together."""
        step, extra = incremental.load(self.folder, training.saved, training.optimizer, training.group)
        for name, piece in training.stateful.items():
            piece.load_state_dict(extra[name])
        return step

    def _begins(self) -> str:
        if found := checkpoint.latest(self.folder):
            raise BadInput(f"{found} is of a run before: say --resume to continue it, or save somewhere else")
        return ""

    def _goes_on(self, config: TrainConfig, batches: Batches) -> str:
        contents = checkpoint_folder.contents(checkpoint_folder.find(self.folder))
        known = contents["extra"]["learned"]
        self._same_model(contents["extra"].get("options", {}))
        wanted = {name: word for name, word in UNSAID.items() if name in known} | learned(config, batches)
        for name, here in wanted.items():
            if name not in known and name in MAY_LACK:
                raise BadInput(
                    f"{self.folder} is of a run without what this one has, {name} {here}: leave it out, or save a new "
                    "run somewhere else"
                )
            if name not in known:  # an older checkpoint
                raise BadInput(f"{self.folder} does not tell the {name} of its run: save a new run somewhere else")
            if known[name] != here:
                raise BadInput(f"{self.folder} is of a run with {name} {known[name]}, and this has {here}")
        for name in ("islands", "loss spikes"):
            if name in known and name not in wanted:
                raise BadInput(f"{self.folder} is of a run with {name} {known[name]}, and this has none")
        step, last = contents["step"], config.stop_after or config.steps
        left = "" if step < last else f": nothing is left to train, this run ends after step {last}"
        line = "; ".join([f"resuming after step {step}{left}", *checkpoint_folder.damages(self.folder)])
        return "\n".join([line, *changes(contents["extra"].get("scheduled", {}), scheduled(config))])

    def _same_model(self, before: Mapping[str, Any]) -> None:
        """Raises BadInput for a model of another name, before a rank is started; shapes are compared when it loads."""
        there, here = before.get("model"), self.options.get("model")
        if there and here and there != here:
            raise BadInput(f"{self.folder} is of another model: of {there}, and this is {here}")

    def stored(self) -> dict[str, Any]:
        """The options of the run that this one resumes; none where it begins, or the checkpoint is older.

        Raises:
            BadInput: if no checkpoint can be read.
        """
        if not self.resume:
            return {}
        return checkpoint_folder.contents(checkpoint_folder.find(self.folder))["extra"].get("options", {})

    def of(self, options: Mapping[str, Any]) -> Saves:
        """The same for a run with these options: they are kept in each checkpoint."""
        data = options.get("data")
        kept = {**options, "data": data and str(home(data).resolve())}
        if "offload_folder" in options:
            kept["offload_folder"] = str(Path(options["offload_folder"]).resolve())
        every = options.get("save_every")
        in_background = options.get("save_in_background", self.in_background)
        full_every = options.get("save_full_every", self.full_every)
        every = self.every if every is None else every
        return replace(self, options=kept, every=every, in_background=in_background, full_every=full_every)

    def due(self, step: int, last: int) -> bool:
        """Whether to save after `step` steps, of `last`."""
        return step % self.every == 0 or step == last

    def save(self, training: Training, step: int) -> None:
        """Save a checkpoint.

        Raises:
            BadInput: if that cannot be done. Those before it are still there.
        """
        extra = self.extra(training)
        checkpoint.save(self.folder, training.saved, training.optimizer, step, extra, training.group)

    def stopped(self, step: int) -> str:
        """What is said where all were told to stop, and have saved."""
        return f"told to stop: saved after step {step} in {self.folder}; --resume continues there"

    def extra(self, training: Training) -> dict[str, Any]:
        """What else than masters and optimizer it takes to resume."""
        return {
            **{name: piece.state_dict() for name, piece in training.stateful.items()},
            "learned": learned(training.config, training.batches),
            "scheduled": scheduled(training.config),
            "options": dict(self.options),
        }


@contextmanager
def saving(saves: Saves | None, training: Training, last: int) -> Iterator[Callable[[int], None]]:
    """Around the loop of a run: what to call at each boundary, on all ranks together, with the steps taken so far.

    It saves when that is due, and when a rank was told to stop (SIGTERM), which islands tell each other when they meet.
    After the loop what is still being written is waited for; where the loop has failed, it is not, since other ranks
    may be gone.

    Raises:
        BadInput: the same on every rank, if a checkpoint cannot be saved. Those before it are still there.
        Preempted: on every rank, once the checkpoint of the step is there.
    """
    if saves is None:
        yield lambda step: None
        return
    notice = StopNotice()
    with on_sigterm(notice.give):
        at_boundary = Boundary(saves, training, last, notice)
        yield at_boundary
        at_boundary.finish()


class Boundary:
    """What a run that saves does between two steps."""

    def __init__(self, saves: Saves, training: Training, last: int, notice: StopNotice) -> None:
        self.saves, self.training, self.last, self.notice = saves, training, last, notice
        self.poll = Poll(training.group)
        where = saves.folder, training.saved, training.optimizer, training.group
        self.background = BackgroundCheckpoints(*where) if saves.in_background else None
        self.increments = IncrementalCheckpoints(*where, saves.full_every) if saves.full_every > 1 else None

    def __call__(self, step: int) -> None:
        """All ranks call this, after `step` steps. Islands that train apart are not made to wait for each other."""
        if self._all_wait(step):
            stop, busy = self.poll.answer() or (False, False)
            if self.background and not busy:
                self.background.proceed()
            if stop or self.saves.due(step, self.last):
                self.save(step)
            if stop and step < self.last:
                self.finish()
                raise Preempted(self.saves.stopped(step))
        if self._all_wait(step + 1):
            self.poll.ask([self.notice.given, self.background is not None and self.background.busy])

    def _all_wait(self, step: int) -> bool:
        """Whether all ranks wait for each other in this step, or after it, whatever is asked here."""
        return self.saves.due(step, self.last) or all_meet(self.training.config, step)

    def save(self, step: int) -> None:
        """Now, or behind training; all, or what has changed."""
        if how := self.background or self.increments:
            how.save(step, self.saves.extra(self.training))
        else:
            self.saves.save(self.training, step)

    def finish(self) -> None:
        """Wait until every checkpoint is there."""
        self.poll.answer()
        if self.background:
            self.background.wait()


def learned(config: TrainConfig, batches: Batches) -> dict[str, int | float | str]:
    """Settings that must be as before when a run resumes.

    With another precision, other numbers or another dropout it would learn something else. The rest decides which
    tokens a step reads: samples would be lost or read twice.
    """
    precision = next((name for name, known in PRECISIONS.items() if known == config.precision), str(config.precision))
    compressed = {"compress": compression_of(config)} if config.is_compressed else {}
    model = config.model
    return compressed | {
        "precision": precision,
        "dropout": model.dropout,
        "batch": config.batch,
        "sequence": config.sequence,
        "seed": config.seed,
        "text": batches.fingerprint,
        "numbers of linear layers": str(config.linear),
        **({"--freeze-after": config.exact_steps} if config.optimizer in FREEZES else {}),
        **({"balance": str(model.balance), "capacity": model.capacity} if model.experts else {}),
        **({} if config.outer is Outer.NONE else {"islands": config.islands, "outer": str(config.outer)}),
        **({} if config.meets.clip_change is None else {"privacy of islands": privacy_of(config)}),
        **({} if config.meets.island_text is IslandText.SHARED else {"island text": str(config.meets.island_text)}),
        **({} if config.spikes is None else {"loss spikes": "rolled back past"}),
    }


def privacy_of(config: TrainConfig) -> str:
    """What all rounds of a run must have had, for one epsilon to speak of all of them."""
    meets = config.meets
    share = "" if meets.taking_part == 1 else f", of a share of {meets.taking_part:g}"
    return f"clipped to {meets.clip_change:g} with noise {meets.noise_multiplier:g}{share}"


ROUNDS = ("inner_steps", "synchronous_steps", "taking_part", "outer_rate", "outer_momentum", "elasticity", "proximal")


def scheduled(config: TrainConfig) -> dict[str, int | float]:
    """Settings that may change when a run resumes: how large its steps are, and how islands meet."""
    meets = {name.replace("_", " "): getattr(config.meets, name) for name in ROUNDS if config.outer in TAKEN_BY[name]}
    return {
        "steps": config.steps,
        "learning rate": config.learning_rate,
        "warmup": config.warmup,
        "weight decay": config.weight_decay,
        "clip": config.clip,
        **meets,
        **({} if config.spikes is None else {f"spike {name}": each for name, each in vars(config.spikes).items()}),
    }


def changes(before: Mapping[str, int | float], now: Mapping[str, int | float]) -> list[str]:
    """What is otherwise from here on, in a line; no line where nothing is, or an older checkpoint does not say."""
    others = [name for name, value in now.items() if before.get(name, value) != value]
    if not others:
        return []
    line = "from here on: " + ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in others)
    follows = f"; the learning rate continues as in a run of {now['steps']} steps" if "steps" in others else ""
    return [line + follows]


def saves_of(
    folder: str | None, every: int | None, resume: bool, in_background: bool = False, full_every: int = 1
) -> Saves | None:
    """What --save, --save-every, --resume and so on ask for; None where nothing is saved.

    Raises:
        BadInput: if there is no folder, or nothing in it to resume from.
    """
    if folder == "" or (folder is None and resume):
        raise BadInput("checkpoints are saved in a folder, and --resume reads them there: name it with --save FOLDER")
    if folder is None and every is not None:
        raise BadInput("--save-every needs --save FOLDER: without a folder nothing is saved")
    if folder is None and in_background:
        raise BadInput("--save-in-background needs --save FOLDER: without a folder nothing is saved")
    if folder is None and full_every > 1:
        raise BadInput("--save-full-every needs --save FOLDER: without a folder nothing is saved")
    if folder is None:
        return None
    place = Path(folder)
    if resume and not checkpoint_folder.checkpoints(place):
        raise BadInput(f"there is no checkpoint in {place} to resume from; without --resume a run begins there")
    return Saves(place.resolve(), Saves.every if every is None else every, resume, in_background, full_every)
