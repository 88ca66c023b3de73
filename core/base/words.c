#include "core/base/words.h"

#define WORDS(name, LIST) const char *const name[] = { LIST (WEFT_WORD_TEXT) NULL }

WORDS (weft_precision_words, WEFT_PRECISION_LIST);
WORDS (weft_dtype_words, WEFT_DTYPE_LIST);
WORDS (weft_recompute_words, WEFT_RECOMPUTE_LIST);
WORDS (weft_recompute_method_words, WEFT_RECOMPUTE_METHOD_LIST);
WORDS (weft_module_words, WEFT_MODULE_LIST);
WORDS (weft_attention_words, WEFT_ATTENTION_LIST);
WORDS (weft_phase_words, WEFT_PHASE_LIST);
WORDS (weft_norm_words, WEFT_NORM_LIST);
WORDS (weft_placement_words, WEFT_PLACEMENT_LIST);
WORDS (weft_residual_words, WEFT_RESIDUAL_LIST);
WORDS (weft_activation_words, WEFT_ACTIVATION_LIST);
WORDS (weft_softmax_words, WEFT_SOFTMAX_LIST);
WORDS (weft_position_words, WEFT_POSITION_LIST);
WORDS (weft_rotary_scaling_words, WEFT_ROTARY_SCALING_LIST);
WORDS (weft_score_words, WEFT_SCORE_LIST);
WORDS (weft_dispatcher_words, WEFT_DISPATCHER_LIST);
WORDS (weft_intra_words, WEFT_INTRA_LIST);
WORDS (weft_reduction_order_words, WEFT_REDUCTION_ORDER_LIST);
WORDS (weft_optimizer_words, WEFT_OPTIMIZER_LIST);
WORDS (weft_sharding_words, WEFT_SHARDING_LIST);
WORDS (weft_distributed_words, WEFT_DISTRIBUTED_LIST);
WORDS (weft_p2p_backend_words, WEFT_P2P_BACKEND_LIST);
WORDS (weft_sync_words, WEFT_SYNC_LIST);
WORDS (weft_bootstrap_words, WEFT_BOOTSTRAP_LIST);
WORDS (weft_backend_words, WEFT_BACKEND_LIST);
WORDS (weft_loss_fusion_words, WEFT_LOSS_FUSION_LIST);
WORDS (weft_cp_comm_words, WEFT_CP_COMM_LIST);
WORDS (weft_grad_scale_words, WEFT_GRAD_SCALE_LIST);
WORDS (weft_finalize_words, WEFT_FINALIZE_LIST);
WORDS (weft_timers_words, WEFT_TIMERS_LIST);
WORDS (weft_fp8_recipe_words, WEFT_FP8_RECIPE_LIST);
WORDS (weft_fp8_format_words, WEFT_FP8_FORMAT_LIST);
WORDS (weft_offload_words, WEFT_OFFLOAD_LIST);

uint32_t
weft_dtype_bytes (enum weft_dtype dtype)
{
  static const uint32_t bytes[WEFT_N_DTYPE] = {
    [WEFT_FP32] = 4,  [WEFT_BF16] = 2,  [WEFT_FP16] = 2, [WEFT_FP8] = 1,
    [WEFT_INT32] = 4, [WEFT_INT64] = 8, [WEFT_E8M0] = 1, [WEFT_UINT8] = 1,
    [WEFT_E5M2] = 1,
  };
  return bytes[dtype];
}
