#include "exec_cuda/module/fused.h"
#include "kernels/cuda/cudnn_attention.h"
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cudnn_graph.h>)
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

/* What kernels/cuda/cudnn.h says of the interface is what its header says. */
#define WEFT_CUDNN_COMPARE(name, theirs, value) G_STATIC_ASSERT ((int) theirs == value);
WEFT_CUDNN_NUMBER_LIST (WEFT_CUDNN_COMPARE)
#undef WEFT_CUDNN_COMPARE
#endif

#define MOST_DEVICES 64

struct weft_fused {
  struct weft_cudnn_calls *calls[MOST_DEVICES];
  struct weft_cudnn_attention *of[MOST_DEVICES];
  const char *why[MOST_DEVICES]; /* there is none */
  gint said[WEFT_N_OP];          /* by any thread */
};

struct weft_fused *
weft_fused_new (void)
{
  return g_new0 (struct weft_fused, 1);
}

void
weft_fused_free (struct weft_fused *f)
{
  for (int device = 0; device < MOST_DEVICES; device++) {
    weft_cudnn_attention_free (f->of[device]);
    g_free (f->calls[device]);
  }
  g_free (f);
}

static struct weft_cudnn_attention *
attention_of (struct weft_fused *f, int device)
{
  if (f->of[device] || f->why[device])
    return f->of[device];
  f->calls[device] = weft_cudnn_open (NULL, &f->why[device]);
  if (f->calls[device])
    f->of[device] = weft_cudnn_attention_new (f->calls[device], NULL, &f->why[device]);
  return f->of[device];
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

static void
say (struct weft_fused *f, const struct weft_kernel *k, const char *why)
{
  if (g_atomic_int_compare_and_exchange (&f->said[k->kind], 0, 1))
    g_printerr (
        "weft: attention_backend = fused: %s by our own kernels, cuDNN does not take it: %s\n",
        weft_op_words[k->kind], why);
}

gboolean
weft_fused_takes (struct weft_fused *f, int device, const struct weft_kernel *k, uint64_t *scratch)
{
  const char *refused;

  *scratch = 0;
  if (!k->fused || (!is_whole (k) && !is_part (k)))
    return FALSE;
  if (is_part (k)) {
    say (f, k, "it has parts of sequences");
    return FALSE;
  }
  struct weft_cudnn_attention *a = attention_of (f, device);
  struct weft_cudnn_shape shape = shape_of (k);
  if (!a)
    return FALSE;
  if ((refused = weft_cudnn_attention_plan (a, &shape, scratch)))
    say (f, k, refused);
  return refused == NULL;
}

const char *
weft_fused_missing (struct weft_fused *f, int device, const struct weft_kernel *k)
{
  g_autofree char *text = NULL;

  if (!k->fused || !is_whole (k) || attention_of (f, device))
    return NULL;
  text = g_strdup_printf ("attention_backend = fused: %s", f->why[device]);
  return g_intern_string (text);
}

const char *
weft_fused_run (struct weft_fused *f, int device, const struct weft_kernel *k,
                const struct weft_cuda_launch *l)
{
  struct weft_cudnn_shape shape = shape_of (k);

  return weft_cudnn_attention_run (attention_of (f, device), &shape, l);
}
