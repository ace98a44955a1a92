"""`config.callbacks(...)`: classes of callbacks belong to the configuration and come back with it."""

from __future__ import annotations

from typing import Any

import pytest
from agent_games import CountingGame, game_config
from scenario_tools import config_of

from lockstep import MultiAgentCollector, PPOConfig
from lockstep.rollout import EnvironmentCallback
from lockstep.trainer import Callback


class Counting(Callback):
    """Counts updates, over all that are made."""

    updates = 0

    def on_update_end(self, event: Any) -> None:
        Counting.updates += 1


class Ending(Callback):
    """Asks for the end after the first epoch."""

    def on_epoch_end(self, event: Any) -> str:
        return "enough"


def test_classes_in_the_configuration_watch_the_run_and_can_end_it() -> None:
    Counting.updates = 0
    assert config_of("on").callbacks([Counting]).build_trainer().run().stop_reason == "max_epoch"
    assert Counting.updates == 6
    assert config_of("on").callbacks([Counting, Ending]).build_trainer().run().stop_reason == "enough"
    assert Counting.updates == 8


def test_one_class_needs_no_list_and_json_keeps_its_name() -> None:
    made = PPOConfig().callbacks(Counting)
    assert made.sections["callbacks"].classes == [Counting]
    again = PPOConfig().update_from_dict(made.to_dict())
    assert again == made
    assert again.callbacks_class is Counting


@pytest.mark.parametrize("wrong", [Counting(), dict, "Counting", 3])
def test_what_is_no_class_of_callbacks_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be a subclass of"):
        PPOConfig().environment("CartPole-v1").callbacks(wrong).validate()


def watching(*names: str, base: type = Callback) -> Any:
    """A class of callbacks with methods of these names."""
    return type("Watching", (base,), dict.fromkeys(names, lambda *_: None))


def by_hand(watch: Any) -> Any:
    return game_config().build_trainer(callbacks=[watch])


def in_configuration(watch: Any) -> Any:
    return game_config().callbacks(type(watch)).validate()


def in_a_collector(watch: Any) -> Any:
    return MultiAgentCollector(game_config().build_policy(), CountingGame).set_callbacks([watch])


@pytest.mark.parametrize("enter", [by_hand, in_configuration, in_a_collector])
@pytest.mark.parametrize(
    ("watch", "nearest"),
    [
        (watching("on_epoch_finished"), "on_epoch_finished, which nothing calls; did you mean 'on_epoch_end'"),
        (watching("on_epoch_end", "on_episode_ended"), "on_episode_ended, .* did you mean 'on_episode_end'"),
        (watching("on_train_result"), "on_train_result, .* did you mean 'on_epoch_end'"),
    ],
)
def test_a_callback_method_named_like_an_unknown_event_is_refused(watch: Any, nearest: str, enter: Any) -> None:
    with pytest.raises(ValueError, match=nearest):
        enter(watch())


def test_environment_callbacks_have_no_run_events() -> None:
    collector = MultiAgentCollector(game_config().build_policy(), CountingGame)
    with pytest.raises(ValueError, match="on_update_end, which nothing calls"):
        collector.set_callbacks([watching("on_update_end", base=EnvironmentCallback)()])
    fine = watching("on_episode_end", "once", "online", "_on_call")
    collector.set_callbacks([fine()])
    game_config().callbacks(fine).validate()
