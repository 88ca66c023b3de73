/* megatron.h - command lines of Megatron-LM. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_megatron_lm;

/* The expert_tensor_parallel_size that a job without experts needs; 0: none. If the stages lie
 * inside replicas, initialize_model_parallel() of Megatron-Core asserts that dense weights and
 * experts have the same number of replicas, and counts experts on tensor parallel ranks even in a
 * model without any. The size of Megatron-LM's own test gpt3_mr_mcore_te_tp2_pp2_cp2_etp4_dp_last
 * satisfies it. */
int64_t weft_megatron_idle_experts (const struct weft_job *job);
