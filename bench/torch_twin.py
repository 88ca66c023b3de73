#!/usr/bin/env python3
"""The twin of `weft train --executor cuda` in PyTorch: the same model, batch, optimizer and precision.

Shapes come from the same models/*.json (gpt2, llama and qwen2 types).  Weights are bf16 with fp32
masters, AdamW is PyTorch's fused version and updates the masters, gradients are clipped by their
norm, attention is PyTorch's fused version, and torch.compile compiles the rest.  Random tokens,
random weights; prints a JSON line after each step behind the warm-up, with the median of the steps so far:
a run that is stopped keeps its steps.  MFU counts FLOPs as core/job/model.h does, with causal
attention.  If compilation fails, the script reports it on stderr and restarts without torch.compile.

    torch_twin.py --config models/gpt2.json [--num-layers N] [--seq-length 1024]
                  [--micro-batch-size 64] [--global-batch-size 64] [--steps 10] [--grad-reduce-in-fp32]
                  [--compile model|block|none] [--attention default|flash|cudnn] [--recompute]
                  [--warm-up 3] [--peak-tflops 989] [--make-vocab-size-divisible-by 1]

--describe prints parameters and FLOPs per token, and does not need PyTorch.
Exit code 3: PyTorch is missing; 4: not enough memory.
"""
import argparse
import json
import os
import pathlib
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError:
    torch = None

TYPES = ("gpt2", "llama", "qwen2")


class Shape:
    """Shape of a model, under the same names for all model types."""

    def __init__(self, path, sequence, layers=None, multiple=1):
        config = json.loads(pathlib.Path(path).read_text())
        if config["model_type"] not in TYPES:
            sys.exit(f"{path}: found model_type {config['model_type']}, wanted {', '.join(TYPES)}")
        self.gpt2 = config["model_type"] == "gpt2"
        self.qkv_bias = config["model_type"] != "llama"
        self.vocabulary = config["vocab_size"]
        self.rows = -(-self.vocabulary // multiple) * multiple  # rows of embedding and head, padded
        self.tied = config["tie_word_embeddings"]
        self.sequence = sequence
        if self.gpt2:
            self.layers, self.width, self.heads = config["n_layer"], config["n_embd"], config["n_head"]
            self.groups, self.inner = self.heads, config["n_inner"] or 4 * self.width
            self.positions, self.epsilon = config["n_positions"], config["layer_norm_epsilon"]
        else:
            self.layers, self.width = config["num_hidden_layers"], config["hidden_size"]
            self.heads, self.inner = config["num_attention_heads"], config["intermediate_size"]
            self.groups = config.get("num_key_value_heads", self.heads)
            self.positions, self.epsilon = 0, config["rms_norm_eps"]
            self.theta = config.get("rope_theta", 10000.0)
        self.head = config.get("head_dim") or self.width // self.heads
        self.layers = layers or self.layers

    def layer_matrix(self):
        """Number of elements of a layer's matrices."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.groups)
        return attention + self.width * self.inner * (2 if self.gpt2 else 3)

    def layer_vectors(self):
        biases = self.head * (self.heads + 2 * self.groups) if self.qkv_bias else 0
        biases += 2 * self.width + self.inner if self.gpt2 else 0
        return biases + self.width * (4 if self.gpt2 else 2)

    def parameters(self):
        tables = self.width * (self.vocabulary * (1 if self.tied else 2) + self.positions)
        last_norm = self.width * (2 if self.gpt2 else 1)
        return tables + last_norm + self.layers * (self.layer_matrix() + self.layer_vectors())

    def flops_per_token(self):
        """FLOPs of forward and backward per token; half of all keys are masked."""
        matrices = self.layers * self.layer_matrix() + self.width * self.vocabulary
        return 6.0 * matrices + 6.0 * self.layers * self.head * self.heads * self.sequence


def make_modules():
    """Classes that need PyTorch."""

    class Attention(nn.Module):
        def __init__(self, s):
            super().__init__()
            self.s = s
            self.qkv = nn.Linear(s.width, s.head * (s.heads + 2 * s.groups), bias=s.qkv_bias)
            self.proj = nn.Linear(s.heads * s.head, s.width, bias=s.gpt2)

        def forward(self, x, turns):
            s = self.s
            q, k, v = [y.unflatten(2, (-1, s.head)).transpose(1, 2) for y in self.qkv(x).split(
                [s.heads * s.head, s.groups * s.head, s.groups * s.head], dim=2)]
            if turns is not None:
                q, k = turn(q, turns), turn(k, turns)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                               enable_gqa=s.groups != s.heads)
            return self.proj(y.transpose(1, 2).flatten(2))

    def turn(x, turns):
        """Rotary embedding in fp32; element i pairs with i + half, as in Hugging Face models."""
        cosine, sine = turns
        low, high = x.float().chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1).to(x.dtype)

    class Mlp(nn.Module):
        def __init__(self, s):
            super().__init__()
            self.gpt2 = s.gpt2
            self.up = nn.Linear(s.width, s.inner * (1 if s.gpt2 else 2), bias=s.gpt2)
            self.down = nn.Linear(s.inner, s.width, bias=s.gpt2)

        def forward(self, x):
            x = self.up(x)
            if self.gpt2:
                return self.down(F.gelu(x, approximate="tanh"))
            gate, value = x.chunk(2, dim=-1)
            return self.down(F.silu(gate) * value)

    def norm_of(s):
        make = nn.LayerNorm if s.gpt2 else nn.RMSNorm
        return make(s.width, eps=s.epsilon)

    class Block(nn.Module):
        def __init__(self, s):
            super().__init__()
            self.norm1, self.norm2 = norm_of(s), norm_of(s)
            self.attention, self.mlp = Attention(s), Mlp(s)

        def forward(self, x, turns):
            x = x + self.attention(self.norm1(x), turns)
            return x + self.mlp(self.norm2(x))

    class Ends(nn.Module):
        """Last norm, head and loss."""

        def __init__(self, s):
            super().__init__()
            self.norm = norm_of(s)
            self.weight = nn.Parameter(torch.empty(s.rows, s.width))

        def forward(self, x, targets):
            logits = F.linear(self.norm(x), self.weight)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    class Model(nn.Module):
        def __init__(self, s, recompute):
            super().__init__()
            self.s, self.recompute = s, recompute
            self.tokens = nn.Embedding(s.rows, s.width)
            self.positions = nn.Embedding(s.positions, s.width) if s.gpt2 else None
            self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
            self.ends = Ends(s)
            if s.tied:
                self.ends.weight = self.tokens.weight

        def turns(self, device):
            if self.s.gpt2:
                return None
            pairs = torch.arange(0, self.s.head, 2, device=device).float() / self.s.head
            angle = torch.outer(torch.arange(self.s.sequence, device=device).float(),
                                self.s.theta ** -pairs)
            return angle.cos(), angle.sin()

        def forward(self, ids, targets, turns):
            x = self.tokens(ids)
            if self.positions is not None:
                x = x + self.positions.weight[: ids.shape[1]]
            for block in self.blocks:
                if self.recompute:
                    x = checkpoint(block, x, turns, use_reentrant=False)
                else:
                    x = block(x, turns)
            return self.ends(x, targets)

    return Model


class Masters:
    """fp32 copies of bf16 weights, and the gradients that are summed for them."""

    def __init__(self, model, in_fp32):
        self.weights = list(model.parameters())
        self.copies = [w.detach().float() for w in self.weights]
        self.in_fp32 = in_fp32
        for weight, copy in zip(self.weights, self.copies):
            if in_fp32:
                copy.grad = torch.zeros_like(copy)
                weight.register_post_accumulate_grad_hook(self.adder(copy))

    @staticmethod
    def adder(copy):
        def add(weight):
            copy.grad.add_(weight.grad)
            weight.grad = None
        return add

    def gather(self):
        if self.in_fp32:
            return
        if self.copies[0].grad is None:
            for copy in self.copies:
                copy.grad = torch.empty_like(copy)
        torch._foreach_copy_([c.grad for c in self.copies], [w.grad for w in self.weights])

    def spread(self):
        torch._foreach_copy_(self.weights, self.copies)
        if self.in_fp32:
            torch._foreach_zero_([c.grad for c in self.copies])
        else:
            torch._foreach_zero_([w.grad for w in self.weights])


def make_optimizer(masters, device):
    groups = [{"params": [c for c in masters.copies if c.dim() > 1], "weight_decay": 0.1},
              {"params": [c for c in masters.copies if c.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8,
                             fused=device.type == "cuda")


def make_model(a, shape, device):
    torch.manual_seed(1)
    with torch.device(device):
        model = make_modules()(shape, a.recompute)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model = model.to(torch.bfloat16)
    if a.compile == "model":
        model.compile()
    elif a.compile == "block":
        for part in (*model.blocks, model.ends):
            part.compile()
    return model


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def one_step(a, model, masters, optimizer, batch, turns):
    """Runs one optimizer step: all microbatches, clipping, update.  Returns its seconds and loss."""
    synchronize(batch.device)
    begin, loss = time.perf_counter(), 0
    with torch.no_grad():
        parts = batch.split(a.micro_batch_size)
    for rows in parts:
        part = model(rows[:, :-1], rows[:, 1:], turns) / len(parts)
        part.backward()
        loss = loss + part.detach()
    with torch.no_grad():
        masters.gather()
        nn.utils.clip_grad_norm_(masters.copies, 1.0, foreach=True)
        optimizer.step()
        masters.spread()
    synchronize(batch.device)
    return time.perf_counter() - begin, float(loss)


def attention_backend(name):
    from torch.nn import attention
    import contextlib
    backends = {"flash": attention.SDPBackend.FLASH_ATTENTION,
                "cudnn": attention.SDPBackend.CUDNN_ATTENTION}
    return attention.sdpa_kernel(backends[name]) if name in backends else contextlib.nullcontext()


def start_again(error):
    """Restarts the script without torch.compile, which may find no compiler.  A new process frees all
    memory."""
    said = (str(error).splitlines() or [""])[0]
    print(f"torch_twin.py: not compiled: {type(error).__name__}: {said[:200]}", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.argv, "--compile", "none"])


def measure(a, shape, device):
    model = make_model(a, shape, device)
    masters = Masters(model, a.grad_reduce_in_fp32)
    optimizer = make_optimizer(masters, device)
    turns, steps = model.turns(device), []
    size = (a.global_batch_size, a.seq_length + 1)
    with attention_backend(a.attention):
        for _ in range(a.warm_up + a.steps):
            batch = torch.randint(shape.vocabulary, size, device=device)
            try:
                steps.append(one_step(a, model, masters, optimizer, batch, turns))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # errors of Dynamo, Inductor and Triton have no common class
                if steps or a.compile == "none":
                    raise
                start_again(error)
            if len(steps) > a.warm_up:
                print(json.dumps(report(a, shape, device, steps[a.warm_up:])), flush=True)


def report(a, shape, device, steps):
    """Summary of the steps behind the warm-up, each its seconds and its loss."""
    seconds = sorted(s for s, _ in steps)
    median = 0.5 * (seconds[(len(seconds) - 1) // 2] + seconds[len(seconds) // 2])
    loss = steps[-1][1]
    tokens = a.global_batch_size * a.seq_length / median
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {"software": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name()
            if device.type == "cuda" else "cpu", "compile": a.compile, "attention": a.attention,
            "recompute": a.recompute, "layers": shape.layers, "steps": len(steps), "time_s": median, "least_s": seconds[0],
            "most_s": seconds[-1], "tokens_per_s": tokens,
            "mfu": tokens * shape.flops_per_token() / (a.peak_tflops * 1e12), "peak_bytes": peak,
            "loss": loss}


def arguments():
    models = pathlib.Path(__file__).resolve().parent.parent / "models"
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", default=str(models / "gpt2.json"))
    for flag, default in (("seq-length", 1024), ("micro-batch-size", 1), ("global-batch-size", 1),
                          ("steps", 10), ("warm-up", 3), ("make-vocab-size-divisible-by", 1)):
        parser.add_argument("--" + flag, type=int, default=default)
    parser.add_argument("--num-layers", type=int, help="use only the first N layers of the model")
    parser.add_argument("--compile", choices=("model", "block", "none"), default="model")
    parser.add_argument("--attention", choices=("default", "flash", "cudnn"), default="default")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="dense bf16 peak of the GPU")
    for flag in ("grad-reduce-in-fp32", "recompute", "describe"):
        parser.add_argument("--" + flag, action="store_true")
    a = parser.parse_args()
    if a.global_batch_size % a.micro_batch_size:
        parser.error(f"--global-batch-size: found {a.global_batch_size}, wanted a multiple of "
                     f"{a.micro_batch_size}")
    return a


def main():
    a = arguments()
    shape = Shape(a.config, a.seq_length, a.num_layers, a.make_vocab_size_divisible_by)
    if a.describe:
        print(json.dumps({"parameters": shape.parameters(),
                          "flops_per_token": shape.flops_per_token()}))
        return
    if torch is None:
        print("torch_twin.py: PyTorch is not installed", file=sys.stderr)
        sys.exit(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        measure(a, shape, device)
    except torch.OutOfMemoryError as error:
        print(f"torch_twin.py: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
