/* words.h - the closed sets of words that several tables and files share.  X(ID, "word", "doc"). */
#pragma once
#include "core/base/field.h"

/* The last column of each row is the number of bytes of an element. */
#define WEFT_PRECISION_LIST(X)                                                                     \
  X (WEFT_FP32, "fp32", "IEEE single precision", 4)                                                \
  X (WEFT_BF16, "bf16", "bfloat16", 2)                                                             \
  X (WEFT_FP16, "fp16", "IEEE half precision", 2)                                                  \
  X (WEFT_FP8, "fp8", "8-bit float, e4m3", 1)
#define WEFT_DTYPE_LIST(X)                                                                         \
  WEFT_PRECISION_LIST (X)                                                                          \
  X (WEFT_INT32, "int32", "token ids and counters", 4)                                             \
  X (WEFT_INT64, "int64", "accumulators of order-independent sums", 8)                             \
  X (WEFT_E8M0, "e8m0", "a power of two: the scale of 32 fp8 elements", 1)                         \
  X (WEFT_UINT8, "uint8", "dropout mask", 1)                                                       \
  X (WEFT_E5M2, "e5m2", "8-bit float, e5m2: output gradients in fp8", 1)
extern const char *const weft_precision_words[];
enum weft_dtype { WEFT_DTYPE_LIST (WEFT_WORD_ID) WEFT_N_DTYPE };
extern const char *const weft_dtype_words[];

/* Bytes of one element of this dtype. */
uint32_t weft_dtype_bytes (enum weft_dtype dtype);

#define WEFT_RECOMPUTE_LIST(X)                                                                     \
  X (WEFT_RECOMPUTE_NONE, "none", "keep every activation the backward pass reads")                 \
  X (WEFT_RECOMPUTE_SELECTIVE, "selective", "recompute the modules of recompute_modules")          \
  X (WEFT_RECOMPUTE_FULL, "full", "keep only the input of a block of layers")
enum weft_recompute { WEFT_RECOMPUTE_LIST (WEFT_WORD_ID) };
extern const char *const weft_recompute_words[];

#define WEFT_RECOMPUTE_METHOD_LIST(X)                                                              \
  X (WEFT_RECOMPUTE_UNIFORM, "uniform", "all layers, in blocks of recompute_num_layers")           \
  X (WEFT_RECOMPUTE_BLOCK, "block", "the first recompute_num_layers layers of each chunk")
enum weft_recompute_method { WEFT_RECOMPUTE_METHOD_LIST (WEFT_WORD_ID) };
extern const char *const weft_recompute_method_words[];

#define WEFT_MODULE_LIST(X)                                                                        \
  X (WEFT_MODULE_CORE_ATTN, "core_attn", "attention scores, softmax and its dropout")              \
  X (WEFT_MODULE_MLP, "mlp", "the second norm, the first projection and the activation")           \
  X (WEFT_MODULE_LAYERNORM, "layernorm", "outputs of both norms of a layer")                       \
  X (WEFT_MODULE_MOE_ACT, "moe_act", "activations of experts")                                     \
  X (WEFT_MODULE_MLA_UP_PROJ, "mla_up_proj", "up-projections of latent attention")                 \
  X (WEFT_MODULE_MOE, "moe", "a layer of experts with its communication")                          \
  X (WEFT_MODULE_SHARED_EXPERTS, "shared_experts", "experts that process every token")
enum weft_recompute_module { WEFT_MODULE_LIST (WEFT_WORD_ID) WEFT_N_MODULE };
extern const char *const weft_module_words[];

#define WEFT_ATTENTION_LIST(X)                                                                     \
  X (WEFT_ATTENTION_FLASH, "flash", "one kernel; no scores in memory")                             \
  X (WEFT_ATTENTION_FUSED, "fused", "one kernel; on GPUs, the kernel of cuDNN")                    \
  X (WEFT_ATTENTION_UNFUSED, "unfused", "two matmuls and a softmax; keeps the probabilities")      \
  X (WEFT_ATTENTION_AUTO, "auto", "the fastest on the GPU: flash, producer warp, fused")
enum weft_attention_backend { WEFT_ATTENTION_LIST (WEFT_WORD_ID) };
extern const char *const weft_attention_words[];

/* Each row: constant, word, explanation, legend in pictures, number of its colour in the palette of
 * figures (charts/looks.h), light colour of boxes with dark text, which is cool for forward, warm
 * for backward and green for the end of the step. */
#define WEFT_PHASE_LIST(X)                                                                         \
  X (WEFT_PHASE_FORWARD, "F", "forward", "forward", 4, "#d6e6f5")                                  \
  X (WEFT_PHASE_BACKWARD, "B", "backward", "backward", 1, "#f8ddc8")                               \
  X (WEFT_PHASE_INPUT_GRAD, "I", "input gradients of a split backward",                            \
     "input gradient", 6, "#f8ddc8")                                                               \
  X (WEFT_PHASE_WEIGHT_GRAD, "W", "weight gradients of a split backward",                          \
     "weight gradient", 2, "#f3c9a8")                                                              \
  X (WEFT_PHASE_RECOMPUTE, "R", "forward again, inside backward",                                  \
     "forward again", 3, "#e3dff2")                                                                \
  X (WEFT_PHASE_REDUCE, "G", "gradient reduction and the wait for it",                             \
     "reduce", 7, "#f7ecc0")                                                                       \
  X (WEFT_PHASE_FINALIZE, "Z", "completion of gradients: tied embedding, token count",             \
     "finalize", 7, "#f7ecc0")                                                                     \
  X (WEFT_PHASE_OPTIMIZER, "O", "norm, clip, update, parameter gather",                            \
     "update", 5, "#d9ead3")
enum weft_phase { WEFT_PHASE_LIST (WEFT_WORD_ID) WEFT_N_PHASE };
extern const char *const weft_phase_words[];
struct weft_phase_look {
  const char *legend;
  unsigned look;
  const char *light;
};
extern const struct weft_phase_look weft_phase_looks[WEFT_N_PHASE];

#define WEFT_NORM_LIST(X)                                                                          \
  X (WEFT_LAYERNORM, "layernorm", "by mean and variance, with weight and bias")                    \
  X (WEFT_RMSNORM, "rmsnorm", "by root mean square, with a weight")
enum weft_norm { WEFT_NORM_LIST (WEFT_WORD_ID) };
extern const char *const weft_norm_words[];

#define WEFT_PLACEMENT_LIST(X)                                                                     \
  X (WEFT_NORM_PRE, "pre", "norms of the inputs of attention and MLP")                             \
  X (WEFT_NORM_POST, "post", "norms of the outputs of attention and MLP")                          \
  X (WEFT_NORM_SANDWICH, "sandwich", "norms of the inputs and of the outputs")
enum weft_placement { WEFT_PLACEMENT_LIST (WEFT_WORD_ID) };
extern const char *const weft_placement_words[];

#define WEFT_RESIDUAL_LIST(X)                                                                      \
  X (WEFT_RESIDUAL_SEQUENTIAL, "sequential", "the MLP reads the stream that attention added to")   \
  X (WEFT_RESIDUAL_PARALLEL, "parallel", "attention and MLP read the same stream, a norm each")    \
  X (WEFT_RESIDUAL_ONE_NORM, "parallel_one_norm",                                                  \
     "attention and MLP read the same stream through one norm")
enum weft_residual { WEFT_RESIDUAL_LIST (WEFT_WORD_ID) };
extern const char *const weft_residual_words[];

/* Each row: constant, word, explanation, number of up-projections, forward op, backward op, name in
 * programs. */
#define WEFT_ACTIVATION_LIST(X)                                                                    \
  X (WEFT_GELU, "gelu", "GELU in its tanh form; one up-projection",                                \
     1, WEFT_OP_GELU, WEFT_OP_GELU_BWD, "gelu")                                                    \
  X (WEFT_SWIGLU, "swiglu", "SiLU (gate) * up; two up-projections",                                \
     2, WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "swiglu")                                              \
  X (WEFT_SQUARED_RELU, "squared_relu", "max (x, 0)^2; one up-projection",                         \
     1, WEFT_OP_RELU2, WEFT_OP_RELU2_BWD, "relu2")                                                 \
  X (WEFT_GELU_ERF, "gelu_erf", "GELU by the error function; one up-projection",                   \
     1, WEFT_OP_GELU, WEFT_OP_GELU_BWD, "gelu")                                                    \
  X (WEFT_GEGLU, "geglu", "GELU (gate) * up, GELU in its tanh form; two up-projections",           \
     2, WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "geglu")                                               \
  X (WEFT_QUICK_GEGLU, "quick_geglu", "x sigmoid (1.702 x) gate: planned, not trained",            \
     2, WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "quick_geglu")                                         \
  X (WEFT_RELU, "relu", "max (x, 0); one up-projection",                                           \
     1, WEFT_OP_RELU, WEFT_OP_RELU_BWD, "relu")
enum weft_activation { WEFT_ACTIVATION_LIST (WEFT_WORD_ID) };
extern const char *const weft_activation_words[];

#define WEFT_SOFTMAX_LIST(X)                                                                       \
  X (WEFT_SOFTMAX_VANILLA, "vanilla", "over the scores of a query")                                \
  X (WEFT_SOFTMAX_OFF_BY_ONE, "off-by-one", "with one extra score of 0 that has no value")         \
  X (WEFT_SOFTMAX_LEARNABLE, "learnable", "with one trained extra score per head (a sink)")
enum weft_softmax { WEFT_SOFTMAX_LIST (WEFT_WORD_ID) };
extern const char *const weft_softmax_words[];

#define WEFT_POSITION_LIST(X)                                                                      \
  X (WEFT_LEARNED, "learned", "a trained vector per position, added to the embedding")             \
  X (WEFT_ROPE, "rope", "rotary: queries and keys are rotated by their position")                  \
  X (WEFT_ALIBI, "alibi", "ALiBi: attention scores fall with distance, by a slope per head")
enum weft_position { WEFT_POSITION_LIST (WEFT_WORD_ID) };
extern const char *const weft_position_words[];

#define WEFT_ROTARY_SCALING_LIST(X)                                                                \
  X (WEFT_ROTARY_NONE, "none", "no scaling")                                                       \
  X (WEFT_ROTARY_LINEAR, "linear", "all frequencies divided by one factor")                        \
  X (WEFT_ROTARY_LLAMA3, "llama3", "low frequencies divided, high ones unchanged")                 \
  X (WEFT_ROTARY_OTHER, "other", "any other rule: planned, not trained")
enum weft_rotary_scaling { WEFT_ROTARY_SCALING_LIST (WEFT_WORD_ID) };
extern const char *const weft_rotary_scaling_words[];

#define WEFT_SCORE_LIST(X)                                                                         \
  X (WEFT_SCORE_SOFTMAX, "softmax", "exponentials of the logits, divided by their sum")            \
  X (WEFT_SCORE_SIGMOID, "sigmoid", "the logistic function of each logit")
enum weft_score { WEFT_SCORE_LIST (WEFT_WORD_ID) };
extern const char *const weft_score_words[];

#define WEFT_DISPATCHER_LIST(X)                                                                    \
  X (WEFT_DISPATCH_ALL_GATHER, "allgather", "all tokens go to every rank")                         \
  X (WEFT_DISPATCH_ALL_TO_ALL, "alltoall", "tokens go to the ranks of their experts only")         \
  X (WEFT_DISPATCH_FLEX, "flex", "alltoall over tensor and expert ranks at once")
enum weft_dispatcher { WEFT_DISPATCHER_LIST (WEFT_WORD_ID) };
extern const char *const weft_dispatcher_words[];

#define WEFT_FLEX_LIST(X)                                                                          \
  X (WEFT_FLEX_NONE, "none", "a token is sent to each of its experts")                             \
  X (WEFT_FLEX_DEEPEP, "deepep", "DeepEP: a token is sent once to each node that has its experts") \
  X (WEFT_FLEX_HYBRIDEP, "hybridep", "HybridEP: as deepep")
enum weft_flex { WEFT_FLEX_LIST (WEFT_WORD_ID) };
extern const char *const weft_flex_words[];

#define WEFT_INTRA_LIST(X)                                                                         \
  X (WEFT_NVLINK, "nvlink", "every GPU has its own ports into a non-blocking switch")              \
  X (WEFT_PCIE, "pcie", "GPUs of a node share the host bridge")                                    \
  X (WEFT_SHARED_MEMORY, "memory", "ranks of one machine share its memory bus")
enum weft_intra { WEFT_INTRA_LIST (WEFT_WORD_ID) };
extern const char *const weft_intra_words[];

/* Protocols of NCCL: how a rank knows that data of its neighbour have arrived. */
#define WEFT_PROTOCOL_LIST(X)                                                                      \
  X (WEFT_PROTOCOL_SIMPLE, "simple", "a fence and a flag for each chunk")                          \
  X (WEFT_PROTOCOL_LL, "ll", "a flag beside every 4 bytes: no fence, half of the bytes are data")  \
  X (WEFT_PROTOCOL_LL128, "ll128", "a flag in every 128 bytes: no fence; needs NVLink")
enum weft_protocol { WEFT_PROTOCOL_LIST (WEFT_WORD_ID) WEFT_N_PROTOCOL };
extern const char *const weft_protocol_words[];

/* Algorithms of collectives from which the communication library of a stack chooses. */
#define WEFT_ALGORITHM_LIST(X)                                                                     \
  X (WEFT_ALGORITHM_RING, "ring", "every rank sends to the next one")                              \
  X (WEFT_ALGORITHM_TREE, "tree", "all-reduce over two binary trees of nodes")                     \
  X (WEFT_ALGORITHM_NVLS, "nvls", "all-reduce in the switches of NVLink (SHARP), trees above")     \
  X (WEFT_ALGORITHM_PAT, "pat", "gather and scatter in log2 steps, one rank per node")
enum weft_algorithm { WEFT_ALGORITHM_LIST (WEFT_WORD_ID) WEFT_N_ALGORITHM };
extern const char *const weft_algorithm_words[];

#define WEFT_REDUCTION_ORDER_LIST(X)                                                               \
  X (WEFT_ORDER_FAST, "fast", "the order that is fastest for the collective")                      \
  X (WEFT_ORDER_CANONICAL, "canonical", "one order of summation for every strategy")
enum weft_reduction_order { WEFT_REDUCTION_ORDER_LIST (WEFT_WORD_ID) };
extern const char *const weft_reduction_order_words[];

#define WEFT_OPTIMIZER_LIST(X)                                                                     \
  X (WEFT_ADAM, "adam", "AdamW with fp32 moments")                                                 \
  X (WEFT_ADAMW_8BIT, "adamw_8bit", "AdamW whose moments have 8 bits, with a scale per 256")       \
  X (WEFT_MUON, "muon", "orthogonalised momentum for matrices of layers, AdamW for the rest")
enum weft_optimizer { WEFT_OPTIMIZER_LIST (WEFT_WORD_ID) };
extern const char *const weft_optimizer_words[];

/* Elements that share a scale of 8-bit moments (bitsandbytes optim/optimizer.py, blocksize; the
 * paper, arXiv 2110.02861, has 2048). */
#define WEFT_8BIT_BLOCK 256

/* Factors of the orthogonalised momentum of Muon, for a matrix of `out` rows and `in` columns
 * (NVIDIA Emerging-Optimizers, muon.py, get_muon_scale_factor). */
#define WEFT_MUON_SCALE_LIST(X)                                                                    \
  X (WEFT_MUON_SPECTRAL, "spectral", "sqrt (max (out, in)), Moonshot AI's (arXiv 2502.16982)")     \
  X (WEFT_MUON_UNIT_RMS_NORM, "unit_rms_norm", "sqrt (out / in), Scion's (arXiv 2502.07529)")      \
  X (WEFT_MUON_SHAPE_SCALING, "shape_scaling", "sqrt (max (1, out / in)), Keller Jordan's")
enum weft_muon_scale { WEFT_MUON_SCALE_LIST (WEFT_WORD_ID) };
extern const char *const weft_muon_scale_words[];

/* Precision of the products of Muon (torch.set_float32_matmul_precision). */
#define WEFT_MUON_PRECISION_LIST(X)                                                                \
  X (WEFT_MUON_MEDIUM, "medium", "matrices and results in bf16")                                   \
  X (WEFT_MUON_HIGHEST, "highest", "matrices and results in fp32")
enum weft_muon_precision { WEFT_MUON_PRECISION_LIST (WEFT_WORD_ID) };
extern const char *const weft_muon_precision_words[];

/* Coefficients of the Newton-Schulz steps of Muon; the numbers are in kernels/muon.c. */
#define WEFT_MUON_COEFFICIENT_LIST(X)                                                              \
  X (WEFT_MUON_SIMPLE, "simple", "Keller Jordan's, the same in every step")                        \
  X (WEFT_MUON_QUINTIC, "quintic", "five steps that modded-nanogpt tuned, repeated as a cycle")    \
  X (WEFT_MUON_POLAR_EXPRESS, "polar_express", "arXiv 2505.16932; the last step repeats")          \
  X (WEFT_MUON_CANS, "cans", "arXiv 2506.10935; the last step repeats")                            \
  X (WEFT_MUON_AOL, "aol", "four steps of Flash Newton-Schulz, repeated as a cycle")
enum weft_muon_coefficient { WEFT_MUON_COEFFICIENT_LIST (WEFT_WORD_ID) WEFT_N_MUON_COEFFICIENT };
extern const char *const weft_muon_coefficient_words[];

#define WEFT_MUON_TP_LIST(X)                                                                       \
  X (WEFT_MUON_DUPLICATED, "duplicated", "every tensor parallel rank has the whole matrix")        \
  X (WEFT_MUON_BLOCKWISE, "blockwise", "every rank orthogonalises its own part")
enum weft_muon_tp { WEFT_MUON_TP_LIST (WEFT_WORD_ID) };
extern const char *const weft_muon_tp_words[];

#define WEFT_FLOPS_CONVENTION_LIST(X)                                                              \
  X (WEFT_COUNT_CAUSAL, "causal", "only pairs that the mask leaves: about half of attention")      \
  X (WEFT_COUNT_FULL, "full", "all pairs, as in the papers of PaLM and Megatron-LM")
enum weft_flops_convention { WEFT_FLOPS_CONVENTION_LIST (WEFT_WORD_ID) };
extern const char *const weft_flops_convention_words[];

#define WEFT_SHARDING_LIST(X)                                                                      \
  X (WEFT_NO_SHARD, "no_shard", "every rank holds everything (ZeRO-0)")                            \
  X (WEFT_SHARD_OPTIM, "optim", "master weights and moments are sharded (ZeRO-1)")                 \
  X (WEFT_SHARD_GRADS, "optim_grads", "gradients are sharded too (ZeRO-2)")                        \
  X (WEFT_SHARD_PARAMS, "optim_grads_params", "weights are sharded too (ZeRO-3)")
enum weft_sharding { WEFT_SHARDING_LIST (WEFT_WORD_ID) };
extern const char *const weft_sharding_words[];

/* The last column lists the classes whose knobs this data-parallel wrapper accepts; the first class
 * is its own. */
#define WEFT_DISTRIBUTED_LIST(X)                                                                   \
  X (WEFT_MEGATRON_DDP, "megatron_ddp", "Megatron-Core's bucketed wrapper",                        \
     "DistributedDataParallelConfig DistributedDataParallel MegatronFSDPConfig")                   \
  X (WEFT_MEGATRON_FSDP, "megatron_fsdp", "the same as use_megatron_fsdp",                         \
     "MegatronFSDPConfig DistributedDataParallelConfig DistributedDataParallel")                   \
  X (WEFT_FSDP2, "fsdp2", "PyTorch's fully_shard, as NeMo Automodel sets it up", "FSDP2Config")    \
  X (WEFT_TORCH_DDP, "ddp", "PyTorch's DistributedDataParallel", "DDPConfig")
enum weft_distributed { WEFT_DISTRIBUTED_LIST (WEFT_WORD_ID) WEFT_N_DISTRIBUTED };
extern const char *const weft_distributed_words[];

#define WEFT_PARALLELISM_LIST(X)                                                                   \
  X (WEFT_PARALLELISM_TP, "tp", "tensor parallelism")                                              \
  X (WEFT_PARALLELISM_SP, "sp", "sequence parallelism")                                            \
  X (WEFT_PARALLELISM_CP, "cp", "context parallelism")                                             \
  X (WEFT_PARALLELISM_PP, "pp", "pipeline parallelism")                                            \
  X (WEFT_PARALLELISM_EP, "ep", "expert parallelism")                                              \
  X (WEFT_PARALLELISM_NONE, "none", "data parallelism alone")
enum weft_parallelism { WEFT_PARALLELISM_LIST (WEFT_WORD_ID) WEFT_N_PARALLELISM };
extern const char *const weft_parallelism_words[];

#define WEFT_P2P_BACKEND_LIST(X)                                                                   \
  X (WEFT_P2P_NCCL, "nccl", "sends occupy streaming multiprocessors")                              \
  X (WEFT_P2P_UCC, "ucc", "sends occupy no streaming multiprocessors")
enum weft_p2p_backend { WEFT_P2P_BACKEND_LIST (WEFT_WORD_ID) };
extern const char *const weft_p2p_backend_words[];

#define WEFT_SYNC_LIST(X)                                                                          \
  X (WEFT_SYNC_ALIGNED, "aligned", "at the same slot of the schedule on all stages")
enum weft_sync { WEFT_SYNC_LIST (WEFT_WORD_ID) };
extern const char *const weft_sync_words[];

#define WEFT_BOOTSTRAP_LIST(X)                                                                     \
  X (WEFT_BOOTSTRAP_NCCL, "nccl", "handles travel over NCCL")                                      \
  X (WEFT_BOOTSTRAP_MPI, "mpi", "handles travel over MPI")                                         \
  X (WEFT_BOOTSTRAP_GLOO, "gloo", "handles travel over TCP")
enum weft_bootstrap { WEFT_BOOTSTRAP_LIST (WEFT_WORD_ID) };
extern const char *const weft_bootstrap_words[];

#define WEFT_BACKEND_LIST(X)                                                                       \
  X (WEFT_BACKEND_NCCL, "nccl", "GPUs")                                                            \
  X (WEFT_BACKEND_GLOO, "gloo", "CPUs")
enum weft_backend { WEFT_BACKEND_LIST (WEFT_WORD_ID) };
extern const char *const weft_backend_words[];

#define WEFT_LOSS_FUSION_LIST(X)                                                                   \
  X (WEFT_LOSS_NATIVE, "native", "two all-reduces over the tensor parallel ranks")                 \
  X (WEFT_LOSS_TE, "te", "one all-gather of per-rank statistics")                                  \
  X (WEFT_LOSS_LINEAR, "linear", "fused with the output head, by chunks of tokens")
enum weft_loss_fusion { WEFT_LOSS_FUSION_LIST (WEFT_WORD_ID) };
extern const char *const weft_loss_fusion_words[];

#define WEFT_CP_COMM_LIST(X)                                                                       \
  X (WEFT_CP_P2P, "p2p", "ring attention: each rank passes keys and values to the next")           \
  X (WEFT_CP_ALL_GATHER, "all_gather", "all-gather of keys and values before attention")           \
  X (WEFT_CP_A2A, "a2a", "Ulysses: all-to-all; a rank gets whole sequences of some heads")         \
  X (WEFT_CP_A2A_P2P, "a2a+p2p", "Ulysses in groups of neighbours, a ring between groups")
enum weft_cp_comm { WEFT_CP_COMM_LIST (WEFT_WORD_ID) };
extern const char *const weft_cp_comm_words[];

#define WEFT_GRAD_SCALE_LIST(X)                                                                    \
  X (WEFT_GRAD_SCALE_NONE, "none", "the loss is scaled in fp16 only")                              \
  X (WEFT_GRAD_SCALE_LOSS, "loss_scale", "the loss is scaled in every precision")
enum weft_grad_scale { WEFT_GRAD_SCALE_LIST (WEFT_WORD_ID) };
extern const char *const weft_grad_scale_words[];

#define WEFT_FINALIZE_LIST(X)                                                                      \
  X (WEFT_FINALIZE_STANDARD, "standard", "finalize_model_grads completes the gradients")           \
  X (WEFT_FINALIZE_NONE, "none", "gradients stay as the backward passes left them")
enum weft_finalize { WEFT_FINALIZE_LIST (WEFT_WORD_ID) };
extern const char *const weft_finalize_words[];

#define WEFT_TIMERS_LIST(X)                                                                        \
  X (WEFT_TIMERS_NONE, "none", "no phase is measured")                                             \
  X (WEFT_TIMERS_STANDARD, "standard", "the phases of Megatron-Core, under its names")
enum weft_timers { WEFT_TIMERS_LIST (WEFT_WORD_ID) };
extern const char *const weft_timers_words[];

#define WEFT_FP8_RECIPE_LIST(X)                                                                    \
  X (WEFT_FP8_DELAYED, "delayed", "one scale per tensor, from earlier steps")                      \
  X (WEFT_FP8_TENSORWISE, "tensorwise", "one scale per tensor, computed just before use")          \
  X (WEFT_FP8_BLOCKWISE, "blockwise", "one fp32 scale per 128 elements")                           \
  X (WEFT_FP8_MX, "mxfp8", "one power-of-two scale per 32 elements")
enum weft_fp8_recipe { WEFT_FP8_RECIPE_LIST (WEFT_WORD_ID) };
extern const char *const weft_fp8_recipe_words[];

#define WEFT_FP8_FORMAT_LIST(X)                                                                    \
  X (WEFT_FP8_HYBRID, "hybrid", "e4m3, and e5m2 for output gradients")                             \
  X (WEFT_FP8_E4M3, "e4m3", "e4m3 throughout")
enum weft_fp8_format { WEFT_FP8_FORMAT_LIST (WEFT_WORD_ID) };
extern const char *const weft_fp8_format_words[];

#define WEFT_FP8_PRICE_LIST(X)                                                                     \
  X (WEFT_FP8_PRICE_RECIPE, "recipe", "the scaling of fp8_recipe")                                 \
  X (WEFT_FP8_PRICE_ROWWISE, "rowwise", "one scale for each row of both operands (torchao)")       \
  X (WEFT_FP8_PRICE_NVFP4, "nvfp4", "4-bit floats with one fp8 scale per 16 elements")
enum weft_fp8_price { WEFT_FP8_PRICE_LIST (WEFT_WORD_ID) };
extern const char *const weft_fp8_price_words[];

#define WEFT_OFFLOAD_LIST(X) X (WEFT_OFFLOAD_CPU, "cpu", "shards and optimizer state on the host")
enum weft_offload { WEFT_OFFLOAD_LIST (WEFT_WORD_ID) };
extern const char *const weft_offload_words[];

/* Parses names that are separated by commas or blanks to bits 1 << index in `words`, which ends
 * with NULL. *unknown (may be NULL) receives the first name that is not in it, or NULL; the caller
 * frees it. */
uint32_t weft_word_set (const char *names, const char *const *words, char **unknown);
