#include "core/plan/activations.h"
#include "core/base/invariant.h"
#include "core/passes/shard/shard.h"

/* The list of tensors that weft_activations_of_layer() builds, and the sizes in its formulas. */
struct list {
  struct weft_kept *row;
  uint32_t n;
  const union weft_model *m;
  struct weft_widths w;
  /* tokens of this rank; rows of the rank's part of the residual stream */
  uint64_t tokens, rows;
  /* bytes per element of the residual stream; bytes per element of the operands of matrix
   * products */
  uint32_t stream, product;
};

static void
put (struct list *l, const char *what, uint32_t size, uint64_t rows, uint64_t columns)
{
  struct weft_kept *row = &l->row[l->n++];

  WEFT_INVARIANT (l->n <= WEFT_MOST_ACTIVATIONS);
  row->what = what;
  row->bytes = (double) size * rows * columns;
  g_snprintf (row->formula, sizeof row->formula,
              "%u B x %" G_GUINT64_FORMAT " rows x %" G_GUINT64_FORMAT, size, rows, columns);
}

static void
put_attention (struct list *l, const struct weft_job *job)
{
  uint64_t squares = l->tokens * l->w.heads, s = (uint64_t) l->m->seq_length;
  gboolean dropout = job->strategy.attention_dropout > 0;
  gboolean again = weft_job_recompute (job).modules >> WEFT_MODULE_CORE_ATTN & 1;

  if (l->m->qk_layernorm)
    put (l, "queries, keys before their norm", l->product, l->tokens,
         (l->w.heads + l->w.groups) * (uint64_t) l->m->kv_channels);
  put (l, "queries, keys, values", l->product, l->tokens, l->w.qkv);
  if (job->strategy.attention_backend != WEFT_ATTENTION_UNFUSED)
    put (l, "logs of sums of attention", 4, l->tokens, l->w.heads);
  else if (!again) {
    put (l, "probabilities", l->product, squares, s);
    if (dropout) {
      put (l, "probabilities after dropout", l->product, squares, s);
      put (l, "mask of probabilities", 1, squares, s);
    }
  }
  put (l, "output of attention", l->product, l->tokens, l->w.own);
  if (l->w.together > 1)
    put (l, "output of attention to the whole group", l->product, l->tokens, l->w.q);
}

/* Whether the norms precede attention and MLP (pre-norm) or follow them. */
static gboolean
has_input_norms (const union weft_model *m)
{
  return m->norm_placement != WEFT_NORM_POST;
}

/* Adds the tensor that the norm after attention or after the MLP reads, if the model has such
 * norms. */
static void
put_output_norm (struct list *l, const char *what)
{
  if (l->m->norm_placement != WEFT_NORM_PRE)
    put (l, what, l->stream, l->rows, l->w.h);
}

/* Adds the tensors that an MLP stores. If attention and MLP read the same residual stream, its
 * tensor is the layer's input, which is already in the list. */
static void
put_mlp (struct list *l, const struct weft_job *job)
{
  uint32_t modules = weft_job_recompute (job).modules;

  if (l->m->residual == WEFT_RESIDUAL_SEQUENTIAL)
    put (l, has_input_norms (l->m) ? "input of the second norm" : "input of the MLP", l->stream,
         l->rows, l->w.h);
  if (modules >> WEFT_MODULE_MLP & 1)
    return;
  if (!(modules >> WEFT_MODULE_LAYERNORM & 1) && has_input_norms (l->m) &&
      l->m->residual != WEFT_RESIDUAL_ONE_NORM)
    put (l, "input of the MLP", l->product, l->rows, l->w.h);
  put (l, "input of the activation function", l->product, l->tokens, l->w.up);
  put (l, "output of the activation function", l->product, l->tokens, l->w.f);
}

uint32_t
weft_activations_of_layer (const struct weft_job *job, struct weft_kept *kept)
{
  const union weft_strategy *k = &job->strategy;
  struct list l = { .row = kept,
                    .m = &job->model,
                    .w = weft_tensor_widths (job),
                    .tokens = (uint64_t) (job->train.micro_batch_size * job->model.seq_length /
                                          k->context_parallel_size),
                    .stream = weft_dtype_bytes ((enum weft_dtype) job->train.precision),
                    .product = weft_dtype_bytes (weft_job_product_dtype (job)) };

  if (l.m->num_moe_experts || l.m->kv_lora_rank)
    return 0;
  l.rows = k->sequence_parallel ? l.tokens / (uint64_t) k->tensor_model_parallel_size : l.tokens;
  put (&l, "input of the layer", l.stream, l.rows, l.w.h);
  if (!(weft_job_recompute (job).modules >> WEFT_MODULE_LAYERNORM & 1) && has_input_norms (l.m))
    put (&l, "input of attention", l.product, l.rows, l.w.h);
  put_attention (&l, job);
  put_output_norm (&l, "output of attention, before its norm");
  if (k->hidden_dropout > 0)
    put (&l, "dropout mask after attention", 1, l.rows, l.w.h);
  put_mlp (&l, job);
  put_output_norm (&l, "output of the MLP, before its norm");
  if (k->hidden_dropout > 0)
    put (&l, "dropout mask after the MLP", 1, l.rows, l.w.h);
  return l.n;
}

double
weft_activations_kept (const weft_program *p, uint32_t layer, uint32_t micro)
{
  double sum = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->base != WEFT_NO_BUF || b->permanent || b->layer != layer || b->micro != micro ||
        b->kind != WEFT_BUF_ACTIVATIONS || b->first == WEFT_NO_OP)
      continue;
    if (p->op[b->first].phase == WEFT_PHASE_FORWARD && p->op[b->last].phase != WEFT_PHASE_FORWARD)
      sum += (double) b->bytes;
  }
  return sum;
}

double
weft_activations_megatron (const struct weft_job *job)
{
  const union weft_model *m = &job->model;
  const union weft_strategy *k = &job->strategy;
  double h = m->hidden_size, p = k->pipeline_model_parallel_size;
  double sb = (double) m->seq_length * job->train.micro_batch_size;
  double v = k->virtual_pipeline_model_parallel_size == WEFT_NONE
                 ? 1
                 : k->virtual_pipeline_model_parallel_size;
  double in_flight =
      v > 1 ? 1 + (p - 1) / (p * v) : MIN (1, (double) weft_job_microbatches (job) / p);
  double layers = sb * h * (18 + 4 * m->ffn_hidden_size / h) * m->num_layers;
  double ends = 8 * sb * p + sb * h * p;

  if (p == 1)
    return (layers + ends + 4 * sb * h * (1 + m->vocab_size / h)) / k->tensor_model_parallel_size;
  return (layers + ends) * in_flight / k->tensor_model_parallel_size;
}
