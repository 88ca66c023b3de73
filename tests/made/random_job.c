#include "tests/made/random_job.h"
#include "core/job/flags.h"
#include "core/base/zigzag.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint32_t
up_to (GRand *rand, uint32_t n)
{
  return g_rand_int_range (rand, 0, n + 1);
}

static gboolean
one_in (GRand *rand, uint32_t n)
{
  return up_to (rand, n - 1) == 0;
}

static uint32_t
pick (GRand *rand, const uint32_t *from, uint32_t n)
{
  return from[up_to (rand, n - 1)];
}

#define PICK(rand, ...)                                                                            \
  pick (rand, (const uint32_t[]){ __VA_ARGS__ },                                                   \
        sizeof ((const uint32_t[]){ __VA_ARGS__ }) / sizeof (uint32_t))

static void
add (GString *words, const char *key, uint32_t value)
{
  g_string_append_printf (words, " %s=%u", key, value);
}

static void
add_word (GString *words, const char *key, const char *value)
{
  g_string_append_printf (words, " %s=%s", key, value);
}

/* Sets a Boolean knob in one of `n` jobs. Returns whether the knob is set in this job. */
static gboolean
flip (GString *words, GRand *rand, uint32_t n, const char *key)
{
  if (!one_in (rand, n))
    return FALSE;
  add_word (words, key, "true");
  return TRUE;
}

static uint32_t
divisor (GRand *rand, uint32_t of, uint32_t most)
{
  uint32_t d;

  do
    d = 1 + up_to (rand, most - 1);
  while (of % d);
  return d;
}

/* Appends a random topology and number of GPUs to the job. Returns the number of GPUs. */
static uint32_t
random_cluster (GString *words, GRand *rand)
{
  static const char *const names[] = { "dgx-h100", "dgx-a100", "l40s-pcie", "gb200-nvl72", "cpu" };
  uint32_t which = up_to (rand, G_N_ELEMENTS (names) - 1), node = which == 3 ? 72 : 8;
  gboolean one_node = which >= 3;

  add_word (words, "topology", names[which]);
  if (which == 4 || one_in (rand, 4)) {
    uint32_t few = 1 + up_to (rand, which == 4 ? 23 : 7);
    add (words, "gpus", few);
    return few;
  }
  if (which == 3 && one_in (rand, 2)) {
    node = PICK (rand, 4, 9, 12);
    one_node = FALSE;
    add (words, "node_gpus", node);
  } else if (which < 3 && one_in (rand, 3)) {
    node = PICK (rand, 1, 2, 3, 4, 5, 6);
    add (words, "node_gpus", node);
    add (words, "node_nics", PICK (rand, 1, 2, node));
  }
  uint32_t gpus = one_node ? 1 + up_to (rand, 63) : node * (1 + up_to (rand, 64 / node - 1));
  add (words, "gpus", gpus);
  if (!one_node && one_in (rand, 2)) {
    add (words, "fabric_nodes_per_unit", PICK (rand, 1, 2, 3));
    add (words, "fabric_units_per_pod", PICK (rand, 1, 2, 4));
    add (words, "fabric_leaf_oversubscription", PICK (rand, 1, 2, 3));
    add (words, "fabric_spine_oversubscription", PICK (rand, 1, 2, 4));
  }
  return gpus;
}

/* Appends a model to the job. Returns its number of layers per stage. */
static uint32_t
random_model (GString *words, GRand *rand, uint32_t stages)
{
  static const char *const activations[] = { "gelu", "swiglu", "squared_relu" };

  if (8 % stages == 0 && one_in (rand, 3)) {
    add_word (words, "model", one_in (rand, 2) ? "llama-nano" : "gpt2-nano");
    return 8 / stages;
  }
  uint32_t heads = PICK (rand, 1, 2, 3, 4, 8), width = PICK (rand, 4, 8, 16, 32);
  uint32_t per_stage = 1 + up_to (rand, MAX (12 / stages, 1) - 1);
  add (words, "num_layers", per_stage * stages);
  add (words, "hidden_size", MAX (8, heads * width));
  add (words, "num_attention_heads", heads);
  add (words, "num_query_groups", divisor (rand, heads, heads));
  add (words, "kv_channels", width);
  add (words, "ffn_hidden_size", 8 * (1 + up_to (rand, 31)));
  add (words, "vocab_size", 50 + up_to (rand, 950));
  add (words, "seq_length", PICK (rand, 8, 16, 31, 64, 128));
  add_word (words, "activation", activations[up_to (rand, 2)]);
  add_word (words, "normalization", one_in (rand, 2) ? "layernorm" : "rmsnorm");
  add_word (words, "position_embedding_type", one_in (rand, 2) ? "learned" : "rope");
  flip (words, rand, 2, "share_embeddings_and_output_weights");
  flip (words, rand, 2, "add_bias_linear");
  flip (words, rand, 2, "add_qkv_bias");
  flip (words, rand, 3, "qk_layernorm");
  return per_stage;
}

/* Whether the job contains one of the words `knobs`, which end with NULL. */
static gboolean
has_any (const GString *words, const char *const *knobs)
{
  for (; *knobs; knobs++)
    if (strstr (words->str, *knobs))
      return TRUE;
  return FALSE;
}

/* Appends multi-head latent attention with small latents to some jobs that allow it. */
static void
random_latents (GString *words, GRand *rand)
{
  static const char *const without[] = {
    "nano", "qk_layernorm", "add_qkv_bias", "add_bias_linear", "position_embedding_type=learned",
    NULL
  };

  if (has_any (words, without) || !one_in (rand, 2))
    return;
  add (words, "kv_lora_rank", PICK (rand, 4, 12, 16));
  add (words, "q_lora_rank", PICK (rand, 0, 8, 24));
  add (words, "qk_head_dim", PICK (rand, 4, 8));
  add (words, "qk_pos_emb_head_dim", PICK (rand, 2, 4, 8));
  add (words, "v_head_dim", PICK (rand, 4, 8, 10));
}

static uint32_t
drawn (const GString *words, const char *knob, uint32_t unknown)
{
  const char *at = strstr (words->str, knob);
  return at ? (uint32_t) g_ascii_strtoull (at + strlen (knob), NULL, 10) : unknown;
}

/* With tensor parallelism, chooses whether each tensor parallel rank holds a part of every expert,
 * or experts are whole (expert_tensor_parallel_size = 1). Whole experts make more ranks available
 * for expert parallelism: returns the factor by which there are more, or 1. */
static uint32_t
random_parts (GString *words, GRand *rand)
{
  uint32_t tensor = drawn (words, "tensor_model_parallel_size=", 1);

  if (tensor == 1 || one_in (rand, 4))
    return 1;
  add (words, "expert_tensor_parallel_size", 1);
  return tensor;
}

/* Appends experts to the job. If its data-parallel strategy supports expert parallelism, they may
 * be on several ranks. */
static void
random_experts (GString *words, GRand *rand, uint32_t replicas)
{
  static const char *const only_whole[] = { "distributed_config=ddp", "offload_policy=cpu", NULL };
  uint32_t ranks = one_in (rand, 3) ? 1 : divisor (rand, replicas, MIN (replicas, 8));
  uint32_t topk = 1 + up_to (rand, 2);

  if (!one_in (rand, 3) || strstr (words->str, "nano") || strstr (words->str, "add_bias_linear"))
    return;
  if (drawn (words, "tensor_model_parallel_size=", 1) > 1 &&
      !strstr (words->str, "sequence_parallel"))
    return;
  if (has_any (words, only_whole))
    ranks = 1;
  else
    ranks *= random_parts (words, rand);
  add (words, "num_moe_experts", ranks * PICK (rand, 3, 4, 6));
  add (words, "moe_router_topk", topk);
  add (words, "moe_ffn_hidden_size", 8 * (1 + up_to (rand, 7)));
  if (one_in (rand, 3)) {
    add (words, "moe_shared_expert_intermediate_size", 8 * (1 + up_to (rand, 7)));
    flip (words, rand, 2, "moe_shared_expert_gate");
  }
  flip (words, rand, 5, "moe_apply_probs_on_input");
  if (one_in (rand, 4))
    add (words, "moe_first_dense_layers", 1);
  if (one_in (rand, 3)) {
    add_word (words, "moe_router_score_function", "sigmoid");
    flip (words, rand, 2, "moe_router_enable_expert_bias");
  }
  add (words, "expert_model_parallel_size", ranks);
  gboolean whole = strstr (words->str, "expert_tensor_parallel_size=1") ||
                   drawn (words, "tensor_model_parallel_size=", 1) == 1;
  if (ranks > 1 && whole && one_in (rand, 3))
    add_word (words, "moe_token_dispatcher_type", "flex");
  if (one_in (rand, 4)) {
    add_word (words, "moe_expert_capacity_factor", one_in (rand, 2) ? "0.7" : "1.5");
    flip (words, rand, 2, "moe_pad_expert_input_to_capacity");
  }
  if (one_in (rand, 4))
    add_word (words, "moe_load_imbalance", "1.3");
}

/* Appends a schedule that splits the backward pass. Returns its number of chunks per rank. */
static uint32_t
random_split (GString *words, GRand *rand)
{
  uint32_t split[WEFT_N_SCHEDULE], n = 0;

  for (uint32_t i = 0; i < WEFT_N_SCHEDULE; i++)
    if (weft_schedules[i].splits_backward)
      split[n++] = i;
  uint32_t which = split[up_to (rand, n - 1)];
  add_word (words, "pipeline_schedule", weft_schedule_words[which]);
  if (which == WEFT_SCHEDULE_ZB_AUTO && one_in (rand, 2))
    add (words, "zero_bubble_max_pending_backward", 1 + up_to (rand, 6));
  return MAX (1, weft_schedules[which].chunks);
}

/* Makes a model of `layers` layers on each of `stages` stages one or two layers shorter. Then
 * embedding or loss count as a layer, or pipeline_model_parallel_layout states the layers of each
 * stage. */
static void
random_ends (GString *words, GRand *rand, uint32_t layers, uint32_t stages)
{
  gboolean first = one_in (rand, 2), both = one_in (rand, 3);

  if (one_in (rand, 2)) {
    g_string_append (words, " pipeline_model_parallel_layout=E");
    for (uint32_t stage = 0; stage < stages; stage++)
      g_string_append_printf (words, "%st*%u", stage ? "|" : "", layers - (stage == 0));
    g_string_append_c (words, 'L');
    both = FALSE;
  } else {
    if (first || both)
      add_word (words, "account_for_embedding_in_pipeline_split", "true");
    if (!first || both)
      add_word (words, "account_for_loss_in_pipeline_split", "true");
  }
  add (words, "num_layers", layers * stages - 1 - both);
}

/* In some jobs, assigns unequal numbers of layers to the stages. `layers`: layers of each chunk if
 * they were equal. */
static void
random_stages (GString *words, GRand *rand, uint32_t layers, uint32_t stages, uint32_t chunks)
{
  if (layers < 2 || !one_in (rand, 4))
    return;
  if (chunks > 1 || one_in (rand, 2)) {
    random_ends (words, rand, layers, stages * chunks);
    return;
  }
  add (words, "decoder_first_pipeline_num_layers", layers - 1);
  add (words, "decoder_last_pipeline_num_layers", layers + 1);
}

/* Appends virtual pipeline stages or a split schedule to some jobs. Returns the number of chunks
 * per rank. */
static uint32_t
random_chunks (GString *words, GRand *rand, uint32_t stages)
{
  uint32_t chunks = PICK (rand, 2, 2, 3, 4);

  if (stages > 1 && one_in (rand, 3))
    return random_split (words, rand);
  if (stages < 2 || stages * chunks > 12 || !one_in (rand, 2))
    return 1;
  add (words, "virtual_pipeline_model_parallel_size", chunks);
  if (stages == 2 || one_in (rand, 2)) {
    add_word (words, "batch_p2p_comm", "false");
    add_word (words, "overlap_p2p_comm", "true");
    flip (words, rand, 2, "overlap_p2p_comm_warmup_flush");
  }
  if (one_in (rand, 4))
    add (words, "microbatch_group_size_per_vp_stage", stages + up_to (rand, 1));
  return chunks;
}

static void
random_precision (GString *words, GRand *rand)
{
  static const char *const types[] = { "fp32", "bf16", "bf16", "fp16" };
  static const char *const scales[] = { "64", "1024", "none" };
  const char *type = one_in (rand, 8) ? "fp8" : types[up_to (rand, 3)];

  add_word (words, "precision", type);
  if (g_str_equal (type, "fp32") && flip (words, rand, 3, "enable_autocast"))
    add_word (words, "autocast_dtype", one_in (rand, 2) ? "bf16" : "fp16");
  if (g_str_equal (type, "fp16") ? one_in (rand, 2) : one_in (rand, 8))
    add_word (words, "loss_scale", scales[up_to (rand, 2)]);
}

static void
random_batch (GString *words, GRand *rand, uint32_t replicas, uint32_t stages)
{
  uint32_t micro = 1 + up_to (rand, 2), most = one_in (rand, 4) ? 3 * stages : stages + 1;
  uint32_t micros = 1 + up_to (rand, MIN (most, 12) - 1);

  /* Canonical order adds microbatches pairwise, so their number must be a power of two, and so must
   * their size. */
  if (one_in (rand, 3)) {
    micro = PICK (rand, 1, 2, 4);
    micros = PICK (rand, 1, 2, 4, 8);
  }
  /* in three of four jobs, the number of microbatches that the schedule needs to fill the
   * pipeline */
  if (!one_in (rand, 4))
    micros = strstr (words->str, "virtual_pipeline") ? stages * (1 + up_to (rand, 1))
             : strstr (words->str, "dualpipe")       ? 2 * stages
                                                     : micros;
  add (words, "micro_batch_size", micro);
  add (words, "global_batch_size", micro * replicas * micros);
  if (one_in (rand, 3) && !strstr (words->str, "reduction_order="))
    add_word (words, "reduction_order", one_in (rand, 2) ? "fast" : "canonical");
  random_precision (words, rand);
  if (one_in (rand, 4))
    add_word (words, "clip_grad", "0 memory_headroom=0.1");
}

/* Appends hybrid sharding to some jobs: several instances of at least two replicas each. */
static void
random_outer (GString *words, GRand *rand, uint32_t replicas, uint32_t level)
{
  if (replicas < 4 || !one_in (rand, 2))
    return;
  add (words, "num_distributed_optimizer_instances", divisor (rand, replicas, replicas / 2));
  if (level == 3 && one_in (rand, 2))
    add_word (words, "outer_dp_sharding_strategy", "optim");
}

static void
random_units (GString *words, GRand *rand, uint32_t replicas)
{
  uint32_t level = up_to (rand, 3);

  add_word (words, "use_megatron_fsdp", "true");
  add (words, "zero_dp_strategy", level);
  if (one_in (rand, 3))
    add_word (words, "data_parallel_sharding_strategy", weft_sharding_words[level]);
  if (level == 1 && flip (words, rand, 2, "overlap_param_gather"))
    add_word (words, "overlap_grad_reduce", "true");
  random_outer (words, rand, replicas, level);
  if (one_in (rand, 3))
    add_word (words, "gradient_reduce_div_fusion", "false");
  if (level > 0 && flip (words, rand, 3, "fp8_param_gather"))
    flip (words, rand, 2, "keep_fp8_transpose_cache");
  else if (one_in (rand, 4) && !strstr (words->str, "precision=fp16"))
    add_word (words, "preserve_fp32_weights",
              one_in (rand, 2) ? "false" : "false bf16_stochastic_round=true");
  if (level > 0)
    flip (words, rand, 4, "init_fsdp_with_meta_device");
  if (level == 3 && flip (words, rand, 3, "fsdp_double_buffer"))
    flip (words, rand, 2, "nccl_ub");
  if (one_in (rand, 2))
    add (words, "suggested_communication_unit_size", PICK (rand, 1, 5000, 100000, 4000000));
}

static void
random_wrapper (GString *words, GRand *rand, uint32_t replicas)
{
  gboolean sharded = flip (words, rand, 2, "use_distributed_optimizer");
  gboolean overlapped = flip (words, rand, 2, "overlap_grad_reduce");

  if (flip (words, rand, 6, "nccl_ub"))
    flip (words, rand, 2, "disable_symmetric_registration");
  flip (words, rand, sharded && overlapped ? 2 : 20, "overlap_param_gather");
  if (sharded && flip (words, rand, 3, "fp8_param_gather") &&
      !(strstr (words->str, "precision=fp8") && strstr (words->str, "context_parallel_size=")))
    flip (words, rand, 2, "reuse_grad_buf_for_mxfp8_param_ag");
  if (sharded && flip (words, rand, 4, "reduce_scatter_with_fp32_accumulation"))
    return;
  if (sharded && one_in (rand, 3))
    add (words, "num_distributed_optimizer_instances", divisor (rand, replicas, replicas));
}

static void
random_fsdp2 (GString *words, GRand *rand, uint32_t replicas)
{
  static const char *const types[] = { "fp32", "bf16" };

  add_word (words, "distributed_config", "fsdp2");
  if (one_in (rand, 3))
    add_word (words, "defer_fsdp_grad_sync", "false");
  if (flip (words, rand, 2, "enable_fsdp2_prefetch")) {
    add (words, "fsdp2_forward_prefetch_depth", up_to (rand, 3));
    add (words, "fsdp2_backward_prefetch_depth", up_to (rand, 3));
  }
  if (one_in (rand, 3))
    add (words, "dp_replicate_size", divisor (rand, replicas, replicas));
  if (one_in (rand, 3)) {
    add_word (words, "offload_policy", "cpu");
    add_word (words, "offload_policy_pin_memory", one_in (rand, 2) ? "true" : "false");
  }
  if (one_in (rand, 3))
    add_word (words, "mp_policy_reduce_dtype", types[up_to (rand, 1)]);
  if (one_in (rand, 3))
    add_word (words, "mp_policy_output_dtype", types[up_to (rand, 1)]);
}

static gboolean
scales_loss (const GString *words)
{
  return strstr (words->str, "precision=fp16") || strstr (words->str, "loss_scale=");
}

/* Appends a PyTorch strategy (DDP or FSDP2) to some jobs. Returns whether the job has a PyTorch
 * strategy, which excludes Megatron-Core's knobs. */
static gboolean
random_torch (GString *words, GRand *rand, uint32_t replicas)
{
  if (!one_in (rand, 4))
    return FALSE;
  if (one_in (rand, 4) || scales_loss (words))
    add_word (words, "distributed_config", "ddp");
  else
    random_fsdp2 (words, rand, replicas);
  return TRUE;
}

static void
random_data_parallel (GString *words, GRand *rand, uint32_t replicas)
{
  if (random_torch (words, rand, replicas))
    return;
  if (one_in (rand, 3))
    random_units (words, rand, replicas);
  else
    random_wrapper (words, rand, replicas);
  if (one_in (rand, 2))
    add (words, "bucket_size", PICK (rand, 1, 3000, 20000, 100000));
  flip (words, rand, 4, "pad_buckets_for_high_nccl_busbw");
  flip (words, rand, 6, "disable_bucketing");
  if (!flip (words, rand, 3, "average_in_collective"))
    flip (words, rand, 4, "calculate_per_token_loss");
  flip (words, rand, 2, "grad_reduce_in_fp32");
  flip (words, rand, 2, "gradient_accumulation_fusion");
  flip (words, rand, 6, "check_for_nan_in_grad");
  flip (words, rand, 8, "check_for_large_grads");
}

static void
random_recompute (GString *words, GRand *rand, uint32_t stage_layers)
{
  static const char *const modules[] = { "mlp", "layernorm", "core_attn,mlp", "layernorm,mlp" };
  static const char *const of_experts[] = { "moe", "moe_act", "moe_act,layernorm",
                                            "moe,layernorm" };
  gboolean moe = strstr (words->str, "num_moe_experts=") && one_in (rand, 2);

  flip (words, rand, 5, "delay_wgrad_compute");
  flip (words, rand, 6, "enable_compile");
  if (!one_in (rand, 2) || flip (words, rand, 6, "activation_checkpointing"))
    return;
  if (one_in (rand, 3)) {
    add_word (words, "recompute_granularity", "selective");
    add_word (words, "recompute_modules", (moe ? of_experts : modules)[up_to (rand, 3)]);
    return;
  }
  add_word (words, "recompute_granularity", "full");
  add_word (words, "recompute_method", one_in (rand, 2) ? "uniform" : "block");
  if (one_in (rand, 3)) {
    add (words, "num_microbatches_with_partial_activation_checkpoints", up_to (rand, 3));
    add_word (words, "recompute_modules", (moe ? of_experts : modules)[up_to (rand, 3)]);
  }
  add (words, "recompute_num_layers", 1 + up_to (rand, stage_layers - (one_in (rand, 4) ? 0 : 1)));
}

/* Whether the GPU divides 16-bit gradients by the loss scale. */
static gboolean
divides_on_gpu (const GString *words)
{
  return scales_loss (words) && !strstr (words->str, "grad_reduce_in_fp32") &&
         !strstr (words->str, "precision=fp32");
}

static void
random_offload (GString *words, GRand *rand, uint32_t stages, uint32_t layers)
{
  static const char *const fractions[] = { "1", "0.5", "0.37", "0.01" };
  static const char *const no_state[] = { "offload_policy=cpu", "preserve_fp32_weights=false",
                                          "fp8_param_gather", NULL };
  static const char *const no_activations[] = { "recompute_", "activation_checkpointing", NULL };

  if (!has_any (words, no_state) && !divides_on_gpu (words) &&
      flip (words, rand, 4, "optimizer_cpu_offload")) {
    add_word (words, "optimizer_offload_fraction", fractions[up_to (rand, 3)]);
    flip (words, rand, 2, "overlap_cpu_optimizer_d2h_h2d");
    if (one_in (rand, 3))
      add_word (words, one_in (rand, 2) ? "pin_cpu_grads" : "pin_cpu_params", "false");
  }
  if (stages > 1 || has_any (words, no_activations) || !flip (words, rand, 3, "cpu_offloading"))
    return;
  add (words, "cpu_offloading_num_layers", up_to (rand, layers - 1));
  flip (words, rand, 2, "cpu_offloading_double_buffering");
}

static void
random_modes (GString *words, GRand *rand)
{
  flip (words, rand, 8, "deterministic_mode");
  if (!one_in (rand, 12))
    return;
  add_word (words, "timers", "standard");
  add (words, "timing_log_level", up_to (rand, 2));
  if (one_in (rand, 2))
    add_word (words, "barrier_with_L1_time", "false");
}

/* Adds overlap_moe_expert_parallel_comm (a forward and a backward pass run together) to jobs with
 * expert parallelism that support it. */
static void
random_turns (GString *words, uint32_t stages)
{
  static const char *const no_turns[] = { "precision=fp32",      "granularity=full",
                                          "cpu_offloading=true", "activation_checkpointing",
                                          "pipeline_schedule",   "use_megatron_fsdp",
                                          "distributed_config",  NULL };

  if (drawn (words, "expert_model_parallel_size=", 1) == 1 || has_any (words, no_turns))
    return;
  if (stages == 1 || strstr (words->str, "virtual_pipeline"))
    add_word (words, "overlap_moe_expert_parallel_comm", "true");
}

/* Changes the job so that nothing contends: collectives and transfers use no SMs, and every GPU has
 * its own PCIe switch and enough host bandwidth. */
static void
spread_out (GString *words)
{
  add (words, "collective_sms", 0);
  add (words, "p2p_sms", 0);
  add (words, "node_gpus_per_switch", 1);
  add_word (words, "node_host_bandwidth", "1PB/s");
}

static void
random_overlap (GString *words, GRand *rand)
{
  static const char *const plain[] = { "tp_comm_overlap_ag", "tp_comm_overlap_rs",
                                       "tp_comm_bulk_wgrad", "tp_comm_bulk_dgrad" };

  if (!flip (words, rand, 2, "sequence_parallel") || !flip (words, rand, 2, "tp_comm_overlap"))
    return;
  for (size_t i = 0; i < G_N_ELEMENTS (plain); i++)
    if (one_in (rand, 4))
      add_word (words, plain[i], "false");
  flip (words, rand, 3, "tp_comm_overlap_rs_dgrad");
  flip (words, rand, 3, "tp_comm_overlap_disable_qkv");
  flip (words, rand, 3, "tp_comm_overlap_disable_fc1");
}

/* Appends tensor parallelism to some jobs. Returns the number of ranks divided by the tensor
 * parallel size. */
static uint32_t
random_tensor (GString *words, GRand *rand, uint32_t ranks)
{
  uint32_t size = ranks % 4 ? 2 : PICK (rand, 2, 4, 4);

  uint32_t groups = drawn (words, "num_query_groups=", 2),
           width = drawn (words, "kv_channels=", 16);
  gboolean own = groups % size == 0;
  gboolean shared = size % groups == 0 && groups * width % size == 0 &&
                    drawn (words, "num_attention_heads=", 4) % size == 0;

  if (ranks % size || !(own || shared) || one_in (rand, 4))
    return ranks;
  add (words, "tensor_model_parallel_size", size);
  random_overlap (words, rand);
  if (flip (words, rand, 3, "cross_entropy_loss_fusion"))
    add_word (words, "cross_entropy_fusion_impl", one_in (rand, 2) ? "te" : "native");
  return ranks / size;
}

/* Appends context parallelism to some jobs. Returns the number of replicas. */
static uint32_t
random_context (GString *words, GRand *rand, uint32_t ranks)
{
  static const char *const kinds[] = { "p2p", "all_gather", "a2a", "a2a+p2p" };
  static const char *const sizes[] = { "1,2", "2,1", "2,2" };
  uint32_t size = ranks % 4 ? 2 : PICK (rand, 2, 4), kind = up_to (rand, 3);

  if (ranks % 2 || !one_in (rand, 4))
    return ranks;
  add (words, "context_parallel_size", size);
  add_word (words, "cp_comm_type", kinds[kind]);
  if (kind == 3)
    add_word (words, "hierarchical_context_parallel_sizes", sizes[size == 4 ? 2 : up_to (rand, 1)]);
  return ranks / size;
}

static void
random_attention (GString *words, GRand *rand)
{
  if (one_in (rand, 5))
    add_word (words, "hidden_dropout", "0.2");
  if (one_in (rand, 8)) {
    add_word (words, "attention_backend", "fused");
    return;
  }
  if (strstr (words->str, "context_parallel_size=") || strstr (words->str, "kv_lora_rank") ||
      !one_in (rand, 4))
    return;
  add_word (words, "attention_backend", "unfused");
  if (one_in (rand, 2))
    add_word (words, "attention_dropout", "0.1");
}

/* Whether the words name a schedule that splits the backward pass. */
static gboolean
splits_backward (const GString *words)
{
  for (uint32_t i = 0; i < WEFT_N_SCHEDULE; i++) {
    g_autofree char *word = g_strconcat ("pipeline_schedule=", weft_schedule_words[i], NULL);
    if (weft_schedules[i].splits_backward && strstr (words->str, word))
      return TRUE;
  }
  return FALSE;
}

/* In some jobs, aligns collectives of data parallelism with slots of the schedule, or defers the
 * weight gradients of the head to the end of the step. */
static void
random_slots (GString *words, GRand *rand)
{
  gboolean own = splits_backward (words) || strstr (words->str, "distributed_config") ||
                 strstr (words->str, "zero_dp_strategy=2") ||
                 strstr (words->str, "zero_dp_strategy=3");

  if (own)
    return;
  if (strstr (words->str, "overlap_grad_reduce=true") && one_in (rand, 3))
    add_word (words, "grad_sync_func", "aligned");
  if (strstr (words->str, "overlap_param_gather=true"))
    flip (words, rand, 2, "align_param_gather");
  if (strstr (words->str, "gradient_accumulation_fusion=true") &&
      flip (words, rand, 3, "defer_embedding_wgrad_compute"))
    add (words, "wgrad_deferral_limit", up_to (rand, 2));
}

/* Words that are appended to random jobs. A word is appended to one in `one_in` of the jobs that
 * contain all words of `with` and none of `without`. */
static const struct extra {
  const char *word;
  uint32_t one_in;
  const char *with[3], *without[9];
} extras[] = {
  { "use_te_rng_tracker=true", 12 },
  { "async_tensor_model_parallel_allreduce=true", 12 },
  { "tp_comm_split_ag=false", 12 },
  { "tp_comm_split_rs=false", 12 },
  { "tp_comm_bootstrap_backend=mpi", 12 },
  { "moe_extended_tp=true", 12 },
  { "use_cpu_initialization=true", 12 },
  { "perform_initialization=false", 12 },
  { "backend=gloo", 3, { "topology=cpu" } },
  { "bf16=true", 4, { " precision=bf16" } },
  { "fp16=true", 4, { " precision=fp16" } },
  { "params_dtype=bf16", 4, { " precision=bf16" } },
  { "params_dtype=fp32", 4, { " precision=fp32" } },
  { "fp8_format=e4m3", 2, { " precision=fp8" } },
  { "disable_parameter_transpose_cache=true", 3, { " precision=fp8" } },
  { "tp_comm_atomic_ag=true", 2, { " precision=fp8" } },
  { "tp_comm_atomic_rs=true", 2, { " precision=fp8" } },
  { "initial_loss_scale=65536", 2, { " precision=fp16" } },
  { "min_loss_scale=2 loss_scale_window=7 hysteresis=1", 2, { " precision=fp16" } },
  { "grad_scale_func=loss_scale",
    8,
    { NULL },
    { "=fsdp2", "optimizer_cpu_offload", "preserve_fp32_weights=false" } },
  { "mp_policy=mine", 4, { "=fsdp2" } },
  { "mp_policy_param_dtype=fp32", 2, { "=fsdp2", " precision=fp32" } },
  { "mp_policy_cast_forward_inputs=false", 2, { "=fsdp2", " precision=fp32" }, { "output_dtype" } },
  { "tp_plan=mine", 4, { "=fsdp2" } },
  { "patch_is_packed_sequence=true", 3, { "=fsdp2" } },
  { "megatron_fsdp_unit_modules=layer", 4, { "use_megatron_fsdp" } },
  { "megatron_fsdp_unit_modules=attention,mlp", 4, { "use_megatron_fsdp" } },
  { "megatron_fsdp_unit_modules=layer,embedding,head", 4, { "use_megatron_fsdp" } },
  { "make_vocab_size_divisible_by=16", 3, { "reduction_order=fast" } },
  { "enable_async_tensor_parallel=true", 2, { "sequence_parallel=true" }, { "tp_comm_overlap" } },
  { "cpu_offloading_weights=true", 4, { "cpu_offloading=true" } },
  { "cpu_offloading_activations=false", 2, { "cpu_offloading_weights=true" } },
  { "no_sync_func=mine", 8, { NULL }, { "overlap_grad_reduce", "use_megatron_fsdp" } },
  { "param_sync_func=aligned",
    2,
    { "overlap_param_gather=true", "virtual_pipeline" },
    { "zero_dp_strategy=3" } },
  { "finalize_model_grads_func=none",
    16,
    { NULL },
    { "use_megatron_fsdp", "distributed_config", "calculate_per_token_loss",
      "fp32_accumulation" } },
  { "pipeline_model_parallel_comm_backend=ucc", 6, { "pipeline_schedule" } },
  { "optimizer=muon",
    6,
    { NULL },
    { "distributed_config", "use_megatron_fsdp", "zero_dp_strategy", "num_moe_experts",
      "cpu_offload", "fp8_param_gather", "precision=fp16" } },
  { "muon_nesterov=true muon_split_qkv=false muon_momentum=0.9 muon_extra_scale_factor=0.2 "
    "muon_scale_mode=unit_rms_norm", 3, { "optimizer=muon" } },
  { "muon_tp_mode=blockwise muon_fp32_matmul_prec=highest muon_num_ns_steps=3 "
    "muon_coefficient_type=simple", 3,
    { "optimizer=muon", "reduction_order=fast" } },
  { "optimizer=adamw_8bit min_8bit_size=512",
    6,
    { NULL },
    { "optimizer=muon", "distributed_config", "use_megatron_fsdp", "zero_dp_strategy",
      "cpu_offload", "fp8_param_gather", "tensor_model_parallel_size=", "num_moe_experts" } },
  { "fused_loss=0", 4 },
  { "copies_gradients=1", 4 },
};

static void
random_extras (GString *words, GRand *rand)
{
  for (size_t i = 0; i < G_N_ELEMENTS (extras); i++) {
    const struct extra *e = &extras[i];
    gboolean fits = one_in (rand, e->one_in) && !has_any (words, e->without);
    for (const char *const *with = e->with; *with; with++)
      fits = fits && strstr (words->str, *with);
    if (fits)
      g_string_append_printf (words, " %s", e->word);
  }
}

/* Fuses head and loss in some jobs. Most of these jobs set the number of chunks: one per sequence,
 * or one per leaf (the part of a sequence whose terms canonical order sums in one chain). */
static void
random_head (GString *words, GRand *rand)
{
  static const char *const without[] = { "cross_entropy_loss_fusion", "defer_embedding",
                                         "deterministic_mode=true", NULL };
  uint32_t sequences = drawn (words, "micro_batch_size=", 1),
           leaves = weft_chunks (drawn (words, "seq_length=", 1)) /
                    drawn (words, "context_parallel_size=", 1);

  if (has_any (words, without) || !one_in (rand, 3))
    return;
  add_word (words, "cross_entropy_loss_fusion", "true");
  add_word (words, "cross_entropy_fusion_impl", "linear");
  if (one_in (rand, 3))
    return;
  add (words, "cross_entropy_chunks", one_in (rand, 2) ? sequences : sequences * MAX (1, leaves));
}

/* Appends an fp8 recipe to the job. A recipe with scales of blocks is left out for fp8 weights, for
 * tensors that are sent in pieces, and in canonical order with tensor or context parallelism,
 * because ranks would have other blocks than one rank. */
static void
random_recipe (GString *words, GRand *rand)
{
  static const char *const recipes[] = { "delayed", "tensorwise", "blockwise", "mxfp8" };
  static const char *const cuts[] = { "tensor_model_parallel_size=", "context_parallel_size=",
                                      NULL };
  static const char *const pieces[] = { "tp_comm_overlap=true", "enable_async_tensor_parallel=true",
                                        NULL };
  gboolean canonical = strstr (words->str, "reduction_order=canonical") != NULL;
  gboolean whole = has_any (words, pieces) || (canonical && has_any (words, cuts)) ||
                   strstr (words->str, "fp8_param_gather=true");

  if (!strstr (words->str, "precision=fp8"))
    return;
  if (strstr (words->str, "reuse_grad_buf_for_mxfp8_param_ag=true"))
    add_word (words, "fp8_recipe", "mxfp8");
  else
    add_word (words, "fp8_recipe", recipes[up_to (rand, whole ? 1 : 3)]);
}

/* Appends a schedule file of other software (tests/data), with its 4 ranks and 4 microbatches. */
static void
random_file (GString *words, GRand *rand, uint32_t replicas, uint32_t stages)
{
  static const char *const other[] = { "distributed_config", "zero_dp_strategy=2",
                                       "zero_dp_strategy=3", "grad_sync_func",
                                       "defer_embedding",    NULL };

  if (stages != 4 || has_any (words, other) || !one_in (rand, 2))
    return;
  add (words, "global_batch_size", drawn (words, "micro_batch_size=", 1) * replicas * 4);
  add_word (words, "pipeline_schedule_file",
            WEFT_SOURCE_DIR "/tests/data/schedule-4-ranks-4-microbatches.csv");
}

/* Appends multi-token prediction layers to some jobs. */
static void
random_predictions (GString *words, GRand *rand)
{
  static const char *const without[] = { "distributed_config", "share_embeddings",
                                         "position_embedding_type=learned", "gpt2-nano", NULL };
  uint32_t block = drawn (words, "recompute_num_layers=", 1);

  if (has_any (words, without) || !one_in (rand, 4) ||
      (block > 1 && strstr (words->str, "recompute_method=uniform")))
    return;
  gboolean turns = drawn (words, "expert_model_parallel_size=", 1) > 1;
  add (words, "mtp_num_layers", turns ? 1 : 1 + up_to (rand, 2));
  if (one_in (rand, 2))
    add_word (words, "mtp_loss_scaling_factor", "0.3");
}

char *
weft_random_job (GRand *rand)
{
  static const char *const dtypes[] = { "fp32", "bf16", "fp16" };
  g_autoptr (GString) words = g_string_new ("stack=weft");
  uint32_t gpus = random_cluster (words, rand), stages = divisor (rand, gpus, MIN (gpus, 8));

  add (words, "pipeline_model_parallel_size", stages);
  uint32_t chunks = random_chunks (words, rand, stages);
  uint32_t stage_layers = random_model (words, rand, stages * chunks);
  random_latents (words, rand);
  uint32_t ranks = random_tensor (words, rand, gpus / stages);
  uint32_t replicas = random_context (words, rand, ranks);
  random_batch (words, rand, replicas, stages);
  random_data_parallel (words, rand, replicas);
  random_experts (words, rand, replicas);
  random_recompute (words, rand, stage_layers);
  random_predictions (words, rand);
  random_attention (words, rand);
  random_offload (words, rand, stages, stage_layers);
  random_turns (words, stages);
  if (stages > 1) {
    gboolean plain = chunks == 1 && !strstr (words->str, "pipeline_schedule");
    if (plain)
      add_word (words, "pipeline_schedule", one_in (rand, 3) ? "gpipe" : "1f1b");
    if (plain && one_in (rand, 4))
      add_word (words, "batch_p2p_comm", "false");
    random_stages (words, rand, stage_layers, stages, chunks);
    if (!strstr (words->str, "virtual_pipeline"))
      flip (words, rand, 8, "variable_seq_lengths");
    if (!strstr (words->str, "overlap_p2p_comm=true"))
      flip (words, rand, 8, "use_ring_exchange_p2p");
    random_slots (words, rand);
    flip (words, rand, 3, "deallocate_pipeline_outputs");
    if (one_in (rand, 2))
      add_word (words, "batch_p2p_sync", "false");
    if (one_in (rand, 6))
      add_word (words, "pipeline_dtype", dtypes[up_to (rand, 2)]);
    if (plain)
      random_file (words, rand, replicas, stages);
  }
  if (one_in (rand, 8))
    add (words, "dp_size", replicas);
  random_modes (words, rand);
  random_head (words, rand);
  random_extras (words, rand);
  random_recipe (words, rand);
  weft_random_traits (words);
  if (one_in (rand, 3))
    spread_out (words);
  return g_string_free (g_steal_pointer (&words), FALSE);
}

uint64_t
weft_test_ops (const weft_plan *plan)
{
  uint64_t n = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    n += plan->role[role]->n_op;
  return n * (plan->mesh.n_ranks / plan->n_roles);
}
