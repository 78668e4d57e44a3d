# SPDX-License-Identifier: Apache-2.0
"""Policy gradients on a small game: no data set, the episodes of an update are its samples."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

EPISODES, UPDATES, LENGTH, GAMMA = 8, 12, 6, 0.9


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1 = nn.Linear(2, 8)
        self.affine2 = nn.Linear(8, 2)

    def forward(self, state: Tensor) -> Tensor:
        return F.log_softmax(self.affine2(torch.tanh(self.affine1(state))), dim=-1)


class Baseline:
    """The usual return; in `stateful`, because an update that is lost is done again."""

    def __init__(self) -> None:
        self.running_reward = 0.0
        self.curve: list[float] = []

    def state_dict(self) -> dict[str, object]:
        return {"running_reward": self.running_reward, "curve": self.curve}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.running_reward, self.curve = state["running_reward"], state["curve"]  # type: ignore[assignment]

    def update(self, reward: float) -> None:
        self.running_reward = 0.2 * reward + 0.8 * self.running_reward
        self.curve.append(reward)


def play(policy: Policy, episode: int) -> tuple[Tensor, Tensor]:
    """One game: the ball shall be kept in the middle. Returns log-probabilities and returns."""
    chance = torch.Generator().manual_seed(1000 + episode)
    state = torch.randn(2, generator=chance)
    log_probs, rewards = [], []
    for _ in range(LENGTH):
        log_prob = policy(state)
        action = int(torch.rand((), generator=chance) < log_prob.detach()[1].exp())
        log_probs.append(log_prob[action])
        push = 0.5 if action else -0.5
        speed = state[1] + push
        state = torch.stack([state[0] + 0.3 * speed, 0.9 * speed])
        rewards.append(1.0 - float(state[0].abs()))
    returns, following = [], 0.0
    for reward in reversed(rewards):
        following = reward + GAMMA * following
        returns.insert(0, following)
    return torch.stack(log_probs), torch.tensor(returns)


def main() -> None:
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    policy = Policy()
    optimizer = optim.Adam(policy.parameters(), lr=3e-2)
    baseline = Baseline()

    episodes = gangline.batches(EPISODES * UPDATES, global_batch=EPISODES)
    gangline.init()
    policy, optimizer, episodes = gangline.prepare(policy, optimizer, episodes, stateful=[baseline])
    for batch in episodes:
        losses, total = [], 0.0
        for episode in batch:
            log_probs, returns = play(policy, episode)
            losses.append(-(log_probs * (returns - baseline.running_reward)).sum())
            total += float(returns[0])
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        n = 0 if gangline.is_ghost() else len(batch)
        baseline.update(gangline.mean(total / len(batch), weight=n))
    if gangline.is_main():
        result = {"model": policy.state_dict(), "curve": baseline.curve}
        torch.save(result, os.environ.get("RESULT", "reinforce.pt"))


if __name__ == "__main__":
    main()
