/* Names: tensor_names.def has a row for each of their tensors.  The import and export that follow
 * them are in hugging_face_file.c. */
#include "train/hugging_face.h"
#include "core/base/error.h"
#include "core/job/family.h"
#include "core/job/rotary.h"
#include <string.h>

/* Which rows of ours one of theirs is. */
enum share { ALL, OF_QUERIES, OF_KEYS, OF_VALUES, OF_GATES, OF_UPS };

/* Which rows stand in other places in theirs.  Of those that turn with the position, where pairs are
 * neighbours in theirs: the last of every head, the last of the tensor, or the first of every head.
 * HEAD_BY_HEAD: theirs has query, key and value of a head, then those of the next. */
enum turned { NONE, OF_HEADS, LAST, FIRST, HEAD_BY_HEAD };

/* Whether queries come from a latent: their last map has a name of its own then. */
enum queries { ANY, WHOLE, LATENT };

struct row {
  const char *set, *param, *theirs;
  enum share share;
  gboolean transposed;
  float shift;
  enum turned turned;
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

/* A mark becomes a number. */
static char *
with_number (const char *pattern, char sign, uint32_t number)
{
  const char *mark = strchr (pattern, sign);

  if (!mark)
    return g_strdup (pattern);
  return g_strdup_printf ("%.*s%u%s", (int) (mark - pattern), pattern, number, mark + 1);
}

/* "q_proj" of layer 3. */
static char *
their_name (const char *pattern, uint32_t layer, uint32_t expert)
{
  g_autofree char *of_layer = with_number (pattern, '#', layer);

  return with_number (of_layer, '@', expert);
}

/* Experts whose rows a tensor of ours has one after the other. */
static uint32_t
n_experts (const union weft_model *m, const struct weft_state_tensor *tensor)
{
  return g_str_has_prefix (tensor->param, "experts.") ? (uint32_t) m->num_moe_experts : 1;
}

/* Of the MLP that a tensor of ours belongs to. */
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
set_turned (const union weft_model *m, enum turned turned, struct weft_hf_piece *piece)
{
  uint64_t width = (uint64_t) m->kv_channels, latent = (uint64_t) m->qk_pos_emb_head_dim;
  uint64_t pairs = weft_rotary_pairs (m, width);
  const struct weft_hf_turned places[] = {
    [NONE] = { 0 },
    [OF_HEADS] = { .before = (uint64_t) m->qk_head_dim, .turned = latent },
    [LAST] = { .before = (uint64_t) m->kv_lora_rank, .turned = latent },
    [FIRST] = { .turned = 2 * pairs, .after = width - 2 * pairs },
    [HEAD_BY_HEAD] = { .head = width },
  };

  piece->moved = places[turned];
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
  set_turned (model, row->turned, &piece);
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
weft_hf_moves (const struct weft_hf_piece *piece)
{
  return piece->moved.turned > 0 || piece->moved.head > 0;
}

/* Which of its head's turned rows this is; FALSE: it is none. */
static gboolean
is_turned (const struct weft_hf_turned *m, uint64_t row, uint64_t *j)
{
  uint64_t at = m->turned > 0 ? row % (m->before + m->turned + m->after) : 0;

  *j = at - m->before;
  return m->turned > 0 && at >= m->before && *j < m->turned;
}

/* Row c of part i of n, each of `width` rows of every head: from parts of all heads to heads of all
 * parts. */
static uint64_t
regroup (uint64_t row, uint64_t width, uint64_t outer, uint64_t inner)
{
  uint64_t c = row % width, i = row / width;

  return (i % inner * outer + i / inner) * width + c;
}

enum { PARTS = 3 /* query, key, value */ };

uint64_t
weft_hf_their_row (const struct weft_hf_piece *piece, uint64_t row)
{
  const struct weft_hf_turned *m = &piece->moved;
  uint64_t half = m->turned / 2, j;

  if (m->head)
    return regroup (row, m->head, PARTS, piece->rows / m->head / PARTS);
  if (!is_turned (m, row, &j))
    return row;
  return row - j + (j < half ? 2 * j : 2 * (j - half) + 1);
}

uint64_t
weft_hf_our_row (const struct weft_hf_piece *piece, uint64_t row)
{
  const struct weft_hf_turned *m = &piece->moved;
  uint64_t j;

  if (m->head)
    return regroup (row, m->head, piece->rows / m->head / PARTS, PARTS);
  return is_turned (m, row, &j) ? row - j + j / 2 + j % 2 * (m->turned / 2) : row;
}

/* Each row of ours is in one piece: an MLP without a gate, for one, does not fit llama's names. */
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
                         " of model family %s",
                         tensor->name, tensor->rows, next, family);
}

/* "gpt2, llama, ...": families whose tensors have names.  Caller frees. */
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
