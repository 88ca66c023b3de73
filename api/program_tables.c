/* The tables of a job's programs and memory. */
#include "core/report/report.h"
#include "api/inside.h"

/* Returns -1 for a value that means "none" in a program, and the value otherwise. */
static int64_t
or_none (uint32_t value, uint32_t none)
{
  return value == none ? -1 : (int64_t) value;
}

static const weft_program *
program_of (const char *call, const weft_job *job, uint32_t role, weft_error *error)
{
  if (!weft_api_given (call, "job", job, error))
    return NULL;
  if (role < job->plan->n_roles)
    return job->plan->role[role];
  weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT, "%s: found role %u, wanted 0..%u", call, role,
                      job->plan->n_roles - 1);
  return NULL;
}

/* Adds a column of labels: weft_op_label() of ops, or weft_buf_label() of buffers. */
static void
add_labels (weft_table *table, const weft_program *p, uint32_t n,
            char *(*label) (const weft_program *p, uint32_t i))
{
  size_t column = weft_api_add_texts (table, "label", "name in messages and traces");

  for (uint32_t i = 0; i < n; i++) {
    g_autofree char *text = label (p, i);
    weft_api_set_text (table, column, i, text);
  }
}

/* Adds columns for the number of an op, its kind, its lane, and its group of ranks. */
static void
add_kinds (weft_table *table, const weft_program *p)
{
  int64_t *number = weft_api_add_integers (table, "op", "", "number of the op");
  size_t kind = weft_api_add_texts (table, "kind", "kind of op (core/ops.def)");
  int32_t *lane = weft_api_add_words (table, "lane", "queue that runs the op", weft_lane_words);
  int32_t *axis =
      weft_api_add_words (table, "axis", "group of ranks that communicates", weft_group_words);

  for (uint32_t i = 0; i < p->n_op; i++) {
    number[i] = i;
    weft_api_set_text (table, kind, i, weft_op_info[p->op[i].kind].word);
    lane[i] = p->op[i].lane;
    axis[i] = p->op[i].group == WEFT_GROUP_NONE ? -1 : p->op[i].group;
  }
}

/* Adds columns for the layer, chunk, microbatch and phase of an op. */
static void
add_places (weft_table *table, const weft_program *p)
{
  int64_t *layer = weft_api_add_integers (table, "layer", "", "layer of the model");
  int64_t *chunk = weft_api_add_integers (table, "chunk", "", "chunk of the stage");
  int64_t *micro = weft_api_add_integers (table, "micro", "", "microbatch");
  int32_t *phase = weft_api_add_words (table, "phase", "pass of the step", weft_phase_words);

  for (uint32_t i = 0; i < p->n_op; i++) {
    const struct weft_op *op = &p->op[i];
    layer[i] = or_none (op->layer, WEFT_NO_LAYER);
    chunk[i] = op->chunk;
    micro[i] = or_none (op->micro, WEFT_NO_MICRO);
    phase[i] = op->phase;
  }
}

weft_table *
weft_job_ops (const weft_job *job, uint32_t role, weft_error *error)
{
  const weft_program *p = program_of ("job_ops", job, role, error);

  if (!p)
    return NULL;
  weft_table *table = weft_api_table_new (p->n_op);
  add_kinds (table, p);
  add_places (table, p);
  int32_t *dtype = weft_api_add_words (table, "dtype", "type of the operands", weft_dtype_words);
  double *flops = weft_api_add_reals (table, "flops", "FLOP", "FLOPs of the kernel");
  double *bytes =
      weft_api_add_reals (table, "bytes", "B", "memory traffic of a kernel, payload of a transfer");
  for (uint32_t i = 0; i < p->n_op; i++) {
    dtype[i] = weft_op_shape (p, i)->dtype;
    flops[i] = weft_op_flops (p, i);
    bytes[i] = weft_op_bytes (p, i);
  }
  add_labels (table, p, p->n_op, weft_op_label);
  weft_api_done (error);
  return table;
}

/* Adds columns for the address, size and lifetime of a buffer. */
static void
add_extents (weft_table *table, const weft_program *p)
{
  int64_t *bytes = weft_api_add_integers (table, "bytes", "B", "size");
  int64_t *offset = weft_api_add_integers (table, "offset", "B", "address in its pool");
  int64_t *first = weft_api_add_integers (table, "first", "", "first op that uses it");
  int64_t *last = weft_api_add_integers (table, "last", "", "last op that uses it");
  int64_t *permanent = weft_api_add_integers (table, "permanent", "", "1: in use all the time");
  int64_t *owner = weft_api_add_integers (table, "owner", "", "buffer that owns the memory");

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *buf = &p->buf[i];
    bytes[i] = (int64_t) buf->bytes;
    offset[i] = (int64_t) weft_buf_address (p, i);
    first[i] = or_none (buf->first, WEFT_NO_OP);
    last[i] = buf->first == WEFT_NO_OP ? -1 : (int64_t) buf->last;
    permanent[i] = buf->permanent;
    owner[i] = weft_buf_owner (p, i);
  }
}

weft_table *
weft_job_buffers (const weft_job *job, uint32_t role, weft_error *error)
{
  const weft_program *p = program_of ("job_buffers", job, role, error);

  if (!p)
    return NULL;
  weft_table *table = weft_api_table_new (p->n_buf);
  int64_t *number = weft_api_add_integers (table, "buffer", "", "number of the buffer");
  int32_t *kind = weft_api_add_words (table, "kind", "what it holds", weft_buf_kind_words);
  int32_t *pool = weft_api_add_words (table, "pool", "memory pool", weft_pool_words);
  add_extents (table, p);
  int64_t *layer = weft_api_add_integers (table, "layer", "", "layer of the model");
  int64_t *micro = weft_api_add_integers (table, "micro", "", "microbatch");
  for (uint32_t i = 0; i < p->n_buf; i++) {
    number[i] = i;
    kind[i] = p->buf[i].kind;
    pool[i] = p->buf[i].pool;
    layer[i] = or_none (p->buf[i].layer, WEFT_NO_LAYER);
    micro[i] = or_none (p->buf[i].micro, WEFT_NO_MICRO);
  }
  add_labels (table, p, p->n_buf, weft_buf_label);
  weft_api_done (error);
  return table;
}

weft_table *
weft_job_uses (const weft_job *job, uint32_t role, weft_error *error)
{
  const weft_program *p = program_of ("job_uses", job, role, error);

  if (!p)
    return NULL;
  weft_table *table = weft_api_table_new (p->op[p->n_op].uses);
  int64_t *number = weft_api_add_integers (table, "op", "", "number of the op");
  int64_t *buffer = weft_api_add_integers (table, "buffer", "", "buffer; -1: absent operand");
  int64_t *reads = weft_api_add_integers (table, "read", "", "1: the op reads it");
  int64_t *writes = weft_api_add_integers (table, "write", "", "1: the op writes it");
  for (uint32_t i = 0; i < p->n_op; i++)
    for (uint32_t u = p->op[i].uses; u < p->op[i + 1].uses; u++) {
      number[u] = i;
      buffer[u] = or_none (p->uses[u].buf, WEFT_NO_BUF);
      reads[u] = p->uses[u].read;
      writes[u] = p->uses[u].write;
    }
  weft_api_done (error);
  return table;
}

weft_table *
weft_job_dependencies (const weft_job *job, uint32_t role, weft_error *error)
{
  const weft_program *p = program_of ("job_dependencies", job, role, error);

  if (!p)
    return NULL;
  weft_table *table = weft_api_table_new (p->op[p->n_op].deps);
  int64_t *number = weft_api_add_integers (table, "op", "", "number of the op");
  int64_t *after = weft_api_add_integers (table, "after", "", "op that must have ended");
  for (uint32_t i = 0; i < p->n_op; i++)
    for (uint32_t d = p->op[i].deps; d < p->op[i + 1].deps; d++) {
      number[d] = i;
      after[d] = p->deps[d];
    }
  weft_api_done (error);
  return table;
}

weft_table *
weft_job_memory (const weft_job *job, weft_error *error)
{
  if (!weft_api_given ("job_memory", "job", job, error))
    return NULL;
  g_autoptr (weft_report) report = weft_report_new (job->plan, NULL);
  weft_table *table = weft_api_table_new ((size_t) report->n_roles * WEFT_N_REPORT_PART);
  int64_t *role = weft_api_add_integers (table, "role", "", "pipeline stage");
  int64_t *bytes = weft_api_add_integers (table, "bytes", "B", "bytes at the peak of the role");
  size_t name = weft_api_add_texts (table, "part", "what the bytes hold");
  for (uint32_t r = 0, row = 0; r < report->n_roles; r++)
    for (int part = 0; part < WEFT_N_REPORT_PART; part++, row++) {
      role[row] = r;
      bytes[row] = (int64_t) weft_report_part_bytes (&report->role[r], part);
      weft_api_set_text (table, name, row, weft_report_parts[part].word);
    }
  weft_api_done (error);
  return table;
}
