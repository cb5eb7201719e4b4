"""Reinforce-Ada inside the real grpo_train, on a CPU (nemo_support/harness.py).

1. Every preset trains, on the synchronous and where it applies on the asynchronous engine; names are restored.
2. Validation draws exactly what it draws without us; with another estimator nothing changes, bit for bit.
3. A killed and resumed run is the uninterrupted one, in losses, weights and sampler state.
4. Rows without advantage: the update is the same with and without them, for fewer tokens.
"""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.nemo_rl

STEPS = 3


@pytest.fixture
def run(harness, tmp_path):
    """run(preset or settings, ...): a run in a folder of its own, which must leave NeMo-RL's names as they were."""

    def train(ada, steps=STEPS, *, name="run", changes=None, **options):
        section = {"preset": ada} if isinstance(ada, str) else ada
        if "_est_" in section["preset"]:
            section = {**section, "sampling": {"min_responses": 2}}  # groups of 4 must leave a choice
        overrides = {**harness.OURS, "reinforce_ada": section, **(changes or {})}
        before = dict(vars(harness.grpo))
        try:
            return harness.run_grpo(tmp_path / name, steps, overrides, hooks=harness.hooks, **options)
        finally:
            assert all(vars(harness.grpo)[name] is value for name, value in before.items() if callable(value))

    return train


def validation_draws(harness, record):
    """Which draws validation made; what they say depends on the weights."""
    return [(draw.prompt, draw.draw) for draw in record.draws(harness.VALIDATION_PROMPTS)]


def same_weights(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def same_update(left, right):
    """Loss and gradient norm of the first step. Later ones differ: the tiny engine draws by the weights' last bit."""
    assert left.losses == pytest.approx(right.losses, abs=1e-6)
    assert left.metrics[1]["train/grad_norm"] == pytest.approx(right.metrics[1]["train/grad_norm"], rel=1e-4)
    assert left.metrics[1]["train/grad_norm"] > 0


@pytest.fixture(scope="module")
def plain(harness, tmp_path_factory):
    return harness.run_grpo(tmp_path_factory.mktemp("plain"), steps=STEPS)


@pytest.mark.parametrize(
    ("preset", "async_engine"),
    [
        *((name, False) for name in ("grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log")),
        *((name, False) for name in ("ada_est_ema", "ada_est_value")),
        *((name, True) for name in ("ada_seq_balance", "ada_est_ema")),
    ],
)
def test_every_preset_trains(harness, plain, run, preset, async_engine):
    record = run(preset, async_engine=async_engine)
    assert len(record.losses) == STEPS and all(map(math.isfinite, record.losses)) and any(record.losses)
    assert [len(batch["input_ids"]) for batch in record.batches] == [16] * STEPS
    assert [path.name for path in record.checkpoints] == [f"step_{step}" for step in range(1, STEPS + 1)]
    assert record.generation.refits == plain.generation.refits, "one refit per step, however many waves"
    assert sum(record.validation_rows) == sum(plain.validation_rows)
    assert validation_draws(harness, record) == validation_draws(harness, plain)
    assert record.column("token_mult_prob_error") == pytest.approx([1.0] * STEPS, abs=1e-4)
    assert record.column("mean_prompt_length") == plain.column("mean_prompt_length")
    assert {name for name in plain.metrics[1] if name.startswith("train/")} <= record.metrics[1].keys()
    assert record.column("total_turns") == record.column("ada/samples_drawn")
    drawn = sum(record.column("ada/samples_drawn"))
    assert drawn == sum(record.train_rows) == len(record.draws(harness.TRAIN_PROMPTS))


def test_grpo_by_our_code_path_is_grpo_without_normalisation(harness, run, tmp_path):
    """Preset `grpo` against NeMo-RL's own estimator with the same baseline and no division: same update."""
    own = harness.run_grpo(tmp_path / "own", 1, harness.NO_DIVISION)
    ours = run("grpo", steps=1)
    same_update(ours, own)
    harness.assert_same_metrics(ours, own, but=harness.OF_ROWS_IN_THE_LOSS)
    assert ours.column("reward") == own.column("reward") == ours.column("ada/pass_rate")


def test_the_defaults_of_nemo_rls_example_are_a_preset(harness, tmp_path):
    """Others' mean as baseline and their spread as divisor. The example's keys for it stay as they are."""
    own = harness.run_grpo(tmp_path / "own", 1, harness.ALL_ROWS)
    ours = harness.run_grpo(
        tmp_path / "ours", 1, {**harness.ALL_ROWS, "reinforce_ada": {"preset": "nemo_rl_grpo"}}, hooks=harness.hooks
    )
    same_update(ours, own)
    assert ours.column("reward") == own.column("reward")


@pytest.mark.parametrize("async_engine", [False, True], ids=["synchronous", "asynchronous"])
def test_metrics_of_a_run_that_draws_grpo_s_groups_are_nemo_rl_s_own(harness, tmp_path, async_engine):
    """Every row is in the loss, so every metric of the loop keeps its value, with either engine."""
    engine = {"async_engine": async_engine}
    own = harness.run_grpo(tmp_path / "own", 1, {**harness.NO_DIVISION, **harness.ALL_ROWS}, **engine)
    settings = {**harness.ALL_ROWS, **harness.OURS, "reinforce_ada": {"preset": "grpo"}}
    harness.assert_same_metrics(harness.run_grpo(tmp_path / "ours", 1, settings, hooks=harness.hooks, **engine), own)


def test_without_the_section_nothing_changes_bit_for_bit(harness, plain, tmp_path):
    record = harness.run_grpo(tmp_path, STEPS, hooks=harness.hooks)
    assert record.losses == plain.losses
    assert same_weights(record.weights, plain.weights)
    assert not any("ada/" in name for name in record.metrics[1])


@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_a_killed_run_resumes_as_if_nothing_happened(run, preset):
    def kill(step):
        if step == 4:
            raise KeyboardInterrupt

    straight = run(preset, steps=6, name="straight")
    with pytest.raises(KeyboardInterrupt):
        run(preset, steps=6, before_train=kill)
    resumed = run(preset, steps=6, resume=True)
    assert resumed.losses == straight.losses[4:]
    assert same_weights(resumed.weights, straight.weights)
    assert resumed.sampler == straight.sampler and resumed.sampler["draws"] == 6


@pytest.mark.parametrize("batch", [16, 8], ids=["one update per step", "two, each with its own denominator"])
def test_rows_without_advantage_cost_two_tokens_and_change_nothing(harness, run, batch):
    changes = {"policy.train_global_batch_size": batch}
    lean = run("grpo", steps=1, changes=changes)
    full = run("grpo", steps=1, name="full", changes=changes | harness.PENALTY)
    same_update(lean, full)
    tokens = [sum(int(lengths.sum()) for lengths in record.logprob_lengths) for record in (lean, full)]
    skipped = lean.metrics[1]["train/ada/tokens_skipped"]
    assert skipped > 0 and tokens[0] < tokens[1] - skipped


def test_all_answers_equal_trains_on_nothing_and_goes_on(run):
    record = run("ada_seq_lean", steps=2, labels=lambda prompt, draw: True)
    assert record.losses == [0.0, 0.0]
    assert record.column("ada/zero_signal_groups") == [1.0, 1.0]


@pytest.mark.parametrize("async_engine", [False, True], ids=["sync", "async"])
def test_failed_responses_are_redrawn_in_training_and_counted_in_validation(harness, run, async_engine):
    """One draw of a training prompt and every answer to one of four validation prompts hang their verifier; on the
    asynchronous engine the generation of another draw fails."""
    one, two = list(harness.TRAIN_PROMPTS)[:2]
    other = next(iter(harness.VALIDATION_PROMPTS))
    rates = harness.seeded_labels(harness.TRAIN_PROMPTS)

    def labels(prompt, draw):
        if prompt == other or (prompt == one and draw == 1):
            return "="
        return prompt in harness.VALIDATION_PROMPTS or rates(prompt, draw)

    def fails(prompt, draw):
        return async_engine and prompt == two and draw == 1

    record = run("grpo", steps=4, async_engine=async_engine, labels=labels, fails=fails)
    assert sum(record.column("ada/failed/verifier_timeout")) == 1
    assert sum(record.column("ada/failed/engine_error")) == async_engine
    assert sum(record.column("ada/samples_failed")) == 1 + async_engine
    assert all(map(math.isfinite, record.losses + record.column("reward")))
    assert all(batch["token_mask"].bool().any(dim=1).all() for batch in record.batches)
    for step in (0, 2, 4):
        assert record.metrics[step]["validation/accuracy"] == 0.75
        assert record.metrics[step]["validation/ada/without_label"] == 1


def test_dapo_filtering_leaves_no_group_without_signal(run):
    filtering = {"use_dynamic_sampling": True, "batch_multiplier": 2, "dynamic_sampling_max_gen_batches": 8}
    record = run("grpo", steps=2, changes={f"grpo.{key}": value for key, value in filtering.items()})
    assert all(map(math.isfinite, record.losses))
    assert all((batch["sample_mask"] == 1).all() for batch in record.batches)
    kept = [float(batch["token_mask"].sum()) for batch in record.batches]
    assert record.column("ada/tokens_trained") == kept, "of the rows that were trained on, not of the last draw"
    assert record.column("ada/batch_reward") == pytest.approx(record.column("filtered_reward"))


def test_stand_ins_agree_with_the_real_types(harness):
    """What standin.py copies: row selection, copies, signatures, columns."""
    import inspect

    import standin
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.experience import rollouts

    from nemo_ada.rules.facts.upstream import PATCH_POINTS, SAMPLE_ROLLOUT

    ours, real = standin.prompt_batch([3, 4]), BatchedDataDict(dict(standin.prompt_batch([3, 4])))
    for batch in (ours, real):
        shared = batch.select_indices([1, 1])
        assert shared["message_log"][0] is shared["message_log"][1]
        copied = shared.repeat_interleave(1)
        assert copied["message_log"][0] is not copied["message_log"][1]
        assert copied["length"].tolist() == [3, 3] and copied.size == 2
    assert ours.repeat_interleave(2)["idx"] == real.repeat_interleave(2)["idx"]
    loop, fake_rollouts = standin.loop_module(standin.Engine(lambda prompt, draw: (1.0, 1)))
    for target in PATCH_POINTS:
        target.check(loop)
        target.check(harness.grpo)
        fake, true = (list(inspect.signature(getattr(m, target.name)).parameters) for m in (loop, harness.grpo))
        shared = min(len(fake), len(true))  # versions add parameters at the end
        assert true[:shared] == fake[:shared] and shared >= len(target.parameters)
    for module in (rollouts, fake_rollouts):
        SAMPLE_ROLLOUT.check(module)
