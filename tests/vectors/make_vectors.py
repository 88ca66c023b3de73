#!/usr/bin/env python3
"""Makes the vectors of this folder: eighteen tiny models, their losses, gradients, optimizer steps.

Needs PyTorch (1.13 or newer) and nothing else.  Gradients are autograd's, the optimizer is
torch.optim.AdamW, clipping is torch.nn.utils.clip_grad_norm_; the models are written here from the
papers, with the parameter names and layouts of transformers:

  gpt2    GPT-2 (Radford et al. 2019): layers begin with LayerNorm, learned positions, gelu by tanh
          (arXiv 1606.08415), tied head; linear weights are stored (in, out), as in Conv1D
  llama   arXiv 2302.13971: RMSNorm, rotary positions on halves of a head (arXiv 2104.09864), SwiGLU
          (arXiv 2002.05202), grouped queries (arXiv 2305.13245), a separate head
  qwen2   arXiv 2407.10671: llama with biases on query, key and value, and a tied head
  qwen3   arXiv 2505.09388: llama with a norm on every query and key head; the head width is set
          separately
  mixtral arXiv 2401.04088, section 2.1: llama with experts; softmax over the scores of the selected
          experts
  qwen2_moe, qwen3_moe  qwen2 and qwen3 with experts; softmax over all scores, the probabilities of
          the selected experts are not normalised; qwen2_moe also has a shared expert with a sigmoid
          gate
  deepseek_v2  arXiv 2405.04434, section 2.1: multi-latent attention, here without a latent for
          queries; shared experts, a dense first layer
  deepseek_v3  arXiv 2412.19437, section 2: a latent for queries too; sigmoid scores, groups of
          experts, a selection bias that moves after every step, a prediction layer (section 2.2)
          whose loss has a weight of 0.1; rotary pairs are neighbours in its files
  the other families  decoders.py

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

import decoders

BATCH = 4
STEPS = 3
LR, BETAS, EPSILON, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0

# Sizes are small.  The widths of llama are multiples of 8, those of the others are not.
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
    "mixtral": {
        "model_type": "mixtral", "vocab_size": 53, "max_position_embeddings": 18, "hidden_size": 24,
        "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": False,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", "vocab_size": 47, "max_position_embeddings": 16,
        "hidden_size": 16, "intermediate_size": 30, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 10,
        "shared_expert_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", "vocab_size": 57, "max_position_embeddings": 20,
        "hidden_size": 20, "intermediate_size": 30, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "moe_intermediate_size": 8, "num_experts": 8, "num_experts_per_tok": 3,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2", "vocab_size": 43, "max_position_embeddings": 14,
        "hidden_size": 20, "intermediate_size": 26, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None,
        "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
        "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False,
        "routed_scaling_factor": 1.0, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "tie_word_embeddings": False,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3", "vocab_size": 51, "max_position_embeddings": 16,
        "hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 14,
        "kv_lora_rank": 12, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6, "v_head_dim": 5,
        "n_routed_experts": 12, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "moe_intermediate_size": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "tie_word_embeddings": False,
    },
}
MTP_WEIGHT, BIAS_RATE = 0.1, 1e-3  # DeepSeek-V3, section 4.2; MTP_WEIGHT: value of late training
BIAS = "e_score_correction_bias"


# ------------------------------------------------------------------- the models


def merge(heads):
    """(batch, heads, tokens, width) -> (batch, tokens, heads * width)"""
    return heads.transpose(1, 2).flatten(2)


def split(x, heads):
    """(batch, tokens, heads * width) -> (batch, heads, tokens, width)"""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def attention(q, k, v):
    """Causal attention; consecutive query heads share a key head."""
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


def layers_of(c):
    """Numbers of all layers; prediction layers follow the others."""
    return range(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0))


def experts_of(c):
    return c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts", 0)


def has_experts(c, layer):
    return experts_of(c) > 0 and layer >= c.get("first_k_dense_replace", 0)


def attention_shapes(c, at):
    h, d = c["hidden_size"], head_width(c)
    nq, nkv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {}
    for name, rows in (("q_proj", nq), ("k_proj", nkv), ("v_proj", nkv)):
        shapes[f"{at}{name}.weight"] = (rows, h)
        if c["model_type"] in ("qwen2", "qwen2_moe"):
            shapes[f"{at}{name}.bias"] = (rows,)
    if c["model_type"] in ("qwen3", "qwen3_moe"):
        shapes[at + "q_norm.weight"] = shapes[at + "k_norm.weight"] = (d,)
    shapes[at + "o_proj.weight"] = (h, nq)
    return shapes


def latent_shapes(c, at):
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries, q = heads * (nope + rope), c["q_lora_rank"]
    shapes = {at + "q_proj.weight": (queries, h)} if q is None else {
        at + "q_a_proj.weight": (q, h), at + "q_a_layernorm.weight": (q,),
        at + "q_b_proj.weight": (queries, q)}
    return shapes | {
        at + "kv_a_proj_with_mqa.weight": (rank + rope, h), at + "kv_a_layernorm.weight": (rank,),
        at + "kv_b_proj.weight": (heads * (nope + value), rank),
        at + "o_proj.weight": (h, heads * value)}


def gated_shapes(at, h, f, names=("gate_proj", "up_proj", "down_proj")):
    return {f"{at}{names[0]}.weight": (f, h), f"{at}{names[1]}.weight": (f, h),
            f"{at}{names[2]}.weight": (h, f)}


def expert_shapes(c, at):
    h, n, kind = c["hidden_size"], experts_of(c), c["model_type"]
    shapes = {at + "gate.weight": (n, h)}
    for e in range(n):
        if kind == "mixtral":
            shapes |= gated_shapes(f"{at}experts.{e}.", h, c["intermediate_size"], ("w1", "w3", "w2"))
        else:
            shapes |= gated_shapes(f"{at}experts.{e}.", h, c["moe_intermediate_size"])
    if c.get("topk_method") == "noaux_tc":
        shapes[f"{at}gate.{BIAS}"] = (n,)
    if kind == "qwen2_moe":
        shapes |= gated_shapes(at + "shared_expert.", h, c["shared_expert_intermediate_size"])
        shapes[at + "shared_expert_gate.weight"] = (1, h)
    if c.get("n_shared_experts"):
        width = c["n_shared_experts"] * c["moe_intermediate_size"]
        shapes |= gated_shapes(at + "shared_experts.", h, width)
    return shapes


def llama_shapes(c):
    h = c["hidden_size"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for i in layers_of(c):
        at = f"model.layers.{i}."
        shapes |= (latent_shapes if "kv_lora_rank" in c else attention_shapes)(c, at + "self_attn.")
        if has_experts(c, i):
            mlp = "block_sparse_moe." if c["model_type"] == "mixtral" else "mlp."
            shapes |= expert_shapes(c, at + mlp)
        else:
            shapes |= gated_shapes(at + "mlp.", h, c["intermediate_size"])
        shapes[at + "input_layernorm.weight"] = (h,)
        shapes[at + "post_attention_layernorm.weight"] = (h,)
        if i >= c["num_hidden_layers"]:
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                shapes[f"{at}{norm}.weight"] = (h,)
            shapes[at + "eh_proj.weight"] = (h, 2 * h)
    shapes["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], h)
    return shapes


def rotate(x, base):
    """Rotates the pairs (j, j + width / 2) of every head by position * base ^ (-2 j / width)."""
    tokens, half = x.shape[2], x.shape[3] // 2
    speed = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(tokens, dtype=x.dtype)[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def rotate_neighbours(x, base):
    """rotate() for the pairs (2 j, 2 j + 1), as multiplication by exp (i angle)."""
    tokens, half = x.shape[2], x.shape[3] // 2
    speed = base ** (-2.0 * torch.arange(half, dtype=x.dtype) / x.shape[3])
    turn = torch.exp(1j * torch.outer(torch.arange(tokens, dtype=x.dtype), speed))
    pairs = torch.view_as_complex(x.unflatten(3, (half, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(3)


class Llama:
    """One forward pass with the weights `w` and the configuration `c`.  visits[name of a router]: number
    of tokens of each of its experts."""

    def __init__(self, c, w):
        self.c, self.w, self.visits = c, w, {}

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, x, name):
        mean_square = x.square().mean(-1, keepdim=True)
        return x * (mean_square + self.c["rms_norm_eps"]).rsqrt() * self.w[name + ".weight"]

    def heads(self, x, at, kind, count):
        x = split(self.linear(x, f"{at}{kind}_proj"), count)
        if kind != "v" and f"{at}{kind}_norm.weight" in self.w:
            x = self.norm(x, f"{at}{kind}_norm")
        return x if kind == "v" else rotate(x, self.c["rope_theta"])

    def grouped(self, y, at):
        q = self.heads(y, at, "q", self.c["num_attention_heads"])
        k, v = (self.heads(y, at, kind, self.c["num_key_value_heads"]) for kind in "kv")
        return self.linear(merge(attention(q, k, v)), at + "o_proj")

    def latent(self, y, at):
        c, n = self.c, self.c["num_attention_heads"]
        nope, rope, base = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["rope_theta"]
        if c["q_lora_rank"] is None:
            q = self.linear(y, at + "q_proj")
        else:
            q = self.norm(self.linear(y, at + "q_a_proj"), at + "q_a_layernorm")
            q = self.linear(q, at + "q_b_proj")
        q_nope, q_rope = split(q, n).split((nope, rope), -1)
        narrow, k_rope = self.linear(y, at + "kv_a_proj_with_mqa").split(
            (c["kv_lora_rank"], rope), -1)
        kv = self.linear(self.norm(narrow, at + "kv_a_layernorm"), at + "kv_b_proj")
        k_nope, v = split(kv, n).split((nope, c["v_head_dim"]), -1)
        k_rope = rotate_neighbours(split(k_rope, 1), base).expand(-1, n, -1, -1)
        q = torch.cat((q_nope, rotate_neighbours(q_rope, base)), -1)
        k = torch.cat((k_nope, k_rope), -1)
        return self.linear(merge(attention(q, k, v)), at + "o_proj")

    def gated(self, y, at, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (at + name for name in names)
        return self.linear(F.silu(self.linear(y, gate)) * self.linear(y, up), down)

    def allowed(self, scores):
        """The scores of the best groups, by the sum of a group's two best scores; -inf elsewhere."""
        groups = scores.unflatten(-1, (self.c["n_group"], -1))
        best = groups.topk(2, -1).values.sum(-1).topk(self.c["topk_group"], -1).indices
        kept = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
        return groups.masked_fill(~kept[..., None], -math.inf).flatten(-2)

    def choice(self, y, at):
        """Weights (batch, tokens, experts) of the outputs of experts; 0 for experts not selected."""
        c, scores = self.c, self.linear(y, at + "gate")
        correction = self.w.get(f"{at}gate.{BIAS}")
        probabilities = scores.softmax(-1) if correction is None else scores.sigmoid()
        order = probabilities if correction is None else self.allowed(probabilities + correction)
        chosen = order.topk(c["num_experts_per_tok"], -1).indices
        weights = probabilities.gather(-1, chosen)
        if c.get("norm_topk_prob", c["model_type"] == "mixtral"):
            weights = weights / weights.sum(-1, keepdim=True)
        self.visits[at] = chosen.flatten().bincount(minlength=experts_of(c))
        whole = torch.zeros_like(scores).scatter(-1, chosen, weights)
        return whole * c.get("routed_scaling_factor", 1.0)

    def experts(self, y, at):
        names = ("w1", "w3", "w2") if self.c["model_type"] == "mixtral" else (
            "gate_proj", "up_proj", "down_proj")
        weights, total = self.choice(y, at), 0
        for e in range(experts_of(self.c)):
            total = total + weights[..., e:e + 1] * self.gated(y, f"{at}experts.{e}.", names)
        if self.c["model_type"] == "qwen2_moe":
            gate = self.linear(y, at + "shared_expert_gate").sigmoid()
            total = total + gate * self.gated(y, at + "shared_expert.")
        if self.c.get("n_shared_experts"):
            total = total + self.gated(y, at + "shared_experts.")
        return total

    def layer(self, x, i):
        at = f"model.layers.{i}."
        attend = self.latent if "kv_lora_rank" in self.c else self.grouped
        x = x + attend(self.norm(x, at + "input_layernorm"), at + "self_attn.")
        y = self.norm(x, at + "post_attention_layernorm")
        if not has_experts(self.c, i):
            return x + self.gated(y, at + "mlp.")
        mlp = "block_sparse_moe." if self.c["model_type"] == "mixtral" else "mlp."
        return x + self.experts(y, at + mlp)

    def head(self, x):
        return self.linear(x, "model.embed_tokens" if self.c["tie_word_embeddings"] else "lm_head")

    def words(self, ids):
        return F.embedding(ids, self.w["model.embed_tokens.weight"])

    def run(self, ids):
        """Returns the logits, and the output of the last norm, which prediction layers read."""
        x = self.words(ids)
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i)
        x = self.norm(x, "model.norm")
        return self.head(x), x

    def predict(self, stream, targets):
        """Logits of a prediction layer for the tokens after the targets, one position less.  The last
        position predicts nothing and reads token 0 (Megatron-Core, roll_tensor), but its experts are
        counted."""
        i = self.c["num_hidden_layers"]
        at = f"model.layers.{i}."
        ids = torch.cat((targets[:, :-1], torch.zeros_like(targets[:, :1])), 1)
        both = torch.cat((self.norm(self.words(ids), at + "enorm"),
                          self.norm(stream, at + "hnorm")), -1)
        x = self.layer(self.linear(both, at + "eh_proj"), i)
        return self.head(self.norm(x, at + "shared_head.norm"))[:, :-1]


def gpt2_pass(c, w, ids, targets):
    logits = gpt2_logits(c, w, ids)
    loss = loss_of(logits, targets)
    return logits, loss, loss, {}


def decoder_shapes(c):
    return decoders.Decoder(c).shapes()


def decoder_pass(c, w, ids, targets):
    logits = decoders.Decoder(c, w).logits(ids)
    loss = loss_of(logits, targets)
    return logits, loss, loss, {}


def llama_pass(c, w, ids, targets):
    model = Llama(c, w)
    logits, stream = model.run(ids)
    loss = total = loss_of(logits, targets)
    if c.get("num_nextn_predict_layers"):
        total = loss + MTP_WEIGHT * loss_of(model.predict(stream, targets), targets[:, 1:])
    return logits, loss, total, model.visits


# ------------------------------------------------------------- weights and steps


def draw(shapes, seed, norm=1.0):
    """Random weights: norms around `norm`, all others around 0, spread so far that every weight affects
    the results.  Selection biases are small compared with scores, which are near 0.5.  Weights are
    rounded to fp32 here, so that the file contains exactly the weights of the computation."""
    source = random.Random(seed)
    weights = {}
    for name, shape in shapes.items():
        is_norm = len(shape) == 1 and name.endswith(".weight")
        spread = 0.03 if name.endswith(BIAS) else 0.17
        values = [source.gauss(norm if is_norm else 0.0, spread) for _ in range(math.prod(shape))]
        weights[name] = torch.tensor(values, dtype=torch.float32).reshape(shape).double()
    return weights


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def move_corrections(tensors, visits):
    """Moves selection biases towards an equal load of the experts (DeepSeek-V3, section 2.1.2)."""
    for at, count in visits.items():
        if f"{at}gate.{BIAS}" in tensors:
            tensors[f"{at}gate.{BIAS}"] += BIAS_RATE * (count.double().mean() - count).sign()


def run_steps(model, weights, ids, targets):
    tensors = {name: value.clone() for name, value in weights.items()}
    parameters = {n: t.requires_grad_() for n, t in tensors.items() if not n.endswith(BIAS)}
    matrices = [p for p in parameters.values() if p.dim() == 2]
    vectors = [p for p in parameters.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON)
    record = {"logits": [], "loss": [], "grad_norm": [], "gradients": []}
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        logits, loss, total, visits = model(tensors, ids, targets)
        total.backward()
        record["logits"].append(logits.detach())
        record["loss"].append(loss.item())
        record["gradients"].append({n: torch.zeros_like(t) if t.grad is None else t.grad.clone()
                                    for n, t in tensors.items()})
        record["grad_norm"].append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP).item())
        optimizer.step()
        move_corrections(tensors, visits)
    return record, {name: t.detach() for name, t in tensors.items()}


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


def repeated(c, w):
    """Copies of the model's embedding and head, which published files have in prediction layers."""
    return {f"model.layers.{i}.{there}.weight": w[f"{here}.weight"]
            for i in list(layers_of(c))[c["num_hidden_layers"]:]
            for there, here in (("embed_tokens", "model.embed_tokens"),
                                ("shared_head.head", "lm_head"))} if "kv_lora_rank" in c else {}


def make(name, config, folder):
    if name == "gpt2":
        shapes, model, length = gpt2_shapes, gpt2_pass, config["n_positions"]
    elif name in decoders.CONFIGS:
        shapes, model, length = decoder_shapes, decoder_pass, decoders.length_of(config)
    else:
        shapes, model, length = llama_shapes, llama_pass, config["max_position_embeddings"]
    source = random.Random("tokens of " + name)
    stream = [source.randrange(config["vocab_size"]) for _ in range(BATCH * length + 1)]
    ids = torch.tensor(stream[:-1]).reshape(BATCH, length)
    targets = torch.tensor(stream[1:]).reshape(BATCH, length)
    weights = draw(shapes(config), "weights of " + name, decoders.NORMS.get(name, 1.0))
    record, after = run_steps(lambda *tensors: model(config, *tensors), weights, ids, targets)

    folder.mkdir(parents=True, exist_ok=True)
    about = {"_source": "made for Weft's tests by tests/vectors/make_vectors.py"}
    (folder / "config.json").write_text(json.dumps(about | config, indent=2) + "\n")
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(stream)}H", *stream))
    write_safetensors(folder / "model.safetensors", weights | repeated(config, weights))
    write_safetensors(folder / "expected.safetensors",
                      {"logits": record["logits"][0], "loss": torch.tensor(record["loss"][0])}
                      | record["gradients"][0])
    write_safetensors(folder / "expected_steps.safetensors",
                      {key: torch.tensor(record[key]) for key in ("loss", "grad_norm")} | after)
    print(f"{name:11} loss", *(f"{x:.6f}" for x in record["loss"]), " norm",
          *(f"{x:.6f}" for x in record["grad_norm"]))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    for name, config in (CONFIGS | decoders.CONFIGS).items():
        make(name, config, (folder.parent if folder.is_file() else folder) / name)


if __name__ == "__main__":
    main()
