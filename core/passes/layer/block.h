/* block.h - private to layer/: the state of layer/, and functions that the files of a transformer
 * layer share. */
#pragma once
#include "core/passes/layer/layer.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* Activations that the forward pass of one layer and microbatch stores for backward. Each field is
 * a buffer number, or WEFT_NO_BUF. */
struct weft_saved {
  /* buffers of the activations that the diagram in layer.c shows */
  uint32_t x, n1, raw, qkv, o, lse, x1, n2, u, a;
  /* outputs of attention (made) and of the MLP (mlp), before the norms that follow them */
  uint32_t made, mlp;
  /* attention output for whole sequences (Ulysses), or for a whole query group that several ranks
   * share. WEFT_NO_BUF: the output projection reads o directly */
  uint32_t whole_o;
  uint32_t scores, choice, prob, row, counts, sent, back, xp, pp, xw, eu, ea; /* experts: moe.h */
  uint32_t su, sa, sy, gate;                                                  /* shared experts */
  /* compressed queries and keys of multi-latent attention, and positions of keys: latent.c */
  uint32_t ql, qn, kl, kn, kp;
  /* for unfused attention: probabilities before and after dropout */
  uint32_t p, pd;
  /* buffers of dropout masks: of attention probabilities, of the attention block's output, of the
   * MLP's output */
  uint32_t mask_p, mask_o, mask_y;
};

/* A weight gradient dw = dy^T x of a linear layer with n outputs and k inputs. Its kernel may be
 * delayed (delay_wgrad_compute, or a schedule that splits backward passes). */
struct weft_delayed {
  const char *name;
  uint32_t layer, weight, bias; /* weight, bias: numbers of the parameters */
  uint32_t dy, x;
  uint64_t n, k;
  /* for expert weights: buffer with the number of rows of each expert; otherwise WEFT_NO_BUF */
  uint32_t counts;
  uint32_t micro, chunk;
  enum weft_layer_param which;
};

struct weft_layer {
  struct weft_saved *saved; /* [n_micro][n_layers] */
  /* [n_micro][n_layers][WEFT_N_LORA]: outputs of the first matrix of each adapter, for backward */
  uint32_t *adapted;
  struct weft_saved_end *saved_end; /* [n_micro]: ends.h */
  struct weft_saved_mtp *saved_mtp; /* array [n_micro][mtp_num_layers] */

  struct weft_job_recompute recompute;
  /* array [n_chunks][n_micro]: TRUE if full recompute does not apply to the microbatch in this
   * model chunk */
  gboolean *partial;
  /* array of struct weft_delayed, in the order in which the weight gradients run */
  GArray *delayed;
  /* array of microbatches whose weight gradient of the output layer runs after the last pass of the
   * schedule */
  GArray *deferred;

  /* autocast.c. cast_cache: buffer of the weights that this forward pass has converted. cast_view:
   * by parameter, the view of the converted weight, or WEFT_NO_BUF if the weight has not been
   * converted yet */
  uint32_t cast_cache, *cast_view;
  struct weft_fp8_products *fp8; /* state of fp8_products.c; NULL unless precision = fp8 */
  /* state of balance.c; NULL if the job does not balance experts by biases */
  struct weft_balance *balance;
  /* state of offload.c; NULL if the job does not offload activations */
  struct weft_offload_part *offload;
};

/* ----------------------------------------------------- casts and linear maps: linear.c */

/* Convert a buffer to the dtype of matrix products, or to the dtype of the residual stream. Return
 * the new buffer, or `buf` if it already has this dtype. */
uint32_t weft_cast_to_compute (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_cast_to_residual (struct weft_step *s, uint32_t buf, const char *name);

/* Returns the buffer from which kernels read a parameter of the current layer. The parameter is
 * all-gathered first if it is sharded. */
uint32_t weft_layer_weight (struct weft_step *s, enum weft_layer_param which);

/* Computes y = x w^T + b with n outputs and k inputs on this rank, and adds the product of the LoRA
 * adapter if the job has one (adapter.c). The bias is the parameter after the weight in the list of
 * parameters. Returns y. */
uint32_t weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t x, uint64_t n, uint64_t k);

/* Appends the backward of weft_linear(). dy is the gradient of y; x is the saved input. Returns the
 * gradient of x, or WEFT_NO_BUF if nothing below is trained (weft_params_flows_below()). The weight
 * gradient may be delayed. */
uint32_t weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                               uint32_t dy, uint32_t x, uint64_t n, uint64_t k);

/* Like weft_linear() and weft_linear_backward(), without the adapter. flows: whether the gradient
 * of x is needed; if not, the function returns WEFT_NO_BUF. size: outputs n and inputs k. */
struct weft_linear_operands {
  uint32_t dy, x;
  gboolean flows;
};
uint32_t weft_linear_alone (struct weft_step *s, const char *name, enum weft_layer_param which,
                            uint32_t x, uint64_t n, uint64_t k);
uint32_t
weft_linear_alone_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                            struct weft_linear_operands o, const uint64_t size[2]);

/* Appends the kernels of a weight gradient. If weight gradients are delayed, stores a copy of *d in
 * a list instead. */
void weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d);

/* Appends all delayed weight gradients of the current microbatch and model chunk. */
void weft_layer_run_delayed_wgrads (struct weft_step *s);

/* -------------------------------------------------------------- autocast.c */

/* Converts a buffer to `dtype`. Returns the new buffer, or `buf` if it already has this dtype. */
uint32_t weft_cast (struct weft_step *s, uint32_t buf, enum weft_dtype dtype, const char *name);

/* Return a weight in the dtype that matrix products read. weft_cast_weight() stores the converted
 * copy until the forward pass of the microbatch ends. weft_cast_weight_here() does not store the
 * copy. */
#define WEFT_CAST_ALIGN 256u /* alignment in bytes of a weight in the buffer of converted weights */
uint32_t weft_cast_weight (struct weft_step *s, uint32_t param);
uint32_t weft_cast_weight_here (struct weft_step *s, uint32_t param);

/* For fp8_products.c. weft_cast_known() returns the converted copy of a weight if this forward pass
 * (or this step, if the weight is kept) has already made one, otherwise WEFT_NO_BUF.
 * weft_cast_buffer() returns a buffer for a new converted copy. */
/* Whether a weight is converted to fp8 once in a step, and its codes are kept for all passes
 * (disable_parameter_transpose_cache). */
gboolean weft_cast_is_kept (const struct weft_step *s, uint32_t param);
uint32_t weft_cast_known (const struct weft_step *s, uint32_t param);
uint32_t weft_cast_buffer (struct weft_step *s, uint32_t param);

/* Frees the converted copies of weights at the end of a forward pass. */
void weft_cast_end_pass (struct weft_step *s);

/* ------------------------------------------------------------------ norm.c */

/* Returns the norm of x in the dtype of matrix products. x has rows of the residual stream. */
uint32_t weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x);

/* Returns the norm of x in the dtype of the residual stream. */
uint32_t weft_norm_stream (struct weft_step *s, const char *name, enum weft_layer_param which,
                           uint32_t x);

/* Appends weft_norm() as an op of recompute. */
uint32_t weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which,
                          uint32_t x);

/* Returns dresidual plus the input gradient of the norm, or WEFT_NO_BUF if neither the norm nor
 * anything below is trained. The sum overwrites dresidual, or is in a new buffer if weight
 * gradients are delayed. */
uint32_t weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                             uint32_t dy, uint32_t x, uint32_t dresidual);

/* Returns dresidual plus the input gradient of the norm, always in a new buffer. Without dresidual
 * (WEFT_NO_BUF), returns the input gradient alone. */
uint32_t weft_norm_backward_apart (struct weft_step *s, const char *name,
                                   enum weft_layer_param which, uint32_t dy, uint32_t x,
                                   uint32_t dresidual);

/* Returns the sum of a and b, which are rows of the residual stream, in a new buffer. */
uint32_t weft_stream_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* Operands for the backward of any norm. weft_norm_gradients() appends this backward: the gradients
 * of weight and bias (`param`) unless they are frozen, and dx = dresidual + input gradient. */
struct weft_norm_operands {
  uint32_t dy, x, dresidual, dx;
  uint64_t columns; /* row width of the norm; 0: the hidden size */
};
void weft_norm_gradients (struct weft_step *s, const char *name, const uint32_t param[2],
                          const struct weft_norm_operands *operands);

/* ------------------------------------------------------------- MLP, dropout */

/* mlp.c: appends the forward of the MLP, and returns the output of fc2. nodes.h declares the
 * backward of the MLP. */
uint32_t weft_layer_mlp (struct weft_step *s, struct weft_saved *saved);

/* Applies the activation function to u. Returns its output, with `columns` elements for each token.
 * Backward returns the gradient of u; da is the gradient of the output. */
uint32_t weft_activate (struct weft_step *s, uint64_t columns, uint32_t u);
uint32_t weft_activate_backward (struct weft_step *s, uint64_t columns, uint32_t u, uint32_t da);

/* dropout.c: weft_drop() returns x with dropout; weft_residual() returns a plus b with dropout.
 * Both set *mask to the buffer that backward needs, or to WEFT_NO_BUF if the dropout rate is 0.
 * `site` selects the rate: attention_dropout for attention probabilities, hidden_dropout
 * otherwise. */
uint32_t weft_drop (struct weft_step *s, enum weft_drop_site site, uint32_t x, uint32_t *mask);
uint32_t weft_residual (struct weft_step *s, enum weft_drop_site site, uint32_t a, uint32_t b,
                        uint32_t *mask);

/* Returns the gradient of the tensor to which dropout was applied, which is x of weft_drop() or b
 * of weft_residual(). */
uint32_t weft_drop_backward (struct weft_step *s, enum weft_drop_site site, uint32_t dy,
                             uint32_t mask);

/* --------------------------------------------------------------- recompute.c */

/* Whether selective recompute applies to a module in this microbatch. */
gboolean weft_recomputes (const struct weft_step *s, enum weft_recompute_module module);
