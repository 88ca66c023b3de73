#include "core/plan/lifetimes.h"
#include "core/plan/memory.h"
#include <string.h>

/* Begin and end of every op in the earliest schedule, seconds. */
struct schedule {
  const weft_program *p;
  const double *seconds; /* NULL: every op takes one second */
  double *start, *end;
};

/* Adds an op to its launch group. All ops of a group begin when the last of them may begin, and end
 * together. Collectives of a group move their bytes one after the other; sends and receives of a
 * group move their bytes at the same time. */
static void
join_group (const struct schedule *s, uint32_t op, double ready)
{
  const uint32_t *lane = s->p->lane_ops[s->p->op[op].lane];
  uint32_t last = s->p->pos[op], first = last;
  double end = 0;

  while (s->p->op[lane[first]].flags & WEFT_OP_GROUPED)
    first--;
  ready = MAX (ready, s->start[lane[first]]);
  for (uint32_t i = first; i <= last; i++) {
    double alone = ready + (s->seconds ? s->seconds[lane[i]] : 1);
    gboolean follows = weft_op_info[s->p->op[op].kind].class == WEFT_CLASS_COLLECTIVE;
    end = follows && i > first ? end + (alone - ready) : MAX (end, alone);
  }
  for (uint32_t i = first; i <= last; i++) {
    s->start[lane[i]] = ready;
    s->end[lane[i]] = end;
  }
}

void
weft_earliest_schedule (const weft_program *p, const double *seconds, double *start, double *end)
{
  const struct schedule s = { p, seconds, start, end };
  double lane_end[WEFT_N_LANE] = { 0 };

  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean grouped = p->op[op].flags & WEFT_OP_GROUPED;
    double ready = grouped ? 0 : lane_end[p->op[op].lane];
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      ready = MAX (ready, end[p->deps[d]]);
    start[op] = ready;
    end[op] = ready + (seconds ? seconds[op] : 1);
    if (grouped)
      join_group (&s, op, ready);
    lane_end[p->op[op].lane] = end[op];
  }
}

gboolean
weft_buf_is_placed (const struct weft_buf *b)
{
  return b->base == WEFT_NO_BUF && b->bytes && !b->permanent && b->first != WEFT_NO_OP;
}

void
weft_chain_buffers (const weft_program *p, gboolean by_last, uint32_t *head, uint32_t *next)
{
  memset (head, 0xff, (p->n_op + 1) * sizeof *head);
  for (uint32_t i = p->n_buf; i-- > 0;)
    if (weft_buf_is_placed (&p->buf[i])) {
      uint32_t op = by_last ? p->buf[i].last : p->buf[i].first;
      next[i] = head[op];
      head[op] = i;
    }
}

static void
add_permanent (const weft_program *p, struct weft_memory *memory, uint64_t live[][WEFT_N_BUF_KIND])
{
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].permanent && p->buf[i].base == WEFT_NO_BUF)
      memory->permanent[p->buf[i].pool][p->buf[i].kind] += p->buf[i].bytes;
  memcpy (live, memory->permanent, sizeof memory->permanent);
}

/* Finds the largest number of bytes that are alive at the same time if ops run in program order: a
 * lower bound of the arena. */
void
weft_memory_live (const weft_program *p, struct weft_memory *memory)
{
  uint64_t live[WEFT_N_POOL][WEFT_N_BUF_KIND], sum[WEFT_N_POOL] = { 0 };
  g_autofree uint32_t *opens = g_new (uint32_t, p->n_op + 1),
                      *closes = g_new (uint32_t, p->n_op + 1);
  g_autofree uint32_t *next_open = g_new (uint32_t, p->n_buf + 1),
                      *next_close = g_new (uint32_t, p->n_buf + 1);

  *memory = (struct weft_memory){ 0 };
  add_permanent (p, memory, live);
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
      sum[pool] += live[pool][kind];
    memory->live[pool] = sum[pool];
    memcpy (memory->at_peak[pool], live[pool], sizeof live[pool]);
  }
  weft_chain_buffers (p, FALSE, opens, next_open);
  weft_chain_buffers (p, TRUE, closes, next_close);
  for (uint32_t op = 0; op < p->n_op; op++) {
    for (uint32_t i = opens[op]; i != WEFT_NO_OP; i = next_open[i]) {
      live[p->buf[i].pool][p->buf[i].kind] += p->buf[i].bytes;
      sum[p->buf[i].pool] += p->buf[i].bytes;
    }
    for (int pool = 0; pool < WEFT_N_POOL; pool++)
      if (sum[pool] > memory->live[pool]) {
        memory->live[pool] = sum[pool];
        memory->peak_op[pool] = op;
        memcpy (memory->at_peak[pool], live[pool], sizeof live[pool]);
      }
    for (uint32_t i = closes[op]; i != WEFT_NO_OP; i = next_close[i]) {
      live[p->buf[i].pool][p->buf[i].kind] -= p->buf[i].bytes;
      sum[p->buf[i].pool] -= p->buf[i].bytes;
    }
  }
}

/* A time at which a buffer begins (bytes > 0) or ends (bytes < 0) to be in use. */
struct change {
  double at;
  int64_t bytes;
};

/* At one time, buffers end before others begin. */
static int
by_time (gconstpointer a, gconstpointer b)
{
  const struct change *x = a, *y = b;

  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Returns the time at which the last use of each buffer ends; the uses of a view count for the
 * buffer that it views. */
static double *
last_ends (const weft_program *p, const double *end)
{
  double *last = g_new0 (double, p->n_buf + 1);

  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf != WEFT_NO_BUF) {
        uint32_t owner = weft_buf_owner (p, p->uses[u].buf);
        last[owner] = MAX (last[owner], end[op]);
      }
  return last;
}

void
weft_bytes_in_use (const weft_program *p, const double *start, const double *end,
                   uint64_t used[WEFT_N_POOL])
{
  g_autofree double *last = last_ends (p, end);
  GArray *changes[WEFT_N_POOL];
  int64_t sum[WEFT_N_POOL] = { 0 };

  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    changes[pool] = g_array_new (FALSE, FALSE, sizeof (struct change));
  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    const gboolean is_placed = weft_buf_is_placed (b);
    const struct change begin = { is_placed ? start[b->first] : 0, (int64_t) b->bytes };
    const struct change stop = { last[i], -begin.bytes };
    if (b->permanent && b->base == WEFT_NO_BUF)
      sum[b->pool] += begin.bytes;
    if (!is_placed)
      continue;
    g_array_append_val (changes[b->pool], begin);
    g_array_append_val (changes[b->pool], stop);
  }
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    g_array_sort (changes[pool], by_time);
    used[pool] = (uint64_t) sum[pool];
    for (guint i = 0; i < changes[pool]->len; i++) {
      sum[pool] += g_array_index (changes[pool], struct change, i).bytes;
      used[pool] = MAX (used[pool], (uint64_t) sum[pool]);
    }
    g_array_unref (changes[pool]);
  }
}
