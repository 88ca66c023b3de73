"""Decoders that differ from llama in more than sizes, for make_vectors.py.

Each family is written here from its paper or report, with the parameter names and layouts of
transformers:

  gemma2   arXiv 2408.00118: norms before and after attention and MLP, with a factor of 1 + weight;
           GEGLU; embeddings times the root of the width; soft-capped scores and logits; every
           second layer attends to all tokens, the others to a window
  gemma3_text  arXiv 2503.19786: gemma2 without caps, with norms of heads; most layers have a window
           and another rotary base
  phi3     arXiv 2404.14219: llama with one matrix for query, key and value and one for gate and up,
           rotary positions on a part of each head, a window
  gpt_neox arXiv 2204.06745: attention and MLP in parallel, LayerNorm, GELU by the error function,
           rotary positions on a part of each head
  olmo2    arXiv 2501.00656: norms only after attention and MLP; one norm over all queries of a token
           and one over all its keys
  opt      arXiv 2205.01068: learned positions that begin at the third row, ReLU
  bloom    arXiv 2211.05100: ALiBi (arXiv 2108.12409), a norm of the embeddings
  glm4     norms before and after, rotary positions on pairs of neighbours of half of each head
  smollm3  llama without rotary positions in every n-th layer (arXiv 2501.18795)
"""
import math

import torch
import torch.nn.functional as F

NEW = {"max_position_embeddings": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA = NEW | {
    "num_key_value_heads": 2, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True}
CONFIGS = {
    "gemma2": GEMMA | {
        "model_type": "gemma2", "vocab_size": 67, "hidden_size": 24, "intermediate_size": 22,
        "head_dim": 10, "rope_theta": 500.0, "query_pre_attn_scalar": 7, "sliding_window": 6,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gemma3_text": GEMMA | {
        "model_type": "gemma3_text", "vocab_size": 59, "hidden_size": 20, "intermediate_size": 26,
        "num_hidden_layers": 4, "head_dim": 8, "rope_theta": 1000.0, "rope_local_base_freq": 50.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "query_pre_attn_scalar": 8,
        "sliding_window": 5, "sliding_window_pattern": 3},
    "phi3": NEW | {
        "model_type": "phi3", "vocab_size": 53, "hidden_size": 32, "intermediate_size": 18,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "partial_rotary_factor": 0.5, "sliding_window": 9, "tie_word_embeddings": False},
    "gpt_neox": NEW | {
        "model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 44,
        "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.5, "rotary_emb_base": 10000,
        "use_parallel_residual": True, "tie_word_embeddings": False},
    "olmo2": NEW | {
        "model_type": "olmo2", "vocab_size": 47, "hidden_size": 24, "intermediate_size": 28,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 5e3,
        "tie_word_embeddings": False},
    "opt": NEW | {
        "model_type": "opt", "vocab_size": 57, "hidden_size": 20, "word_embed_proj_dim": 20,
        "ffn_dim": 38, "activation_function": "relu", "do_layer_norm_before": True,
        "tie_word_embeddings": True},
    "bloom": {
        "model_type": "bloom", "vocab_size": 43, "seq_length": 20, "hidden_size": 24, "n_layer": 2,
        "n_head": 6, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "glm4": NEW | {
        "model_type": "glm4", "vocab_size": 51, "hidden_size": 24, "intermediate_size": 20,
        "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_bias": True,
        "tie_word_embeddings": False},
    "smollm3": NEW | {
        "model_type": "smollm3", "vocab_size": 63, "hidden_size": 16, "intermediate_size": 30,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "no_rope_layer_interval": 2, "tie_word_embeddings": True},
}
NORMS = {"gemma2": 0.0, "gemma3_text": 0.0}  # mean of the random weights of norms, if not 1
# Names of the layers and of the parameters outside layers, where they differ from those of llama.
LAYERS = {"gpt_neox": "gpt_neox.layers", "opt": "model.decoder.layers", "bloom": "transformer.h"}
WORDS = {"gpt_neox": "gpt_neox.embed_in", "opt": "model.decoder.embed_tokens",
         "bloom": "transformer.word_embeddings"}
LAST = {"gpt_neox": "gpt_neox.final_layer_norm", "opt": "model.decoder.final_layer_norm",
        "bloom": "transformer.ln_f"}
HEAD = {"gpt_neox": "embed_out"}
BIASED = ("gpt_neox", "opt", "bloom")  # LayerNorm, and biases everywhere
SANDWICH = {
    "gemma2": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
               "post_feedforward_layernorm"),
    "glm4": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
             "post_mlp_layernorm")}
SANDWICH["gemma3_text"] = SANDWICH["gemma2"]


def length_of(c):
    return c.get("max_position_embeddings", c.get("seq_length"))


def slopes(n):
    """ALiBi slopes of n heads: a geometric sequence for the first p heads, the largest power of two;
    every second number of the sequence for 2 p heads for the others."""
    p = 2 ** math.floor(math.log2(n))
    first = [2 ** (-8 * (i + 1) / p) for i in range(p)]
    return torch.tensor(first + [2 ** (-4 * (2 * i + 1) / p) for i in range(n - p)],
                        dtype=torch.float64)


class Decoder:
    def __init__(self, c, w=None):
        self.c, self.w, self.kind = c, w, c["model_type"]
        self.h = c["hidden_size"]
        self.n = c.get("num_hidden_layers", c.get("n_layer"))
        self.a = c.get("num_attention_heads", c.get("n_head"))
        self.g = c.get("num_key_value_heads", self.a)
        self.d = c.get("head_dim", self.h // self.a)
        self.f = c.get("intermediate_size", c.get("ffn_dim", 4 * self.h))
        self.eps = c.get("rms_norm_eps", c.get("layer_norm_eps", c.get("layer_norm_epsilon", 1e-5)))
        self.at = LAYERS.get(self.kind, "model.layers")

    # ------------------------------------------------------------------------- shapes

    def linear_shapes(self, name, rows, columns, bias):
        return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})

    def norm_shapes(self, name, width=None):
        width, biased = width or self.h, self.kind in BIASED
        return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if biased else {})

    def attention_shapes(self, at):
        q, kv, biased = self.a * self.d, self.g * self.d, self.kind in BIASED
        if self.kind in ("gpt_neox", "bloom"):
            inner = "attention" if self.kind == "gpt_neox" else "self_attention"
            return (self.linear_shapes(f"{at}.{inner}.query_key_value", q + 2 * kv, self.h, True)
                    | self.linear_shapes(f"{at}.{inner}.dense", self.h, q, True))
        at += ".self_attn"
        out = self.linear_shapes(f"{at}.{'out' if biased else 'o'}_proj", self.h, q, biased)
        if self.kind == "phi3":
            return self.linear_shapes(f"{at}.qkv_proj", q + 2 * kv, self.h, False) | out
        bias = biased or self.c.get("attention_bias", False)
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            out |= self.linear_shapes(f"{at}.{name}", rows, self.h, bias)
        if self.kind == "gemma3_text":
            out |= {f"{at}.q_norm.weight": (self.d,), f"{at}.k_norm.weight": (self.d,)}
        if self.kind == "olmo2":
            out |= {f"{at}.q_norm.weight": (q,), f"{at}.k_norm.weight": (kv,)}
        return out

    def mlp_names(self, at):
        if self.kind in ("gpt_neox", "bloom"):
            return f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h"
        if self.kind == "opt":
            return f"{at}.fc1", f"{at}.fc2"
        return f"{at}.mlp.gate_up_proj", f"{at}.mlp.down_proj"

    def mlp_shapes(self, at):
        up, down = self.mlp_names(at)
        biased = self.kind in BIASED
        out = self.linear_shapes(down, self.h, self.f, biased)
        if biased:
            return out | self.linear_shapes(up, self.f, self.h, True)
        if self.kind in ("phi3", "glm4"):
            return out | self.linear_shapes(up, 2 * self.f, self.h, False)
        return (out | self.linear_shapes(f"{at}.mlp.gate_proj", self.f, self.h, False)
                | self.linear_shapes(f"{at}.mlp.up_proj", self.f, self.h, False))

    def norm_names(self):
        if self.kind in SANDWICH:
            return SANDWICH[self.kind]
        if self.kind == "opt":
            return "self_attn_layer_norm", "final_layer_norm"
        if self.kind == "olmo2":
            return "post_attention_layernorm", "post_feedforward_layernorm"
        return "input_layernorm", "post_attention_layernorm"

    def shapes(self):
        v, words = self.c["vocab_size"], WORDS.get(self.kind, "model.embed_tokens")
        out = {f"{words}.weight": (v, self.h)}
        if self.kind == "opt":
            out["model.decoder.embed_positions.weight"] = (length_of(self.c) + 2, self.h)
        if self.kind == "bloom":
            out |= self.norm_shapes("transformer.word_embeddings_layernorm")
        for i in range(self.n):
            at = f"{self.at}.{i}"
            for name in self.norm_names():
                out |= self.norm_shapes(f"{at}.{name}")
            out |= self.attention_shapes(at) | self.mlp_shapes(at)
        out |= self.norm_shapes(LAST.get(self.kind, "model.norm"))
        if not self.c["tie_word_embeddings"]:
            out[f"{HEAD.get(self.kind, 'lm_head')}.weight"] = (v, self.h)
        return out

    # ------------------------------------------------------------------------ forward

    def linear(self, x, name):
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def norm(self, x, name):
        weight = self.w[f"{name}.weight"]
        if self.kind in BIASED:
            return F.layer_norm(x, x.shape[-1:], weight, self.w[f"{name}.bias"], self.eps)
        if self.kind.startswith("gemma"):
            weight = weight + 1
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def is_local(self, i):
        every = self.c.get("sliding_window_pattern", 2 if self.kind == "gemma2" else 0)
        return bool(every) and (i + 1) % every != 0

    def rotate(self, x, i):
        """x: (batch, heads, tokens, width)."""
        if self.kind in ("opt", "bloom"):
            return x
        if self.kind == "smollm3" and (i + 1) % self.c["no_rope_layer_interval"] == 0:
            return x
        share = self.c.get("rotary_pct", self.c.get("partial_rotary_factor", 1.0))
        r = int(self.d * share)
        base, slower = self.c.get("rope_theta", self.c.get("rotary_emb_base")), 1.0
        if self.kind == "gemma3_text":
            slower = self.c["rope_scaling"]["factor"]
            if self.is_local(i):
                base, slower = self.c["rope_local_base_freq"], 1.0
        speed = base ** (-torch.arange(0, r, 2, dtype=torch.float64) / r) / slower
        angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * speed
        turned, rest = x[..., :r], x[..., r:]
        if self.kind == "glm4":  # pairs of neighbours
            low, high = turned[..., 0::2], turned[..., 1::2]
        else:
            low, high = turned[..., :r // 2], turned[..., r // 2:]
        to_low = low * angle.cos() - high * angle.sin()
        to_high = high * angle.cos() + low * angle.sin()
        if self.kind == "glm4":
            return torch.cat((torch.stack((to_low, to_high), -1).flatten(-2), rest), -1)
        return torch.cat((to_low, to_high, rest), -1)

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.d)).transpose(1, 2)

    def queries_keys_values(self, y, at):
        q, kv = self.a * self.d, self.g * self.d
        if self.kind in ("gpt_neox", "bloom"):  # q, k and v of each head side by side
            inner = "attention" if self.kind == "gpt_neox" else "self_attention"
            both = self.linear(y, f"{at}.{inner}.query_key_value")
            parts = both.unflatten(-1, (self.a, 3, self.d))
            return [parts[..., j, :].transpose(1, 2) for j in range(3)]
        at += ".self_attn"
        if self.kind == "phi3":
            parts = self.linear(y, f"{at}.qkv_proj").split((q, kv, kv), -1)
        else:
            parts = [self.linear(y, f"{at}.{name}_proj") for name in "qkv"]
        if self.kind == "olmo2":
            parts = [self.norm(parts[0], f"{at}.q_norm"), self.norm(parts[1], f"{at}.k_norm"),
                     parts[2]]
        heads = [self.split(x, n) for x, n in zip(parts, (self.a, self.g, self.g))]
        if self.kind == "gemma3_text":
            heads = [self.norm(heads[0], f"{at}.q_norm"), self.norm(heads[1], f"{at}.k_norm"),
                     heads[2]]
        return heads

    def scores(self, q, k, i):
        t = q.shape[2]
        x = q @ k.transpose(-1, -2) / math.sqrt(self.c.get("query_pre_attn_scalar", self.d))
        away = torch.arange(t)[:, None] - torch.arange(t)
        cap = self.c.get("attn_logit_softcapping")
        if cap:
            x = cap * torch.tanh(x / cap)
        if self.kind == "bloom":
            x = x - slopes(self.a)[:, None, None] * away
        hidden = away < 0
        if self.kind == "phi3" or self.is_local(i):
            hidden = hidden | (away >= self.c["sliding_window"])
        return x.masked_fill(hidden, -math.inf)

    def attend(self, y, at, i):
        q, k, v = self.queries_keys_values(y, at)
        q, k = self.rotate(q, i), self.rotate(k, i)
        k, v = (x.repeat_interleave(self.a // self.g, 1) for x in (k, v))
        o = (self.scores(q, k, i).softmax(-1) @ v).transpose(1, 2).flatten(2)
        name = {"gpt_neox": "attention.dense", "bloom": "self_attention.dense",
                "opt": "self_attn.out_proj"}.get(self.kind, "self_attn.o_proj")
        return self.linear(o, f"{at}.{name}")

    def mlp(self, y, at):
        up, down = self.mlp_names(at)
        if self.kind in BIASED:
            act = {"opt": F.relu, "gpt_neox": F.gelu}.get(self.kind)
            u = self.linear(y, up)
            u = act(u) if act else F.gelu(u, approximate="tanh")
            return self.linear(u, down)
        if self.kind in ("phi3", "glm4"):
            gate, up = self.linear(y, up).chunk(2, -1)
        else:
            gate, up = (self.linear(y, f"{at}.mlp.{x}_proj") for x in ("gate", "up"))
        tanh = self.kind.startswith("gemma")
        return self.linear((F.gelu(gate, approximate="tanh") if tanh else F.silu(gate)) * up, down)

    def layer(self, x, i):
        at, names = f"{self.at}.{i}", self.norm_names()

        def norm(y, which):
            return self.norm(y, f"{at}.{names[which]}")
        if self.kind in SANDWICH:
            x = x + norm(self.attend(norm(x, 0), at, i), 1)
            return x + norm(self.mlp(norm(x, 2), at), 3)
        if self.kind == "olmo2":
            x = x + norm(self.attend(x, at, i), 0)
            return x + norm(self.mlp(x, at), 1)
        if self.kind == "gpt_neox":
            return x + self.attend(norm(x, 0), at, i) + self.mlp(norm(x, 1), at)
        x = x + self.attend(norm(x, 0), at, i)
        return x + self.mlp(norm(x, 1), at)

    def logits(self, ids):
        words = self.w[f"{WORDS.get(self.kind, 'model.embed_tokens')}.weight"]
        x = F.embedding(ids, words)
        if self.kind.startswith("gemma"):
            x = x * math.sqrt(self.h)
        if self.kind == "opt":
            x = x + self.w["model.decoder.embed_positions.weight"][2:2 + ids.shape[1]]
        if self.kind == "bloom":
            x = self.norm(x, "transformer.word_embeddings_layernorm")
        for i in range(self.n):
            x = self.layer(x, i)
        x = self.norm(x, LAST.get(self.kind, "model.norm"))
        head = words if self.c["tie_word_embeddings"] else \
            self.w[f"{HEAD.get(self.kind, 'lm_head')}.weight"]
        x = F.linear(x, head)
        cap = self.c.get("final_logit_softcapping")
        return cap * torch.tanh(x / cap) if cap else x
