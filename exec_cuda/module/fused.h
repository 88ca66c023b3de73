/* fused.h - attention_backend = fused: attention of whole sequences by cuDNN, where it takes the shape.
 *
 * Of other shapes, and of parts of sequences, own kernels do the work; the first time for each op a line
 * on stderr says why.  Calls of one device come from one thread. */
#pragma once
#include "kernels/cuda/table.h"

struct weft_fused;
struct weft_fused *weft_fused_new (void);
void weft_fused_free (struct weft_fused *f);

/* Whether a call is cuDNN's to do, with the scratch that it wants for it.  Makes the plan. */
gboolean weft_fused_takes (struct weft_fused *f, int device, const struct weft_kernel *k,
                           uint64_t *scratch);

/* NULL, or why nothing that was to be fused can be: there is no library.  Lives for ever. */
const char *weft_fused_missing (struct weft_fused *f, int device, const struct weft_kernel *k);

/* A call that it takes.  NULL, or what went wrong. */
const char *weft_fused_run (struct weft_fused *f, int device, const struct weft_kernel *k,
                            const struct weft_cuda_launch *l);
