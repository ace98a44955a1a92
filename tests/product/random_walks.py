"""Random walks over features together: three or more of them in one run, which must be the run without detours.

A walk is drawn from its seed: a configuration, and on the way an interruption, a new process with another
`PYTHONHASHSEED`, questions from several threads, an export, a copy of the run over env runners and one on a device (a
stand-in). `PYTHONPATH=tests python tests/product/random_walks.py SEED ...` runs walks and prints
what went wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY
from host_waits import DEVICE, StandInDevice
from runner_tools import ManyRunners
from walk_parts import AGENTS, WORLDS, OwnBuffer, Watching, module_of, previous

from lockstep import OffpolicyTrainer, get_config
from lockstep.export import load_export
from lockstep.trainer import Callback, restore_trainer, save_trainer
from lockstep.trainer.build import RunLength

EPOCHS = 4
BY_CHANCE = ("id_", "duration_s")
"""names in states whose values are drawn or measured anew in each run"""
DISCRETE, CONTINUOUS = (
    tuple(name for name, case in ALGORITHM_CASES.items() if kind in case.walks) for kind in ("Discrete", "Box")
)
MEMORIES: dict[str, dict[str, Any]] = {
    "none": {},
    "lstm": {"recurrent": "lstm", "recurrent_size": 4},
    "gru": {"recurrent": "gru", "recurrent_size": 4},
    "attention": {"attention": {"size": 4, "num_heads": 2, "memory": 3, "hidden_size": 4}},
}


# -- what is drawn ---


@dataclass(frozen=True)
class Walk:
    """One walk: the features of its configuration, and what is done on the way."""

    seed: int
    agents: str
    algorithm: str
    continuous: bool
    memory: str
    mask: bool
    connectors: str
    normalized: bool
    priorities: bool
    steps: int
    """that replay adds up"""
    callbacks: bool
    evaluation: str
    own_buffer: bool
    double: bool
    whole_episodes: bool
    interrupted: bool
    """in the middle of the second epoch, and not at its end"""
    threads: bool
    export: bool
    runners: bool
    device: bool

    @property
    def features(self) -> list[str]:
        """What is out of the ordinary, beside the resume in another process that every walk has."""
        flags = ("mask", "callbacks", "own_buffer", "threads", "export", "runners", "device")
        found = [name for name in flags if getattr(self, name)]
        for name, plain in {"agents": "one", "memory": "none", "connectors": "none", "evaluation": "off"}.items():
            if getattr(self, name) != plain:
                found.append(f"{name}: {getattr(self, name)}")
        return found


def drawn(seed: int) -> Walk:
    """Draw the walk of a seed: the first with two features or more that is not refused."""
    rng = random.Random(seed)
    while True:
        agents = rng.choice(("one", "one", "at once", "in turns", "by dict"))
        continuous = rng.random() < 0.4
        algorithm = rng.choice(CONTINUOUS if continuous else DISCRETE)
        walk = Walk(
            seed=seed,
            agents=agents,
            algorithm=algorithm,
            continuous=continuous,
            memory=rng.choice(("none", "none", "lstm", "gru", "attention")),
            mask=not continuous and rng.random() < 0.4,
            connectors=rng.choice(("none", "none", "frames", "previous", "both")),
            normalized=rng.random() < 0.4,
            priorities=rng.random() < 0.5,
            steps=rng.choice((1, 2)),
            callbacks=rng.random() < 0.5,
            evaluation=rng.choice(("off", "in turn", "beside")),
            own_buffer=agents == "one" and algorithm in OFF_POLICY and rng.random() < 0.5,
            double=rng.random() < 0.5,
            whole_episodes=rng.random() < 0.2,
            interrupted=rng.random() < 0.5,
            threads=rng.random() < 0.5,
            export=rng.random() < 0.5,
            runners=rng.random() < 0.5,
            device=rng.random() < 0.3,
        )
        if len(walk.features) >= 2 and refusal(walk) is None:
            return walk


def refusal(walk: Walk) -> str | None:
    """Return the message with which a configuration is refused; None where its trainer is built."""
    try:
        built(walk).close()
    except ValueError as error:
        return str(error)
    return None


def configured(walk: Walk) -> Any:
    """Return the configuration of a walk: networks of 4 units, epochs of two updates of 32 steps."""
    config = get_config(walk.algorithm)
    config.environment(
        WORLDS[walk.agents],
        env_config={"mask": walk.mask, "continuous": walk.continuous},
        normalize_observations=walk.normalized,
        frame_stack=2 if walk.connectors in ("frames", "both") else 1,
    )
    if walk.connectors in ("previous", "both"):
        config.env_runners(env_to_module_connector=previous)
    model = {"hiddens": (4,), "critic_hiddens": (4,), "max_seq_len": 4, **MEMORIES[walk.memory]}
    config.rl_module(model_config=model)
    config.env_runners(num_envs_per_env_runner=4)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=8).training(train_batch_size=8)
        config.replay(capacity=160, learning_starts=32, update_per_step=1 / 16)
        if not walk.own_buffer:
            config.replay(prioritized=walk.priorities, n_step=walk.steps)
    else:
        config.training(train_batch_size=32)
    small = ALGORITHM_CASES[walk.algorithm].small
    config.training(**small)
    if "minibatch_size" in small:
        config.training(minibatch_size=4 if walk.memory != "none" else 16, num_epochs=1)
    if config.is_asynchronous:
        config.training(minibatch_size=None, num_epochs=1, max_lag=0)
    if walk.agents != "one":
        config.multi_agent(policies=["first", "others"], policy_mapping_fn=module_of)
    if walk.whole_episodes:
        config.env_runners(batch_mode="complete_episodes")
    if walk.callbacks:
        config.callbacks([Watching])
    config.evaluation(
        evaluation_interval=0 if walk.evaluation == "off" else 1,
        evaluation_duration=3,
        evaluation_num_envs=2,
        evaluation_parallel_to_training=walk.evaluation == "beside",
    )
    config.framework(dtype="float64" if walk.double else "float32", compile=False)
    config.reporting(total_steps=64 * EPOCHS, steps_per_epoch=64)
    return config.debugging(seed=walk.seed)


class Interrupt(Callback):
    """Ends a run in the middle of its second epoch."""

    def on_update_end(self, event: Any) -> None:
        if event.env_step >= 96:
            raise KeyboardInterrupt


def built(walk: Walk, *, config: Any = None, callbacks: Sequence[Callback] = ()) -> Any:
    """Return the trainer of a walk."""
    config = config or configured(walk)
    if not walk.own_buffer:
        return config.build_trainer(callbacks=list(callbacks))
    policy = config.build_policy()
    collector = config.build_collector(policy)
    size = config.replay.capacity
    collector.buffer = OwnBuffer(size, collector.num_envs, seed=config.debugging.seed)
    length = RunLength.of(config)
    options: dict[str, Any] = {}
    if walk.evaluation != "off":
        options = {"test_collector": config.build_test_collector(policy), "episode_per_test": 3}
    return OffpolicyTrainer(
        policy,
        train_collector=collector,
        max_epoch=length.num_epochs,
        step_per_epoch=length.per_epoch,
        step_per_collect=length.per_update,
        batch_size=config.training.train_batch_size,
        update_per_step=config.replay.update_per_step,
        learning_starts=config.replay.learning_starts,
        callbacks=[*([Watching()] if walk.callbacks else []), *callbacks],
        **options,
    )


# -- what is compared ---


def digest(tree: Any) -> str:
    """SHA-256 over names, types, shapes and bytes of everything in a tree."""
    sha = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                if key not in BY_CHANCE:
                    sha.update(repr(key).encode())
                    feed(value[key])
        elif isinstance(value, list | tuple):
            for part in value:
                feed(part)
        elif isinstance(value, torch.Tensor):
            feed(value.detach().cpu().numpy())
        elif isinstance(value, np.ndarray):
            sha.update(f"{value.dtype}{value.shape}".encode())
            sha.update(str(value.tolist()).encode() if value.dtype == object else np.ascontiguousarray(value).tobytes())
        else:
            sha.update(repr(value).encode())

    feed(tree)
    return sha.hexdigest()[:16]


def bits(trainer: Any) -> dict[str, str]:
    """Return hashes of all that a run is: what it learned, collected, remembers and counted."""
    collected = trainer.train_collector.get_state()
    collected["counters"] = collected["counters"][:2]  # the third is wall time
    found = {"learned": digest(trainer.policy.get_state()), "collected": digest(collected)}
    returns = [epoch.train_collect_stat.returns for epoch in trainer.history]
    found["returns"] = digest([np.asarray(each, np.float64) for each in returns])
    tests = [epoch.test_collect_stat for epoch in trainer.history if epoch.test_collect_stat is not None]
    found["evaluations"] = digest([np.asarray(each.returns, np.float64) for each in tests])
    found["callback"] = json.dumps(counts_of(trainer))
    if trainer.policy.config.is_off_policy:
        buffer = trainer.train_collector.buffer
        states = (
            {key: each.get_state() for key, each in buffer.buffers.items()}
            if hasattr(buffer, "buffers")
            else buffer.get_state()
        )
        found["replay"] = digest(states)
    return found


def counts_of(trainer: Any) -> dict[str, int]:
    """Return what the callback that watches has counted."""
    watching = [callback for callback in trainer.callbacks if isinstance(callback, Watching)]
    return watching[0].counts if watching else {}


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the names of what is not the same."""
    return [f"{name}: {found.get(name)} for {expected[name]}" for name in expected if found.get(name) != expected[name]]


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    """Return all weights by module and name."""
    found = trainer.policy.learner_group.get_weights()
    return {f"{module}/{name}": np.array(value) for module, part in found.items() for name, value in part.items()}


def far_apart(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> list[str]:
    """Return the weights that differ by more, with by how much."""
    apart = {name: float(np.abs(found[name] - expected[name]).max(initial=0.0)) for name in expected}
    return [f"{name}: {distance:.1e}" for name, distance in apart.items() if not distance <= tolerance]


# -- the parts of a walk ---


def train(trainer: Any, epochs: int) -> Any:
    """Train so many epochs more."""
    for _ in range(epochs):
        next(trainer)
    return trainer


def first_half(walk: Walk, folder: Path) -> None:
    """Train until the interruption, or for two epochs with questions and an export between them; save the run."""
    trainer = built(walk, callbacks=[Interrupt()] if walk.interrupted else [])
    if walk.interrupted:
        trainer.save_checkpoint_fn = lambda *where: save_trainer(trainer, folder / f"half_{walk.seed}")
        trainer.run()
        trainer.close()
        return
    train(trainer, 1)
    ask_and_export(walk, trainer.policy, folder)
    train(trainer, 1)
    save_trainer(trainer, folder / f"half_{walk.seed}")
    trainer.close()


def ask_and_export(walk: Walk, policy: Any, folder: Path) -> None:
    """Ask a policy from several threads and export it, where the walk says so."""
    if walk.threads:
        ask_from_threads(walk, policy)
    if walk.export:
        compare_export(walk, policy, folder / f"export_{walk.seed}")


def third_quarter(walk: Walk, folder: Path) -> None:
    """Continue the saved run for an epoch in this process, whose texts have other hashes; save it again."""
    trainer = built(walk)
    restore_trainer(trainer, folder / f"half_{walk.seed}")
    train(trainer, 3 - len(trainer.history))
    save_trainer(trainer, folder / f"rest_{walk.seed}")
    trainer.close()


def last_quarter(walk: Walk, folder: Path) -> dict[str, str]:
    """Continue the run to its end; return its bits."""
    trainer = built(walk)
    restore_trainer(trainer, folder / f"rest_{walk.seed}")
    train(trainer, EPOCHS - len(trainer.history))
    found = bits(trainer)
    trainer.close()
    return found


def episode_of(walk: Walk, seed: int, steps: int = 3) -> list[Any]:
    """Return observations of one agent, step after step."""
    game = WORLDS["one"](mask=walk.mask, continuous=walk.continuous)
    rng = np.random.default_rng(seed)
    seen = [game.reset(seed=seed)[0]]
    for _ in range(steps):
        allowed = game.game.allowed(AGENTS[0]).nonzero()[0]
        action = rng.uniform(-1, 1, 1).astype(np.float32) if walk.continuous else rng.choice(allowed)
        seen.append(game.step(action)[0])
    return seen


def answers(policy: Any, walk: Walk, observations: Sequence[Any]) -> list[Any]:
    """Return the actions for one episode's observations, in which the policy may remember."""
    actions = []
    state = None
    several = walk.agents != "one"
    policy.reset()
    for obs in observations:
        reward = 0.5 if actions else None
        asked = dict.fromkeys(AGENTS, obs) if several else obs
        rewards = dict.fromkeys(AGENTS, reward) if several and reward is not None else None
        if several:
            answer = policy.compute_actions(asked, state, explore=False, rewards=rewards)
        else:
            answer = policy.compute_single_action(asked, state, explore=False, rewards=reward)
        if policy.is_stateful:
            answer, state = answer
        actions.append(answer)
    policy.reset()
    return actions


def ask_from_threads(walk: Walk, policy: Any) -> None:
    """Four threads play an episode each, again and again: each gets the answers that it would get alone."""
    episodes = [episode_of(walk, seed) for seed in range(4)]
    alone = [answers(policy, walk, episode) for episode in episodes]

    def ask(number: int) -> list[Any]:
        return [answers(policy, walk, episodes[number]) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(ask, number) for number in range(4)]
    for number, call in enumerate(calls):
        if (error := call.exception()) is not None:
            raise AssertionError(f"threads: {described(error)}") from error
        for found in call.result():
            np.testing.assert_equal(found, alone[number], err_msg="threads: an answer is another caller's")


def compare_export(walk: Walk, policy: Any, path: Path) -> None:
    """Export the policy, which proves the artefact, and play episodes with both."""
    policy.export(path)
    folders = {agent: path / module_of(agent, None) for agent in AGENTS} if walk.agents != "one" else {AGENTS[0]: path}
    for seed in range(2):
        observations = episode_of(walk, seed)
        expected = answers(policy, walk, observations)
        for agent, folder in folders.items():
            exported = load_export(folder)
            for step, obs in enumerate(observations):
                batch = {key: part[None] for key, part in obs.items()} if isinstance(obs, dict) else obs[None]
                action = exported.compute_actions(batch, np.array([0.5 if step else 0.0], np.float32))
                wanted = expected[step] if walk.agents == "one" else expected[step][agent]
                np.testing.assert_allclose(action[0], wanted, atol=1e-5, err_msg=f"export: step {step} of {agent}")


def compare_runners(walk: Walk) -> None:
    """Two epochs over two env runners have the returns and, to rounding, the weights of one process."""
    one, runners = (configured(walk).framework(dtype="float64") for _ in range(2))
    runners.env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    if walk.evaluation == "beside":
        one.evaluation(evaluation_parallel_to_training=False)
        runners.evaluation(evaluation_parallel_to_training=False)
    expected = train(one.build_trainer(), 2)

    def made(build: Any, section: Any, **options: Any) -> ManyRunners:
        return ManyRunners(build, section.num_env_runners)

    with mock.patch("lockstep.cluster.ray_runners.RayRunnerBackend", made):
        try:
            trainer = runners.build_trainer()
        except ValueError:
            return  # refused by name
        found = train(trainer, 2)
    for mine, other in zip(found.history, expected.history, strict=True):
        np.testing.assert_array_equal(mine.train_collect_stat.returns, other.train_collect_stat.returns, "runners")
    wrong = far_apart(weights_of(found), weights_of(expected), 1e-9)
    assert not wrong, f"runners: weights differ: {wrong[:3]}"
    if walk.callbacks:
        mine, other = (counts_of(trainer)["updates"] for trainer in (found, expected))
        assert mine == other
    found.close()
    expected.close()


def compare_device(walk: Walk) -> None:
    """An epoch whose learner is on a device, a stand-in, has to rounding the weights of the host."""
    config = configured(walk).framework(dtype="float64")
    config.evaluation(evaluation_interval=0)
    expected = train(config.copy().build_trainer(), 1)
    with StandInDevice():
        found = train(config.copy().framework(device=DEVICE.type).build_trainer(), 1)
        there = weights_of(found)
        found.close()
    wrong = far_apart(there, weights_of(expected), 1e-9)
    assert not wrong, f"device: weights differ: {wrong[:3]}"
    expected.close()


# -- several walks with one other process ---


def in_another_process(walks: Sequence[Walk], folder: Path) -> dict[int, str]:
    """Run the third quarter of walks in one process with another `PYTHONHASHSEED`; return its errors by seed."""
    jobs = folder / "walks.json"
    jobs.write_text(json.dumps([asdict(walk) for walk in walks]))
    here = os.environ.get("PYTHONHASHSEED", "random")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONHASHSEED": "2" if here == "1" else "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, "--third-quarter", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return {int(seed): message for seed, message in json.loads((folder / "errors.json").read_text()).items()}


def failures_of(seeds: Sequence[int]) -> dict[int, list[str]]:
    """Walk for each seed; return what went wrong, in words, for those where something did."""
    walks = [drawn(seed) for seed in seeds]
    failures: dict[int, list[str]] = {}

    def attempt(walk: Walk, part: Any, *arguments: Any) -> Any:
        try:
            return part(walk, *arguments)
        except Exception as error:
            failures.setdefault(walk.seed, []).append(f"{part.__name__}: {described(error)}")
            return None

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight = {walk.seed: attempt(walk, straight_run) for walk in walks}
        for walk in walks:
            attempt(walk, first_half, folder)
        for seed, message in in_another_process([w for w in walks if w.seed not in failures], folder).items():
            failures.setdefault(seed, []).append(message)
        for walk in walks:
            if walk.seed not in failures:
                found = attempt(walk, last_quarter, folder)
                if found is not None and (wrong := differences(found, straight[walk.seed])):
                    failures.setdefault(walk.seed, []).append(f"resumed bits: {wrong}")
            if walk.runners and not walk.own_buffer and not plays_whole_episodes(walk):
                attempt(walk, compare_runners)
            if walk.device and not walk.own_buffer:
                attempt(walk, compare_device)
    return failures


def plays_whole_episodes(walk: Walk) -> bool:
    """Whether collects of one agent end with whole episodes, which env runners share out in another way."""
    return walk.agents == "one" and (
        walk.whole_episodes or configured(walk).env_runners.batch_mode == "complete_episodes"
    )


def straight_run(walk: Walk) -> dict[str, str]:
    """Train all epochs without a detour; return the bits."""
    trainer = train(built(walk), EPOCHS)
    found = bits(trainer)
    trainer.close()
    return found


def described(error: BaseException) -> str:
    """Return an error in a few lines, with where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "lockstep" in frame.filename]
    return f"{type(error).__name__} at {' < '.join(places[-3:])}: {str(error)[:600]}"


def main() -> None:
    """Run walks of the command line, or the part of another process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1] == "--third-quarter":
        folder = Path(sys.argv[2])
        errors = {}
        for fields in json.loads((folder / "walks.json").read_text()):
            walk = Walk(**fields)
            try:
                third_quarter(walk, folder)
            except Exception as error:
                errors[walk.seed] = f"third_quarter: {described(error)}"
        (folder / "errors.json").write_text(json.dumps(errors))
        return
    seeds = [int(seed) for seed in sys.argv[1:]]
    failures = failures_of(seeds)
    for seed in seeds:
        walk = drawn(seed)
        print(f"{seed}: {walk.algorithm}, {', '.join(walk.features)}: {failures.get(seed, 'right')}", flush=True)


if __name__ == "__main__":
    main()
