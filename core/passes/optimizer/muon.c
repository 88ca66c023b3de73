/* Muon on the matrices of a bucket (Megatron-Core optimizer/emerging_optimizers.py,
 * TensorParallelMuon; NVIDIA Emerging-Optimizers muon_utils.py). The matrices follow each other in
 * the order of the parameters. With muon_tp_mode = duplicated, tensor parallel ranks that divide a
 * matrix all-gather its momentum, and each rank orthogonalises the whole matrix. */
#include "core/passes/optimizer/states.h"
#include "core/program/cut.h"

/* The parameter that is being updated. */
struct matrix {
  const struct weft_param *param;
  const char *name;
  uint32_t grad, momentum, factor; /* buffers of the bucket; factor may be WEFT_NO_BUF */
  uint32_t weights, master;
  uint32_t whole; /* buffer with the momentum of all ranks */
  uint32_t ways;  /* number of ranks whose parts are in it */
};

/* A square matrix or a matrix with the shape of a block, in the type of the products. */
static uint32_t
room (struct weft_step *s, uint64_t elements, const char *name)
{
  gboolean narrow = s->job->train.muon_fp32_matmul_prec == WEFT_MUON_MEDIUM;

  return weft_step_buffer (s, WEFT_BUF_WORKSPACE, narrow ? WEFT_BF16 : WEFT_FP32, elements, name);
}

/* All-gathers the momentum of a parameter that tensor parallel ranks divide. */
static uint32_t
gather (struct weft_step *s, const struct matrix *m, uint32_t part)
{
  uint64_t n = m->param->rows * m->param->columns * m->ways;
  uint32_t all = weft_step_buffer (s, WEFT_BUF_GATHERED, WEFT_FP32, n, "gathered_momentum");
  struct weft_op row = { .kind = WEFT_OP_ALL_GATHER,
                         .group = WEFT_GROUP_TP,
                         .name = weft_build_name (s->b, m->name) };

  weft_emit_on (s, WEFT_LANE_TP, row, WEFT_SHAPE (WEFT_FP32, n),
                WEFT_USES (WEFT_R (part), WEFT_W (all)));
  return all;
}

/* Sets the buffer from which a matrix is normalised: the momentum itself, or a copy that looks one
 * gradient ahead or that ranks gather. */
static void
take (struct weft_step *s, struct matrix *m)
{
  uint64_t n = m->param->rows * m->param->columns;
  uint32_t grad = s->job->train.muon_nesterov ? m->grad : WEFT_NO_BUF;
  gboolean gathers = s->job->train.muon_tp_mode == WEFT_MUON_DUPLICATED && m->param->ways > 1;
  uint64_t bytes = grad == WEFT_NO_BUF
                       ? 0
                       : weft_dtype_bytes (weft_build_buf_at (s->b, grad)->dtype);

  m->ways = gathers ? m->param->ways : 1;
  m->whole = m->momentum;
  if (grad == WEFT_NO_BUF && !gathers)
    return;
  m->whole = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, n, "muon_momentum");
  weft_emit (s, WEFT_OP_MUON_TAKE, m->name, WEFT_SHAPE (WEFT_FP32, n, bytes),
             WEFT_USES (WEFT_R (m->momentum), WEFT_R (grad),
                        WEFT_R (grad == WEFT_NO_BUF ? WEFT_NO_BUF : m->factor),
                        WEFT_W (m->whole)));
  if (gathers)
    m->whole = gather (s, m, m->whole);
}

/* Appends one product of a step: core/ops.def. */
static void
multiply (struct weft_step *s, const struct matrix *m, struct weft_shape shape,
          const uint32_t buf[3])
{
  shape.dtype = shape.out_dtype = weft_build_buf_at (s->b, buf[2])->dtype;
  weft_emit (s, WEFT_OP_NEWTON_SCHULZ, m->name, shape,
             WEFT_USES (WEFT_R (buf[0]), WEFT_R (buf[1]), WEFT_W (buf[2])));
}

/* Appends the Newton-Schulz steps of a matrix of rows x columns in x[0]. Returns the buffer with
 * the result, x[0] or x[1]. */
static uint32_t
iterate (struct weft_step *s, const struct matrix *m, const uint64_t size[2], const uint32_t x[2])
{
  uint64_t rows = size[0], columns = size[1], least = MIN (rows, columns);
  uint64_t tall = rows > columns, most = MAX (rows, columns);
  uint32_t gram = room (s, least * least, "muon_gram");
  uint32_t polynomial = room (s, least * least, "muon_polynomial");
  uint64_t n = (uint64_t) s->job->train.muon_num_ns_steps;

  for (uint64_t i = 0; i < n; i++) {
    uint32_t from = x[i % 2], to = x[(i + 1) % 2];
    multiply (s, m, WEFT_SHAPE (WEFT_FP32, least, least, most, 0, i, tall),
              (const uint32_t[]){ from, WEFT_NO_BUF, gram });
    multiply (s, m, WEFT_SHAPE (WEFT_FP32, least, least, least, 1, i, tall),
              (const uint32_t[]){ gram, WEFT_NO_BUF, polynomial });
    multiply (s, m, WEFT_SHAPE (WEFT_FP32, rows, columns, least, 2, i, tall),
              (const uint32_t[]){ from, polynomial, to });
  }
  return x[n % 2];
}

/* Orthogonalises one block of a parameter and updates its weights. */
static void
update_block (struct weft_step *s, const struct matrix *m, uint32_t block)
{
  const struct weft_param *param = m->param;
  gboolean by_rows = param->cut == WEFT_CUT_ROWS, by_columns = param->cut == WEFT_CUT_COLUMNS;
  uint64_t tail = weft_param_tail (param, s->model);
  uint64_t size[] = { weft_muon_rows (param->rows, tail, block) * (by_rows ? m->ways : 1),
                      param->columns * (by_columns ? m->ways : 1) };

  uint32_t x[] = { room (s, size[0] * size[1], "muon_matrix"),
                   room (s, size[0] * size[1], "muon_matrix") };
  struct weft_shape shape = WEFT_SHAPE (WEFT_FP32, size[0], size[1], m->ways, block);
  shape.out_dtype = weft_build_buf_at (s->b, x[0])->dtype;
  weft_emit (s, WEFT_OP_MUON_NORMALISE, m->name, shape,
             WEFT_USES (WEFT_R (m->whole), WEFT_W (x[0])));
  uint32_t result = iterate (s, m, size, x);
  shape.dtype = shape.out_dtype;
  shape.out_dtype = s->weight_dtype;
  weft_emit (s, WEFT_OP_MUON_UPDATE, m->name, shape,
             WEFT_USES (WEFT_R (result), WEFT_R (m->factor), WEFT_RW (m->weights),
                        WEFT_RW (m->master)));
}

/* Whether queries, keys and values of a parameter are matrices of their own. */
static gboolean
is_split (const struct weft_step *s, uint32_t param)
{
  uint32_t layer = weft_param_at (s, param)->layer;

  return s->job->train.muon_split_qkv &&
         weft_params_of_layer (s, layer, WEFT_QKV_WEIGHT) == param;
}

void
weft_muon_update (struct weft_step *s, uint32_t k, uint32_t grad, uint32_t factor)
{
  const struct weft_op before = s->at;

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (param->frozen || s->params->layout.place[i].bucket != k)
      continue;
    gboolean split = is_split (s, i);
    struct matrix m = { .param = param,
                        .name = weft_build_name_at (s->b, param->name),
                        .grad = grad,
                        .momentum = s->optimizer->m[k],
                        .factor = factor,
                        .weights = weft_bucket_weights (s, k),
                        .master = s->optimizer->master[k] };
    s->at.layer = param->layer;
    s->at.chunk = param->chunk;
    take (s, &m);
    for (uint32_t block = split; block <= (split ? WEFT_MUON_VALUES : WEFT_MUON_WHOLE); block++)
      update_block (s, &m, block);
  }
  s->at = before;
}
