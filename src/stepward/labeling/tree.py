"""The tree: a struct of growing arrays. A node is an integer, its token ids lie in one flat buffer.

A node is a state s_t: the prompt and the ids of all steps on its path. The root (node 0) is the bare prompt. Every
array has one entry a node and grows by doubling, so a node costs about a hundred bytes and nothing is recursive.
Nodes whose ids are the same, or whose signatures are where one is given, share a *state*, and their evidence can
be pooled.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepward.prm.errors import InputError
from stepward.prm.types import Outcome, Prefix, TokenIds

ROOT = 0
NONE = -1

OUTCOMES = tuple(Outcome)
_COLUMN = {outcome: i for i, outcome in enumerate(OUTCOMES)}
_RIGHT, _WRONG = _COLUMN[Outcome.RIGHT], _COLUMN[Outcome.WRONG]

# name -> (type, columns; 0 = a plain vector)
_ARRAYS: dict[str, tuple[type[np.generic], int]] = {
    "parent": (np.int32, 0),
    "first_child": (np.int32, 0),
    "last_child": (np.int32, 0),
    "next_sibling": (np.int32, 0),
    "num_children": (np.int32, 0),
    "depth": (np.int32, 0),
    "ids_start": (np.int64, 0),
    "ids_end": (np.int64, 0),
    "state": (np.int32, 0),
    "visits": (np.int64, 0),
    "draws": (np.int64, 0),
    "value_sum": (np.float64, 0),
    "value_max": (np.float64, 0),
    "prior": (np.float64, 0),
    "reward": (np.float64, 0),
    "terminal": (np.int8, 0),
    "counts": (np.int64, len(OUTCOMES)),
}
_MODULUS = (1 << 61) - 1
_BASES = (0x1F3A_5C7B_9D2E_4F61, 0x0B5E_8C21_74D9_A3F7)

Signature = Callable[[TokenIds], str]
"""What makes two states equal beyond their ids: normalised text, the expressions in it (RTMC, GiGPO)."""


class Tree:
    """The search tree of one problem.

    Attributes:
        problem_id: The problem.
        parent, first_child, last_child, next_sibling: Shape [nodes], NONE (-1) where there is none.
        num_children, depth: Shape [nodes].
        ids_start, ids_end: A node's own ids (its step, or the prompt) are ``ids[ids_start:ids_end]``.
        state: Number of the node's state; equal states have the same.
        visits: How often a backup passed, shape [nodes].
        draws: How often the step was drawn, each draw with a seed of its own (identical steps share the node).
        value_sum, value_max: What backups left, shape [nodes]; ``value_max`` is -inf before the first.
        prior: Prior of the step under the policy, shape [nodes].
        reward: A reward model's score of the step, NaN where there is none.
        terminal: 1 where the solution ends here.
        counts: Outcomes of rollouts started here, shape [nodes, outcomes] in the order of ``OUTCOMES``.
    """

    def __init__(
        self, problem_id: str, prompt_ids: Sequence[int], signature: Signature | None = None
    ) -> None:
        self.problem_id = problem_id
        self.size = 0
        self._signature = signature
        self._capacity = 64
        self._ids = np.empty(1024, np.int64)
        self._ids_size = 0
        self._keys = np.zeros((self._capacity, 2), np.uint64)
        self._state_counts = np.zeros((self._capacity, len(OUTCOMES)), np.int64)
        self._lengths: list[int] = []
        self._nodes_of_key: dict[tuple[int, int], int] = {}
        self._states: dict[tuple[int, int] | str, int] = {}
        self._seeds: set[tuple[int, int]] = set()
        for name, (kind, columns) in _ARRAYS.items():
            setattr(self, name, np.zeros((self._capacity, columns) if columns else self._capacity, kind))
        self._append(NONE, tuple(prompt_ids), 0.0, (0, 0))

    parent: NDArray[np.int32]
    first_child: NDArray[np.int32]
    last_child: NDArray[np.int32]
    next_sibling: NDArray[np.int32]
    num_children: NDArray[np.int32]
    depth: NDArray[np.int32]
    ids_start: NDArray[np.int64]
    ids_end: NDArray[np.int64]
    state: NDArray[np.int32]
    visits: NDArray[np.int64]
    draws: NDArray[np.int64]
    value_sum: NDArray[np.float64]
    value_max: NDArray[np.float64]
    prior: NDArray[np.float64]
    reward: NDArray[np.float64]
    terminal: NDArray[np.int8]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return self.size

    def add_child(
        self, parent: int, step_ids: Sequence[int], *, seed: int, prior: float = 0.0, terminal: bool = False
    ) -> tuple[int, bool]:
        """Add a step that was drawn at a node.

        Args:
            parent: Where it was drawn.
            step_ids: Its ids; not empty.
            seed: The draw's seed. The same seed at the same node is a replay and changes nothing.
            prior: The step's prior under the policy.
            terminal: The solution ends with this step.

        Returns:
            (the step's node, whether it is new). An identical step of another draw shares the node and counts as
            one more draw.

        Raises:
            InputError: The step has no ids.
        """
        ids = tuple(step_ids)
        if not ids:
            raise InputError(
                f"adding a step to node {parent} of problem {self.problem_id}: it has no token ids"
            )
        key = self._extend_key(parent, ids)
        found = self._child_with(parent, key, ids)
        node = found if found is not None else self._append(parent, ids, prior, key)
        if found is None:
            self._nodes_of_key[key] = node
            self._link(parent, node)
        if terminal:
            self.terminal[node] = 1
        if (parent, seed) not in self._seeds:
            self._seeds.add((parent, seed))
            self.draws[node] += 1
        return node, found is None

    def add_outcome(self, node: int, outcome: Outcome) -> None:
        """Count a rollout that started at a node."""
        self.counts[node, _COLUMN[outcome]] += 1
        self._state_counts[self.state[node], _COLUMN[outcome]] += 1

    def children(self, node: int) -> Iterator[int]:
        """Children in the order in which they were added."""
        child = int(self.first_child[node])
        while child != NONE:
            yield child
            child = int(self.next_sibling[child])

    def path(self, node: int) -> list[int]:
        """Nodes from the root to a node, both included."""
        nodes = [node]
        while (node := int(self.parent[node])) != NONE:
            nodes.append(node)
        return nodes[::-1]

    def length(self, node: int) -> int:
        """Tokens of the solution up to a node; the prompt is not counted."""
        return self._lengths[node]

    def step_ids(self, node: int) -> TokenIds:
        """A node's own ids."""
        return tuple(self._ids[self.ids_start[node] : self.ids_end[node]].tolist())

    def prefix(self, node: int) -> Prefix:
        """The node's state as an engine continues it."""
        nodes = self.path(node)
        solution = tuple(i for n in nodes[1:] for i in self.step_ids(n))
        return Prefix(self.problem_id, self.step_ids(ROOT), solution, int(self.depth[node]))

    def mean(self, node: int) -> float:
        """Mean of backed-up values, NaN before the first visit."""
        return float(self.value_sum[node] / self.visits[node]) if self.visits[node] else float("nan")

    def trials(self, node: int, *, pooled: bool = True) -> tuple[int, int]:
        """(right, right + wrong) of rollouts started at a node, or at any node of its state where ``pooled``."""
        rows = self._state_counts[self.state[node]] if pooled else self.counts[node]
        return int(rows[_RIGHT]), int(rows[_RIGHT] + rows[_WRONG])

    def save(self, path: Path) -> None:
        """Write the whole tree as one .npz file (arrays only, nothing to unpickle)."""
        seeds = np.array(sorted(self._seeds), dtype=np.int64).reshape(-1, 2)
        arrays = {name: getattr(self, name)[: self.size] for name in _ARRAYS}
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                problem_id=np.array(self.problem_id),
                ids=self._ids[: self._ids_size],
                keys=self._keys[: self.size],
                seeds=seeds,
                **arrays,
            )

    @classmethod
    def load(cls, path: Path, signature: Signature | None = None) -> "Tree":
        """The inverse of ``save``.

        Args:
            path: The file.
            signature: The one that the tree was made with, if any: new nodes are filed by it.
        """
        with np.load(path, allow_pickle=False) as data:
            tree = cls(str(data["problem_id"]), (), signature)
            tree.size = tree._capacity = len(data["parent"])
            for name in _ARRAYS:
                setattr(tree, name, data[name])
            tree._ids, tree._ids_size, tree._keys = data["ids"], len(data["ids"]), data["keys"]
            tree._seeds = {(int(a), int(b)) for a, b in data["seeds"]}
        tree._state_counts = np.zeros((tree._capacity, len(OUTCOMES)), np.int64)
        np.add.at(tree._state_counts, tree.state, tree.counts)
        own = (tree.ids_end - tree.ids_start).tolist()
        tree._lengths = [0]
        for node in range(1, tree.size):
            tree._lengths.append(tree._lengths[int(tree.parent[node])] + own[node])
        tree._nodes_of_key = {}
        tree._states = {}
        for node in range(tree.size):
            key = (int(tree._keys[node, 0]), int(tree._keys[node, 1]))
            if node != ROOT:
                tree._nodes_of_key.setdefault(key, node)
            tree._states.setdefault(tree._state_key(node, key), int(tree.state[node]))
        return tree

    # --- growing -------------------------------------------------------------------------------------------

    def _append(self, parent: int, ids: TokenIds, prior: float, key: tuple[int, int]) -> int:
        if self.size == self._capacity:
            self._grow()
        node = self.size
        self.size += 1
        self._store_ids(node, ids)
        self._keys[node] = key
        self.parent[node] = parent
        self._lengths.append(0 if parent == NONE else self._lengths[parent] + len(ids))
        for name in ("first_child", "last_child", "next_sibling"):
            getattr(self, name)[node] = NONE
        self.depth[node] = 0 if parent == NONE else self.depth[parent] + 1
        self.value_max[node] = -np.inf
        self.prior[node] = prior
        self.reward[node] = np.nan
        self.state[node] = self._states.setdefault(self._state_key(node, key), len(self._states))
        return node

    def _link(self, parent: int, node: int) -> None:
        if self.last_child[parent] == NONE:
            self.first_child[parent] = node
        else:
            self.next_sibling[self.last_child[parent]] = node
        self.last_child[parent] = node
        self.num_children[parent] += 1

    def _grow(self) -> None:
        self._capacity *= 2
        for name in _ARRAYS:
            setattr(self, name, _doubled(getattr(self, name), self._capacity))
        self._keys = _doubled(self._keys, self._capacity)
        self._state_counts = _doubled(self._state_counts, self._capacity)

    def _store_ids(self, node: int, ids: TokenIds) -> None:
        end = self._ids_size + len(ids)
        if end > len(self._ids):
            self._ids = _doubled(self._ids, max(end, 2 * len(self._ids)))
        self._ids[self._ids_size : end] = ids
        self.ids_start[node], self.ids_end[node] = self._ids_size, end
        self._ids_size = end

    # --- equal states --------------------------------------------------------------------------------------

    def _extend_key(self, parent: int, ids: TokenIds) -> tuple[int, int]:
        """Two polynomial hashes of all ids of the path: where steps are cut makes no difference to them."""
        keys: list[int] = []
        for base, start in zip(_BASES, self._keys[parent], strict=True):
            value = int(start)
            for i in ids:
                value = (value * base + i + 1) % _MODULUS
            keys.append(value)
        return keys[0], keys[1]

    def _child_with(self, parent: int, key: tuple[int, int], ids: TokenIds) -> int | None:
        known = self._nodes_of_key.get(key)
        if known is None:
            return None
        if self.parent[known] == parent and self.step_ids(known) == ids:
            return known
        # Same state by another path, or (never seen) a collision: only a child with these very ids is shared.
        return next((c for c in self.children(parent) if self.step_ids(c) == ids), None)

    def _state_key(self, node: int, key: tuple[int, int]) -> tuple[int, int] | str:
        if self._signature is None or node == ROOT:
            return key
        return self._signature(self.prefix(node).solution_ids)


def _doubled(array: NDArray[np.generic], capacity: int) -> NDArray[np.generic]:
    grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
