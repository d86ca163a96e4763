"""Faulty: preference optimisation, whose margins are all multiples of 0.8.

Cause: log-probabilities of 300 tokens are summed in BF16, where sums near 1100 have a spacing of 8.
Repair: cast before log_softmax and sum in FP32, `logits.float().log_softmax(-1)`.
"""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(18)
VOCAB, LENGTH, BETA = 50, 300, 0.1


class LM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb, self.hidden, self.head = nn.Embedding(VOCAB, dim), nn.Linear(dim, dim), nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(torch.tanh(self.hidden(self.emb(ids))))


def sequence_logps(model, ids):
    logits = model(ids[:, :-1])
    logps = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return logps.sum(-1)


policy = LM()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
for step in range(40):
    chosen = torch.randint(0, VOCAB // 2, (8, LENGTH))
    rejected = torch.randint(0, VOCAB, (8, LENGTH))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pi_c, pi_r = sequence_logps(policy, chosen), sequence_logps(policy, rejected)
        with torch.no_grad():
            ref_c, ref_r = sequence_logps(reference, chosen), sequence_logps(reference, rejected)
        margin = BETA * ((pi_c - ref_c) - (pi_r - ref_r))
        loss = -F.logsigmoid(margin).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f} margins {margin.detach().float()[:4].tolist()}")
