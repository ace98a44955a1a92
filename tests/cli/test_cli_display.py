"""`ProgressDisplay` by itself."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from lockstep.runs.seeds_display import SeedsDisplay
from lockstep.tracking.statistics import (
    CollectStats,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
)
from lockstep.trainer.callbacks import CollectEnd, EpochEnd, EvaluationEnd, RunEnd, RunStart, UpdateEnd
from lockstep.trainer.display import Progress, ProgressDisplay, clock_text
from lockstep.trainer.notebook import MAX_POINTS, ReturnCurve, ReturnPicture

TRAIN = CollectStats(2, 500, 0.5, returns=(10.0, 20.0), lens=(10, 20))
TEST = CollectStats(2, 60, 0.1, returns=(30.0, 30.0), lens=(30, 30))
UPDATE = TrainingStats(
    0.5,
    8,
    {name: SequenceSummaryStats.from_sequence([1.5]) for name in ("policy_loss", "entropy", "total_loss", "lr")},
)
TRAINER = SimpleNamespace(steps_in_all=1000, train_collector=object(), history=[])


def play(display: ProgressDisplay) -> None:
    display.on_event(RunStart(0, 0, 0, trainer=TRAINER))
    display.on_event(CollectEnd(1, 500, 0, stats=TRAIN))
    display.on_event(UpdateEnd(1, 500, 8, stats=UPDATE))
    display.on_event(EvaluationEnd(1, 500, 8, stats=TEST, score=30.0, is_best=True))
    info = InfoStats(train_step=500, timing=TimingStats(update_speed=500.0))
    display.on_event(EpochEnd(1, 500, 8, stats=EpochStats(1, TRAIN, TEST, UPDATE, info)))
    display.on_event(RunEnd(1, 500, 8, reason="interrupted", info=info))


def test_display_plain_line_of_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    play(ProgressDisplay(live=False))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "  500/1,000 steps  evaluation return 30 ± 0, length 30  training return 15 ± 5, length 15  "
        "policy_loss 1.5  entropy 1.5  500 steps/s  "
    )
    assert line.endswith(" left")


def test_display_live_ends_with_the_last_state_and_gives_the_cursor_back() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, markup=False)
    display = ProgressDisplay(console, title="PPO [box]")
    play(display)
    text = screen.getvalue()
    assert not display.is_live
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    last = text[text.rindex("PPO [box]") :]
    assert "500/1,000 steps" in last
    assert "best 30 at 500" in last
    assert "policy_loss 1.5" in last


def test_display_before_the_first_episode_ends_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay(live=False)
    display.on_event(RunStart(0, 0, 0, trainer=TRAINER))
    info = InfoStats(train_step=500)
    display.on_event(EpochEnd(1, 500, 8, stats=EpochStats(1, CollectStats(0, 500), None, None, info)))
    assert "training no episode ended yet" in capsys.readouterr().out
    display.on_event(EpochEnd(2, 500, 8, stats=EpochStats(2, CollectStats(), None, None, info)))
    assert "training" not in capsys.readouterr().out, "a run that goes on at the end of an epoch collects nothing in it"


def test_display_of_several_seeds_has_a_row_for_each() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, markup=False)
    with SeedsDisplay([3, 4, 5], console, title="PPO [box], 3 seeds") as display:
        assert display.is_live
        display.say("the plan [box]")
        display.show(3, Progress(500, 1000, 50.0, 30.0, 40.0), line="not on a terminal")
        display.show(4, Progress(100, 1000, 0.0))
        display.show(3, None, "ended")
        display.note = "stopping"
    text = screen.getvalue()
    assert not display.is_live
    assert "the plan [box]" in text
    assert "not on a terminal" not in text
    last = text[text.rindex("PPO [box], 3 seeds") :]
    rows = {row[:6]: row for row in last.splitlines() if row.startswith("seed")}
    for part in ("500/1,000 steps", "50 steps/s", "return 30", "best 40", "ended"):
        assert part in rows["seed 3"]
    assert "100/1,000 steps" in rows["seed 4"]
    assert "? left" in rows["seed 4"]
    assert "waiting" in rows["seed 5"]
    assert "stopping" in last
    assert Progress(500, 1000, 50.0).left_text() == "0:10"


def test_display_of_several_seeds_is_plain_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with SeedsDisplay([3], Console(file=io.StringIO())) as display:
        display.show(3, Progress(500, 1000, 50.0))
        display.show(3, Progress(500, 1000, 50.0), line="500/1,000 steps")
    assert capsys.readouterr().out == "seed 3  500/1,000 steps\n"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3725, "1:02:05")])
def test_display_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_curve_of_a_long_run_is_merged_and_keeps_its_mean() -> None:
    curve = ReturnCurve()
    for step in range(5_000):
        curve.add(step, 2.0 * step)
    assert MAX_POINTS // 2 <= len(curve.steps) <= MAX_POINTS
    assert curve.returns == [2 * step for step in curve.steps]
    assert curve.steps == sorted(curve.steps)
    assert curve.steps[-1] > 4_950


def test_picture_of_returns_is_a_png_and_none_before_the_first_return() -> None:
    picture = ReturnPicture(1000)
    assert picture.png() is None
    picture.training.add(100, 20.0)
    png = picture.png()
    assert png is not None
    assert png.startswith(b"\x89PNG")
