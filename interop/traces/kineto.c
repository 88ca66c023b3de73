#include "interop/traces/kineto.h"
#include "core/base/error.h"
#include "interop/traces/source.h"
#include <math.h>
#include <string.h>
#include <yajl/yajl_parse.h>

/* --------------------------------------------------------------- members of a document */

/* Position of the parser in the document. */
enum place { ROOT, TOP, DEVICES, DEVICE, JOB, EVENTS, EVENT, ARGS, LIST, SKIPPED };

/* Members that are read: constant, place, name. A list is kept as text: "[0,1]". */
#define MEMBER_LIST(X)                                                                             \
  X (TOOL, TOP, "traceName")                                                                       \
  X (EVENTS_OF, TOP, "traceEvents")                                                                \
  X (DEVICES_OF, TOP, "deviceProperties")                                                          \
  X (JOB_OF, TOP, "distributedInfo")                                                               \
  X (GPU_NAME, DEVICE, "name")                                                                     \
  X (JOB_RANK, JOB, "rank")                                                                        \
  X (JOB_WORLD, JOB, "world_size")                                                                 \
  X (PHASE, EVENT, "ph")                                                                           \
  X (CATEGORY, EVENT, "cat")                                                                       \
  X (NAME, EVENT, "name")                                                                          \
  X (PROCESS, EVENT, "pid")                                                                        \
  X (TIME, EVENT, "ts")                                                                            \
  X (LENGTH, EVENT, "dur")                                                                         \
  X (ARGS_OF, EVENT, "args")                                                                       \
  X (STREAM, ARGS, "stream")                                                                       \
  X (CORRELATION, ARGS, "correlation")                                                             \
  X (EXTERNAL, ARGS, "External id")                                                                \
  X (COLLECTIVE, ARGS, "Collective name")                                                          \
  X (GROUP_SIZE, ARGS, "Group size")                                                               \
  X (GROUP_NAME, ARGS, "Process Group Name")                                                       \
  X (GROUP_TEXT, ARGS, "Process Group Description")                                                \
  X (GROUP_RANKS, ARGS, "Process Group Ranks")                                                     \
  X (DTYPE, ARGS, "dtype")                                                                         \
  X (ELEMENTS_IN, ARGS, "In msg nelems")                                                           \
  X (ELEMENTS_OUT, ARGS, "Out msg nelems")                                                         \
  X (INPUT_DIMS, ARGS, "Input Dims")                                                               \
  X (INPUT_TYPES, ARGS, "Input type")                                                              \
  X (OWN_KIND, ARGS, "kind")                                                                       \
  X (OWN_LANE, ARGS, "lane")                                                                       \
  X (OWN_GROUPED, ARGS, "grouped")                                                                 \
  X (OWN_FUSED, ARGS, "fused")
enum member {
#define MEMBER(id, place, name) id,
  MEMBER_LIST (MEMBER)
#undef MEMBER
      N_MEMBER,
  NO_MEMBER = N_MEMBER
};
static const struct {
  enum place place;
  const char *name;
} members[] = {
#define MEMBER(id, place, name) { place, name },
  MEMBER_LIST (MEMBER)
#undef MEMBER
};

/* The data that are kept of an event, by its category. */
enum keep {
  KEEP_NOTHING,
  KEEP_KERNEL,
  KEEP_MEMCPY,
  KEEP_MEMSET,
  KEEP_LAUNCH,
  KEEP_STEP,
  KEEP_SHAPE
};
static const struct {
  const char *category;
  enum keep keep;
} categories[] = {
  { "kernel", KEEP_KERNEL },       { "gpu_memcpy", KEEP_MEMCPY },  { "gpu_memset", KEEP_MEMSET },
  { "cuda_runtime", KEEP_LAUNCH }, { "cuda_driver", KEEP_LAUNCH }, { "user_annotation", KEEP_STEP },
  { "cpu_op", KEEP_SHAPE },        { "collective", KEEP_KERNEL },  { "p2p", KEEP_KERNEL },
};

/* An op of the host: its External id, and its row in weft_trace.shape. */
struct host_op {
  int64_t external;
  uint32_t shape;
};

struct reader {
  weft_trace *trace;
  const struct weft_trace_options *options;
  const char *name; /* name of the file */
  struct weft_trace_rank *rank;
  GHashTable *process;     /* GPUs of a trace of weft sim: struct weft_trace_rank by pid */
  GByteArray *place;       /* enum place of every open container */
  enum member member;      /* member of the newest key */
  enum member list;        /* member whose list is being read */
  GString *text[N_MEMBER]; /* value of each member in the open event; valid if has[] is TRUE */
  gboolean has[N_MEMBER];
  GArray *launches;    /* struct weft_trace_launch */
  GArray *external;    /* int64_t, External id of each kernel, if shapes are kept */
  GArray *host_op;     /* struct host_op */
  gboolean saw_events; /* whether there was a list of events */
  uint64_t n_event;
  GError *error;
};

static const char *
value (const struct reader *r, enum member member)
{
  return r->has[member] ? r->text[member]->str : NULL;
}

/* ---------------------------------------------------------------------- numbers */

/* 2^62 ns are 146 years: more is no time since 1970. No event lasts a year, 2^55 ns. */
#define MOST_TIME ((int64_t) 1 << 62)
#define MOST_LENGTH ((int64_t) 1 << 55)

/* Converts microseconds with a fraction to nanoseconds. Does not use double, which would round
 * times since 1970 to quarters of a microsecond. */
static gboolean
read_time (const char *text, int64_t *ns)
{
  char *end;
  gboolean minus = *text == '-';
  int64_t whole = g_ascii_strtoll (text, &end, 10), part = 0;

  if (*end == '.') {
    int64_t unit = 100;
    for (end++; g_ascii_isdigit (*end); end++, unit /= 10)
      part += (*end - '0') * unit;
  }
  if (*end == 'e' || *end == 'E') {
    double micros = g_ascii_strtod (text, &end);
    if (*end || !(fabs (micros) * 1000 < MOST_TIME))
      return FALSE;
    *ns = llround (micros * 1000);
    return TRUE;
  }
  if (*end || end == text || ABS (whole) > MOST_TIME / 1000)
    return FALSE;
  *ns = whole * 1000 + (minus ? -part : part);
  return TRUE;
}

static int64_t
whole_or (const struct reader *r, enum member member, int64_t otherwise)
{
  const char *text = value (r, member);
  char *end;

  if (!text)
    return otherwise;
  int64_t number = g_ascii_strtoll (text, &end, 10);
  return end == text ? otherwise : number;
}

/* ----------------------------------------------------------------------- events */

static gboolean
bad_event (struct reader *r, const char *found)
{
  g_autofree char *valid = g_utf8_make_valid (r->has[NAME] ? r->text[NAME]->str : "", -1);
  g_autofree char *begin = g_utf8_substring (valid, 0, MIN (60, g_utf8_strlen (valid, -1)));

  return weft_bad_input (&r->error, "%s: event %" G_GUINT64_FORMAT " (\"%s\"): %s", r->name,
                         r->n_event, begin, found);
}

static gboolean
event_times (struct reader *r, int64_t *begin, int64_t *end)
{
  int64_t length;

  if (!value (r, TIME) || !read_time (value (r, TIME), begin))
    return bad_event (r, "wanted \"ts\", microseconds");
  if (!value (r, LENGTH) || !read_time (value (r, LENGTH), &length) || length < 0 ||
      length > MOST_LENGTH)
    return bad_event (r, "wanted \"dur\", microseconds from 0 to a year");
  *end = *begin + length;
  return TRUE;
}

/* The row of the event's collective, WEFT_TRACE_NO_COMM if it has none. */
static uint32_t
read_comm (struct reader *r)
{
  if (!r->has[COLLECTIVE] && !r->has[GROUP_SIZE])
    return WEFT_TRACE_NO_COMM;
  const struct weft_trace_comm comm = {
    .collective = weft_trace_string (r->trace, value (r, COLLECTIVE)),
    .group = weft_trace_string (r->trace, value (r, GROUP_NAME)),
    .description = weft_trace_string (r->trace, value (r, GROUP_TEXT)),
    .dtype = weft_trace_string (r->trace, value (r, DTYPE)),
    .ranks = weft_trace_string (r->trace, value (r, GROUP_RANKS)),
    .size = whole_or (r, GROUP_SIZE, 0),
    .in = whole_or (r, ELEMENTS_IN, 0),
    .out = whole_or (r, ELEMENTS_OUT, 0),
  };
  return weft_trace_comm_row (r->trace, &comm);
}

/* Returns the GPU of the open event in a trace of weft sim, where the number of a process is the
 * rank. */
static struct weft_trace_rank *
own_rank (struct reader *r)
{
  int64_t process = whole_or (r, PROCESS, 0);
  struct weft_trace_rank *rank = g_hash_table_lookup (r->process, &process);

  if (rank)
    return rank;
  rank = g_hash_table_size (r->process) ? weft_trace_add_rank (r->trace, r->name) : r->rank;
  rank->rank = process;
  rank->own = TRUE;
  g_hash_table_insert (r->process, g_memdup2 (&process, sizeof process), rank);
  return rank;
}

static gboolean
find_word (const char *const *words, const char *text, uint8_t *at)
{
  for (*at = 0; text && words[*at]; ++*at)
    if (strcmp (words[*at], text) == 0)
      return TRUE;
  return FALSE;
}

/* Reads the class and axis of an op that weft sim has written. */
static gboolean
read_own (struct reader *r, struct weft_trace_kernel *k)
{
  uint8_t kind, lane;

  if (!find_word (weft_op_words, value (r, OWN_KIND), &kind))
    return bad_event (r, "wanted \"kind\", an op of Weft");
  if (!find_word (weft_lane_words, value (r, OWN_LANE), &lane))
    return bad_event (r, "wanted \"lane\", a lane of Weft");
  k->work = weft_work_of_op (kind);
  k->axis = lane == WEFT_LANE_PP_BACK ? WEFT_LANE_PP : lane;
  k->silent = r->has[OWN_GROUPED] || r->has[OWN_FUSED];
  return TRUE;
}

static gboolean
keep_kernel (struct reader *r, enum weft_trace_kind kind)
{
  struct weft_trace_kernel k = { .kind = kind, .comm = WEFT_TRACE_NO_COMM };
  struct weft_trace_rank *rank = r->rank;

  if (!event_times (r, &k.begin, &k.end))
    return FALSE;
  if (r->has[OWN_KIND]) {
    rank = own_rank (r);
    if (!read_own (r, &k))
      return FALSE;
  }
  k.name = weft_trace_string (r->trace, r->has[NAME] ? r->text[NAME]->str : "");
  k.comm = read_comm (r);
  k.stream = (uint32_t) whole_or (r, STREAM, 0);
  k.launched = whole_or (r, CORRELATION, WEFT_TRACE_NONE);
  g_array_append_val (rank->kernel, k);
  if (r->options->shapes) {
    int64_t external = whole_or (r, EXTERNAL, WEFT_TRACE_NONE);
    g_array_append_val (r->external, external);
  }
  return TRUE;
}

/* Stores the launch if the call puts work on a stream. Other calls, such as synchronisations, are
 * not stored. */
static gboolean
keep_launch (struct reader *r)
{
  static const char *const calls[] = { "Launch", "Memcpy", "Memset" };
  struct weft_trace_launch launch = { whole_or (r, CORRELATION, WEFT_TRACE_NONE), 0 };
  gboolean launches = FALSE;
  int64_t end;

  for (unsigned i = 0; i < G_N_ELEMENTS (calls); i++)
    launches |= value (r, NAME) && strstr (value (r, NAME), calls[i]) != NULL;
  if (!launches || launch.correlation == WEFT_TRACE_NONE)
    return TRUE;
  if (!event_times (r, &launch.begin, &end))
    return FALSE;
  g_array_append_val (r->launches, launch);
  return TRUE;
}

static gboolean
keep_step (struct reader *r)
{
  int64_t begin, end;

  if (!value (r, NAME))
    return TRUE;
  if (!event_times (r, &begin, &end))
    return FALSE;
  weft_trace_add_range (r->rank, value (r, NAME), begin, end, r->options);
  return TRUE;
}

static gboolean
keep_shape (struct reader *r)
{
  struct host_op op = { whole_or (r, EXTERNAL, WEFT_TRACE_NONE), 0 };

  if (!r->options->shapes || !r->has[INPUT_DIMS] || op.external == WEFT_TRACE_NONE)
    return TRUE;
  g_autofree char *text =
      g_strdup_printf ("%s %s %s", value (r, NAME) ? value (r, NAME) : "-", value (r, INPUT_DIMS),
                       r->has[INPUT_TYPES] ? value (r, INPUT_TYPES) : "-");
  op.shape = weft_trace_shape_row (r->trace, text);
  g_array_append_val (r->host_op, op);
  return TRUE;
}

static gboolean
end_event (struct reader *r)
{
  enum keep keep = KEEP_NOTHING;

  r->n_event++;
  if (!value (r, PHASE) || strcmp (value (r, PHASE), "X") != 0)
    return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (categories) && value (r, CATEGORY); i++)
    if (strcmp (value (r, CATEGORY), categories[i].category) == 0)
      keep = categories[i].keep;
  switch (keep) {
  case KEEP_KERNEL:
    return keep_kernel (r, WEFT_TRACE_KERNEL);
  case KEEP_MEMCPY:
    return keep_kernel (r, WEFT_TRACE_MEMCPY);
  case KEEP_MEMSET:
    return keep_kernel (r, WEFT_TRACE_MEMSET);
  case KEEP_LAUNCH:
    return keep_launch (r);
  case KEEP_STEP:
    return keep_step (r);
  case KEEP_SHAPE:
    return keep_shape (r);
  default:
    return TRUE;
  }
}

/* --------------------------------------------------------------------- callbacks */

/* Largest depth of nested containers. Profilers write fewer; the limit bounds the memory that a
 * hostile file can take. */
enum { MOST_DEPTH = 1000 };

static enum place
place_of (const struct reader *r)
{
  return r->place->len ? r->place->data[r->place->len - 1] : ROOT;
}

/* The place of a container that begins in place `in`. */
static enum place
place_below (const struct reader *r, enum place in, gboolean map)
{
  if (in == ROOT)
    return map ? TOP : EVENTS;
  if (in == EVENTS && map)
    return EVENT;
  if (in == DEVICES && map)
    return DEVICE;
  if (in == LIST && !map)
    return LIST;
  switch (r->member) {
  case EVENTS_OF:
    return in == TOP && !map ? EVENTS : SKIPPED;
  case DEVICES_OF:
    return in == TOP && !map ? DEVICES : SKIPPED;
  case JOB_OF:
    return in == TOP && map ? JOB : SKIPPED;
  case ARGS_OF:
    return in == EVENT && map ? ARGS : SKIPPED;
  case GROUP_RANKS:
  case INPUT_DIMS:
  case INPUT_TYPES:
    return in == ARGS && !map ? LIST : SKIPPED;
  default:
    return SKIPPED;
  }
}

static int
open_container (struct reader *r, gboolean map)
{
  enum place in = place_of (r), below = place_below (r, in, map);
  uint8_t byte = below;

  if (r->place->len == MOST_DEPTH)
    return weft_bad_input (&r->error, "%s: found more than %d nested lists and objects", r->name,
                           MOST_DEPTH);
  if (below == EVENT)
    memset (r->has, 0, sizeof r->has);
  if (below == LIST && in == ARGS) {
    r->list = r->member;
    r->has[r->list] = TRUE;
    g_string_truncate (r->text[r->list], 0);
  }
  if (below == LIST)
    g_string_append_c (r->text[r->list], '[');
  r->saw_events |= below == EVENTS;
  g_byte_array_append (r->place, &byte, 1);
  return 1;
}

static int
close_container (struct reader *r)
{
  enum place was = place_of (r);

  g_byte_array_set_size (r->place, r->place->len - 1);
  if (was == LIST) {
    GString *text = r->text[r->list];
    if (text->str[text->len - 1] == ',')
      g_string_truncate (text, text->len - 1);
    g_string_append (text, place_of (r) == LIST ? "]," : "]");
  }
  r->member = NO_MEMBER;
  return was == EVENT ? end_event (r) : 1;
}

/* Takes a value of the document, if its member or its list is kept. */
static int
scalar (struct reader *r, const char *text, gsize length)
{
  enum place in = place_of (r);

  if (in == LIST) {
    g_string_append_len (r->text[r->list], text, length);
    g_string_append_c (r->text[r->list], ',');
    return 1;
  }
  if (r->member == NO_MEMBER || members[r->member].place != in)
    return 1;
  r->has[r->member] = TRUE;
  g_string_truncate (r->text[r->member], 0);
  g_string_append_len (r->text[r->member], text, length);
  if (in == TOP && r->member == TOOL && g_str_has_prefix (r->text[TOOL]->str, "weft "))
    r->trace->tool = "weft sim";
  if (in == DEVICE && !r->rank->gpu)
    r->rank->gpu = weft_trace_string (r->trace, r->text[GPU_NAME]->str);
  if (in == JOB && r->member == JOB_RANK)
    r->rank->rank = whole_or (r, JOB_RANK, WEFT_TRACE_NONE);
  if (in == JOB && r->member == JOB_WORLD)
    r->rank->world = whole_or (r, JOB_WORLD, 0);
  return 1;
}

static int
on_key (void *user, const unsigned char *key, size_t length)
{
  struct reader *r = user;
  enum place in = place_of (r);

  r->member = NO_MEMBER;
  for (int i = 0; in != SKIPPED && i < N_MEMBER; i++)
    if (members[i].place == in && strlen (members[i].name) == length &&
        memcmp (members[i].name, key, length) == 0)
      r->member = i;
  return 1;
}

static int
on_text (void *user, const unsigned char *text, size_t length)
{
  return scalar (user, (const char *) text, length);
}

static int
on_number (void *user, const char *text, size_t length)
{
  return scalar (user, text, length);
}

static int
on_truth (void *user, int truth)
{
  return truth ? scalar (user, "true", 4) : 1;
}

static int
on_map (void *user)
{
  return open_container (user, TRUE);
}

static int
on_list (void *user)
{
  return open_container (user, FALSE);
}

static int
on_end (void *user)
{
  return close_container (user);
}

static const yajl_callbacks callbacks = {
  .yajl_boolean = on_truth,
  .yajl_number = on_number,
  .yajl_string = on_text,
  .yajl_start_map = on_map,
  .yajl_map_key = on_key,
  .yajl_end_map = on_end,
  .yajl_start_array = on_list,
  .yajl_end_array = on_end,
};

/* ------------------------------------------------------------------------- reader */

static void
reader_init (struct reader *r, weft_trace *trace, const char *name,
             const struct weft_trace_options *options)
{
  *r = (struct reader){ .trace = trace, .options = options, .name = name, .member = NO_MEMBER };
  r->rank = weft_trace_add_rank (trace, name);
  r->process = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);
  r->place = g_byte_array_new ();
  for (int i = 0; i < N_MEMBER; i++)
    r->text[i] = g_string_new (NULL);
  r->launches = g_array_new (FALSE, FALSE, sizeof (struct weft_trace_launch));
  r->external = g_array_new (FALSE, FALSE, sizeof (int64_t));
  r->host_op = g_array_new (FALSE, FALSE, sizeof (struct host_op));
  if (!trace->tool)
    trace->tool = "PyTorch profiler";
}

static void
reader_clear (struct reader *r)
{
  g_hash_table_unref (r->process);
  g_byte_array_unref (r->place);
  for (int i = 0; i < N_MEMBER; i++)
    g_string_free (r->text[i], TRUE);
  g_array_unref (r->launches);
  g_array_unref (r->external);
  g_array_unref (r->host_op);
}

static int
by_external (const void *a, const void *b)
{
  const struct host_op *x = a, *y = b;
  return (x->external > y->external) - (x->external < y->external);
}

/* Gives each kernel the shape of the op of the host that launched it. */
static void
join_shapes (struct reader *r)
{
  g_array_sort (r->host_op, by_external);
  for (guint i = 0; i < r->external->len && i < r->rank->kernel->len && r->host_op->len; i++) {
    const struct host_op wanted = { g_array_index (r->external, int64_t, i), 0 };
    const struct host_op *found =
        bsearch (&wanted, r->host_op->data, r->host_op->len, sizeof wanted, by_external);
    if (found)
      g_array_index (r->rank->kernel, struct weft_trace_kernel, i).shape = found->shape;
  }
}

/* Completes the GPUs of the document. FALSE: the document had no list of events. */
static gboolean
finish (struct reader *r, GError **error)
{
  GHashTableIter iter;
  void *rank;

  if (!r->saw_events)
    return weft_bad_input (error,
                           "%s: found no list \"traceEvents\", wanted a trace of the "
                           "PyTorch profiler",
                           r->name);
  if (r->rank->kernel->len == 0)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT " events, none of a GPU, wanted "
                           "events with \"cat\": \"kernel\" (ProfilerActivity.CUDA)",
                           r->name, r->n_event);
  join_shapes (r);
  weft_trace_finish_rank (r->rank, r->launches);
  g_hash_table_iter_init (&iter, r->process);
  while (g_hash_table_iter_next (&iter, NULL, &rank))
    if (rank != r->rank)
      weft_trace_finish_rank (rank, r->launches);
  return TRUE;
}

/* Passes bytes to the parser, or ends the document (`text` NULL). */
static gboolean
feed (struct reader *r, yajl_handle parser, const char *text, gsize length, uint64_t at,
      GError **error)
{
  yajl_status status = text ? yajl_parse (parser, (const unsigned char *) text, length)
                            : yajl_complete_parse (parser);

  if (status == yajl_status_ok)
    return TRUE;
  if (r->error) {
    g_propagate_error (error, g_steal_pointer (&r->error));
    return FALSE;
  }
  unsigned char *found = yajl_get_error (parser, 0, NULL, 0);
  g_autofree char *why = g_utf8_make_valid ((const char *) found, -1);
  yajl_free_error (parser, found);
  return weft_bad_input (error,
                         "%s: byte %" G_GUINT64_FORMAT ", after %" G_GUINT64_FORMAT
                         " events: found no valid JSON: %s%s",
                         r->name, at + (text ? yajl_get_bytes_consumed (parser) : 0), r->n_event,
                         g_strchomp (why), text ? "" : " (is the file complete?)");
}

static gboolean
feed_source (struct reader *r, yajl_handle parser, weft_source *source, GError **error)
{
  enum { CHUNK = 1 << 18 };
  g_autofree char *chunk = g_malloc (CHUNK);
  uint64_t at = 0;
  gssize n;

  while ((n = weft_source_read (source, chunk, CHUNK, error)) > 0) {
    if (!feed (r, parser, chunk, (gsize) n, at, error))
      return FALSE;
    at += (uint64_t) n;
  }
  return n == 0 && feed (r, parser, NULL, 0, at, error);
}

/* Reads from a file, or, if `source` is NULL, a text. */
static gboolean
read_document (struct reader *r, weft_source *source, const char *text, gsize length,
               GError **error)
{
  yajl_handle parser = yajl_alloc (&callbacks, NULL, r);

  /* names of files and kernels may have bytes that are not UTF-8 */
  yajl_config (parser, yajl_dont_validate_strings, 1);
  gboolean ok =
      source ? feed_source (r, parser, source, error)
             : feed (r, parser, text, length, 0, error) && feed (r, parser, NULL, 0, length, error);
  yajl_free (parser);
  return ok && finish (r, error);
}

gboolean
weft_kineto_parse (weft_trace *trace, const char *text, gsize length, const char *name,
                   const struct weft_trace_options *options, GError **error)
{
  struct reader r;

  reader_init (&r, trace, name, options);
  gboolean ok = read_document (&r, NULL, text, length, error);
  reader_clear (&r);
  return ok;
}

gboolean
weft_kineto_load (weft_trace *trace, const char *path, const struct weft_trace_options *options,
                  GError **error)
{
  g_autoptr (weft_source) source = weft_source_open (path, error);
  struct reader r;

  if (!source)
    return FALSE;
  reader_init (&r, trace, path, options);
  gboolean ok = read_document (&r, source, NULL, 0, error);
  reader_clear (&r);
  return ok;
}
