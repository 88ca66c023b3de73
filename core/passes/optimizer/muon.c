/* Muon on the matrices of a bucket (Megatron-Core optimizer/emerging_optimizers.py,
 * TensorParallelMuon; NVIDIA Emerging-Optimizers muon_utils.py). The matrices follow each other in
 * the order of the parameters, or of the turns of the distributed optimizer (core/program/muon.h).
 * With muon_tp_mode = duplicated, tensor parallel ranks that divide a matrix all-gather its
 * momentum, and each rank orthogonalises the whole matrix. */
#include "core/passes/optimizer/states.h"
#include "core/program/muon.h"

/* A turn: the parameters of which each rank has one, or one parameter that all ranks have. */
struct turn {
  const struct weft_param **param;
  uint32_t n;
  const char *name;
  uint64_t dim[2]; /* WEFT_MUON_BUCKET and WEFT_MUON_TURN; 0: one parameter */
  uint32_t grad, momentum, factor; /* buffers of the bucket; factor may be WEFT_NO_BUF */
  uint32_t weights, master;
  uint32_t whole; /* buffer with the momentum of all ranks */
};

/* The largest matrices of a turn: the one with the most FLOPs, and what buffers need. */
struct largest {
  struct weft_muon_matrix matrix;
  uint64_t elements, square;
};

static const char *
name_of (struct weft_step *s, const struct weft_param *param)
{
  return weft_build_name_at (s->b, param->name);
}

/* Finds the largest matrices number i of a turn. Returns FALSE if no parameter has so many. */
static gboolean
find_largest (struct weft_step *s, const struct turn *t, uint32_t i, struct largest *out)
{
  double most = -1;

  *out = (struct largest){ .elements = 0 };
  for (uint32_t p = 0; p < t->n; p++) {
    const char *name = name_of (s, t->param[p]);
    if (i >= weft_muon_matrices (s->job, name))
      continue;
    struct weft_muon_matrix m = weft_muon_matrix (s->job, name, t->param[p], i);
    uint64_t small = MIN (m.rows, m.columns);
    double flops = weft_muon_flops (s->job, &m);
    out->elements = MAX (out->elements, m.rows * m.columns);
    out->square = MAX (out->square, small * small);
    if (flops > most)
      out->matrix = m;
    most = MAX (most, flops);
  }
  return most >= 0;
}

/* The shape of an op of matrix i of a turn. */
static struct weft_shape
shape_of (const struct turn *t, struct weft_shape shape, uint32_t i)
{
  shape.dim[WEFT_MUON_BUCKET] = t->dim[0];
  shape.dim[WEFT_MUON_TURN] = t->dim[0] ? t->dim[1] + i : 0;
  return shape;
}

/* A square matrix or a matrix with the shape of a block, in the type of the products. */
static uint32_t
room (struct weft_step *s, uint64_t elements, const char *name)
{
  gboolean narrow = s->job->train.muon_fp32_matmul_prec == WEFT_MUON_MEDIUM;

  return weft_step_buffer (s, WEFT_BUF_WORKSPACE, narrow ? WEFT_BF16 : WEFT_FP32, elements, name);
}

/* All-gathers the momentum of parameters that tensor parallel ranks divide. */
static uint32_t
gather (struct weft_step *s, const struct turn *t, uint32_t part)
{
  uint64_t n = weft_step_elements (s, part) * s->mesh->tp;
  uint32_t all = weft_step_buffer (s, WEFT_BUF_GATHERED, WEFT_FP32, n, "gathered_momentum");
  struct weft_op row = { .kind = WEFT_OP_ALL_GATHER,
                         .group = WEFT_GROUP_TP,
                         .name = weft_build_name (s->b, t->name) };

  weft_emit_on (s, WEFT_LANE_TP, row, WEFT_SHAPE (WEFT_FP32, n),
                WEFT_USES (WEFT_R (part), WEFT_W (all)));
  return all;
}

/* Sets the buffer from which matrices are normalised: the momentum itself, or a copy that looks one
 * gradient ahead or that ranks gather. */
static void
take (struct weft_step *s, struct turn *t)
{
  uint32_t grad = s->job->train.muon_nesterov ? t->grad : WEFT_NO_BUF;
  gboolean gathers = FALSE;
  uint64_t n = 0, bytes = 0;

  for (uint32_t p = 0; p < t->n; p++) {
    n = MAX (n, t->param[p]->rows * t->param[p]->columns);
    gathers = gathers || (s->job->train.muon_tp_mode == WEFT_MUON_DUPLICATED &&
                          t->param[p]->ways > 1);
  }
  if (grad != WEFT_NO_BUF)
    bytes = weft_dtype_bytes (weft_build_buf_at (s->b, grad)->dtype);
  t->whole = t->momentum;
  if (grad == WEFT_NO_BUF && !gathers)
    return;
  t->whole = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, n, "muon_momentum");
  weft_emit (s, WEFT_OP_MUON_TAKE, t->name, shape_of (t, WEFT_SHAPE (WEFT_FP32, n, bytes), 0),
             WEFT_USES (WEFT_R (t->momentum), WEFT_R (grad),
                        WEFT_R (grad == WEFT_NO_BUF ? WEFT_NO_BUF : t->factor),
                        WEFT_W (t->whole)));
  if (gathers)
    t->whole = gather (s, t, t->whole);
}

/* Appends one product of a step: core/ops.def. */
static void
multiply (struct weft_step *s, const struct turn *t, struct weft_shape shape,
          const uint32_t buf[3])
{
  shape.dtype = shape.out_dtype = weft_build_buf_at (s->b, buf[2])->dtype;
  weft_emit (s, WEFT_OP_NEWTON_SCHULZ, t->name, shape,
             WEFT_USES (WEFT_R (buf[0]), WEFT_R (buf[1]), WEFT_W (buf[2])));
}

/* Appends the Newton-Schulz steps of matrix i in x[0]. Returns the buffer with the result, x[0] or
 * x[1]. */
static uint32_t
iterate (struct weft_step *s, const struct turn *t, uint32_t i, const uint32_t x[2])
{
  struct largest l;

  find_largest (s, t, i, &l);
  uint64_t rows = l.matrix.rows, columns = l.matrix.columns, least = MIN (rows, columns);
  uint64_t tall = rows > columns, most = MAX (rows, columns);
  uint32_t gram = room (s, l.square, "muon_gram");
  uint32_t polynomial = room (s, l.square, "muon_polynomial");
  uint64_t n = (uint64_t) s->job->train.muon_num_ns_steps;

  for (uint64_t step = 0; step < n; step++) {
    uint32_t from = x[step % 2], to = x[(step + 1) % 2];
    multiply (s, t, shape_of (t, WEFT_SHAPE (WEFT_FP32, least, least, most, 0, step, tall), i),
              (const uint32_t[]){ from, WEFT_NO_BUF, gram });
    multiply (s, t, shape_of (t, WEFT_SHAPE (WEFT_FP32, least, least, least, 1, step, tall), i),
              (const uint32_t[]){ gram, WEFT_NO_BUF, polynomial });
    multiply (s, t, shape_of (t, WEFT_SHAPE (WEFT_FP32, rows, columns, least, 2, step, tall), i),
              (const uint32_t[]){ from, polynomial, to });
  }
  return x[n % 2];
}

/* Orthogonalises matrix i of a turn and updates its weights. */
static void
update_matrix (struct weft_step *s, const struct turn *t, uint32_t i)
{
  struct largest l;

  if (!find_largest (s, t, i, &l))
    return;
  uint32_t x[] = { room (s, l.elements, "muon_matrix"), room (s, l.elements, "muon_matrix") };
  struct weft_shape shape = shape_of (
      t, WEFT_SHAPE (WEFT_FP32, l.matrix.rows, l.matrix.columns, l.matrix.ways, l.matrix.block), i);
  shape.out_dtype = weft_build_buf_at (s->b, x[0])->dtype;
  weft_emit (s, WEFT_OP_MUON_NORMALISE, t->name, shape,
             WEFT_USES (WEFT_R (t->whole), WEFT_W (x[0])));
  uint32_t result = iterate (s, t, i, x);
  shape.dtype = shape.out_dtype;
  shape.out_dtype = s->weight_dtype;
  weft_emit (s, WEFT_OP_MUON_UPDATE, t->name, shape,
             WEFT_USES (WEFT_R (result), WEFT_R (t->factor), WEFT_RW (t->weights),
                        WEFT_RW (t->master)));
}

static void
update_turn (struct weft_step *s, struct turn *t)
{
  take (s, t);
  for (uint32_t i = 0; i < 3; i++)
    update_matrix (s, t, i);
}

static gboolean
is_of_bucket (const struct weft_step *s, uint32_t param, uint32_t k)
{
  return !weft_param_at (s, param)->frozen && s->params->layout.place[param].bucket == k;
}

/* Every rank orthogonalises every parameter of the bucket. */
static void
update_all (struct weft_step *s, struct turn t, uint32_t k)
{
  const struct weft_op before = s->at;

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (!is_of_bucket (s, i, k))
      continue;
    t.param = &param;
    t.n = 1;
    t.name = name_of (s, param);
    s->at.layer = param->layer;
    s->at.chunk = param->chunk;
    update_turn (s, &t);
  }
  s->at = before;
}

/* Number of parameters before parameter `param` in the same slice of bucket k: its turn. */
static uint32_t
turn_of (const struct weft_step *s, uint32_t param, uint32_t k, uint64_t slice)
{
  const struct weft_layout_place *place = s->params->layout.place;
  uint64_t start = s->params->layout.bucket[k].start, own = (place[param].start - start) / slice;
  uint32_t n = 0;

  for (uint32_t i = 0; i < weft_params_count (s); i++)
    n += is_of_bucket (s, i, k) && place[i].start < place[param].start &&
         (place[i].start - start) / slice == own;
  return n;
}

/* Every rank orthogonalises the parameters in its slice of the bucket, turn by turn. */
static void
update_dealt (struct weft_step *s, struct turn t, uint32_t k)
{
  uint32_t n = weft_params_count (s), left = 0;
  g_autofree uint32_t *turn = g_new (uint32_t, n);
  g_autofree const struct weft_param **param = g_new (const struct weft_param *, n);

  t.name = "muon";
  t.param = param;
  t.dim[0] = k + 1;
  for (uint32_t i = 0; i < n; i++) {
    turn[i] = is_of_bucket (s, i, k) ? turn_of (s, i, k, weft_optimizer_slice (s, k)) : UINT32_MAX;
    left += turn[i] != UINT32_MAX;
  }
  for (uint32_t at = 0; left > 0; at++, left -= t.n) {
    t.n = 0;
    t.dim[1] = 4 * (uint64_t) at;
    for (uint32_t i = 0; i < n; i++)
      if (turn[i] == at)
        param[t.n++] = weft_param_at (s, i);
    update_turn (s, &t);
  }
}

void
weft_muon_update (struct weft_step *s, uint32_t k, uint32_t grad, uint32_t factor)
{
  const struct turn turn = { .grad = grad,
                             .momentum = s->optimizer->m[k],
                             .factor = factor,
                             .weights = weft_bucket_weights (s, k),
                             .master = s->optimizer->master[k] };

  (s->shard_optimizer ? update_dealt : update_all) (s, turn, k);
}
