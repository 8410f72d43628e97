"""GenPRM: a conversation in which each step is judged in turn, by analysis and by a program that is run.

For step k the model reads the problem, the steps up to k and its own earlier critiques, and writes ``<analyze>``,
``<verify>`` with Python whose output it is shown, and ``<output>`` with a boxed Yes or No. The score is P(Yes) against
P(No) in the box, averaged over critiques. Prompts, stop strings and limits are those of the model's own inference code
(Zhao et al. 2025, arXiv 2504.00891), but for one: where no box is reached the authors give .5, and here the box is
opened and read, since a number that nobody gave is no score.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp

from stepward.prm.errors import EngineError
from stepward.prm.models.generative import run_async
from stepward.prm.models.verdicts import CODE_BLOCK
from stepward.prm.policy import Executor, Policy, SampleRequest
from stepward.prm.prompts import PromptTemplate
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Message, Outcome, Prefix, Problem, Sampler, TokenIds

SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
)
ANALYZE, ANALYZE_END = "<analyze>\nLet's analyze the Paragraph {step} step by step: ", "</analyze>\n"
VERIFY = "<verify>\nLet's use python code to find any potential error:\n```python\n"
PROGRAM_END, OUTPUT_END = "\n```\n", "</output>\n"
BOX = "<output>\n**Judgement**: $\\boxed{"
_VERDICT = re.compile(r"\\boxed\{(Yes|No)\}")


@dataclass(frozen=True, slots=True)
class GenPrmRewardModel:
    """GenPRM over an engine; made by ``load(name, policy=...)``.

    Attributes:
        policy: The engine that serves the model.
        prompt: The model's chat template; see ``conversation_template``.
        executor: Runs the programs. Without one the model judges by its analysis alone.
        num_samples: Critiques a step; their scores are averaged (Maj@N).
        sampler: The authors' settings.
        max_programs: Programs run a step.
        seed: Of the draws.
    """

    policy: Policy
    prompt: PromptTemplate = field(repr=False)
    executor: Executor | None = None
    num_samples: int = 1
    sampler: Sampler = field(
        default_factory=lambda: Sampler(temperature=0.6, top_p=0.95, top_k=20, max_tokens=2048)
    )
    max_programs: int = 3
    seed: int = 0

    @property
    def name(self) -> str:
        """The engine's model and the number of critiques."""
        return f"{self.policy.info.name} (GenPRM, {self.num_samples} samples)"

    def score(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """P(step is right) for each step.

        Raises:
            EngineError: The engine failed; no score stands for that.
        """

        async def all_solutions() -> list[tuple[float, ...]]:
            jobs = [
                self._solution(Problem("", p) if isinstance(p, str) else p, steps)
                for p, steps in zip(problems, solutions, strict=True)
            ]
            return list(await asyncio.gather(*jobs))

        return run_async(all_solutions())

    async def _solution(self, problem: Problem, steps: Sequence[str]) -> tuple[float, ...]:
        """Steps in order: each critique is part of what the next one reads."""
        messages = [Message("system", SYSTEM)]
        scores: list[float] = []
        for number, step in enumerate(steps, start=1):
            content = f"Question: {problem.text}\n\n{step}" if number == 1 else step
            messages.append(Message("user", content))
            prompt = self._prompt(problem, messages)
            found = await asyncio.gather(
                *(self._critique(problem.id, prompt, number, index) for index in range(self.num_samples))
            )
            scores.append(sum(score for _, score in found) / len(found))
            messages.append(Message("assistant", found[0][0]))
        return tuple(scores)

    def _prompt(self, problem: Problem, messages: Sequence[Message]) -> TokenIds:
        """Ids of the conversation, its last end token taken off as the authors do."""
        tokenizer = self.policy.tokenizer
        ids = self.prompt.render(Problem(problem.id, tuple(messages)), tokenizer).ids
        newline = tokenizer.encode("\n")
        bare = ids[: -len(newline)] if ids[-len(newline) :] == newline else ids
        return bare[:-1] if bare[-1] in tokenizer.eos_ids else ids

    async def _critique(self, problem_id: str, prompt: TokenIds, step: int, index: int) -> tuple[str, float]:
        """The text of one critique and its score."""
        tokenizer = self.policy.tokenizer
        # The budget of the authors is one for the whole critique.
        left = self.sampler.max_tokens
        text = ANALYZE.format(step=step)
        ids = tokenizer.encode(text)

        async def write(*stop: str) -> str:
            nonlocal ids, left
            place = (problem_id, step, index, len(ids))
            seed = derive_seed(self.seed, "genprm", *map(str, place), tokenizer.decode(prompt))
            sampler = replace(self.sampler, max_tokens=max(left, 1), stop=(*self.sampler.stop, *stop))
            rollout = await self.policy.sample(
                SampleRequest(Prefix(problem_id, prompt, ids), sampler, seed, index)
            )
            if rollout.outcome is Outcome.ERROR:
                raise EngineError(
                    f"judging step {step - 1} of problem {problem_id}: {rollout.error}", retryable=True
                )
            new = tuple(i for i in rollout.token_ids if i not in tokenizer.eos_ids)
            ids += new
            left -= len(new)
            return tokenizer.decode(new)

        def show(shown: str) -> str:
            nonlocal ids
            ids += tokenizer.encode(shown)
            return shown

        text += await write(ANALYZE_END)
        if not text.endswith(ANALYZE_END):
            text += show(ANALYZE_END)
        analysed, analysed_ids = text, ids
        if self.executor is None:
            text += show(BOX)
            return await self._read(problem_id, prompt, text, ids, len(text))
        text += show(VERIFY)
        for _ in range(self.max_programs):
            if left <= 0:
                break
            text += await write(PROGRAM_END, OUTPUT_END)
            if text.endswith(PROGRAM_END) and (programs := CODE_BLOCK.findall(text)):
                run = await self.executor.run(programs[-1])
                output = run.stdout if run.status == "ok" else f"{run.status}: {run.stderr[-500:]}"
                text += show(f"[Code Output]\n\n```\n{output.strip()[:2000]}\n```\n")
                continue
            break
        verdicts = list(_VERDICT.finditer(text, len(analysed)))
        if verdicts:
            return await self._read(problem_id, prompt, text, ids, verdicts[-1].start(1))
        # No verdict within the limits: fall back on the analysis, as the authors do, and read the box.
        ids = analysed_ids
        text = analysed + show(BOX)
        return await self._read(problem_id, prompt, text, ids, len(text))

    async def _read(
        self, problem_id: str, prompt: TokenIds, text: str, ids: TokenIds, position: int
    ) -> tuple[str, float]:
        """P(Yes) against P(No) at a character position of the critique, and the critique with its verdict."""
        tokenizer = self.policy.tokenizer
        if position < len(text):
            offsets = tokenizer.offsets(ids)
            first = max(i for i, start in enumerate(offsets) if start <= position)
            lead = tokenizer.decode(ids)[offsets[first] : position]
            ids = ids[:first]
        else:
            lead = ""
        prefix = Prefix(problem_id, prompt, ids)
        yes, no = [
            sum(await self.policy.loglikelihood(prefix, tokenizer.encode(lead + word)))
            for word in ("Yes", "No")
        ]
        score = 1 / (1 + exp(min(no - yes, 700.0)))
        if position == len(text):
            text += f"{'Yes' if score >= 0.5 else 'No'}}}$\n{OUTPUT_END}"
        return text, score


def conversation_template(template: PromptTemplate) -> PromptTemplate:
    """The chat template without an opened assistant's turn: GenPRM's critique follows the user's text at once."""
    return replace(template, variables={**template.variables, "add_generation_prompt": False})
