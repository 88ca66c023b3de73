#!/usr/bin/env python3
"""The twin of `weft train` in PyTorch: the same GPT-2, fp32, on the CPU, to compare speeds with.

Written in the usual style of PyTorch: modules, fused attention if this version has it, AdamW,
clipping.  Random tokens, random weights; prints one JSON line.  Exit code 3: PyTorch is missing.

    torch_cpu.py [--config models/gpt2.json] [--seq-length 256] [--micro-batch-size 1]
                 [--global-batch-size 1] [--steps 5] [--threads 1]
"""
import argparse
import json
import pathlib
import sys
import time

try:
    import torch
except ImportError:
    print("torch_cpu.py: PyTorch is not installed", file=sys.stderr)
    sys.exit(3)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for y in self.qkv(x).chunk(3, dim=-1))
        return self.proj(causal_attention(q, k, v).transpose(1, 2).flatten(2))


def causal_attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):  # PyTorch 2.0
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    tokens = q.shape[2]
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = (q * q.shape[3] ** -0.5) @ k.transpose(2, 3)
    return scores.masked_fill_(later, float("-inf")).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, width, heads, inner, epsilon):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"),
                                 nn.Linear(inner, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, epsilon = config["n_embd"], config["layer_norm_epsilon"]
        inner = config["n_inner"] or 4 * width
        self.tokens = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["n_positions"], width)
        self.blocks = nn.Sequential(*(Block(width, config["n_head"], inner, epsilon)
                                      for _ in range(config["n_layer"])))
        self.norm = nn.LayerNorm(width, epsilon)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def one_step(model, optimizer, batch, micro):
    """Seconds of one optimizer step: all microbatches, clipping, update."""
    begin = time.perf_counter()
    optimizer.zero_grad()
    for rows in batch.split(micro):
        (model(rows[:, :-1], rows[:, 1:]) * (len(rows) / len(batch))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return time.perf_counter() - begin


def arguments():
    models = pathlib.Path(__file__).resolve().parent.parent / "models"
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", default=str(models / "gpt2.json"), help="model_type gpt2")
    for flag, default in (("seq-length", 256), ("micro-batch-size", 1), ("global-batch-size", 1),
                          ("steps", 5), ("threads", 1)):
        parser.add_argument("--" + flag, type=int, default=default)
    return parser.parse_args()


def main():
    a = arguments()
    config = json.loads(pathlib.Path(a.config).read_text())
    if config["model_type"] != "gpt2":
        sys.exit(f"{a.config}: found model_type {config['model_type']}, wanted gpt2")
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    model = Gpt2(config)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95))
    shape = (a.global_batch_size, a.seq_length + 1)
    seconds = [one_step(model, optimizer, torch.randint(config["vocab_size"], shape),
                        a.micro_batch_size) for _ in range(a.steps + 1)]
    step = min(seconds[1:])  # the first creates the optimizer state; other programs only add time
    print(json.dumps({"software": f"PyTorch {torch.__version__}", "threads": a.threads,
                      "steps": a.steps, "time_s": step,
                      "tokens_per_s": a.global_batch_size * a.seq_length / step}))


if __name__ == "__main__":
    main()
