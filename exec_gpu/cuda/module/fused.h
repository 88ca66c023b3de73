/* fused.h - attention of whole sequences by cuDNN: attention_backend = fused, where it takes the
 * shape; = auto, where it also was quicker than the own kernels when both were tried.
 *
 * Of other shapes, and of parts of sequences, own kernels do the work; where `fused` was asked for
 * the first time for each op a line on stderr says why.  Calls of one device come from one
 * thread. */
#pragma once
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/table.h"

/* `calls`, which outlive it, in place of the library, or NULL: it is looked for when it is
 * needed. */
struct weft_fused;
struct weft_fused *weft_fused_new (const struct weft_cudnn_calls *calls);
void weft_fused_free (struct weft_fused *f);

/* Whether a call is cuDNN's to do, with the scratch that it wants for it.  Makes the plan.  A shape
 * of auto that was not tried is the own kernels', with the scratch with which cuDNN could be
 * tried. */
gboolean
weft_fused_takes (struct weft_fused *f, int device, const struct weft_kernel *k, uint64_t *scratch);

/* NULL, or why nothing that was to be fused can be: there is no library.  Lives for ever. */
const char *weft_fused_missing (struct weft_fused *f, int device, const struct weft_kernel *k);

/* A call that it takes.  NULL, or what went wrong. */
const char *weft_fused_run (struct weft_fused *f, int device, const struct weft_kernel *k,
                            const struct weft_cuda_launch *l);

/* attention_backend = auto: tries both on memory of their own, like that of the launch, with its
 * stream and scratch, and remembers which was quicker.  Of other calls, of shapes that are known,
 * and without memory to try on: nothing. */
void weft_fused_try (struct weft_fused *f, int device, const struct weft_kernel *k,
                     const struct weft_cuda_launch *l);

/* What was found, as a file of this machine (kernels/cuda/trial.h): read once for each device, and
 * written where there is news. */
void weft_fused_load (struct weft_fused *f, int device, const char *machine);
void weft_fused_save (struct weft_fused *f, int device, const char *machine);
