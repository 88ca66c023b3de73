#!/usr/bin/env python3
"""Makes the vectors beside it: four tiny models, their losses, gradients and optimizer steps.

Needs PyTorch (1.13 or newer) and nothing else.  Gradients are autograd's, the optimizer is
torch.optim.AdamW, clipping is torch.nn.utils.clip_grad_norm_; the models are written here from the
papers, with parameters named and laid out as transformers does:

  gpt2    GPT-2 (Radford et al. 2019): layers begin with LayerNorm, learned positions, gelu by tanh
          (arXiv 1606.08415), tied head; linear weights are stored (in, out), as Conv1D has them
  llama   arXiv 2302.13971: RMSNorm, rotary positions on halves of a head (arXiv 2104.09864), SwiGLU
          (arXiv 2002.05202), grouped queries (arXiv 2305.13245), a head of its own
  qwen2   arXiv 2407.10671: the same with biases on query, key and value, tied
  qwen3   arXiv 2505.09388: no biases, a norm on every query and key head, head width given apart

Everything is computed in double and rounded to fp32 once, when it is written.

    make_vectors.py [FOLDER]      (the folder of this script)
"""
import json
import math
import pathlib
import random
import struct
import sys

import torch
import torch.nn.functional as F

BATCH = 4
STEPS = 3
LR, BETAS, EPSILON, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0

# Sizes are small; llama's widths are what vector units like, those of the others are not.
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 61, "n_positions": 24, "n_embd": 20, "n_layer": 2,
        "n_head": 4, "n_inner": 48, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    "llama": {
        "model_type": "llama", "vocab_size": 67, "max_position_embeddings": 20, "hidden_size": 32,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-3, "rope_theta": 500.0,
        "tie_word_embeddings": False,
    },
    "qwen2": {
        "model_type": "qwen2", "vocab_size": 59, "max_position_embeddings": 17, "hidden_size": 24,
        "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3", "vocab_size": 71, "max_position_embeddings": 19, "hidden_size": 16,
        "intermediate_size": 26, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": False,
    },
}


# ------------------------------------------------------------------- the models


def merge(heads):
    """(batch, heads, tokens, width) -> (batch, tokens, heads * width)"""
    return heads.transpose(1, 2).flatten(2)


def split(x, heads):
    """(batch, tokens, heads * width) -> (batch, heads, tokens, width)"""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def attention(q, k, v):
    """Causal; each key head serves as many query heads in a row as there are for it."""
    tokens, repeat = q.shape[2], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


def gpt2_shapes(c):
    h, f, p = c["n_embd"], c["n_inner"], "transformer."
    shapes = {p + "wte.weight": (c["vocab_size"], h), p + "wpe.weight": (c["n_positions"], h)}
    for i in range(c["n_layer"]):
        for name, rows, columns in (("attn.c_attn", h, 3 * h), ("attn.c_proj", h, h),
                                    ("mlp.c_fc", h, f), ("mlp.c_proj", f, h)):
            shapes[f"{p}h.{i}.{name}.weight"] = (rows, columns)
            shapes[f"{p}h.{i}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes[f"{p}h.{i}.{name}.weight"] = shapes[f"{p}h.{i}.{name}.bias"] = (h,)
    shapes[p + "ln_f.weight"] = shapes[p + "ln_f.bias"] = (h,)
    return shapes


def gpt2_logits(c, w, ids):
    p = "transformer."

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"],
                            c["layer_norm_epsilon"])

    x = F.embedding(ids, w[p + "wte.weight"]) + w[p + "wpe.weight"][: ids.shape[1]]
    for i in range(c["n_layer"]):
        at = f"{p}h.{i}."
        qkv = linear(norm(x, at + "ln_1"), at + "attn.c_attn").chunk(3, dim=-1)
        mixed = merge(attention(*(split(part, c["n_head"]) for part in qkv)))
        x = x + linear(mixed, at + "attn.c_proj")
        inner = F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, at + "mlp.c_proj")
    return norm(x, p + "ln_f") @ w[p + "wte.weight"].T


def head_width(c):
    return c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])


def llama_shapes(c):
    h, f, d = c["hidden_size"], c["intermediate_size"], head_width(c)
    nq, nkv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, rows in (("q_proj", nq), ("k_proj", nkv), ("v_proj", nkv)):
            shapes[f"{at}self_attn.{name}.weight"] = (rows, h)
            if c["model_type"] == "qwen2":
                shapes[f"{at}self_attn.{name}.bias"] = (rows,)
        if c["model_type"] == "qwen3":
            shapes[at + "self_attn.q_norm.weight"] = (d,)
            shapes[at + "self_attn.k_norm.weight"] = (d,)
        shapes[at + "self_attn.o_proj.weight"] = (h, nq)
        shapes[at + "mlp.gate_proj.weight"] = shapes[at + "mlp.up_proj.weight"] = (f, h)
        shapes[at + "mlp.down_proj.weight"] = (h, f)
        shapes[at + "input_layernorm.weight"] = (h,)
        shapes[at + "post_attention_layernorm.weight"] = (h,)
    shapes["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], h)
    return shapes


def rotate(x, base):
    """Turns the pairs (j, j + width / 2) of every head by position * base ^ (-2 j / width)."""
    tokens, half = x.shape[2], x.shape[3] // 2
    speed = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(tokens, dtype=x.dtype)[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def llama_logits(c, w, ids):
    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    def norm(x, name):
        mean_square = x.square().mean(-1, keepdim=True)
        return x * (mean_square + c["rms_norm_eps"]).rsqrt() * w[name + ".weight"]

    def heads(x, at, kind, count):
        x = split(linear(x, f"{at}{kind}_proj"), count)
        if kind != "v" and f"{at}{kind}_norm.weight" in w:
            x = norm(x, f"{at}{kind}_norm")
        return x if kind == "v" else rotate(x, c["rope_theta"])

    x = F.embedding(ids, w["model.embed_tokens.weight"])
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = norm(x, at + "input_layernorm")
        q = heads(y, at + "self_attn.", "q", c["num_attention_heads"])
        k, v = (heads(y, at + "self_attn.", kind, c["num_key_value_heads"]) for kind in "kv")
        x = x + linear(merge(attention(q, k, v)), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        gated = F.silu(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj")
        x = x + linear(gated, at + "mlp.down_proj")
    tied = c["tie_word_embeddings"]
    return linear(norm(x, "model.norm"), "model.embed_tokens" if tied else "lm_head")


# ------------------------------------------------------------- weights and steps


def draw(shapes, seed):
    """Norms around 1, biases and all else around 0, far enough from both that each one counts.
    Rounded to fp32 here, so that the file holds exactly what was computed with."""
    source = random.Random(seed)
    weights = {}
    for name, shape in shapes.items():
        is_norm = len(shape) == 1 and name.endswith(".weight")
        values = [source.gauss(1.0 if is_norm else 0.0, 0.17) for _ in range(math.prod(shape))]
        weights[name] = torch.tensor(values, dtype=torch.float32).reshape(shape).double()
    return weights


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run_steps(model, weights, ids, targets):
    parameters = {name: value.clone().requires_grad_() for name, value in weights.items()}
    matrices = [p for p in parameters.values() if p.dim() == 2]
    vectors = [p for p in parameters.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON)
    record = {"logits": [], "loss": [], "grad_norm": [], "gradients": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(parameters, ids)
        loss = loss_of(logits, targets)
        loss.backward()
        record["logits"].append(logits.detach())
        record["loss"].append(loss.item())
        record["gradients"].append({n: p.grad.clone() for n, p in parameters.items()})
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP).item())
        optimizer.step()
    return record, {name: p.detach() for name, p in parameters.items()}


# ------------------------------------------------------------------------- files


def write_safetensors(path, tensors):
    """u64 length of the header, the header (JSON, padded with blanks), the data; little-endian."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        values = tensor.flatten().tolist()
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name, config, folder):
    if name == "gpt2":
        shapes, logits, length = gpt2_shapes, gpt2_logits, config["n_positions"]
    else:
        shapes, logits, length = llama_shapes, llama_logits, config["max_position_embeddings"]
    source = random.Random("tokens of " + name)
    stream = [source.randrange(config["vocab_size"]) for _ in range(BATCH * length + 1)]
    ids = torch.tensor(stream[:-1]).reshape(BATCH, length)
    targets = torch.tensor(stream[1:]).reshape(BATCH, length)
    weights = draw(shapes(config), "weights of " + name)
    record, after = run_steps(lambda w, x: logits(config, w, x), weights, ids, targets)

    folder.mkdir(parents=True, exist_ok=True)
    about = {"_source": "made for Weft's tests by tests/vectors/make_vectors.py"}
    (folder / "config.json").write_text(json.dumps(about | config, indent=2) + "\n")
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(stream)}H", *stream))
    write_safetensors(folder / "model.safetensors", weights)
    write_safetensors(folder / "expected.safetensors",
                      {"logits": record["logits"][0], "loss": torch.tensor(record["loss"][0])}
                      | record["gradients"][0])
    write_safetensors(folder / "expected_steps.safetensors",
                      {key: torch.tensor(record[key]) for key in ("loss", "grad_norm")} | after)
    print(f"{name:6} loss", *(f"{x:.6f}" for x in record["loss"]), " norm",
          *(f"{x:.6f}" for x in record["grad_norm"]))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    for name, config in CONFIGS.items():
        make(name, config, (folder.parent if folder.is_file() else folder) / name)


if __name__ == "__main__":
    main()
