#include "tests/doubles/playing_cudnn.h"
#include "core/base/words.h"
#include "kernels/float.h"
#include <math.h>
#include <string.h>

enum { BAD = 2000 /* CUDNN_STATUS_BAD_PARAM */, WIDEST = 256 };

struct attribute {
  int name, type;
  int64_t n;
  void *data;
};

struct thing {
  int type;
  gboolean finished;
  GArray *attributes;
  struct thing *graph; /* for a configuration: the graph that it runs */
  double *value;       /* for a tensor: values of the elements while a plan runs */
};

/* ------------------------------------------------------------------------------ attributes */

static size_t
size_of (int type)
{
  switch (type) {
  case WEFT_CUDNN_TYPE_INT64:
  case WEFT_CUDNN_TYPE_VOID_PTR:
  case WEFT_CUDNN_TYPE_THING:
  case WEFT_CUDNN_TYPE_HANDLE:
    return 8;
  case WEFT_CUDNN_TYPE_BOOLEAN:
  case WEFT_CUDNN_TYPE_CHAR:
    return 1;
  default:
    return sizeof (int);
  }
}

static const struct attribute *
find (const struct thing *t, int name)
{
  for (guint i = 0; i < t->attributes->len; i++)
    if (g_array_index (t->attributes, struct attribute, i).name == name)
      return &g_array_index (t->attributes, struct attribute, i);
  return NULL;
}

static struct thing *
thing_at (const struct thing *t, int name)
{
  const struct attribute *a = find (t, name);
  return a ? *(struct thing **) a->data : NULL;
}

static int
int_at (const struct thing *t, int name)
{
  return *(const int *) find (t, name)->data;
}

static const int64_t *
numbers_at (const struct thing *t, int name)
{
  return find (t, name)->data;
}

static gboolean
flag_at (const struct thing *t, int name)
{
  const struct attribute *a = find (t, name);
  return a && *(const uint8_t *) a->data;
}

/* --------------------------------------------------------------------------- the interface */

static size_t
version (void)
{
  return 91900;
}

static size_t
old_version (void)
{
  return 90700;
}

static size_t
former_version (void)
{
  return 91500;
}

static const char *
error_string (int status)
{
  return status == BAD ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}

static void
last_error (char *text, size_t bytes)
{
  g_strlcpy (text, "", bytes);
}

static int
create (void **handle)
{
  *handle = g_malloc (1);
  return 0;
}

static int
destroy (void *handle)
{
  g_free (handle);
  return 0;
}

static int
set_stream (void *handle, void *stream)
{
  return handle && stream ? 0 : BAD;
}

static int
create_thing (int type, weft_cudnn_thing *out)
{
  struct thing *t = g_new0 (struct thing, 1);

  t->type = type;
  t->attributes = g_array_new (FALSE, FALSE, sizeof (struct attribute));
  *out = t;
  return 0;
}

static int
destroy_thing (weft_cudnn_thing thing)
{
  struct thing *t = thing;

  for (guint i = 0; i < t->attributes->len; i++)
    g_free (g_array_index (t->attributes, struct attribute, i).data);
  g_array_unref (t->attributes);
  g_free (t);
  return 0;
}

/* Sets an attribute of a descriptor. Descriptors that the attribute refers to must be finalized. */
static int
set_attribute (weft_cudnn_thing thing, int name, int type, int64_t n, const void *values)
{
  struct thing *t = thing, *const *used = values;

  if (t->finished || find (t, name) || n < 1)
    return BAD;
  for (int64_t i = 0; i < n && type == WEFT_CUDNN_TYPE_THING; i++)
    if (!used[i]->finished)
      return BAD;
  struct attribute a = { name, type, n, g_memdup2 (values, (size_t) n * size_of (type)) };
  g_array_append_val (t->attributes, a);
  return 0;
}

/* Whether the query heads of the graph (first operand of the first matmul) are wider than the
 * library supports. */
static gboolean
is_too_wide (const struct thing *graph)
{
  const struct attribute *ops = find (graph, WEFT_CUDNN_GRAPH_OPS);

  for (int64_t i = 0; i < ops->n; i++) {
    const struct thing *a = thing_at (((struct thing **) ops->data)[i], WEFT_CUDNN_MATMUL_A);
    if (a)
      return numbers_at (a, WEFT_CUDNN_TENSOR_DIMS)[3] > WIDEST;
  }
  return FALSE;
}

static int
get_attribute (weft_cudnn_thing thing, int name, int type, int64_t room, int64_t *n, void *values)
{
  struct thing *t = thing, **out = values;

  (void) type, (void) room;
  *n = 1;
  switch (name) {
  case WEFT_CUDNN_HEUR_RESULTS:
    *n = !is_too_wide (thing_at (t, WEFT_CUDNN_HEUR_GRAPH));
    out[0]->graph = thing_at (t, WEFT_CUDNN_HEUR_GRAPH);
    out[0]->finished = TRUE;
    return 0;
  case WEFT_CUDNN_PLAN_WORKSPACE:
    *(int64_t *) values = PLAYING_CUDNN_WORKSPACE;
    return 0;
  default:
    return BAD;
  }
}

static int
finalize (weft_cudnn_thing thing)
{
  static const struct {
    int type, wants[4];
  } kinds[] = {
    { WEFT_CUDNN_TENSOR,
      { WEFT_CUDNN_TENSOR_TYPE, WEFT_CUDNN_TENSOR_DIMS, WEFT_CUDNN_TENSOR_STRIDES,
        WEFT_CUDNN_TENSOR_ID } },
    { WEFT_CUDNN_MATMUL_OP,
      { WEFT_CUDNN_MATMUL_A, WEFT_CUDNN_MATMUL_B, WEFT_CUDNN_MATMUL_C, WEFT_CUDNN_MATMUL_DESC } },
    { WEFT_CUDNN_POINTWISE_OP,
      { WEFT_CUDNN_POINTWISE_X, WEFT_CUDNN_POINTWISE_Y, WEFT_CUDNN_POINTWISE_DESC,
        WEFT_CUDNN_POINTWISE_DESC } },
    { WEFT_CUDNN_REDUCTION_OP,
      { WEFT_CUDNN_REDUCTION_X, WEFT_CUDNN_REDUCTION_Y, WEFT_CUDNN_REDUCTION_DESC,
        WEFT_CUDNN_REDUCTION_DESC } },
    { WEFT_CUDNN_PLAN,
      { WEFT_CUDNN_PLAN_CONFIG, WEFT_CUDNN_PLAN_HANDLE, WEFT_CUDNN_PLAN_CONFIG,
        WEFT_CUDNN_PLAN_CONFIG } },
  };
  struct thing *t = thing;

  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    for (unsigned w = 0; w < G_N_ELEMENTS (kinds[i].wants); w++)
      if (kinds[i].type == t->type && !find (t, kinds[i].wants[w]))
        return BAD;
  t->finished = TRUE;
  return 0;
}

/* --------------------------------------------------------------------------------- tensors */

static uint64_t
count (const int64_t dim[4])
{
  return (uint64_t) (dim[0] * dim[1] * dim[2] * dim[3]);
}

/* Computes the four coordinates of the i-th element of a tensor. */
static void
places_of (const int64_t dim[4], uint64_t i, int64_t at[4])
{
  for (int d = 3; d >= 0; d--) {
    at[d] = (int64_t) i % dim[d];
    i /= (uint64_t) dim[d];
  }
}

static enum weft_dtype
dtype_of (const struct thing *tensor)
{
  int type = int_at (tensor, WEFT_CUDNN_TENSOR_TYPE);
  return type == WEFT_CUDNN_BF16 ? WEFT_BF16 : type == WEFT_CUDNN_HALF ? WEFT_FP16 : WEFT_FP32;
}

/* Returns the offset of the i-th element of a tensor, in elements. */
static uint64_t
offset_of (const struct thing *tensor, uint64_t i)
{
  const int64_t *stride = numbers_at (tensor, WEFT_CUDNN_TENSOR_STRIDES);
  int64_t place[4], at = 0;

  places_of (numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS), i, place);
  for (int d = 0; d < 4; d++)
    at += place[d] * stride[d];
  return (uint64_t) at;
}

static void
read_memory (struct thing *tensor, const void *at)
{
  float room;

  for (uint64_t i = 0; i < count (numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS)); i++)
    tensor->value[i] =
        (double) *weft_floats (at, dtype_of (tensor), offset_of (tensor, i), 1, &room);
}

static void
write_memory (const struct thing *tensor, void *at)
{
  for (uint64_t i = 0; i < count (numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS)); i++) {
    float value = (float) tensor->value[i];
    weft_store (at, dtype_of (tensor), offset_of (tensor, i), 1, &value);
  }
}

/* Returns the element of a tensor that is broadcast to a larger tensor with dimensions `of`.
 * `place`: the position in the larger tensor. A group of heads is broadcast to each of its heads,
 * and a dimension of size 1 to all positions. */
static double
value_at (const struct thing *tensor, const int64_t place[4], const int64_t of[4])
{
  const int64_t *dim = numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS);
  int64_t at = 0;

  for (int d = 0; d < 4; d++)
    at = at * dim[d] + place[d] / (of[d] / dim[d]);
  return tensor->value[at];
}

/* Stores a value, rounded to the type of the tensor; integers and booleans are exact. */
static void
keep (struct thing *tensor, uint64_t i, double value)
{
  float number = (float) value;

  weft_round (dtype_of (tensor), 1, &number);
  tensor->value[i] = (double) number;
}

/* ------------------------------------------------------------------------------ operations */

/* Returns the matrix of batch element `batch` and of head `head` of `of` heads. All heads of a
 * group share a matrix. */
static const double *
matrix_of (const struct thing *tensor, int64_t batch, int64_t head, int64_t of)
{
  const int64_t *dim = numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS);

  return tensor->value + (batch * dim[1] + head / (of / dim[1])) * dim[2] * dim[3];
}

static void
play_matmul (const struct thing *op)
{
  const struct thing *a = thing_at (op, WEFT_CUDNN_MATMUL_A),
                     *b = thing_at (op, WEFT_CUDNN_MATMUL_B);
  struct thing *c = thing_at (op, WEFT_CUDNN_MATMUL_C);
  const int64_t *dim = numbers_at (c, WEFT_CUDNN_TENSOR_DIMS);
  int64_t inner = numbers_at (a, WEFT_CUDNN_TENSOR_DIMS)[3], place[4];

  for (uint64_t i = 0; i < count (dim); i++) {
    double sum = 0;
    places_of (dim, i, place);
    const double *x = matrix_of (a, place[0], place[1], dim[1]) + place[2] * inner;
    const double *y = matrix_of (b, place[0], place[1], dim[1]) + place[3];
    for (int64_t k = 0; k < inner; k++)
      sum += x[k] * y[k * dim[3]];
    keep (c, i, sum);
  }
}

static double
point (int mode, double x, double b, double t)
{
  switch (mode) {
  case WEFT_CUDNN_ADD:
    return x + b;
  case WEFT_CUDNN_SUB:
    return x - b;
  case WEFT_CUDNN_MUL:
    return x * b;
  case WEFT_CUDNN_DIV:
    return x / b;
  case WEFT_CUDNN_EXP:
    return exp (x);
  case WEFT_CUDNN_LOG:
    return log (x);
  case WEFT_CUDNN_IDENTITY:
    return x;
  case WEFT_CUDNN_CMP_GE:
    return x >= b;
  case WEFT_CUDNN_CMP_GT:
    return x > b;
  case WEFT_CUDNN_SELECT:
    return t != 0 ? x : b;
  default:
    g_assert_not_reached ();
  }
}

static void
play_pointwise (const struct thing *op)
{
  const struct thing *how = thing_at (op, WEFT_CUDNN_POINTWISE_DESC),
                     *x = thing_at (op, WEFT_CUDNN_POINTWISE_X),
                     *b = thing_at (op, WEFT_CUDNN_POINTWISE_B),
                     *t = thing_at (op, WEFT_CUDNN_POINTWISE_T);
  struct thing *y = thing_at (op, WEFT_CUDNN_POINTWISE_Y);
  const int64_t *dim = numbers_at (y, WEFT_CUDNN_TENSOR_DIMS);
  int mode = int_at (how, WEFT_CUDNN_POINTWISE_MODE);
  int64_t place[4];

  for (uint64_t i = 0; i < count (dim); i++) {
    places_of (dim, i, place);
    if (mode == WEFT_CUDNN_GEN_INDEX)
      keep (y, i, (double) place[*numbers_at (how, WEFT_CUDNN_POINTWISE_AXIS)]);
    else
      keep (y, i,
            point (mode, value_at (x, place, dim), b ? value_at (b, place, dim) : 0,
                   t ? value_at (t, place, dim) : 0));
  }
}

/* Reduces x to y, over the dimensions in which y has size 1. */
static void
play_reduction (const struct thing *op)
{
  const struct thing *x = thing_at (op, WEFT_CUDNN_REDUCTION_X);
  struct thing *y = thing_at (op, WEFT_CUDNN_REDUCTION_Y);
  const int64_t *dim = numbers_at (x, WEFT_CUDNN_TENSOR_DIMS),
                *out = numbers_at (y, WEFT_CUDNN_TENSOR_DIMS);
  gboolean adds = int_at (thing_at (op, WEFT_CUDNN_REDUCTION_DESC),
                          WEFT_CUDNN_REDUCTION_OPERATOR) == WEFT_CUDNN_REDUCE_ADD;
  g_autofree double *total = g_new (double, count (out));
  int64_t place[4];

  for (uint64_t i = 0; i < count (out); i++)
    total[i] = adds ? 0 : -INFINITY;
  for (uint64_t i = 0; i < count (dim); i++) {
    int64_t at = 0;
    places_of (dim, i, place);
    for (int d = 0; d < 4; d++)
      at = at * out[d] + place[d] / (dim[d] / out[d]);
    total[at] = adds ? total[at] + x->value[i] : MAX (total[at], x->value[i]);
  }
  for (uint64_t i = 0; i < count (out); i++)
    keep (y, i, total[i]);
}

/* Exchanges rows and columns: y has the elements of x with exchanged strides. */
static void
play_reshape (const struct thing *op)
{
  const struct thing *x = thing_at (op, WEFT_CUDNN_RESHAPE_X);
  struct thing *y = thing_at (op, WEFT_CUDNN_RESHAPE_Y);
  const int64_t *from = numbers_at (x, WEFT_CUDNN_TENSOR_STRIDES),
                *to = numbers_at (y, WEFT_CUDNN_TENSOR_STRIDES),
                *dim = numbers_at (y, WEFT_CUDNN_TENSOR_DIMS);
  int64_t place[4];

  g_assert_cmpint (from[2], ==, to[3]);
  g_assert_cmpint (from[3], ==, to[2]);
  for (uint64_t i = 0; i < count (dim); i++) {
    places_of (dim, i, place);
    const int64_t at[] = { place[0], place[1], place[3], place[2] },
                  of[] = { dim[0], dim[1], dim[3], dim[2] };
    keep (y, i, value_at (x, at, of));
  }
}

/* ----------------------------------------------------------------------------------- plans */

static void *
pointer_of (const struct thing *pack, int64_t id)
{
  const struct attribute *ids = find (pack, WEFT_CUDNN_PACK_IDS);
  void **at = find (pack, WEFT_CUDNN_PACK_POINTERS)->data;

  for (int64_t i = 0; i < ids->n; i++)
    if (((const int64_t *) ids->data)[i] == id)
      return at[i];
  return NULL;
}

/* Prepares a tensor for its first use in a run: allocates its elements, and loads them from memory
 * unless the tensor is virtual. */
static void
meet (struct thing *tensor, const struct thing *pack, GPtrArray *met)
{
  if (!tensor || tensor->value)
    return;
  void *at = pointer_of (pack, *numbers_at (tensor, WEFT_CUDNN_TENSOR_ID));
  tensor->value = g_new0 (double, count (numbers_at (tensor, WEFT_CUDNN_TENSOR_DIMS)));
  g_ptr_array_add (met, tensor);
  g_assert_cmpint (at == NULL, ==, flag_at (tensor, WEFT_CUDNN_TENSOR_VIRTUAL));
  if (at)
    read_memory (tensor, at);
}

static struct thing *
output_of (const struct thing *op)
{
  static const int names[] = { WEFT_CUDNN_MATMUL_C, WEFT_CUDNN_POINTWISE_Y, WEFT_CUDNN_REDUCTION_Y,
                               WEFT_CUDNN_RESHAPE_Y };
  struct thing *y = NULL;

  for (unsigned i = 0; i < G_N_ELEMENTS (names) && !y; i++)
    y = thing_at (op, names[i]);
  return y;
}

static void
play (const struct thing *op, const struct thing *pack, GPtrArray *met)
{
  struct thing *y = output_of (op);

  for (guint i = 0; i < op->attributes->len; i++) {
    const struct attribute *a = &g_array_index (op->attributes, struct attribute, i);
    struct thing *used = a->type == WEFT_CUDNN_TYPE_THING ? *(struct thing **) a->data : NULL;
    meet (used && used->type == WEFT_CUDNN_TENSOR ? used : NULL, pack, met);
  }
  switch (op->type) {
  case WEFT_CUDNN_MATMUL_OP:
    play_matmul (op);
    break;
  case WEFT_CUDNN_POINTWISE_OP:
    play_pointwise (op);
    break;
  case WEFT_CUDNN_REDUCTION_OP:
    play_reduction (op);
    break;
  default:
    play_reshape (op);
  }
  if (!flag_at (y, WEFT_CUDNN_TENSOR_VIRTUAL))
    write_memory (y, pointer_of (pack, *numbers_at (y, WEFT_CUDNN_TENSOR_ID)));
}

static int
execute (void *handle, weft_cudnn_thing plan, weft_cudnn_thing pack)
{
  struct thing *p = plan, *operands = pack;
  const struct thing *config = thing_at (p, WEFT_CUDNN_PLAN_CONFIG);
  const struct attribute *ops = find (config->graph, WEFT_CUDNN_GRAPH_OPS);
  g_autoptr (GPtrArray) met = g_ptr_array_new ();

  if (!handle || !p->finished || !operands->finished)
    return BAD;
  memset (*(void **) find (operands, WEFT_CUDNN_PACK_WORKSPACE)->data, 0xff,
          PLAYING_CUDNN_WORKSPACE);
  for (int64_t i = 0; i < ops->n; i++)
    play (((struct thing **) ops->data)[i], operands, met);
  for (guint i = 0; i < met->len; i++)
    g_clear_pointer (&((struct thing *) met->pdata[i])->value, g_free);
  return 0;
}

#define PLAYING(version)                                                                           \
  {                                                                                                \
    version, error_string, last_error, create, destroy, set_stream, create_thing, destroy_thing,   \
        set_attribute, get_attribute, finalize, execute                                            \
  }
const struct weft_cudnn_calls playing_cudnn = PLAYING (version);
const struct weft_cudnn_calls playing_old_cudnn = PLAYING (old_version);
const struct weft_cudnn_calls playing_former_cudnn = PLAYING (former_version);
