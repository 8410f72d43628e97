"""Training: exact, resumable, and complete on disk."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from stepward.prm.errors import FormatError, InputError, ModelError, StoreError
from stepward.prm.models.batches import make_batch
from stepward.prm.models.discriminative import place_logprobs, reference_logprobs, take_logprobs
from stepward.prm.models.heads import HeadSpec, head_spec
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.load import load
from stepward.prm.models.weights import load_reference, new_prm
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import LabeledSolution, Outcome, Problem
from stepward.training.collate import Example, collate
from stepward.training.discriminative import TrainResult, train_discriminative
from stepward.training.loop import Loop, Progress, Schedule, fit, make_optimizer, rate_factor
from stepward.training.objectives import OBJECTIVES, Labels, Objective, make_labels, step_pairs
from stepward.training.order import batch_order
from stepward.training.preparation import Trained, check_separator, require_signal

Sums = Callable[..., list[LabeledSolution]]
Row = Callable[..., LabeledSolution]
QUICK = Schedule(epochs=2, batch_size=8, learning_rate=1e-2)


class Killed(Exception):
    """Stands for kill -9."""


def train(rows: list[LabeledSolution], base: Path, out: Path, **options: object) -> TrainResult:
    values: dict[str, object] = {"schedule": QUICK, **options}
    return train_discriminative(rows, rows[:10], base=base, out=out, **values)  # pyright: ignore[reportArgumentType]


def examples_of(rows: list[LabeledSolution], base: Path) -> list[Example]:
    return collate(rows, InputFormat(load_tokenizer(base), StepFormat()))[0]


def test_the_shipped_recipe_learns_the_fixture_and_the_folder_scores_it(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    # Public case P041: a recipe with a fixture of 200 rows and the accuracy that it reaches from seed 0.
    rows = sums(200)
    schedule = Schedule(epochs=3, batch_size=16, learning_rate=1e-2)
    result = train_discriminative(rows, sums(60, 1), base=tiny_llama, out=tmp_path / "prm", schedule=schedule)
    assert result.history[-1]["step_accuracy"] == pytest.approx(0.99, abs=0.03)
    model = load(result.folder)
    right, wrong = model.score(["p"], [["even 3", "odd 4"]])[0]
    assert right > 0.7 > 0.3 > wrong
    assert model.description.history == result.history
    assert model.description.training["dataset_fingerprint"] == result.dataset_fingerprint
    assert model.description.training["rows"]["kept"] == 200
    assert not (tmp_path / ".prm.training").exists()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(sums(24), tiny_llama, tmp_path / name, seed=seed)
    read = {n: (tmp_path / n / "model.safetensors").read_bytes() for n in "abc"}
    assert read["a"] == read["b"] != read["c"]


@pytest.mark.parametrize("kill_after", [3, 4], ids=["within an epoch", "after an epoch"])
def test_a_killed_and_resumed_run_ends_with_the_weights_of_one_that_was_not(
    tiny_llama: Path, tmp_path: Path, sums: Sums, kill_after: int
):
    rows = sums(32)  # 4 steps an epoch
    schedule = replace(QUICK, epochs=3, save_every_steps=3)
    spec = HeadSpec("scalar", dropout=0.2)  # draws from the generator at every step
    train(rows, tiny_llama, tmp_path / "whole", schedule=schedule, head=spec)
    seen: list[float] = []

    def kill(progress: Progress) -> None:
        seen.append(progress.loss)
        if progress.step == kill_after + 1:
            raise Killed

    with pytest.raises(Killed):
        train(rows, tiny_llama, tmp_path / "killed", schedule=schedule, head=spec, on_progress=kill)
    assert not (tmp_path / "killed").exists()
    resumed: list[int] = []
    result = train(
        rows, tiny_llama, tmp_path / "killed", schedule=schedule, head=spec,
        on_progress=lambda p: resumed.append(p.step),
    )  # fmt: skip
    assert resumed[0] == kill_after + 1
    for name in ("model.safetensors", "prm.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(result.history) == 3


def test_an_interrupted_checkpoint_is_passed_over_for_the_last_whole_one(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    rows = sums(32)
    train(rows, tiny_llama, tmp_path / "whole")

    def kill(progress: Progress) -> None:
        if progress.step == 8:
            raise Killed

    with pytest.raises(Killed):
        train(rows, tiny_llama, tmp_path / "cut", on_progress=kill)
    checkpoints = tmp_path / ".cut.training"
    whole = checkpoints / "step-000004"
    half = shutil.copytree(whole, checkpoints / "step-000006")
    tensors = half / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-9])
    (checkpoints / "step-000007").mkdir()
    train(rows, tiny_llama, tmp_path / "cut")
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()


def test_a_folder_of_another_run_is_refused_and_a_finished_run_is_not_repeated(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    rows = sums(16)
    first = train(rows, tiny_llama, tmp_path / "prm")
    calls: list[Progress] = []
    assert train(rows, tiny_llama, tmp_path / "prm", on_progress=calls.append).history == first.history
    assert not calls
    with pytest.raises(StoreError, match="another run"):
        train(rows, tiny_llama, tmp_path / "prm", seed=1)
    train(rows, tiny_llama, tmp_path / "prm", seed=1, overwrite=True)


def test_checkpoints_of_another_run_are_refused(tiny_llama: Path, tmp_path: Path, sums: Sums):
    def kill(progress: Progress) -> None:
        if progress.step == 4:
            raise Killed

    with pytest.raises(Killed):
        train(sums(16), tiny_llama, tmp_path / "prm", on_progress=kill)
    with pytest.raises(StoreError, match="another run"):
        train(sums(18), tiny_llama, tmp_path / "prm")


def test_the_order_is_a_function_of_seed_and_epoch_and_holds_every_row_once():
    lengths = [i % 7 + 1 for i in range(50)]
    first, again = batch_order(lengths, 8, 3, 1), batch_order(lengths, 8, 3, 1)
    assert first == again != batch_order(lengths, 8, 3, 2)
    assert sorted(i for b in first for i in b) == list(range(50))


def test_solutions_of_a_problem_share_a_batch_where_pairs_are_needed():
    groups = ["a", "b", "a", "c", "b", "a"]
    for batch in batch_order([1] * 6, 2, 0, 0, groups):
        for name in "abc":
            members = {i for i, g in enumerate(groups) if g == name}
            assert not members & set(batch) or members <= set(batch)


class Fixed(nn.Module):
    """A model whose raw output is one weight, so that losses can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)

    def forward(self, batch: object, logprobs: object = None) -> torch.Tensor:
        return self.head(torch.ones(len(batch.score_rows), 1))  # pyright: ignore[reportAttributeAccessIssue]


def fixed_loop(examples: list[Example], unit_loss: float, schedule: Schedule) -> tuple[Loop, list[float]]:
    """Every labelled step costs ``unit_loss`` times (4 for the first solution, 1 for others)."""
    seen: list[float] = []

    def cost(raw: torch.Tensor, head: object, labels: Labels) -> torch.Tensor:
        return labels.weight * unit_loss + 0.0 * raw[:, 0]

    objective = Objective("scalar", cost, lambda y: y.weight.sum())
    loop = Loop(
        Fixed(), examples, None, objective, schedule, 0, "", None, dict, lambda p: seen.append(p.loss)
    )  # fmt: skip
    return loop, seen


def test_the_loss_is_the_mean_over_all_labels_of_the_effective_batch(tiny_llama: Path, labeled: Row):
    # Public case P029: micro-batches with 1 label of loss 4 and 3 labels of loss 1: (4 + 3) / 4 = 1.75, not 2.5.
    rows = [labeled("a", ["x"], [1]), labeled("b", ["x", "y", "z"], [1, 1, 0])]
    examples = examples_of(rows, tiny_llama)
    examples[0] = replace(examples[0], weights=(1.0,))

    def cost(raw: torch.Tensor, head: object, labels: Labels) -> torch.Tensor:
        return labels.weight * (4.0 if len(raw) == 1 else 1.0) + 0.0 * raw[:, 0]

    seen: list[float] = []
    objective = Objective("scalar", cost, lambda y: y.weight.sum())
    schedule = Schedule(epochs=1, batch_size=2, micro_batch_tokens=1)
    fit(Loop(Fixed(), examples, None, objective, schedule, 0, "", None, dict, lambda p: seen.append(p.loss)))
    assert seen == [1.75]


def test_a_short_last_batch_is_not_divided_by_the_full_size(tiny_llama: Path, labeled: Row):
    # Public case P030: 5 equal rows, 2 a step: three steps of equal loss.
    examples = examples_of([labeled(f"p{i}", ["x"], [1]) for i in range(5)], tiny_llama)
    loop, seen = fixed_loop(examples, 0.5, Schedule(epochs=1, batch_size=2, micro_batch_tokens=1))
    fit(loop)
    assert seen == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("loss", ["bce", "pqm", "pairwise", "soft_minimum"])
def test_micro_batches_do_not_change_the_gradient(tiny_llama: Path, sums: Sums, loss: str):
    examples = examples_of(sums(12), tiny_llama)
    gradients: list[torch.Tensor] = []
    for tokens in (10_000, 60):
        torch.manual_seed(0)
        model = new_prm(tiny_llama, head_spec("scalar"))
        schedule = Schedule(epochs=1, batch_size=12, micro_batch_tokens=tokens, max_gradient_norm=0.0)
        fit(Loop(model, examples, None, OBJECTIVES[loss], schedule, 0, "", None, dict))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 1e-3
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


@pytest.mark.parametrize("base", ["tiny_llama", "tiny_bert"])
def test_packed_solutions_do_not_see_each_other(base: str, sums: Sums, request: pytest.FixtureRequest):
    folder: Path = request.getfixturevalue(base)
    solutions = [e.encoded for e in examples_of(sums(9), folder)]
    torch.manual_seed(0)
    model = new_prm(folder, head_spec("scalar")).eval()
    with torch.no_grad():
        apart = torch.cat([model(make_batch([s])) for s in solutions])
        padded = model(make_batch(solutions))
        packed = model(make_batch(solutions, row_tokens=120))
        if base == "tiny_llama":
            shared = make_batch(solutions, share_prompts=True)
            assert shared.input_ids.shape[0] == 5  # nine solutions of five problems
            assert torch.allclose(apart, model(shared), atol=1e-5)
    assert make_batch(solutions, row_tokens=120).input_ids.shape[0] < len(solutions)
    assert torch.allclose(apart, padded, atol=1e-5)
    assert torch.allclose(apart, packed, atol=1e-5)


@pytest.mark.parametrize("layout", [{"row_tokens": 120}, {"share_prompts": True}], ids=["packed", "shared"])
def test_log_probabilities_and_implicit_scores_do_not_depend_on_the_layout(
    tiny_llama: Path, sums: Sums, layout: dict[str, int]
):
    solutions = [e.encoded for e in examples_of(sums(9), tiny_llama)]
    reference = load_reference(tiny_llama)
    torch.manual_seed(0)
    model = new_prm(tiny_llama, head_spec("implicit"))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn_like(p)
        found = []
        for batch in (make_batch(solutions), make_batch(solutions, **layout)):  # pyright: ignore[reportArgumentType]
            logprobs = reference_logprobs(reference, batch)
            found.append((torch.cat(take_logprobs(batch, logprobs)), model(batch, logprobs)))
            assert torch.equal(place_logprobs(batch, take_logprobs(batch, logprobs)), logprobs)
        # By hand for the first solution: the log-softmax at each id's predecessor.
        ids = torch.tensor([solutions[0].token_ids])
        plain = reference(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    own = len(solutions[0].token_ids) - solutions[0].prompt_length
    assert torch.allclose(found[0][0][:own], plain[-own:], atol=1e-5)
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)
    assert found[0][1].abs().max() > 1e-3


def test_a_loss_that_is_not_finite_stops_and_names_the_rows(tiny_llama: Path, sums: Sums):
    examples = examples_of(sums(4), tiny_llama)
    examples[2] = replace(examples[2], weights=(float("inf"),) * len(examples[2].weights))
    model = new_prm(tiny_llama, head_spec("scalar"))
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(ModelError, match=rf"not finite.*: {examples[2].solution_id}\."):
        fit(Loop(model, examples, None, OBJECTIVES["bce"], QUICK, 0, "", None, dict))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_all_labels_unknown_or_one_class_only_is_an_error(tiny_llama: Path, tmp_path: Path, labeled: Row):
    with pytest.raises(InputError, match="unknown"):
        train([labeled("a", ["x"], [None], outcome=Outcome.NO_GOLD)], tiny_llama, tmp_path / "a")
    with pytest.raises(InputError, match="all 2 known step labels are 1"):
        train([labeled("a", ["x", "y"], [1, 1])], tiny_llama, tmp_path / "a")
    row = labeled("a", ["x", "y"], [1, 0], outcome=Outcome.RIGHT)
    with pytest.raises(InputError, match="known outcomes are 1"):
        require_signal(examples_of([row], tiny_llama), "soft_minimum", from_outcomes=True)


def test_a_head_that_a_loss_does_not_train_is_refused(tiny_llama: Path, tmp_path: Path, sums: Sums):
    with pytest.raises(InputError, match="beta_binomial"):
        train(sums(4), tiny_llama, tmp_path / "a", head="beta")
    with pytest.raises(InputError, match="known: bce"):
        train(sums(4), tiny_llama, tmp_path / "a", loss="hinge")


def test_a_frozen_head_is_an_error(tiny_llama: Path):
    model = new_prm(tiny_llama, head_spec("scalar"))
    model.head.requires_grad_(False)
    with pytest.raises(ModelError, match="head is frozen"):
        make_optimizer(model, QUICK)


def test_a_frozen_backbone_keeps_its_weights(tiny_llama: Path, tmp_path: Path, sums: Sums):
    train(sums(24), tiny_llama, tmp_path / "prm", trained=Trained(frozen_backbone=True))
    base = load_file(tiny_llama / "model.safetensors")
    trained = load_file(tmp_path / "prm/model.safetensors")
    assert torch.equal(base["model.embed_tokens.weight"], trained["model.embed_tokens.weight"])


def test_a_reference_with_another_tokenizer_is_refused(
    tiny_llama: Path, tmp_path: Path, sums: Sums, tmp_path_factory: pytest.TempPathFactory
):
    other = shutil.copytree(tiny_llama, tmp_path_factory.mktemp("other") / "lm")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"</s>"', '"<end>"'))
    with pytest.raises(ModelError, match="another tokenizer"):
        train(sums(8), tiny_llama, tmp_path / "prm", reference=other)


@pytest.mark.parametrize("loss", sorted(OBJECTIVES))
def test_every_loss_learns_to_tell_right_from_wrong(tiny_llama: Path, tmp_path: Path, sums: Sums, loss: str):
    schedule = Schedule(epochs=3, batch_size=16, learning_rate=1e-2)
    result = train_discriminative(
        sums(120), sums(40, 1), base=tiny_llama, out=tmp_path / "prm", loss=loss, schedule=schedule
    )
    # A ranking need not be calibrated, so F1 at the best threshold; a constant score has F1 0.
    assert result.history[-1]["f1"] > 0.9


def test_warm_up_rises_and_the_cosine_ends_near_zero():
    schedule = Schedule(warmup_share=0.2)
    rates = [rate_factor(i, 10, schedule) for i in range(10)]
    # Two warm-up steps: 1/3, 2/3, then 1 falling along half a cosine.
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] < 0.05


def test_siblings_share_their_prefix_and_differ_by_the_margin(tiny_llama: Path, labeled: Row):
    rows = [
        labeled("a", ["same", "even"], [1, 1], index=0),
        labeled("a", ["same", "odd"], [1, 0], index=1),
        labeled("b", ["same", "odd"], [1, 0], index=0),
    ]
    examples = examples_of(rows, tiny_llama)
    # Positions 0 1 | 2 3 | 4 5: the pair (1, 3) as siblings and as last steps of a right and a wrong solution.
    assert step_pairs(examples, 0.2) == [(1, 3, 1.0)]
    labels = make_labels(examples, pairs=True)
    assert labels.better.tolist() == [1]
    assert labels.last.tolist() == [1, 3, 5]


def test_pairs_of_a_problem_are_all_its_right_steps_over_all_its_wrong_ones(tiny_llama: Path, labeled: Row):
    rows = [
        labeled("a", ["same", "even"], [1, 1], index=0),
        labeled("a", ["other", "odd"], [1, 0], index=1),
        labeled("b", ["same", "odd"], [1, 0], index=0),
        labeled("c", ["same"], [None], outcome=Outcome.WRONG),
    ]
    examples = examples_of(rows, tiny_llama)
    # Positions 0 1 | 2 3 | 4 5 | 6: in a the right 0, 1 and 2 over the wrong 3, a third each; in b 4 over 5.
    third = pytest.approx(1 / 3)
    assert step_pairs(examples, 0.2, "problem") == [(0, 3, third), (1, 3, third), (2, 3, third), (4, 5, 1.0)]


def test_training_on_pairs_without_any_is_refused(tiny_llama: Path, tmp_path: Path, labeled: Row):
    rows = [labeled("a", ["even"], [1]), labeled("b", ["odd"], [0])]
    with pytest.raises(InputError, match=r"in 2 solutions no steps of the scope 'siblings' differ by 0\.2"):
        train_discriminative(rows, [], base=tiny_llama, out=tmp_path / "prm", loss="pairwise")


def test_a_damaged_folder_is_an_error_that_names_the_weight(tiny_llama: Path, tmp_path: Path, sums: Sums):
    train(sums(8), tiny_llama, tmp_path / "prm")
    path = tmp_path / "prm/model.safetensors"
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if k != "score.bias"}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"linear\.bias"):
        load(tmp_path / "prm")
    save_file({k: v for k, v in tensors.items() if "layers.1" not in k}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1"):
        load(tmp_path / "prm")


def test_a_reward_model_can_be_trained_further_with_its_own_step_format_alone(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    first = train(sums(16), tiny_llama, tmp_path / "first").folder
    before = load(first).score(["p"], [["even 1"]])[0][0]
    slow = replace(QUICK, learning_rate=1e-6, epochs=1)
    second = train(sums(16), first, tmp_path / "second", schedule=slow).folder
    # It starts from the trained head: at a rate near zero the score hardly moves.
    assert load(second).score(["p"], [["even 1"]])[0][0] == pytest.approx(before, abs=1e-3)
    with pytest.raises(FormatError, match="reads steps as"):
        train(sums(16), first, tmp_path / "third", step_format=StepFormat("blank_line"))
    with pytest.raises(ModelError, match="head scalar"):
        train(sums(16), first, tmp_path / "third", head="two_class")


def test_a_separator_that_stays_blank_is_refused(tiny_llama: Path):
    # Public case P005: a separator whose embedding is all zeros, and LoRA that never trains it.
    model = new_prm(tiny_llama, head_spec("scalar"))
    tokenizer = load_tokenizer(tiny_llama)
    (newline,) = tokenizer.encode("\n")
    with torch.no_grad():
        model.backbone.get_input_embeddings().weight[newline] = 0.0  # pyright: ignore
    check_separator(model, StepFormat(), tokenizer, Trained())
    with pytest.raises(ModelError, match=rf"id {newline}.* norm 0"):
        check_separator(model, StepFormat(), tokenizer, Trained(lora_rank=4))


def test_two_class_and_vocabulary_heads_are_saved_as_transformers_models(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    solution = ["even 1", "odd 2"]
    for head, kind in (("two_class", AutoModelForTokenClassification), ("vocabulary", AutoModelForCausalLM)):
        folder = train(sums(16), tiny_llama, tmp_path / head, head=head).folder
        model = load(folder)
        encoded = model.prm.inputs.encode(Problem("", "p"), solution)
        other = kind.from_pretrained(folder).eval()
        with torch.no_grad():
            logits = other(torch.tensor([encoded.token_ids])).logits[0, list(encoded.step_ends)]
        if head == "vocabulary":
            tokenizer = load_tokenizer(folder)
            logits = logits[:, [*tokenizer.encode("-"), *tokenizer.encode("+")]]
        expected = logits.softmax(-1)[:, 1].tolist()
        assert model.score(["p"], [solution])[0] == pytest.approx(expected, abs=1e-5)


def test_lora_trains_adapters_and_saves_an_ordinary_model(tiny_llama: Path, tmp_path: Path, sums: Sums):
    pytest.importorskip("peft", reason="adapters need peft: pip install 'stepward[train]'")
    trained = Trained(lora_rank=4)
    result = train(sums(64), tiny_llama, tmp_path / "prm", trained=trained, schedule=replace(QUICK, epochs=4))
    base = load_file(tiny_llama / "model.safetensors")
    tensors = load_file(tmp_path / "prm/model.safetensors")
    assert not any("lora" in name for name in tensors)
    assert tensors["score.weight"].shape == (1, 16)
    assert torch.equal(base["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"])
    assert not torch.equal(
        base["model.layers.0.mlp.up_proj.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
    )
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    right, wrong = load(result.folder).score(["p"], [["even 3", "odd 4"]])[0]
    assert right > wrong
