/* The name table: one row per Hugging Face tensor. Import and export loop over it in
 * hugging_face_file.c. */
#include "train/hugging_face.h"
#include "core/base/error.h"
#include "core/job/family.h"
#include "core/job/rotary.h"
#include <string.h>

/* The rows of the Weft tensor that the Hugging Face tensor contains. */
enum share { ALL, OF_QUERIES, OF_KEYS, OF_VALUES, OF_GATES, OF_UPS };

/* The rows that have another order in the Hugging Face tensor. NONE: no rows. OF_EACH_HEAD,
 * LAST_OF_TENSOR, FIRST_OF_EACH_HEAD: the rotary rows, which are the last rows of each head, the
 * last rows of the tensor, or the first rows of each head. HEAD_BY_HEAD: all rows, because the
 * query, key and value rows of one head are adjacent. */
enum order { NONE, OF_EACH_HEAD, LAST_OF_TENSOR, FIRST_OF_EACH_HEAD, HEAD_BY_HEAD };

/* Restricts a row of the table to models: any model, models without a query latent, or models with
 * a query latent (q_lora_rank). The name of the last query projection depends on the query
 * latent. */
enum queries { ANY, WHOLE, LATENT };

struct row {
  const char *set, *param, *theirs;
  enum share share;
  gboolean transposed;
  float shift;
  enum order order;
  enum queries queries;
};

static const struct row rows[] = {
#define CONV1D .transposed = TRUE
#define LESS_ONE .shift = 1
#define QUERY .share = OF_QUERIES
#define KEY .share = OF_KEYS
#define VALUE .share = OF_VALUES
#define GATE .share = OF_GATES
#define UP .share = OF_UPS
#define NAME(set, ...) { #set, __VA_ARGS__ },
#include "train/tensor_names.def"
#undef NAME
};

/* Replaces the first `sign` in a pattern by a number. The caller frees the text. */
static char *
with_number (const char *pattern, char sign, uint32_t number)
{
  const char *mark = strchr (pattern, sign);

  if (!mark)
    return g_strdup (pattern);
  return g_strdup_printf ("%.*s%u%s", (int) (mark - pattern), pattern, number, mark + 1);
}

/* The Hugging Face name for one layer and expert: "model.layers.3.self_attn.q_proj.weight". */
static char *
their_name (const char *pattern, uint32_t layer, uint32_t expert)
{
  g_autofree char *of_layer = with_number (pattern, '#', layer);

  return with_number (of_layer, '@', expert);
}

/* Number of experts whose rows are stacked in one Weft tensor; 1 for tensors that belong to no
 * expert. */
static uint32_t
n_experts (const union weft_model *m, const struct weft_state_tensor *tensor)
{
  return g_str_has_prefix (tensor->param, "experts.") ? (uint32_t) m->num_moe_experts : 1;
}

/* Intermediate width of the MLP (dense, shared expert or experts) to which a tensor belongs. */
static uint64_t
mlp_width (const union weft_model *m, const char *param)
{
  if (g_str_has_prefix (param, "experts."))
    return (uint64_t) m->moe_ffn_hidden_size;
  return (uint64_t) (g_str_has_prefix (param, "shared.") ? m->moe_shared_expert_intermediate_size
                                                         : m->ffn_hidden_size);
}

static void
set_rows (const union weft_model *m, const struct weft_state_tensor *tensor, enum share share,
          struct weft_hf_piece *piece)
{
  uint64_t q = (uint64_t) m->num_attention_heads * m->kv_channels;
  uint64_t kv = (uint64_t) m->num_query_groups * m->kv_channels;
  uint64_t up = mlp_width (m, tensor->param);
  const uint64_t first[] = { [OF_KEYS] = q, [OF_VALUES] = q + kv, [OF_UPS] = up };
  const uint64_t count[] = { tensor->rows / n_experts (m, tensor), q, kv, kv, up, up };

  piece->first_row = first[share];
  piece->rows = count[share];
}

static void
set_order (const union weft_model *m, enum order order, struct weft_hf_piece *piece)
{
  uint64_t width = (uint64_t) m->kv_channels, latent = (uint64_t) m->qk_pos_emb_head_dim;
  uint64_t rotated = 2 * weft_rotary_pairs (m, width);
  const struct weft_hf_order orders[] = {
    [NONE] = { 0 },
    [OF_EACH_HEAD] = { .before = (uint64_t) m->qk_head_dim, .rope_rows = latent },
    [LAST_OF_TENSOR] = { .before = (uint64_t) m->kv_lora_rank, .rope_rows = latent },
    [FIRST_OF_EACH_HEAD] = { .rope_rows = rotated, .after = width - rotated },
    [HEAD_BY_HEAD] = { .head = width },
  };

  piece->order = orders[order];
}

static void
piece_clear (struct weft_hf_piece *piece)
{
  g_free (piece->name);
}

static void
add_piece (GArray *pieces, const struct row *row, const union weft_model *model,
           const struct weft_state_tensor *tensor, uint32_t expert)
{
  struct weft_hf_piece piece = { .name = their_name (row->theirs, tensor->layer, expert),
                                 .columns = tensor->columns,
                                 .transposed = row->transposed,
                                 .vector = tensor->columns == 1,
                                 .shift = row->shift };

  set_rows (model, tensor, row->share, &piece);
  set_order (model, row->order, &piece);
  piece.first_row += expert * (tensor->rows / n_experts (model, tensor));
  g_array_append_val (pieces, piece);
}

static gboolean
is_of (const struct row *row, const char *param, const struct weft_family *family,
       const union weft_model *model)
{
  enum queries queries = model->q_lora_rank > 0 ? LATENT : WHOLE;
  g_auto (GStrv) sets = weft_family_words (family->names);

  return strcmp (row->param, param) == 0 &&
         g_strv_contains ((const char *const *) sets, row->set) &&
         (row->queries == ANY || row->queries == queries);
}

gboolean
weft_hf_permutes (const struct weft_hf_piece *piece)
{
  return piece->order.rope_rows > 0 || piece->order.head > 0;
}

/* Whether rotary embedding is applied to `row`. *j receives the index of the row among those rows
 * of its head that have rotary embedding. */
static gboolean
is_rope_row (const struct weft_hf_order *o, uint64_t row, uint64_t *j)
{
  uint64_t at = o->rope_rows > 0 ? row % (o->before + o->rope_rows + o->after) : 0;

  *j = at - o->before;
  return o->rope_rows > 0 && at >= o->before && *j < o->rope_rows;
}

/* Transposes blocks of `width` rows: from (inner, outer) blocks to (outer, inner) blocks. */
static uint64_t
regroup (uint64_t row, uint64_t width, uint64_t outer, uint64_t inner)
{
  uint64_t c = row % width, i = row / width;

  return (i % inner * outer + i / inner) * width + c;
}

enum { PARTS = 3 /* parts of a head: query, key, value */ };

uint64_t
weft_hf_their_row (const struct weft_hf_piece *piece, uint64_t row)
{
  const struct weft_hf_order *o = &piece->order;
  uint64_t half = o->rope_rows / 2, j;

  if (o->head)
    return regroup (row, o->head, PARTS, piece->rows / o->head / PARTS);
  if (!is_rope_row (o, row, &j))
    return row;
  return row - j + (j < half ? 2 * j : 2 * (j - half) + 1);
}

uint64_t
weft_hf_our_row (const struct weft_hf_piece *piece, uint64_t row)
{
  const struct weft_hf_order *o = &piece->order;
  uint64_t j;

  if (o->head)
    return regroup (row, o->head, piece->rows / o->head / PARTS, PARTS);
  return is_rope_row (o, row, &j) ? row - j + j / 2 + j % 2 * (o->rope_rows / 2) : row;
}

/* Checks that the Hugging Face tensors of the name table contain each row of a Weft tensor exactly
 * once. The check fails, for example, if an MLP has no gate but the name table of the family has
 * gates (llama). */
static gboolean
check_rows (const GArray *pieces, const char *family, const struct weft_state_tensor *tensor,
            GError **error)
{
  uint64_t next = 0;

  for (uint32_t i = 0; i < pieces->len; i++) {
    const struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
    g_assert (piece->first_row == next);
    next += piece->rows;
  }
  if (next == tensor->rows)
    return TRUE;
  if (next == 0)
    return weft_bad_input (error, "%s: model family %s has no name for it", tensor->name, family);
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT " rows, wanted the %" G_GUINT64_FORMAT
                         " rows of model family %s",
                         tensor->name, tensor->rows, next, family);
}

/* "gpt2, llama, ...": the families that have a name table. The caller frees the text. */
static char *
named_families (void)
{
  GString *all = g_string_new (NULL);

  for (const struct weft_family *f = weft_families; f->type; f++)
    if (f->names)
      g_string_append_printf (all, "%s%s", all->len ? ", " : "", f->type);
  return g_string_free (all, FALSE);
}

GArray *
weft_hf_pieces (const union weft_model *model, const struct weft_state_tensor *tensor,
                GError **error)
{
  const struct weft_family *family = weft_family_of (model);
  g_autoptr (GArray) pieces = g_array_new (FALSE, FALSE, sizeof (struct weft_hf_piece));

  g_array_set_clear_func (pieces, (GDestroyNotify) piece_clear);
  if (!family || !family->names) {
    const char *found = g_quark_to_string ((GQuark) model->family);
    g_autofree char *wanted = named_families ();
    weft_bad_input (error,
                    "model family: found \"%s\", wanted one of %s to name tensors as Hugging Face "
                    "does",
                    found ? found : "", wanted);
    return NULL;
  }
  for (uint32_t expert = 0; expert < n_experts (model, tensor); expert++)
    for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
      if (is_of (&rows[i], tensor->param, family, model))
        add_piece (pieces, &rows[i], model, tensor, expert);
  return check_rows (pieces, family->type, tensor, error) ? g_steal_pointer (&pieces) : NULL;
}
