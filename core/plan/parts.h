/* parts.h - cuts a step at the points where a user's training loop may inspect it or act.
 *
 * Every op belongs to one part. No part depends on a later part, neither by a dependency nor by
 * lane order. A step that runs part by part therefore runs the same ops on the same lanes, and
 * computes the same bits.
 *
 *   one stage       zero_grad_buffer, then a part for each cell of the schedule, then the parts
 *                   after the schedule
 *   several stages  all cells are one part, because a stage cannot finish a cell without the other
 *                   stages; with the gradient collectives that a cell waits for */
#pragma once
#include "core/plan/plan.h"

/* constant             word                    ops of the part */
#define WEFT_PART_LIST(X)                                                                          \
  X (WEFT_PART_ZERO, "zero_grad_buffer", "clears gradients and running sums")                      \
  X (WEFT_PART_FORWARD, "forward", "one microbatch, with gathers of weights that it needs")        \
  X (WEFT_PART_BACKWARD, "backward",                                                               \
     "one microbatch, with the gradient collectives that its last gradients launch")               \
  X (WEFT_PART_SCHEDULE, "forward_backward", "all cells of all stages")                            \
  X (WEFT_PART_START, "start_grad_sync", "gradient collectives that no backward part launches")    \
  X (WEFT_PART_FINISH, "finish_grad_sync", "waits for gradient collectives; sums after them")      \
  X (WEFT_PART_FINALIZE, "finalize_model_grads", "tied embedding, token count: finish.c")          \
  X (WEFT_PART_UPDATE, "step", "norm, clip, update, loss; gathers that no op waits for")
enum weft_part_kind { WEFT_PART_LIST (WEFT_WORD_ID) WEFT_N_PART };
extern const char *const weft_part_words[];

struct weft_part {
  uint8_t kind;
  uint16_t micro; /* microbatch of a forward or backward part; WEFT_NO_MICRO for other parts */
};

typedef struct weft_parts {
  uint32_t n;
  struct weft_part *part; /* parts in the order in which they run */
  uint32_t n_roles;
  uint32_t **of;          /* [role][op]: index of the part that the op belongs to */
} weft_parts;

/* Cuts the step of a plan into parts. The caller frees them with weft_parts_free(). */
weft_parts *weft_parts_new (const weft_plan *plan);

/* Whether some rank launches a gradient collective in a part. */
gboolean weft_parts_reduces (const weft_parts *parts, const weft_plan *plan, uint32_t part);
void weft_parts_free (weft_parts *parts);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_parts, weft_parts_free)
