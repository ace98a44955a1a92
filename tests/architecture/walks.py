"""What the documentation shows of the code: the functions that a run goes through, and the files of each folder.

`python tests/architecture/walks.py` writes both into the pages that have a place for them: a walk's tree of functions
between `<!-- walk NAME -->` and `<!-- end of walk -->`, the files between `<!-- rooms -->` and `<!-- end of rooms -->`;
and the numbers of the table of concepts (`concepts.py`).
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import concepts

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "lockstep")
PLACE = re.compile(r"(<!-- walk (\w+) -->\n)(.*?)(<!-- end of walk -->)", re.DOTALL)

ROOMS = re.compile(r"(<!-- rooms -->\n)(.*?)(<!-- end of rooms -->)", re.DOTALL)


@dataclass
class Walk:
    """A run, and the functions at which its chains of calls end."""

    run: Callable[[], Callable[[], Any]]
    """prepares, and returns what is walked through"""
    ends: tuple[str, ...]
    """qualified names; for each the first chain of calls that reaches it is kept"""
    through: str = ""
    """a function that a chain must go through"""
    chains: dict[str, list[CodeType]] = field(default_factory=dict)

    def trace(self) -> list[list[CodeType]]:
        """Return the chain to each end in the order in which they are reached: all functions of the package in it."""
        walked = self.run()
        sys.setprofile(self._on_call)
        try:
            walked()
        finally:
            sys.setprofile(None)
        missing = [end for end in self.ends if end not in self.chains]
        if missing:
            raise LookupError(f"the walk does not reach {missing}")
        return list(self.chains.values())

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_qualname
        if event != "call" or name not in self.ends or name in self.chains:
            return
        chain: list[CodeType] = []
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_filename.startswith(PACKAGE) and not at.f_code.co_name.startswith("<"):
                chain.append(at.f_code)
            at = at.f_back
        if not self.through or any(code.co_qualname == self.through for code in chain):
            self.chains[name] = chain[::-1]
            if len(self.chains) == len(self.ends):
                sys.setprofile(None)  # the rest of the run is quick


def tree(chains: list[list[CodeType]]) -> str:
    """Return the chains as one nested list: a function once below its caller, with its file and first sentence.

    Lines are left out: they move with every edit.
    """
    lines: list[str] = []
    above: list[CodeType] = []
    for chain in chains:
        shared = 0
        while shared < min(len(above), len(chain)) and above[shared] is chain[shared]:
            shared += 1
        lines += ["  " * depth + _entry(chain[depth]) for depth in range(shared, len(chain))]
        above = chain
    return "\n".join(lines) + "\n"


def _entry(code: CodeType) -> str:
    path = Path(code.co_filename).relative_to(ROOT)
    link = f"[{path.relative_to('lockstep')}](../{path})"
    return f"- `{code.co_qualname}`, {link}{_sentence(inspect.getsourcelines(code)[0])}"


def _sentence(source: list[str]) -> str:
    """Return the first sentence of a function's docstring, after a colon."""
    found = re.search(r'^ +"""(.+?)(?:"""|\n *\n|\Z)', "".join(source), re.MULTILINE | re.DOTALL)
    first = re.split(r"(?<!\bal)[.;](?:\s|$)", " ".join(found.group(1).split()))[0] if found else ""
    return f": {first[0].lower()}{first[1:]}" if first else ""


def rooms() -> str:
    """Return a list of the folders, with the first sentence of each file in them."""
    lines: list[str] = []
    for folder in sorted({path.parent for path in (ROOT / "lockstep").rglob("*.py")} - {ROOT / "lockstep"}):
        lines += ["", f"`{folder.relative_to(ROOT)}/`", ""]
        for path in sorted(folder.glob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if path.name != "__init__.py":
                first = re.split(r"(?<!\bal)[.;](?:\s|$)", " ".join(text.split()))[0]
                first = re.sub(r" \([^()]*\d{4}.*", "", first)  # the source is in the file
                lines.append(f"- [`{path.name}`](../{path.relative_to(ROOT)}): {first}")
    return "\n".join(lines[1:]) + "\n"


def functions(text: str) -> list[str]:
    """Return the functions of a tree with their depth and files, without their sentences."""
    return re.findall(r"^( *- `\S+`, \[[\w/.]+\])", text, re.MULTILINE)


def ppo_run() -> Callable[[], Any]:
    """PPO on CartPole-v1, the written loss."""
    from lockstep import PPOConfig

    config = PPOConfig().environment("CartPole-v1").framework(fused_losses=False)
    return config.reporting(total_steps=4_096).build_trainer().run


def sac_run() -> Callable[[], Any]:
    """SAC on Pendulum-v1."""
    from lockstep.algorithms import SACConfig

    config = SACConfig().environment("Pendulum-v1").replay(learning_starts=100)
    return config.reporting(total_steps=120).build_trainer().run


def dqn_run() -> Callable[[], Any]:
    """DQN on CartPole-v1, prioritised replay."""
    from lockstep.algorithms import DQNConfig

    config = DQNConfig().environment("CartPole-v1")
    config.replay(learning_starts=100, prioritized=True)
    return config.reporting(total_steps=300).build_trainer().run


def episodes_run() -> Callable[[], Any]:
    """One update of PPO from episodes by hand."""
    import numpy as np

    from lockstep import PPOConfig
    from lockstep.data import SingleAgentEpisode

    group = PPOConfig().environment("CartPole-v1").framework(fused_losses=False).build_learner_group()
    rng = np.random.default_rng(0)
    episode = SingleAgentEpisode()
    episode.add_env_reset(rng.normal(size=4).astype(np.float32))
    for t in range(64):
        obs, last = rng.normal(size=4).astype(np.float32), t == 63
        episode.add_env_step(obs, np.int64(rng.integers(2)), 1.0, terminated=last)

    def run() -> Any:
        group.update_from_episodes([episode], num_epochs=1, minibatch_size=32)
        return group.get_weights()

    return run


def action_run() -> Callable[[], Any]:
    """One action of a policy that normalises observations."""
    import numpy as np

    from lockstep import PPOConfig

    policy = PPOConfig().environment("Pendulum-v1", normalize_observations=True).build_policy()
    return lambda: policy.compute_actions(np.zeros((1, 3), np.float32))


WALKS: dict[str, Walk] = {
    "ppo": Walk(
        ppo_run,
        (
            *("RolloutStore.write_obs", "NumpyActor.act", "LightSyncVectorEnv.step", "RolloutStore.write_step"),
            *("RolloutStore.trajectories", "OnPolicyLearner.evaluate", "gae", "take_minibatch"),
            *(
                "DefaultActorCriticModule.forward_train",
                "PPOLearner.compute_loss_for_module",
                "Learner.compute_gradients",
            ),
            *(
                "clip_gradients_",
                "RegisteredOptimizer._take_step",
                "Learner.summarize",
                "LoggingCallback.on_update_end",
            ),
        ),
        through="OnpolicyTrainer.training_step",
    ),
    "sac": Walk(
        sac_run,
        (
            *("NumpyActor.act", "LightSyncVectorEnv.step", "ReplayBuffer.add", "ReplayBuffer.sample", "take_minibatch"),
            *("DefaultSACModule.forward_train", "SACLearner.compute_loss_for_module", "Learner.compute_gradients"),
            *("RegisteredOptimizer._take_step", "SoftActorCriticLearner.after_gradient_step", "Learner.summarize"),
        ),
        through="OffpolicyTrainer.training_step",
    ),
    "dqn": Walk(
        dqn_run,
        (
            *("NumpyActor.act", "LightSyncVectorEnv.step", "ReplayBuffer.add", "ReplayBuffer.sample", "take_minibatch"),
            *("DefaultQModule.forward_train", "DQNLearner.compute_loss_for_module", "Learner.compute_gradients"),
            *("RegisteredOptimizer._take_step", "QLearner.after_gradient_step", "ReplayBuffer.update_weight"),
        ),
        through="OffpolicyTrainer.training_step",
    ),
    "episodes": Walk(
        episodes_run,
        (
            *("parts_of_episodes", "PPOLearner.prepare_batch", "take_minibatch", "PPOLearner.compute_loss_for_module"),
            *("Learner.compute_gradients", "RegisteredOptimizer._take_step", "Learner.get_weights"),
        ),
    ),
    "replay": Walk(
        dqn_run,
        ("VectorStepper.run", "ReplayBuffer.add", "ReplayBuffer.sample", "Learner._read_batch", "take_minibatch"),
        through="OffpolicyTrainer.training_step",
    ),
    "action": Walk(action_run, ("ObsPipeline.__call__", "NumpyActor.act", "ActingPolicy.to_env")),
}


def pages() -> list[Path]:
    """Return the pages that have a place for a walk."""
    return [page for page in sorted((ROOT / "docs").glob("*.md")) if PLACE.search(page.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    if sys.argv[1:] == ["--rooms"]:
        page = ROOT / "docs/architecture.md"
        page.write_text(ROOMS.sub(lambda found: f"{found[1]}{rooms()}{found[3]}", page.read_text()), encoding="utf-8")
        sys.exit()
    if sys.argv[1:]:
        print(*(tree(WALKS[name].trace()) for name in sys.argv[1:]), sep="\n")
        sys.exit()
    for page in pages():
        text = PLACE.sub(
            lambda found: f"{found[1]}{tree(WALKS[found[2]].trace())}{found[4]}", page.read_text(encoding="utf-8")
        )
        page.write_text(ROOMS.sub(lambda found: f"{found[1]}{rooms()}{found[3]}", text), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")
    concepts.write_today()
