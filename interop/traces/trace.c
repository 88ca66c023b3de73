#include "interop/traces/trace.h"
#include "core/base/error.h"
#include "interop/traces/kineto.h"
#include "interop/traces/names.h"
#include "interop/traces/nsys.h"
#include "interop/traces/source.h"
#include <string.h>

/* --------------------------------------------------------------------------- parts */

static void
free_rank (void *data)
{
  struct weft_trace_rank *rank = data;

  g_array_unref (rank->kernel);
  g_array_unref (rank->step);
  g_free (rank->file);
  g_free (rank);
}

static guint
hash_comm (const void *data)
{
  const struct weft_trace_comm *c = data;
  guint hash = g_int64_hash (&c->size) ^ 31 * g_int64_hash (&c->in) ^ 37 * g_int64_hash (&c->out);
  const void *text[] = { c->collective, c->group, c->description, c->dtype, c->ranks };

  for (unsigned i = 0; i < G_N_ELEMENTS (text); i++)
    hash = 33 * hash + g_direct_hash (text[i]);
  return hash;
}

/* The trace stores equal texts once, so comparing pointers is enough. */
static gboolean
equal_comm (const void *a, const void *b)
{
  const struct weft_trace_comm *x = a, *y = b;

  return x->collective == y->collective && x->group == y->group &&
         x->description == y->description && x->dtype == y->dtype && x->ranks == y->ranks &&
         x->size == y->size && x->in == y->in && x->out == y->out;
}

weft_trace *
weft_trace_new (const char *name)
{
  weft_trace *trace = g_new0 (weft_trace, 1);

  trace->name = g_strdup (name);
  trace->rank = g_ptr_array_new_with_free_func (free_rank);
  trace->comm = g_array_new (FALSE, FALSE, sizeof (struct weft_trace_comm));
  trace->shape = g_ptr_array_new ();
  trace->strings = g_string_chunk_new (1 << 16);
  trace->comms = g_hash_table_new_full (hash_comm, equal_comm, g_free, NULL);
  trace->shapes = g_hash_table_new (g_direct_hash, g_direct_equal);
  return trace;
}

void
weft_trace_free (weft_trace *trace)
{
  g_ptr_array_unref (trace->rank);
  g_array_unref (trace->comm);
  g_ptr_array_unref (trace->shape);
  g_hash_table_unref (trace->comms);
  g_hash_table_unref (trace->shapes);
  g_string_chunk_free (trace->strings);
  g_free (trace->name);
  g_free (trace);
}

struct weft_trace_rank *
weft_trace_add_rank (weft_trace *trace, const char *file)
{
  struct weft_trace_rank *rank = g_new0 (struct weft_trace_rank, 1);

  rank->file = g_strdup (file);
  rank->rank = WEFT_TRACE_NONE;
  rank->kernel = g_array_new (FALSE, FALSE, sizeof (struct weft_trace_kernel));
  rank->step = g_array_new (FALSE, FALSE, sizeof (struct weft_trace_step));
  g_ptr_array_add (trace->rank, rank);
  return rank;
}

const char *
weft_trace_string (weft_trace *trace, const char *text)
{
  if (!text)
    return NULL;
  if (g_utf8_validate (text, -1, NULL))
    return g_string_chunk_insert_const (trace->strings, text);
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  return g_string_chunk_insert_const (trace->strings, valid);
}

uint32_t
weft_trace_comm_row (weft_trace *trace, const struct weft_trace_comm *comm)
{
  void *row;

  if (g_hash_table_lookup_extended (trace->comms, comm, NULL, &row))
    return GPOINTER_TO_UINT (row);
  g_hash_table_insert (trace->comms, g_memdup2 (comm, sizeof *comm),
                       GUINT_TO_POINTER (trace->comm->len));
  g_array_append_val (trace->comm, *comm);
  return trace->comm->len - 1;
}

uint32_t
weft_trace_shape_row (weft_trace *trace, const char *text)
{
  const char *own = weft_trace_string (trace, text);
  void *row;

  if (g_hash_table_lookup_extended (trace->shapes, own, NULL, &row))
    return GPOINTER_TO_UINT (row);
  g_ptr_array_add (trace->shape, (void *) own);
  g_hash_table_insert (trace->shapes, (void *) own, GUINT_TO_POINTER (trace->shape->len));
  return trace->shape->len;
}

/* ----------------------------------------------------------------------------- steps */

/* Names of ranges that are steps, before their number: of torch.profiler, and of loops that call
 * torch.cuda.nvtx.range_push() (Megatron-LM's examples, NeMo's NsysCallback, nanoGPT). */
static const char *const step_names[] = { "ProfilerStep", "iteration", "step",
                                          "train_step",   "batch",     NULL };

/* The number of a step, if `text` is `name` and a number: "ProfilerStep#12", "step 12"; otherwise
 * FALSE. */
static gboolean
read_step (const char *text, const char *name, int64_t *number)
{
  if (g_ascii_strncasecmp (text, name, strlen (name)) != 0)
    return FALSE;
  text += strlen (name);
  text += strspn (text, "#_=: -");
  char *end;
  *number = g_ascii_strtoll (text, &end, 10);
  return end != text && *end == '\0';
}

void
weft_trace_add_range (struct weft_trace_rank *rank, const char *name, int64_t begin, int64_t end,
                      const struct weft_trace_options *options)
{
  const char *const asked[] = { options->step_name, NULL };
  const char *const *names = options->step_name ? asked : step_names;
  struct weft_trace_step step = { rank->step->len, begin, end };

  for (; *names; names++)
    if (read_step (name, *names, &step.number) || (names == asked && strcmp (name, *names) == 0)) {
      g_array_append_val (rank->step, step);
      return;
    }
}

/* ---------------------------------------------------------------------------- finish */

static int
by_correlation (const void *a, const void *b)
{
  const struct weft_trace_launch *x = a, *y = b;
  return (x->correlation > y->correlation) - (x->correlation < y->correlation);
}

static int
by_begin (const void *a, const void *b)
{
  const struct weft_trace_kernel *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static int
by_step (const void *a, const void *b)
{
  const struct weft_trace_step *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

void
weft_trace_finish_rank (struct weft_trace_rank *rank, GArray *launches)
{
  g_array_sort (launches, by_correlation);
  for (guint i = 0; i < rank->kernel->len; i++) {
    struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, i);
    const struct weft_trace_launch wanted = { .correlation = k->launched };
    const struct weft_trace_launch *found =
        launches->len
            ? bsearch (&wanted, launches->data, launches->len, sizeof wanted, by_correlation)
            : NULL;
    /* a profiler may give a kernel's launch a later time than its begin, by the error of clocks */
    k->launched = found ? MIN (found->begin, k->begin) : WEFT_TRACE_NONE;
  }
  g_array_sort (rank->kernel, by_begin);
  g_array_sort (rank->step, by_step);
}

/* -------------------------------------------------------------------------------- files */

/* Whether a text begins with a list of objects: Chrome's format without an outer object. A job file
 * begins with the name of a section. */
static gboolean
begins_list (const char *text, gsize n)
{
  gsize at = 0;

  while (at < n && g_ascii_isspace (text[at]))
    at++;
  if (at == n || text[at++] != '[')
    return FALSE;
  while (at < n && g_ascii_isspace (text[at]))
    at++;
  return at < n && text[at] == '{';
}

gboolean
weft_trace_claims (const char *path)
{
  static const char *const members[] = { "\"traceEvents\"", "\"schemaVersion\"" };
  char head[1 << 14];

  if (g_file_test (path, G_FILE_TEST_IS_DIR))
    return TRUE;
  g_autoptr (weft_source) source = weft_source_open (path, NULL);
  gssize n = source ? weft_source_read (source, head, sizeof head, NULL) : -1;
  if (n <= 0)
    return FALSE;
  if (weft_nsys_claims (head, (gsize) n))
    return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (members); i++)
    if (g_strstr_len (head, n, members[i]))
      return TRUE;
  return begins_list (head, (gsize) n);
}

static gboolean
load_file (weft_trace *trace, const char *path, const struct weft_trace_options *options,
           GError **error)
{
  char head[16];
  g_autoptr (weft_source) source = weft_source_open (path, error);
  gssize n = source ? weft_source_read (source, head, sizeof head, error) : -1;

  if (n < 0)
    return FALSE;
  g_clear_pointer (&source, weft_source_close);
  if (weft_nsys_claims (head, (gsize) n))
    return weft_nsys_load (trace, path, options, error);
  return weft_kineto_load (trace, path, options, error);
}

static gboolean
is_trace_file (const char *name)
{
  static const char *const suffixes[] = { ".json", ".json.gz", ".sqlite" };

  for (unsigned i = 0; i < G_N_ELEMENTS (suffixes); i++)
    if (g_str_has_suffix (name, suffixes[i]))
      return TRUE;
  return FALSE;
}

static int
by_name (const void *a, const void *b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

static gboolean
load_folder (weft_trace *trace, const char *path, const struct weft_trace_options *options,
             GError **error)
{
  g_autoptr (GDir) dir = g_dir_open (path, 0, error);
  g_autoptr (GPtrArray) files = g_ptr_array_new_with_free_func (g_free);

  if (!dir)
    return FALSE;
  for (const char *name; (name = g_dir_read_name (dir));)
    if (is_trace_file (name))
      g_ptr_array_add (files, g_build_filename (path, name, NULL));
  if (files->len == 0)
    return weft_bad_input (error,
                           "%s: found no file named *.json, *.json.gz or *.sqlite, wanted "
                           "the traces of the ranks",
                           path);
  g_ptr_array_sort (files, by_name);
  for (guint i = 0; i < files->len; i++)
    if (!load_file (trace, files->pdata[i], options, error))
      return FALSE;
  return TRUE;
}

/* --------------------------------------------------------------------------------- ranks */

/* The number after "rank" in the name of a file: rank3.json, trace_rank_12.json.gz;
 * WEFT_TRACE_NONE: none. */
static int64_t
rank_in_name (const char *path)
{
  g_autofree char *base = g_path_get_basename (path);
  g_autofree char *lower = g_ascii_strdown (base, -1);
  const char *at = strstr (lower, "rank");

  if (!at)
    return WEFT_TRACE_NONE;
  at += strlen ("rank");
  at += strspn (at, "-_.=");
  return g_ascii_isdigit (*at) ? g_ascii_strtoll (at, NULL, 10) : WEFT_TRACE_NONE;
}

static int
by_rank (const void *a, const void *b)
{
  const struct weft_trace_rank *x = *(void *const *) a, *y = *(void *const *) b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static struct weft_trace_rank *
rank_at (const weft_trace *trace, guint i)
{
  return g_ptr_array_index (trace->rank, i);
}

/* Sets the rank of every GPU: the rank that the file has recorded, or else the number in the name
 * of the file plus the position of the GPU in the file. If there is only one file, its GPUs are
 * ranks 0, 1, ... */
static gboolean
number_ranks (weft_trace *trace, GError **error)
{
  gboolean alone = TRUE;
  int64_t place = 0;

  for (guint i = 1; i < trace->rank->len; i++)
    alone &= strcmp (rank_at (trace, i)->file, rank_at (trace, 0)->file) == 0;
  for (guint i = 0; i < trace->rank->len; i++) {
    struct weft_trace_rank *rank = rank_at (trace, i);
    place = i && strcmp (rank->file, rank_at (trace, i - 1)->file) == 0 ? place + 1 : 0;
    if (rank->rank != WEFT_TRACE_NONE)
      continue;
    int64_t first = rank_in_name (rank->file);
    if (first == WEFT_TRACE_NONE && !alone)
      return weft_bad_input (error,
                             "%s: found no rank, wanted a member \"distributedInfo\" or a "
                             "file name with rankN",
                             rank->file);
    rank->rank = (first == WEFT_TRACE_NONE ? 0 : first) + place;
  }
  g_ptr_array_sort (trace->rank, by_rank);
  for (guint i = 1; i < trace->rank->len; i++)
    if (rank_at (trace, i)->rank == rank_at (trace, i - 1)->rank)
      return weft_bad_input (error, "%s: found rank %" G_GINT64_FORMAT ", which %s has too",
                             rank_at (trace, i)->file, rank_at (trace, i)->rank,
                             rank_at (trace, i - 1)->file);
  return TRUE;
}

weft_trace *
weft_trace_load (const char *path, const struct weft_trace_options *options, GError **error)
{
  g_autoptr (weft_trace) trace = weft_trace_new (path);
  gboolean folder = g_file_test (path, G_FILE_TEST_IS_DIR);

  if (folder ? !load_folder (trace, path, options, error)
             : !load_file (trace, path, options, error))
    return NULL;
  if (!number_ranks (trace, error))
    return NULL;
  weft_names_classify (trace);
  return g_steal_pointer (&trace);
}
