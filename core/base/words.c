#include "core/base/words.h"
#include "core/base/suggest.h"
#include "core/base/word_docs.h"

#define WORDS_LIST(X)                                                                              \
  X (weft_precision_words, WEFT_PRECISION_LIST)                                                    \
  X (weft_dtype_words, WEFT_DTYPE_LIST)                                                            \
  X (weft_recompute_words, WEFT_RECOMPUTE_LIST)                                                    \
  X (weft_recompute_method_words, WEFT_RECOMPUTE_METHOD_LIST)                                      \
  X (weft_module_words, WEFT_MODULE_LIST)                                                          \
  X (weft_attention_words, WEFT_ATTENTION_LIST)                                                    \
  X (weft_phase_words, WEFT_PHASE_LIST)                                                            \
  X (weft_norm_words, WEFT_NORM_LIST)                                                              \
  X (weft_placement_words, WEFT_PLACEMENT_LIST)                                                    \
  X (weft_residual_words, WEFT_RESIDUAL_LIST)                                                      \
  X (weft_activation_words, WEFT_ACTIVATION_LIST)                                                  \
  X (weft_softmax_words, WEFT_SOFTMAX_LIST)                                                        \
  X (weft_position_words, WEFT_POSITION_LIST)                                                      \
  X (weft_rotary_scaling_words, WEFT_ROTARY_SCALING_LIST)                                          \
  X (weft_score_words, WEFT_SCORE_LIST)                                                            \
  X (weft_flex_words, WEFT_FLEX_LIST)                                                              \
  X (weft_dispatcher_words, WEFT_DISPATCHER_LIST)                                                  \
  X (weft_intra_words, WEFT_INTRA_LIST)                                                            \
  X (weft_protocol_words, WEFT_PROTOCOL_LIST)                                                      \
  X (weft_algorithm_words, WEFT_ALGORITHM_LIST)                                                    \
  X (weft_reduction_order_words, WEFT_REDUCTION_ORDER_LIST)                                        \
  X (weft_optimizer_words, WEFT_OPTIMIZER_LIST)                                                    \
  X (weft_flops_convention_words, WEFT_FLOPS_CONVENTION_LIST)                                      \
  X (weft_sharding_words, WEFT_SHARDING_LIST)                                                      \
  X (weft_distributed_words, WEFT_DISTRIBUTED_LIST)                                                \
  X (weft_parallelism_words, WEFT_PARALLELISM_LIST)                                                \
  X (weft_p2p_backend_words, WEFT_P2P_BACKEND_LIST)                                                \
  X (weft_sync_words, WEFT_SYNC_LIST)                                                              \
  X (weft_bootstrap_words, WEFT_BOOTSTRAP_LIST)                                                    \
  X (weft_backend_words, WEFT_BACKEND_LIST)                                                        \
  X (weft_loss_fusion_words, WEFT_LOSS_FUSION_LIST)                                                \
  X (weft_cp_comm_words, WEFT_CP_COMM_LIST)                                                        \
  X (weft_grad_scale_words, WEFT_GRAD_SCALE_LIST)                                                  \
  X (weft_finalize_words, WEFT_FINALIZE_LIST)                                                      \
  X (weft_timers_words, WEFT_TIMERS_LIST)                                                          \
  X (weft_fp8_recipe_words, WEFT_FP8_RECIPE_LIST)                                                  \
  X (weft_fp8_format_words, WEFT_FP8_FORMAT_LIST)                                                  \
  X (weft_fp8_price_words, WEFT_FP8_PRICE_LIST)                                                    \
  X (weft_offload_words, WEFT_OFFLOAD_LIST)

#define WORDS(name, LIST) const char *const name[] = { LIST (WEFT_WORD_TEXT) NULL };
WORDS_LIST (WORDS)

#define WORD_DOC(id, text, doc, ...) doc,
#define WORD_DOCS(name, LIST) { name, (const char *const[]){ LIST (WORD_DOC) NULL } },
static const struct {
  const char *const *words, *const *docs;
} lists[] = { WORDS_LIST (WORD_DOCS) };

const char *
weft_word_doc (const char *const *words, unsigned i)
{
  for (unsigned k = 0; k < sizeof lists / sizeof *lists; k++)
    if (lists[k].words == words)
      return lists[k].docs[i];
  return NULL;
}

uint32_t
weft_dtype_bytes (enum weft_dtype dtype)
{
#define BYTES(id, text, doc, n) n,
  static const uint8_t bytes[] = { WEFT_DTYPE_LIST (BYTES) };

  return bytes[dtype];
}

#define PHASE_LOOK(id, text, doc, legend, look, light) { legend, look, light },
const struct weft_phase_look weft_phase_looks[] = { WEFT_PHASE_LIST (PHASE_LOOK) };

static int
index_of (const char *const *words, const char *name)
{
  for (int i = 0; words[i]; i++)
    if (weft_same_name (words[i], name))
      return i;
  return -1;
}

uint32_t
weft_word_set (const char *names, const char *const *words, char **unknown)
{
  g_auto (GStrv) name = g_strsplit_set (names, ", []", -1);
  uint32_t set = 0;

  if (unknown)
    *unknown = NULL;
  for (unsigned i = 0; name[i]; i++) {
    int index = index_of (words, name[i]);
    if (index >= 0)
      set |= 1u << index;
    else if (*name[i] && unknown && !*unknown)
      *unknown = g_strdup (name[i]);
  }
  return set;
}
