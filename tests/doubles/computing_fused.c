#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/table.h"
#include "tests/doubles/computing_cuda.h"

enum { QKV };

gboolean
computing_fused_takes (const computing_cuda *d, const struct weft_kernel *k)
{
  return d->cudnn && k->fused && (k->kind == WEFT_OP_ATTENTION || k->kind == WEFT_OP_ATTENTION_BWD);
}

uint64_t
computing_fused_scratch (computing_cuda *d, const struct weft_kernel *k)
{
  uint64_t bytes = 0;

  if (!computing_fused_takes (d, k))
    return 0;
  const struct weft_cudnn_shape shape = weft_cudnn_shape_of (
      k->shape.dim, k->operand[QKV].dtype, k->kind == WEFT_OP_ATTENTION_BWD, k->deterministic);
  g_assert (weft_cudnn_attention_plan (d->cudnn, &shape, &bytes) == NULL);
  return bytes;
}

/* Runs attention with the double of cuDNN. The double uses no stream, but checks that the caller
 * has set one. */
const char *
computing_fused_run (computing_cuda *d, const struct computing_item *item)
{
  struct weft_cuda_launch l = *(const struct weft_cuda_launch *) item->kernel;
  const struct weft_cudnn_shape shape = weft_cudnn_shape_of (
      l.dim, l.operand[QKV].dtype, item->op == WEFT_OP_ATTENTION_BWD, item->same);

  l.stream = d;
  d->n_fused++;
  return weft_cudnn_attention_run (d->cudnn, &shape, &l);
}
