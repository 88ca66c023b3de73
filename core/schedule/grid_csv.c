/* Grids as text, in the notation of torch.distributed.pipelining (schedules.py, _Action): one line
 * per rank, one cell per action: stage, type, microbatch. Blank cells are idle slots. In Weft
 * gathers of weights and sends of tensors follow from the order of cells, so such actions are
 * skipped.
 *
 * Chunks of a rank are numbered by copy and stage. If several ranks run one stage, each for other
 * microbatches, there are as many copies of the model; copies are numbered by their first
 * microbatch. */
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/schedule/order.h"
#include <string.h>

char *
weft_grid_csv (const weft_grid *grid)
{
  GString *text = g_string_new (NULL);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    gboolean second = FALSE; /* whether the previous cell in the text began a pair */
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
      const struct weft_cell *cell = &grid->cell[rank][i];
      g_autofree char *name = weft_cell_print (grid, rank, cell);
      g_string_append_printf (text, "%s%s%s%s",
                              second ? ";"
                              : i    ? ","
                                     : "",
                              cell->paired ? "(" : "", name, second ? ")OVERLAP_F_B" : "");
      second = cell->paired;
    }
    g_string_append_c (text, '\n');
  }
  return g_string_free (text, FALSE);
}

/* ------------------------------------------------------------------ cells */

/* A cell that has been parsed. */
struct action {
  uint32_t stage, micro;
  uint16_t phase, paired;
};

struct reader {
  const char *where;
  uint32_t line, column;              /* position of the current cell in the file, from 1 */
  /* whether the current cell is in a pair, and its position in the pair */
  enum { ALONE, FIRST, SECOND } half;
  GPtrArray *row;                     /* by rank: its actions, an array of struct action */
  GError **error;
};

static const char pair_word[] = "OVERLAP_F_B";

/* Actions that PyTorch adds to a schedule when it compiles the schedule to sends and receives. The
 * reader skips them. */
static const char *const passed_over[] = { "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F",
                                           "RECV_F",  "SEND_B",  "RECV_B" };

static gboolean
refuse (const struct reader *r, const char *cell)
{
  g_autofree char *start = g_strndup (cell, 40), *found = g_strescape (start, NULL);

  return weft_bad_input (
      r->error,
      "%s:%u: cell %u: found \"%s\", wanted a stage, one of F, B, I and W, and a "
      "microbatch, as in 0F3, or (0F3;1B2)%s",
      r->where, r->line, r->column, found, pair_word);
}

/* Reads a number of at most five digits; -1 if the text does not begin with a number. */
static int64_t
read_number (const char **at)
{
  int64_t n = 0;
  const char *start = *at;

  for (; g_ascii_isdigit (**at) && *at < start + 5; (*at)++)
    n = 10 * n + **at - '0';
  return *at == start ? -1 : n;
}

static int
phase_of (const char *word, size_t length)
{
  for (int phase = 0; phase < WEFT_N_PHASE; phase++)
    if (weft_cell_kinds[phase].works && strlen (weft_phase_words[phase]) == length &&
        strncmp (weft_phase_words[phase], word, length) == 0)
      return phase;
  return -1;
}

static gboolean
is_passed_over (const char *word, size_t length)
{
  for (size_t i = 0; i < G_N_ELEMENTS (passed_over); i++)
    if (strlen (passed_over[i]) == length && strncmp (passed_over[i], word, length) == 0)
      return TRUE;
  return FALSE;
}

static gboolean
read_action (const struct reader *r, const char *text)
{
  const char *at = text, *word;
  int64_t stage = read_number (&at), micro;
  struct action action = { .paired = r->half == FIRST };

  for (word = at; g_ascii_isupper (*at) || *at == '_';)
    at++;
  size_t length = at - word;
  int phase = phase_of (word, length);
  micro = read_number (&at);
  if (stage < 0 || *at || stage >= UINT16_MAX || micro >= UINT16_MAX)
    return refuse (r, text);
  if (r->half == ALONE && is_passed_over (word, length))
    return TRUE;
  if (phase < 0 || micro < 0)
    return refuse (r, text);
  action.stage = stage;
  action.micro = micro;
  action.phase = phase;
  g_array_append_val ((GArray *) g_ptr_array_index (r->row, r->line - 1), action);
  return TRUE;
}

static gboolean
read_half (struct reader *r, char *text, int half)
{
  r->half = half;
  gboolean good = read_action (r, g_strstrip (text));
  r->half = ALONE;
  return good;
}

static gboolean
read_pair (struct reader *r, const char *cell)
{
  const char *middle = strchr (cell, ';'), *end = strchr (cell, ')');

  if (!middle || !end || end < middle || strcmp (end + 1, pair_word) != 0)
    return refuse (r, cell);
  g_autofree char *first = g_strndup (cell + 1, middle - cell - 1);
  g_autofree char *second = g_strndup (middle + 1, end - middle - 1);
  return read_half (r, first, FIRST) && read_half (r, second, SECOND);
}

static gboolean
read_line (struct reader *r, const char *line)
{
  g_auto (GStrv) cell = g_strsplit (line, ",", -1);

  g_ptr_array_add (r->row, g_array_new (FALSE, FALSE, sizeof (struct action)));
  for (r->column = 1; cell[r->column - 1]; r->column++) {
    char *text = g_strstrip (cell[r->column - 1]);
    gboolean good = *text == '('    ? read_pair (r, text)
                    : *text != '\0' ? read_action (r, text)
                                    : TRUE;
    if (!good)
      return FALSE;
  }
  return TRUE;
}

/* --------------------------------------------------------------- placement of stages */

/* A stage on one rank, and the first microbatch that it runs. */
struct piece {
  uint32_t rank, stage, first_micro, copy;
};

struct plan {
  const struct reader *r;
  uint32_t n_stages, n_micro, n_copies;
  size_t n_actions;
  GHashTable *at; /* maps rank << 16 | stage to an index in `piece` */
  GArray *piece;
  uint32_t *copy_of; /* by microbatch */
};

static gpointer
key_of (uint32_t rank, uint32_t stage)
{
  return GSIZE_TO_POINTER ((gsize) rank << 16 | stage);
}

static struct piece *
piece_at (const struct plan *plan, uint32_t rank, uint32_t stage)
{
  gpointer index;

  if (!g_hash_table_lookup_extended (plan->at, key_of (rank, stage), NULL, &index))
    return NULL;
  return &g_array_index (plan->piece, struct piece, GPOINTER_TO_UINT (index));
}

static void
note_action (struct plan *plan, uint32_t rank, const struct action *action)
{
  struct piece *piece = piece_at (plan, rank, action->stage);

  plan->n_stages = MAX (plan->n_stages, action->stage + 1u);
  plan->n_micro = MAX (plan->n_micro, action->micro + 1u);
  plan->n_actions++;
  if (piece) {
    piece->first_micro = MIN (piece->first_micro, action->micro);
    return;
  }
  const struct piece fresh = { rank, action->stage, action->micro, 0 };
  g_hash_table_insert (plan->at, key_of (rank, action->stage), GUINT_TO_POINTER (plan->piece->len));
  g_array_append_val (plan->piece, fresh);
}

static const struct action *
actions_of (const struct plan *plan, uint32_t rank, uint32_t *n)
{
  const GArray *row = g_ptr_array_index (plan->r->row, rank);

  *n = row->len;
  return (const struct action *) (void *) row->data;
}

static void
note_all (struct plan *plan)
{
  uint32_t n;

  for (uint32_t rank = 0; rank < plan->r->row->len; rank++) {
    const struct action *action = actions_of (plan, rank, &n);
    for (uint32_t i = 0; i < n; i++)
      note_action (plan, rank, &action[i]);
  }
}

static int
by_stage_and_micro (const void *a, const void *b)
{
  const struct piece *x = a, *y = b;

  return x->stage != y->stage
             ? (x->stage > y->stage) - (x->stage < y->stage)
             : (x->first_micro > y->first_micro) - (x->first_micro < y->first_micro);
}

static int
by_rank_and_copy (const void *a, const void *b)
{
  const struct piece *x = a, *y = b;

  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  if (x->copy != y->copy)
    return x->copy < y->copy ? -1 : 1;
  return (x->stage > y->stage) - (x->stage < y->stage);
}

static void
sort_pieces (struct plan *plan, GCompareFunc compare)
{
  g_array_sort (plan->piece, compare);
  for (uint32_t i = 0; i < plan->piece->len; i++) {
    const struct piece *piece = &g_array_index (plan->piece, struct piece, i);
    g_hash_table_insert (plan->at, key_of (piece->rank, piece->stage), GUINT_TO_POINTER (i));
  }
}

/* Checks that every stage is on the same number of ranks, which is not 0, and that every rank runs
 * the same number of stages. */
static gboolean
count_pieces (struct plan *plan)
{
  uint32_t n_ranks = plan->r->row->len;
  g_autofree uint32_t *on_rank = g_new0 (uint32_t, n_ranks + 1);
  g_autofree uint32_t *of_stage = g_new0 (uint32_t, plan->n_stages + 1);

  for (uint32_t i = 0; i < plan->piece->len; i++) {
    const struct piece *piece = &g_array_index (plan->piece, struct piece, i);
    on_rank[piece->rank]++;
    of_stage[piece->stage]++;
  }
  plan->n_copies = of_stage[0];
  for (uint32_t stage = 0; stage < plan->n_stages; stage++)
    if (of_stage[stage] == 0 || of_stage[stage] != plan->n_copies)
      return weft_bad_input (
          plan->r->error,
          "%s: stage %u is on %u ranks, and stage 0 on %u ranks: every stage must be on the "
          "same number of ranks",
          plan->r->where, stage, of_stage[stage], plan->n_copies);
  for (uint32_t rank = 0; rank < n_ranks; rank++)
    if (on_rank[rank] != on_rank[0])
      return weft_bad_input (
          plan->r->error,
          "%s:%u: rank %u runs %u stages, and rank 0 %u stages: the numbers must be "
          "equal",
          plan->r->where, rank + 1, rank, on_rank[rank], on_rank[0]);
  if (on_rank[0] > UINT8_MAX)
    return weft_bad_input (plan->r->error,
                           "%s: found %u stages on each rank, wanted at most %u stages",
                           plan->r->where, on_rank[0], UINT8_MAX);
  return TRUE;
}

/* Numbers the copies of the model by the ranks that run stage 0. A microbatch belongs to the copy
 * whose stage 0 it passes; the other stages of this copy are the stages that run its
 * microbatches. */
static gboolean
find_copies (struct plan *plan)
{
  uint32_t n;

  sort_pieces (plan, by_stage_and_micro);
  plan->copy_of = g_new0 (uint32_t, plan->n_micro);
  for (uint32_t i = 0; i < plan->n_copies; i++) {
    struct piece *first = &g_array_index (plan->piece, struct piece, i);
    const struct action *action = actions_of (plan, first->rank, &n);
    first->copy = i;
    for (uint32_t k = 0; k < n; k++)
      if (action[k].stage == 0)
        plan->copy_of[action[k].micro] = i;
  }
  g_autofree uint8_t *taken = g_new0 (uint8_t, plan->piece->len);
  for (uint32_t i = 0; i < plan->piece->len; i++) {
    struct piece *piece = &g_array_index (plan->piece, struct piece, i);
    piece->copy = plan->copy_of[piece->first_micro];
    if (taken[piece->copy * plan->n_stages + piece->stage]++)
      return weft_bad_input (
          plan->r->error,
          "%s:%u: another rank also runs stage %u for microbatches that start on the same "
          "rank as microbatch %u, wanted one rank",
          plan->r->where, piece->rank + 1, piece->stage, piece->first_micro);
  }
  return TRUE;
}

static void
fill_rank (const struct plan *plan, weft_grid *grid, uint32_t rank)
{
  const struct action *action = actions_of (plan, rank, &grid->n_cell[rank]);

  grid->cell[rank] = g_new0 (struct weft_cell, grid->n_cell[rank]);
  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct piece *piece = piece_at (plan, rank, action[i].stage);
    uint32_t place = piece - (const struct piece *) (void *) plan->piece->data;
    grid->cell[rank][i] = (struct weft_cell){ .phase = action[i].phase,
                                              .chunk = place % grid->n_chunks,
                                              .micro = action[i].micro,
                                              .paired = action[i].paired };
  }
}

static weft_grid *
grid_of (struct plan *plan)
{
  uint32_t n_ranks = plan->r->row->len;
  weft_grid *grid =
      weft_grid_alloc (n_ranks, plan->piece->len / n_ranks, plan->n_micro, plan->n_copies);

  sort_pieces (plan, by_rank_and_copy);
  for (uint32_t i = 0; i < plan->piece->len; i++) {
    const struct piece *piece = &g_array_index (plan->piece, struct piece, i);
    weft_grid_settle (grid, i, piece->copy, piece->stage);
  }
  memcpy (grid->copy_of, plan->copy_of, plan->n_micro * sizeof (*plan->copy_of));
  for (uint32_t rank = 0; rank < n_ranks; rank++)
    fill_rank (plan, grid, rank);
  return grid;
}

/* Builds a grid from the actions that were read. Refuses, before it allocates memory, numbers of
 * stages and microbatches for which the text has too few cells. */
static weft_grid *
settle (const struct reader *r)
{
  struct plan plan = { .r = r };
  weft_grid *grid = NULL;

  plan.at = g_hash_table_new (NULL, NULL);
  plan.piece = g_array_new (FALSE, FALSE, sizeof (struct piece));
  note_all (&plan);
  if ((uint64_t) plan.n_stages * plan.n_micro > plan.n_actions || plan.n_actions == 0)
    weft_bad_input (
        r->error,
        "%s: found %zu cells for %u stages and %u microbatches, wanted every microbatch "
        "on every stage, both from 0",
        r->where, plan.n_actions, plan.n_stages, plan.n_micro);
  else if (count_pieces (&plan) && find_copies (&plan))
    grid = grid_of (&plan);
  g_hash_table_unref (plan.at);
  g_array_unref (plan.piece);
  g_free (plan.copy_of);
  return grid;
}

weft_grid *
weft_grid_read (const char *text, const char *where, GError **error)
{
  g_autoptr (GPtrArray) row = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);
  struct reader r = { .where = where, .row = row, .error = error };
  g_autofree char *trimmed = g_strchomp (g_strdup (text));
  g_auto (GStrv) line = g_strsplit (trimmed, "\n", -1);

  for (r.line = 1; line[r.line - 1]; r.line++)
    if (!read_line (&r, line[r.line - 1]))
      return NULL;
  g_autoptr (weft_grid) grid = settle (&r);
  if (grid && !weft_grid_check (grid, error)) {
    g_prefix_error (error, "%s: ", where);
    return NULL;
  }
  return g_steal_pointer (&grid);
}

enum { MOST_BYTES = 64 << 20 };

weft_grid *
weft_grid_load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST_BYTES, &length, error);

  if (!text)
    return NULL;
  if (strlen (text) != length) {
    weft_bad_input (error, "%s: found a NUL byte, wanted text", path);
    return NULL;
  }
  return weft_grid_read (text, path, error);
}
