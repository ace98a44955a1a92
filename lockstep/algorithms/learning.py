"""What a policy of one module and one of several share: learning through their group of learners, state, files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lockstep.algorithms.plain_values import named_options
from lockstep.data.space_codec import describe_space, space_from
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from lockstep.tracking.statistics import TrainingStats

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig
    from lockstep.algorithms.multi_agent_policy import AnyPolicy


def update_from_rollout(
    policy: AnyPolicy, sample_size: int, rollout: Any, batch_size: int | None, repeat: int | None
) -> TrainingStats:
    """`repeat` passes over all of `rollout.episodes()` in minibatches of `batch_size`.

    Raises `ValueError` for a sample size other than 0.
    """
    if sample_size != 0:
        raise ValueError(f"sample_size={sample_size}: an on-policy update uses the whole rollout; give 0")
    started = time.perf_counter()
    results = policy.learner_group.update_from_episodes(
        rollout.episodes(),
        timesteps=policy.timesteps,
        num_epochs=policy.config.training.num_epochs if repeat is None else repeat,
        minibatch_size=batch_size,
        shuffle_batch_per_epoch=policy.config.training.shuffle_batch_per_epoch,
    )
    return policy.training_stats(results, started)


def training_stats(policy: AnyPolicy, results: dict[str, Any], started: float) -> TrainingStats:
    """Statistics of the update that gave `results` and began at `started` (`time.perf_counter`)."""
    policy.last_results = results
    policy._take_over()
    numbers = (own.items() for own in results.values() if isinstance(own, dict))
    losses = [value for own in numbers for name, value in own if "loss" in name]
    return TrainingStats.of_update(
        time.perf_counter() - started,
        results[ALL_MODULES]["num_minibatches"],
        partial(_values_and_seconds, policy._metric_prefix, policy._last_series, results),
        finite=math.isfinite(sum(losses)),
    )


def _values_and_seconds(
    prefix: Callable[[str], str], series: Mapping[tuple[str, str], list[float]], results: Mapping[str, Any]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """By name: what the modules logged in each gradient step and report of the whole update; seconds by stage."""
    named = {prefix(module_id) + name: values for (module_id, name), values in series.items()}
    for module_id, numbers in results.items():
        if module_id == ALL_MODULES or not isinstance(numbers, dict):  # the number of the call
            continue
        for name, value in numbers.items():
            if isinstance(value, (int, float)):
                named.setdefault(prefix(module_id) + name, [float(value)])
    seconds = {k.removeprefix("seconds_"): v for k, v in results[ALL_MODULES].items() if k.startswith("seconds_")}
    return named, seconds


def bring_home(policy: AnyPolicy) -> None:
    """Ends learners in other processes; the policy goes on with one in this process that has their state."""
    group = policy.learner_group
    if group.is_local:
        return
    _learn_in_process(policy, policy.config.copy().learners(num_learners=0))


def move_to(policy: AnyPolicy, device: torch.device | str) -> None:
    """Goes on with a learner on another device that has the state of the present one.

    Raises `RuntimeError` for learners in other processes, `ValueError` for a device that is not there.
    """
    group, wanted = policy.learner_group, torch.device(device)
    if group.is_remote:
        raise RuntimeError(
            "the learners are in other processes, whose devices learners(...) sets; call bring_home() before to()"
        )
    present = group.learner.device
    if wanted.type == present.type and wanted.index in (None, present.index):
        return
    config = policy.config.copy().framework(device=str(wanted))
    config.validate()
    _learn_in_process(policy, config)
    policy._set_config(config)


def _learn_in_process(policy: AnyPolicy, config: AlgorithmConfig) -> None:
    """Replaces the policy's learners by one in this process, as `config` says, with their state."""
    state = policy.learner_group.get_state()
    policy.learner_group.shutdown()
    policy.learner_group = config.build_learner_group(spaces=(policy.observation_space, policy.action_space))
    policy.learner_group.set_state(state)
    policy._act_with_learner()
    policy._take_over()


# -- state ---


def get_state(policy: AnyPolicy) -> dict[str, Any]:
    """The group's state, the time and the random numbers of `compute_actions`."""
    return {
        "learner_group": policy.learner_group.get_state(),
        "timesteps": dict(policy.timesteps),
        "rng": policy._rng_state(),
    }


def set_state(policy: AnyPolicy, state: Mapping[str, Any]) -> None:
    """Restores what `get_state` returned."""
    policy.learner_group.set_state(state["learner_group"])
    policy._set_own_state(state)


def checkpoint_folders(policy: AnyPolicy) -> dict[str, dict[str, Any]]:
    """The folders of a checkpoint: the group's, and `policy`."""
    own = {
        "config": named_options(policy.config),
        "observation_space": _described(policy.observation_space),
        "action_space": _described(policy.action_space),
        "timesteps": policy.timesteps,
        "rng": policy._rng_state(),
    }
    return {"policy": {"state": own}, **policy.learner_group.checkpoint_folders()}


def set_checkpoint_folders(policy: AnyPolicy, folders: Mapping[str, dict[str, Any]]) -> None:
    """Restores from the folders of a checkpoint; `ValueError` where there is no policy in it."""
    if "policy" not in folders:
        raise ValueError(f"there is no policy, but {told_of(folders)}; give what Policy.save_to_path wrote")
    policy.learner_group.set_checkpoint_folders(folders)
    policy._set_own_state(folders["policy"]["state"])


def save_to_path(policy: AnyPolicy, path: str | Path | None = None) -> str:
    """Writes a checkpoint folder, a new temporary one for None; returns its absolute path."""
    policy.learner_group.last_checkpoint = str(write_checkpoint(path, policy.checkpoint_folders()))
    return policy.learner_group.last_checkpoint


def restore_from_path(policy: AnyPolicy, path: str | Path) -> None:
    """Restores from a checkpoint folder."""
    policy.set_checkpoint_folders(read_checkpoint(Path(path)))


def policy_from_checkpoint(path: str | Path, *, policy_mapping_fn: Callable[..., str] | None = None) -> AnyPolicy:
    """The policy in a checkpoint folder; no environment is made. `ValueError` where there is no policy in it.

    `policy_mapping_fn`: of several modules, in place of the one that was saved (one without a name cannot be).
    """
    from lockstep.algorithms import get_config

    try:
        folders = read_checkpoint(Path(path))
    except CheckpointError as error:
        if any((folder / "config.json").exists() for folder in (Path(path), Path(path).parent)):
            raise CheckpointError(
                f"{error}; the best policy of a run is in best/policy of its folder, and lockstep.load_policy(folder) "
                "finds it"
            ) from error
        raise
    if "policy" not in folders:
        raise ValueError(f"{path} holds no policy, but {told_of(folders)}; give what Policy.save_to_path wrote")
    saved = folders["policy"]["state"]
    config = get_config(saved["config"]["algorithm"]).update_from_dict(saved["config"])
    if policy_mapping_fn is not None:
        config.multi_agent(policy_mapping_fn=policy_mapping_fn)
    spaces = space_of(saved["observation_space"]), space_of(saved["action_space"])
    with _same_threads():
        policy: AnyPolicy = config.learners(num_learners=0).build_policy(spaces=spaces)
        policy.set_checkpoint_folders(folders)
    return policy


@contextmanager
def _same_threads() -> Iterator[None]:
    """Leave torch's threads as they are: a policy that is loaded acts in somebody else's process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def told_of(folders: Mapping[str, Any]) -> str:
    """What a checkpoint holds that is not of a policy."""
    if {"weights", "spec"} <= set(folders.get("", {})):
        return "an RLModule (RLModule.from_checkpoint reads it)"
    if "learner" in folders:
        return "a learner (Learner.from_checkpoint reads it)"
    return f"the folders {sorted(folders)}"


def deep_copy(policy: AnyPolicy, memo: dict[int, Any]) -> Any:
    """A policy of its own, with a learner in this process, that acts and learns on as this one would."""
    spaces = policy.observation_space, policy.action_space
    twin: AnyPolicy = policy.config.copy().learners(num_learners=0).build_policy(spaces=spaces)
    twin.set_state(policy.get_state())
    return twin


def refuse_pickle(policy: AnyPolicy) -> Any:
    """A policy is not pickled: `TypeError` with what to do."""
    name = type(policy).__name__
    raise TypeError(f"a {name} is not pickled: write it with save_to_path(path), read it with from_checkpoint(path)")


def _described(space: Any) -> Any:
    """A space, or a dict of them by module id, as plain data."""
    if type(space) is dict:
        return {"modules": {module_id: describe_space(own) for module_id, own in space.items()}}
    return describe_space(space)


def space_of(described: Any) -> Any:
    """Return the space, or the spaces by module id, that a checkpoint describes."""
    if isinstance(described, Mapping) and "modules" in described:
        return {module_id: space_from(own) for module_id, own in described["modules"].items()}
    return space_from(described)
