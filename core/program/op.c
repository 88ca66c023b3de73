#include "core/program/op.h"

const char *const weft_lane_words[] = { WEFT_LANE_LIST (WEFT_WORD_TEXT) NULL };
#define LANE_TRAITS(id, text, doc, ...) [id] = { __VA_ARGS__ },
const struct weft_lane_traits weft_lane_traits[WEFT_N_LANE] = { WEFT_LANE_LIST (LANE_TRAITS) };
const char *const weft_reduce_words[] = { WEFT_REDUCE_LIST (WEFT_WORD_TEXT) NULL };

/* ------------------------------------------------------------------------- costs */

/* The functions of core/costs.def, which describes them. */
static double
area (double a, double b)
{
  return a * (b > 0 ? b : 1);
}

static double
choose (double a, double b, double c)
{
  return a > 0 ? b : c;
}

static double
first (double a, double b)
{
  return choose (a, a, b);
}

static double
when (double a, double b)
{
  return choose (a, b, 0);
}

static double
larger (double a, double b)
{
  return a > b ? a : b;
}

static double
seen (double keys, double window)
{
  return window > 0 && window < keys ? window - window * window / (2 * keys) : keys / 2;
}

static double
codes (double n, double block)
{
  return n * (block > 0 ? 1 + 1 / 32.0 : 1);
}

static double
half (double size)
{
  return size < 4 ? size : 0;
}

static double
queries_of (double taken, double parts, double groups)
{
  return taken == WEFT_HEADS_OWN ? parts : groups;
}

static double
keys_of (double taken)
{
  return taken == WEFT_HEADS_QUERIES ? 0 : 2;
}

static double
parts_of (double taken, double parts)
{
  return taken == WEFT_HEADS_OWN ? 1 : parts;
}

/* The dimensions of an expression as variables: (m, n, k) are those with numbers 0, 1 and 2. */
#define DIM(name, i) G_GNUC_UNUSED const double name = (double) s->dim[i];
#define DIM_1(a) DIM (a, 0)
#define DIM_2(a, b) DIM_1 (a) DIM (b, 1)
#define DIM_3(a, b, c) DIM_2 (a, b) DIM (c, 2)
#define DIM_4(a, b, c, d) DIM_3 (a, b, c) DIM (d, 3)
#define DIM_5(a, b, c, d, e) DIM_4 (a, b, c, d) DIM (e, 4)
#define DIM_6(a, b, c, d, e, f) DIM_5 (a, b, c, d, e) DIM (f, 5)
#define DIM_7(a, b, c, d, e, f, g) DIM_6 (a, b, c, d, e, f) DIM (g, 6)
#define DIM_8(a, b, c, d, e, f, g, h) DIM_7 (a, b, c, d, e, f, g) DIM (h, 7)
#define DIM_OF(a, b, c, d, e, f, g, h, macro, ...) macro
#define DIMS(...)                                                                                  \
  DIM_OF (__VA_ARGS__, DIM_8, DIM_7, DIM_6, DIM_5, DIM_4, DIM_3, DIM_2, DIM_1, 0) (__VA_ARGS__)

#define COST_FUNCTION(name, dimensions, expression)                                                \
  static double name (const struct weft_shape *s)                                                  \
  {                                                                                                \
    DIMS dimensions                                                                                \
    G_GNUC_UNUSED const double size = weft_dtype_bytes (s->dtype),                                 \
                               result = weft_dtype_bytes (s->out_dtype);                           \
    return expression;                                                                             \
  }
#define COST(name, dimensions, flops, bytes, doc)                                                  \
  COST_FUNCTION (name##_flops, dimensions, flops)                                                  \
  COST_FUNCTION (name##_bytes, dimensions, bytes)                                                  \
  static const struct weft_op_formula name##_formula = { #dimensions, #flops, #bytes, doc };
#include "core/costs.def"

/* ------------------------------------------------------------------------- table */

/* The formula of adam_8bit has the size of a block as a number. */
G_STATIC_ASSERT (WEFT_8BIT_BLOCK == 256);

const struct weft_op_info weft_op_info[WEFT_N_OP] = {
#define OP(id, name, kind, cost, dimensions, uses, what, ...)                                      \
  [id] = { .word = #name,                                                                          \
           .class = kind,                                                                          \
           .dims = dimensions,                                                                     \
           .operands = uses,                                                                       \
           .doc = what,                                                                            \
           .flops = cost##_flops,                                                                  \
           .bytes = cost##_bytes,                                                                  \
           .formula = &cost##_formula,                                                             \
           __VA_ARGS__ },
#include "core/ops.def"
};

const char *const weft_op_words[] = {
#define OP(id, name, ...) #name,
#include "core/ops.def"
  NULL
};

#define ACTIVATION_OPS(id, text, doc, ups, forward, backward, name) { forward, backward, name },
const struct weft_activation_ops weft_activation_ops[] = { WEFT_ACTIVATION_LIST (ACTIVATION_OPS) };

enum weft_lane
weft_group_lane (enum weft_group_kind kind)
{
  static const uint8_t lanes[WEFT_N_GROUP] = {
#define WEFT_GROUP_ROW(id, word, lane, doc) [id] = lane,
    WEFT_GROUP_LIST (WEFT_GROUP_ROW)
#undef WEFT_GROUP_ROW
  };
  return lanes[kind];
}
