#include "interop/traces/nsys.h"
#include "core/base/error.h"
#include <sqlite3.h>
#include <string.h>

/* A GPU of a process. globalPid and globalTid have the number of the process in their upper bits,
 * and the number of a thread in the lowest 24 bits. */
struct gpu {
  int64_t process, device;
  struct weft_trace_rank *rank;
};

struct launch {
  int64_t process;
  struct weft_trace_launch call;
};

struct reader {
  weft_trace *trace;
  const struct weft_trace_options *options;
  const char *name;
  sqlite3 *db;
  GArray *gpu;    /* struct gpu */
  GArray *launch; /* struct launch */
};

gboolean
weft_nsys_claims (const char *bytes, gsize n)
{
  static const char magic[] = "SQLite format 3"; /* SQLite file format, 1.3; with NUL */
  return n >= sizeof magic && memcmp (bytes, magic, sizeof magic) == 0;
}

static gboolean
fail (const struct reader *r, const char *what, GError **error)
{
  g_autofree char *valid = g_utf8_make_valid (sqlite3_errmsg (r->db), -1);
  return weft_bad_input (error, "%s: %s: %s", r->name, what, valid);
}

/* ------------------------------------------------------------------------- tables */

static sqlite3_stmt *
prepare (const struct reader *r, const char *sql, const char *what, GError **error)
{
  sqlite3_stmt *stmt = NULL;

  if (sqlite3_prepare_v2 (r->db, sql, -1, &stmt, NULL) == SQLITE_OK)
    return stmt;
  fail (r, what, error);
  sqlite3_finalize (stmt);
  return NULL;
}

/* Whether a query with one text parameter returns a row. */
static gboolean
exists (const struct reader *r, const char *sql, const char *name)
{
  sqlite3_stmt *stmt = prepare (r, sql, "", NULL);

  if (!stmt)
    return FALSE;
  sqlite3_bind_text (stmt, 1, name, -1, SQLITE_STATIC);
  gboolean found = sqlite3_step (stmt) == SQLITE_ROW;
  sqlite3_finalize (stmt);
  return found;
}

/* Whether a table exists. Views are not accepted, because the query of a hostile view may never
 * end. */
static gboolean
has_table (const struct reader *r, const char *table)
{
  return exists (r, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", table);
}

static gboolean
has_column (const struct reader *r, const char *table, const char *column)
{
  g_autofree char *sql =
      g_strdup_printf ("SELECT 1 FROM pragma_table_info('%s') WHERE name = ?", table);
  return exists (r, sql, column);
}

static gboolean
need_table (const struct reader *r, const char *table, GError **error)
{
  return has_table (r, table) ||
         weft_bad_input (error,
                         "%s: found no table %s, wanted the database of a profile with CUDA "
                         "(nsys profile --trace=cuda,nvtx; nsys export --type sqlite)",
                         r->name, table);
}

/* --------------------------------------------------------------------------- rows */

/* The GPU of a row, whose columns 0 to 3 are start, end, process and device. */
static struct weft_trace_rank *
rank_of_row (struct reader *r, sqlite3_stmt *row)
{
  struct gpu gpu = { sqlite3_column_int64 (row, 2), sqlite3_column_int64 (row, 3), NULL };

  for (guint i = 0; i < r->gpu->len; i++) {
    const struct gpu *other = &g_array_index (r->gpu, struct gpu, i);
    if (other->process == gpu.process && other->device == gpu.device)
      return other->rank;
  }
  gpu.rank = weft_trace_add_rank (r->trace, r->name);
  g_array_append_val (r->gpu, gpu);
  return gpu.rank;
}

static gboolean
row_times (const struct reader *r, sqlite3_stmt *row, const char *table, int64_t *begin,
           int64_t *end, GError **error)
{
  const int64_t most = (int64_t) 1 << 60;

  *begin = sqlite3_column_int64 (row, 0);
  *end = sqlite3_column_int64 (row, 1);
  if (*begin >= -most && *begin <= *end && *end <= most)
    return TRUE;
  return weft_bad_input (error,
                         "%s: %s: found start %" G_GINT64_FORMAT " and end %" G_GINT64_FORMAT
                         ", wanted nanoseconds, the end not before the start",
                         r->name, table, *begin, *end);
}

/* A table of kernels, copies or fills. The query returns the columns start, end, process, device,
 * streamId, correlationId and name. */
struct table {
  const char *name, *joins, *text;
  enum weft_trace_kind kind;
};

/* Names of copies are those that the PyTorch profiler gives them; copyKind is
 * CUpti_ActivityMemcpyKind. */
#define COPY_NAME                                                                                  \
  "CASE t.copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' WHEN 8 THEN 'Memcpy DtoD' " \
  "WHEN 10 THEN 'Memcpy PtoP' ELSE 'Memcpy' END"

static const struct table tables[] = {
  { "CUPTI_ACTIVITY_KIND_KERNEL", "LEFT JOIN StringIds s ON s.id = t.demangledName", "s.value",
    WEFT_TRACE_KERNEL },
  { "CUPTI_ACTIVITY_KIND_MEMCPY", "", COPY_NAME, WEFT_TRACE_MEMCPY },
  { "CUPTI_ACTIVITY_KIND_MEMSET", "", "'Memset'", WEFT_TRACE_MEMSET },
};

static gboolean
add_work (struct reader *r, sqlite3_stmt *row, const struct table *t, GError **error)
{
  struct weft_trace_kernel k = { .kind = t->kind, .comm = WEFT_TRACE_NO_COMM };
  const char *name = (const char *) sqlite3_column_text (row, 6);

  if (!row_times (r, row, t->name, &k.begin, &k.end, error))
    return FALSE;
  k.name = weft_trace_string (r->trace, name ? name : "");
  k.stream = (uint32_t) sqlite3_column_int64 (row, 4);
  k.launched = sqlite3_column_int64 (row, 5);
  g_array_append_val (rank_of_row (r, row)->kernel, k);
  return TRUE;
}

static gboolean
read_work (struct reader *r, const struct table *t, GError **error)
{
  const char *process = has_column (r, t->name, "globalPid") ? "t.globalPid >> 24" : "0";
  g_autofree char *sql = g_strdup_printf (
      "SELECT t.start, t.end, %s, t.deviceId, t.streamId, t.correlationId, %s FROM %s t %s",
      process, t->text, t->name, t->joins);
  sqlite3_stmt *stmt = prepare (r, sql, t->name, error);
  gboolean ok = stmt != NULL;
  int status = SQLITE_DONE;

  while (ok && (status = sqlite3_step (stmt)) == SQLITE_ROW)
    ok = add_work (r, stmt, t, error);
  if (ok && status != SQLITE_DONE)
    ok = fail (r, t->name, error);
  sqlite3_finalize (stmt);
  return ok;
}

static gboolean
add_launch (struct reader *r, sqlite3_stmt *row, GError **error)
{
  struct launch l = { sqlite3_column_int64 (row, 2),
                      { sqlite3_column_int64 (row, 3), sqlite3_column_int64 (row, 0) } };

  (void) error;
  g_array_append_val (r->launch, l);
  return TRUE;
}

static gboolean
add_range (struct reader *r, sqlite3_stmt *row, GError **error)
{
  const char *name = (const char *) sqlite3_column_text (row, 3);
  int64_t begin, end, process = sqlite3_column_int64 (row, 2);

  if (!name)
    return TRUE;
  if (!row_times (r, row, "NVTX_EVENTS", &begin, &end, error))
    return FALSE;
  for (guint i = 0; i < r->gpu->len; i++) {
    const struct gpu *gpu = &g_array_index (r->gpu, struct gpu, i);
    if (gpu->process == process || gpu->process == 0)
      weft_trace_add_range (gpu->rank, name, begin, end, r->options);
  }
  return TRUE;
}

static gboolean
name_gpu (struct reader *r, sqlite3_stmt *row, GError **error)
{
  const char *name = (const char *) sqlite3_column_text (row, 1);

  (void) error;
  for (guint i = 0; i < r->gpu->len && name; i++) {
    const struct gpu *gpu = &g_array_index (r->gpu, struct gpu, i);
    if (gpu->device == sqlite3_column_int64 (row, 0))
      gpu->rank->gpu = weft_trace_string (r->trace, name);
  }
  return TRUE;
}

/* Tables that may be absent. */
static const struct {
  const char *name, *sql;
  gboolean (*add) (struct reader *r, sqlite3_stmt *row, GError **error);
} extras[] = {
  { "CUPTI_ACTIVITY_KIND_RUNTIME",
    "SELECT start, end, globalTid >> 24, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    add_launch },
  { "NVTX_EVENTS",
    "SELECT n.start, n.end, n.globalTid >> 24, COALESCE(n.text, s.value) FROM NVTX_EVENTS n LEFT "
    "JOIN StringIds s ON s.id = n.textId WHERE n.end IS NOT NULL",
    add_range },
  { "TARGET_INFO_GPU", "SELECT id, name FROM TARGET_INFO_GPU", name_gpu },
};

static gboolean
read_extra (struct reader *r, unsigned i, GError **error)
{
  sqlite3_stmt *stmt = prepare (r, extras[i].sql, extras[i].name, error);
  gboolean ok = stmt != NULL;
  int status = SQLITE_DONE;

  while (ok && (status = sqlite3_step (stmt)) == SQLITE_ROW)
    ok = extras[i].add (r, stmt, error);
  if (ok && status != SQLITE_DONE)
    ok = fail (r, extras[i].name, error);
  sqlite3_finalize (stmt);
  return ok;
}

/* --------------------------------------------------------------------------- whole */

static int
by_device (const void *a, const void *b)
{
  const struct gpu *x = a, *y = b;

  if (x->device != y->device)
    return x->device < y->device ? -1 : 1;
  return (x->process > y->process) - (x->process < y->process);
}

/* Orders the GPUs of this file as ranks, behind the ranks of other files. */
static void
order_gpus (struct reader *r)
{
  guint first = r->trace->rank->len - r->gpu->len;

  g_array_sort (r->gpu, by_device);
  for (guint i = 0; i < r->gpu->len; i++)
    r->trace->rank->pdata[first + i] = g_array_index (r->gpu, struct gpu, i).rank;
}

static void
finish (struct reader *r)
{
  for (guint i = 0; i < r->gpu->len; i++) {
    const struct gpu *gpu = &g_array_index (r->gpu, struct gpu, i);
    g_autoptr (GArray) launches = g_array_new (FALSE, FALSE, sizeof (struct weft_trace_launch));
    for (guint j = 0; j < r->launch->len; j++) {
      const struct launch *l = &g_array_index (r->launch, struct launch, j);
      if (l->process == gpu->process || gpu->process == 0)
        g_array_append_val (launches, l->call);
    }
    weft_trace_finish_rank (gpu->rank, launches);
  }
}

static gboolean
read_tables (struct reader *r, GError **error)
{
  if (!need_table (r, "StringIds", error) || !need_table (r, tables[0].name, error))
    return FALSE;
  for (unsigned i = 0; i < G_N_ELEMENTS (tables); i++)
    if (has_table (r, tables[i].name) && !read_work (r, &tables[i], error))
      return FALSE;
  if (r->gpu->len == 0)
    return weft_bad_input (error, "%s: found no kernels, wanted a profile of a step on a GPU",
                           r->name);
  order_gpus (r);
  for (unsigned i = 0; i < G_N_ELEMENTS (extras); i++)
    if (has_table (r, extras[i].name) && !read_extra (r, i, error))
      return FALSE;
  finish (r);
  return TRUE;
}

/* Reads from an open database, which is closed. */
static gboolean
read_database (struct reader *r, int status, GError **error)
{
  gboolean ok = FALSE;

  r->gpu = g_array_new (FALSE, FALSE, sizeof (struct gpu));
  r->launch = g_array_new (FALSE, FALSE, sizeof (struct launch));
  r->trace->tool = "Nsight Systems";
  if (status != SQLITE_OK) {
    fail (r, "wanted an SQLite database", error);
  } else {
    sqlite3_db_config (r->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config (r->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_exec (r->db, "PRAGMA cell_size_check = ON", NULL, NULL, NULL);
    ok = read_tables (r, error);
  }
  g_array_unref (r->gpu);
  g_array_unref (r->launch);
  sqlite3_close (r->db);
  return ok;
}

gboolean
weft_nsys_load (weft_trace *trace, const char *path, const struct weft_trace_options *options,
                GError **error)
{
  struct reader r = { .trace = trace, .options = options, .name = path };
  int status = sqlite3_open_v2 (path, &r.db, SQLITE_OPEN_READONLY, NULL);

  return read_database (&r, status, error);
}

gboolean
weft_nsys_parse (weft_trace *trace, const void *bytes, gsize n, const char *name,
                 const struct weft_trace_options *options, GError **error)
{
  struct reader r = { .trace = trace, .options = options, .name = name };
  int status = sqlite3_open_v2 (":memory:", &r.db, SQLITE_OPEN_READWRITE, NULL);
  unsigned char *copy = sqlite3_malloc64 (MAX (n, 1));

  memcpy (copy, bytes, n);
  if (status == SQLITE_OK)
    status = sqlite3_deserialize (r.db, "main", copy, (sqlite3_int64) n, (sqlite3_int64) n,
                                  SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_READONLY);
  else
    sqlite3_free (copy);
  return read_database (&r, status, error);
}
