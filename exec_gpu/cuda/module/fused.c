#include "exec_gpu/cuda/module/fused.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/trial.h"
#include <string.h>
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cudnn_graph.h>)
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

/* Checks that the constants in kernels/cuda/cudnn.h are those of cuDNN's header. */
#define WEFT_CUDNN_COMPARE(name, theirs, value) G_STATIC_ASSERT ((int) theirs == value);
WEFT_CUDNN_NUMBER_LIST (WEFT_CUDNN_COMPARE)
#undef WEFT_CUDNN_COMPARE
#endif

#define MOST_DEVICES 64

/* Ways to compute attention, in the order in which they are measured. */
enum way { LIBRARY, OWN, PRODUCER, N_WAYS };
static const char *const way_words[N_WAYS] = { "cudnn", "weft", "producer" };

/* The quickest way for a shape of attention. The struct has no padding, because its bytes are
 * written to files. */
struct found {
  struct weft_cudnn_shape shape;
  uint32_t way; /* enum way */
  /* measured times; negative: failed; WEFT_TRIAL_HUNG: did not end, or was not tried */
  float ms[N_WAYS];
};

struct of_device {
  struct weft_cudnn_calls *opened;
  struct weft_cudnn_attention *attention;
  /* why `attention` is NULL (cuDNN cannot be used); NULL before the library is opened */
  const char *why;
  GHashTable *found; /* hash table from a shape to struct found, the measured choice */
  gboolean loaded, news;
};

struct weft_fused {
  /* functions of cuDNN or of a test; NULL: each device opens the library */
  const struct weft_cudnn_calls *calls;
  struct of_device on[MOST_DEVICES];
  /* by op: whether the line on stderr about this op was printed; accessed atomically */
  gint said[WEFT_N_OP];
};

struct weft_fused *
weft_fused_new (const struct weft_cudnn_calls *calls)
{
  struct weft_fused *f = g_new0 (struct weft_fused, 1);

  f->calls = calls;
  return f;
}

void
weft_fused_free (struct weft_fused *f)
{
  for (int device = 0; device < MOST_DEVICES; device++) {
    weft_cudnn_attention_free (f->on[device].attention);
    g_free (f->on[device].opened);
    g_clear_pointer (&f->on[device].found, g_hash_table_unref);
  }
  g_free (f);
}

static struct weft_cudnn_attention *
attention_of (struct weft_fused *f, int device)
{
  struct of_device *on = &f->on[device];

  if (on->attention || on->why)
    return on->attention;
  if (!f->calls)
    on->opened = weft_cudnn_open (NULL, &on->why);
  if (f->calls || on->opened)
    on->attention = weft_cudnn_attention_new (f->calls ? f->calls : on->opened, NULL, &on->why);
  return on->attention;
}

static gboolean
is_backward (const struct weft_kernel *k)
{
  return k->kind == WEFT_OP_ATTENTION_BWD;
}

static gboolean
is_whole (const struct weft_kernel *k)
{
  return k->kind == WEFT_OP_ATTENTION || is_backward (k);
}

static gboolean
is_part (const struct weft_kernel *k)
{
  return k->kind == WEFT_OP_ATTENTION_PART || k->kind == WEFT_OP_ATTENTION_PART_BWD;
}

static struct weft_cudnn_shape
shape_of (const struct weft_kernel *k)
{
  return weft_cudnn_shape_of (k->shape.dim, k->operand[0].dtype, is_backward (k), k->deterministic);
}

/* Returns the name of the property of a kernel that our cuDNN graph does not support; NULL: the
 * graph supports the kernel. */
static const char *
bent (const struct weft_kernel *k)
{
  if (k->model->attn_logit_softcapping != 0)
    return "scores are soft-capped";
  if (k->model->position_embedding_type == WEFT_ALIBI)
    return "scores have an ALiBi slope";
  if (k->model->query_pre_attn_scalar != 0 &&
      k->model->query_pre_attn_scalar != (double) k->shape.dim[4])
    return "scores are scaled by query_pre_attn_scalar";
  return NULL;
}

static void
say (struct weft_fused *f, const struct weft_kernel *k, const char *why)
{
  if (!k->quicker && g_atomic_int_compare_and_exchange (&f->said[k->kind], 0, 1))
    g_printerr ("weft: attention_backend = fused: %s runs on Weft's kernels, not on cuDNN: %s\n",
                weft_op_words[k->kind], why);
}

/* ---------------------------------------------------------------------- what is quicker */

static const struct found *
find (const struct weft_fused *f, int device, const struct weft_cudnn_shape *shape)
{
  GHashTable *found = f->on[device].found;
  return found ? g_hash_table_lookup (found, shape) : NULL;
}

static gboolean
is_quickest (const struct weft_fused *f, int device, const struct weft_cudnn_shape *shape,
             enum way way)
{
  const struct found *found = find (f, device, shape);
  return found && found->way == way;
}

static void
remember (void *user, const void *bytes)
{
  struct of_device *on = user;
  struct found *found = g_memdup2 (bytes, sizeof *found);

  if (!on->found)
    on->found = g_hash_table_new_full (weft_cudnn_hash_shape, weft_cudnn_same_shape, NULL, g_free);
  g_hash_table_replace (on->found, &found->shape, found);
}

/* A launch on separate operands, for measurements of cuDNN and of the own kernel. */
typedef struct attempt {
  enum weft_op_kind kind;
  struct weft_cuda_launch l;
  struct weft_cudnn_shape shape;
  struct weft_cudnn_attention *library;
  void *block[WEFT_CUDA_MOST_OPERANDS];
} attempt;

static void
attempt_clear (attempt *a)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (a->block); i++)
    weft_trial_free (a->block[i]);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (attempt, attempt_clear)

static gboolean
make_room (attempt *a)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (a->block); i++) {
    struct weft_cuda_operand *o = &a->l.operand[i];
    const void *at = NULL;
    if (!weft_trial_block (&a->block[i], o->data, o->n, o->dtype, &at))
      return FALSE;
    o->data = (void *) (uintptr_t) at;
  }
  return TRUE;
}

static const char *
run_library (const void *user)
{
  const attempt *a = user;
  return weft_cudnn_attention_run (a->library, &a->shape, &a->l);
}

static const char *
run_own (const void *user)
{
  const attempt *a = user;
  return weft_cuda_launch_all (a->kind, &a->l, 1);
}

static const char *
run_producer (const void *user)
{
  const attempt *a = user;
  struct weft_cuda_launch l = a->l;

  l.warpgroups = WEFT_WARPGROUPS_PRODUCER;
  return weft_cuda_launch_all (a->kind, &l, 1);
}

static gboolean
has_library (const attempt *a)
{
  uint64_t bytes;

  return a->library && !weft_cudnn_attention_plan (a->library, &a->shape, &bytes) &&
         bytes <= a->l.scratch_bytes;
}

static gboolean
has_producer (const attempt *a)
{
  struct weft_cuda_launch l = a->l;

  l.warpgroups = WEFT_WARPGROUPS_PRODUCER;
  return a->l.warpgroups == WEFT_WARPGROUPS &&
         weft_cuda_producer_runs (&l, a->kind == WEFT_OP_ATTENTION_BWD);
}

#define DID_NOT_END(what, then)                                                                    \
  "attention_backend = auto: " what " did not end while it was timed" then

static const struct {
  const char *(*run) (const void *user);
  const char *hung, *hung_first; /* messages; hung_first: if no other way was measured before */
} ways[N_WAYS] = {
  [LIBRARY] = { run_library, NULL,
                DID_NOT_END ("attention of cuDNN", ": use attention_backend = flash") },
  [OWN] = { run_own, DID_NOT_END ("Weft's attention", "; cuDNN is used from the next run on"),
            DID_NOT_END ("Weft's attention", ": set WEFT_WARPGROUPS=0 in the environment") },
  [PRODUCER] = { run_producer,
                 DID_NOT_END ("Weft's attention with a producer warp",
                              "; another kernel is used from the next run on"),
                 DID_NOT_END ("Weft's attention with a producer warp",
                              ": set WEFT_WARPGROUPS=0 in the environment") },
};

/* Measures each way for which `there` is TRUE, and saves the fastest way after each measurement. So
 * if a later kernel never ends, the next run of the program has a choice that works. Returns NULL,
 * or why this process cannot continue. */
static const char *
measure (struct weft_fused *f, int device, const attempt *a, const gboolean there[N_WAYS],
         const char *machine)
{
  struct found found = { a->shape, OWN, { WEFT_TRIAL_HUNG, WEFT_TRIAL_HUNG, WEFT_TRIAL_HUNG } };
  gboolean runs = FALSE; /* a way was measured */

  for (enum way way = LIBRARY; way < N_WAYS; way++) {
    if (!there[way])
      continue;
    float ms = weft_trial_time (ways[way].run, a, a->l.stream);
    if (ms == WEFT_TRIAL_HUNG)
      return runs ? ways[way].hung : ways[way].hung_first;
    found.ms[way] = ms;
    if (ms >= 0 && (!runs || ms <= found.ms[found.way]))
      found.way = way;
    runs = runs || ms >= 0;
    f->on[device].news = TRUE;
    remember (&f->on[device], &found);
    if (runs)
      weft_fused_save (f, device, machine);
  }
  f->on[device].news = TRUE;
  return NULL;
}

const char *
weft_fused_try (struct weft_fused *f, int device, const struct weft_kernel *k,
                const struct weft_cuda_launch *l, const char *machine)
{
  if (!k->quicker || !is_whole (k))
    return NULL;
  g_auto (attempt) a = { k->kind, *l, shape_of (k), attention_of (f, device), { NULL } };
  const gboolean there[N_WAYS] = { !bent (k) && has_library (&a), TRUE, has_producer (&a) };
  if ((!there[LIBRARY] && !there[PRODUCER]) || find (f, device, &a.shape) || !make_room (&a))
    return NULL;
  const char *error = measure (f, device, &a, there, machine);
  if (error)
    g_printerr ("weft: %s\n", error); /* now: closing may wait for the kernel that hangs */
  return error;
}

/* The name of the machine followed by the version of cuDNN (0: no library). The version belongs to
 * the key of a choice, because cuDNN's speed differs between versions. */
static char *
machine_with (struct weft_fused *f, int device, const char *machine)
{
  gboolean there = attention_of (f, device) != NULL;
  const struct weft_cudnn_calls *calls = f->calls ? f->calls : f->on[device].opened;

  return g_strdup_printf ("%s, cuDNN %zu, three ways", machine, there ? calls->GetVersion () : 0);
}

static void
describe_found (const void *bytes, GString *words)
{
  struct found found;
  const struct weft_cudnn_shape *s = &found.shape;

  memcpy (&found, bytes, sizeof found);
  g_string_append_printf (
      words,
      "op=%s batch=%" G_GUINT64_FORMAT " tokens=%" G_GUINT64_FORMAT " heads=%" G_GUINT64_FORMAT
      " groups=%" G_GUINT64_FORMAT " width=%" G_GUINT64_FORMAT " value=%" G_GUINT64_FORMAT
      " window=%" G_GUINT64_FORMAT
      " type=%s deterministic=%d winner=%s cudnn_ms=%.5f own_ms=%.5f producer_ms=%.5f",
      weft_op_words[s->backward ? WEFT_OP_ATTENTION_BWD : WEFT_OP_ATTENTION], s->batch, s->tokens,
      s->heads, s->groups, s->width, s->value, s->window, weft_dtype_words[s->dtype], s->same,
      found.way < N_WAYS ? way_words[found.way] : "unknown", (double) found.ms[LIBRARY],
      (double) found.ms[OWN], (double) found.ms[PRODUCER]);
}

static struct weft_trial_file
file_of (struct weft_fused *f, int device, const char *path, const char *machine)
{
  return (struct weft_trial_file){ .path = path,
                                   .machine = machine,
                                   .what = "choice of an attention kernel",
                                   .bytes = sizeof (struct found),
                                   .take = remember,
                                   .user = &f->on[device],
                                   .describe = describe_found };
}

/* A missing or invalid file of choices is no error: weft_fused_try() measures the choices again,
 * and writes a new file. */
void
weft_fused_load (struct weft_fused *f, int device, const char *machine)
{
  g_autofree char *whole = machine_with (f, device, machine);
  g_autofree char *path = weft_trial_path ("attention", whole);
  const struct weft_trial_file file = file_of (f, device, path, whole);
  uint32_t n;

  if (!f->on[device].loaded)
    (void) weft_trial_load (&file, &n, NULL);
  f->on[device].loaded = TRUE;
}

/* If the file of choices cannot be written, the next run measures them again. */
void
weft_fused_save (struct weft_fused *f, int device, const char *machine)
{
  g_autofree char *whole = machine_with (f, device, machine);
  g_autofree char *path = weft_trial_path ("attention", whole);
  const struct weft_trial_file file = file_of (f, device, path, whole);
  g_autoptr (GError) error = NULL;
  struct of_device *on = &f->on[device];

  if (on->news && !weft_trial_save (&file, on->found, &error))
    g_warning ("the choice of attention kernels cannot be saved: %s", error->message);
  on->news = FALSE;
}

/* ------------------------------------------------------------------------------ calls */

gboolean
weft_fused_takes (struct weft_fused *f, int device, const struct weft_kernel *k, uint64_t *scratch)
{
  const char *refused;

  *scratch = 0;
  if (!k->fused || (!is_whole (k) && !is_part (k)))
    return FALSE;
  if (is_part (k)) {
    say (f, k, "it attends to parts of a sequence");
    return FALSE;
  }
  if ((refused = bent (k))) {
    say (f, k, refused);
    return FALSE;
  }
  struct weft_cudnn_attention *a = attention_of (f, device);
  struct weft_cudnn_shape shape = shape_of (k);
  if (!a)
    return FALSE;
  if ((refused = weft_cudnn_attention_plan (a, &shape, scratch)))
    say (f, k, refused);
  if (refused || !k->quicker)
    return refused == NULL;
  return is_quickest (f, device, &shape, LIBRARY);
}

uint8_t
weft_fused_warpgroups (struct weft_fused *f, int device, const struct weft_kernel *k, uint8_t most)
{
  if (most != WEFT_WARPGROUPS || !k->quicker || !is_whole (k))
    return most;
  const struct weft_cudnn_shape shape = shape_of (k);
  return is_quickest (f, device, &shape, PRODUCER) ? WEFT_WARPGROUPS_PRODUCER : most;
}

uint64_t
weft_fused_producer_scratch (const struct weft_kernel *k, uint8_t most)
{
  struct weft_cuda_shape shape = { .dtype = k->shape.dtype };

  if (k->kind != WEFT_OP_ATTENTION_BWD || most == WEFT_NO_WARPGROUPS ||
      (most == WEFT_WARPGROUPS && !k->quicker))
    return 0;
  memcpy (shape.dim, k->shape.dim, sizeof shape.dim);
  return weft_cuda_producer_scratch (&shape);
}

const char *
weft_fused_missing (struct weft_fused *f, int device, const struct weft_kernel *k)
{
  g_autofree char *text = NULL;

  if (!k->fused || k->quicker || !is_whole (k) || attention_of (f, device))
    return NULL;
  text = g_strdup_printf ("attention_backend = fused: %s", f->on[device].why);
  return g_intern_string (text);
}

const char *
weft_fused_run (struct weft_fused *f, int device, const struct weft_kernel *k,
                const struct weft_cuda_launch *l)
{
  struct weft_cudnn_shape shape = shape_of (k);

  return weft_cudnn_attention_run (attention_of (f, device), &shape, l);
}
