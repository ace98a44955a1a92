"""`lockstep train dqn` and `lockstep resume`: the plan describes replay, and a resumed run keeps its buffer."""


def test_dqn_trains_and_resumes_from_the_command_line(lockstep, tmp_path):
    options = ("--no-recipe", "--set", "replay.learning_starts=200", "--set", "evaluation.evaluation_duration=2")
    said = lockstep("train", "dqn", "CartPole-v1", "--total-steps", "800", "--root", str(tmp_path), *options)
    assert said.code == 0, said
    assert "0.25 gradient steps for each of 800 environment steps, after 200 random ones" in said.out
    assert "150 on 32 transitions each" in said.out
    assert "100,000 transitions, 0 in it" in said.out
    (run,) = tmp_path.iterdir()
    again = lockstep("resume", str(run), "--total-steps", "1200")
    assert again.code == 0, again
    assert "100,000 transitions, 800 in it" in again.out
    assert "250 gradient steps" in again.out
