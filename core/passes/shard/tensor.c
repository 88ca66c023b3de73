/* Tensor parallelism: widths of activations on a rank, and the collectives around linear layers
 * (Megatron-Core tensor_parallel/layers.py). A linear layer computes y = x w^T + b.
 *
 *   layer     weight cut by  forward                       backward
 *   qkv, fc1  rows           each rank has all of x        dx is a partial sum: reduced beside the
 *   output                                                 weight gradient
 *   proj, fc2 columns        y is a partial sum: reduced,  each rank has all of dy
 *                            then the bias is added
 *
 * With sequence_parallel a rank has only some rows (tokens) of the activations between linear
 * layers. Inputs of linear layers are all-gathered, outputs are reduce-scattered. Only this rank's
 * rows of an input are stored for backward. Backward all-gathers the input again.
 *
 * In canonical order (equal bits for all strategies) a sum over a sharded dimension is added in
 * fp32 as a binary tree of at most eight partial sums, the leaves (core/base/fold.h,
 * kernels/leaves.h), and rounded after the last addition. If one rank has all leaves, the kernel
 * adds and rounds. Otherwise ranks send their partial sums in fp32 and convert afterwards. */
#include "core/passes/shard/parts.h"

struct weft_widths
weft_tensor_widths (const struct weft_job *job)
{
  const union weft_model *m = &job->model;
  uint64_t tp = job->strategy.tensor_model_parallel_size;
  gboolean canonical = job->train.reduction_order == WEFT_ORDER_CANONICAL;
  uint64_t groups = MAX (1, m->num_query_groups / tp), own = m->num_attention_heads / tp;
  uint64_t together =
      canonical && tp > (uint64_t) m->num_query_groups ? tp / m->num_query_groups : 1;
  uint64_t heads = own * together;
  uint64_t all = (uint64_t) (m->num_attention_heads + 2 * m->num_query_groups);
  uint64_t value = m->kv_lora_rank ? m->v_head_dim : m->kv_channels;
  uint64_t f = m->ffn_hidden_size / tp;

  return (struct weft_widths){ .h = m->hidden_size,
                               .heads = heads,
                               .groups = groups,
                               .together = together,
                               .q = heads * value,
                               .qkv = (heads + groups) * m->kv_channels + groups * value,
                               .made = all * m->kv_channels / tp,
                               .own = own * value,
                               .f = f,
                               .up = f * weft_model_wide (m),
                               .shared = m->moe_shared_expert_intermediate_size / tp,
                               .vocab = weft_job_padded_vocab (job) / tp };
}

void
weft_shard_begin (struct weft_step *s)
{
  uint32_t tp = s->mesh->tp;

  s->shard = g_new0 (struct weft_shard, 1);
  s->shard->joined = WEFT_NO_OP;
  for (unsigned i = 0; i < G_N_ELEMENTS (s->shard->overlap_buffer); i++)
    s->shard->overlap_buffer[i] = WEFT_NO_BUF;
  s->width = weft_tensor_widths (s->job);
  s->rows = s->strategy->sequence_parallel ? s->tokens / tp : s->tokens;
  s->leaves.attention = weft_job_leaves (s->job, weft_job_attention_units (s->job)) / tp;
  s->leaves.mlp = weft_job_leaves (s->job, s->model->ffn_hidden_size) / tp;
  s->leaves.shared = weft_job_leaves (s->job, s->model->moe_shared_expert_intermediate_size) / tp;
  s->leaves.expert = weft_job_leaves (s->job, s->model->moe_ffn_hidden_size) / s->mesh->etp;
  s->leaves.vocab = weft_job_leaves (s->job, WEFT_MOST_LEAVES) / tp;
}

void
weft_shard_end (struct weft_step *s)
{
  g_free (s->shard->in_parts);
  g_free (s->shard);
}

gboolean
weft_tensor_scatters (const struct weft_step *s)
{
  return s->rows < s->tokens;
}

enum weft_dtype
weft_tensor_partial (const struct weft_step *s)
{
  return s->mesh->tp > 1 && s->canonical ? WEFT_FP32 : s->product_dtype;
}

/* ------------------------------------------------------------------------ collectives */

/* Appends a collective from buf[0] to buf[1], or in place in buf[0] for an all-reduce. The
 * collective waits for all kernels enqueued so far (c10d ProcessGroupNCCL). */
static void
collect (struct weft_step *s, struct weft_op row, const char *name, const uint32_t buf[2])
{
  gboolean gathers = row.kind == WEFT_OP_ALL_GATHER;
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU), whole = buf[gathers];
  struct weft_shape shape =
      WEFT_SHAPE (weft_build_buf_at (s->b, whole)->dtype, weft_step_elements (s, whole));
  const struct weft_use uses[] = {
    { .buf = buf[0], .read = 1, .write = !gathers },
    { .buf = buf[1], .write = 1 },
  };

  row.group = WEFT_GROUP_TP;
  row.flags |= s->at.flags;
  row.name = weft_build_name (s->b, name);
  weft_emit_on (s, WEFT_LANE_TP, row, shape, uses, row.kind == WEFT_OP_ALL_REDUCE ? 1 : 2);
  weft_step_wait_for_stream (s, enqueued);
}

static uint32_t
beside (struct weft_step *s, uint32_t buf, uint64_t elements, const char *name)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, buf);
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, row->dtype, elements, name);
}

void
weft_tensor_all_reduce (struct weft_step *s, uint32_t buf, enum weft_reduce reduce,
                        const char *name)
{
  if (s->mesh->tp == 1)
    return;
  collect (s, (struct weft_op){ .kind = WEFT_OP_ALL_REDUCE, .reduce = reduce }, name,
           (const uint32_t[]){ buf, WEFT_NO_BUF });
}

uint32_t
weft_tensor_all_gather (struct weft_step *s, uint32_t buf, const char *name)
{
  uint32_t all = beside (s, buf, weft_step_elements (s, buf) * s->mesh->tp, name);

  collect (s, (struct weft_op){ .kind = WEFT_OP_ALL_GATHER }, name, (const uint32_t[]){ buf, all });
  return all;
}

uint32_t
weft_tensor_gather_rows (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_tensor_scatters (s) ? weft_tensor_all_gather (s, buf, name) : buf;
}

uint32_t
weft_tensor_reduce_scatter (struct weft_step *s, uint32_t buf, const char *name)
{
  uint32_t mine = beside (s, buf, weft_step_elements (s, buf) / s->mesh->tp, name);

  collect (s, (struct weft_op){ .kind = WEFT_OP_REDUCE_SCATTER }, name,
           (const uint32_t[]){ buf, mine });
  return mine;
}

uint32_t
weft_tensor_reduce_rows (struct weft_step *s, uint32_t buf, const char *name)
{
  if (!weft_tensor_scatters (s)) {
    weft_tensor_all_reduce (s, buf, WEFT_REDUCE_SUM, name);
    return buf;
  }
  return weft_tensor_reduce_scatter (s, buf, name);
}

void
weft_tensor_gather_into (struct weft_step *s, uint32_t buf, uint32_t all, const char *name)
{
  collect (s, (struct weft_op){ .kind = WEFT_OP_ALL_GATHER, .flags = WEFT_OP_USER_BUFFER }, name,
           (const uint32_t[]){ buf, all });
}

void
weft_tensor_scatter_into (struct weft_step *s, uint32_t buf, uint32_t mine, const char *name)
{
  collect (s, (struct weft_op){ .kind = WEFT_OP_REDUCE_SCATTER, .flags = WEFT_OP_USER_BUFFER },
           name, (const uint32_t[]){ buf, mine });
}

/* ---------------------------------------------------------------- gradients in parts */

void
weft_tensor_share_gradient (struct weft_step *s, uint32_t param, uint32_t grad)
{
  if (param == WEFT_NO_PARAM || s->mesh->tp == 1)
    return;
  if (!s->sharding->shard_grads) {
    if (!s->shard->in_parts)
      s->shard->in_parts = g_new0 (gboolean, weft_params_count (s));
    s->shard->in_parts[param] = TRUE;
    return;
  }
  weft_tensor_all_reduce (s, grad, WEFT_REDUCE_SUM, "shared_gradient");
  s->shard->joined = weft_build_last (s->b, WEFT_LANE_TP);
  weft_next_kernel_waits_for (s, s->shard->joined);
}

void
weft_wait_for_shared_gradients (struct weft_step *s)
{
  weft_build_dep (s->b, s->shard->joined);
}

/* Appends the all-reduces of the gradients that in_parts marks. All-reduces with equal dtypes are
 * one launch. They wait for all ops that still write gradients (Megatron-Core
 * finalize_model_grads.py, _allreduce_non_tensor_model_parallel_grads). */
void
weft_tensor_reduce_gradients (struct weft_step *s, weft_reduced_gradient *reduced)
{
  const uint32_t before[] = { weft_build_last (s->b, WEFT_LANE_DP),
                              weft_build_last (s->b, WEFT_LANE_DP_OUTER) };
  enum weft_dtype dtype = WEFT_N_DTYPE;

  for (uint32_t i = 0; i < weft_params_count (s) && s->shard->in_parts; i++) {
    if (!s->shard->in_parts[i])
      continue;
    uint32_t grad = reduced (s, i);
    enum weft_dtype own = weft_build_buf_at (s->b, grad)->dtype;
    s->at.flags = own == dtype ? WEFT_OP_GROUPED : 0;
    weft_tensor_all_reduce (s, grad, WEFT_REDUCE_SUM, "shared_gradient");
    for (unsigned b = 0; b < G_N_ELEMENTS (before); b++)
      weft_build_dep (s->b, before[b]);
    dtype = own;
    s->shard->joined = weft_build_last (s->b, WEFT_LANE_TP);
  }
  s->at.flags = 0;
}
