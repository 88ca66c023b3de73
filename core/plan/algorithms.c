#include "core/plan/algorithms.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/job/collectives.h"

/* An algorithm, and the kind of its group. */
struct row {
  enum weft_group_kind group;
  weft_algo *algorithm;
};

struct weft_algorithms {
  struct weft_mesh mesh;
  GArray *row; /* struct row */
};

static gboolean
find_group (const char *word, enum weft_group_kind *kind, GError **error)
{
  for (*kind = WEFT_GROUP_NONE + 1; *kind < WEFT_N_GROUP; ++*kind)
    if (g_str_equal (weft_group_words[*kind], word))
      return TRUE;
  g_autofree char *near = weft_suggest_part (word, weft_group_words + 1);
  g_autofree char *all = g_strjoinv (", ", (char **) (uintptr_t) (weft_group_words + 1));
  return weft_bad_input (error, "collective_algorithm_files: unknown group \"%s\"%s%s: wanted %s",
                         word, near ? "; did you mean " : "", near ? near : "", all);
}

static gboolean
add (weft_algorithms *all, const struct weft_job_algorithm *from, GError **error)
{
  struct row row;

  if (!find_group (from->group, &row.group, error))
    return FALSE;
  uint32_t n = weft_mesh_group_size (&all->mesh, row.group);
  if (n < 2)
    return weft_bad_input (error,
                           "collective_algorithm_files: group %s has %u rank in this job, "
                           "wanted at least 2",
                           from->group, n);
  row.algorithm = weft_algo_new (from->text, n, error);
  if (!row.algorithm)
    g_prefix_error (error, "collective_algorithm_files: ");
  else
    g_array_append_val (all->row, row);
  return row.algorithm != NULL;
}

weft_algorithms *
weft_algorithms_new (const struct weft_job *job, const struct weft_mesh *mesh, GError **error)
{
  g_autoptr (GPtrArray) files = weft_job_algorithms (job, error);

  if (!files)
    return NULL;
  weft_algorithms *all = g_new0 (weft_algorithms, 1);
  all->mesh = *mesh;
  all->row = g_array_new (FALSE, FALSE, sizeof (struct row));
  for (guint i = 0; i < files->len; i++)
    if (!add (all, files->pdata[i], error)) {
      weft_algorithms_free (all);
      return NULL;
    }
  return all;
}

void
weft_algorithms_free (weft_algorithms *all)
{
  for (guint i = 0; i < all->row->len; i++)
    weft_algo_free (g_array_index (all->row, struct row, i).algorithm);
  g_array_unref (all->row);
  g_free (all);
}

static gboolean
has_members (const weft_algorithms *all, const struct weft_group *group, enum weft_group_kind kind)
{
  struct weft_group g = weft_mesh_group (&all->mesh, group->first, kind);

  for (int i = 0; i < 2; i++)
    if (g.n[i] != group->n[i] || (g.n[i] > 1 && g.stride[i] != group->stride[i]))
      return FALSE;
  return g.first == group->first;
}

const weft_algo *
weft_algorithms_find (const weft_algorithms *all, const struct weft_group *group,
                      enum weft_op_kind kind)
{
  for (guint i = 0; all && i < all->row->len; i++) {
    const struct row *row = &g_array_index (all->row, struct row, i);
    if (g_str_equal (weft_collective_words[row->algorithm->collective], weft_op_words[kind]) &&
        has_members (all, group, row->group))
      return row->algorithm;
  }
  return NULL;
}

static gboolean
uses (const weft_program *p, const struct row *row)
{
  const char *word = weft_collective_words[row->algorithm->collective];

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].group == row->group && g_str_equal (weft_op_words[p->op[op].kind], word))
      return TRUE;
  return FALSE;
}

gboolean
weft_algorithms_check_used (const weft_algorithms *all, weft_program *const *programs,
                            GError **error)
{
  for (guint i = 0; i < all->row->len; i++) {
    const struct row *row = &g_array_index (all->row, struct row, i);
    gboolean used = FALSE;
    for (uint32_t role = 0; role < all->mesh.pp && !used; role++)
      used = uses (programs[role], row);
    if (!used)
      return weft_bad_input (error,
                             "collective_algorithm_files: %s is a %s, and found no %s in group %s "
                             "of this job (weft program lists its collectives)",
                             row->algorithm->name,
                             weft_collective_words[row->algorithm->collective],
                             weft_collective_words[row->algorithm->collective],
                             weft_group_words[row->group]);
  }
  return TRUE;
}
