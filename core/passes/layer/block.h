/* block.h - private to layer/: its state, and what the files of one transformer layer share. */
#pragma once
#include "core/passes/layer/layer.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* Activations that forward of one layer and microbatch keeps for backward: buffers, or
 * WEFT_NO_BUF. */
struct weft_saved {
  uint32_t x, n1, raw, qkv, o, lse, x1, n2, u, a; /* layer.c has the diagram */
  uint32_t made, mlp; /* outputs of attention and of the MLP, where a norm reads them */
  uint32_t whole_o; /* output of attention that proj does not read as it is: of whole sequences, or
                       of a group that ranks share; else WEFT_NO_BUF */
  uint32_t scores, choice, prob, row, counts, sent, back, xp, pp, xw, eu, ea; /* experts: moe.h */
  uint32_t su, sa, sy, gate;       /* shared experts */
  uint32_t ql, qn, kl, kn, kp;     /* latents of queries and keys, positions of keys: latent.c */
  uint32_t p, pd;                  /* unfused attention: probabilities, before and after dropout */
  uint32_t mask_p, mask_o, mask_y; /* dropout: of probabilities, after attention, after the MLP */
};

/* A weight gradient that comes later: delay_wgrad_compute, or cells I and W of the grid. */
struct weft_delayed {
  const char *name;
  uint32_t layer, weight, bias; /* parameters */
  uint32_t dy, x;
  uint64_t n, k;
  uint32_t counts; /* rows of each expert; WEFT_NO_BUF for other maps */
  uint32_t micro, chunk;
  enum weft_layer_param which;
};

struct weft_layer {
  struct weft_saved *saved;         /* [n_micro][n_layers] */
  struct weft_saved_end *saved_end; /* [n_micro]: ends.h */
  struct weft_saved_mtp *saved_mtp; /* [n_micro][mtp_num_layers] */

  struct weft_job_recompute recompute;
  gboolean *partial; /* [n_chunks][n_micro]: a microbatch that full recompute leaves out */
  GArray *delayed;   /* struct weft_delayed, in the order in which they run */
  GArray *deferred;  /* microbatches whose weight gradient of the head runs after the grid */

  /* autocast.c: weights of the current forward pass in the type of products, and views by
   * parameter */
  uint32_t cast_cache, *cast_view;
  struct weft_fp8_products *fp8; /* precision = fp8; else NULL */
  struct weft_balance *balance;  /* balance.c; or NULL */
  struct weft_offload_part *offload;  /* offload.c; or NULL */
};

/* ----------------------------------------------------- casts and linear maps: linear.c */

/* A buffer in the type of products; in that of the residual stream. */
uint32_t weft_cast_to_compute (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_cast_to_residual (struct weft_step *s, uint32_t buf, const char *name);

/* A parameter of the current layer, as kernels read it. */
uint32_t weft_layer_weight (struct weft_step *s, enum weft_layer_param which);

/* y = x w^T + b with n outputs and k inputs on this rank; the bias follows the weight in the list
 * of parameters. Backward takes dy and the saved x, and returns dx; the weight gradient may be
 * delayed. */
uint32_t weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t x, uint64_t n, uint64_t k);
uint32_t weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                               uint32_t dy, uint32_t x, uint64_t n, uint64_t k);

/* A weight gradient, now or delayed; all delayed ones of the current microbatch and chunk. */
void weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d);
void weft_layer_run_delayed_wgrads (struct weft_step *s);

/* -------------------------------------------------------------- autocast.c */

/* A buffer converted to another type. */
uint32_t weft_cast (struct weft_step *s, uint32_t buf, enum weft_dtype dtype, const char *name);

/* A weight in the type that products read: kept until the forward pass of the microbatch ends; not
 * kept. */
#define WEFT_CAST_ALIGN 256u
uint32_t weft_cast_weight (struct weft_step *s, uint32_t param);
uint32_t weft_cast_weight_here (struct weft_step *s, uint32_t param);

/* For fp8_products.c: the converted weight if this forward pass has it, or WEFT_NO_BUF; the buffer
 * for it. */
uint32_t weft_cast_known (const struct weft_step *s, uint32_t param);
uint32_t weft_cast_buffer (struct weft_step *s, uint32_t param);
void weft_cast_end_pass (struct weft_step *s);

/* ------------------------------------------------------------------ norm.c */

/* The norm of the residual stream in the type of products; in that of the stream; recomputed. */
uint32_t weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x);
uint32_t weft_norm_stream (struct weft_step *s, const char *name, enum weft_layer_param which,
                           uint32_t x);
uint32_t weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which,
                          uint32_t x);

/* dresidual plus the input gradient of the norm. */
uint32_t weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                             uint32_t dy, uint32_t x, uint32_t dresidual);

/* The same in a buffer of its own; dresidual may be WEFT_NO_BUF. */
uint32_t weft_norm_backward_apart (struct weft_step *s, const char *name,
                                   enum weft_layer_param which, uint32_t dy, uint32_t x,
                                   uint32_t dresidual);

/* a + b, rows of the residual stream. */
uint32_t weft_stream_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* The gradients of any norm, by its weight and bias. */
struct weft_norm_operands {
  uint32_t dy, x, dresidual, dx;
  uint64_t columns; /* 0: the hidden size */
};
void weft_norm_gradients (struct weft_step *s, const char *name, const uint32_t param[2],
                          const struct weft_norm_operands *operands);

/* ------------------------------------------------------------- MLP, dropout */

/* mlp.c: the MLP up to the output of fc2; backward: nodes.h.  The nonlinearity for `columns`
 * outputs, and its gradient. */
uint32_t weft_layer_mlp (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_activate (struct weft_step *s, uint64_t columns, uint32_t u);
uint32_t weft_activate_backward (struct weft_step *s, uint64_t columns, uint32_t u, uint32_t da);

/* dropout.c: x with dropout; a + b with dropout of b; the gradient of either. `mask` is kept for
 * backward, WEFT_NO_BUF where the rate is 0. The site says which rate: of attention probabilities,
 * or of the rest. */
uint32_t weft_drop (struct weft_step *s, enum weft_drop_site site, uint32_t x, uint32_t *mask);
uint32_t weft_residual (struct weft_step *s, enum weft_drop_site site, uint32_t a, uint32_t b,
                        uint32_t *mask);
uint32_t weft_drop_backward (struct weft_step *s, enum weft_drop_site site, uint32_t dy,
                             uint32_t mask);

/* --------------------------------------------------------------- recompute.c */

/* Whether selective recompute of this microbatch recomputes a module. */
gboolean weft_recomputes (const struct weft_step *s, enum weft_recompute_module module);
