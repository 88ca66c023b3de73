/* params.h - the tensors of a pipeline stage: names, shapes on this rank, sharding.
 *
 * Parameters are numbered in registration order. tensors.h describes the flat buffers of
 * parameters, for code that reduces, gathers and updates them. */
#pragma once
#include "core/job/finetune.h"
#include "core/passes/emit/emit.h"
#include "core/program/layout.h"

/* Parameters of one layer, in registration order: constant, name, the part that freezes the
 * parameter (WEFT_N_FREEZE: LoRA adapters, which are always trained). Exception: the tensors of
 * multi-latent attention (WEFT_Q_DOWN_WEIGHT to WEFT_KV_UP_BIAS) are registered before
 * WEFT_NORM2_WEIGHT. For a tensor that a layer does not have, the layer stores WEFT_NO_PARAM at the
 * tensor's index. */
#define WEFT_LAYER_PARAM_LIST(X)                                                                   \
  X (WEFT_MTP_WORDS_NORM_WEIGHT, "mtp_words_norm.weight", WEFT_FREEZE_NORM)                        \
  X (WEFT_MTP_WORDS_NORM_BIAS, "mtp_words_norm.bias", WEFT_FREEZE_NORM)                            \
  X (WEFT_MTP_STREAM_NORM_WEIGHT, "mtp_stream_norm.weight", WEFT_FREEZE_NORM)                      \
  X (WEFT_MTP_STREAM_NORM_BIAS, "mtp_stream_norm.bias", WEFT_FREEZE_NORM)                          \
  X (WEFT_MTP_PROJ_WEIGHT, "mtp_proj.weight", WEFT_FREEZE_MLP)                                     \
  X (WEFT_MTP_PROJ_BIAS, "mtp_proj.bias", WEFT_FREEZE_MLP)                                         \
  X (WEFT_NORM1_WEIGHT, "norm1.weight", WEFT_FREEZE_NORM)                                          \
  X (WEFT_NORM1_BIAS, "norm1.bias", WEFT_FREEZE_NORM)                                              \
  X (WEFT_QKV_WEIGHT, "qkv.weight", WEFT_FREEZE_ATTENTION)                                         \
  X (WEFT_QKV_BIAS, "qkv.bias", WEFT_FREEZE_ATTENTION)                                             \
  X (WEFT_Q_NORM_WEIGHT, "q_norm.weight", WEFT_FREEZE_NORM)                                        \
  X (WEFT_K_NORM_WEIGHT, "k_norm.weight", WEFT_FREEZE_NORM)                                        \
  X (WEFT_PROJ_WEIGHT, "proj.weight", WEFT_FREEZE_ATTENTION)                                       \
  X (WEFT_PROJ_BIAS, "proj.bias", WEFT_FREEZE_ATTENTION)                                           \
  X (WEFT_ATTENTION_NORM_WEIGHT, "attention_norm.weight", WEFT_FREEZE_NORM)                        \
  X (WEFT_ATTENTION_NORM_BIAS, "attention_norm.bias", WEFT_FREEZE_NORM)                            \
  X (WEFT_NORM2_WEIGHT, "norm2.weight", WEFT_FREEZE_NORM)                                          \
  X (WEFT_NORM2_BIAS, "norm2.bias", WEFT_FREEZE_NORM)                                              \
  X (WEFT_FC1_WEIGHT, "fc1.weight", WEFT_FREEZE_MLP)                                               \
  X (WEFT_FC1_BIAS, "fc1.bias", WEFT_FREEZE_MLP)                                                   \
  X (WEFT_FC2_WEIGHT, "fc2.weight", WEFT_FREEZE_MLP)                                               \
  X (WEFT_FC2_BIAS, "fc2.bias", WEFT_FREEZE_MLP)                                                   \
  X (WEFT_MLP_NORM_WEIGHT, "mlp_norm.weight", WEFT_FREEZE_NORM)                                    \
  X (WEFT_MLP_NORM_BIAS, "mlp_norm.bias", WEFT_FREEZE_NORM)                                        \
  X (WEFT_Q_DOWN_WEIGHT, "q_down.weight", WEFT_FREEZE_ATTENTION)                                   \
  X (WEFT_Q_DOWN_BIAS, "q_down.bias", WEFT_FREEZE_ATTENTION)                                       \
  X (WEFT_Q_LATENT_NORM_WEIGHT, "q_latent_norm.weight", WEFT_FREEZE_NORM)                          \
  X (WEFT_Q_LATENT_NORM_BIAS, "q_latent_norm.bias", WEFT_FREEZE_NORM)                              \
  X (WEFT_Q_UP_WEIGHT, "q_up.weight", WEFT_FREEZE_ATTENTION)                                       \
  X (WEFT_Q_UP_BIAS, "q_up.bias", WEFT_FREEZE_ATTENTION)                                           \
  X (WEFT_KV_DOWN_WEIGHT, "kv_down.weight", WEFT_FREEZE_ATTENTION)                                 \
  X (WEFT_KV_DOWN_BIAS, "kv_down.bias", WEFT_FREEZE_ATTENTION)                                     \
  X (WEFT_KV_LATENT_NORM_WEIGHT, "kv_latent_norm.weight", WEFT_FREEZE_NORM)                        \
  X (WEFT_KV_LATENT_NORM_BIAS, "kv_latent_norm.bias", WEFT_FREEZE_NORM)                            \
  X (WEFT_KV_UP_WEIGHT, "kv_up.weight", WEFT_FREEZE_ATTENTION)                                     \
  X (WEFT_KV_UP_BIAS, "kv_up.bias", WEFT_FREEZE_ATTENTION)                                         \
  X (WEFT_ROUTER_WEIGHT, "router.weight", WEFT_FREEZE_MLP)                                         \
  X (WEFT_ROUTER_BIAS, "router.bias", WEFT_FREEZE_MLP)                                             \
  X (WEFT_EXPERT_FC1, "experts.fc1.weight", WEFT_FREEZE_MLP)                                       \
  X (WEFT_EXPERT_FC2, "experts.fc2.weight", WEFT_FREEZE_MLP)                                       \
  X (WEFT_SHARED_FC1_WEIGHT, "shared.fc1.weight", WEFT_FREEZE_MLP)                                 \
  X (WEFT_SHARED_FC1_BIAS, "shared.fc1.bias", WEFT_FREEZE_MLP)                                     \
  X (WEFT_SHARED_FC2_WEIGHT, "shared.fc2.weight", WEFT_FREEZE_MLP)                                 \
  X (WEFT_SHARED_FC2_BIAS, "shared.fc2.bias", WEFT_FREEZE_MLP)                                     \
  X (WEFT_SHARED_GATE_WEIGHT, "shared.gate.weight", WEFT_FREEZE_MLP)                               \
  X (WEFT_SHARED_GATE_BIAS, "shared.gate.bias", WEFT_FREEZE_MLP)                                   \
  X (WEFT_MTP_NORM_WEIGHT, "mtp_norm.weight", WEFT_FREEZE_NORM)                                    \
  X (WEFT_MTP_NORM_BIAS, "mtp_norm.bias", WEFT_FREEZE_NORM)                                        \
  X (WEFT_QKV_LORA_A, "qkv.lora_a.weight", WEFT_N_FREEZE)                                          \
  X (WEFT_QKV_LORA_B, "qkv.lora_b.weight", WEFT_N_FREEZE)                                          \
  X (WEFT_PROJ_LORA_A, "proj.lora_a.weight", WEFT_N_FREEZE)                                        \
  X (WEFT_PROJ_LORA_B, "proj.lora_b.weight", WEFT_N_FREEZE)                                        \
  X (WEFT_FC1_LORA_A, "fc1.lora_a.weight", WEFT_N_FREEZE)                                          \
  X (WEFT_FC1_LORA_B, "fc1.lora_b.weight", WEFT_N_FREEZE)                                          \
  X (WEFT_FC2_LORA_A, "fc2.lora_a.weight", WEFT_N_FREEZE)                                          \
  X (WEFT_FC2_LORA_B, "fc2.lora_b.weight", WEFT_N_FREEZE)
enum weft_layer_param {
#define WEFT_PARAM_ROW(id, ...) id,
  WEFT_LAYER_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
      WEFT_N_LAYER_PARAM
};

/* Parameters of the first and the last pipeline stage, outside layers. */
#define WEFT_END_PARAM_LIST(X)                                                                     \
  X (WEFT_EMBED_WEIGHT, "embedding.weight", WEFT_FREEZE_EMBEDDING)                                 \
  X (WEFT_POSITION_WEIGHT, "position.weight", WEFT_FREEZE_EMBEDDING)                               \
  X (WEFT_EMBED_NORM_WEIGHT, "embedding_norm.weight", WEFT_FREEZE_NORM)                            \
  X (WEFT_EMBED_NORM_BIAS, "embedding_norm.bias", WEFT_FREEZE_NORM)                                \
  X (WEFT_FINAL_NORM_WEIGHT, "final_norm.weight", WEFT_FREEZE_NORM)                                \
  X (WEFT_FINAL_NORM_BIAS, "final_norm.bias", WEFT_FREEZE_NORM)                                    \
  X (WEFT_HEAD_WEIGHT, "head.weight", WEFT_FREEZE_HEAD)
enum weft_end_param {
#define WEFT_PARAM_ROW(id, ...) id,
  WEFT_END_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
      WEFT_N_END_PARAM
};

#define WEFT_NO_PARAM 0xffffffffu

/* How a data parallel strategy lays tensors out in flat buffers, and which tensors it shards.
 * replicas/wrapper.c defines a struct weft_shard_rule for each strategy. */
struct weft_shard_rule {
  void (*lay_out) (struct weft_layout *layout, const struct weft_layout_rule *rule,
                   const struct weft_layout_param *param, uint32_t n_param);
  /* Returns the FSDP unit that contains a parameter, or WEFT_NO_UNIT if none does. NULL: the
   * strategy has no FSDP units. */
  uint32_t (*unit_of) (const struct weft_step *s, uint32_t param);
  /* TRUE: each data parallel replica stores only a slice of gradients (shard_grads), of weights
   * (shard_weights) */
  gboolean shard_grads, shard_weights;
  /* TRUE: tensors are sharded even if only one rank holds their shards */
  gboolean shard_alone;
  /* TRUE: the first microbatch overwrites gradients, so they are not zeroed at the start of a
   * step */
  gboolean overwrites;
};

/* weft_params_build() lists the tensors, lays out their flat buffers and creates views.
 * weft_params_publish() writes the tensors into the program; the caller calls it after the
 * functions of replicas/ have created their buffers. weft_params_end() frees the state of
 * params/. */
void weft_params_build (struct weft_step *s);
void weft_params_publish (struct weft_step *s);
void weft_params_end (struct weft_step *s);

uint32_t weft_params_count (const struct weft_step *s);
struct weft_param *weft_param_at (const struct weft_step *s, uint32_t param);

/* Returns the number of a parameter of the current layer (s->at.layer), or WEFT_NO_PARAM if the
 * layer does not have the parameter. */
uint32_t weft_params_layer (const struct weft_step *s, enum weft_layer_param which);

/* Returns the number of a parameter of layer `layer`, or WEFT_NO_PARAM if the layer does not have
 * the parameter. */
uint32_t weft_params_of_layer (const struct weft_step *s, uint32_t layer,
                               enum weft_layer_param which);

/* Returns the number of a parameter outside layers (embedding, final norm, output layer), or
 * WEFT_NO_PARAM. */
uint32_t weft_params_of_end (const struct weft_step *s, enum weft_end_param which);

/* Returns the first parameter of a layer's MLP block: the weight of the norm before the MLP.
 * Without such a norm, returns the weight of fc1 or of the router. */
uint32_t weft_params_of_mlp (const struct weft_step *s, uint32_t layer);

/* Returns the buffer with the scale of a weight that is stored in fp8; WEFT_NO_BUF for other
 * weights. */
uint32_t weft_params_scale (const struct weft_step *s, uint32_t param);

/* Whether a weight is stored in fp8 between steps (fp8_param_gather). */
gboolean weft_params_is_fp8 (const struct weft_step *s, uint32_t param);

/* Whether the job trains a parameter. FALSE for frozen parameters and for WEFT_NO_PARAM. */
gboolean weft_params_trains (const struct weft_step *s, uint32_t param);

/* Whether backward needs the gradient of the input of a linear map or norm of the current layer:
 * something below is trained. The first layer is the only one below which nothing may be trained;
 * its tensors are compared in the order of forward. FALSE also if no layer has trained tensors. */
gboolean weft_params_flows_below (const struct weft_step *s, enum weft_layer_param which);

/* The two matrices of the LoRA adapter of a linear map, or WEFT_N_LAYER_PARAM if the job has no
 * adapter there. */
struct weft_lora_pair {
  enum weft_layer_param a, b;
};
struct weft_lora_pair weft_params_lora (const struct weft_step *s, enum weft_layer_param which);

/* Whether a layer parameter is a matrix of an adapter. */
gboolean weft_params_is_lora (enum weft_layer_param which);

/* Whether a parameter is a weight of an expert. */
gboolean weft_params_is_expert (const struct weft_step *s, uint32_t param);

/* Whether a parameter is a weight of an expert and the experts are distributed over expert parallel
 * ranks. If TRUE, the parameter has fewer replicas than dense weights. */
gboolean weft_params_is_sharded_expert (const struct weft_step *s, uint32_t param);

/* Creates a view of `base`, from byte `offset` on, with the size and name of a parameter. */
uint32_t weft_params_view (struct weft_step *s, uint32_t param, uint32_t base, uint64_t offset);
