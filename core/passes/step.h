/* step.h - building one role's program: an ordered list of passes over one shared state.
 *
 *   params     which tensors this stage holds, their flat layout and buckets
 *   accumulate where gradients of microbatches go and how they are added
 *   layer      forward and backward of one transformer layer, out of linear, norm, attention, mlp
 *   context    attention of ranks that share sequences
 *   latent     multi-latent attention: what heads read, out of narrow latents
 *   moe        a layer of experts (moe.h): router, dispatch, experts
 *   recompute  what of a stage's layers is kept between the two, and what is run again
 *   tensor     what tensor parallel ranks share out, and how they meet
 *   autocast   products in another type than weights and the residual stream
 *   ends       embedding on the first stage, head and loss (loss.c, head_chunks.c) on the last
 *   mtp        layers after the last, each of which predicts a token further ahead
 *   exchange   sends and receives between the cells of the grid; of several chunks exchange_interleaved.c
 *   ddp        gradient buckets, launched by the last gradient; parameter gathers before first use
 *   aligned    the same at slots of the interleaved schedule
 *   fsdp       weights and gradients of which a rank keeps slices, unit by unit (fsdp.h)
 *   offload    activations of the first layers, which wait for backward on the host
 *   wrapper    which of these a data-parallel strategy is made of: one table of functions for each
 *   host optimizer  the part of the optimizer that lies on the host: copies, Adam
 *   join       a sum and its norm, a product and gelu, as one op where the stack has such a kernel
 *   fuse       enable_compile: which pointwise ops make one kernel
 *   timers     the ends of phases that are measured
 *   finish     what follows the last backward: joins, tied embedding, norm, clip, Adam, gather
 *
 * A pass appends ops through weft_emit(), which asks the data-parallel pass before a parameter is used and
 * tells it after a gradient is complete: units, tensor parallel collectives and offload hook in there. */
#pragma once
#include "core/job/job.h"
#include "core/program/layout.h"
#include "core/program/mesh.h"
#include "core/job/pipeline.h"
#include "core/program/program.h"
#include "core/job/stages.h"

/* Parameters of one layer, by meaning; WEFT_NO_PARAM where a model has none. */
#define WEFT_LAYER_PARAM_LIST(X)                                                                   \
  X (WEFT_MTP_WORDS_NORM_WEIGHT, "mtp_words_norm.weight")                                          \
  X (WEFT_MTP_WORDS_NORM_BIAS, "mtp_words_norm.bias")                                              \
  X (WEFT_MTP_STREAM_NORM_WEIGHT, "mtp_stream_norm.weight")                                        \
  X (WEFT_MTP_STREAM_NORM_BIAS, "mtp_stream_norm.bias")                                            \
  X (WEFT_MTP_PROJ_WEIGHT, "mtp_proj.weight")                                                      \
  X (WEFT_MTP_PROJ_BIAS, "mtp_proj.bias")                                                          \
  X (WEFT_NORM1_WEIGHT, "norm1.weight")                                                            \
  X (WEFT_NORM1_BIAS, "norm1.bias")                                                                \
  X (WEFT_QKV_WEIGHT, "qkv.weight")                                                                \
  X (WEFT_QKV_BIAS, "qkv.bias")                                                                    \
  X (WEFT_Q_NORM_WEIGHT, "q_norm.weight")                                                          \
  X (WEFT_K_NORM_WEIGHT, "k_norm.weight")                                                          \
  X (WEFT_PROJ_WEIGHT, "proj.weight")                                                              \
  X (WEFT_PROJ_BIAS, "proj.bias")                                                                  \
  X (WEFT_ATTENTION_NORM_WEIGHT, "attention_norm.weight")                                          \
  X (WEFT_ATTENTION_NORM_BIAS, "attention_norm.bias")                                              \
  X (WEFT_NORM2_WEIGHT, "norm2.weight")                                                            \
  X (WEFT_NORM2_BIAS, "norm2.bias")                                                                \
  X (WEFT_FC1_WEIGHT, "fc1.weight")                                                                \
  X (WEFT_FC1_BIAS, "fc1.bias")                                                                    \
  X (WEFT_FC2_WEIGHT, "fc2.weight")                                                                \
  X (WEFT_FC2_BIAS, "fc2.bias")                                                                    \
  X (WEFT_MLP_NORM_WEIGHT, "mlp_norm.weight")                                                      \
  X (WEFT_MLP_NORM_BIAS, "mlp_norm.bias")                                                          \
  X (WEFT_Q_DOWN_WEIGHT, "q_down.weight")                                                          \
  X (WEFT_Q_DOWN_BIAS, "q_down.bias")                                                              \
  X (WEFT_Q_LATENT_NORM_WEIGHT, "q_latent_norm.weight")                                            \
  X (WEFT_Q_LATENT_NORM_BIAS, "q_latent_norm.bias")                                                \
  X (WEFT_Q_UP_WEIGHT, "q_up.weight")                                                              \
  X (WEFT_Q_UP_BIAS, "q_up.bias")                                                                  \
  X (WEFT_KV_DOWN_WEIGHT, "kv_down.weight")                                                        \
  X (WEFT_KV_DOWN_BIAS, "kv_down.bias")                                                            \
  X (WEFT_KV_LATENT_NORM_WEIGHT, "kv_latent_norm.weight")                                          \
  X (WEFT_KV_LATENT_NORM_BIAS, "kv_latent_norm.bias")                                              \
  X (WEFT_KV_UP_WEIGHT, "kv_up.weight")                                                            \
  X (WEFT_KV_UP_BIAS, "kv_up.bias")                                                                \
  X (WEFT_ROUTER_WEIGHT, "router.weight")                                                          \
  X (WEFT_ROUTER_BIAS, "router.bias")                                                              \
  X (WEFT_EXPERT_FC1, "experts.fc1.weight")                                                        \
  X (WEFT_EXPERT_FC2, "experts.fc2.weight")                                                        \
  X (WEFT_SHARED_FC1_WEIGHT, "shared.fc1.weight")                                                  \
  X (WEFT_SHARED_FC1_BIAS, "shared.fc1.bias")                                                      \
  X (WEFT_SHARED_FC2_WEIGHT, "shared.fc2.weight")                                                  \
  X (WEFT_SHARED_FC2_BIAS, "shared.fc2.bias")                                                      \
  X (WEFT_SHARED_GATE_WEIGHT, "shared.gate.weight")                                                \
  X (WEFT_SHARED_GATE_BIAS, "shared.gate.bias")                                                    \
  X (WEFT_MTP_NORM_WEIGHT, "mtp_norm.weight")                                                      \
  X (WEFT_MTP_NORM_BIAS, "mtp_norm.bias")
enum weft_layer_param {
#define WEFT_PARAM_ROW(id, name) id,
  WEFT_LAYER_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
      WEFT_N_LAYER_PARAM
};

/* Parameters at the two ends of the pipeline. */
#define WEFT_END_PARAM_LIST(X)                                                                     \
  X (WEFT_EMBED_WEIGHT, "embedding.weight")                                                        \
  X (WEFT_POSITION_WEIGHT, "position.weight")                                                      \
  X (WEFT_EMBED_NORM_WEIGHT, "embedding_norm.weight")                                              \
  X (WEFT_EMBED_NORM_BIAS, "embedding_norm.bias")                                                  \
  X (WEFT_FINAL_NORM_WEIGHT, "final_norm.weight")                                                  \
  X (WEFT_FINAL_NORM_BIAS, "final_norm.bias")                                                      \
  X (WEFT_HEAD_WEIGHT, "head.weight")
enum weft_end_param {
#define WEFT_PARAM_ROW(id, name) id,
  WEFT_END_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
      WEFT_N_END_PARAM
};

#define WEFT_NO_PARAM 0xffffffffu

/* What forward of one layer and microbatch leaves for backward: buffer numbers, or WEFT_NO_BUF. */
struct weft_saved {
  uint32_t x, n1, raw, qkv, o, lse, x1, n2, u, a;
  uint32_t made, mlp; /* what attention and MLP make, where it is normalised before it is added */
  uint32_t dealt_o; /* o as attention has it where that is not what is mapped on: context.c, attention.c */
  uint32_t scores, choice, prob, row, counts, sent, back, xp, pp, xw, eu, ea; /* of experts: moe.h */
  uint32_t su, sa, sy, gate;                            /* of shared experts */
  uint32_t ql, qn, kl, kn, kp; /* latents of queries, of keys, and positions of keys: latent.c */
  uint32_t p, pd;                 /* probabilities of unfused attention, and after dropout */
  uint32_t mask_p, mask_o, mask_y; /* of dropout: of probabilities, behind attention and MLP */
};

/* A layer's activations on the host, for one microbatch: offload.c. */
struct weft_offloaded {
  struct weft_saved host;
  uint32_t sent; /* the last copy of them to the host */
};

/* The gradient of one tensor on its way through the microbatches: accumulate.c. */
struct weft_sum {
  uint32_t main; /* buffer that holds the total at the end */
  uint64_t n;    /* elements */
  enum weft_lane lane; /* where microbatches are added */
  GArray *held;  /* canonical: nodes of the tree (fold.h) that wait for their siblings */
  uint32_t sources; /* canonical, of experts: replicas whose tokens are summed by themselves, slice by
                       slice of main, until all microbatches are there; else 0 */
  enum weft_group_kind sequence; /* canonical: who has other parts of the sequences */
  uint32_t total;   /* and then added to this */
  gboolean each;    /* they are added in every microbatch: main holds the total, as of others */
  const struct weft_chunk *chunk; /* of whose microbatches it is the node; NULL: of all */
  uint32_t pieces;  /* so many of one microbatch are its leaves, in place of microbatches; or 0 */
};

/* A bucket on its way: views of the flat buffers and the collectives already launched. */
struct weft_bucket_state {
  uint32_t grads, grad_shard, weights, weight_shard; /* buffers; grads and weights of a unit that is
                                                        not whole at the moment: WEFT_NO_BUF */
  uint32_t grad_slice, weight_slice; /* of units: what grad_shard and weight_shard are, or are a
                                        part of */
  gboolean put_together;         /* the slice of weights, in this step: fsdp_outer.c */
  struct weft_sum sum;           /* of slices, where every microbatch is reduced */
  uint32_t master, m, v, grad32; /* this rank's optimizer state; WEFT_NO_BUF where there is none */
  uint64_t n_host;               /* elements at the end of its slice whose state the host has */
  gboolean unit;                 /* Megatron-FSDP: of a layer, let go after its passes */
  uint32_t first_param, end_param; /* its tensors, and perhaps others', lie between the two */
  uint32_t exchanged;            /* slices of all ranks, to be added; or WEFT_NO_BUF */
  uint32_t n_param, n_ready;     /* FSDP2: gradients of this microbatch */
  uint32_t reduced;              /* the collective, or WEFT_NO_OP */
  uint32_t gathered;             /* likewise, of its parameters */
};

/* Buckets whose collectives are one launch. */
struct weft_group_state {
  uint32_t n_param, n_ready; /* gradients: of a microbatch, and so far of the step, or of this
                                microbatch where it is reduced */
  uint32_t n_due;            /* of the step: tensors times microbatches, a shared head's too */
  gboolean launched;         /* its gradients are on their way, or need none */
  gboolean whole;            /* what follows its gathers was done */
  gboolean idle;             /* weights are there, but let go when others have to be gathered */
  uint32_t entered;          /* twice the cell (from 1), and 1 forward: of who last asked for what follows it */
};

/* A flat buffer: tensors that are stored alike and whose gradients are accumulated alike
 * (Megatron-Core param_and_grad_buffer.py keys buffers by both types and by whether the tensors are
 * experts', which are reduced over other ranks). */
struct weft_flat {
  enum weft_dtype dtype, grad_dtype;
  gboolean expert; /* ranks share the experts out */
  gboolean cut_weights, cut_grads; /* replicas keep slices */
  uint32_t weights, grads;
  uint32_t chunk; /* each has buffers of its own, as each is wrapped by itself */
};

/* A reduce-scatter that kernels do not wait for yet: fsdp.c. */
struct weft_reduction {
  uint32_t group, op;
};

/* A weight gradient that is still to come: delay_wgrad_compute, and cells I and W of the grid. */
struct weft_delayed {
  const char *name;
  uint32_t layer, weight, bias; /* parameters */
  uint32_t dy, x;
  uint64_t n, k;
  uint32_t counts; /* rows of each expert; of other maps WEFT_NO_BUF */
  uint32_t micro, chunk;
  enum weft_layer_param which;
};

/* Columns of what a layer works with, as this rank has them. */
struct weft_widths {
  uint64_t h;             /* the residual stream */
  uint64_t heads, groups; /* of queries; of keys and values */
  uint64_t together;      /* ranks that share a group, and in canonical order all attend to all of it */
  uint64_t q, qkv;        /* what attention makes, heads of values; what it reads */
  uint64_t made, own;     /* what the map to it makes, less where ranks share a group; what of the result
                             this rank maps on */
  uint64_t f, up;         /* inside the MLP; what its first map makes: twice as much with a gate */
  uint64_t shared, vocab; /* inside shared experts; logits */
};

/* How transfers are posted: as one launch, or one by one, and the next kernel waits for them; or one by
 * one beside kernels, which wait for what they read. */
enum weft_post { WEFT_POST_GROUP, WEFT_POST_EACH, WEFT_POST_ASIDE };

/* One side of a transfer to or from a neighbour. */
struct weft_transfer {
  enum weft_op_kind kind;
  int peer;
  uint32_t buf;
  struct weft_cell cell;
};

/* The exchange that is being posted, the newest transfer on each of its streams, and its last send. */
enum { WEFT_N_EXCHANGE = 2 };
struct weft_posting {
  enum weft_post how;
  GArray *queue; /* struct weft_transfer */
  uint32_t newest[WEFT_N_EXCHANGE], sent;
};

/* A piece of the model that a role holds: a stage. */
struct weft_chunk {
  uint32_t stage, copy;     /* of which copy of the model */
  uint32_t first_layer, n_layers;
  uint32_t n_mtp;           /* layers of multi-token prediction, numbered after the model's last */
  uint32_t slot;            /* its first layer among those of the role */
  gboolean embedding, head;
  uint32_t first_micro, n_micro; /* microbatches that go through it */
  uint32_t n_backward;      /* of which the backward has begun so far */
};

/* Groups of buckets that are gathered before their first use, one after the other: those of a chunk,
 * and by themselves those of its experts (layout.h). */
struct weft_chain {
  uint32_t n_gather, next; /* how many, and of them so far */
};

struct weft_step;

/* A data-parallel strategy, as what it does at the places of a step that concern it.  NULL: nothing.
 * wrapper.c has the table of all of them. */
struct weft_wrapper {
  /* Where tensors lie. */
  void (*lay_out) (struct weft_layout *layout, const struct weft_layout_rule *rule,
                   const struct weft_layout_param *param, uint32_t n_param);
  gboolean units;                     /* in registration order, a bucket for each unit */
  gboolean shard_grads, shard_weights;  /* what a replica keeps only a slice of, where there are
                                           others: struct weft_flat */
  gboolean overwrites;                /* gradients are not cleared when the step begins */

  void (*start) (struct weft_step *s);                       /* the step begins */
  void (*enter_pass) (struct weft_step *s);                  /* a cell of the grid begins */
  void (*enter) (struct weft_step *s, uint32_t layer);       /* a layer begins a pass */
  void (*before_use) (struct weft_step *s, uint32_t param);  /* a kernel is about to read it */
  void (*leave) (struct weft_step *s, uint32_t layer);       /* the pass is through with it */
  void (*through) (struct weft_step *s, uint32_t param);     /* and with a part of it, or an end */

  /* The operand in which a kernel leaves the gradient of one microbatch, and what follows when it
   * has; the same for a tied head on the embedding's own stage. */
  struct weft_use (*grad_begin) (struct weft_step *s, uint32_t param);
  void (*grad_end) (struct weft_step *s, uint32_t param, struct weft_use grad);
  struct weft_use (*head_begin) (struct weft_step *s);
  void (*head_end) (struct weft_step *s, struct weft_use grad);

  void (*leave_pass) (struct weft_step *s);                  /* a cell of the grid ends */
  void (*finish) (struct weft_step *s);                      /* join what was launched */
  uint32_t (*reduced) (struct weft_step *s, uint32_t param); /* its gradient, as Adam will find it */
  uint32_t (*reduced_head) (struct weft_step *s);            /* of a tied head with its own sum */
  void (*gather_all) (struct weft_step *s);                  /* after the update */
};

struct weft_step {
  const struct weft_job *job;
  const union weft_model *model;
  const union weft_strategy *strategy;
  const struct weft_mesh *mesh;
  weft_builder *b;

  uint32_t role, n_micro;
  weft_grid *grid;
  struct weft_chunk *chunk;
  struct weft_chain *chain;       /* [2 n_chunks] */
  uint32_t n_chunks, n_layers;    /* of this role */
  uint64_t tokens;                /* of one microbatch on this rank */
  uint64_t rows;                  /* of the residual stream: tokens, or this rank's share of them */
  struct weft_widths width;
  uint32_t attention_leaves, mlp_leaves, shared_leaves, expert_leaves, vocab_leaves; /* tensor.c */
  gboolean canonical;             /* sums over sequences are taken as fold.h says */
  enum weft_dtype dtype, p2p_dtype;
  enum weft_dtype grad_dtype;     /* what kernels leave and microbatches are added in */
  enum weft_dtype weight_dtype, main_dtype; /* of the flat buffers: what the optimizer works on */
  enum weft_dtype output_dtype;   /* of what one layer hands to the next */
  enum weft_dtype product_dtype;  /* of matrix products and what lies between them: autocast.c */
  enum weft_dtype linear_dtype;   /* of what linear maps of layers read: product_dtype, or fp8 */
  struct weft_fp8_products *fp8;  /* then: fp8_products.c; or NULL */

  /* parameters */
  GArray *params;                 /* struct weft_param, registration order */
  uint32_t *layer_param;          /* [n_layers][WEFT_N_LAYER_PARAM] -> parameter or WEFT_NO_PARAM */
  uint32_t end_param[WEFT_N_END_PARAM];
  struct weft_layout layout;
  GArray *flat;                   /* struct weft_flat, as the layout numbers them */
  struct weft_sum *sum;           /* of each parameter, and last of a tied head */
  struct weft_bucket_state *bucket;
  struct weft_group_state *group;
  uint32_t *weight_view, *grad_view; /* of each parameter; WEFT_NO_BUF while a unit is not whole */
  uint32_t unit_modules;          /* 1 << enum weft_unit: modules that are units of Megatron-FSDP */
  uint64_t unit_size;             /* elements that are on their way at one time: fsdp.c */
  uint32_t *turned, *turned_scale; /* of each parameter in fp8: the copy that lies the other way round,
                                      WEFT_NO_BUF while there is none, and its scale */
  gboolean has_states;            /* masters and moments are there */
  uint32_t scales;                /* a float of each parameter in E4M3, or WEFT_NO_BUF */
  gboolean *grad_shared;          /* of each parameter: tensor parallel ranks have parts of its gradient */
  gboolean *grad_left;            /* of each parameter: a kernel left a gradient in this microbatch */
  const struct weft_wrapper *wrapper;
  void *own;                      /* the wrapper's; g_free() */
  gboolean shard_optimizer;       /* replicas keep slices of the optimizer's state */
  gboolean on_host;               /* weights, gradients and moments lie there: offload_policy */
  GArray *wait_for;               /* ops that the next kernel waits for */
  uint32_t synced;                /* the newest copy that the host waited for, or WEFT_NO_OP */
  GArray *reducing;               /* reductions that the next kernels run beside, oldest first */

  /* activations between forward and backward */
  struct weft_saved *saved;       /* [n_micro][n_layers] */
  struct weft_saved_end *saved_end;
  struct weft_saved_mtp *saved_mtp; /* [n_micro][mtp_num_layers] */
  uint32_t n_offload;             /* layers whose activations wait on the host: offload.c */
  struct weft_offloaded *offloaded; /* [n_micro][n_offload] */
  struct weft_saved reload[2];    /* standing buffers that take in turn what comes back */
  uint32_t *output, *input_grad;  /* [n_micro][n_chunks]: what a stage takes, then passes on */
  uint32_t cast_cache, *cast_view; /* weights of this pass as products read them, and by parameter */
  struct weft_job_recompute recompute;
  GArray *deferred;               /* microbatches of the head, likewise */
  gboolean *partial;              /* by chunk and microbatch: not fully recomputed */
  GArray *delayed;                /* struct weft_delayed, in the order in which they are run */

  /* where ops are being added */
  uint32_t pass;                  /* cells of the grid begun so far */
  enum weft_phase cell;           /* of the one that was begun last */
  struct weft_op at;              /* layer, micro, chunk, phase, flags of the next op */
  uint32_t backward_layer;        /* whose backward runs, or is prepared by forward that runs again */
  gboolean last_micro;            /* gradients of this backward are final: buckets may go */
  uint32_t timed;                 /* the newest end of a phase that is measured, or WEFT_NO_OP */
  uint32_t barrier;               /* what ranks add up to meet, or WEFT_NO_BUF */
  uint32_t exchange[WEFT_N_EXCHANGE]; /* p2p ops the next kernel waits for, or WEFT_NO_OP */
  struct weft_posting posting;
  uint32_t shape;                 /* what is told of tensors that are sent: variable_seq_lengths */
  struct weft_slots *slots;       /* exchange_interleaved.c */
  struct weft_moves *moves;       /* exchange_free.c */
  uint32_t overlap_room[WEFT_N_LAYER_PARAM * 3]; /* by map and pass: overlap.c */
  uint32_t joined;                /* the newest sum of parts that tensor parallel ranks have of a gradient */
  uint32_t loss, squares, factor; /* scalars */
  uint32_t mtp_loss;              /* likewise, one for each depth, or WEFT_NO_BUF */
  gboolean scales_loss;           /* gradients are those of the loss times a scale, until finish.c */
  uint32_t found;                 /* then: whether one is not finite, or WEFT_NO_BUF */
  uint32_t expert_squares;        /* of experts that ranks share out, or WEFT_NO_BUF */
  GArray *host_parts;             /* of optimizer state: host_optimizer.c */
  uint32_t host_factor;           /* the host's copy of factor, or WEFT_NO_BUF */
  uint32_t host_wait;             /* a copy that the next update on the host waits for */
  struct weft_balance *balance;   /* of experts: balance.c; or NULL */
  uint32_t count;                 /* tokens of the batch: calculate_per_token_loss, or WEFT_NO_BUF */
};

/* The chunk whose ops are being added. */
static inline struct weft_chunk *
weft_step_chunk (const struct weft_step *s)
{
  return &s->chunk[s->at.chunk];
}

/* Whether the role has the embedding, or the output head, in any of its chunks. */
gboolean weft_step_has_embedding (const struct weft_step *s);
gboolean weft_step_has_head (const struct weft_step *s);
const struct weft_chunk *weft_step_head (const struct weft_step *s); /* that chunk, or NULL */

/* The place of a layer among those that the role holds. */
uint32_t weft_step_slot (const struct weft_step *s, uint32_t layer);

/* What a chunk takes or passes on, for one microbatch. */
static inline uint32_t
weft_step_passed (const struct weft_step *s, uint32_t micro, uint32_t chunk)
{
  return micro * s->n_chunks + chunk;
}

/* Whether what runs is one half of a split backward. */
static inline gboolean
weft_step_is_split (const struct weft_step *s)
{
  return s->cell == WEFT_PHASE_INPUT_GRAD || s->cell == WEFT_PHASE_WEIGHT_GRAD;
}

/* Whether weight gradients do not follow input gradients at once. */
static inline gboolean
weft_step_delays (const struct weft_step *s)
{
  return s->strategy->delay_wgrad_compute || weft_step_is_split (s);
}

/* Whether the update is told by a factor how much of the gradient to take, or nothing. */
static inline gboolean
weft_step_has_factor (const struct weft_step *s)
{
  return s->job->train.clip_grad > 0 || s->scales_loss;
}

static inline const struct weft_flat *
weft_step_flat (const struct weft_step *s, uint32_t bucket)
{
  return &g_array_index (s->flat, struct weft_flat, s->layout.bucket[bucket].buffer);
}

/* Experts are reduced among other ranks.  Buckets beyond those of the layout, of a tied head and of
 * PyTorch's DDP, have none. */
static inline gboolean
weft_bucket_of_experts (const struct weft_step *s, uint32_t bucket)
{
  return bucket < s->layout.n_bucket && weft_step_flat (s, bucket)->expert;
}

/* Ranks that hold a bucket's tensors and average its gradients; those that cut its optimizer state into
 * slices. */
static inline enum weft_group_kind
weft_bucket_replicas (const struct weft_step *s, uint32_t bucket)
{
  return weft_bucket_of_experts (s, bucket) ? WEFT_GROUP_EDP : WEFT_GROUP_DP;
}

static inline enum weft_group_kind
weft_bucket_sharing (const struct weft_step *s, uint32_t bucket)
{
  return weft_bucket_of_experts (s, bucket) ? weft_mesh_expert_sharing (s->mesh)
                                            : weft_mesh_sharing (s->mesh);
}

/* The pass is through with the module that holds a parameter: half a layer, embedding or head. */
static inline void
weft_step_through (struct weft_step *s, uint32_t param)
{
  if (s->wrapper->through && param != WEFT_NO_PARAM)
    s->wrapper->through (s, param);
}

/* The whole list of passes: the program of one role, offsets not yet planned. */
weft_program *weft_step_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);

/* init.c: the program of what happens once before the first step; whether anything does; and whether
 * replicas are sent weights: there are several of them, and each holds its weights whole. */
weft_program *weft_init_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);
gboolean weft_init_does_something (const struct weft_job *job);
gboolean weft_init_broadcasts (const struct weft_job *job);
gboolean weft_init_keeps_slices (const struct weft_job *job);

/* The mesh of a job. */
struct weft_mesh weft_step_mesh (const struct weft_job *job);

/* A piece of the model, as a rank holds it. */
struct weft_stage {
  uint32_t first_layer, n_layers;
  gboolean embedding, head; /* head: final norm, output head and loss */
};
struct weft_stage weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank,
                                 uint32_t chunk);

/* Before the first pass and after the last. */
void weft_step_begin (struct weft_step *s);
void weft_step_end (struct weft_step *s);

/* ---------------------------------------------------------------- emitting */

#define WEFT_R(b) { .buf = (b), .read = 1 }
#define WEFT_W(b) { .buf = (b), .write = 1 }
#define WEFT_RW(b) { .buf = (b), .read = 1, .write = 1 }
#define WEFT_USES(...)                                                                             \
  (const struct weft_use[]) { __VA_ARGS__ },                                                       \
      sizeof ((const struct weft_use[]) { __VA_ARGS__ }) / sizeof (struct weft_use)
#define WEFT_SHAPE(type, ...)                                                                      \
  ((struct weft_shape) { .dim = { __VA_ARGS__ }, .dtype = (type), .out_dtype = (type) })

/* One kernel on the gpu lane, in the current place.  Returns the op. */
uint32_t weft_emit (struct weft_step *s, enum weft_op_kind kind, const char *name,
                    struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* A communication or copy op on a lane; waits only for its hazards and what the caller adds. */
uint32_t weft_emit_on (struct weft_step *s, enum weft_lane lane, struct weft_op row,
                       struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* The op that was added last, a collective, waits for all that is enqueued where kernels are: `kernel`,
 * the newest of them, exchanges whose end they wait for, and what the host has waited for. */
void weft_step_wait_for_stream (struct weft_step *s, uint32_t kernel);

/* What is emitted from here on is forward work that is done again, until the place that is returned
 * is put back. */
struct weft_op weft_step_again (struct weft_step *s);

/* The host takes one number out of a buffer, and enqueues nothing before it has it. */
void weft_step_host_reads (struct weft_step *s, const char *name, uint32_t buf);
void weft_step_host_reads_both (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* A buffer of `elements` x dtype living from its first to its last use. */
uint32_t weft_step_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);
uint32_t weft_step_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);

uint64_t weft_step_elements (const struct weft_step *s, uint32_t buf);

/* host.c: buffers of the host pool, and copies between them and the device, lane d2h or h2d.  They
 * wait for their hazards and what the caller adds; elements of the device's buffer are counted from
 * `first` on, the host's is copied from or filled from its beginning. */
uint32_t weft_host_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);
uint32_t weft_host_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);
struct weft_host_copy {
  const char *name;
  uint32_t device, host; /* buffers of one type */
  uint64_t first, n;     /* elements */
};
uint32_t weft_to_host (struct weft_step *s, const struct weft_host_copy *copy);
uint32_t weft_from_host (struct weft_step *s, const struct weft_host_copy *copy);

/* A kernel of the CPU. */
uint32_t weft_emit_on_host (struct weft_step *s, enum weft_op_kind kind, const char *name,
                            struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* The op that was added last waits for all copies so far: what one copies through a view of a buffer
 * is no hazard for who takes the whole. */
void weft_host_wait_for_copies (struct weft_step *s);

/* ----------------------------------------------------------------- passes */

/* params.c */
void weft_params_build (struct weft_step *s);
uint32_t weft_params_layer (const struct weft_step *s, enum weft_layer_param which);
/* The first parameter of the MLP's half of a layer. */
uint32_t weft_params_second_half (const struct weft_step *s, uint32_t layer);

/* n elements of a flat buffer from where bucket k begins in it, or its slice in a buffer of slices. */
uint32_t weft_params_flat_view (struct weft_step *s, uint32_t flat, uint32_t k, uint64_t n,
                                const char *name);
/* A parameter as a view of `base`, from byte `offset` on. */
uint32_t weft_params_view (struct weft_step *s, uint32_t param, uint32_t base, uint64_t offset);

/* Of a parameter in fp8; otherwise WEFT_NO_BUF. */
uint32_t weft_params_scale (const struct weft_step *s, uint32_t param);

/* Weights of experts; and whether the ranks of a group of their own hold them. */
gboolean weft_params_is_expert (const struct weft_step *s, uint32_t param);
gboolean weft_params_is_shared_out (const struct weft_step *s, uint32_t param);

/* The buffer that the next kernel reads a parameter from, gathered if need be; or WEFT_NO_BUF. */
uint32_t weft_params_weight (struct weft_step *s, uint32_t param);

/* fp8.c: weights of one byte. */
gboolean weft_fp8_stores (const struct weft_step *s, uint32_t param);
void weft_fp8_build (struct weft_step *s);
/* Whether bucket k of weights is gathered through its gradients, and the room there, whole. */
gboolean weft_fp8_is_staged (const struct weft_step *s, uint32_t k);
uint32_t weft_fp8_staging (struct weft_step *s, uint32_t k);
void weft_fp8_stage (struct weft_step *s);  /* a step begins: what its forward gathers is laid ready */
void weft_fp8_update (struct weft_step *s); /* masters are new */
void weft_fp8_whole (struct weft_step *s, uint32_t group); /* what follows once it is gathered */
/* Whether bucket k, when it is gathered, has room beside it for the copy. */
gboolean weft_fp8_copies (const struct weft_step *s, uint32_t k);
uint32_t weft_fp8_turned (struct weft_step *s, uint32_t param);
void weft_fp8_leave (struct weft_step *s, uint32_t layer); /* a pass is through with it */

/* fp8_products.c: factors of products in fp8.  A tensor is codes and what says their scale. */
struct weft_fp8 { uint32_t codes, scale; };
enum weft_fp8_role { WEFT_FP8_INPUT, WEFT_FP8_WEIGHT, WEFT_FP8_GRADIENT, WEFT_N_FP8_ROLE };
/* Rows of experts, each of which has scales of its own; in canonical order in every replica whose tokens
 * come.  Rows as costs count them; counts and stride as kernels/moe.h has them, or neither. */
struct weft_fp8_groups { uint64_t experts, each, rows, stride; uint32_t counts; };
/* What a factor is made of: rows of `columns`, or codes that were made of it. */
struct weft_fp8_source {
  uint32_t buf, param; /* of the map */
  enum weft_fp8_role role;
  uint64_t columns; const char *name;
  struct weft_fp8_groups groups; /* of maps without experts: none */
};
void weft_fp8_start (struct weft_step *s);
void weft_fp8_free (struct weft_fp8_products *fp8);
void weft_fp8_begin (struct weft_step *s); /* a step begins */
void weft_fp8_agree (struct weft_step *s); /* ranks do on magnitudes, before the update */
/* Whether products read a parameter in fp8; elements that have one scale, or 0: all of a tensor. */
gboolean weft_fp8_takes (const struct weft_step *s, uint32_t param);
uint64_t weft_fp8_block (const struct weft_step *s);
/* A tensor with its rows along the terms, of an input the same in forward and backward; with its columns. */
struct weft_fp8 weft_fp8_rows (struct weft_step *s, const struct weft_fp8_source *x);
struct weft_fp8 weft_fp8_columns (struct weft_step *s, const struct weft_fp8_source *x);
/* `all` has the codes of all ranks, of which `part` are this one's. */
uint32_t weft_fp8_gathered (struct weft_step *s, uint32_t part, uint32_t all);
struct weft_fp8 weft_fp8_weight (struct weft_step *s, uint32_t param);
struct weft_fp8 weft_fp8_weight_turned (struct weft_step *s, uint32_t param);

/* accumulate.c: the operand in which a kernel leaves the gradient of a parameter for the current
 * microbatch, absent for WEFT_NO_PARAM; and what follows when it has. */
void weft_sums_build (struct weft_step *s);
void weft_sum_start (struct weft_sum *sum, uint32_t main, uint64_t n, enum weft_lane lane);
uint32_t weft_sum_leaf (struct weft_step *s, const struct weft_sum *sum);
void weft_sum_add (struct weft_step *s, struct weft_sum *sum, uint32_t leaf);
void weft_sum_add_piece (struct weft_step *s, struct weft_sum *sum, uint32_t i, uint32_t leaf);
struct weft_use weft_sum_begin (struct weft_step *s, struct weft_sum *sum);
void weft_sum_end (struct weft_step *s, struct weft_sum *sum, struct weft_use grad);
/* Where the total is to be. */
void weft_sum_place (struct weft_sum *sum, uint32_t total);
/* One microbatch of a sum that others take further: where a kernel leaves what will be in `to`, and what
 * follows. */
struct weft_use weft_sum_sources (struct weft_step *s, const struct weft_sum *sum,
                                  struct weft_use to);
void weft_sum_join_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use grad,
                            uint32_t to);

struct weft_use weft_grad_begin (struct weft_step *s, uint32_t param);
void weft_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);

/* A tied head on the embedding's own stage, or embeddings of multi-token prediction there: they share
 * the embedding's sum, or have their own when order matters, as those of a last stage have; then
 * finish.c adds the two. */
struct weft_use weft_head_grad_begin (struct weft_step *s);
void weft_head_grad_end (struct weft_step *s, struct weft_use grad);
gboolean weft_head_has_own_sum (const struct weft_step *s);
/* Whether two stages hold the embedding. */
static inline gboolean
weft_step_shares_embedding (const struct weft_step *s)
{
  return s->model->share_embeddings_and_output_weights || s->model->mtp_num_layers > 0;
}
static inline struct weft_sum *
weft_head_sum (const struct weft_step *s)
{
  return &s->sum[s->params->len];
}

/* tensor.c: columns of a rank, and its share of the leaves of sums over what is cut; 0: one sum. */
void weft_tensor_start (struct weft_step *s);
struct weft_widths weft_tensor_widths (const struct weft_job *job);
gboolean weft_tensor_scatters (const struct weft_step *s); /* rows are this rank's share of tokens */
enum weft_dtype weft_tensor_partial (const struct weft_step *s); /* of a sum that ranks share out */
/* Ranks that share a product: joins a buffer in place, or brings together what each has. */
void weft_tensor_all_reduce (struct weft_step *s, uint32_t buf, enum weft_reduce reduce,
                             const char *name);
uint32_t weft_tensor_all_gather (struct weft_step *s, uint32_t buf, const char *name);
/* From this rank's rows to all tokens; the sum of all tokens' partial sums, of this rank's rows.
 * Without sequence_parallel rows are tokens: nothing, and an all-reduce. */
uint32_t weft_tensor_gather_rows (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_tensor_reduce_rows (struct weft_step *s, uint32_t buf, const char *name);
/* A slice for each rank, of which it gets the sum of its own. */
uint32_t weft_tensor_reduce_scatter (struct weft_step *s, uint32_t buf, const char *name);

/* The same beside a product, through its own buffer. */
void weft_tensor_gather_into (struct weft_step *s, uint32_t buf, uint32_t all, const char *name);
void weft_tensor_scatter_into (struct weft_step *s, uint32_t buf, uint32_t mine, const char *name);

/* overlap.c: a product that is computed in pieces, beside what tensor parallel ranks communicate of
 * it.  FALSE where that is not asked for; then nothing was done. */
struct weft_piece {
  enum weft_op_kind kind;
  const char *name;
  enum weft_layer_param which;
  uint32_t w, bias;
  uint32_t x_scale, w_scale; /* of what is in fp8 */
  struct weft_shape shape;   /* of the whole */
};
uint32_t weft_piece_multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x, uint32_t y);
void weft_overlap_start (struct weft_step *s);
gboolean weft_overlap_forward (struct weft_step *s, struct weft_piece *p, uint32_t x, uint32_t *y);
/* dy, of this rank's rows, becomes that of all tokens where a map needs it. */
gboolean weft_overlap_dgrad (struct weft_step *s, struct weft_piece *p, uint32_t *dy, uint32_t *dx);
/* Whether the gather of a saved input (or with `wgrad` the reduce-scatter of an input gradient) goes
 * through a buffer of its own; and that buffer. */
gboolean weft_overlap_is_bulk (const struct weft_step *s, enum weft_layer_param which,
                               gboolean wgrad);
uint32_t weft_overlap_room (struct weft_step *s, enum weft_layer_param which, gboolean wgrad,
                            enum weft_dtype dtype, uint64_t elements);

/* `grad` has this rank's part of the gradient of a tensor that all ranks hold: it is joined now where
 * gradients leave in every microbatch, else noted for finish.c, which joins what was noted. */
void weft_tensor_share_gradient (struct weft_step *s, uint32_t param, uint32_t grad);
void weft_tensor_join_gradients (struct weft_step *s);

/* linear.c: a buffer of `columns` for each row of the residual stream in its type, or for each token
 * in that of products; and a buffer of the one in the type of the other. */
uint32_t weft_activation (struct weft_step *s, uint64_t columns, const char *name);
uint32_t weft_product (struct weft_step *s, uint64_t columns, const char *name);
uint32_t weft_inward (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_outward (struct weft_step *s, uint32_t buf, const char *name);
/* A parameter of the layer where ops are being added, as kernels read it. */
uint32_t weft_layer_weight (struct weft_step *s, enum weft_layer_param which);
/* y = x w^T + b with n outputs and k inputs as this rank holds them; the bias follows the weight in
 * the list of parameters.  Backward: dy and the x of forward give dx and the weight's gradient. */
uint32_t weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t x, uint64_t n, uint64_t k);
uint32_t weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                               uint32_t dy, uint32_t x, uint64_t n, uint64_t k);
/* A weight gradient now, or where those that are put off come; and these, of the current microbatch
 * and chunk. */
void weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d);
void weft_layer_delayed (struct weft_step *s);

/* norm.c: the norm of the residual stream as the product behind it takes it; the same inside
 * backward; dresidual plus the norm's input gradient. */
uint32_t weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x);
uint32_t weft_norm_stream (struct weft_step *s, const char *name, enum weft_layer_param which,
                           uint32_t x); /* in the type of the residual stream */
uint32_t weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which,
                          uint32_t x);
uint32_t weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                             uint32_t dy, uint32_t x, uint32_t dresidual);
/* The same with a buffer of its own for the result; dresidual may be WEFT_NO_BUF. */
uint32_t weft_norm_backward_apart (struct weft_step *s, const char *name,
                                   enum weft_layer_param which, uint32_t dy, uint32_t x,
                                   uint32_t dresidual);
/* a + b, rows of the residual stream in its type. */
uint32_t weft_stream_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);
/* The same of any norm, by its weight and bias. */
struct weft_norm_operands {
  uint32_t dy, x, dresidual, dx;
  uint64_t columns; /* 0: those of the residual stream */
};
void weft_norm_gradients (struct weft_step *s, const char *name, const uint32_t param[2],
                          const struct weft_norm_operands *operands);

/* attention.c: the keys that a query of the layer sees, or 0 for all before it; the layer's attention
 * over whole sequences; fills o and lse of `saved` from its qkv (and raw); from do to dqkv. */
uint64_t weft_layer_window (const struct weft_step *s);
struct weft_shape weft_layer_attention_shape (const struct weft_step *s, uint64_t tokens,
                                              uint64_t heads, uint64_t groups);
void weft_layer_attention (struct weft_step *s, struct weft_saved *saved);
/* Of a rank's rows of the map its heads, and the group that they share with other ranks'; and back. */
uint32_t weft_heads_gather (struct weft_step *s, uint32_t made);
uint32_t weft_heads_scatter (struct weft_step *s, uint32_t dqkv);
uint32_t weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o);
struct weft_shape weft_attention_shape (const struct weft_step *s);

/* scores.c: attention out of plain products, which keeps its probabilities. */
void weft_scores_forward (struct weft_step *s, struct weft_saved *saved);
void weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o, uint32_t dqkv);

/* dropout.c: x with elements missing; a + b, of which elements are missing; and the gradient of what
 * was kept.  `mask` is what backward needs of it: WEFT_NO_BUF without dropout, where x, a + b and dy
 * are what they are.  Sites of the probabilities have the rate of attention_dropout. */
uint32_t weft_drop (struct weft_step *s, enum weft_drop_site site, uint32_t x, uint32_t *mask);
uint32_t weft_residual (struct weft_step *s, enum weft_drop_site site, uint32_t a, uint32_t b,
                        uint32_t *mask);
uint32_t weft_drop_backward (struct weft_step *s, enum weft_drop_site site, uint32_t dy,
                             uint32_t mask);

/* context.c: the same between qkv and o of ranks that share sequences. */
void weft_context_attention (struct weft_step *s, struct weft_saved *saved);
void weft_context_attention_backward (struct weft_step *s, const struct weft_saved *saved,
                                      uint32_t d_o, uint32_t dqkv);
/* The gradient of a microbatch, summed over them; each keeps a piece of it and zeros.  Canonical
 * order: a sequence is whole before sequences are added. */
void weft_context_sum (struct weft_step *s, uint32_t grad, enum weft_group_kind group);
void weft_context_keep (struct weft_step *s, uint32_t grad, uint32_t pieces);

/* mlp.c: fills n2, u and a, and returns what fc2 makes; backward: turns.h.  The nonlinearity of
 * `columns` from what the first map made; its gradient. */
uint32_t weft_layer_mlp (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_activate (struct weft_step *s, uint64_t columns, uint32_t u);
uint32_t weft_activate_backward (struct weft_step *s, uint64_t columns, uint32_t u, uint32_t da);

/* latent.c: fills qkv from n1, or inside backward from latents; from its gradient to that of n1. */
void weft_latent_forward (struct weft_step *s, struct weft_saved *saved);
void weft_latent_again (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv);

/* layer.c: x is the layer's input, the result its output. */
uint32_t weft_layer_forward (struct weft_step *s, uint32_t layer, uint32_t x,
                             struct weft_saved *saved);
uint32_t weft_layer_backward (struct weft_step *s, uint32_t layer, struct weft_saved *saved,
                              uint32_t dresidual);

/* autocast.c: a buffer in another type, the weight that a product reads, and the end of the forward
 * pass of a microbatch. */
#define WEFT_CAST_ALIGN 256u
uint32_t weft_cast (struct weft_step *s, uint32_t buf, enum weft_dtype dtype, const char *name);
uint32_t weft_cast_weight (struct weft_step *s, uint32_t param);
uint32_t weft_cast_weight_here (struct weft_step *s, uint32_t param); /* not kept for the rest of the pass */
/* The same in pieces: what this forward pass has already converted, or WEFT_NO_BUF; and where it goes. */
uint32_t weft_cast_known (const struct weft_step *s, uint32_t param);
uint32_t weft_cast_room (struct weft_step *s, uint32_t param);
void weft_cast_end_pass (struct weft_step *s);

/* recompute.c: which layers of a stage keep only their block's input, and whether selective
 * recompute runs a module of the microbatch under way again. */
gboolean weft_runs_again (const struct weft_step *s, enum weft_recompute_module module);
/* The pass comes to a layer, and is through with it. */
void weft_layer_enter (struct weft_step *s, uint32_t layer);
void weft_layer_leave (struct weft_step *s, uint32_t layer);
/* Whether a layer of multi-token prediction keeps its inputs alone. */
gboolean weft_recomputes_mtp (const struct weft_step *s);
void weft_recompute_start (struct weft_step *s);
uint32_t weft_chunk_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_chunk_backward (struct weft_step *s, uint32_t micro, uint32_t dy);

/* wrapper.c: the table of data-parallel strategies, and the one that a job asks for. */
enum weft_wrapper_kind {
  WEFT_WRAPPER_BUCKETS,     /* Megatron-Core's DistributedDataParallel */
  WEFT_WRAPPER_UNITS,       /* Megatron-FSDP that keeps gradients and weights whole */
  WEFT_WRAPPER_UNIT_GRADS,  /* slices of gradients */
  WEFT_WRAPPER_UNIT_PARAMS, /* and of weights */
  WEFT_WRAPPER_FSDP2,
  WEFT_WRAPPER_TORCH_DDP,
  WEFT_N_WRAPPER
};
extern const struct weft_wrapper weft_wrappers[WEFT_N_WRAPPER];
void weft_wrapper_choose (struct weft_step *s);

/* ddp.c */
void weft_ddp_start (struct weft_step *s);
struct weft_use weft_ddp_grad_begin (struct weft_step *s, uint32_t param);
void weft_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_ddp_head_begin (struct weft_step *s);
void weft_ddp_head_end (struct weft_step *s, struct weft_use grad);
void weft_ddp_finish (struct weft_step *s);
void weft_ddp_finish_whole (struct weft_step *s); /* of buckets that are not cut into slices */
uint32_t weft_ddp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_ddp_reduced_head (struct weft_step *s);
void weft_ddp_gather_all (struct weft_step *s);
/* All collectives of a chunk still to be launched: of gradients that are there; of its weights. */
void weft_ddp_reduce_chunk (struct weft_step *s, uint32_t chunk);
void weft_ddp_ask_for_chunk (struct weft_step *s, uint32_t chunk);

/* aligned.c: when a step begins; before a forward, and after a backward, of the grid.  And whether
 * gradients that are ready wait for their slot. */
void weft_aligned_start (struct weft_step *s);
void weft_aligned_before (struct weft_step *s);
void weft_aligned_after (struct weft_step *s);
gboolean weft_aligned_holds (const struct weft_step *s);
void weft_ddp_before_use (struct weft_step *s, uint32_t param);
uint64_t weft_ddp_bucket_size (const struct weft_step *s, uint32_t k);
uint32_t weft_ddp_group_of (const struct weft_step *s, uint32_t param);
/* The buckets of a group. */
const uint32_t *weft_ddp_members (const struct weft_step *s, uint32_t g, uint32_t *n);
struct weft_op weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name,
                             uint32_t k);
uint32_t weft_ddp_collective (struct weft_step *s, struct weft_op row, struct weft_shape shape,
                              const struct weft_use *uses, uint32_t n_uses);
/* Of a collective that sums gradients: n elements, and the divisor where it divides them itself. */
struct weft_shape weft_ddp_shape (const struct weft_step *s, uint64_t n);
/* The same collective among ranks of other instances. */
void weft_ddp_go_across (const struct weft_step *s, struct weft_op *row);
/* The sum of grad_shard, n elements, over ranks of other instances; their lane is joined as a whole. */
void weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n, uint8_t flags);
void weft_ddp_join_across (struct weft_step *s);
void weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k);
void weft_ddp_scale_bucket (struct weft_step *s, uint32_t k);
/* From the mean over those who hold the same experts to that over all replicas. */
void weft_ddp_scale_experts (struct weft_step *s, uint32_t grads, uint32_t few);

/* fsdp.c: the unit that a parameter lies in, or WEFT_NO_UNIT. */
uint32_t weft_fsdp_unit (const struct weft_step *s, uint32_t param);

/* offload.c: the first layers' activations leave for the host and come back; `l` counts the layers of
 * the stage. */
void weft_offload_start (struct weft_step *s);
void weft_offload_before_forward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_after_forward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_before_backward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_after_backward (struct weft_step *s, uint32_t micro);
void weft_offload_end (struct weft_step *s);

/* host_optimizer.c: which elements the host updates; their gradients leave; bucket by bucket Adam of
 * the host follows what the GPU updates of it; weights come back. */
void weft_host_optimizer_split (struct weft_step *s);
uint32_t weft_host_optimizer_factor (struct weft_step *s); /* of the clip, a copy; or WEFT_NO_BUF */
void weft_host_optimizer_send (struct weft_step *s, uint32_t tied_bucket, uint32_t tied_reduced);
void weft_host_optimizer_update (struct weft_step *s, uint32_t k);
void weft_host_optimizer_finish (struct weft_step *s);
/* torch_ddp.c */
void weft_torch_ddp_start (struct weft_step *s);
void weft_torch_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
void weft_torch_ddp_leave_pass (struct weft_step *s);
void weft_torch_ddp_finish (struct weft_step *s);

/* timers.c: a phase of timing_log_level 1 or 2 begins, and ends; and whether the next op of a lane has
 * to wait for the newest of them. */
void weft_timer_start (struct weft_step *s, int64_t level, const char *name);
void weft_timer_stop (struct weft_step *s, int64_t level, const char *name);
gboolean weft_timer_holds (const struct weft_step *s, enum weft_lane lane);

/* finish.c */
void weft_states_build (struct weft_step *s); /* masters and moments, once */
void weft_finish (struct weft_step *s);
/* An all-reduce outside the buckets: the caller's hazards are all it waits for. */
uint32_t weft_reduce_all (struct weft_step *s, enum weft_group_kind group, enum weft_reduce reduce,
                          uint32_t buf, const char *name);
/* How the sum of the replicas' gradients is taken. */
enum weft_reduce weft_over_replicas (const struct weft_step *s);
/* Elements of bucket k whose optimizer state is this rank's. */
uint64_t weft_optimizer_slice (const struct weft_step *s, uint32_t k);
