#include "core/report/trace.h"
#include "core/base/error.h"
#include "core/base/sink.h"
#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------------- writer */

struct trace {
  const weft_plan *plan;
  const weft_timeline *t;
  uint32_t n_rows;
  weft_sink sink;
  uint64_t n_event, n_arrow;
};

/* Begins the next trace event, and returns the text to which the caller appends its fields. */
static GString *
event (struct trace *tr)
{
  weft_sink_spill (&tr->sink);
  g_string_append (tr->sink.text, tr->n_event++ ? ",\n" : "\n");
  return tr->sink.text;
}

/* Rounds a time to nanoseconds, so that events that are adjacent in the timeline are also adjacent
 * in the trace. */
static int64_t
nanoseconds (double seconds)
{
  return llround (seconds * 1e9);
}

/* Appends a time with three decimals, in microseconds, the unit of the trace format. */
static void
append_time (GString *out, const char *key, int64_t ns)
{
  g_string_append_printf (out, ",\"%s\":%" G_GINT64_FORMAT ".%03d", key, ns / 1000,
                          (int) (ns % 1000));
}

static const weft_program *
program_of (const struct trace *tr, uint32_t row)
{
  return tr->plan->role[tr->t->role[row]];
}

static gboolean
is_timed (const struct trace *tr, uint32_t row, uint32_t op)
{
  return !isnan (tr->t->begin[row][op]) && !isnan (tr->t->end[row][op]);
}

/* ---------------------------------------------------------------------- threads */

/* Maximum number of rows in the trace of a lane. If a group of transfers has more members, the
 * remaining members share the last row. */
enum { MOST_ROWS = 16 };

/* The position, from 0, of an op in its group of transfers, which start and end together. */
static uint32_t
place_in_group (const weft_program *p, uint32_t op)
{
  uint32_t place = 0, at = p->pos[op];

  while (p->op[p->lane_ops[p->op[op].lane][at]].flags & WEFT_OP_GROUPED && at > 0 &&
         place < MOST_ROWS - 1)
    at--, place++;
  return place;
}

/* Thread number in the trace of the row "timers", which shows the phases that timers measure. The
 * row lies below all lanes. */
enum { TIMERS = WEFT_N_LANE * MOST_ROWS };

static uint32_t
thread_of (const weft_program *p, uint32_t op)
{
  return p->op[op].lane * MOST_ROWS + place_in_group (p, op);
}

static void
name_event (struct trace *tr, uint32_t rank, uint32_t thread, const char *what, const char *name)
{
  GString *out = event (tr);

  g_string_append_printf (
      out, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":", what, rank,
      thread);
  weft_sink_quote (out, name);
  g_string_append (out, "}}");
}

static void
sort_event (struct trace *tr, uint32_t rank, uint32_t thread, const char *what, uint32_t index)
{
  g_string_append_printf (
      event (tr),
      "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"sort_index\":%u}}", what,
      rank, thread, index);
}

static void
name_threads (struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);
  gboolean used[TIMERS + 1] = { FALSE };

  for (uint32_t op = 0; op < p->n_op; op++) {
    used[thread_of (p, op)] = TRUE;
    used[TIMERS] |= p->op[op].kind == WEFT_OP_TIMER;
  }
  for (uint32_t thread = 0; thread < G_N_ELEMENTS (used); thread++) {
    if (!used[thread])
      continue;
    const char *lane = thread == TIMERS ? "timers" : weft_lane_words[thread / MOST_ROWS];
    uint32_t place = thread % MOST_ROWS;
    g_autofree char *name = place ? g_strdup_printf ("%s %u", lane, place + 1) : g_strdup (lane);
    name_event (tr, tr->t->rank[row], thread, "thread_name", name);
    sort_event (tr, tr->t->rank[row], thread, "thread_sort_index", thread);
  }
}

static void
name_process (struct trace *tr, uint32_t row)
{
  uint32_t rank = tr->t->rank[row];
  g_autofree char *name = g_strdup_printf ("rank %u (stage %u)", rank, tr->t->role[row]);

  name_event (tr, rank, 0, "process_name", name);
  sort_event (tr, rank, 0, "process_sort_index", rank);
  name_threads (tr, row);
}

/* ----------------------------------------------------------------------- slices */

static const char *const categories[] = {
  [WEFT_CLASS_COMPUTE] = "kernel",
  [WEFT_CLASS_COLLECTIVE] = "collective",
  [WEFT_CLASS_P2P] = "p2p",
  [WEFT_CLASS_COPY] = "gpu_memcpy",
};

/* Appends dtype and dimensions of an op: "8192 x 4096 x 1024", in the order in which the op has
 * them. */
static void
append_shape (GString *out, const struct weft_shape *shape)
{
  g_string_append_printf (out, ",\"dtype\":\"%s\",\"shape\":\"", weft_dtype_words[shape->dtype]);
  for (unsigned i = 0; i < G_N_ELEMENTS (shape->dim) && shape->dim[i]; i++)
    g_string_append_printf (out, "%s%" G_GUINT64_FORMAT, i ? " x " : "", shape->dim[i]);
  g_string_append_c (out, '"');
}

static void
append_args (GString *out, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];

  g_string_append_printf (out,
                          ",\"args\":{\"op\":%u,\"kind\":\"%s\",\"lane\":\"%s\",\"phase\":\"%s\","
                          "\"chunk\":%u",
                          op, weft_op_info[row->kind].word, weft_lane_words[row->lane],
                          weft_phase_words[row->phase], row->chunk);
  if (row->layer != WEFT_NO_LAYER)
    g_string_append_printf (out, ",\"layer\":%u", row->layer);
  if (row->micro != WEFT_NO_MICRO)
    g_string_append_printf (out, ",\"micro\":%u", row->micro);
  if (weft_op_is_comm (row->kind))
    g_string_append_printf (out, ",\"group\":\"%s\"", weft_group_word (row->group));
  if (row->flags & WEFT_OP_RECOMPUTE)
    g_string_append (out, ",\"recompute\":true");
  if (row->flags & WEFT_OP_GROUPED)
    g_string_append (out, ",\"grouped\":true");
  if (row->flags & WEFT_OP_FUSED)
    g_string_append (out, ",\"fused\":true");
  g_string_append_printf (out, ",\"bytes\":%.0f,\"flops\":%.0f", weft_op_bytes (p, op),
                          weft_op_flops (p, op));
  append_shape (out, weft_op_shape (p, op));
  g_string_append_c (out, '}');
}

static void
write_slice (struct trace *tr, uint32_t row, uint32_t op)
{
  const weft_program *p = program_of (tr, row);
  int64_t begin = nanoseconds (tr->t->begin[row][op]), end = nanoseconds (tr->t->end[row][op]);
  g_autofree char *label = weft_op_label (p, op);
  GString *out = event (tr);

  g_string_append_printf (out, "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"name\":",
                          categories[weft_op_info[p->op[op].kind].class], tr->t->rank[row],
                          thread_of (p, op));
  weft_sink_quote (out, label);
  append_time (out, "ts", begin);
  append_time (out, "dur", end - begin);
  append_args (out, p, op);
  g_string_append_c (out, '}');
}

/* Writes the recorded kernels of a row as slices inside the slices of their ops. */
static void
write_parts (struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);

  for (uint32_t i = 0; tr->t->parts && i < tr->t->parts->len; i++) {
    const struct weft_timeline_part *part =
        &g_array_index (tr->t->parts, struct weft_timeline_part, i);
    if (part->row != row)
      continue;
    GString *out = event (tr);
    g_string_append_printf (out, "{\"ph\":\"X\",\"cat\":\"part\",\"pid\":%u,\"tid\":%u,\"name\":",
                            tr->t->rank[row], thread_of (p, part->op));
    weft_sink_quote (out, part->name);
    append_time (out, "ts", nanoseconds (part->begin));
    append_time (out, "dur", nanoseconds (part->end) - nanoseconds (part->begin));
    g_string_append_printf (out, ",\"args\":{\"op\":%u}}", part->op);
  }
}

/* Writes the slice of a phase that is timed: it lies between two timer ops. */
static void
write_phase (struct trace *tr, uint32_t row, uint32_t start, uint32_t stop)
{
  int64_t begin = nanoseconds (tr->t->end[row][start]), end = nanoseconds (tr->t->end[row][stop]);
  const weft_program *p = program_of (tr, row);
  GString *out = event (tr);

  g_string_append_printf (out, "{\"ph\":\"X\",\"cat\":\"timer\",\"pid\":%u,\"tid\":%u,\"name\":",
                          tr->t->rank[row], TIMERS);
  weft_sink_quote (out, p->name[p->op[start].name]);
  append_time (out, "ts", begin);
  append_time (out, "dur", end - begin);
  g_string_append_c (out, '}');
}

/* Writes the timed phases of a row as slices. Phases may be nested. */
static void
write_phases (struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);
  g_autoptr (GArray) open = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_TIMER || !is_timed (tr, row, op))
      continue;
    if (weft_op_shape (p, op)->dim[0]) {
      g_array_append_val (open, op);
    } else if (open->len) {
      write_phase (tr, row, g_array_index (open, uint32_t, open->len - 1), op);
      g_array_set_size (open, open->len - 1);
    }
  }
}

/* ----------------------------------------------------------------------- arrows */

struct end {
  uint32_t row, op;
};

/* Whether an arrow can begin or end in the slice of an op. TRUE: the slice has a length. */
static gboolean
has_length (const struct trace *tr, struct end e)
{
  return is_timed (tr, e.row, e.op) &&
         nanoseconds (tr->t->end[e.row][e.op]) > nanoseconds (tr->t->begin[e.row][e.op]);
}

static void
arrow_end (struct trace *tr, struct end e, const char *phase, const char *cat, int64_t at)
{
  GString *out = event (tr);

  g_string_append_printf (out,
                          "{\"ph\":%s,\"id\":%" G_GUINT64_FORMAT
                          ",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u",
                          phase, tr->n_arrow, cat, cat, tr->t->rank[e.row],
                          thread_of (program_of (tr, e.row), e.op));
  append_time (out, "ts", at);
  g_string_append_c (out, '}');
}

/* Writes an arrow from the last nanosecond of op `from` to the first nanosecond of op `to`. */
static void
write_arrow (struct trace *tr, struct end from, struct end to, const char *cat)
{
  if (!has_length (tr, from) || !has_length (tr, to))
    return;
  arrow_end (tr, from, "\"s\"", cat, nanoseconds (tr->t->end[from.row][from.op]) - 1);
  arrow_end (tr, to, "\"f\",\"bp\":\"e\"", cat, nanoseconds (tr->t->begin[to.row][to.op]));
  tr->n_arrow++;
}

static void
write_waits (struct trace *tr, uint32_t row, uint32_t op)
{
  const weft_program *p = program_of (tr, row);

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (p->op[p->deps[d]].lane != p->op[op].lane)
      write_arrow (tr, (struct end){ row, p->deps[d] }, (struct end){ row, op }, "wait");
}

/* Writes the arrow of a transfer, from the begin of the send to the end of the receive; send and
 * receive start and end together. */
static void
write_transfer (struct trace *tr, struct end from, struct end to)
{
  if (!has_length (tr, from) || !has_length (tr, to))
    return;
  arrow_end (tr, from, "\"s\"", "transfer", nanoseconds (tr->t->begin[from.row][from.op]));
  arrow_end (tr, to, "\"f\",\"bp\":\"e\"", "transfer", nanoseconds (tr->t->end[to.row][to.op]) - 1);
  tr->n_arrow++;
}

/* The next send or receive of this kind towards `peer` on the pipeline lane, searched from position
 * `*at` on; WEFT_NO_OP if there is none. Sets *at to the position after that op. */
static uint32_t
next_transfer (const weft_program *p, enum weft_op_kind kind, int peer, uint32_t *at)
{
  while (*at < p->lane_n[WEFT_LANE_PP]) {
    uint32_t op = p->lane_ops[WEFT_LANE_PP][(*at)++];
    if (p->op[op].kind == kind && p->op[op].peer == peer)
      return op;
  }
  return WEFT_NO_OP;
}

/* Writes the arrows of transfers between row `from` and row `to`, its neighbour in direction
 * `peer`. The k-th send belongs to the k-th receive. */
static void
write_transfers (struct trace *tr, uint32_t from, uint32_t to, int peer)
{
  uint32_t sent_at = 0, got_at = 0;

  for (;;) {
    uint32_t sent = next_transfer (program_of (tr, from), WEFT_OP_SEND, peer, &sent_at);
    uint32_t got = next_transfer (program_of (tr, to), WEFT_OP_RECV, -peer, &got_at);
    if (sent == WEFT_NO_OP || got == WEFT_NO_OP)
      return;
    write_transfer (tr, (struct end){ from, sent }, (struct end){ to, got });
  }
}

/* The timeline row of a rank's neighbour in the next stage. If the neighbour has no row of its own,
 * the only row of its stage represents it. If the stage has several rows, the result is -1 and no
 * arrow is drawn. */
static int
row_of_next (const struct trace *tr, uint32_t row)
{
  uint32_t rank = weft_mesh_beside (&tr->plan->mesh, tr->t->rank[row], 1), n = 0;
  uint32_t role = (tr->t->role[row] + 1) % tr->plan->n_roles;
  int only = -1;

  if (rank == WEFT_NO_RANK)
    return -1;
  for (uint32_t other = 0; other < tr->n_rows; other++) {
    if (tr->t->rank[other] == rank)
      return other;
    if (tr->t->role[other] == role) {
      only = other;
      n++;
    }
  }
  return n == 1 ? only : -1;
}

static void
write_stage_arrows (struct trace *tr, uint32_t row)
{
  int next = row_of_next (tr, row);

  if (next < 0)
    return;
  write_transfers (tr, row, next, 1);
  write_transfers (tr, next, row, -1);
}

/* ----------------------------------------------------------------------- memory */

/* A change of live memory in the trace. A buffer is live from the begin of its first op to the end
 * of its last op. */
struct change {
  double at;
  /* number of the op; changes of memory at the same time are in the order of the ops */
  uint32_t op;
  uint32_t buf;
  gboolean goes;
};

static int
by_time (const void *a, const void *b)
{
  const struct change *x = a, *y = b;

  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  if (x->op != y->op)
    return x->op < y->op ? -1 : 1;
  return x->goes - y->goes;
}

static gboolean
is_counted (const struct trace *tr, uint32_t row, const struct weft_buf *b)
{
  if (b->base != WEFT_NO_BUF || b->pool == WEFT_POOL_HOST)
    return FALSE;
  return !b->permanent && b->bytes && b->first != WEFT_NO_OP && is_timed (tr, row, b->first) &&
         is_timed (tr, row, b->last);
}

static GArray *
changes_of (const struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);
  GArray *changes = g_array_new (FALSE, FALSE, sizeof (struct change));

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (!is_counted (tr, row, b))
      continue;
    struct change both[] = { { tr->t->begin[row][b->first], b->first, i, FALSE },
                             { tr->t->end[row][b->last], b->last, i, TRUE } };
    g_array_append_vals (changes, both, 2);
  }
  g_array_sort (changes, by_time);
  return changes;
}

static void
write_memory (struct trace *tr, uint32_t row, double at, const uint64_t *live)
{
  GString *out = event (tr);

  g_string_append_printf (out, "{\"ph\":\"C\",\"name\":\"memory\",\"pid\":%u", tr->t->rank[row]);
  append_time (out, "ts", nanoseconds (at));
  g_string_append (out, ",\"args\":{");
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    g_string_append_printf (out, "%s\"%s\":%" G_GUINT64_FORMAT, kind ? "," : "",
                            weft_buf_kind_words[kind], live[kind]);
  g_string_append (out, "}}");
}

static void
write_counter (struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);
  const struct weft_memory *m = &tr->plan->memory[tr->t->role[row]];
  g_autoptr (GArray) changes = changes_of (tr, row);
  uint64_t live[WEFT_N_BUF_KIND];

  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    live[kind] = m->permanent[WEFT_POOL_DEVICE][kind] + m->permanent[WEFT_POOL_SYMMETRIC][kind];
  write_memory (tr, row, 0, live);
  for (unsigned i = 0; i < changes->len; i++) {
    const struct change *c = &g_array_index (changes, struct change, i);
    const struct change *next = i + 1 < changes->len ? c + 1 : NULL;
    live[p->buf[c->buf].kind] += c->goes ? -p->buf[c->buf].bytes : p->buf[c->buf].bytes;
    if (!next || next->at != c->at || next->op != c->op || next->goes != c->goes)
      write_memory (tr, row, c->at, live);
  }
}

/* ------------------------------------------------------------------------ whole */

static void
write_row (struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);

  name_process (tr, row);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_timed (tr, row, op)) {
      write_slice (tr, row, op);
      write_waits (tr, row, op);
    }
  write_parts (tr, row);
  write_phases (tr, row);
  write_stage_arrows (tr, row);
  write_counter (tr, row);
}

/* Upper bound of the number of trace events of a row: slices, both ends of every arrow, and a
 * sample of memory at the begin and at the end of each op. */
static uint64_t
count_events (const struct trace *tr, uint32_t row)
{
  const weft_program *p = program_of (tr, row);
  return 3 * (uint64_t) p->n_op + 2 * (uint64_t) p->op[p->n_op].deps +
         2 * (uint64_t) p->lane_n[WEFT_LANE_PP];
}

static gboolean
check_size (const struct trace *tr, GError **error)
{
  uint64_t sum = 0, fitting = 0;

  for (uint32_t row = 0; row < tr->n_rows; row++) {
    sum += count_events (tr, row);
    if (sum <= WEFT_TRACE_MOST_EVENTS)
      fitting = row + 1;
  }
  if (sum <= WEFT_TRACE_MOST_EVENTS || tr->n_rows == 1)
    return TRUE;
  return weft_bad_input (error,
                         "a trace of %u ranks would have %" G_GUINT64_FORMAT
                         " events, wanted at most %u events: give --trace-ranks %" G_GUINT64_FORMAT,
                         tr->n_rows, sum, WEFT_TRACE_MOST_EVENTS, MAX (fitting, 1));
}

static void
write_all (struct trace *tr)
{
  GString *out = tr->sink.text;

  g_string_append_printf (
      out,
      "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceName\":\"weft %s\","
      "\"distributedInfo\":{\"backend\":\"nccl\",\"rank\":%u,\"world_size\":%u},"
      "\"traceEvents\":[",
      tr->t->executor, tr->t->rank[0], tr->plan->mesh.n_ranks);
  for (uint32_t row = 0; row < tr->n_rows && !tr->sink.error; row++)
    write_row (tr, row);
  g_string_append (out, "\n]}\n");
}

gboolean
weft_trace_write (const weft_plan *plan, const weft_timeline *timeline, uint32_t n_rows,
                  const char *path, GError **error)
{
  struct trace tr = { .plan = plan,
                      .t = timeline,
                      .n_rows = n_rows ? MIN (n_rows, timeline->n) : timeline->n };

  if (!check_size (&tr, error) || !weft_sink_open (&tr.sink, path, error))
    return FALSE;
  write_all (&tr);
  return weft_sink_close (&tr.sink, error);
}
