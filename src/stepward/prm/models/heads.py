"""Heads: hidden states at score positions -> raw outputs -> P(step is right).

Every head is a module ``hidden [n, width] -> raw [n, outputs]`` with two pure readings of ``raw``: ``logit`` (log-odds
that the step is right) and ``probability``. Losses take these, so that any of them goes with any head that
has what it needs.
"""
# pyright: basic

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepward.prm.errors import ModelError


class Head(Protocol):
    """What a reward model asks of a head."""

    spec: "HeadSpec"

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[n, width] -> raw [n, outputs]``."""
        ...

    def logit(self, raw: Tensor) -> Tensor:
        """Log-odds that the step is right, ``[n]``."""
        ...

    def probability(self, raw: Tensor) -> Tensor:
        """P(step is right) in [0, 1], ``[n]``."""
        ...


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """Which head, as stored in a checkpoint.

    Attributes:
        kind: scalar, two_class, vocabulary, mlp, value3, beta, ensemble or implicit.
        outputs: Width of ``raw``.
        members: Heads of an ensemble (ActPRM: 32).
        token_ids: (minus, plus) of a vocabulary head.
        kappa_init: Initial concentration of a beta head.
        dropout: Applied to the hidden state in training.
        scale: beta of an implicit reward model.
        any_of: Beta head: the score is P(at least one of so many rollouts reaches the answer); 0 = mu itself.
    """

    kind: str = "scalar"
    outputs: int = 1
    members: int = 1
    token_ids: tuple[int, ...] = ()
    kappa_init: float = 8.0
    dropout: float = 0.0
    scale: float = 0.05
    any_of: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadSpec":
        """The inverse of ``to_dict``."""
        return cls(**{**values, "token_ids": tuple(values["token_ids"])})


class ScalarHead(nn.Module):
    """One logit a step: ``raw [n, 1]``."""

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dropout = nn.Dropout(spec.dropout)
        self.linear = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(self.dropout(hidden))

    def logit(self, raw: Tensor) -> Tensor:
        return raw[:, 0]

    def probability(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw[:, 0])


class TwoClassHead(nn.Module):
    """Logits of wrong and right: ``raw [n, 2]``; with ``kind='mlp'`` two linear layers (Qwen2.5-Math-PRM)."""

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dropout = nn.Dropout(spec.dropout)
        self.hidden = nn.Linear(width, width) if spec.kind == "mlp" else None
        self.linear = nn.Linear(width, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.dropout(hidden)
        if self.hidden is not None:
            hidden = torch.relu(self.hidden(hidden))
        return self.linear(hidden)

    def logit(self, raw: Tensor) -> Tensor:
        return raw[:, 1] - raw[:, 0]

    def probability(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw[:, 1] - raw[:, 0])


class VocabularyHead(nn.Module):
    """The language model's own logits of two tokens, minus and plus: ``raw [n, 2]`` (Math-Shepherd, RLHFlow).

    ``rows`` holds the two rows of the output embedding, minus first; they are written back when it is saved.
    """

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        if len(spec.token_ids) != 2:
            raise ModelError(f"a vocabulary head needs the ids of minus and plus, got {spec.token_ids}")
        self.spec = spec
        self.rows = nn.Linear(width, 2, bias=False)
        # The other rows are neither trained nor read: a plain attribute keeps them out of the state dict.
        self._vocabulary: tuple[Tensor, ...] = ()

    def adopt(self, output_embedding: Tensor) -> None:
        """Start from a language model's output embedding ``[vocabulary, width]``."""
        self._vocabulary = (output_embedding.cpu(),)
        with torch.no_grad():
            self.rows.weight.copy_(output_embedding[list(self.spec.token_ids)])

    def output_embedding(self) -> nn.Linear:
        """The whole output embedding with the two rows as trained, for a checkpoint."""
        (vocabulary,) = self._vocabulary
        linear = nn.Linear(vocabulary.shape[1], vocabulary.shape[0], bias=False, dtype=vocabulary.dtype)
        with torch.no_grad():
            linear.weight.copy_(vocabulary)
            linear.weight[list(self.spec.token_ids)] = self.rows.weight.detach().cpu().to(vocabulary.dtype)
        return linear

    def forward(self, hidden: Tensor) -> Tensor:
        return self.rows(hidden)

    def logit(self, raw: Tensor) -> Tensor:
        return raw[:, 1] - raw[:, 0]

    def probability(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw[:, 1] - raw[:, 0])


class OutcomeHead(nn.Module):
    """Three classes of outcome, wrong, right and unfinished: ``raw [n, 3]`` (VGS). P(right) is the softmax's."""

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.linear = nn.Linear(width, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)

    def logit(self, raw: Tensor) -> Tensor:
        return raw[:, 1] - torch.logsumexp(raw[:, [0, 2]], dim=1)

    def probability(self, raw: Tensor) -> Tensor:
        return torch.softmax(raw, dim=1)[:, 1]


class BetaHead(nn.Module):
    """A Beta distribution over the step's value (BetaPRM): ``raw [n, 2]`` = logit of mu, and kappa before softplus.

    kappa = softplus(raw) + 1e-3, A = mu * kappa + 1e-6, B = (1 - mu) * kappa + 1e-6.

    mu is the share of rollouts that reach the answer, not the chance that the step is right: before a hard passage a
    right step has a low value, and at mu >= .5 most of such steps are called wrong, the surest ones first. With
    ``any_of`` = K > 0 the score is P(K > 0 of K rollouts reach it) = 1 - B(A, B + K) / B(A, B), the distribution's
    own prediction of Math-Shepherd's hard label.
    """

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.mu = nn.Linear(width, 1)
        self.kappa = nn.Linear(width, 1)
        with torch.no_grad():
            self.kappa.weight.zero_()
            # softplus^-1(kappa_init): every step starts with the same concentration.
            self.kappa.bias.fill_(
                spec.kappa_init + torch.log(-torch.expm1(torch.tensor(-spec.kappa_init))).item()
            )

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat([self.mu(hidden), self.kappa(hidden)], dim=1)

    def logit(self, raw: Tensor) -> Tensor:
        if not self.spec.any_of:
            return raw[:, 0]
        none = self._log_none(raw)
        return torch.log(-torch.expm1(none).clamp(max=-1e-12)) - none

    def probability(self, raw: Tensor) -> Tensor:
        return -torch.expm1(self._log_none(raw)) if self.spec.any_of else self.mean(raw)

    def _log_none(self, raw: Tensor) -> Tensor:
        """log P(no rollout of ``any_of`` reaches the answer) = sum over i < K of log((B + i) / (A + B + i))."""
        mu, kappa = self.mean(raw), self.concentration(raw)
        a, b = mu * kappa + 1e-6, (1 - mu) * kappa + 1e-6
        drawn = torch.arange(self.spec.any_of, device=raw.device, dtype=raw.dtype)[:, None]
        return (torch.log(b + drawn) - torch.log(a + b + drawn)).sum(0)

    @staticmethod
    def mean(raw: Tensor) -> Tensor:
        """mu in [0, 1], ``[n]``."""
        return torch.sigmoid(raw[:, 0])

    @staticmethod
    def concentration(raw: Tensor) -> Tensor:
        """kappa > 0, ``[n]``."""
        return functional.softplus(raw[:, 1]) + 1e-3

    def deviation(self, raw: Tensor) -> Tensor:
        """Standard deviation of Beta(A, B), ``[n]``: large where the value is not reliable."""
        mu, kappa = self.mean(raw), self.concentration(raw)
        return torch.sqrt(mu * (1 - mu) / (kappa + 1))


class EnsembleHead(nn.Module):
    """Many linear heads on one backbone (ActPRM): ``raw [n, members]``; the mean of their probabilities is the score.

    The members differ by initialisation and by a frozen random prior that is added to each (Osband et al. 2018),
    without which linear heads on shared features agree everywhere.
    """

    def __init__(self, width: int, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.linear = nn.Linear(width, spec.members)
        self.prior = nn.Linear(width, spec.members)
        self.prior.requires_grad_(False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden) + self.prior(hidden.detach())

    def logit(self, raw: Tensor) -> Tensor:
        return torch.logit(self.probability(raw), eps=1e-6)

    def probability(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw).mean(dim=1)

    def deviation(self, raw: Tensor) -> Tensor:
        """Standard deviation of the members' probabilities, ``[n]``."""
        return torch.sigmoid(raw).std(dim=1, correction=0)


_HEADS: dict[str, tuple[Callable[[int, HeadSpec], nn.Module], int]] = {
    "scalar": (ScalarHead, 1),
    "two_class": (TwoClassHead, 2),
    "mlp": (TwoClassHead, 2),
    "vocabulary": (VocabularyHead, 2),
    "value3": (OutcomeHead, 3),
    "beta": (BetaHead, 2),
    "ensemble": (EnsembleHead, 0),
}


def head_spec(kind: str, **options: Any) -> HeadSpec:
    """The spec of a head by name, its width and, for a beta head, Math-Shepherd's ``any_of`` of 8 filled in.

    Raises:
        ModelError: No such head.
    """
    if kind == "implicit":
        return HeadSpec(kind, **options)
    if kind not in _HEADS:
        raise ModelError(f"unknown head {kind!r}; known: {', '.join(_HEADS)}, implicit")
    if kind == "ensemble":
        members = options.setdefault("members", 32)
        return HeadSpec(kind, outputs=members, **options)
    if kind == "beta":
        options.setdefault("any_of", 8)
    return HeadSpec(kind, outputs=_HEADS[kind][1], **options)


def build_head(width: int, spec: HeadSpec) -> nn.Module:
    """A new head for hidden states of ``width``; draws its initial weights from torch's generator."""
    if spec.kind not in _HEADS:
        raise ModelError(f"unknown head {spec.kind!r}; known: {', '.join(_HEADS)}")
    return _HEADS[spec.kind][0](width, spec)


def as_head(module: nn.Module) -> Head:
    """The module seen as a head, for type checkers."""
    return cast(Head, module)
