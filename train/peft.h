/* peft.h - LoRA adapters in the files of Hugging Face PEFT: a folder with adapter_model.safetensors
 * and adapter_config.json, which PeftModel.from_pretrained() reads.
 *
 * A tensor is named "base_model.model." + the module of transformers + ".lora_A.weight" or
 * ".lora_B.weight". Where transformers have several modules for one linear map of Weft (q_proj,
 * k_proj and v_proj of linear_qkv; gate_proj and up_proj of linear_fc1), all of them have the same
 * A, and each has its rows of B, as Megatron-Bridge exports the adapters of fused maps. An import
 * therefore refuses files in which these A differ. */
#pragma once
#include "core/job/job.h"
#include "train/state.h"

/* Whether a tensor is a matrix of an adapter. */
gboolean weft_peft_is_adapter (const struct weft_state_tensor *tensor);

/* Writes the adapters to a folder, which is created if necessary. Values are masters in F32. All
 * processes of a job must call this function. */
gboolean weft_peft_export (weft_state *state, const struct weft_job *job, const char *folder,
                           GError **error);

/* Reads the adapters from a folder. r and lora_alpha of its configuration must be those of the
 * job, and its tensors those of the job's adapters. */
gboolean weft_peft_import (weft_state *state, const struct weft_job *job, const char *folder,
                           GError **error);
