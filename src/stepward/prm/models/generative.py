"""Generative reward models: a critic that writes, behind the ``RewardModel`` protocol.

The engine and the code executor are handed in. A step's score is P(correct) / (P(correct) + P(wrong)) read at its
verdict, averaged over several critiques (GenPRM); where an engine gives no likelihoods it is the share of votes.
"""

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

from stepward.prm.errors import EngineError, ModelError
from stepward.prm.models.verdicts import (
    CODE_BLOCK,
    CRITIC_FILE,
    CritiqueFormat,
    VerdictFormat,
    with_code_output,
)
from stepward.prm.policy import Executor, Policy, SampleRequest
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Outcome, Prefix, Problem, Sampler, TokenIds


@dataclass(frozen=True, slots=True)
class GenerativeRewardModel:
    """A critic over a policy.

    Attributes:
        policy: The engine that writes critiques.
        format: Question and verdicts.
        prompt: Template that the question goes through.
        executor: Runs programs in critiques, or None to leave them unrun.
        num_samples: Critiques a solution; their scores are averaged (maj@N).
        sampler: How critiques are drawn.
        max_programs: Programs run a critique.
        read_probabilities: Ask the engine for the likelihoods of both verdict words; else count votes.
        seed: Of the draws.
    """

    policy: Policy
    format: CritiqueFormat = field(default_factory=VerdictFormat)
    prompt: PromptTemplate = field(default_factory=plain_template)
    executor: Executor | None = None
    num_samples: int = 1
    sampler: Sampler = field(default_factory=lambda: Sampler(temperature=0.6, max_tokens=2048))
    max_programs: int = 8
    read_probabilities: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """The policy's name and the number of critiques."""
        return f"{self.policy.info.name} (critic, {self.num_samples} samples)"

    def score(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """P(step is right) for each step; steps after one that is judged wrong have its score.

        Raises:
            ModelError: No critique reached a verdict on some step: silence is no score.
        """
        given = [Problem("", p) if isinstance(p, str) else p for p in problems]
        judged = run_async(self.judge(given, solutions))
        scores: list[tuple[float, ...]] = []
        for number, row in enumerate(judged):
            missing = [i for i, s in enumerate(row) if s is None]
            if missing:
                raise ModelError(
                    f"{self.name} gave no verdict on step {missing[0]} of solution {number} in any of "
                    f"{self.num_samples} critiques; raise max_tokens or the number of samples"
                )
            scores.append(tuple(s for s in row if s is not None))
        return scores

    async def judge(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float | None, ...]]:
        """Like ``score``, with None where no critique reached a verdict."""
        jobs = [
            self._critique(problem, steps, index)
            for problem, steps in zip(problems, solutions, strict=True)
            for index in range(self.num_samples)
        ]
        found = await asyncio.gather(*jobs)
        results: list[tuple[float | None, ...]] = []
        for i, steps in enumerate(solutions):
            samples = found[i * self.num_samples : (i + 1) * self.num_samples]
            results.append(tuple(_mean([s[k] for s in samples]) for k in range(len(steps))))
        return results

    async def _critique(self, problem: Problem, steps: Sequence[str], index: int) -> list[float | None]:
        """Scores from one critique."""
        question = Problem(problem.id, self.format.question(problem, steps))
        prompt_ids = self.prompt.render(question, self.policy.tokenizer).ids
        ids = await self._write(problem.id, prompt_ids, steps, index)
        tokenizer = self.policy.tokenizer
        text, offsets = tokenizer.decode(ids), tokenizer.offsets(ids)
        scores: list[float | None] = []
        for place in self.format.find(text, len(steps)):
            if place is None:
                scores.append(scores[-1] if scores and self._ended_wrong(text, len(steps)) else None)
                continue
            position, is_right = place
            if not self.read_probabilities:
                scores.append(float(is_right))
                continue
            # The verdict word's first token may begin with the space before it.
            first = max(i for i, start in enumerate(offsets) if start <= position)
            before = text[offsets[first] : position]
            scores.append(await self._probability(problem.id, prompt_ids, ids[:first], before))
        return scores

    def _ended_wrong(self, text: str, num_steps: int) -> bool:
        verdicts = [v for v in self.format.find(text, num_steps) if v is not None]
        return bool(verdicts) and not verdicts[-1][1]

    async def _probability(self, problem_id: str, prompt: TokenIds, before: TokenIds, lead: str) -> float:
        """P(right word) against P(wrong word) after the critique so far."""
        prefix = Prefix(problem_id, prompt, before)
        tokenizer = self.policy.tokenizer
        logps = [
            sum(await self.policy.loglikelihood(prefix, tokenizer.encode(lead + word)))
            for word in (self.format.right, self.format.wrong)
        ]
        return 1 / (1 + exp(min(logps[1] - logps[0], 700.0)))

    async def _write(self, problem_id: str, prompt: TokenIds, steps: Sequence[str], index: int) -> TokenIds:
        """Sample a critique; after each program run it, show its output and go on."""
        sampler = self.sampler
        if self.executor is not None:
            sampler = replace(sampler, stop=(*sampler.stop, "```\n"))
        opening = self.format.opening
        ids: TokenIds = self.policy.tokenizer.encode(opening) if opening else ()
        for turn in range(self.max_programs + 1):
            seed = derive_seed(self.seed, "critique", problem_id, "\n".join(steps), index, turn)
            request = SampleRequest(Prefix(problem_id, prompt, ids), sampler, seed, index)
            rollout = await self.policy.sample(request)
            if rollout.outcome is Outcome.ERROR:
                raise EngineError(
                    f"writing a critique for problem {problem_id}: {rollout.error}", retryable=True
                )
            eos = self.policy.tokenizer.eos_ids
            new = tuple(i for i in rollout.token_ids if i not in eos)
            ids += new
            text = self.policy.tokenizer.decode(new)
            programs = CODE_BLOCK.findall(text)
            if self.executor is None or not programs or not text.rstrip().endswith("```"):
                break
            run = await self.executor.run(programs[-1])
            output = run.stdout if run.status == "ok" else f"{run.status}: {run.stderr[-500:]}"
            ids += self.policy.tokenizer.encode(with_code_output("", output[:2000]))
        return ids


def trained_critic(
    folder: Path, policy: Policy, executor: Executor | None = None, num_samples: int = 1
) -> GenerativeRewardModel:
    """A critic that ``training.generative`` wrote, asked in the format and through the prompt that it was trained on.

    Raises:
        ModelError: Its ``critic.json`` is not one of ours.
    """
    try:
        facts = json.loads((folder / CRITIC_FILE).read_text(encoding="utf-8"))
        verdict_format = VerdictFormat.from_json(json.dumps(facts["verdict_format"]))
        prompt = PromptTemplate(**facts["prompt"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ModelError(
            f"loading the critic {folder.name}: {CRITIC_FILE} cannot be read ({fault}); train it again, or name the "
            "critic 'generative' with a policy whose folder has no such file"
        ) from fault
    return GenerativeRewardModel(policy, verdict_format, prompt, executor, num_samples)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, also where the caller is inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[Any] = []
    fault: list[BaseException] = []

    def target() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            fault.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if fault:
        raise fault[0]
    return result[0]
