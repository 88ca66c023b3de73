/* Features of decoders such as Gemma 2, OLMo 2 and BLOOM for random jobs: norms, residuals,
 * positions, soft-capping; the overlap of shared experts and the order of the ranks. A hash of the
 * job's words is the seed, so that the draws of random_job.c stay as they were. */
#include "tests/made/random_job.h"
#include <stdlib.h>
#include <string.h>

static gboolean
one_in (GRand *rand, gint32 n)
{
  return g_rand_int_range (rand, 0, n) == 0;
}

static gboolean
has (const GString *words, const char *word)
{
  return strstr (words->str, word) != NULL;
}

static void
add (GString *words, const char *word)
{
  g_string_append_printf (words, " %s", word);
}

static void
maybe (GString *words, GRand *rand, gint32 n, const char *word)
{
  if (one_in (rand, n))
    add (words, word);
}

/* If the job contains the word `drawn`, replaces it by the word `other`. */
static void
swap_word (GString *words, const char *drawn, const char *other)
{
  if (has (words, drawn))
    g_string_replace (words, drawn, other, 1);
}

static void
random_positions (GString *words, GRand *rand)
{
  if (has (words, "position_embedding_type=learned")) {
    maybe (words, rand, 2, "position_offset=2");
    return;
  }
  if (one_in (rand, 3)) {
    swap_word (words, " position_embedding_type=rope", " position_embedding_type=alibi");
    return;
  }
  maybe (words, rand, 2, "rotary_percent=0.5");
  if (!has (words, "sliding_window") && !has (words, "attention_chunk") && one_in (rand, 2))
    add (words, one_in (rand, 2)
                    ? "sliding_window=5 window_attn_skip_freq=2 rotary_base_local=100"
                    : "sliding_window=3 window_attn_skip_freq=3 rotary_base_local=100");
}

static void
random_norms (GString *words, GRand *rand)
{
  if (one_in (rand, 2))
    add (words, one_in (rand, 2) ? "norm_placement=sandwich" : "norm_placement=post");
  else if (one_in (rand, 2))
    add (words, one_in (rand, 2) ? "residual=parallel" : "residual=parallel_one_norm");
  maybe (words, rand, 3, "embedding_layernorm=true");
  if (has (words, "qk_layernorm=true"))
    maybe (words, rand, 2, "qk_layernorm_whole=true");
}

/* Sets moe_shared_expert_overlap in some jobs that the rule shared_overlap allows to have it. */
static void
random_shared_overlap (GString *words, GRand *rand)
{
  const char *ranks = strstr (words->str, " expert_model_parallel_size=");

  if (ranks && atoi (strchr (ranks, '=') + 1) > 1 &&
      has (words, "moe_shared_expert_intermediate_size") &&
      !has (words, "moe_token_dispatcher_type=flex") &&
      !has (words, "overlap_moe_expert_parallel_comm=true"))
    maybe (words, rand, 2, "moe_shared_expert_overlap=true");
}

static int
drawn (const GString *words, const char *knob, int unknown)
{
  const char *at = strstr (words->str, knob);
  return at ? atoi (at + strlen (knob)) : unknown;
}

/* Puts the stages inside the replicas in one in three of the jobs with several stages that the rule
 * mapping_experts allows to have it. */
static void
random_order (GString *words)
{
  int tensor = drawn (words, " tensor_model_parallel_size=", 1);
  int experts = drawn (words, " expert_model_parallel_size=", 1) *
                drawn (words, " expert_tensor_parallel_size=", tensor);
  gboolean fits = !has (words, " num_moe_experts=") ||
                  experts == tensor * drawn (words, " context_parallel_size=", 1);

  if (drawn (words, " pipeline_model_parallel_size=", 1) > 1 && fits &&
      g_str_hash (words->str) / 20 % 3 == 0)
    add (words, "use_tp_pp_dp_mapping=true");
}

void
weft_random_traits (GString *words)
{
  static const char *const without[] = { "nano", "num_moe_experts", "kv_lora_rank", "mtp" };
  g_autoptr (GRand) rand = g_rand_new_with_seed (g_str_hash (words->str));

  if (g_str_hash (words->str) % 20 == 0)
    add (words, "memory_headroom=0.01");
  if (g_str_hash (words->str) % 20 == 1)
    add (words, "flops_convention=full");
  random_shared_overlap (words, rand);
  random_order (words);
  for (unsigned i = 0; i < G_N_ELEMENTS (without); i++)
    if (has (words, without[i]))
      return;
  if (!one_in (rand, 3))
    return;
  if (one_in (rand, 2))
    swap_word (words, " activation=swiglu", " activation=geglu");
  swap_word (words, " activation=squared_relu", " activation=relu");
  if (one_in (rand, 2))
    swap_word (words, " activation=gelu", " activation=gelu_erf");
  random_norms (words, rand);
  random_positions (words, rand);
  maybe (words, rand, 2, "embedding_multiplier=0");
  maybe (words, rand, 2, "query_pre_attn_scalar=5");
  if (!has (words, "alibi"))
    maybe (words, rand, 2, "attn_logit_softcapping=2");
  maybe (words, rand, 2, "final_logit_softcapping=3");
}
