/* block.h - private to layer/: the state of the wing, and functions that the files of a transformer
 * layer share. */
#pragma once
#include "core/passes/layer/layer.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* Activations that forward of one layer and microbatch stores for backward: buffers, or
 * WEFT_NO_BUF. */
struct weft_saved {
  uint32_t x, n1, raw, qkv, o, lse, x1, n2, u, a; /* see the diagram in layer.c */
  uint32_t made, mlp; /* outputs of attention and MLP before their output norms */
  uint32_t whole_o; /* output of attention for whole sequences (Ulysses), or for a group of heads
                     * that ranks share. WEFT_NO_BUF: proj reads the output of attention itself */
  uint32_t scores, choice, prob, row, counts, sent, back, xp, pp, xw, eu, ea; /* experts: moe.h */
  uint32_t su, sa, sy, gate;       /* shared experts */
  uint32_t ql, qn, kl, kn, kp;     /* latents of queries and keys, positions of keys: latent.c */
  uint32_t p, pd;                  /* unfused attention: probabilities, before and after dropout */
  uint32_t mask_p, mask_o, mask_y; /* dropout: of probabilities, after attention, after the MLP */
};

/* A weight gradient dw = dy^T x of a map with n outputs and k inputs. Its kernel may be delayed
 * (delay_wgrad_compute, or cells I and W of the grid). */
struct weft_delayed {
  const char *name;
  uint32_t layer, weight, bias; /* weight, bias: parameters */
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
  gboolean *partial; /* [n_chunks][n_micro]: TRUE: full recompute does not apply to the
                      * microbatch */
  GArray *delayed;   /* struct weft_delayed, in the order in which they run */
  GArray *deferred;  /* microbatches whose weight gradient of the head runs after the grid */

  /* autocast.c: buffer of the weights that this forward pass has converted, and by parameter the
   * view of the converted weight. WEFT_NO_BUF: not converted yet */
  uint32_t cast_cache, *cast_view;
  struct weft_fp8_products *fp8; /* fp8_products.c; NULL unless precision = fp8 */
  struct weft_balance *balance;  /* balance.c. NULL: not used */
  struct weft_offload_part *offload;  /* offload.c. NULL: not used */
};

/* ----------------------------------------------------- casts and linear maps: linear.c */

/* Converts a buffer to the type of products, or to the type of the residual stream, and returns the
 * new buffer. Returns `buf` if `buf` has the wanted type. */
uint32_t weft_cast_to_compute (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_cast_to_residual (struct weft_step *s, uint32_t buf, const char *name);

/* Returns the buffer from which kernels read a parameter of the current layer, gathered if
 * needed. */
uint32_t weft_layer_weight (struct weft_step *s, enum weft_layer_param which);

/* y = x w^T + b with n outputs and k inputs on this rank; the bias follows the weight in the list
 * of parameters. Returns y. */
uint32_t weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t x, uint64_t n, uint64_t k);

/* Appends the backward of weft_linear(), from dy and the saved x. Returns dx. The weight gradient
 * may be delayed. */
uint32_t weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                               uint32_t dy, uint32_t x, uint64_t n, uint64_t k);

/* Appends the kernels of a weight gradient, or stores a copy of *d in the list of delayed ones. */
void weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d);

/* Appends all delayed weight gradients of the current microbatch and chunk. */
void weft_layer_run_delayed_wgrads (struct weft_step *s);

/* -------------------------------------------------------------- autocast.c */

/* Converts a buffer to type `dtype`, and returns the new buffer. Returns `buf` if `buf` has this
 * type. */
uint32_t weft_cast (struct weft_step *s, uint32_t buf, enum weft_dtype dtype, const char *name);

/* Returns a weight in the type that products read. weft_cast_weight() keeps the converted copy
 * until the forward pass of the microbatch ends; weft_cast_weight_here() does not keep it. */
#define WEFT_CAST_ALIGN 256u /* bytes: alignment of a weight in the buffer of kept copies */
uint32_t weft_cast_weight (struct weft_step *s, uint32_t param);
uint32_t weft_cast_weight_here (struct weft_step *s, uint32_t param);

/* For fp8_products.c. known: returns the converted copy of a weight that this forward pass has made
 * already, or WEFT_NO_BUF. buffer: returns a buffer for a new converted copy. */
uint32_t weft_cast_known (const struct weft_step *s, uint32_t param);
uint32_t weft_cast_buffer (struct weft_step *s, uint32_t param);

/* Frees the converted copies at the end of a forward pass. */
void weft_cast_end_pass (struct weft_step *s);

/* ------------------------------------------------------------------ norm.c */

/* Returns the norm of x, rows of the residual stream, in the type of products. */
uint32_t weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x);

/* Returns the norm of x in the type of the residual stream. */
uint32_t weft_norm_stream (struct weft_step *s, const char *name, enum weft_layer_param which,
                           uint32_t x);

/* Computes weft_norm() again, as an op of recompute. */
uint32_t weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which,
                          uint32_t x);

/* Returns dresidual plus the input gradient of the norm. The sum is written to dresidual, or to a
 * new buffer if weight gradients are delayed. */
uint32_t weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                             uint32_t dy, uint32_t x, uint32_t dresidual);

/* Returns dresidual plus the input gradient of the norm in a new buffer. dresidual may be
 * WEFT_NO_BUF. */
uint32_t weft_norm_backward_apart (struct weft_step *s, const char *name,
                                   enum weft_layer_param which, uint32_t dy, uint32_t x,
                                   uint32_t dresidual);

/* Returns a + b in a new buffer, for rows of the residual stream. */
uint32_t weft_stream_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* Appends the backward of any norm: the gradients of its weight and bias (`param`), and dx =
 * dresidual + input gradient. */
struct weft_norm_operands {
  uint32_t dy, x, dresidual, dx;
  uint64_t columns; /* 0: the hidden size */
};
void weft_norm_gradients (struct weft_step *s, const char *name, const uint32_t param[2],
                          const struct weft_norm_operands *operands);

/* ------------------------------------------------------------- MLP, dropout */

/* mlp.c: appends the MLP, and returns the output of fc2. nodes.h declares the backward of the
 * MLP. */
uint32_t weft_layer_mlp (struct weft_step *s, struct weft_saved *saved);

/* Applies the activation function to u, and returns its output with `columns` elements for each
 * token. Backward returns the gradient of u. */
uint32_t weft_activate (struct weft_step *s, uint64_t columns, uint32_t u);
uint32_t weft_activate_backward (struct weft_step *s, uint64_t columns, uint32_t u, uint32_t da);

/* dropout.c: returns x with dropout, or a + b with dropout of b. *mask is the buffer that backward
 * needs, or WEFT_NO_BUF if the rate is 0. `site` selects the rate: attention_dropout for
 * probabilities, hidden_dropout for all other sites. */
uint32_t weft_drop (struct weft_step *s, enum weft_drop_site site, uint32_t x, uint32_t *mask);
uint32_t weft_residual (struct weft_step *s, enum weft_drop_site site, uint32_t a, uint32_t b,
                        uint32_t *mask);

/* Returns the gradient of the tensor to which dropout was applied: x of weft_drop(), b of
 * weft_residual(). */
uint32_t weft_drop_backward (struct weft_step *s, enum weft_drop_site site, uint32_t dy,
                             uint32_t mask);

/* --------------------------------------------------------------- recompute.c */

/* Whether selective recompute applies to a module in this microbatch. */
gboolean weft_recomputes (const struct weft_step *s, enum weft_recompute_module module);
