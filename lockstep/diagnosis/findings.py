"""`doctor`: what is seen in a run that does not learn, in words, the most certain first, each with what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces

from lockstep.diagnosis.glimpse import Glimpse
from lockstep.diagnosis.records import Returns, RunRecords
from lockstep.envs.check import LARGE_SCALE, SMALL_SCALE
from lockstep.options.checks import check_number
from lockstep.options.schedules import Schedule, ScheduleLike
from lockstep.state.markup import number_text

LOSSES = ("loss", "norm", "q_mean", "entropy", "td_error_mean")
"""parts of the names of metrics that are finite in a sound run"""
FEW_STEPS = 500
"""steps of an environment within which an episode may well not end"""
LARGE, SMALL = LARGE_SCALE, SMALL_SCALE
NORMAL_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""in nats, of a normal distribution with deviation 1"""


@dataclass(frozen=True)
class RunFinding:
    """One thing that `doctor` saw.

    Attributes:
        code: a short name of the kind, for programs.
        title: the same in words.
        certainty: from 0 to 1, how sure it is that this keeps the run from learning.
        evidence: the numbers and options that show it.
        advice: what to do.
    """

    code: str
    title: str
    certainty: float
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.title} ({self.in_words}). {self.evidence}. {self.advice}."

    @property
    def in_words(self) -> str:
        """Return the certainty as "certain", "very likely", "likely" or "possible"."""
        for limit, words in ((0.95, "certain"), (0.8, "very likely"), (0.6, "likely")):
            if self.certainty >= limit:
                return words
        return "possible"


@dataclass(frozen=True)
class Examination:
    """What `doctor` returns: whether the run learns, and what it found."""

    learns: bool | None
    """None where no returns were recorded that could tell"""
    progress: str
    """the returns, in words"""
    findings: tuple[RunFinding, ...]
    """the most certain first"""
    note: str | None = None
    """why the networks were not looked at, where they were not"""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        verdict = {True: "It learns", False: "It does not learn", None: "Whether it learns cannot be told"}[self.learns]
        lines = [f"{verdict}: {self.progress}."]
        for number, finding in enumerate(self.findings, start=1):
            lines += [
                f"{number}. {finding.title} ({finding.in_words})",
                f"   seen: {finding.evidence}",
                f"   try:  {finding.advice}",
            ]
        if not self.findings:
            lines.append("Nothing that keeps a run from learning was found.")
        if self.note:
            lines.append(f"Networks and rewards were not looked at closely: {self.note}.")
        return lines


def doctor(
    path: str | Path, *, expected_return: float | None = None, play: bool = True, trust: bool = False
) -> Examination:
    """Say what is wrong with the run in a folder: what its options, its records and its newest checkpoint show.

    `expected_return`: below it a run that no longer gets better counts as one that does not learn; None: its
    `evaluation.stop_return`, else the reward threshold that gymnasium has for the environment. `play`: make the
    environment and play some hundred steps with the newest checkpoint, for dead units, saturated actions and the scale
    of rewards. `trust`: take all objects that the run's files name, see `Policy.from_checkpoint`; where one needs it,
    the examination's note says so. Nothing in the folder is changed.

    Raises `RunFolderError`: there is no run, or it is empty.
    """
    check_number("expected_return", expected_return, optional=True)
    run = RunRecords(path)
    return RunExamination(run, Glimpse.of_run(run.folder, play=play, trust=trust), expected_return).examine()


class RunExamination:
    """Looks for each fault in what was recorded and in what the networks do.

    Faults that no run can learn with are told of every run, all others only of one that does not learn: a run that
    learns may have a small entropy in the end, large rewards, or gradients that are always clipped.
    """

    def __init__(self, run: RunRecords, seen: Glimpse, expected_return: float | None = None) -> None:
        self.run, self.seen = run, seen
        self.expected = run.expected_return() if expected_return is None else expected_return
        self.learns = run.learns(self.expected)

    def examine(self) -> Examination:
        """Make all checks."""
        checks = [self.not_finite, self.never_started, self.zero_learning_rate, self.endless_episodes]
        if self.learns is False or not self.run.curve:
            checks += [
                *(self.no_exploration, self.value_error_explodes, self.rewards_of_odd_scale, self.entropy_gone),
                *(self.dead_units, self.saturated_actions, self.clipped_gradients, self.large_observations),
                self.same_returns,
            ]
        found = [finding for check in checks if (finding := check()) is not None]
        found.sort(key=lambda finding: -finding.certainty)
        return Examination(self.learns, self.run.progress(self.expected), tuple(found), self.seen.note)

    # -- what no run can learn with ---

    def not_finite(self) -> RunFinding | None:
        """Find losses, gradients, parameters or rewards that are NaN or infinite."""
        where = ""
        for record in self.run.updates:
            bad = [
                name
                for name, value in record["data"].items()
                if isinstance(value, float) and not math.isfinite(value) and any(part in name for part in LOSSES)
            ]
            if bad:
                where = f"{', '.join(bad[:3])} {'is' if len(bad) == 1 else 'are'} not finite by gradient step "
                where += f"{record['step']:,}"
                break
        evidence = [where] if where else []
        if self.seen.broken:
            evidence.append(
                f"not finite in the newest checkpoint or its environment: {', '.join(self.seen.broken[:3])}"
            )
        if not evidence:
            return None
        return RunFinding(
            "nan",
            "NaN or infinite numbers",
            1.0,
            f"{'; '.join(evidence)}; training.lr={self.run.option('training.lr')}",
            f"lower training.lr, set training.grad_clip, and check the rewards and observations: "
            f"lockstep doctor {self.run.env_name}",
        )

    def never_started(self) -> RunFinding | None:
        """Find that no gradient step was ever made."""
        run, starts = self.run, self.run.option("replay.learning_starts")
        if run.gradient_steps or not run.env_steps:
            return None
        total = run.option("reporting.total_steps") or run.env_steps
        waits = starts is not None and run.env_steps <= starts
        if waits and starts < total and not run.is_over:
            return None  # it will
        evidence = f"no gradient step in {run.env_steps:,} environment steps"
        advice = "let it run longer: the first update comes after training.train_batch_size steps"
        if starts is not None:
            evidence += f"; replay.learning_starts={starts:,}, reporting.total_steps={total:,}"
            advice = "set replay.learning_starts to a small share of the run, or replay.update_per_step higher"
        return RunFinding("never_started", "Learning never started", 1.0, evidence, advice)

    def zero_learning_rate(self) -> RunFinding | None:
        """Find a learning rate of 0, or a schedule of it that ended long before the run."""
        worst, name, since = 0.0, "", 0
        for key, series in self.run.series("_learning_rate").items():
            steps = np.diff([0, *(step for step, _ in series)])
            zeros = np.array([value == 0.0 for _, value in series])
            share = float(steps[zeros].sum() / max(1, steps.sum()))
            if share > worst:
                worst, name, since = share, key, series[int(zeros.argmax())][0]
        if worst < (1.0 if self.learns else 0.2):
            return None
        lr = self.run.option("training.lr")
        always = worst == 1.0
        return RunFinding(
            "zero_learning_rate",
            "The learning rate is 0" if always else "The schedule of the learning rate ended too early",
            0.99 if always else min(0.95, 0.75 + 0.25 * worst),
            f"{name} is 0 in {worst:.0%} of {self.run.gradient_steps:,} gradient steps"
            f"{'' if always else f', from about step {since:,} on'}; training.lr={lr}",
            "set training.lr to a number such as 3e-4"
            if always
            else "give the last point of the schedule training.lr=[[0, ...], [steps, 0]] the steps of the whole run, "
            f"reporting.total_steps={self.run.option('reporting.total_steps')}",
        )

    def endless_episodes(self) -> RunFinding | None:
        """Find that no episode has ended, so that no return is known."""
        run, limit = self.run, getattr(self.run.registered, "max_episode_steps", None)
        if not run.collects or run.episodes or run.steps_of_an_env < max(FEW_STEPS, limit or 0):
            return None
        return RunFinding(
            "endless_episodes",
            "Episodes never end",
            0.97,
            f"no episode ended in {run.env_steps:,} environment steps ({run.steps_of_an_env:,} in each environment)",
            "end episodes (terminated), or wrap the environment in gymnasium.wrappers.TimeLimit(env, "
            f"max_episode_steps); lockstep doctor {run.env_name} looks at it alone",
        )

    # -- what a run can learn with, but this one does not ---

    def no_exploration(self) -> RunFinding | None:
        """Find that actions are never varied while collecting."""
        run = self.run
        if not run.collects:
            return None
        evidence = advice = ""
        if run.option("env_runners.explore") is False:
            evidence, advice = "env_runners.explore=False", "set env_runners.explore=True"
        else:
            for path, start in (
                ("training.epsilon", "training.epsilon=[[0, 1.0], [10_000, 0.05]]"),
                ("training.exploration_noise", "training.exploration_noise=0.1"),
            ):
                name = path.removeprefix("training.").removeprefix("exploration_").replace("noise", "scale")
                value = (run.option("env_runners.exploration_config") or {}).get(name, run.option(path))
                if run.has_option(path) and self._is_off(value):
                    evidence = f"{path}={value}: the most likely action is taken in at least nine steps of ten"
                    advice = f"set {start}, and let the exploration last a tenth of the run"
        if not evidence:
            return None
        starts = run.option("replay.learning_starts")
        if starts:
            evidence += f"; only the first {starts:,} steps (replay.learning_starts) were random"
        return RunFinding("no_exploration", "No exploration", 0.95, evidence, advice)

    def _is_off(self, value: ScheduleLike | str | None) -> bool:
        """Return whether an amount of exploration is as good as 0 in nine of ten steps that are not random anyway."""
        if isinstance(value, str) or value is None:
            return False  # a function of the user's
        schedule = Schedule(value)
        start = min(self.run.option("replay.learning_starts") or 0, self.run.env_steps - 1)
        times = np.linspace(start, self.run.env_steps, 101)[:-1]
        return float(np.mean([schedule.at(int(time)) < 1e-3 for time in times])) >= 0.9

    def value_error_explodes(self) -> RunFinding | None:
        """Find values, or errors of values, that are far larger than any return can be."""
        bound = self._largest_value()
        if bound is None:
            return None
        found = [
            (max(abs(size(value)) for _, value in series[len(series) // 2 :]) / bound, name, series)
            for metric, size in (("q_mean", float), ("vf_loss", lambda loss: math.sqrt(2.0 * max(loss, 0.0))))
            for name, series in self.run.series(metric).items()
        ]
        ratio, name, series = max(found, default=(0.0, "", []))
        if not 3.0 < ratio < math.inf:
            return None
        targets = [
            f"training.{option}={self.run.option(f'training.{option}')}"
            for option in ("tau", "target_update_interval", "grad_clip")
            if self.run.has_option(f"training.{option}")
        ]
        meant = "errors of the values" if "vf_loss" in name else "values"
        return RunFinding(
            "value_explodes",
            "The value error explodes",
            0.92 if ratio > 10.0 else 0.75,
            f"{name} went from {series[0][1]:.3g} to {series[-1][1]:.3g}: {meant} up to {ratio:.3g} times as large as "
            f"any return of these rewards can be (about {bound:.3g} with training.gamma="
            f"{self.run.option('training.gamma')}); training.lr={self.run.option('training.lr')}"
            + "".join(f", {option}" for option in targets),
            "lower training.lr, set training.grad_clip, and let the target network follow more slowly (smaller "
            "training.tau, larger training.target_update_interval) where there is one",
        )

    def _largest_value(self) -> float | None:
        """Return how large a discounted return can be, in the rewards that are learned from; None if it is unknown."""
        run, gamma = self.run, self.run.option("training.gamma")
        episodes = [*run.training, *run.evaluations]
        if not isinstance(gamma, int | float):
            return None
        longest = max((each.length for each in episodes), default=1000.0)
        horizon = min(1.0 / (1.0 - gamma), 1e6) if gamma < 1.0 else longest
        if run.option("environment.normalize_rewards"):
            return horizon * (run.option("environment.clip_rewards") or 10.0)
        sizes = [max(abs(each.low), abs(each.high)) for each in episodes]
        steps = [abs(each.mean) / each.length * horizon for each in episodes if each.length]
        if self.seen.rewards is not None:
            steps.append(float(np.abs(self.seen.rewards).max()) * horizon)
        for name, alphas in run.series("alpha").items():  # the entropy is part of a soft value
            entropies = run.series(name.removesuffix("alpha") + "entropy")
            steps += [abs(alphas[-1][1] * series[-1][1]) * horizon for series in entropies.values()]
        return max([*sizes, *steps], default=0.0) or None

    def rewards_of_odd_scale(self) -> RunFinding | None:
        """Find rewards so large or small that losses and gradients are, too."""
        run = self.run
        if run.option("environment.normalize_rewards") or not run.collects:
            return None
        if self.seen.rewards is not None:
            size, where = (
                float(np.sqrt(np.mean(np.square(self.seen.rewards, dtype=np.float64)))),
                "root mean square of ",
            )
            where += f"the rewards in {len(self.seen.rewards)} steps"
        else:
            episodes = [each for each in run.training if each.length]
            size = max((abs(each.mean) / each.length for each in episodes), default=1.0)
            where = "mean reward of a step"
        if SMALL <= size < LARGE or size == 0.0:
            return None
        scale = 10.0 ** round(math.log10(size))
        return RunFinding(
            "reward_scale",
            f"Rewards of scale {f'{scale:,.0f}' if size >= LARGE else f'{scale:.0e}'}",
            0.87 if size >= LARGE else 0.7,
            f"{where}: {size:.3g}; environment.normalize_rewards=False",
            f"set environment.normalize_rewards=True, or {'divide' if size >= LARGE else 'multiply'} the rewards by "
            f"{scale if size >= LARGE else 1.0 / scale:,.0f}",
        )

    def entropy_gone(self) -> RunFinding | None:
        """Find that the policy draws hardly more than one action."""
        if not self.run.collects:
            return None
        for name, series in self.run.series("entropy").items():
            limit, meant = self._entropy_limit(series[0][1])
            small = [value < limit for _, value in series]
            if limit == -math.inf or not small[-1]:
                continue
            first = max((k + 1 for k, is_small in enumerate(small) if not is_small), default=0)
            since, coeff = series[first][0], "training.entropy_coeff"
            early = first == 0 or since <= 0.5 * self.run.gradient_steps
            more = f"; {coeff}={self.run.option(coeff)}" if self.run.has_option(coeff) else ""
            return RunFinding(
                "entropy_gone",
                "The entropy is gone",
                0.86 if early else 0.65,
                f"{name} is {series[-1][1]:.3g} (below {limit:.3g}, {meant}) since gradient step {since:,} of "
                f"{self.run.gradient_steps:,}{more}; training.lr={self.run.option('training.lr')}",
                f"raise {coeff} (0.01 is usual) and lower training.lr"
                if more
                else "raise training.target_entropy or training.alpha, and lower training.lr",
            )
        return None

    def _entropy_limit(self, first: float) -> tuple[float, str]:
        """Return the entropy below which hardly more than one action is drawn, and what it is in words."""
        space = self.seen.action_space
        if isinstance(space, spaces.Box):
            half = (space.high.astype(np.float64) - space.low) / 2.0
            half = np.ones(half.shape) if self.seen.is_squashed else np.where(np.isfinite(half), half, 1.0)
            return float(np.sum(NORMAL_ENTROPY + np.log(0.01 * half))), "a deviation of 1 % of half the action's range"
        choices = {spaces.Discrete: lambda: [space.n], spaces.MultiDiscrete: lambda: space.nvec.reshape(-1)}
        for kind, sizes in choices.items():
            if isinstance(space, kind):
                return 0.05 * float(np.sum(np.log(sizes()))), "5 % of that of random actions"
        return (0.05 * first, "5 % of its first value") if first > 0.1 else (-math.inf, "")

    def dead_units(self) -> RunFinding | None:
        """Find hidden units that give the same output for every observation."""
        layers = [layer for layer in self.seen.layers if layer.units]
        if not layers:
            return None
        worst = max(layers, key=lambda layer: layer.dead / layer.units)
        share = sum(layer.dead for layer in layers) / sum(layer.units for layer in layers)
        largest = worst.dead / worst.units
        if share < 0.5 and largest < 0.9:
            return None
        activation = self.run.option("rl_module.model_config.activation")
        return RunFinding(
            "dead_units",
            "Dead units",
            0.9 if largest == 1.0 else 0.7 + 0.15 * max(share, largest - 0.1),
            f"{share:.0%} of all hidden units give the same output for every observation, {worst.dead} of "
            f"{worst.units} in {worst.name}; rl_module.model_config.activation={activation}",
            "lower training.lr, set environment.normalize_observations=True, and use another "
            "rl_module.model_config.activation (tanh or elu in place of relu); then train anew: dead units stay dead",
        )

    def saturated_actions(self) -> RunFinding | None:
        """Find that the most likely actions lie at the bounds of the action space nearly always."""
        share = self.seen.at_bounds
        if share is None or share < 0.9:
            return None
        return RunFinding(
            "saturated_actions",
            "Saturated actions",
            0.8 + 0.05 * (share >= 0.99),
            f"{share:.0%} of the most likely actions lie at a bound of the action space"
            + (" (the tanh of the policy is flat there: hardly any gradient)" if self.seen.is_squashed else ""),
            "lower training.lr, set environment.normalize_observations=True, begin with small actions "
            "(rl_module.model_config.orthogonal_init=True, policy_gain=0.01), and check the scale of rewards",
        )

    def clipped_gradients(self) -> RunFinding | None:
        """Find that at least nine of ten gradients are clipped."""
        limit = self.run.option("training.grad_clip")
        for name, series in self.run.series("_share_clipped").items():
            share = float(np.mean([value for _, value in series]))
            norms = self.run.series(name.removesuffix("_share_clipped") + "_global_norm")
            if share < 0.9 or not norms or not limit:
                continue
            norm = float(np.median([value for _, value in next(iter(norms.values()))]))
            ratio = norm / limit
            return RunFinding(
                "clipped_gradients",
                f"Gradients are clipped {'nine times in ten' if share < 0.95 else 'nearly always'}",
                0.8 if ratio >= 1000.0 else 0.6 if ratio >= 100.0 else 0.5,
                f"{share:.0%} of gradients were longer than training.grad_clip={limit}, {ratio:.3g} times as long "
                f"(median of {name.removesuffix('_share_clipped')}_global_norm: {norm:.3g})",
                f"raise training.grad_clip (towards {norm:.1g}), or make the loss smaller: "
                "environment.normalize_rewards=True, a smaller training.vf_loss_coeff where there is one",
            )
        return None

    def large_observations(self) -> RunFinding | None:
        """Find observations so large that the first layer saturates."""
        size = self.seen.obs_scale
        if size is None or size < LARGE or self.run.option("environment.normalize_observations"):
            return None
        return RunFinding(
            "observation_scale",
            f"Observations of scale {10.0 ** round(math.log10(size)):,.0f}",
            0.72,
            f"root mean square of observations: {size:.3g}; environment.normalize_observations=False",
            "set environment.normalize_observations=True",
        )

    def same_returns(self) -> RunFinding | None:
        """Find that every episode had the same return, so that no action looks better than another."""
        episodes: list[Returns] = self.run.training
        count = sum(each.count for each in episodes)
        if (
            self.run.is_multi_agent
            or count < 10
            or max(each.high for each in episodes) != min(each.low for each in episodes)
        ):
            return None
        return RunFinding(
            "same_returns",
            "No episode was better than another",
            0.65,
            f"all {count:,} training episodes had the return {number_text(episodes[0].mean)}",
            "explore more or longer (training.epsilon, training.exploration_noise, training.entropy_coeff), or give "
            "rewards on the way to the goal",
        )
