/* finetune.h - which tensors a job trains: parts of the model that are frozen, and LoRA adapters.
 *
 * A frozen tensor has a weight in the dtype that kernels read, and nothing else: no gradient, no
 * fp32 master copy, no state of the optimizer. Backward stops at the lowest trained tensor.
 *
 * LoRA (Hu et al. 2021, arXiv 2106.09685) freezes the whole model and adds to linear maps the
 * product of two small matrices, which are trained:
 *
 *   y = W x + (lora_alpha / lora_dim) B (A x)
 *
 * A has lora_dim rows and is random at the start; B has lora_dim columns and is zero. */
#pragma once
#include "core/job/job.h"

/* Parts of a model that the training field `freeze` names: constant, word, what it contains. */
#define WEFT_FREEZE_LIST(X)                                                                        \
  X (WEFT_FREEZE_EMBEDDING, "embedding", "word and position embeddings")                           \
  X (WEFT_FREEZE_ATTENTION, "attention", "linear maps of attention")                               \
  X (WEFT_FREEZE_MLP, "mlp", "linear maps of the MLP")                                             \
  X (WEFT_FREEZE_NORM, "norm", "all norms, inside and outside layers")                             \
  X (WEFT_FREEZE_HEAD, "head", "the output layer")
enum weft_freeze { WEFT_FREEZE_LIST (WEFT_WORD_ID) WEFT_N_FREEZE };
extern const char *const weft_freeze_words[];

/* Linear maps that LoRA can adapt (training field `target_modules`), under Megatron-Core's names:
 * constant, word, what it maps. */
#define WEFT_LORA_LIST(X)                                                                          \
  X (WEFT_LORA_QKV, "linear_qkv", "queries, keys and values")                                      \
  X (WEFT_LORA_PROJ, "linear_proj", "the output projection of attention")                          \
  X (WEFT_LORA_FC1, "linear_fc1", "the first map of the MLP, with its gate")                       \
  X (WEFT_LORA_FC2, "linear_fc2", "the second map of the MLP")
enum weft_lora { WEFT_LORA_LIST (WEFT_WORD_ID) WEFT_N_LORA };
extern const char *const weft_lora_words[];

/* The linear maps with adapters as bits 1 << enum weft_lora; 0 if lora_dim is 0. *unknown (may be
 * NULL) receives the first name that is no module; the caller frees it. */
uint32_t weft_job_lora (const struct weft_job *job, char **unknown);

/* The frozen parts as bits 1 << enum weft_freeze: all with LoRA, otherwise those of `freeze`.
 * *unknown (may be NULL) receives the first name that is no part; the caller frees it. */
uint32_t weft_job_frozen (const struct weft_job *job, char **unknown);

/* Whether the job trains any tensor of the embeddings, or any tensor of every layer (adapters
 * included), of the output layer, or of the norms. */
gboolean weft_job_trains (const struct weft_job *job, enum weft_freeze part);
gboolean weft_job_trains_layers (const struct weft_job *job);

/* Whether backward computes gradients of the input of the output layer. */
gboolean weft_job_enters_layers (const struct weft_job *job);

/* Model FLOPs per trained token, of which weft_job_flops_per_token() is the sum. Without frozen
 * parts inputs and weights equal forward (6 N together). Counted are matrices of the model:
 *
 *   forward   2 N: all products with weights
 *   inputs    2 N: input gradients of the matrices through which backward goes: the output layer if
 *             a norm or a layer is trained, the layers if a layer or the embedding is trained
 *   weights   2 N of trained matrices
 *   adapters  6 N of the adapters
 *   pairs     attention: a third in forward, two thirds in backward through the layers
 *
 * The input gradients of the first layer are counted whole, although backward leaves out those
 * below the lowest trained tensor. */
struct weft_tuned_flops {
  double forward, inputs, weights, adapters, pairs;
};
struct weft_tuned_flops weft_job_tuned_flops (const struct weft_job *job, gboolean causal);
double weft_tuned_flops_sum (const struct weft_tuned_flops *flops);

/* Number of elements of all adapters. */
double weft_job_lora_parameters (const struct weft_job *job);
