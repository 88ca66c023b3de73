#include "exec_gpu/cuda/module/fused.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/trial.h"
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cudnn_graph.h>)
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

/* Checks that the constants in kernels/cuda/cudnn.h are those of cuDNN's header. */
#define WEFT_CUDNN_COMPARE(name, theirs, value) G_STATIC_ASSERT ((int) theirs == value);
WEFT_CUDNN_NUMBER_LIST (WEFT_CUDNN_COMPARE)
#undef WEFT_CUDNN_COMPARE
#endif

#define MOST_DEVICES 64

/* Whether to use cuDNN or the own kernels for a shape of attention. The struct has no padding,
 * because its bytes are written to files. */
struct found {
  struct weft_cudnn_shape shape;
  uint64_t library; /* 1: cuDNN was faster; 0: the own kernels were faster */
  /* measured times; negative: failed; of own_ms WEFT_TRIAL_HUNG: did not end, or was not tried */
  float library_ms, own_ms;
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

/* Measures cuDNN first and saves it as the choice, then measures the own kernel: if that does not
 * end, the next run of the program finds the choice and works. NULL, or why this process cannot
 * continue. */
static const char *
measure (struct weft_fused *f, int device, const attempt *a, const char *machine)
{
  struct found found = { a->shape, FALSE, weft_trial_time (run_library, a, a->l.stream),
                         WEFT_TRIAL_HUNG };

  found.library = found.library_ms >= 0;
  if (found.library_ms == WEFT_TRIAL_HUNG)
    return "attention_backend = auto: attention of cuDNN did not end while it was timed: use "
           "attention_backend = flash";
  f->on[device].news = TRUE;
  remember (&f->on[device], &found);
  if (found.library)
    weft_fused_save (f, device, machine);
  found.own_ms = weft_trial_time (run_own, a, a->l.stream);
  if (found.own_ms == WEFT_TRIAL_HUNG)
    return "attention_backend = auto: Weft's attention did not end while it was timed; cuDNN is "
           "used from the next run on";
  if (found.own_ms >= 0)
    found.library = found.library_ms >= 0 && found.library_ms < found.own_ms;
  f->on[device].news = TRUE;
  remember (&f->on[device], &found);
  return NULL;
}

const char *
weft_fused_try (struct weft_fused *f, int device, const struct weft_kernel *k,
                const struct weft_cuda_launch *l, const char *machine)
{
  uint64_t bytes;

  if (!k->quicker || !is_whole (k))
    return NULL;
  g_auto (attempt) a = { k->kind, *l, shape_of (k), attention_of (f, device), { NULL } };
  if (!a.library || find (f, device, &a.shape) ||
      weft_cudnn_attention_plan (a.library, &a.shape, &bytes) || bytes > l->scratch_bytes ||
      !make_room (&a))
    return NULL;
  const char *error = measure (f, device, &a, machine);
  if (error)
    g_printerr ("weft: %s\n", error); /* at once: closing may wait for the kernel that hangs */
  return error;
}

/* The name of the machine followed by the version of cuDNN (0: no library). The version belongs to
 * the key of a choice, because cuDNN's speed differs between versions. */
static char *
machine_with (struct weft_fused *f, int device, const char *machine)
{
  gboolean there = attention_of (f, device) != NULL;
  const struct weft_cudnn_calls *calls = f->calls ? f->calls : f->on[device].opened;

  return g_strdup_printf ("%s, cuDNN %zu", machine, there ? calls->GetVersion () : 0);
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
      " window=%" G_GUINT64_FORMAT " type=%s deterministic=%d winner=%s cudnn_ms=%.5f own_ms=%.5f",
      weft_op_words[s->backward ? WEFT_OP_ATTENTION_BWD : WEFT_OP_ATTENTION], s->batch, s->tokens,
      s->heads, s->groups, s->width, s->value, s->window, weft_dtype_words[s->dtype], s->same,
      found.library ? "cudnn" : "weft", (double) found.library_ms, (double) found.own_ms);
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
  const struct found *found = find (f, device, &shape);
  return found && found->library;
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
