"""Healthy: PPO on a contextual bandit; the network runs in half precision, log-probabilities and ratios in FP32.

Cause: none; `logits.float()` comes before log_softmax, so that the ratio of a policy to itself is 1.
Repair: none.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
STATE_DIM, ACTIONS, CLIP, EPOCHS = 12, 5, 0.2, 4
reward_table = torch.randn(STATE_DIM, ACTIONS)


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE_DIM, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor, self.critic = nn.Linear(hidden, ACTIONS), nn.Linear(hidden, 1)

    def forward(self, state):
        h = self.body(state)
        return self.actor(h), self.critic(h).squeeze(-1)


def log_probs(logits):
    return F.log_softmax(logits.float(), dim=-1)


policy = ActorCritic()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for iteration in range(15):
    state = torch.randn(256, STATE_DIM)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        logits, value = policy(state)
    old = log_probs(logits)
    action = torch.multinomial(old.exp(), 1)
    reward = (state @ reward_table).gather(1, action).squeeze(1)
    advantage = reward - value.float()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    old_logp = old.gather(1, action).squeeze(1)
    for _ in range(EPOCHS):
        for idx in torch.randperm(256).split(64):
            with torch.autocast("cpu", dtype=torch.float16):
                logits, value = policy(state[idx])
            new = log_probs(logits)
            ratio = (new.gather(1, action[idx]).squeeze(1) - old_logp[idx]).exp()
            adv = advantage[idx]
            actor_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            critic_loss = F.mse_loss(value.float(), reward[idx])
            entropy = -(new.exp() * new).sum(-1).mean()
            loss = actor_loss + 0.5 * critic_loss - 0.01 * entropy
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    if iteration % 5 == 4:
        print(f"iteration {iteration} mean reward {reward.mean().item():.3f}")
