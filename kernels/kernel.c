#include "kernels/kernel.h"
#include "core/base/error.h"
#include <pthread.h>
#include <string.h>

const struct weft_kernel_row weft_kernels[WEFT_N_OP] = {
#define KERNEL(id, name, ...) [id] = { weft_cpu_##name, weft_ref_##name, weft_extent_##name },
#include "core/ops.def"
};

/* Operands that hold indices, by name: the least valid value (-1: no row, no target), and what the
 * values count. */
enum indexed { TOKENS, EXPERTS, ROWS };
static const struct {
  const char *name;
  int64_t least;
  enum indexed of;
} indices[] = {
  { "ids", 0, TOKENS }, { "targets", -1, TOKENS }, { "choice", 0, EXPERTS },
  { "row", -1, ROWS },  { "counts", 0, ROWS },     { "send", 0, ROWS },
};

/* index_of[kind][operand] is 1 + the row of the table `indices` that describes an operand of
 * indices (token ids, row numbers ...); 0: the operand contains no indices. */
static uint8_t index_of[WEFT_N_OP][WEFT_MOST_OPERANDS];
static pthread_once_t indices_found = PTHREAD_ONCE_INIT;

static uint8_t
find_index (const char *word)
{
  gsize length = strcspn (word, ":");

  for (uint8_t i = 0; i < G_N_ELEMENTS (indices); i++)
    if (strlen (indices[i].name) == length && strncmp (indices[i].name, word, length) == 0 &&
        word[length + 1] == 'r')
      return i + 1;
  return 0;
}

static void
find_indices (void)
{
  for (int kind = 0; kind < WEFT_N_OP; kind++) {
    g_auto (GStrv) word = g_strsplit (weft_op_info[kind].operands, " ", -1);
    for (unsigned i = 0; word[i] && i < WEFT_MOST_OPERANDS; i++)
      index_of[kind][i] = find_index (word[i]);
  }
}

static int64_t
limit_of (enum indexed of, const union weft_model *model)
{
  return of == TOKENS ? model->vocab_size : of == EXPERTS ? model->num_moe_experts : INT32_MAX;
}

static gboolean
is_below (const struct weft_operand *o, int64_t least, int64_t limit)
{
  for (uint64_t i = 0; i < o->n; i++) {
    int64_t value =
        o->dtype == WEFT_INT64 ? ((const int64_t *) o->data)[i] : ((const int32_t *) o->data)[i];
    if (value < least || value >= limit)
      return FALSE;
  }
  return TRUE;
}

gboolean
weft_kernel_index_valid (const struct weft_kernel *k, uint32_t operand)
{
  pthread_once (&indices_found, find_indices);
  uint8_t found = operand < WEFT_MOST_OPERANDS ? index_of[k->kind][operand] : 0;

  return !found || is_below (&k->operand[operand], indices[found - 1].least,
                             limit_of (indices[found - 1].of, k->model));
}

gboolean
weft_kernels_check_model (const union weft_model *model, GError **error)
{
  if (model->position_embedding_type == WEFT_ROPE && model->rotary_scaling == WEFT_ROTARY_OTHER)
    return weft_bad_input (error,
                           "rotary_scaling (rope_scaling of a config.json): found %s, wanted none, "
                           "linear or llama3: the model can be planned and simulated, not trained",
                           weft_rotary_scaling_words[model->rotary_scaling]);
  if (model->activation == WEFT_QUICK_GEGLU)
    return weft_bad_input (error,
                           "activation: found %s, wanted any other: the model can be planned and "
                           "simulated, not trained",
                           weft_activation_words[model->activation]);
  return TRUE;
}
